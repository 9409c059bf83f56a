//! What analysis and policy ask, about instructions as the assembler writes them.

use sidestep_isa::passed::Passed;
use sidestep_isa::patch::is_one_write;
use sidestep_isa::scan::{Distance, Reference, distances, references};
use sidestep_isa::stack::Stack;
use sidestep_isa::vectors::vectors_used;
use sidestep_isa::{Flow, Insn, Isa, ObjectCode, Va, decode, go, live, sweep, syscalls};

use crate::oracle::{assemble, has_llvm};

const AT: u64 = 0x40_1000;

/// What is said about an instruction.
type Holds = fn(Insn) -> bool;

fn code(source: &str) -> Vec<u8> {
    assemble(source, AT).iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn insns(source: &str) -> Vec<Insn> {
    sweep(Isa::A64, &code(source), Va(AT)).map(|insn| insn.expect(source)).collect()
}

/// The instructions of some lines, with the lines.
fn lines<'a>(source: &[&'a str]) -> Vec<(&'a str, Insn)> {
    let insns = insns(&source.join("\n"));
    assert_eq!(insns.len(), source.len());
    source.iter().copied().zip(insns).collect()
}

#[test]
fn where_execution_goes_on() {
    let cases: &[(&str, Holds)] = &[
        ("nop", |i| i.flow() == Flow::Next && i.is_nop() && i.is_filler()),
        ("b .+8", |i| i.flow() == Flow::Jump(Va(i.va().0 + 8)) && !i.falls_through()),
        ("bl .+8", |i| i.flow() == Flow::Call(Va(i.va().0 + 8)) && i.usage().writes == 1 << 30),
        ("b.ge .+8", |i| i.flow() == Flow::Branch(Va(i.va().0 + 8)) && i.condition() == Some(10)),
        ("b.al .+8", |i| i.flow() == Flow::Jump(Va(i.va().0 + 8)) && i.condition().is_none()),
        ("cbz x0, .+8", |i| i.flow() == Flow::Branch(Va(i.va().0 + 8)) && i.condition().is_none()),
        ("br x3", |i| i.flow() == Flow::JumpIndirect && i.jumps_through_value()),
        ("braaz x3", |i| i.flow() == Flow::JumpIndirect && i.may_fault()),
        ("blr x3", |i| i.flow() == Flow::CallIndirect && !i.may_fault()),
        ("ret", |i| i.flow() == Flow::Return && i.dropped_by_return() == Some(0)),
        ("ret x3", |i| i.flow() == Flow::JumpIndirect && i.dropped_by_return().is_none()),
        ("retab", |i| i.flow() == Flow::Return),
        ("eret", |i| i.flow() == Flow::Stop && !i.is_usual()),
        ("hlt #1", |i| i.flow() == Flow::Stop && i.may_fault()),
        ("hvc #1", |i| i.flow() == Flow::Stop && !i.is_usual()),
        ("svc #0", |i| i.flow() == Flow::Syscall && i.is_plain_syscall()),
        ("brk #1", |i| i.flow() == Flow::Interrupt && i.is_breakpoint() && !i.is_trap() && i.is_filler()),
        ("udf #0", |i| i.flow() == Flow::Stop && i.is_filler() && !i.is_usual()),
        ("bti c", |i| i.is_target_mark() && !i.is_nop()),
        ("bti", |i| i.is_target_mark()),
        ("paciasp", |i| i.is_target_mark() && i.usage().writes == 1 << 30),
        ("autiasp", |i| !i.is_target_mark() && i.may_fault()),
        ("yield", |i| !i.is_target_mark() && !i.is_nop()),
        ("ldaxr x0, [x1]", |i| i.is_exclusive_load() && !i.is_exclusive_store()),
        ("ldxp x0, x2, [x1]", |i| i.is_exclusive_load()),
        ("stlxr w0, x2, [x1]", |i| i.is_exclusive_store() && !i.is_exclusive_load()),
        ("clrex", |i| i.is_exclusive_store()),
        ("casal x0, x2, [x1]", |i| !i.is_exclusive_load() && !i.is_exclusive_store()),
        ("mrs x0, tpidr_el0", |i| i.is_usual() && !i.may_fault() && i.destination() == Some(0)),
        ("msr daifset, #2", |i| !i.is_usual()),
        ("mrs x0, midr_el1", |i| i.is_usual() && i.may_fault()),
        ("mrs x0, ttbr0_el1", |i| !i.is_usual()),
        ("dc zva, x0", |i| i.is_usual() && i.may_fault()),
        ("ldr x0, .+16", |i| i.pc_target() == Some(Va(i.va().0 + 16)) && !i.may_fault() && !i.makes_address()),
        ("adr x7, .+16", |i| i.makes_address() && i.destination() == Some(7)),
        ("mov x0, x5", |i| i.copied() == Some((5, 0)) && !i.is_sum()),
        ("mov w0, w5", |i| i.copied().is_none()),
        ("mov x29, sp", |i| i.copied() == Some((31, 29))),
        ("mov x0, xzr", |i| i.copied().is_none()),
        ("add x0, x1, #8", |i| i.is_sum() && i.destination() == Some(0)),
        ("add x0, x1, x2, lsl #3", |i| i.is_sum()),
        ("cmp x0, #8", |i| i.destination().is_none() && i.usage().flags_killed == 15),
        ("str x0, [x1]", |i| i.destination().is_none() && i.may_fault() && i.is_recoverable()),
        ("ldr x0, [sp, #8]", |i| i.may_fault() && !i.may_fault_off_stack()),
        ("stp x29, x30, [sp, #-32]!", |i| !i.may_fault()),
        ("ldur x0, [sp, #-8]", |i| i.may_fault()),
        ("ldr x0, [sp, x1]", |i| i.may_fault_off_stack()),
        ("csel x0, x1, x2, gt", |i| i.usage().flags_read == 13),
        ("ccmp x0, x1, #0, eq", |i| i.usage().flags_read == 4 && i.usage().flags_killed == 15),
        ("adc x0, x1, x2", |i| i.usage().flags_read == 2),
        ("msr nzcv, x3", |i| i.usage().flags_killed == 15 && i.usage().reads == 8),
        ("mrs x3, nzcv", |i| i.usage().flags_read == 15 && i.usage().kills == 8),
        ("movk x3, #1", |i| i.usage().kills == 0 && i.usage().reads == 8),
        ("fmov x3, d0", |i| i.usage().kills == 8 && !i.may_fault()),
        ("fmov d0, x3", |i| i.usage().reads == 8 && i.usage().writes == 0),
        ("fcmp d0, d1", |i| i.usage().flags_killed == 15),
        ("umov w3, v0.b[1]", |i| i.usage().kills == 8),
        ("udiv x0, x1, x2", |i| !i.may_fault()),
        ("crc32b w0, w1, w2", |i| i.may_fault()),
        ("whilelt p0.s, x0, x1", |i| i.usage().kills == 0 && i.usage().flags_killed == 0),
    ];
    if !has_llvm(cases.len()) {
        return;
    }
    for ((line, insn), (_, holds)) in lines(&cases.iter().map(|(line, _)| *line).collect::<Vec<_>>()).iter().zip(cases)
    {
        assert!(holds(*insn), "{line}: {:?} {:x?}", insn.flow(), insn.usage());
    }
}

#[test]
fn what_is_left_of_the_state_in_front() {
    let regs = |regs, flags| Some(Passed::Registers { regs, flags });
    let stack = |bytes| Some(Passed::Stack { bytes, flags: false });
    let cases = [
        ("nop", Some(Passed::Nothing)),
        ("bti c", Some(Passed::Nothing)),
        ("paciasp", regs(1 << 30, false)),
        ("stp x29, x30, [sp, #-48]!", stack(48)),
        ("str x30, [sp, #-16]!", stack(16)),
        ("stp d8, d9, [sp, #-32]!", stack(32)),
        ("sub sp, sp, #0x40", stack(0x40)),
        ("sub sp, sp, #0x2000", stack(0x2000)),
        ("add sp, sp, #0x40", None),
        ("stp x29, x30, [sp, #16]", None),
        ("ldp x29, x30, [sp], #16", None),
        ("mov x19, x0", regs(1 << 19, false)),
        ("mov x29, sp", regs(1 << 29, false)),
        ("cmp x0, #1", regs(0, true)),
        ("adrp x0, #0x1000", regs(1, false)),
        ("mrs x0, tpidr_el0", regs(1, false)),
        ("ldr x0, [sp, #8]", regs(1, false)),
        ("ldr x0, [x1]", None),
        ("str x0, [x1]", None),
        ("movi d0, #0", None),
        ("ret", None),
        ("bl .", None),
        ("svc #0", None),
    ];
    if !has_llvm(cases.len()) {
        return;
    }
    for ((line, insn), (_, want)) in lines(&cases.map(|(line, _)| line)).iter().zip(cases) {
        assert_eq!(insn.passed(), want, "{line}");
    }
}

#[test]
fn the_stack_pointer_is_followed() {
    let cases = [
        ("stp x29, x30, [sp, #-64]!", Some(-64)),
        ("mov x29, sp", Some(-64)),
        ("stp x19, x20, [sp, #16]", Some(-64)),
        ("sub sp, sp, #0x100", Some(-320)),
        ("str d8, [sp, #-16]!", Some(-336)),
        ("bl .+8", Some(-336)),
        ("mov sp, x29", Some(-64)),
        ("ldr x19, [sp], #0", Some(-64)),
        ("ldp x29, x30, [sp], #64", Some(0)),
        ("sub sp, sp, x0", None),
        ("mov sp, x29", None),
    ];
    if !has_llvm(cases.len()) {
        return;
    }
    let mut stack = Stack::ENTRY;
    for ((line, insn), (_, depth)) in lines(&cases.map(|(line, _)| line)).iter().zip(cases) {
        stack = stack.after(insn);
        assert_eq!(stack.depth(), depth, "{line}");
    }
}

#[test]
fn only_what_looks_at_the_return_address_names_it() {
    let cases = [
        ("stp x29, x30, [sp, #-64]!", false),
        ("ldp x29, x30, [sp], #64", false),
        ("paciasp", false),
        ("ret", false),
        ("bl .", false),
        ("ldr x0, [x29, #16]", false),
        ("mov x0, x30", true),
        ("xpaclri", true),
        ("ldr x0, [x29, #8]", true),
        ("ldp x1, x2, [x29]", true),
        ("str x30, [x0]", true),
        ("cbz x30, .+8", true),
    ];
    if !has_llvm(cases.len()) {
        return;
    }
    for ((line, insn), (_, want)) in lines(&cases.map(|(line, _)| line)).iter().zip(cases) {
        assert_eq!(Stack::ENTRY.names_return_address(insn), want, "{line}");
    }
}

#[test]
fn words_that_may_be_swapped_under_running_threads() {
    let safe = ["b .+8", "bl .+8", "brk #1", "hvc #1", "isb", "nop", "smc #1", "svc #0"];
    let others = ["b.eq .+8", "cbz x0, .+8", "bti c", "paciasp", "mov x0, x1", "ret", "dcps1 #0", "udf #0", "dsb sy"];
    if !has_llvm(safe.len() * others.len()) {
        return;
    }
    let words = |lines: &[&str]| code(&lines.join("\n")).chunks(4).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (safe, others) = (words(&safe), words(&others));
    for old in &safe {
        assert!(safe.iter().all(|new| is_one_write(Isa::A64, old, new)));
        for new in &others {
            assert!(!is_one_write(Isa::A64, old, new) && !is_one_write(Isa::A64, new, old));
        }
        assert!(!is_one_write(Isa::A64, &old[..2], old));
    }
}

#[test]
fn references_of_words_are_found() {
    if !has_llvm(8) {
        return;
    }
    let source = "nop; bl .+0x100; adr x0, .+0x20; adrp x1, #0x3000; nop; add x2, x1, #0x18; ldr x3, [x1, #0x20]; tbz x0, #1, .-4";
    let bytes = code(source);
    let object = ObjectCode::new(Isa::A64);
    let mut found = Vec::new();
    references(&object, Va(AT), &bytes, &mut |reference| found.push(reference));
    let branch = |at: u64, target: u64| Reference::Branch { source: Va(AT + at), target: Va(target) };
    let page = 0x40_4000;
    let expected = [
        branch(4, AT + 0x104),
        Reference::Names(Va(AT + 0x28)),
        Reference::Names(Va(page)),
        Reference::Names(Va(page + 0x18)),
        Reference::Names(Va(page + 0x20)),
        branch(28, AT + 24),
    ];
    assert_eq!(found, expected);
    // From an odd address, the same words.
    let mut far: Vec<Distance> = Vec::new();
    distances(Isa::A64, Va(AT - 3), &[&[1, 2, 3], &bytes[..]].concat(), |distance| far.push(distance));
    let brief: Vec<_> = far.iter().map(|d| (d.at, d.target.0, d.is_branch)).collect();
    assert_eq!(brief, [(7, AT + 0x104, true), (11, AT + 0x28, false), (15, page, false), (31, AT + 24, true)]);
}

#[test]
fn system_calls_and_their_numbers() {
    if !has_llvm(7) {
        return;
    }
    assert!(syscalls::is_call(Isa::A64, &code("svc #0")) && !syscalls::is_call(Isa::A64, &code("svc #1")));
    for (source, want) in [
        ("mov x8, #172", Some((4, Some(172)))),
        ("mov w8, #93", Some((4, Some(93)))),
        ("mov w8, w0", Some((4, None))),
        ("ldr x8, [sp, #8]", Some((4, None))),
        ("mov x9, #172", None),
        ("movk x8, #1", None),
        ("add x8, x8, #1", None),
    ] {
        assert_eq!(syscalls::sets_number(Isa::A64, &code(source)), want, "{source}");
    }
    assert_eq!(syscalls::number_register(Isa::A64), 1 << 8);
}

#[test]
fn stack_checks_of_go_are_found() {
    let cases = [
        ("ldr x16, [x28, #16]; cmp sp, x16; b.ls .+64; str x30, [sp, #-32]!", Some((12, 3))),
        ("ldr x16, [x28, #16]; sub x17, sp, #256; cmp x17, x16; b.ls .+64", Some((16, 4))),
        ("ldr x16, [x28, #16]; subs x17, sp, #0x2000; b.lo .+64; cmp x17, x16; b.ls .+64", Some((20, 5))),
        ("ldr x16, [x28, #16]; mov x27, #0x8010; subs x17, sp, x27; b.lo .+64; cmp x17, x16; b.ls .+64", Some((24, 6))),
        ("ldr x16, [x28, #24]; cmp sp, x16; b.ls .+64", Some((12, 3))),
        ("ldr x16, [x28, #32]; cmp sp, x16; b.ls .+64", None),
        ("ldr x16, [x27, #16]; cmp sp, x16; b.ls .+64", None),
        ("ldr x16, [x28, #16]; cmp sp, x16; b.hi .+64", None),
        ("ldr x16, [x28, #16]; bl .; cmp sp, x16; b.ls .+64", None),
        ("cmp sp, x16; b.ls .+64", None),
    ];
    if !has_llvm(cases.len()) {
        return;
    }
    for (source, want) in cases {
        assert_eq!(go::stack_check(Isa::A64, &code(source)), want, "{source}");
    }
}

#[test]
fn dead_registers_and_vectors() {
    if !has_llvm(4) {
        return;
    }
    let source = code("mov x0, #1; add x1, x2, x3; cmp x0, #1; ldr x4, [x0]; b .-16");
    let dead = live::dead_before(Isa::A64, &source, Va(AT), Va(AT), &|_| false);
    assert_eq!((dead.regs, dead.flags), (0b11, true));
    let first = |source: &str| vectors_used(Isa::A64, &code(source));
    assert_eq!(first("mov x0, x1; ldr x0, [x1]"), 0);
    assert_eq!(first("ldp q3, q7, [sp]"), 1 << 3 | 1 << 7);
    assert_eq!(first("ld4 {v30.4s, v31.4s, v0.4s, v1.4s}, [x0]") & 0xc000_0003, 0xc000_0003);
    assert_eq!(first("fadd d1, d2, d3") & 0b1110, 0b1110);
    assert_eq!(first("ptrue p0.s"), u32::MAX);
}

#[test]
fn text_is_what_an_assembler_reads() {
    let lines = [
        "nop",
        "ret",
        "br x5",
        "blr x5",
        "brk #0x1",
        "svc #0x0",
        "bti c",
        "paciasp",
        "mov x29, sp",
        "mov x0, x1",
        "add x0, x1, #0x10",
        "sub sp, sp, #0x1, lsl #12",
        "cmp x0, #0x3",
        "stp x29, x30, [sp, #-16]!",
        "ldp x29, x30, [sp], #16",
        "ldr x0, [x1, #8]",
        "ldrb w0, [x1]",
        "ldrsw x0, [x1, #4]",
        "stur w0, [x1, #-4]",
        "ldp q0, q1, [x2, #32]",
        "udf #7",
        "hlt #0x2",
    ];
    if !has_llvm(lines.len()) {
        return;
    }
    for (line, insn) in self::lines(&lines) {
        assert_eq!(insn.to_string(), line);
    }
    let rare = decode(Isa::A64, &0x9b02_0c20_u32.to_le_bytes(), Va(AT)).expect("madd").to_string();
    assert_eq!(assemble(&rare, AT), [0x9b02_0c20]);
}
