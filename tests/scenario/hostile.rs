//! Targets that overwrite what they share with the controller, and ask it for what is not theirs:
//! it ends, says what is wrong, and harms nobody else.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sidestep_tests::build::installed;
use sidestep_tests::process::{LIMIT, Program, Running, eventually, run};
use sidestep_tests::tool::{Tracing, sidestep, with_command};
use sidestep_tests::{Snapshot, skip, target};

use crate::errors::refused;

/// Address space of the controller in bytes: what a target makes up must not take memory.
const MOST: u64 = 8 << 30;
/// For so long a target attacks.
const ATTACK: Duration = Duration::from_millis(700);

/// Commands that read each kind of memory: `F` is a function of the target.
const COMMANDS: [&[&str]; 6] = [
    &[
        "-e",
        r#"u:F { @[arg0] = count(); @h = hist(arg0); @s[ustack] = count(); @last[tid] = arg0;
            printf("%d %s %s\n", arg0, str(arg1), ustack(3)) }
        interval:ms:50 { print(@); clear(@h); for ($kv : @last) { @seen = count() } }"#,
    ],
    &["funccount", "-i", "1", "F"],
    &["funclatency", "F"],
    &["trace", "F \"%d %s\", arg0, arg1"],
    &["stackcount", "F"],
    &["-f", "json", "-e", "u:F { @[str(arg1), arg0] = stats(arg0) } interval:ms:30 { print(@) }"],
];

fn attack(part: &str, seed: usize) {
    let Some(path) = target("hostile") else { return };
    let function = format!("{}:worked", path.display());
    let mut program = Program::start(Command::new(&path).args([part, &seed.to_string()]));
    let pid = program.pid().to_string();
    let args: Vec<String> = COMMANDS[seed % COMMANDS.len()].iter().map(|arg| arg.replace('F', &function)).collect();
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    // Behind the command.
    let at = usize::from(!args[0].starts_with('-'));
    args.splice(at..at, ["-p", &pid]);
    let tool = sidestep(&args);
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--as={MOST}")).arg(tool.get_program()).args(tool.get_args());
    let mut controller = Running::start(&mut limited);
    let end = Instant::now() + 2 * ATTACK;
    while Instant::now() < end && controller.is_running() {
        sleep(Duration::from_millis(10));
    }
    controller.signal(libc::SIGINT);
    let output = controller.finish(LIMIT);
    assert!([0, 1].contains(&output.code()), "{part} {seed}: {output}");
    assert!(!output.stderr.contains("panicked"), "{part} {seed}: {output}");
    // It ends by itself if it cannot attack, as it knows another layout.
    assert_eq!(program.exit_code(), None, "{part} {seed}: no attack");
}

#[test]
fn a_target_that_scribbles_ended_the_controller() {
    for (seed, part) in ["header", "journal", "list", "common", "desc", "slots", "maps", "rings"].iter().enumerate() {
        attack(part, seed);
        attack(part, seed + 100);
    }
}

#[test]
fn everything_at_once_is_overwritten() {
    (0..12).for_each(|seed| attack("all", seed));
}

#[test]
fn a_chain_of_a_map_that_led_to_itself_never_ended() {
    [0, 5].into_iter().for_each(|seed| attack("cycle", seed));
}

#[test]
fn a_record_longer_than_its_ring_took_all_memory() {
    [0, 3].into_iter().for_each(|seed| attack("records", seed));
}

#[test]
fn lengths_that_the_target_made_up_took_all_memory() {
    (0..6).for_each(|seed| attack("lengths", seed));
}

/// Threads loop in copies of their own system calls, and where the controller has them make others.
#[test]
fn system_calls_that_became_endless_loops() {
    (0..3).for_each(|seed| attack("busy", seed));
}

/// Which process traces another one.
fn tracer(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).expect("a line");
    line.trim().parse().expect("a number")
}

/// As another user than this test, which is root's.
fn as_nobody(program: &Path) -> Option<Command> {
    let is_root = fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t0"));
    if !is_root || !installed("setpriv") {
        skip("not root, or no setpriv");
        return None;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    Some(command)
}

/// What a target asks for is asked for by the target, and not by whoever it names: the controller
/// traced any process then, which stood still for ever when it executed a program.
#[test]
fn a_bell_named_a_process_that_was_none_of_the_family() {
    let (Some(path), Some(counts)) = (target("hostile"), target("counts")) else { return };
    let mut victim = Program::start(&mut Command::new(&counts));
    let program = Program::start(Command::new(&path).args(["bell", "7", &victim.pid().to_string()]));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["funccount", "--follow", "-p", &pid, &format!("{}:worked", path.display())]);
    let before = Snapshot::of(victim.pid());
    let end = Instant::now() + 3 * ATTACK;
    while Instant::now() < end {
        assert_eq!(tracer(victim.pid()), 0, "the victim is traced");
        sleep(Duration::from_millis(1));
    }
    let output = {
        tracing.signal(libc::SIGINT);
        tracing.output()
    };
    assert!([0, 1].contains(&output.code()) && !output.stderr.contains("panicked"), "{output}");
    before.assert_same_code(&Snapshot::of(victim.pid()));
    assert_eq!(victim.ask("seven 1"), 21);
}

/// A process went on before the controller had done what it was asked for, so that the program that
/// it executed ran without its probes.
#[test]
pub fn another_process_answered_in_place_of_the_controller() {
    let Some(path) = target("hostile") else { return };
    let mut program = Program::start(Command::new(&path).args(["answers", "7"]));
    let (pid, counted) = (program.pid().to_string(), format!("{}:counted", path.display()));
    let tracing = Tracing::start(&["funccount", "--follow", "-p", &pid, &counted]);
    let calls = program.ask("");
    let report = tracing.stop();
    assert_eq!(calls, 300, "{}", report.0);
    report.assert_count("counted", 300);
}

/// Somebody with more rights than the target has come by the session's memory.
#[test]
fn who_maps_the_memory_was_taken_for_a_child() {
    let (Some(path), Some(holder)) = (target("hostile"), target("holder")) else { return };
    let Some(mut command) = as_nobody(&path) else { return };
    let program = Program::start(command.args(["nothing", "7"]));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["funccount", "--follow", "-p", &pid, &format!("{}:worked", path.display())]);
    let mut stranger = Program::start(Command::new(&holder).arg(&pid));
    let before = Snapshot::of(stranger.pid());
    // The session looks at who is there when somebody new counts, or at its end.
    sleep(ATTACK);
    let report = tracing.stop();
    assert!(report.0.stderr.contains(&format!("process {} was not followed", stranger.pid())), "{}", report.0);
    before.assert_same(&Snapshot::of(stranger.pid()));
    assert_eq!(stranger.ask("same 5"), 5);
}

/// One of them could make the other write anywhere, by what it writes into their maps.
#[test]
fn processes_of_two_users_shared_memory() {
    let Some(path) = target("counts") else { return };
    let Some(mut command) = as_nobody(&path) else { return };
    let mut ours = Program::start(&mut Command::new(&path));
    let mut theirs = Program::start(&mut command);
    let before = [Snapshot::of(ours.pid()), Snapshot::of(theirs.pid())];
    let pids = format!("{},{}", ours.pid(), theirs.pid());
    let function = format!("{}:leaf", path.display());
    refused(&["funccount", "-p", &pids, &function], &["different users", "0 and 65534", "--share-across-users"]);
    before[0].assert_same(&Snapshot::of(ours.pid()));
    before[1].assert_same(&Snapshot::of(theirs.pid()));
    let tracing = Tracing::start(&["funccount", "--share-across-users", "-p", &pids, &function]);
    ours.ask("work 3");
    theirs.ask("work 4");
    tracing.stop().assert_count("leaf", 7);
    // Two of one user share as ever.
    let other = Program::start(&mut Command::new(&path));
    let pids = format!("{},{}", ours.pid(), other.pid());
    let tracing = Tracing::start(&["funccount", "-p", &pids, &function]);
    ours.ask("work 3");
    tracing.stop().assert_count("leaf", 3);
}

/// A child that has given up its rights, and was taken over: it had the journal of its parent, by
/// which the parent is detached.
#[test]
fn a_forked_child_wrote_what_its_parent_is_detached_by() {
    let Some(path) = target("hostile") else { return };
    let function = format!("{}:worked", path.display());
    for seed in 0..4 {
        let mut program = Program::start(Command::new(&path).args(["copy", &seed.to_string()]));
        let pid = program.pid().to_string();
        let before = Snapshot::of(program.pid());
        let tracing = Tracing::start(&["funccount", "-p", &pid, &function]);
        sleep(2 * ATTACK);
        if seed % 2 == 0 {
            let report = tracing.stop();
            assert!(!report.0.stderr.contains("WARNING"), "{}", report.0);
        } else {
            let controller = tracing.pid();
            tracing.kill();
            let output = run(&mut sidestep(&["detach", "-p", &pid]), LIMIT).ok();
            assert_eq!(output.stdout, format!("removed what process {controller} had left: 1 site\n"));
        }
        before.assert_same_but_data(&Snapshot::of(program.pid()));
        assert_eq!(program.exit_code(), None);
    }
}

/// What one process writes into the memory that a session shares decides what is printed, and
/// nothing that happens in another process.
#[test]
fn descriptions_of_maps_led_another_process_astray() {
    let (Some(path), Some(other)) = (target("hostile"), target("counts")) else { return };
    let script = format!(
        r#"u:{}:worked, u:{}:leaf {{
            @[arg0] = count(); @h = hist(arg0); @s[ustack] = count(); @last[tid] = arg0; printf("%d\n", arg0) }}"#,
        path.display(),
        other.display()
    );
    for (seed, part) in ["desc", "common", "slots", "maps", "rings", "cycle", "lengths", "all"].iter().enumerate() {
        let hostile = Program::start(Command::new(&path).args([*part, &seed.to_string()]));
        let mut healthy = Program::start(&mut Command::new(&other));
        let expected = healthy.ask("work 100");
        let before = Snapshot::of(healthy.pid());
        let pids = format!("{},{}", hostile.pid(), healthy.pid());
        let mut controller = Running::start(&mut sidestep(&["-p", &pids, "-e", &script]));
        let end = Instant::now() + 2 * ATTACK;
        while Instant::now() < end && controller.is_running() {
            assert_eq!(healthy.ask("work 100"), expected, "{part} {seed}");
        }
        controller.signal(libc::SIGINT);
        let output = controller.finish(LIMIT);
        assert!([0, 1].contains(&output.code()), "{part} {seed}: {output}");
        assert_eq!(healthy.ask("work 100"), expected, "{part} {seed}");
        before.assert_same(&Snapshot::of(healthy.pid()));
        healthy.finish().ok();
    }
}

/// A program that has other rights than the one that executed it is let go, and runs.
#[test]
fn a_program_of_another_user_was_given_the_memory() {
    let Some(path) = target("counts") else { return };
    let path = path.to_string_lossy().into_owned();
    if as_nobody(Path::new(&path)).is_none() {
        return;
    }
    let line = format!("setpriv --reuid=65534 --regid=65534 --clear-groups '{path}' work 5; '{path}' work 6");
    let function = format!("{path}:leaf");
    for (flags, expected) in [(&["--follow"][..], 6), (&["--follow", "--share-across-users"], 11)] {
        let args = [&["funccount"], flags, &[function.as_str()]].concat();
        let (output, report) = with_command(&args, &["sh", "-c", &line]);
        assert_eq!(output.stdout.lines().count(), 2, "{output}");
        report.assert_count("leaf", expected);
        assert_eq!(output.stderr.contains("runs as another user"), expected == 6, "{output}");
    }
}

/// The next attach says so, leaves them alone, and probes all the same.
#[test]
fn remains_that_were_made_up_kept_others_from_attaching() {
    let Some(path) = target("remains") else { return };
    let function = format!("{}:worked", path.display());
    for kind in ["outside", "memory", "code", "entries"] {
        let mut program = Program::start(Command::new(&path).arg(kind));
        let pid = program.pid().to_string();
        let tracing = Tracing::start(&["funccount", "-p", &pid, &function]);
        assert_eq!(program.ask("work 7"), 28, "{kind}");
        let report = tracing.stop();
        report.assert_count("worked", 7);
        let said = report.0.stderr.lines().filter(|line| line.contains("is damaged or made up")).count();
        // The last kind can only be told by trying: it may be removed like any other.
        assert!(said == 1 || kind == "entries", "{kind}: {}", report.0);
        assert_eq!(program.ask("work 7"), 28, "{kind}");
    }
}

/// Remains that could be real, with damage at random, or with numbers that were once believed:
/// commands that read them end in time, with a message where they fail.
#[test]
fn remains_with_damage_at_random() {
    let Some(path) = target("remains") else { return };
    let function = format!("{}:worked", path.display());
    let mut noted = 0;
    for seed in 1..=60 {
        let program = Program::start(Command::new(&path).args(["random", &seed.to_string()]));
        let pid = program.pid().to_string();
        let commands: [&[&str]; 4] = [
            &["status", "-p", &pid],
            &["disable", "-p", &pid],
            &["funccount", "-d", "0.01", "-p", &pid, &function],
            &["detach", "-p", &pid],
        ];
        let first = seed % commands.len();
        for args in commands[first..].iter().chain(&commands[..first]) {
            let tool = sidestep(args);
            let mut limited = Command::new("prlimit");
            limited.arg(format!("--as={MOST}")).arg(tool.get_program()).args(tool.get_args());
            let output = run(&mut limited, LIMIT);
            assert!([0, 1].contains(&output.code()), "{seed} {args:?}: {output}");
            assert!(!output.stderr.contains("panicked"), "{seed} {args:?}: {output}");
            noted += usize::from(output.stderr.contains("is damaged or made up"));
        }
    }
    assert!(noted > 0, "nobody has looked at the remains");
}

/// A file system of the target kept the tool in a read of a stack, and no signal but SIGKILL ended
/// that.
#[test]
pub fn memory_that_nobody_gives_kept_the_tool_from_ending() {
    let Some(path) = target("unanswered") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let before = Snapshot::of(program.pid());
    if program.ask("keep 0") != 1 {
        return skip("no /dev/fuse");
    }
    let pid = program.pid().to_string();
    let tracing = Tracing::launch(&["funccount", "-d", "1", "-p", &pid, "leaf"]);
    let place = format!("/proc/{}/wchan", tracing.pid());
    let is_kept = || fs::read_to_string(&place).is_ok_and(|place| place == "request_wait_answer");
    assert!(eventually(LIMIT, is_kept), "it does not read");
    tracing.signal(libc::SIGINT);
    let output = tracing.output();
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stderr.contains("it ends without a detach"), "{output}");
    assert_eq!(program.ask("work 10"), 145, "{output}");
    assert_eq!(program.ask("give 0"), 0);
    run(&mut sidestep(&["detach", "-p", &pid]), LIMIT).ok();
    before.assert_same_code(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("work 10"), 145);
    program.finish().ok();
}

/// The controller opened anew, with its own rights, and cut to a length what it found in the place
/// of the memory that it had made the target create.
#[test]
fn a_file_in_the_place_of_the_memory_was_cut() {
    let Some(path) = target("exchange") else { return };
    let Some(mut command) = as_nobody(&path) else { return };
    let file = sidestep_tests::build::target_dir().join("test-targets").join(format!("kept.{}", std::process::id()));
    fs::write(&file, "kept").expect("writable");
    let mut program = Program::start(command.arg(&file));
    let pid = program.pid().to_string();
    let function = format!("{}:worked", path.display());
    let before = Snapshot::of(program.pid());
    let mut exchanged = 0;
    for _ in 0..20 {
        let tracing = Tracing::launch(&["funccount", "-d", "0.05", "-p", &pid, &function]);
        let output = tracing.output();
        assert!(!output.stderr.contains("panicked"), "{output}");
        exchanged += u32::from(output.code() != 0);
        assert_eq!(fs::read_to_string(&file).expect("readable"), "kept", "{output}");
        assert_eq!(program.ask("work 7"), 28, "{output}");
    }
    before.assert_same_code(&Snapshot::of(program.pid()));
    let _ = fs::remove_file(&file);
    // Else nothing was tested.
    assert!(exchanged > 0, "no descriptor was exchanged");
}
