//! Targets that may map no more memory, or whose threads cannot be told apart: refused in one line,
//! and left as they were.

use std::fs;
use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, eventually, run};
use sidestep_tests::tool::{Tracing, during, is_32_bit, sidestep, with_command};
use sidestep_tests::{Snapshot, target};

use super::counts::work;

/// Bytes that a process may map yet, where it may map little.
const LITTLE: u64 = 256 << 20;
/// The same where it is followed: there is room for each of a hundred children.
const LITTLE_FOLLOWED: u64 = 1 << 30;

/// Lets a process map so many bytes more, or as many as it likes.
fn allow(pid: i32, more: Option<u64>) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.strip_suffix(" kB")?.trim().parse().ok());
    let now: u64 = size.expect("a size");
    let most = more.map_or("unlimited".to_owned(), |more| (now * 1024 + more).to_string());
    run(Command::new("prlimit").args([format!("--pid={pid}"), format!("--as={most}:unlimited")]), LIMIT).ok();
}

/// Room was looked for at one moment only, and the attach was refused.
#[test]
pub fn a_main_thread_at_the_end_of_its_stack_was_a_reason_to_refuse() {
    let Some(path) = target("deepest") else { return };
    // Each from the beginning: the frame of a signal would leave more of a stack.
    for _ in 0..5 {
        let mut program = Program::start(&mut Command::new(&path));
        let pid = program.pid().to_string();
        let before = Snapshot::of(program.pid());
        run(&mut sidestep(&["funccount", "-d", "0.1", "-p", &pid, "leaf"]), LIMIT).ok();
        let rounds = program.ask("rounds 0");
        assert!(eventually(LIMIT, || program.ask("rounds 0") > rounds), "the main thread stands still");
        before.assert_same_code(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// With one page more each time, an attach fails at each of its mappings, until it does not.
#[test]
pub fn an_attach_without_memory_is_refused_in_one_line() {
    let Some(path) = target("displaced") else { return };
    for flags in [&[][..], &["--no-optimize"]] {
        let mut program = Program::start(&mut Command::new(&path));
        let pid = program.pid().to_string();
        let before = Snapshot::of(program.pid());
        let args = [&["funccount"], flags, &["-p", &pid, "do_*"]].concat();
        let mut refused = |more: u64| {
            allow(program.pid(), Some(more));
            let mut tracing = Tracing::launch(&args);
            let begins = tracing.wait_for_heading();
            assert_eq!(program.ask("repair 8"), 8, "{flags:?} with {more}");
            if begins {
                tracing.signal(libc::SIGINT);
            }
            let output = tracing.output();
            if !begins {
                assert_eq!((output.code(), output.stderr.lines().count()), (1, 1), "{output}");
                assert!(output.stderr.contains("raise its limit (ulimit -v"), "{output}");
            }
            before.assert_same(&Snapshot::of(program.pid()));
            !begins
        };
        let (mut least, mut most) = (0, 1 << 30);
        assert!(refused(least) && !refused(most));
        while most - least > 4096 {
            let middle = ((least + most) / 2) & !4095;
            *(if refused(middle) { &mut least } else { &mut most }) = middle;
        }
        for page in 1..24 {
            refused(least.saturating_sub(page * 4096));
        }
        allow(program.pid(), None);
        assert_eq!(program.ask("repair 8"), 8);
        program.finish().ok();
    }
}

/// A session took a gigabyte of address space for threads that were never there, four with rings:
/// daemons that are limited to 256 MiB, as those of dovecot are, could not be probed.
#[test]
pub fn a_process_with_little_address_space_could_not_be_probed() {
    let Some(path) = target("spawn") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    allow(program.pid(), Some(LITTLE));
    let pid = program.pid().to_string();
    let before = Snapshot::of(program.pid());
    let (report, answer) = during(&["funccount", "-p", &pid, "leaf"], || program.ask("work 1000"));
    assert_eq!(answer, work(1000));
    report.assert_count("leaf", 1000);
    let script = r#"u:spawn:leaf { @[arg0] = count(); printf("%d\n", arg0) } ur:spawn:leaf { @r = count() }"#;
    let (report, answer) = during(&["-f", "json", "-p", &pid, "-e", script], || program.ask("work 1000"));
    assert_eq!((answer, report.0.stdout.matches(r#""printf""#).count()), (work(1000), 1000));
    assert!(report.0.stdout.contains(r#"{"@r": 1000}"#), "{}", report.0);
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// The same for those that are followed.
#[test]
pub fn followed_processes_with_little_address_space_could_not_be_probed() {
    let Some(path) = target("spawn") else { return };
    let path = path.to_str().expect("UTF-8");
    let most = format!("--as={LITTLE_FOLLOWED}");
    let command = ["prlimit", &most, path, "exec", "50"];
    let script = format!("{path}:leaf");
    if !is_32_bit() {
        let (output, report) = with_command(&["funccount", "--follow", &script], &command);
        assert_eq!((output.code(), output.stdout), (3, format!("{}\n", work(50))), "{}", report.0);
        report.assert_count("leaf", 60);
    }
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    allow(program.pid(), Some(LITTLE_FOLLOWED));
    let tracing = Tracing::start(&["funccount", "--follow", "-p", &pid, "leaf"]);
    let forked: i64 = (0..5).map(|_| program.ask("fork 20")).sum();
    assert_eq!((forked, program.ask("exec 50")), (5 * 20, work(50)));
    assert_eq!(program.finish().code(), 3);
    tracing.end().assert_count("leaf", 5 * (20 * 20 + 20) + 60);
}

/// The controller has mapped its memory in the target, and had no descriptor left to open that
/// memory itself: nothing found the mapping again.
#[test]
pub fn an_attach_without_descriptors_left_its_memory_in_the_target() {
    let Some(path) = target("displaced") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let before = Snapshot::of(program.pid());
    let script = format!("u:{}:do_* {{ @ = count() }} interval:ms:20 {{ exit() }}", path.display());
    let tool = sidestep(&["-p", &program.pid().to_string(), "-e", &script]);
    let mut ends = [0, 0];
    for most in 4..32 {
        let mut limited = Command::new("prlimit");
        limited.arg(format!("--nofile={most}")).arg(tool.get_program()).args(tool.get_args());
        let output = run(&mut limited, LIMIT);
        if output.code() == 0 {
            ends[1] += 1;
        } else {
            ends[0] += 1;
            assert!(!output.stderr.contains("panicked"), "{most} descriptors: {output}");
        }
        before.assert_same(&Snapshot::of(program.pid()));
    }
    assert!(ends[0] > 3 && ends[1] > 3, "refused, attached: {ends:?}");
    assert_eq!(program.ask("repair 8"), 8);
    program.finish().ok();
}

/// Returns that cannot be watched for want of memory are missed, and nothing else.
#[test]
pub fn a_shadow_stack_that_cannot_grow_watches_what_it_can() {
    let Some(path) = target("counts") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    // Deeper than below: the stack cannot grow, either.
    let alone = program.ask("even 12000");
    let tracing = Tracing::start(&["funclatency", "-p", &pid, "even"]);
    allow(program.pid(), Some(0));
    assert_eq!(program.ask("even 6000"), alone);
    let report = tracing.stop();
    assert!((160..3000).contains(&report.histogram_sum()), "{}", report.0);
    assert_eq!(program.ask("even 6000"), alone);
    program.finish().ok();
}

/// Threads that share their thread pointer overwrote each other's counts, and nobody said so.
#[test]
pub fn threads_that_cannot_be_told_apart_are_refused_or_noticed() {
    let Some(path) = target("twins") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let probed = ["funccount", "-p", &pid, "leaf"];
    assert_eq!(program.ask("begin 7"), 7);
    let before = Snapshot::of(program.pid());
    let output = run(&mut sidestep(&probed), LIMIT);
    assert!(output.code() == 1 && output.stderr.contains("share a thread pointer"), "{output}");
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("end 7"), 7);
    // Another comes meanwhile.
    let tracing = Tracing::start(&probed);
    assert_eq!((program.ask("begin 7"), program.ask("work 100")), (7, 3 * 4950 + 100));
    let report = tracing.stop();
    assert!(report.0.stderr.contains("share a thread pointer"), "{}", report.0);
    assert_eq!(program.ask("end 7"), 7);
    // And where there is none, nothing is said.
    let (report, answer) = during(&probed, || program.ask("work 100"));
    assert_eq!(answer, 3 * 4950 + 100);
    report.assert_count("leaf", 100);
    assert!(!report.0.stderr.contains("share"), "{}", report.0);
    program.finish().ok();
}
