//! Copies do what the instruction does: both are run by the CPU, from the same random states, and leave the same
//! registers, flags, vectors and memory, or the same fault.

mod cpu;
mod gas;
mod generate;

use std::collections::BTreeMap;

use cpu::judge::{difference, seen_from_original};
use cpu::{Cpu, FROM, Outcome, Rng, State, TO};
use generate::{Case, Cases};
use iced_x86::{Code, Mnemonic};
use sidestep_isa::x86::{Flow, Insn, RelocateError, decode, relocate};
use sidestep_isa::{Isa, Va};

/// Instructions whose results are never twice the same, or that wait for something.
const NOT_RUN: &[Mnemonic] = &[
    Mnemonic::Rdtsc,
    Mnemonic::Rdtscp,
    Mnemonic::Rdpru,
    Mnemonic::Rdpmc,
    Mnemonic::Rdrand,
    Mnemonic::Rdseed,
    Mnemonic::Mwait,
    Mnemonic::Mwaitx,
    Mnemonic::Umwait,
    Mnemonic::Tpause,
    // Leave the machine.
    Mnemonic::Vmcall,
    Mnemonic::Vmmcall,
    // On Intel's CPUs it comes back as a 32-bit program.
    Mnemonic::Sysenter,
];

/// 32-bit system calls come back in the vDSO, of which this 64-bit process has none for them.
const NOT_RUN_32: &[Mnemonic] = &[Mnemonic::Syscall];

/// Trap flag.
const TF: u64 = 1 << 8;
#[derive(Default, Debug)]
struct Tally {
    run: usize,
    not_run: BTreeMap<String, usize>,
    refused: BTreeMap<String, usize>,
    /// Ends of runs by signal.
    ends: BTreeMap<i32, usize>,
    traced: usize,
}

/// Runs all cases, each from some states.
fn compare(cases: &Cases, states: usize, seed: u64) -> Tally {
    let isa = cases.isa;
    let mut cpu = Cpu::new(isa);
    let mut rng = Rng(seed);
    let mut tally = Tally::default();
    let mut wrong = Vec::new();
    for case in &cases.cases {
        let insn = decode(isa, &case.bytes, Va(FROM)).expect("an instruction");
        let name = format!("{:02x?} {insn}", case.bytes);
        if NOT_RUN.contains(&case.insn.mnemonic()) || isa == Isa::X86 && NOT_RUN_32.contains(&case.insn.mnemonic()) {
            *tally.not_run.entry(format!("{:?}", case.insn.mnemonic())).or_default() += 1;
            continue;
        }
        let mut copy = Vec::new();
        match relocate(isa, &case.bytes, Va(FROM), Va(TO), &mut copy) {
            Ok(()) => {}
            Err(RelocateError::Unsupported { why, .. }) => {
                *tally.refused.entry(why.to_string()).or_default() += 1;
                continue;
            }
            Err(RelocateError::OutOfReach { .. }) => {
                *tally.not_run.entry("out of reach".into()).or_default() += 1;
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        }
        cpu.load(&case.bytes, &copy);
        tally.run += 1;
        for _ in 0..states {
            let state = start(&cpu, &mut rng, case);
            let original = cpu.run(FROM, &state);
            let copied = seen_from_original(&insn, copy.len(), cpu.run(TO, &state));
            *tally.ends.entry(original.signal.0).or_default() += 1;
            if original.regs.eflags & TF != 0 {
                // The program traces itself: it sees the copy's instructions.
                tally.traced += 1;
                continue;
            }
            faults_are_expected(&insn, &original, &name);
            if let Some(difference) = difference(&insn, &copy, &original, &copied) {
                wrong.push(format!("{name}: {difference}"));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), tally.run, wrong[..wrong.len().min(40)].join("\n"));
    tally
}

fn start(cpu: &Cpu, rng: &mut Rng, case: &Case) -> State {
    let mut state = State::random(cpu, rng, &case.insn);
    // No system call has this number.
    if matches!(case.insn.code(), Code::Syscall | Code::Int_imm8) {
        state.regs.rax = 0xffff;
    }
    state
}

/// A fault that was promised not to happen. Where a branch ends is another matter.
fn faults_are_expected(insn: &Insn, end: &Outcome, name: &str) {
    if insn.flow() != Flow::Next || insn.may_fault() || insn.rip_target().is_some_and(|at| at.0 >> 32 != 0) {
        return;
    }
    assert_eq!(end.reached(), Some(insn.next().0), "{name} cannot fault, but did: {:x?}", end.signal);
}

/// Prints and checks what a test saw.
fn report(cases: &Cases, tally: &Tally, least: usize, codes: usize) {
    println!("{} opcodes, {tally:?}", cases.codes());
    assert!(tally.run >= least && cases.codes() >= codes, "{} of {} opcodes ran", tally.run, cases.codes());
    // It did not only fault.
    assert!(tally.ends[&libc::SIGTRAP] > tally.run, "{tally:?}");
    assert!(
        tally.not_run.values().sum::<usize>() + tally.refused.values().sum::<usize>() < tally.run / 50,
        "{tally:?}"
    );
}

#[test]
fn each_form_of_the_legacy_maps() {
    let mut cases = Cases::new(Isa::X64, 1, 1);
    cases.legacy();
    let tally = compare(&cases, 2, 11);
    report(&cases, &tally, 10_000, 1000);
    for mnemonic in NOT_RUN {
        assert!(
            tally.not_run.contains_key(&format!("{mnemonic:?}")),
            "{mnemonic:?} is no reason to leave anything out"
        );
    }
    assert!(tally.not_run.values().sum::<usize>() < 5 * NOT_RUN.len(), "{tally:?}");
}

#[test]
fn each_form_of_vex_and_xop() {
    let mut cases = Cases::new(Isa::X64, 1, 2);
    cases.vex();
    let tally = compare(&cases, 2, 12);
    report(&cases, &tally, 4000, 1000);
}

#[test]
fn each_form_of_evex() {
    let mut cases = Cases::new(Isa::X64, 1, 3);
    cases.evex();
    let tally = compare(&cases, 2, 13);
    report(&cases, &tally, 8000, 1300);
}

#[test]
fn each_form_in_real_programs() {
    let mut cases = Cases::new(Isa::X64, 2, 4);
    for path in [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/bin/python3",
        "/bin/bash",
        "/usr/bin/git",
    ] {
        cases.program(path);
    }
    let tally = compare(&cases, 3, 14);
    report(&cases, &tally, 4000, 1000);
}

#[test]
fn each_form_of_the_legacy_maps_in_32_bit_code() {
    let mut cases = Cases::new(Isa::X86, 1, 5);
    cases.legacy();
    let tally = compare(&cases, 2, 15);
    report(&cases, &tally, 10_000, 1000);
    for mnemonic in NOT_RUN_32 {
        assert!(tally.not_run.contains_key(&format!("{mnemonic:?}")), "{tally:?}");
    }
}

#[test]
fn each_form_of_vex_and_xop_in_32_bit_code() {
    let mut cases = Cases::new(Isa::X86, 1, 6);
    cases.vex();
    let tally = compare(&cases, 2, 16);
    report(&cases, &tally, 3000, 900);
}

#[test]
fn each_form_of_evex_in_32_bit_code() {
    let mut cases = Cases::new(Isa::X86, 1, 7);
    cases.evex();
    let tally = compare(&cases, 2, 17);
    report(&cases, &tally, 4000, 1200);
}

#[test]
fn each_form_in_real_32_bit_programs() {
    let mut cases = Cases::new(Isa::X86, 4, 8);
    for library in ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6"] {
        cases.program(&format!("/usr/i686-linux-gnu/lib/{library}"));
    }
    let tally = compare(&cases, 3, 18);
    report(&cases, &tally, 2000, 400);
}
