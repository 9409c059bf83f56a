//! gdb at a process that is probed: it sees functions and lines, stops at probed ones, and leaves
//! no harm.

use std::fs;
use std::process::{Command, Stdio};

use sidestep_tests::build::installed;
use sidestep_tests::process::{LIMIT, Output, Program, Running, eventually};
use sidestep_tests::tool::{Tracing, during};
use sidestep_tests::{Snapshot, skip, target};

use super::counts::work;

/// Attaches gdb, then gives the program a command.
pub fn debug(program: &mut Program, command: &str, gdb: &[&str]) -> Output {
    let mut debugger = Command::new("gdb");
    debugger.args(["-q", "-batch", "-nx", "-iex", "set debuginfod enabled off", "-p", &program.pid().to_string()]);
    debugger.args(gdb.iter().flat_map(|line| ["-ex", line])).stdin(Stdio::null());
    let running = Running::start(&mut debugger);
    let status = format!("/proc/{}/status", program.pid());
    let traced = || fs::read_to_string(&status).is_ok_and(|text| !text.contains("TracerPid:\t0\n"));
    assert!(eventually(LIMIT, traced), "gdb does not attach");
    program.send(command);
    running.finish(LIMIT)
}

fn start(name: &str) -> Option<(Program, String)> {
    if !installed("gdb") {
        skip("no gdb");
        return None;
    }
    let program = Program::start(&mut Command::new(target(name)?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

#[test]
pub fn a_breakpoint_at_a_probe_stops_with_all_callers() {
    let Some((mut program, pid)) = start("counts") else { return };
    let before = Snapshot::of(program.pid());
    let (report, answers) = during(&["funccount", "-p", &pid, "leaf"], || {
        let output = debug(&mut program, "work 50", &["break *leaf", "continue", "bt", "delete", "detach"]);
        let frames: Vec<&str> = output.stdout.lines().filter(|line| line.starts_with('#')).collect();
        assert!(frames.len() >= 4 && frames[0].contains("leaf (") && frames[1].contains("work ("), "{output}");
        (program.answer(), program.ask("work 50"))
    });
    assert_eq!(answers, (work(50), work(50)));
    report.assert_count("leaf", 100);
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// It comes and goes while the program is in a detour, or near it.
#[test]
pub fn it_comes_and_goes_while_probes_are_hit() {
    let Some((mut program, pid)) = start("counts") else { return };
    let (report, answer) = during(&["funccount", "-p", &pid, "leaf"], || {
        program.send("work 500000000");
        for _ in 0..5 {
            debug(&mut program, "work 10", &["bt", "detach"]).ok();
        }
        program.answer()
    });
    assert_eq!((answer, (0..5).map(|_| program.answer()).collect::<Vec<_>>()), (work(500_000_000), vec![work(10); 5]));
    assert!(report.count("leaf") >= 500_000_000, "{}", report.0);
    program.finish().ok();
}

/// First it sees the copy that has failed, then what the program's handlers and core files are
/// shown.
#[test]
pub fn the_second_stop_of_a_fault_is_at_its_own_line() {
    for flags in [&[][..], &["--no-optimize"]] {
        let Some((mut program, pid)) = start("displaced") else { return };
        let args = [&["funccount"], flags, &["-p", &pid, "do_*"]].concat();
        let tracing = Tracing::start(&args);
        let lines = ["handle SIGTRAP nostop noprint pass", "continue", "continue", "bt", "kill"];
        let output = debug(&mut program, "die 0", &lines);
        assert!(output.stdout.contains("#0  do_load ()"), "{flags:?}: {output}");
        tracing.end();
    }
}
