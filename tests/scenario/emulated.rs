//! Trap probes whose handler counts and does the instruction by itself: all registers, flags and
//! memory are as without probes, whatever signals do.

use std::path::Path;
use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, during, is_32_bit, sidestep};
use sidestep_tests::{Snapshot, callgrind, kernel, skip, target};

use super::ladder::{by_address, functions, ran};

/// What is probed: every instruction that `emulated_asm.S` has of the list, and some others.
const ALL: &str = "emulated:case_*+*";

fn program() -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target("emulated")?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

fn traps<'a>(pid: &'a str, pattern: &'a str) -> [&'a str; 5] {
    ["funccount", "--no-optimize", "-p", pid, pattern]
}

/// Also with a handler of its own from before.
#[test]
pub fn every_answer_is_the_same_under_signals_in_threads_and_children() {
    // 32-bit code has no red zone: there, copies do what writes to the stack, and single steps show
    // them.
    let steps = if is_32_bit() { 0 } else { 3 };
    let commands = ["check 20", "storm 60", "child 20", "mixed 9", "step 3"];
    let commands = &commands[..if steps == 0 { 4 } else { 5 }];
    let ask_all = |program: &mut Program| commands.iter().map(|command| program.ask(command)).collect::<Vec<_>>();
    let Some((mut program, pid)) = program() else { return };
    program.ask("install 0");
    let alone = ask_all(&mut program);
    let before = Snapshot::of(program.pid());
    let (report, answers) = during(&traps(&pid, ALL), || ask_all(&mut program));
    assert_eq!(answers, alone, "{}", report.0);
    // Not those of the child; of the steps, all.
    report.assert_count("case_pop", 20 + 60 + 9 + steps);
    let behind = if is_32_bit() { "case_sum+0x3" } else { "case_sum+0xb" };
    report.assert_count(behind, 20 + 60 + 9 + steps);
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(ask_all(&mut program), alone, "after the detach");
    program.finish().ok();
}

/// The kernel puts its frame elsewhere then, and nothing is known about the interrupted stack.
#[test]
pub fn handlers_installed_meanwhile_and_stacks_of_their_own() {
    let Some((mut program, pid)) = program() else { return };
    let alone = program.ask("check 20");
    let (report, answers) = during(&traps(&pid, ALL), || {
        program.ask("install 0");
        (program.ask("mixed 9") > 0, program.ask("altstack 20"), program.ask("check 20"))
    });
    assert_eq!(answers, (true, alone, alone), "{}", report.0);
    report.assert_count("case_pop", 9 + 20 + 20);
    assert!(program.ask("mixed 9") > 0, "its handler is gone after the detach");
    program.finish().ok();
}

#[test]
pub fn each_instruction_is_counted_as_often_as_it_ran() {
    let Some(path) = target("emulated") else { return };
    let expected =
        ran(&callgrind::executions(Command::new(&path).args(["check", "7"]), |name| name.starts_with("case_")));
    let names = functions(path.to_str().expect("UTF-8"), false);
    let Some((mut program, pid)) = program() else { return };
    let (report, _) = during(&traps(&pid, ALL), || program.ask("check 7"));
    assert!(expected.len() > 150, "{expected:?}");
    assert_eq!(by_address(&report, |name| names.get(name).copied()), expected);
    program.finish().ok();
}

#[test]
pub fn the_kernel_counts_as_many() {
    let Some(path) = target("emulated") else { return };
    let names = functions(path.to_str().expect("UTF-8"), false);
    let cases: Vec<&str> = names.keys().map(String::as_str).filter(|name| name.starts_with("case_")).collect();
    let command = [path.to_str().expect("UTF-8"), "check", "9"];
    let Some((_, counts)) = kernel::count(&path, &cases, &command) else {
        return skip("the kernel offers no uprobes");
    };
    let Some((mut program, pid)) = program() else { return };
    let (report, _) = during(&traps(&pid, "emulated:case_*"), || program.ask("check 9"));
    for (name, count) in cases.into_iter().zip(counts) {
        report.assert_count(name, count);
    }
    program.finish().ok();
}

/// `status` sees what they count, and the next controller removes what a killed one has left.
#[test]
pub fn status_and_detach_know_them() {
    let Some((mut program, pid)) = program() else { return };
    let alone = program.ask("check 5");
    let before = Snapshot::of(program.pid());
    let tracing = Tracing::start(&traps(&pid, "emulated:case_pu*"));
    assert_eq!(program.ask("check 5"), alone);
    let status = run(&mut sidestep(&["status", "-p", &pid]), LIMIT).ok().stdout;
    let line = status.lines().find(|line| line.contains("case_push")).unwrap_or_default();
    assert!(line.split_whitespace().any(|word| word == "5") && !line.contains("OPTIMIZED"), "{status}");
    tracing.kill();
    assert_eq!(program.ask("check 5"), alone);
    during(&traps(&pid, "emulated:case_pop"), || assert_eq!(program.ask("check 5"), alone));
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

#[test]
pub fn explain_says_what_is_emulated() {
    let Some(path) = target("emulated") else { return };
    let explain = |path: &Path, place: &str| {
        let place = format!("{}:{place}", path.display());
        run(&mut sidestep(&["explain", "--no-optimize", &place]), LIMIT).ok().stdout
    };
    assert!(explain(&path, "case_push").contains("technique   trap, emulated: push\n"));
    assert!(explain(&path, "case_other").contains("technique   trap\n"));
}
