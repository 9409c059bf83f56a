//! Registers and flags, by qemu: an instruction changes nothing but what it writes, and what it
//! writes does not depend on what it does not read.

use std::collections::BTreeMap;

use sidestep_isa::a64::{Class, Insn, decode};
use sidestep_isa::{Flow, Va};

use crate::machine::{self, BTYPE, FROM, PC, PSTATE, Run, SP, STACK, State};
use crate::oracle::{Rng, count};

/// Classes that are left out: their registers are all that there are, they differ from run to run,
/// or they are not for programs.
fn is_left_out(insn: &Insn) -> bool {
    let nzcv = [0xd53b_4200, 0xd51b_4200].contains(&(insn.word() & !31));
    match insn.class() {
        Class::Sve | Class::Sme | Class::System | Class::SystemResult | Class::MemoryCopy => true,
        // These wait, or depend on what another thread does.
        Class::Hint | Class::WaitTime | Class::LoadLiteral | Class::LoadLiteralVector => true,
        Class::MoveFromSystem | Class::MoveToSystem => !nzcv,
        // A random tag.
        Class::TwoSources => insn.word() >> 10 & 63 == 4,
        _ => false,
    }
}

/// A random word; one in eight reads or writes the flags by name.
fn any(rng: &mut Rng) -> u32 {
    let word = rng.word();
    // Data processing of all kinds, loads and stores, floating point.
    const KINDS: [u32; 8] = [0b1000, 0b1001, 0b0101, 0b1101, 0b0100, 0b1100, 0b1111, 0b0111];
    match rng.below(24) {
        0 => 0xd51b_4200 | word & 0x0020_001f,
        // Between the two kinds of registers.
        1 => 0x1e20_0000 | word & 0x80df_03ff,
        2 => 0x0e00_0400 | word & 0x601f_7bff,
        // Conditional compares and selects, carries.
        3 => 0x1a00_0000 | word & 0xe0df_ffff,
        4 => 0x1a00_0000 | word & 0xe01f_03ff,
        // Two sources and one.
        5 => 0x1ac0_0000 | word & 0x801f_3fff,
        6 => 0x5ac0_0000 | word & 0x8001_3fff,
        n => word & !(15 << 25) | KINDS[n as usize % 8] << 25,
    }
}

#[test]
fn registers_and_flags_are_those_that_instructions_use() {
    let all = count("SIDESTEP_A64_RUNS", 20_000);
    let mut rng = Rng(91);
    let (mut insns, mut runs) = (Vec::new(), Vec::new());
    while insns.len() < all {
        let word = any(&mut rng);
        let Ok(insn) = decode(&word.to_le_bytes(), Va(FROM)) else { continue };
        if insn.flow() != Flow::Next || is_left_out(&insn) {
            continue;
        }
        let usage = insn.usage();
        let mut state = State::random(&mut rng, insns.len() as u64);
        if let Some(base) = insn.memory_base() {
            // In the stack, with small numbers to add.
            for register in (0..31).filter(|register| usage.reads >> register & 1 == 1) {
                state.regs[register] &= 0x78;
            }
            state.regs[usize::from(base)] = STACK + 512;
        }
        // Everything else is different the second time.
        let mut other = State::random(&mut rng, 0);
        for register in (0..=SP).filter(|register| usage.reads >> register & 1 == 1) {
            other.regs[register] = state.regs[register];
        }
        let read = u64::from(usage.flags_read) << 28;
        other.regs[PSTATE] = state.regs[PSTATE] & read | !state.regs[PSTATE] & !read & machine::NZCV;
        let State { vectors, data, far, stack, .. } = state.clone();
        let other = State { vectors, data, far, stack, ..other };
        for state in [state, other] {
            runs.push(Run { from: word.to_le_bytes().to_vec(), to: Vec::new(), state });
        }
        insns.push(insn);
    }
    let Some(ends) = machine::run(&runs) else { return };
    let mut classes = BTreeMap::<String, usize>::new();
    let mut wrong = BTreeMap::<String, String>::new();
    for (i, insn) in insns.iter().enumerate() {
        let usage = insn.usage();
        let [one, two] = [&ends[2 * i], &ends[2 * i + 1]];
        let mut check = |holds: bool, what: String| {
            if !holds {
                let text = format!("{:08x} {insn}: {usage:x?}", insn.word());
                wrong.entry(format!("{:?}: {what}", insn.class())).or_insert(text);
            }
        };
        if [one, two].iter().any(|end| end.state.regs[PC] != FROM + 4) {
            // Undefined for qemu, or without memory at the address.
            // Literals are anywhere here.
            check(insn.may_fault() || insn.pc_target().is_some(), "it faults".into());
            continue;
        }
        for (end, run) in [(one, &runs[2 * i]), (two, &runs[2 * i + 1])] {
            for register in 0..=SP {
                let changed = end.state.regs[register] != run.state.regs[register];
                check(!changed || usage.writes >> register & 1 == 1, "a register is written".into());
            }
            let changed = (end.state.regs[PSTATE] ^ run.state.regs[PSTATE]) & machine::NZCV;
            check(changed >> 28 & !u64::from(usage.flags_killed) == 0, "a flag is written".into());
            check(end.state.regs[PSTATE] & BTYPE == 0, "the kind of branch".into());
        }
        for register in 0..=SP {
            let same = one.state.regs[register] == two.state.regs[register];
            let settled = (usage.kills | usage.writes & usage.reads) >> register & 1 == 1;
            check(same || !settled, format!("x{register} depends on something else"));
        }
        let differ = (one.state.regs[PSTATE] ^ two.state.regs[PSTATE]) >> 28 & u64::from(usage.flags_killed);
        check(differ == 0, "flags depend on something else".into());
        // Not of arithmetic: what qemu computes depends on what it has computed before.
        let computes = insn.class() == Class::Vector;
        let same = one.state.vectors == two.state.vectors;
        check(same || computes, "vectors depend on something else".into());
        check(one.state.stack == two.state.stack, "memory depends on something else".into());
        *classes.entry(format!("{:?}", insn.class())).or_default() += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let run: usize = classes.values().sum();
    assert!(run > all / 3 && classes.len() > 34, "{run} of {all}: {classes:?}");
    println!("{run} of {all} instructions: {classes:?}");
}
