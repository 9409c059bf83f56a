//! Copies do what the instruction does: both are run by the CPU, from the same random states, and
//! leave the same registers, flags, vectors and memory, or the same fault.

mod cpu;
mod gas;
mod generate;

use std::arch::x86_64::CpuidResult;
use std::collections::BTreeMap;

use cpu::judge::{difference, seen_from_original};
use cpu::{Cpu, FROM, Features, Outcome, Rng, State, TO};
use generate::{Case, Cases};
use iced_x86::{Code, CpuidFeature, Decoder, DecoderOptions, Mnemonic};
use sidestep_isa::{Flow, Insn, Isa, RelocateError, Va, decode, relocate};

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
/// Undefined on every CPU.
const UD2: &[u8] = &[0x0f, 0x0b];

/// The CPU that runs the cases.
struct Machine {
    features: Features,
    /// It is this one with less: in place of what it lacks, `ud2` runs.
    pretends: bool,
}

impl Machine {
    fn this() -> Machine {
        Machine { features: Features::of_this_cpu(), pretends: false }
    }

    /// One that lacks these features, too.
    fn without(lacking: &[CpuidFeature]) -> Machine {
        Machine { features: Features::of_this_cpu().without(lacking), pretends: true }
    }
}

#[derive(Default, Debug)]
struct Tally {
    /// Forms that were compared.
    run: usize,
    /// Those of them that the CPU lacks, by the feature: original and copy are the same there, too,
    /// but neither does anything.
    lacking: BTreeMap<String, usize>,
    not_run: BTreeMap<String, usize>,
    refused: BTreeMap<String, usize>,
    /// Ends of runs by signal, of forms that the CPU has.
    ends: BTreeMap<i32, usize>,
    traced: usize,
}

impl Tally {
    /// Forms that were compared and that the CPU has.
    fn present(&self) -> usize {
        self.run - self.lacking.values().sum::<usize>()
    }

    fn ends(&self, signal: i32) -> usize {
        self.ends.get(&signal).copied().unwrap_or(0)
    }
}

/// Runs all cases, each from some states, on this CPU.
fn compare(cases: &Cases, states: usize, seed: u64) -> Tally {
    compare_on(&Machine::this(), cases, states, seed)
}

fn compare_on(machine: &Machine, cases: &Cases, states: usize, seed: u64) -> Tally {
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
        tally.run += 1;
        let lacking = machine.features.lacking(&case.insn);
        if let Some(feature) = lacking {
            *tally.lacking.entry(format!("{feature:?}")).or_default() += 1;
        }
        if lacking.is_some() && machine.pretends {
            copy = UD2.to_vec();
            cpu.load(UD2, &copy);
        } else {
            cpu.load(&case.bytes, &copy);
        }
        for _ in 0..states {
            let state = start(&cpu, &mut rng, case);
            let original = cpu.run(FROM, &state);
            let copied = seen_from_original(&insn, copy.len(), cpu.run(TO, &state));
            if lacking.is_none() {
                *tally.ends.entry(original.signal.0).or_default() += 1;
            }
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
    if insn.flow() != Flow::Next || insn.may_fault() || insn.pc_target().is_some_and(|at| at.0 >> 32 != 0) {
        return;
    }
    assert_eq!(end.reached(), Some(insn.next().0), "{name} cannot fault, but did: {:x?}", end.signal);
}

/// Prints and checks what a test saw.
fn report(cases: &Cases, tally: &Tally, least: usize, codes: usize) {
    println!("{} opcodes, {tally:?}", cases.codes());
    println!("this CPU lacks {} of {} forms", tally.run - tally.present(), tally.run);
    assert!(tally.run >= least && cases.codes() >= codes, "{} of {} opcodes ran", tally.run, cases.codes());
    // What the CPU has did not only fault.
    assert!(tally.present() == 0 || tally.ends(libc::SIGTRAP) > tally.present(), "{tally:?}");
    // Encodings that are undefined whatever the CPU has are few.
    assert!(tally.ends(libc::SIGILL) <= tally.present() / 10, "{tally:?}");
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

/// What a CPU of 2020 lacks (AMD Zen 3).
const NOT_OF_2020: &[CpuidFeature] = {
    use CpuidFeature as F;
    &[
        F::AVX512F,
        F::AVX512BW,
        F::AVX512CD,
        F::AVX512DQ,
        F::AVX512VL,
        F::AVX512_BF16,
        F::AVX512_BITALG,
        F::AVX512_FP16,
        F::AVX512_IFMA,
        F::AVX512_VBMI,
        F::AVX512_VBMI2,
        F::AVX512_VNNI,
        F::AVX512_VP2INTERSECT,
        F::AVX512_VPOPCNTDQ,
        F::AVX_VNNI,
        F::GFNI,
    ]
};

/// Each form of AVX-512 ended with SIGILL there, which was taken for a mistake.
#[test]
fn forms_that_an_older_cpu_lacks_were_taken_for_mistakes() {
    let machine = Machine::without(NOT_OF_2020);
    let mut evex = Cases::new(Isa::X64, 1, 3);
    evex.evex();
    let tally = compare_on(&machine, &evex, 1, 13);
    report(&evex, &tally, 8000, 1300);
    assert_eq!((tally.present(), tally.ends.len()), (0, 0), "{tally:?}");
    let mut vex = Cases::new(Isa::X86, 1, 6);
    vex.vex();
    let tally = compare_on(&machine, &vex, 2, 16);
    report(&vex, &tally, 3000, 900);
    assert!(tally.lacking.contains_key("AVX512BW") && tally.present() > 2000, "masks have forms of VEX: {tally:?}");
}

/// A signal at an instruction that the CPU has says that a copy or a feature bit is wrong.
#[test]
fn what_a_cpu_lacks_is_said_by_its_feature_bits() {
    let leaf = |eax, ebx, ecx, edx| CpuidResult { eax, ebx, ecx, edx };
    // AMD Zen 3.
    let old = BTreeMap::from([
        ((1, 0), leaf(0x00a2_0f12, 0, 0x7ed8_320b, 0x178b_fbff)),
        ((7, 0), leaf(0, 0x219c_97a9, 0x0040_068c, 0x10)),
        ((0x8000_0001, 0), leaf(0, 0, 0x75c2_37ff, 0x2fd3_fbff)),
    ]);
    // The same with AVX-512 F and BW.
    let mut new = old.clone();
    new.insert((7, 0), leaf(0, 0x219c_97a9 | 1 << 16 | 1 << 30, 0x0040_068c, 0x10));
    // State components: x87, SSE, AVX and those of AVX-512.
    let (sse, avx, all) = (0b11, 0b111, 0b1110_0111);
    let first = |bytes: &[u8]| Decoder::with_ip(64, bytes, FROM, DecoderOptions::NONE).decode();
    let add = first(&[0x01, 0xc0]); // add %eax,%eax
    let vaddps = first(&[0xc5, 0xf4, 0x58, 0xc2]); // vaddps %ymm2,%ymm1,%ymm0
    let zmm = first(&[0x62, 0xf1, 0x74, 0x48, 0x58, 0xc2]); // vaddps %zmm2,%zmm1,%zmm0
    let mask = first(&[0xc4, 0xe1, 0xf8, 0x90, 0xca]); // kmovq %k2,%k1
    let andn = first(&[0xc4, 0xe2, 0x60, 0xf2, 0xc1]); // andn %ecx,%ebx,%eax
    use CpuidFeature as F;
    for (leaves, xcr0, lacking) in [
        (&old, all, [None, None, Some(F::AVX512F), Some(F::AVX512BW), None]),
        (&new, all, [None; 5]),
        // The kernel has not enabled the state.
        (&new, avx, [None, None, Some(F::AVX512F), Some(F::AVX512BW), None]),
        (&new, sse, [None, Some(F::AVX), Some(F::AVX512F), Some(F::AVX512BW), None]),
    ] {
        let features = Features::new(leaves, xcr0);
        assert_eq!([add, vaddps, zmm, mask, andn].map(|insn| features.lacking(&insn)), lacking, "{xcr0:#b}");
    }
}
