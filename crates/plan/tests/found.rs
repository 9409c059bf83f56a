//! Code that nothing describes: what is found is compared with symbols that the index was not told
//! of.

mod elf;

use std::collections::BTreeSet;
use std::ops::Range;

use elf::{Elf, compile, compile_32, parse};
use sidestep_isa::{Flow, Insn, Isa, Va, sweep};
use sidestep_plan::object::{Extent, ObjectCode};
use sidestep_plan::{Index, SiteKind, plan};

/// The object without symbols and unwind information: what `strip` leaves, and
/// `-fno-asynchronous-unwind-tables`.
fn bare<'a>(elf: &Elf<'a>) -> ObjectCode<'a> {
    let entry = Va(object::Object::entry(&elf.file));
    let mut code = ObjectCode { extents: Vec::new(), labels: vec![entry], beginnings: vec![entry], ..elf.code.clone() };
    if object::Object::kind(&elf.file) == object::ObjectKind::Executable {
        code.pointers = words(&code);
    }
    code
}

/// What a program at a fixed address has in place of relocations: words of data that are addresses
/// in text. In 32-bit code such tables are in the text, too.
fn words(code: &ObjectCode<'_>) -> Vec<Va> {
    let text = code.text.iter().filter(|_| code.isa == Isa::X86);
    let address = |word: &[u8]| word.iter().rev().fold(0, |high, byte| high << 8 | u64::from(*byte));
    let words = code.data.iter().chain(text).flat_map(|section| section.data.chunks_exact(code.isa.word() as usize));
    words.map(|word| Va(address(word))).filter(|va| code.is_text(*va)).collect()
}

/// Instructions that lie in functions of symbols, and their starts.
struct Truth {
    functions: Vec<Range<Va>>,
    starts: BTreeSet<Va>,
    insns: BTreeSet<Va>,
}

fn truth(elf: &Elf<'_>) -> Truth {
    let sized = elf.functions.iter().filter(|(.., size)| *size > 0);
    let functions: Vec<Range<Va>> = sized.map(|(_, va, size)| *va..va.offset(*size as i64)).collect();
    let code = |f: &Range<Va>| elf.code.text_at(f.start, f.end).unwrap_or_default();
    let insns: Vec<Insn> = functions.iter().flat_map(|f| disassembled(elf.code.isa, code(f), f.start)).collect();
    // What is called is a function, even if it has no symbol.
    let called = insns.iter().filter_map(|insn| if let Flow::Call(to) = insn.flow() { Some(to) } else { None });
    let starts = elf.functions.iter().map(|f| f.1).chain(called).collect();
    // Padding within functions, which nobody runs, is not found.
    let insns = insns.iter().filter(|insn| !insn.is_filler()).map(|insn| insn.va()).collect();
    Truth { starts, functions, insns }
}

/// The instructions of a function. Between those of hand-written ones there may be padding of
/// zeros, as if nobody wrote `add %al,(%eax)`.
fn disassembled(isa: Isa, bytes: &[u8], start: Va) -> Vec<Insn> {
    let (mut insns, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let here = start.offset(at as i64);
        match sweep(isa, &bytes[at..], here).next() {
            _ if isa == Isa::X86 && bytes[at] == 0 => at += 1,
            Some(Ok(insn)) => {
                at += insn.len();
                insns.push(insn);
            }
            _ => break,
        }
    }
    insns
}

/// What was found against what is there: shares in percent of instructions and starts, and what is
/// wrong.
fn compare(name: &str, data: &[u8]) -> (f64, f64) {
    let elf = parse(data);
    let truth = truth(&elf);
    let index = Index::new(bare(&elf));
    let described = |va: &Va| truth.functions.iter().any(|f| f.contains(va));
    let (mut insns, mut starts) = (0, 0);
    let (mut wrong_insns, mut wrong_starts) = (Vec::new(), Vec::new());
    for (Extent { start, len }, is_start) in index.found() {
        let bytes = elf.code.text_at(start, start.plus(len)).unwrap();
        for insn in sweep(elf.code.isa, bytes, start) {
            let insn = insn.expect("an instruction");
            let va = insn.va();
            match truth.insns.contains(&va) {
                true => insns += 1,
                false if described(&va) && !insn.is_filler() => wrong_insns.push(va),
                false => {}
            }
        }
        if is_start {
            match truth.starts.contains(&start) {
                true => starts += 1,
                false if described(&start) => wrong_starts.push(start),
                false => {}
            }
        }
    }
    let share = |part: usize, all: usize| part as f64 * 100. / all as f64;
    let shares = (share(insns, truth.insns.len()), share(starts, truth.starts.len()));
    println!(
        "{name}: {insns} of {} instructions ({:.2} %), {starts} of {} starts ({:.2} %), wrong {} and {}: {:?} {:?}",
        truth.insns.len(),
        shares.0,
        truth.starts.len(),
        shares.1,
        wrong_insns.len(),
        wrong_starts.len(),
        &wrong_insns[..wrong_insns.len().min(5)],
        &wrong_starts[..wrong_starts.len().min(20)],
    );
    assert!(wrong_insns.is_empty(), "{name}");
    for start in wrong_starts {
        // A label to which a pointer leads: nothing may rely on it that holds for functions only.
        let plan = plan(&index, start, false);
        assert!(plan.is_ok_and(|plan| plan.kind == SiteKind::Inside), "{name}: {start}");
    }
    shares
}

#[test]
fn a_real_program() {
    let path = std::env::current_exe().unwrap();
    let (insns, starts) = compare("this test", &std::fs::read(path).unwrap());
    // Without optimization, much is there that nobody calls.
    assert!(insns > 90. && starts > 60., "{insns} {starts}");
}

/// Tables of pointers and of distances, functions that only pointers lead to, one that never
/// returns in front of another, and the C library with its assembler.
const SOURCE: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    static int add(int a) { return a + 1; }
    static int twice(int a) { return a * 2 + (a > 7); }
    static void leave(int a) { if (a > 3) exit(a); abort(); }
    static int pick(int a) {
        switch (a) {
        case 0: return puts("a");
        case 1: return puts("b") + 7;
        case 2: return (int)strlen("c");
        case 3: leave(a); 
        case 4: return printf("%d", a);
        case 5: return getenv("x") != 0;
        case 6: return atoi("5") / a;
        default: return -1;
        }
    }
    static int (*const table[])(int) = { add, twice, pick };
    int main(int argc, char **argv) { return table[argc % 3](argc); }
"#;

#[test]
fn static_programs_at_fixed_addresses() {
    for level in ["-Os", "-O2", "-O0"] {
        let data = compile("a.c", SOURCE, &["-static", "-no-pie", "-fno-pie", "-fcf-protection=none", level]);
        let (insns, starts) = compare(level, &data);
        // Nobody calls the rest: it is there since something else in its object file is needed.
        assert!(insns > 90. && starts > 65., "{level}: {insns} {starts}");
    }
}

/// Position-independent, too: tables of distances from the `_GLOBAL_OFFSET_TABLE_`.
#[test]
fn static_programs_of_32_bits() {
    for place in [&["-static", "-no-pie", "-fno-pie"][..], &["-static-pie", "-fpie"]] {
        for level in ["-Os", "-O2", "-O0"] {
            let data = compile_32("a.c", SOURCE, &[&["-fcf-protection=none", level], place].concat());
            let (insns, starts) = compare(&format!("{place:?} {level}"), &data);
            assert!(insns > 75. && starts > 60., "{place:?} {level}: {insns} {starts}");
        }
    }
}

/// Debian's has no symbols, and unwind information of the C library alone.
#[test]
fn what_is_found_in_busybox_is_what_objdump_disassembles() {
    let path = "/usr/bin/busybox";
    let Some(data) = elf::installed(path) else {
        eprintln!("{path}: not installed");
        return;
    };
    let elf = parse(&data);
    let mut code = ObjectCode { beginnings: vec![Va(object::Object::entry(&elf.file))], ..elf.code.clone() };
    code.pointers = words(&code);
    let index = Index::new(code);
    let output =
        std::process::Command::new("objdump").args(["-d", "--no-show-raw-insn", path]).output().expect("objdump");
    let text = String::from_utf8(output.stdout).unwrap();
    let address = |line: &str| u64::from_str_radix(line.split_once(":\t")?.0.trim(), 16).ok();
    let theirs: BTreeSet<u64> = text.lines().filter_map(address).collect();
    let (mut insns, mut bytes, mut starts) = (0, 0, 0);
    for (Extent { start, len }, is_start) in index.found() {
        starts += usize::from(is_start);
        bytes += len.0;
        for insn in sweep(Isa::X64, elf.code.text_at(start, start.plus(len)).unwrap(), start) {
            let insn = insn.expect("an instruction");
            assert!(theirs.contains(&insn.va().0), "{insn} at {}", insn.va());
            insns += 1;
        }
    }
    println!("busybox: {insns} instructions in {bytes} bytes, {starts} functions");
    assert!(bytes > 400_000 && starts > 1500, "{bytes} {starts}");
}
