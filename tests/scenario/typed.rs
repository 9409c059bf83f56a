//! Handlers that are written with the signature of the function: what the kernel's jprobes were, and `BPF_UPROBE` of libbpf is.

use std::process::Command;

use sidestep_tests::process::Program;
use sidestep_tests::target;

use super::bpf::{Mode, variable, with_object};

fn start() -> Option<Program> {
    Some(Program::start(&mut Command::new(target("typed")?)))
}

#[test]
fn handlers_with_the_signature_of_the_function() {
    for mode in [Mode::User, Mode::Trap, Mode::Kernel] {
        let Some(mut program) = start() else { return };
        let found = with_object(mode, "typed.bpf.o", &[], &mut program, |program| program.ask("run 10"));
        let Some((report, wrong)) = found else { continue };
        assert_eq!(wrong, 0, "{mode:?}");
        for (name, expected) in [
            ("calls", 20),
            ("wrong", 0),
            ("a_sum", -50),
            ("b_sum", 10 << 40),
            ("c_sum", 2500),
            ("d_sum", -30),
            ("e_sum", 70),
            ("results", 10 * (-5 + 6 + 250 - 3 + 7)),
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
