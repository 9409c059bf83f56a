//! Jumps through registers, as compilers write them.

use std::process::Command;

use object::{Object, ObjectSection};
use sidestep_isa::indirect::{Entries, Origin, Table, indirect_jumps};
use sidestep_isa::{Isa, Va, decode, sweep, thunk};

use crate::oracle::{Scratch, assemble, has, has_llvm, run};

const AT: u64 = 0x40_1000;
const TABLE: Va = Va(0x40_5010);

/// Where the only jump of some code leads. `adrp` of the assembler takes distances: that of the
/// page of the table is 0x4000 everywhere in this code.
fn origin(source: &str) -> Origin {
    let code: Vec<u8> = assemble(source, AT).iter().flat_map(|word| word.to_le_bytes()).collect();
    let insns = sweep(Isa::A64, &code, Va(AT)).map_while(Result::ok).collect();
    let at = |va: Va| decode(Isa::A64, code.get(usize::try_from(va.since(Va(AT))).ok()?..)?, va).ok();
    let mut jumps = indirect_jumps(Isa::A64, insns, None, &at);
    assert_eq!(jumps.len(), 1, "{source}");
    jumps.remove(0).1
}

fn table(base: Va, start: Va, bytes: u8, signed: bool, shift: u8) -> Origin {
    Origin::Table(vec![Table { base, start, certain: true, entries: Entries { bytes, signed, shift } }])
}

#[test]
fn tables_of_compilers_are_found() {
    let label = Va(AT + 0x40);
    let cases = [
        // GCC, with entries of 1, 2 and 4 bytes.
        ("ldrb w0, [x0, w1, uxtw]; adr x1, .+0x34; add x0, x1, w0, sxtb #2; br x0", table(label, TABLE, 1, true, 2)),
        ("ldrh w0, [x0, w1, uxtw #1]; adr x1, .+0x34; add x0, x1, w0, sxth #2; br x0", table(label, TABLE, 2, true, 2)),
        ("ldr w0, [x0, w1, uxtw #2]; adr x1, .+0x34; add x0, x1, w0, sxtw #2; br x0", table(label, TABLE, 4, true, 2)),
        // LLVM.
        ("adr x9, .+0x38; ldrb w10, [x0, x1]; add x9, x9, x10, lsl #2; br x9", table(label, TABLE, 1, false, 2)),
        (
            "adr x9, .+0x38; ldrh w10, [x0, x1, lsl #1]; add x9, x9, x10, lsl #2; br x9",
            table(label, TABLE, 2, false, 2),
        ),
        ("ldrsw x10, [x0, x1, lsl #2]; add x0, x0, x10; br x0", table(TABLE, TABLE, 4, true, 0)),
        // The other way round, and by way of another register.
        ("ldrsw x10, [x0, x1, lsl #2]; add x2, x10, x0; mov x3, x2; br x3", table(TABLE, TABLE, 4, true, 0)),
    ];
    if !has_llvm(cases.len()) {
        return;
    }
    for (source, expected) in cases {
        let head = "adrp x0, #0x4000; add x0, x0, #0x10;";
        assert_eq!(origin(&format!("{head}{source}")), expected, "{source}");
        // With the check of the index in front, and a jump over it.
        let check = format!("cmp w1, #7; b.hi 1f; {head}{source}; 1: ret");
        let moved = match expected {
            Origin::Table(mut tables) => {
                tables.iter_mut().filter(|table| table.base == label).for_each(|table| table.base = label.offset(8));
                Origin::Table(tables)
            }
            other => other,
        };
        assert_eq!(origin(&check), moved, "{source}");
    }
}

#[test]
fn pointers_are_told_from_what_is_computed() {
    let cases = [
        ("ldr x1, [x0, #8]; br x1", Origin::Pointer),
        ("mov x16, x3; br x16", Origin::Pointer),
        ("adrp x16, #0x4000; ldr x17, [x16, #0x18]; add x16, x16, #0x18; br x17", Origin::Pointer),
        ("adrp x0, #0; add x0, x0, #0x20; br x0", Origin::Pointer),
        ("ldr x1, [x0, x2, lsl #3]; br x1", Origin::Pointer),
        ("csel x1, x2, x3, eq; br x1", Origin::Pointer),
        ("ldr x1, [x19]; ldp x29, x30, [sp], #16; ldr x19, [sp], #16; br x1", Origin::Pointer),
        ("bl .; br x0", Origin::Pointer),
        ("ldr x1, [x0]; braa x1, x0", Origin::Pointer),
        // On the stack, or not proven.
        ("ldr x1, [sp, #8]; br x1", Origin::Computed),
        ("ldr x1, [x29, #-8]; br x1", Origin::Computed),
        ("add x0, x0, #4; br x0", Origin::Computed),
        ("adrp x0, #0; br x0", Origin::Computed),
        ("adr x0, .; add x0, x0, w1, uxtb #2; br x0", Origin::Computed),
        ("adr x0, .; ldrb w1, [x2, x3]; add x0, x0, x1, lsl #2; br x0", Origin::Computed),
        ("ldr w0, [x0]; br x0", Origin::Computed),
        // ldr x0, [x0], #8
        (".inst 0xf8408400; br x0", Origin::Computed),
        ("eor x0, x0, x1; br x0", Origin::Computed),
        ("mov x0, #0x1000; br x0", Origin::Computed),
        ("ret x17", Origin::Pointer),
        ("add x17, x30, #4; ret x17", Origin::Computed),
    ];
    if !has_llvm(cases.len()) {
        return;
    }
    for (source, expected) in cases {
        assert_eq!(origin(source), expected, "{source}");
    }
}

#[test]
fn thunks_stand_for_jumps() {
    let sources = [
        ("mov x16, x3; br x16; dsb sy; isb", true),
        ("bti c; mov x16, x3; br x16", true),
        ("br x3", true),
        ("mov x16, x3; br x17", false),
        ("mov x16, x3; blr x16", false),
        ("ret", false),
    ];
    if !has_llvm(sources.len()) {
        return;
    }
    for (source, expected) in sources {
        let code: Vec<u8> = assemble(source, AT).iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = |va: Va| decode(Isa::A64, code.get(usize::try_from(va.since(Va(AT))).ok()?..)?, va).ok();
        assert_eq!(thunk::is_thunk(Isa::A64, Va(AT), at), expected, "{source}");
    }
}

const SWITCH: &str = "
    int f0(void), f1(void), f2(void), f3(void), f5(int);
    int big(unsigned x, int y) {
        switch (x) {
        case 0: return f0();
        case 1: return f1() + y;
        case 2: return f2() * y;
        case 3: f3(); /* on */
        case 4: return f5(y) + 1;
        case 6: return f5(3);
        case 8: return y / 3;
        case 9: return f5(y / 5) * 4;
        }
        return 0;
    }
";

/// Code of a compiler, with its table: the entries lead to instructions of the function.
#[test]
fn tables_of_clang_are_read() {
    let levels = ["-O0", "-O1", "-O2", "-Os"];
    if !has(&["clang"], levels.len()) {
        return;
    }
    for level in levels {
        let dir = Scratch::new();
        let (source, object) = (dir.path("switch.c"), dir.path("switch.o"));
        std::fs::write(&source, SWITCH).expect("a file");
        let flags = ["-target", "aarch64-linux-gnu", "-fPIC", level, "-c", "-o"];
        run(Command::new("clang").args(flags).args([&object, &source]));
        let data = std::fs::read(&object).expect("the output");
        let file = object::File::parse(&*data).expect("an ELF file");
        let section = |name| file.section_by_name(name).and_then(|section| section.data().ok()).expect("a section");
        let (text, entries) = (section(".text"), section(".rodata"));
        let insns: Vec<_> = sweep(Isa::A64, text, Va(0)).map(|insn| insn.expect("an instruction")).collect();
        let jumps = indirect_jumps(Isa::A64, insns, None, &|va| decode(Isa::A64, text.get(va.0 as usize..)?, va).ok());
        let [(_, Origin::Table(tables))] = &jumps[..] else { panic!("{level}: {jumps:?}") };
        let [table] = tables[..] else { panic!("{level}: {tables:?}") };
        // Nothing is linked, so the table is at the start of the page.
        assert!(table.certain && table.start == Va(0), "{level}: {table:?}");
        let targets: Vec<_> = table.targets(entries).collect();
        assert_eq!(targets.len(), 10, "{level}: {table:?}");
        assert!(targets.iter().all(|target| target.0 % 4 == 0 && target.0 < text.len() as u64), "{level}: {targets:?}");
        let mut cases = targets.clone();
        cases.sort_unstable();
        cases.dedup();
        // Two numbers have no case.
        assert!(targets[5] == targets[7] && cases.len() == 9, "{level}: {targets:?}");
    }
}
