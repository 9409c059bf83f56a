//! Every function of real programs: nothing panics, most entries need no trap, and what is counted
//! is what is planned.

mod elf;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

use elf::{Elf, compile, parse};
use sidestep_isa::{Isa, Len, Va, sweep};
use sidestep_plan::coverage::{Coverage, Sites};
use sidestep_plan::explain::{Returns, lines};
use sidestep_plan::{Fixed, Index, Placement, Reason, Room, Technique, plan_in};

/// Everything is free.
struct Free;

impl Room for Free {
    fn is_free(&self, _: Va, _: Range<Va>) -> Result<(), Reason> {
        Ok(())
    }

    fn claim(&mut self, _: Va, _: Range<Va>) {}

    fn stub(&mut self, end: Va, fixed: Fixed) -> Option<Va> {
        let high = fixed.highs().next()?;
        let (low, ..) = fixed.low(high)?;
        Some(end.offset((i64::from(high) << 16) + i64::from(low)))
    }
}

/// The starts of all functions.
fn entries(elf: &Elf<'_>, index: &Index<'_>) -> BTreeSet<Va> {
    let known = elf.code.extents.iter().map(|e| e.start).filter(|va| elf.code.is_text(*va));
    known.chain(index.found().filter(|(_, is_start)| *is_start).map(|(e, _)| e.start)).collect()
}

/// All instructions of functions, decoded one behind the other. For programs without symbols that
/// have no size.
fn instructions(elf: &Elf<'_>, index: &Index<'_>) -> BTreeSet<Va> {
    let all = elf.code.extents.iter().copied().chain(index.found().map(|(e, _)| e));
    let mut extents: Vec<_> = all.map(|e| (e.start, e.start.plus(e.len))).collect();
    extents.sort_unstable();
    let mut functions: Vec<(Va, Va)> = Vec::new();
    for (start, end) in extents {
        match functions.last_mut() {
            Some(last) if start < last.1 => last.1 = last.1.max(end),
            _ => functions.push((start, end)),
        }
    }
    let code = |(start, end)| sweep(Isa::X64, elf.code.text_at(start, end).unwrap_or_default(), start);
    functions.into_iter().flat_map(|f| code(f).map_while(Result::ok)).map(|insn| insn.va()).collect()
}

/// Plans every site; asserts that the coverage says the same.
fn assert_as_planned(index: &Index<'_>, sites: Sites, all: &BTreeSet<Va>) -> Coverage {
    let start = Instant::now();
    let coverage = Coverage::of(index, sites, || Free);
    println!("  {sites:?}: {} in {:?}: {:?}", coverage.sites(), start.elapsed(), coverage.techniques);
    for reason in coverage.reasons.iter().take(14) {
        println!("  {:6} {:?} {}, {}", reason.sites, reason.rejected, reason.text, reason.example);
    }

    let (mut techniques, mut rejections): (BTreeMap<Technique, u64>, BTreeMap<Technique, u64>) = Default::default();
    let (mut refused, mut traps) = (BTreeSet::new(), BTreeSet::new());
    for va in all {
        match plan_in(index, *va, &mut Free, Placement::default()) {
            Ok(plan) => {
                assert!(lines(&plan, &Returns::Not { why: String::new() }, true).len() >= 6);
                *techniques.entry(plan.technique).or_default() += 1;
                if plan.technique == Technique::Trap {
                    traps.insert(*va);
                    plan.rejected.iter().for_each(|r| *rejections.entry(r.technique).or_default() += 1);
                }
            }
            Err(refusal) => _ = refused.insert(refusal.asked),
        }
    }
    assert_eq!(coverage.techniques, techniques);
    assert_eq!(coverage.refused + coverage.data, refused.len() as u64);
    for rejected in [None].into_iter().chain(Technique::all().map(Some)) {
        let (count, sites) = match rejected {
            None => (coverage.refused, &refused),
            // Not all techniques are tried on all sites.
            Some(technique) => (rejections.get(&technique).copied().unwrap_or(0), &traps),
        };
        let reasons: Vec<_> = coverage.reasons.iter().filter(|r| r.rejected == rejected).collect();
        assert_eq!(reasons.iter().map(|r| r.sites).sum::<u64>(), count, "{rejected:?}");
        assert!(reasons.iter().all(|r| sites.contains(&r.example)), "{rejected:?}");
    }
    assert!(coverage.reasons.windows(2).all(|pair| pair[0].sites >= pair[1].sites));
    assert!(coverage.reasons.iter().all(|r| !r.text.contains("0x") && !r.text.contains('`') && !r.text.is_empty()));
    coverage
}

fn share(path: &str, least: u64) {
    let Some(data) = elf::installed(path) else {
        eprintln!("{path}: not installed");
        return;
    };
    let elf = parse(&data);
    let start = Instant::now();
    let index = Index::new(elf.code.clone());
    println!("{path}: index {:?}", start.elapsed());
    let coverage = assert_as_planned(&index, Sites::Entries, &entries(&elf, &index));
    assert!(coverage.sites() > 100, "{path}: the test found no functions");
    assert!(coverage.without_trap() * 100 >= coverage.sites() * least, "{path}: {:?}", coverage.techniques);
}

#[test]
fn libc() {
    share("/lib/x86_64-linux-gnu/libc.so.6", 90);
}

#[test]
fn libcrypto() {
    share("/lib/x86_64-linux-gnu/libcrypto.so.3", 90);
}

#[test]
fn bash() {
    share("/bin/bash", 90);
}

#[test]
fn redis() {
    share("/usr/bin/redis-server", 90);
}

#[test]
fn python() {
    share("/usr/bin/python3.11", 90);
}

#[test]
fn every_instruction_of_bash_is_counted_as_it_is_planned() {
    let Some(data) = elf::installed("/bin/bash") else {
        eprintln!("no bash");
        return;
    };
    let elf = parse(&data);
    let index = Index::new(elf.code.clone());
    assert_as_planned(&index, Sites::Instructions, &instructions(&elf, &index));
}

/// A part without a frame looks like a function to the unwind information; but functions are not
/// branched to.
#[test]
fn what_others_branch_to_is_no_entry_unless_it_has_a_name() {
    let source = "
        .macro function name
        .type \\name,@function
        .p2align 4,0xcc
        \\name:
        .endm
        function f
        test %edi,%edi
        jne part
        call called
        jmp tail
        .size f,.-f
        function part
        xor %eax,%eax
        ret
        .size part,.-part
        function called
        dec %edi
        jne called
        ret
        .size called,.-called
        function tail
        dec %edi
        jne tail
        ret
        .size tail,.-tail";
    let data = compile("a.s", source, &["-shared", "-nostdlib", "-Wl,-z,noexecstack"]);
    let elf = parse(&data);
    let entries = |code| Coverage::of(&Index::new(code), Sites::Entries, || Free).sites();
    assert_eq!(entries(elf.code.clone()), 4);
    let mut code = elf.code.clone();
    code.nameless = ["f", "part", "called", "tail"].map(|name| elf.symbol(name)).to_vec();
    assert_eq!(entries(code.clone()), 3, "a loop's own branch is no part's");
    code.pointers = vec![elf.symbol("part")];
    assert_eq!(entries(code), 4, "somebody may call it by a pointer");
}

#[test]
fn data_in_text_is_no_site() {
    // A function with a word that is no instruction in it; then padding, data without a symbol, and
    // a function.
    let source = "
        .globl f, g
        .type f,@function
        f: mov $1,%eax
        jmp 1f
        .byte 0x06,0x06
        1: ret
        .size f,.-f
        .p2align 4,0xcc
        .quad 0x1122334455667788,0x1122334455667788
        .type g,@function
        g: mov $2,%eax
        add $0x12345678,%eax
        lcall *(%rdi)
        .size g,.-g";
    let data = compile("a.s", source, &["-shared", "-nostdlib", "-Wl,-z,noexecstack"]);
    let elf = parse(&data);
    let index = Index::new(elf.code.clone());

    let entries = Coverage::of(&index, Sites::Entries, || Free);
    assert_eq!((entries.sites(), entries.of_technique(Technique::Jump), entries.data), (2, 2, 0));
    let mut code = elf.code.clone();
    code.parts.push(elf.symbol("f"));
    assert_eq!(Coverage::of(&Index::new(code), Sites::Entries, || Free).sites(), 1, "a part is no function");
    // Of `f` only the entry can be probed: the jump behind it may be data, too.
    let all = Coverage::of(&index, Sites::Instructions, || Free);
    assert_eq!((all.sites(), all.of_technique(Technique::Jump), all.refused, all.data), (4, 3, 1, 1));
    assert_eq!(all.between, 16);
    let [reason] = &all.reasons[..] else { panic!("{:?}", all.reasons) };
    assert_eq!((reason.rejected, reason.sites), (None, 1));
    assert_eq!(reason.example, elf.symbol("g").plus(Len(10)));
    assert!(reason.text.starts_with("the instruction at X cannot be moved"), "{}", reason.text);
}
