//! How a controller ends: whatever signal ends it, its target is as before. What it cannot help,
//! `sidestep detach` removes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sidestep_tests::build::{have, target_dir};
use sidestep_tests::process::{LIMIT, Program, Running, eventually, kill, run};
use sidestep_tests::tool::{Tracing, path, sidestep};
use sidestep_tests::{Snapshot, target};

fn start(name: &str) -> Option<(Program, String, Snapshot)> {
    let program = Program::start(&mut Command::new(target(name)?));
    let (pid, before) = (program.pid().to_string(), Snapshot::of(program.pid()));
    Some((program, pid, before))
}

/// A set of signals in `/proc/PID/status`.
fn signals_in(pid: &str, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let set = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix(key)?.trim(), 16).ok());
    set.unwrap_or(0)
}

/// SIGHUP, SIGQUIT and SIGUSR1 left the target probed.
#[test]
pub fn signals_that_end_a_program_left_the_target_probed() {
    let Some((mut program, pid, before)) = start("counts") else { return };
    // What these tests were started to ignore (`nohup`), the tool ignores, too.
    let ignored = signals_in("self", "SigIgn:");
    let signals = [
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGXCPU,
    ];
    for signal in signals.into_iter().filter(|signal| ignored & 1 << (signal - 1) == 0) {
        let tracing = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
        program.ask("work 11");
        tracing.signal(signal);
        tracing.end().assert_count("leaf", 11);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
}

/// The terminal goes away, with who holds its other end.
#[test]
fn a_lost_terminal_left_the_target_probed() {
    if !have(&["script"]) {
        return;
    }
    let Some((mut program, pid, before)) = start("counts") else { return };
    let command = format!("{} trace -p {pid} leaf", path().display());
    let terminal = Running::start(Command::new("script").args(["-q", "-c", &command, "/dev/null"]));
    let probed = || run(&mut sidestep(&["status", "-p", &pid]), LIMIT).stdout.contains("leaf");
    assert!(eventually(LIMIT, probed), "it did not attach");
    program.ask("work 10");
    terminal.signal(libc::SIGKILL);
    // The controller lets go of the target when the last region is gone.
    let file = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).expect("the target runs");
    let free = || !file("maps").contains("sidestep") && file("status").contains("TracerPid:\t0\n");
    assert!(eventually(LIMIT, free), "the target stays probed");
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

#[test]
pub fn what_a_killed_controller_has_left_is_removed() {
    let Some((mut program, pid, before)) = start("counts") else { return };
    let detach = || run(&mut sidestep(&["detach", "-p", &pid]), LIMIT);
    assert_eq!(detach().ok().stdout, "nothing is left of a controller that has ended\n");
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [&["funccount"], flags, &["-p", &pid, "leaf"]].concat();
        let tracing = Tracing::start(&args);
        let controller = tracing.pid();
        let refused = detach();
        assert_eq!(refused.code(), 1, "{refused}");
        assert!(refused.stderr.contains(&format!("is probed by process {controller}")), "{refused}");
        tracing.kill();
        let output = detach().ok();
        let text = format!("removed what process {controller} had left: 1 site\n");
        assert_eq!((output.stdout, output.stderr), (text, String::new()));
        before.assert_same(&Snapshot::of(program.pid()));
    }
    assert_eq!(program.ask("work 10"), 145);
    program.finish().ok();
}

/// The kernel takes some time for the end of a process. Until then the controller seemed to be at
/// work, and the user was told to end what was killed already.
#[test]
pub fn a_controller_that_was_just_killed_was_taken_for_one_at_work() {
    let Some(late_end) = target("late_end") else { return };
    for command in [&["detach"][..], &["funccount", "-d", "0.1", "leaf"]] {
        let Some((program, pid, before)) = start("counts") else { return };
        let tracing = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
        let controller = tracing.pid();
        let mut held = Program::start(Command::new(&late_end).arg(controller.to_string()));
        kill(controller, libc::SIGKILL);
        let mut next = Running::start(&mut sidestep(&[&command[..1], &["-p", &pid], &command[1..]].concat()));
        std::thread::sleep(Duration::from_millis(300));
        assert!(next.is_running(), "the end of the controller was not waited for");
        assert_eq!(held.ask("go"), 1, "the controller was not held at its end");
        let output = next.finish(LIMIT).ok();
        if command == ["detach"] {
            let text = format!("removed what process {controller} had left: 1 site\n");
            assert_eq!((output.stdout, output.stderr), (text, String::new()));
        }
        before.assert_same(&Snapshot::of(program.pid()));
        held.finish().ok();
        tracing.kill();
        program.finish().ok();
    }
}

/// The script's `exit()` waited for such a command for ever.
#[test]
fn a_command_that_ignores_sigterm_ends_with_its_script() {
    let command = ["bash", "-c", "trap '' TERM; echo on; while :; do read -t 1 <> <(:); done"];
    let script = ["-e", "u:bash:echo_builtin { exit() }", "--"];
    assert_eq!(run(&mut sidestep(&[&script[..], &command].concat()), LIMIT).ok().stdout.lines().next(), Some("on"));
}

/// `| head` had what it wanted, and the tool waited for the end of the command for ever.
#[test]
fn a_command_went_on_when_nobody_read_what_its_script_prints() {
    let tool = path().display().to_string();
    let command = "while :; do echo $$ > /dev/null; read -t 0.1 <> <(:); done";
    let script = r#"u:bash:echo_builtin { printf("%d\n", pid) }"#;
    let line = format!("{tool} -e '{script}' -- bash -c '{command}' | head -1");
    let output = run(Command::new("sh").args(["-c", &line]), LIMIT).ok();
    let pid = output.stdout.trim();
    assert!(pid.parse::<i32>().is_ok(), "{output}");
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the command goes on: {output}");
}

#[test]
fn a_second_signal_ends_a_command_that_ignores_the_first() {
    let command = ["bash", "-c", "trap '' TERM; echo on; while :; do read -t 1 <> <(:); done"];
    let tracing = Tracing::launch(&[&["funccount", "bash:echo_builtin", "--"], &command[..]].concat());
    let shell = || run(Command::new("pgrep").args(["-P", &tracing.pid().to_string()]), LIMIT).stdout;
    assert!(eventually(LIMIT, || !shell().is_empty()), "the command has not begun");
    let pid = shell().trim().to_owned();
    let ignores = || signals_in(&pid, "SigIgn:") & 1 << (libc::SIGTERM - 1) != 0;
    assert!(eventually(LIMIT, ignores), "it does not ignore SIGTERM");
    tracing.signal(libc::SIGTERM);
    let probed = || run(&mut sidestep(&["status", "-p", &pid]), LIMIT).code() == 0;
    assert!(eventually(LIMIT, || !probed()), "it stays probed");
    // Two that follow at once are one wish.
    std::thread::sleep(Duration::from_millis(150));
    tracing.signal(libc::SIGTERM);
    assert_eq!(tracing.output().code(), 128 + libc::SIGKILL);
}

/// The second signal came before the tool had detached. It was counted then, and read once more
/// while the tool waited for the command that it had killed: the status was that of the signal.
#[test]
fn a_second_signal_while_it_detaches_was_one_more_when_the_command_had_been_killed() {
    if !have(&["flock"]) {
        return;
    }
    // With memory that takes a while to be given back.
    let script = "printf -v much %99999999s; trap '' TERM; echo on; while :; do read -t 1 <> <(:); done";
    let command = ["bash", "-c", script];
    let tracing = Tracing::launch(&[&["funccount", "bash:echo_builtin", "--"], &command[..]].concat());
    let child = |parent: i32| run(Command::new("pgrep").args(["-P", &parent.to_string()]), LIMIT).stdout;
    let ignores = || {
        let pid = child(tracing.pid());
        !pid.is_empty() && signals_in(pid.trim(), "SigIgn:") & 1 << (libc::SIGTERM - 1) != 0
    };
    assert!(eventually(LIMIT, ignores), "the command does not ignore SIGTERM");
    let memory = format!("/proc/{}/mem", child(tracing.pid()).trim());
    let lock = Running::start(Command::new("flock").args([&memory, "sleep", "1000"]));
    assert!(eventually(LIMIT, || !child(lock.pid()).is_empty()), "the tool is not kept from its detach");
    tracing.signal(libc::SIGTERM);
    // Two that follow at once are one wish.
    std::thread::sleep(Duration::from_millis(300));
    // Not while it is kept, since then it would give up.
    tracing.signal(libc::SIGSTOP);
    drop(lock);
    std::thread::sleep(Duration::from_millis(100));
    tracing.signal(libc::SIGTERM);
    tracing.signal(libc::SIGCONT);
    let output = tracing.output();
    assert_eq!(output.code(), 128 + libc::SIGKILL, "{output}");
}

/// A file for the process id of a program whose initialiser never ends, and what makes it so.
fn endless(name: &str) -> Option<(PathBuf, [(&'static str, OsString); 3])> {
    let library = target("libendless.so")?;
    let file = target_dir().join("test-targets").join(format!("endless.{name}.{}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let set = [("ENDLESS_IN", "counts".into()), ("ENDLESS", file.clone().into()), ("LD_PRELOAD", library.into())];
    Some((file, set))
}

/// Waits for such a program; gives its process id.
#[track_caller]
fn await_initialiser(file: &Path) -> i32 {
    let pid = || std::fs::read_to_string(file).ok()?.trim().parse::<i32>().ok();
    assert!(eventually(LIMIT, || pid().is_some()), "the initialiser does not run");
    let found = pid().expect("it was there");
    let _ = std::fs::remove_file(file);
    found
}

/// The tool waited for the first instruction of its command, and for nothing else.
#[test]
fn a_command_whose_initialiser_never_ends_kept_the_tool_from_ending() {
    let (Some(path), Some((file, set))) = (target("counts"), endless("command")) else { return };
    let path = path.to_string_lossy();
    let tool = Running::start(sidestep(&["funccount", "leaf", "--", &path]).envs(set));
    let pid = await_initialiser(&file);
    tool.signal(libc::SIGINT);
    let output = tool.finish(LIMIT);
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stderr.contains("has not come to its first instruction"), "{output}");
    let gone = || !Path::new(&format!("/proc/{pid}")).exists();
    assert!(eventually(LIMIT, gone), "the command goes on without its probes");
}

/// The same of a program that was executed later, which goes on.
#[test]
fn a_program_that_is_followed_and_never_begins_kept_the_tool_from_ending() {
    let (Some(path), Some((file, set))) = (target("counts"), endless("followed")) else { return };
    let set: String = set.map(|(name, value)| format!("{name}='{}' ", value.to_string_lossy())).concat();
    let script = format!("echo ready; read line; {set}'{}' & read line; kill $!; echo 7", path.display());
    let mut shell = Program::start(Command::new("bash").args(["-c", &script]));
    let before = Snapshot::of(shell.pid());
    let tracing = Tracing::start(&["funccount", "--follow", "-p", &shell.pid().to_string(), "libc:read"]);
    shell.send("go");
    let pid = await_initialiser(&file);
    let report = tracing.stop();
    assert!(report.0.stderr.contains("has not come to its first instruction"), "{}", report.0);
    let file = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).expect("it goes on");
    assert!(!file("maps").contains("sidestep") && file("status").contains("TracerPid:\t0\n"), "it is not let go");
    before.assert_same_code(&Snapshot::of(shell.pid()));
    assert_eq!(shell.ask("end"), 7);
}

/// It was waited for its end alone, whatever the user wanted.
#[test]
fn a_second_signal_did_not_reach_the_wait_for_what_a_command_has_executed() {
    let script = "trap '' INT; echo on; exec sleep 1000 > /dev/null 2>&1";
    let tracing = Tracing::launch(&["funccount", "bash:echo_builtin", "--", "bash", "-c", script]);
    let child = || {
        let listed = run(Command::new("pgrep").args(["-P", &tracing.pid().to_string()]), LIMIT).stdout;
        listed.trim().parse::<i32>().ok()
    };
    let comm = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let sleeps = || child().is_some_and(|pid| comm(pid) == "sleep\n");
    assert!(eventually(LIMIT, sleeps), "nothing was executed");
    let pid = child().expect("it sleeps");
    for _ in 0..2 {
        tracing.signal(libc::SIGINT);
        // Two that follow at once are one wish.
        std::thread::sleep(Duration::from_millis(150));
    }
    let output = tracing.output();
    assert_eq!(output.code(), 128 + libc::SIGINT, "{output}");
    kill(pid, libc::SIGKILL);
}

/// Somebody keeps the tool from its detach, and the user has no time: the results were printed all
/// the same, after ten seconds.
#[test]
fn a_second_signal_while_it_detaches_did_not_give_up_the_results() {
    if !have(&["flock"]) {
        return;
    }
    let Some((mut program, pid, before)) = start("counts") else { return };
    let tracing = Tracing::start(&["funccount", "-d", "1", "-p", &pid, "leaf"]);
    program.ask("work 11");
    let memory = format!("/proc/{pid}/mem");
    let mut lock = Running::start(Command::new("flock").args([&memory, "sleep", "1000"]));
    let begins = || run(&mut sidestep(&["status", "-p", &pid]), LIMIT).stdout.contains("leaf");
    assert!(begins() && lock.is_running());
    // Its second is over.
    std::thread::sleep(Duration::from_millis(1500));
    for _ in 0..2 {
        tracing.signal(libc::SIGINT);
        std::thread::sleep(Duration::from_millis(150));
    }
    let output = tracing.output();
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stderr.contains("stays probed, since another controller is changing its probes"), "{output}");
    assert!(!output.stdout.contains("FUNC"), "{output}");
    drop(lock);
    run(&mut sidestep(&["detach", "-p", &pid]), LIMIT).ok();
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("work 10"), 145);
    program.finish().ok();
}

/// A thread that a signal handler keeps inside a probe.
#[test]
pub fn a_detach_that_was_given_up_kept_every_later_session_from_working() {
    let Some((mut program, pid, _)) = start("stuck") else { return };
    program.ask("work 1");
    let script = "u:stuck:slow { $i = 0; while ($i < 900) { $i++ } @ = count() }";
    let tracing = Tracing::start(&["-f", "json", "-p", &pid, "-e", script]);
    assert_eq!(program.ask("stick 0"), 1);
    tracing.signal(libc::SIGINT);
    let output = tracing.output();
    assert_eq!(output.code(), 1, "{output}");
    let said = ["runs unprobed again", "is in a signal handler that has interrupted a probe", "sidestep detach -p"];
    assert!(said.iter().all(|words| output.stderr.contains(words)), "{output}");
    // It takes some memory.
    let bytes = output.stderr.split_once(" but ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(bytes.is_some_and(|bytes| (1..8 << 20).contains(&bytes)), "{output}");
    for args in [&["funccount"][..], &["funclatency"]] {
        let tracing = Tracing::start(&[args, &["-p", &pid, "leaf"]].concat());
        assert_eq!(program.ask("work 10"), 145);
        let report = tracing.stop();
        let counted = if args[0] == "funclatency" { report.latencies() } else { report.count("leaf") };
        assert_eq!(counted, 10, "{}", report.0);
    }
    assert_eq!(program.ask("leave 0"), 0);
    run(&mut sidestep(&["detach", "-p", &pid]), LIMIT).ok();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    assert!(!maps.contains("sidestep"), "{maps}");
    assert_eq!(program.ask("work 10"), 145);
    program.finish().ok();
}
