//! More of what the kernel's own tests assert, under their names: see `kernel_suites`.

use std::collections::BTreeMap;
use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::target;
use sidestep_tests::tool::{during, sidestep};

use super::carried::status;

fn start() -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target("suites")?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

/// A name that two functions of a program have means both of them. (The kernel refuses it.) They
/// are counted, named and switched apart.
#[test]
pub fn kprobe_non_uniq_symbol() {
    let Some((mut program, pid)) = start() else { return };
    let (report, lines) = during(&["funccount", "-p", &pid, "twin"], || {
        assert_eq!((program.ask("own_twins 3"), program.ask("other_twins 4")), (18, 16));
        let (lines, _) = status(&pid, &[]);
        let [first, second] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((&*first.symbol, &*second.symbol), ("twin+0x0", "twin+0x0"), "{lines:?}");
        // The one that was called four times.
        let other = if first.hits == 4 { first } else { second };
        let disable = run(&mut sidestep(&["disable", "-p", &pid, &format!("{:#x}", other.address)]), LIMIT).ok();
        assert_eq!(disable.stdout, "1 probe disabled\n");
        assert_eq!((program.ask("own_twins 30"), program.ask("other_twins 40")), (585, 1600));
        lines.into_iter().map(|line| (line.address, line.hits)).collect::<BTreeMap<_, _>>()
    });
    assert_eq!(lines.values().sum::<u64>(), 7, "{lines:?}");
    let rows = report.0.stdout.lines().filter_map(|line| {
        let (name, count) = line.trim().rsplit_once(' ')?;
        let address = name.trim().strip_prefix("twin [0x")?.strip_suffix(']')?;
        Some((u64::from_str_radix(address, 16).ok()?, count.parse().ok()?))
    });
    let expected = lines.into_iter().map(|(address, hits)| (address, if hits == 3 { 33 } else { hits }));
    assert_eq!(rows.collect::<BTreeMap<_, u64>>(), expected.collect(), "{}", report.0);
    program.finish().ok();
}

/// Stacks at the returns of calls inside each other, all of which are watched: each begins where it
/// returns to.
#[test]
pub fn test_stacktrace_on_kretprobe_nested() {
    let Some((mut program, pid)) = start() else { return };
    let script = "config = { show_debug_info = false }
        ur:suites:consumed { print(ustack(3)) } ur:suites:outer { print(ustack(2)) } ur:suites:outermost { print(ustack(1)) }
        interval:ms:50 { printf(\"Tracing on\\n\") }";
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [flags, &["-p", &pid, "-e", script]].concat();
        let (report, answer) = during(&args, || program.ask("deep 3"));
        assert_eq!(answer, 8);
        let names = report.0.stdout.lines().filter_map(|line| Some(line.trim().rsplit_once('+')?.0));
        // Where each of the three returns to, and that one's callers.
        let expected = ["outer", "outermost", "deep", "outermost", "deep", "deep"];
        assert_eq!(names.collect::<Vec<_>>(), expected, "{flags:?}: {}", report.0);
    }
    program.finish().ok();
}
