//! Handlers that are written with the signature of the function: what the kernel's jprobes were,
//! and `BPF_UPROBE` of libbpf is.

use std::process::Command;

use sidestep_tests::process::Program;
use sidestep_tests::target;
use sidestep_tests::tool::{during, is_32_bit};

use super::bpf::{Mode, variable, with_object};
use super::registers::{sum, words};

fn start() -> Option<Program> {
    Some(Program::start(&mut Command::new(target("typed")?)))
}

#[test]
pub fn handlers_with_the_signature_of_the_function() {
    // `(LONG_MAX >> 22) + 1`, and what it is as an `int`.
    let (large, of_large) = if is_32_bit() { (512, 512) } else { (1 << 41, 0) };
    for mode in [Mode::User, Mode::Trap, Mode::Kernel] {
        let Some(mut program) = start() else { return };
        let found = with_object(mode, "typed.bpf.o", &[], &mut program, |program| program.ask("run 10"));
        let Some((report, wrong)) = found else { continue };
        assert_eq!(wrong, 0, "{mode:?}");
        for (name, expected) in [
            ("calls", 20),
            ("wrong", 0),
            ("a_sum", -50),
            ("b_sum", 10 * large),
            ("c_sum", 2500),
            ("d_sum", -30),
            ("e_sum", 70),
            ("results", 10 * (-5 + 6 + of_large + 250 - 3 + 7)),
            ("ids", 10),
            ("kinds", 100),
            ("weights", 1010),
            ("eights", 10 * (654_321 - 7)),
        ] {
            assert_eq!(variable(&report, name), expected, "{mode:?} {name}: {}", report.0);
        }
        for (name, text) in [("text", "abcdef"), ("name", "first"), ("of_second", "second")] {
            let line = format!("{name}: \"{text}\"");
            assert!(report.0.stdout.lines().any(|l| l.trim().starts_with(&line)), "{mode:?} {line}: {}", report.0);
        }
        program.finish().ok();
    }
}

/// What `mixed` gets and gives.
const MIXED: [f64; 4] = [1.5, -0.25, 1e100, 3.0 + 1.5 * 4.0 - 0.25 - 1e100];

#[test]
fn numbers_with_a_point_are_seen() {
    for (mode, flags) in [(Mode::User, &[][..]), (Mode::Trap, &[]), (Mode::User, &["--interpret"])] {
        let Some(mut program) = start() else { return };
        let attach = ["-a", "on_mixed=typed:mixed", "-a", "mixed_done=typed:mixed"];
        let flags = [flags, &attach].concat();
        let found = with_object(mode, "typed.bpf.o", &flags, &mut program, |program| program.ask("run 3"));
        let Some((report, wrong)) = found else { return };
        assert_eq!(wrong, 0, "{mode:?}");
        let xmm = words(&report, "xmm");
        let found =
            [f64::from_bits(xmm[0] as u64), f64::from(f32::from_bits(xmm[1] as u32)), f64::from_bits(xmm[2] as u64)];
        assert_eq!(found, MIXED[..3], "{mode:?}: {}", report.0);
        assert_eq!(f64::from_bits(sum(&report, "result") as u64), MIXED[3], "{mode:?}: {}", report.0);
        program.finish().ok();
    }
    let Some(mut program) = start() else { return };
    let pid = program.pid().to_string();
    let register = if cfg!(target_arch = "aarch64") { "%d" } else { "%xmm" };
    let specs = ["mixed \"%d %.1f %.2hf %.0e\", arg0, %xmm0, %xmm1, %xmm2", "r:halved \"=%hf\", %xmm0"];
    let specs = specs.map(|spec| spec.replace("%xmm", register));
    let specs = [&*specs[0], &*specs[1]];
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [&["trace", "-p", &pid][..], flags, &specs].concat();
        let (report, wrong) = during(&args, || program.ask("run 2"));
        assert_eq!(wrong, 0);
        let tails: Vec<String> = report.records().iter().map(|words| words[4..].join(" ")).collect();
        assert_eq!(tails, ["3 1.5 -0.25 1e+100", "=-2.500000"].repeat(2), "{flags:?}: {}", report.0);
    }
    program.finish().ok();
}
