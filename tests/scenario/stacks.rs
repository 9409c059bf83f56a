//! Stacks of programs without frame pointers. gdb, which was told nothing, says who called whom.

use std::collections::BTreeSet;
use std::process::Command;

use sidestep_tests::build::{installed, target_dir};
use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Report, Tracing, sidestep};
use sidestep_tests::{Snapshot, skip, target};

use super::debugger::debug;

/// Addresses of a stack, innermost first.
type Stack = Vec<u64>;

/// Prints the address of each frame that has one of its own.
const WALK: &str = "
frame = gdb.newest_frame()
while frame is not None:
    if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
        print('pc', hex(frame.pc()))
    frame = frame.older()
";

fn start() -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target("stacks")?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

/// Runs a command of the program while all hits of `points` leave their stacks.
#[track_caller]
pub fn stacks(program: &mut Program, points: &str, command: &str) -> BTreeSet<Stack> {
    let script = format!("{points} {{ @[ustack(raw)] = count() }} interval:ms:50 {{ printf(\"Tracing on\\n\") }}");
    let tracing = Tracing::start(&["-p", &program.pid().to_string(), "-e", &script]);
    program.ask(command);
    of(&tracing.stop())
}

/// The stacks among printed maps.
fn of(report: &Report) -> BTreeSet<Stack> {
    let mut all = BTreeSet::new();
    let mut stack = Vec::new();
    for line in report.0.stdout.lines() {
        match line.trim() {
            "@[" => stack = Vec::new(),
            // A stack that found no place is lost.
            end if end.starts_with("]:") && stack.is_empty() => {}
            end if end.starts_with("]:") => drop(all.insert(std::mem::take(&mut stack))),
            address => stack.extend(u64::from_str_radix(address, 16)),
        }
    }
    all
}

/// The stack that gdb sees at the first stop in `leaf`.
#[track_caller]
fn by_gdb(program: &mut Program, command: &str) -> Stack {
    let script = target_dir().join(format!("test-targets/walk.{}.py", program.pid()));
    std::fs::write(&script, WALK).expect("target directory is writable");
    let source = format!("source {}", script.display());
    let signals = "handle SIGUSR1 SIGALRM nostop noprint pass";
    let lines = ["set backtrace past-main on", signals, "break *leaf", "continue", &source, "delete", "detach"];
    let output = debug(program, command, &lines).ok();
    program.answer();
    let _ = std::fs::remove_file(script);
    let pc = |line: &str| u64::from_str_radix(line.strip_prefix("pc 0x")?, 16).ok();
    output.stdout.lines().filter_map(pc).collect()
}

#[test]
pub fn gdb_sees_the_same_callers() {
    if !installed("gdb") {
        return skip("no gdb");
    }
    let Some((mut program, _)) = start() else { return };
    // What the C library keeps of threads is there from here on.
    program.ask("threads 1");
    let before = Snapshot::of(program.pid());
    for command in ["sorted 1", "deep 30", "rounded 7", "inlined 3", "walks 1", "raised 1", "threads 1"] {
        let theirs = by_gdb(&mut program, command);
        assert!(theirs.len() >= 4, "{command}: {theirs:x?}");
        let ours = stacks(&mut program, &format!("u:{}:leaf", path()), command);
        assert!(ours.contains(&theirs), "{command}: not\n{theirs:x?}\nbut\n{ours:x?}");
    }
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

fn path() -> String {
    target("stacks").map_or_else(String::new, |path| path.display().to_string())
}

/// Offsets of all instructions of a function.
fn instructions(function: &str) -> Vec<u64> {
    let output = run(Command::new("objdump").args(["-d", "--no-show-raw-insn", &path()]), LIMIT).ok();
    let of_it = output.stdout.lines().skip_while(|line| !line.ends_with(&format!("<{function}>:"))).skip(1);
    let addresses: Vec<u64> = of_it
        .take_while(|line| !line.is_empty())
        // Padding.
        .filter(|line| !line.contains("nop") && !line.contains("xchg   %ax,%ax"))
        .filter_map(|line| u64::from_str_radix(line.split_once(':')?.0.trim(), 16).ok())
        .collect();
    addresses.iter().map(|address| address - addresses[0]).collect()
}

#[test]
pub fn every_instruction_has_the_same_callers() {
    if !installed("objdump") {
        return skip("no objdump");
    }
    let Some((mut program, _)) = start() else { return };
    let offsets = instructions("walked");
    assert!(offsets.len() > 20, "{offsets:?}");
    let points: Vec<String> = offsets.iter().map(|offset| format!("u:{}:walked+{offset}", path())).collect();
    let stacks = stacks(&mut program, &points.join(", "), "walks 100");
    let callers: BTreeSet<&[u64]> = stacks.iter().map(|stack| &stack[1..]).collect();
    assert_eq!(callers.len(), 1, "{stacks:x?}");
    assert!(callers.iter().all(|callers| callers.len() >= 4), "{stacks:x?}");
    // Both ways through the function; one or two may have got no place.
    let seen: BTreeSet<u64> = stacks.iter().map(|stack| stack[0]).collect();
    assert!(seen.len() + 2 >= offsets.len(), "{seen:x?} of {}", offsets.len());
    program.finish().ok();
}

/// A signal comes anywhere, also in the C library, in the kernel's page of functions, and in our
/// own code.
#[test]
pub fn what_a_signal_interrupted_is_there() {
    let Some((mut program, _)) = start() else { return };
    let outermost = |stacks: &BTreeSet<Stack>| stacks.iter().filter_map(|s| s.last().copied()).collect::<BTreeSet<_>>();
    let start = outermost(&stacks(&mut program, &format!("u:{}:leaf", path()), "walks 1"));
    let stacks = stacks(&mut program, &format!("u:{}:handle", path()), "timed 30000");
    assert!(stacks.len() > 5, "{stacks:x?}");
    assert_eq!(outermost(&stacks), start, "{stacks:x?}");
    program.finish().ok();
}

/// Return addresses that are replaced are shown as they were.
#[test]
pub fn watched_returns_are_no_obstacle() {
    let Some((mut program, _)) = start() else { return };
    let leaf = format!("u:{}:leaf", path());
    let plain = stacks(&mut program, &leaf, "deep 20");
    let watched = format!("ur:{0}:deep {{ @r = count() }} ur:{0}:leaf {{ @s = count() }} {leaf}", path());
    assert_eq!(stacks(&mut program, &watched, "deep 20"), plain);
    program.finish().ok();
}

#[test]
pub fn threads_at_once_while_probes_come_and_go() {
    let Some((mut program, pid)) = start() else { return };
    let expected = stacks(&mut program, &format!("u:{}:leaf", path()), "threads 1");
    let outermost: BTreeSet<u64> = expected.iter().filter_map(|stack| stack.last().copied()).collect();
    let script = format!("u:{}:leaf, u:{}:compare {{ @[ustack(raw)] = count() }}", path(), path());
    let script = format!("{script} interval:ms:50 {{ printf(\"Tracing on\\n\") }}");
    let tracing = Tracing::start(&["-p", &pid, "-e", &script]);
    program.send("threads 20000");
    for _ in 0..10 {
        for order in ["disable", "enable"] {
            run(&mut sidestep(&[order, "-p", &pid, "leaf"]), LIMIT).ok();
        }
    }
    program.answer();
    for stack in of(&tracing.stop()) {
        assert!(stack.last().is_some_and(|last| outermost.contains(last)), "{stack:x?}: not {outermost:x?}");
    }
    program.finish().ok();
}

/// With DWARF, functions that the compiler has put into others are there, too, and source lines.
#[test]
pub fn inlined_functions_have_frames_and_lines() {
    let Some((mut program, pid)) = start() else { return };
    let script = "u:leaf { @[ustack(3)] = count() } interval:ms:50 { printf(\"Tracing on\\n\") }";
    let script = script.replace("leaf", &format!("{}:leaf", path()));
    let tracing = Tracing::start(&["-p", &pid, "-e", &script]);
    program.ask("inlined 3");
    let output = tracing.stop().0;
    let source = std::fs::read_to_string(sidestep_tests::build::checkout().join("tests/targets/stacks.c"));
    let source = source.expect("the target's source");
    let line_of = |text: &str| 1 + source.lines().position(|line| line.contains(text)).expect("in the source");
    let frames: Vec<&str> = output.stdout.lines().map(str::trim).filter(|line| line.contains("stacks.c:")).collect();
    let wanted = [
        ("[inlined] inner@", "return leaf(n) * 3"),
        ("[inlined] middle@", "return inner(n + 1)"),
        ("inlined+", "return middle(n)"),
    ];
    for (frame, (begin, text)) in frames[1..].iter().zip(wanted) {
        let end = format!("stacks.c:{}", line_of(text));
        assert!(frame.starts_with(begin) && frame.ends_with(&end), "{frame} is not {begin}…{end}\n{output}");
    }
    assert!(frames.len() >= 4 && frames[0].starts_with("leaf+0@"), "{output}");
    program.finish().ok();
}
