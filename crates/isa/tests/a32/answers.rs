//! Answers about single instructions, and that none of them panics.

use sidestep_isa::indirect::{Entries, Origin, Table, indirect_jumps};
use sidestep_isa::named::Named;
use sidestep_isa::passed::Passed;
use sidestep_isa::patch::{is_one_write, jump, jump_target};
use sidestep_isa::scan::{Reference, references};
use sidestep_isa::stack::Stack;
use sidestep_isa::{Flow, Insn, Isa, ObjectCode, Va, decode, sweep, syscalls};

use crate::oracle::{Rng, assemble, count, encode, has_llvm};

const AT: u64 = 0x1_0000;
const A32: Isa = Isa::A32;
const T32: Isa = Isa::T32;

fn insns(isa: Isa, source: &str) -> Vec<Insn> {
    let code = assemble(isa, &source.replace("; ", "\n"), AT);
    sweep(isa, &code, Va(AT)).map(|insn| insn.unwrap_or_else(|e| panic!("{source}: {e}"))).collect()
}

fn only(isa: Isa, source: &str) -> Insn {
    let insns = insns(isa, source);
    assert_eq!(insns.len(), 1, "{source}");
    insns[0]
}

/// Instruction set, assembly, flow, and whether it goes on behind itself.
const FLOWS: &[(Isa, &str, Flow, bool)] = &[
    (A32, "mov r0, r1", Flow::Next, true),
    (A32, "b .+0x40", Flow::Jump(Va(AT + 0x40)), false),
    (A32, "bne .-0x40", Flow::Branch(Va(AT - 0x40)), true),
    (A32, "bl .+0x40", Flow::Call(Va(AT + 0x40)), true),
    (A32, "blx .+0x40", Flow::CallIndirect, true),
    (A32, "blx r3", Flow::CallIndirect, true),
    (A32, "bx lr", Flow::Return, false),
    (A32, "bxne lr", Flow::Return, true),
    (A32, "bx r3", Flow::JumpIndirect, false),
    (A32, "mov pc, lr", Flow::Return, false),
    (A32, "mov pc, r3", Flow::JumpIndirect, false),
    (A32, "add pc, pc, #4", Flow::Jump(Va(AT + 12)), false),
    (A32, "add pc, pc, r1, lsl #2", Flow::JumpIndirect, false),
    (A32, "ldrls pc, [pc, r1, lsl #2]", Flow::JumpIndirect, true),
    (A32, "ldr pc, [r12, #8]!", Flow::JumpIndirect, false),
    (A32, "pop {pc}", Flow::Return, false),
    (A32, "ldmdb r11, {r11, sp, pc}", Flow::Return, false),
    (A32, "popne {r4, pc}", Flow::Return, true),
    (A32, "svc #0", Flow::Syscall, true),
    (A32, "bkpt #1", Flow::Interrupt, true),
    (A32, "udf #16", Flow::Interrupt, true),
    (A32, "udf #1", Flow::Stop, false),
    (T32, "nop", Flow::Next, true),
    (T32, "b .+0x40", Flow::Jump(Va(AT + 0x40)), false),
    (T32, "b.w .+0x4000", Flow::Jump(Va(AT + 0x4000)), false),
    (T32, ".short 0xf043, 0x87fe", Flow::Branch(Va(AT + 0x4000)), true),
    (T32, ".short 0xb1f1", Flow::Branch(Va(AT + 0x40)), true),
    (T32, "bl .+0x4000", Flow::Call(Va(AT + 0x4000)), true),
    (T32, "blx .+0x4000", Flow::CallIndirect, true),
    (T32, "bx lr", Flow::Return, false),
    (T32, "bx pc", Flow::JumpIndirect, false),
    (T32, "mov pc, lr", Flow::Return, false),
    (T32, "add pc, r1", Flow::JumpIndirect, false),
    (T32, "pop {r4, pc}", Flow::Return, false),
    (T32, "ldr pc, [sp], #4", Flow::Return, false),
    (T32, "ldr.w pc, [r1]", Flow::JumpIndirect, false),
    (T32, "tbb [pc, r1]", Flow::JumpIndirect, false),
    (T32, "tbh [pc, r1, lsl #1]", Flow::JumpIndirect, false),
    (T32, "svc #0", Flow::Syscall, true),
    (T32, "udf #1", Flow::Interrupt, true),
    (T32, "udf #2", Flow::Stop, false),
    (T32, "it eq; bxeq lr", Flow::Return, true),
    (T32, "itt ne; movne r0, r1; popne {r4, pc}", Flow::Return, true),
    (T32, "ite ne; movne r0, r1; moveq r0, r2", Flow::Next, true),
];

#[test]
fn where_execution_goes_on() {
    if !has_llvm(FLOWS.len()) {
        return;
    }
    for (isa, source, flow, falls_through) in FLOWS {
        let insn = only(*isa, source);
        assert_eq!((insn.flow(), insn.falls_through()), (*flow, *falls_through), "{source}: {insn}");
    }
}

#[test]
fn blocks_of_it_are_one_instruction() {
    let code = [0x08, 0xbf, 0x08, 0x46];
    // it eq; moveq r0, r1
    assert_eq!(decode(T32, &code, Va(AT)).map(|insn| insn.len()), Ok(4));
    assert!(decode(T32, &code[..2], Va(AT)).is_err(), "cut off");
    // itttt eq, of four instructions with 32 bits each: movw r0, #0
    let long = [&[0x01, 0xbf][..], &[0x40, 0xf2, 0, 0].repeat(4)].concat();
    assert_eq!(decode(T32, &long, Va(AT)).map(|insn| insn.len()), Ok(18));
    for (what, halves) in [
        ("it nv", &[0xbff8_u16, 0x4608][..]),
        ("it in it", &[0xbf04, 0xbf08, 0x4608]),
        ("a branch that is not the last", &[0xbf04, 0x4770, 0x4608]),
        ("cbz", &[0xbf08, 0xb108]),
        ("a branch with a condition", &[0xbf08, 0xd000]),
        ("bkpt", &[0xbf08, 0xbe00]),
    ] {
        let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        assert!(decode(T32, &bytes, Va(AT)).is_err(), "{what}");
    }
}

/// Instruction set, assembly; registers that are read, written and killed; flags read and killed.
const USES: &[(Isa, &str, [u32; 5])] = &[
    (A32, "add r0, r1, r2", [0b110, 1, 1, 0, 0]),
    (A32, "addeq r0, r1, r2", [0b110, 1, 0, 4, 0]),
    (A32, "adds r0, r1, r2, rrx", [0b110, 1, 1, 2, 15]),
    (A32, "cmp r0, #1", [1, 0, 0, 0, 15]),
    (A32, "movs r0, r1", [2, 1, 1, 0, 12]),
    (A32, "ldr r0, [r1], #4", [2, 3, 1, 0, 0]),
    (A32, "strd r2, r3, [r1, #8]!", [0b1110, 2, 0, 0, 0]),
    (A32, "push {r4, lr}", [0x6010, 0x2000, 0, 0, 0]),
    (A32, "umlal r0, r1, r2, r3", [15, 3, 0, 0, 0]),
    (A32, "mrs r0, cpsr", [0, 1, 1, 15, 0]),
    (A32, "msr cpsr_f, r0", [1, 0, 0, 0, 15]),
    (A32, "bl .", [0, 0x4000, 0x4000, 0, 0]),
    (T32, "adds r0, r1, r2", [0b110, 1, 1, 0, 15]),
    (T32, "it eq; addeq r0, r1, r2", [0b110, 1, 0, 4, 0]),
    (T32, "movs r0, #1", [0, 1, 1, 0, 12]),
    (T32, "adcs r0, r1", [3, 1, 0, 2, 15]),
    (T32, "ldr r0, [pc, #4]", [0, 1, 1, 0, 0]),
    (T32, "pop {r4, pc}", [0x2000, 0x2010, 0x10, 0, 0]),
    (T32, "add sp, #8", [0x2000, 0x2000, 0, 0, 0]),
    (T32, "vmov r0, r1, d0", [0, 3, 3, 0, 0]),
    (T32, "vmrs apsr_nzcv, fpscr", [0, 0, 0, 0, 15]),
    (T32, "mrc p15, 0, r3, c13, c0, 3", [0, 8, 8, 0, 0]),
];

#[test]
fn registers_and_flags_of_instructions() {
    if !has_llvm(USES.len()) {
        return;
    }
    for (isa, source, expected) in USES {
        let usage = only(*isa, source).usage();
        let found = [usage.reads, usage.writes, usage.kills, usage.flags_read, usage.flags_killed];
        assert_eq!(found, *expected, "{source}");
    }
}

#[test]
fn addresses_relative_to_the_program_counter() {
    if !has_llvm(8) {
        return;
    }
    for (isa, source, target) in [
        (A32, "ldr r0, [pc, #16]", AT + 24),
        (A32, "sub r0, pc, #16", AT - 8),
        (T32, "ldr r0, [pc, #16]", AT + 20),
        (T32, "ldrd r0, r1, [pc, #-8]", AT - 4),
        (T32, "vldr d0, [pc, #8]", AT + 12),
        (T32, "it eq; ldreq r0, [pc, #16]", AT + 20),
    ] {
        assert_eq!(only(isa, source).pc_target(), Some(Va(target)), "{source}");
    }
    // Two bytes further on, the program counter is cut to the same number.
    assert_eq!(insns(T32, "nop; ldr r0, [pc, #16]")[1].pc_target(), Some(Va(AT + 20)));
    let mut named = Named::default();
    let found = insns(T32, "movw r0, #0x5678; mov r1, r2; movt r0, #0x1234");
    let found: Vec<_> = found.iter().map(|insn| named.step(insn)).collect();
    assert_eq!(found, [None, None, Some(Va(0x1234_5678))]);
}

#[test]
fn stacks_are_followed() {
    if !has_llvm(6) {
        return;
    }
    for (isa, source, depth) in [
        (A32, "push {r4, r11, lr}; sub sp, sp, #16; add r11, sp, #8; mov r1, r2", Some(-28)),
        (A32, "str lr, [sp, #-4]!; ldr lr, [sp], #4", Some(0)),
        (T32, "push {r4, lr}; sub sp, #16; add sp, #16; pop {r4, pc}", Some(0)),
        (T32, "push {r7, lr}; mov r7, sp; sub sp, sp, r0; mov sp, r7", Some(-8)),
        (T32, "vpush {d8}; vpop {d8}", Some(0)),
        (T32, "sub sp, sp, r0", None),
        (T32, "it eq; popeq {r4}", None),
    ] {
        let stack = insns(isa, source).iter().fold(Stack::ENTRY, |stack, insn| stack.after(insn));
        assert_eq!(stack.depth(), depth, "{source}");
    }
    let names = |source: &str| {
        let mut stack = Stack::ENTRY;
        insns(T32, source).iter().any(|insn| {
            let names = stack.names_return_address(insn);
            stack = stack.after(insn);
            names
        })
    };
    assert!(!names("push {r4, lr}; sub sp, #8; add sp, #8; pop {r4, pc}"));
    assert!(names("mov r0, lr; bx lr"));
    assert!(names("push {r4, lr}; ldr r0, [sp, #4]"));
}

#[test]
fn faults_and_what_is_passed() {
    if !has_llvm(10) {
        return;
    }
    for (isa, source, faults) in [
        (A32, "add r0, r1, r2", false),
        (A32, "sdiv r0, r1, r2", true),
        (A32, "ldr r0, [r1]", true),
        (A32, "push {r4, lr}", false),
        (T32, "ldr r0, [pc, #4]", false),
        (T32, "vadd.f32 s0, s1, s2", true),
        (T32, "it eq; ldreq r0, [r1]", true),
    ] {
        assert_eq!(only(isa, source).may_fault(), faults, "{source}");
    }
    let passed = |source| only(T32, source).passed();
    assert_eq!(passed("push {r4, lr}"), Some(Passed::Stack { bytes: 8, flags: false }));
    assert_eq!(passed("sub sp, #8"), Some(Passed::Stack { bytes: 8, flags: false }));
    assert_eq!(passed("movs r3, #1"), Some(Passed::Registers { regs: 8, flags: true }));
    assert_eq!(passed("str r0, [r1]"), None);
    assert_eq!(passed("it eq; moveq r0, r1"), None);
}

#[test]
fn jumps_at_sites() {
    for (isa, reach) in [(A32, 1_u64 << 25), (T32, 1 << 24)] {
        let site = 0x4000_0000;
        for distance in [8, 0x1234, reach - 64, -0x5678_i64 as u64, (reach - 64).wrapping_neg()] {
            let to = Va(site_plus(site, distance));
            let bytes = jump(isa, Va(site), to).expect("near");
            assert_eq!(jump_target(isa, &bytes, Va(site)), Some(to), "{isa:?} {to}");
            assert_eq!(decode(isa, &bytes, Va(site)).map(|insn| insn.flow()), Ok(Flow::Jump(to)));
        }
        assert!(jump(isa, Va(site), Va(site + reach + 64)).is_err());
        assert!(jump(isa, Va(site), Va(site - reach - 64)).is_err());
    }
    let [nop, b, add] = [0xe320_f000_u32, 0xea00_0000, 0xe080_0000].map(u32::to_le_bytes);
    assert!(is_one_write(A32, &nop, &b) && !is_one_write(A32, &add, &b) && is_one_write(A32, &add, &add));
    let [nop, b, add] = [0xbf00_u16, 0xe000, 0x1840].map(u16::to_le_bytes);
    assert!(is_one_write(T32, &nop, &b) && !is_one_write(T32, &add, &b));
    let wide = encode(T32, 0xf000_b800);
    assert!(!is_one_write(T32, &encode(T32, 0xf3af_8000), &wide), "two halves");
}

fn site_plus(site: u64, distance: u64) -> u64 {
    site.wrapping_add(distance) & !3
}

#[test]
fn jumps_through_registers_have_origins() {
    if !has_llvm(6) {
        return;
    }
    let origin = |isa, source: &str| {
        let all = indirect_jumps(isa, insns(isa, source), None, &|_| None);
        all.last().map(|(_, origin)| origin.clone())
    };
    let table = |bytes, base| {
        let entries = Entries { bytes, signed: false, shift: 1 };
        Some(Origin::Table(vec![Table { base: Va(base), start: Va(base), certain: true, entries }]))
    };
    assert_eq!(origin(T32, "cmp r0, #3; tbb [pc, r0]"), table(1, AT + 6));
    assert_eq!(origin(T32, "tbh [pc, r0, lsl #1]"), table(2, AT + 4));
    assert_eq!(origin(T32, "ldr r3, [r0, #8]; mov r0, r1; bx r3"), Some(Origin::Pointer));
    assert_eq!(origin(T32, "bx r3"), Some(Origin::Pointer), "an argument");
    assert_eq!(origin(T32, "add r3, r1; bx r3"), Some(Origin::Computed));
    assert_eq!(origin(T32, "bl .+64; bx r0"), Some(Origin::Computed));
    assert_eq!(origin(A32, "ldr pc, [r12, #8]!"), Some(Origin::Pointer));
    assert_eq!(origin(A32, "ldrls pc, [pc, r1, lsl #2]"), Some(Origin::Computed));
}

#[test]
fn numbers_of_system_calls() {
    if !has_llvm(4) {
        return;
    }
    for (isa, source, found) in [
        (A32, "mov r7, #172", Some((4, Some(172)))),
        (T32, "movs r7, #20", Some((2, Some(20)))),
        (T32, "movw r7, #300", Some((4, Some(300)))),
        (T32, "ldr r7, [pc, #4]", Some((2, None))),
        (T32, "movs r6, #20", None),
    ] {
        assert_eq!(syscalls::sets_number(isa, &assemble(isa, source, AT)), found, "{source}");
        assert!(syscalls::is_call(isa, &assemble(isa, "svc #0", AT)));
    }
}

#[test]
fn literals_are_data_between_instructions() {
    // ldr r0, [pc, #0]; bx lr; a literal that begins as an instruction of 32 bits; nop
    let halves = [0x4800_u16, 0x4770, 0xf000, 0xe7ff, 0xbf00];
    let code: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    let all: Vec<Insn> = sweep(T32, &code, Va(AT)).map(|insn| insn.expect("known")).collect();
    assert_eq!(all.iter().map(Insn::len).collect::<Vec<_>>(), [2, 2, 4, 2]);
    assert_eq!((all[2].flow(), all[2].is_filler(), all[2].to_string()), (Flow::Stop, true, ".word 0xe7fff000".into()));
    // ldrd loads two words.
    let code = [0xe1cf_00d0_u32, 0xe12f_ff1e, 0xffff_ffff, 0xffff_ffff, 0xe12f_ff1e];
    let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(sweep(A32, &code, Va(AT)).filter(Result::is_ok).count(), 5);
}

/// Everything that can be asked, of anything.
#[test]
fn no_answer_panics() {
    let mut rng = Rng(5);
    let (mut known, all) = (0_u64, count("SIDESTEP_A32_PANICS", 200_000));
    for i in 0..all {
        let isa = if i % 2 == 0 { A32 } else { T32 };
        let mut bytes = [0; 20];
        bytes.iter_mut().for_each(|byte| *byte = rng.next() as u8);
        if i % 8 == 1 {
            bytes[1] = 0xbf;
        }
        let at = Va(rng.next() & 0xffff_fffe & if isa == A32 { !3 } else { !1 });
        let Ok(insn) = decode(isa, &bytes, at) else { continue };
        known += 1;
        assert!((2..=18).contains(&insn.len()) && insn.len() % 2 == 0);
        let usage = insn.usage();
        assert_eq!(usage.kills & !usage.writes, 0);
        let mut copy = Vec::new();
        let len = sidestep_isa::relocated_len(isa, &bytes, at).ok();
        let done = sidestep_isa::relocate(isa, &bytes, at, Va(at.0 ^ 0x10_0000), &mut copy);
        assert_eq!(len, done.ok().map(|()| copy.len()), "{insn}");
        let _ = (insn.flow(), insn.passed(), insn.may_fault_off_stack(), insn.pc_target(), insn.destination());
        let _ = (insn.copied(), insn.is_sum(), insn.is_usual(), insn.is_filler(), insn.to_string());
        let _ = (Stack::ENTRY.after(&insn), Stack::ENTRY.names_return_address(&insn), Named::default().step(&insn));
        // The scan finds what the instruction names.
        let mut found = Vec::new();
        references(&ObjectCode::new(isa), at, &bytes, &mut |reference| found.push(reference));
        let target = match insn.flow() {
            Flow::Jump(to) | Flow::Branch(to) | Flow::Call(to) => Some(to),
            _ => None,
        };
        let is =
            |reference: &Reference| matches!(reference, Reference::Branch { target: to, .. } if Some(*to) == target);
        assert!(target.is_none() || found.iter().any(is), "{insn}: {found:?}");
    }
    println!("{all} pieces of bytes, {known} instructions");
}
