//! The C library as Debian's GCC has compiled it.

use std::collections::BTreeMap;

use crate::oracle::skip;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use sidestep_isa::indirect::{Origin, indirect_jumps};
use sidestep_isa::live::dead_before;
use sidestep_isa::named::Named;
use sidestep_isa::stack::Stack;
use sidestep_isa::{Flow, Insn, Isa, Va, decode, relocate, relocated_len, sweep};

const LIBC: &str = "/usr/aarch64-linux-gnu/lib/libc.so.6";

struct Library {
    /// Sections with their addresses.
    sections: Vec<(String, u64, Vec<u8>)>,
    /// Functions: address and length. Sorted.
    functions: Vec<(u64, u64)>,
}

impl Library {
    /// The library; none: it is not installed.
    fn open() -> Option<Library> {
        let Ok(data) = std::fs::read(LIBC) else {
            skip(&format!("1 library of A64, for want of {LIBC}"));
            return None;
        };
        let file = object::File::parse(&*data).expect("an ELF file");
        let section = |section: object::Section<'_, '_>| {
            let name = section.name().expect("a name").to_owned();
            (name, section.address(), section.data().unwrap_or_default().to_vec())
        };
        let is_function = |symbol: &object::Symbol<'_, '_>| symbol.kind() == SymbolKind::Text && symbol.size() > 0;
        let mut functions: Vec<(u64, u64)> =
            file.dynamic_symbols().filter(is_function).map(|symbol| (symbol.address(), symbol.size())).collect();
        functions.sort_unstable();
        functions.dedup();
        Some(Library { sections: file.sections().map(section).collect(), functions })
    }

    /// The bytes from an address to the end of their section.
    fn bytes(&self, at: u64) -> Option<&[u8]> {
        self.sections.iter().find_map(|(_, va, data)| {
            let offset = usize::try_from(at.checked_sub(*va)?).ok()?;
            data.get(offset..).filter(|rest| !rest.is_empty())
        })
    }

    fn text(&self) -> (u64, &[u8]) {
        let text = self.sections.iter().find(|(name, ..)| name == ".text").expect(".text");
        (text.1, &text.2)
    }

    fn insns(&self, start: u64, len: u64) -> Vec<Insn> {
        let bytes = &self.bytes(start).expect("code")[..len as usize];
        sweep(Isa::A64, bytes, Va(start)).map_while(Result::ok).collect()
    }
}

#[test]
fn everything_is_decoded_and_can_be_moved() {
    let Some(library) = Library::open() else { return };
    let (va, text) = library.text();
    let (mut copied, mut refused) = (0, BTreeMap::<String, usize>::new());
    for (i, bytes) in text.chunks_exact(4).enumerate() {
        let from = Va(va + 4 * i as u64);
        let insn = decode(Isa::A64, bytes, from).unwrap_or_else(|error| panic!("{error}: {bytes:02x?}"));
        assert!(insn.len() == 4 && insn.next() == Va(from.0 + 4));
        let mut copy = Vec::new();
        match relocate(Isa::A64, bytes, from, Va(va + 0x300_0000), &mut copy) {
            Ok(()) => copied += 1,
            Err(error) => *refused.entry(format!("{error} {insn}")).or_default() += 1,
        }
        assert_eq!(relocated_len(Isa::A64, bytes, from).unwrap_or(0), copy.len());
        // Each word of the copy is an instruction.
        let words = sweep(Isa::A64, &copy, Va(va + 0x300_0000)).filter(Result::is_ok).count();
        assert_eq!(words * 4, copy.len());
    }
    assert!(copied > 200_000 && refused.is_empty(), "{copied} copies, refused: {refused:?}");
}

#[test]
fn jumps_of_functions_lead_into_them() {
    let Some(library) = Library::open() else { return };
    let mut origins = [0; 3];
    let mut computed = Vec::new();
    for &(start, len) in &library.functions {
        let insns = library.insns(start, len);
        let at = |va: Va| decode(Isa::A64, library.bytes(va.0)?, va).ok();
        for (jump, origin) in indirect_jumps(Isa::A64, insns, None, &at) {
            match origin {
                Origin::Pointer => origins[0] += 1,
                Origin::Computed => {
                    origins[2] += 1;
                    computed.push(jump);
                }
                Origin::Table(tables) => {
                    origins[1] += 1;
                    let table = tables.first().expect("a table");
                    assert!(table.certain && tables.len() == 1, "{jump}: {tables:?}");
                    let entries = library.bytes(table.start.0).expect("the table");
                    let targets: Vec<Va> = table.targets(entries).take(3).collect();
                    let inside = targets.iter().all(|target| (start..start + len).contains(&target.0));
                    assert!(inside, "{jump}: {table:?} {targets:?}");
                }
            }
        }
    }
    let [pointers, tables, others] = origins;
    println!("{pointers} pointers, {tables} tables, {others} computed: {computed:?}");
    assert!(pointers > 20 && tables > 4, "{pointers} pointers, {tables} tables");
    assert!(others * 10 < pointers + tables, "computed: {computed:?}");
}

/// Functions return with the stack as they were called.
#[test]
fn the_stack_is_followed_to_the_returns() {
    let Some(library) = Library::open() else { return };
    let (mut known, mut unknown) = (0, 0);
    for &(start, len) in &library.functions {
        let insns = library.insns(start, len);
        // What is known at each instruction, as far as jumps lead there.
        let mut states: Vec<Option<Stack>> = vec![None; insns.len()];
        let mut work = vec![(0, Stack::ENTRY)];
        while let Some((i, stack)) = work.pop() {
            let Some(insn) = insns.get(i) else { continue };
            let meets = states[i].map_or(stack, |before| before.meet(stack));
            if states[i] == Some(meets) {
                continue;
            }
            states[i] = Some(meets);
            if insn.flow() == Flow::Return {
                continue;
            }
            let after = meets.after(insn);
            if insn.falls_through() {
                work.push((i + 1, after));
            }
            if let Flow::Jump(target) | Flow::Branch(target) = insn.flow() {
                let to = target.since(Va(start)) / 4;
                work.extend(usize::try_from(to).ok().map(|to| (to, after)));
            }
        }
        for (insn, stack) in insns.iter().zip(&states) {
            let Some(stack) = stack.filter(|_| insn.flow() == Flow::Return) else { continue };
            match stack.depth() {
                Some(depth) => {
                    assert_eq!(depth, 0, "{} {insn}", insn.va());
                    known += 1;
                }
                None => unknown += 1,
            }
        }
    }
    assert!(known > 1500 && unknown * 20 < known, "{known} known, {unknown} unknown");
}

#[test]
fn named_addresses_are_in_the_library() {
    let Some(library) = Library::open() else { return };
    let (va, text) = library.text();
    let mut named = Named::default();
    let (mut inside, mut outside) = (0, 0);
    let end = library.sections.iter().map(|(_, va, data)| va + data.len() as u64).max().expect("sections");
    for insn in sweep(Isa::A64, text, Va(va)).map_while(Result::ok) {
        // `.bss` has no bytes in the file.
        match named.step(&insn) {
            Some(at) if at.0 < end + 0x2_0000 => inside += 1,
            Some(_) => outside += 1,
            None => {}
        }
        let dead = dead_before(Isa::A64, text, Va(va), insn.va(), &|_| false);
        assert_eq!(dead.regs >> 31, 0, "the stack pointer is never dead");
    }
    assert!(inside > 9000 && outside == 0, "{inside} inside, {outside} outside");
}
