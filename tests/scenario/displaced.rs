//! Programs that handle the faults of their instructions by address, while these instructions are
//! displaced.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sidestep_tests::build::installed;
use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, during, is_32_bit, sidestep, use_32_bit, with_command};
use sidestep_tests::{Snapshot, skip, target};

/// Everything that ends well. The answer is the number.
const COMMANDS: [&str; 9] =
    ["jump 8", "skip 8", "repair 8", "plain 8", "once 8", "watch 8", "unwind 8", "threads 8", "fork 8"];
const KINDS: [&[&str]; 2] = [&[], &["--no-optimize"]];

/// In the order of `sites` in displaced.c. One is of 64-bit programs only.
fn sites() -> i64 {
    if is_32_bit() { 12 } else { 13 }
}

fn program(name: &str) -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target(name)?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

fn count<'a>(flags: &[&'a str], pid: &'a str) -> Vec<&'a str> {
    [&["funccount"], flags, &["-p", pid, "do_*"]].concat()
}

#[track_caller]
fn ask_all(program: &mut Program, when: &str) {
    for command in COMMANDS {
        assert_eq!(program.ask(command), 8, "{command} {when}");
    }
}

fn every_answer_of(name: &str) {
    for flags in KINDS {
        let Some((mut program, pid)) = program(name) else { return };
        ask_all(&mut program, "without probes");
        let before = Snapshot::of(program.pid());
        let (report, ()) = during(&count(flags, &pid), || ask_all(&mut program, &format!("{flags:?}")));
        assert!(report.count("do_icebreakpoint") > 0, "{}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
        ask_all(&mut program, "after the detach");
        program.finish().ok();
    }
}

#[test]
pub fn every_answer_is_the_same_with_and_without_probes() {
    every_answer_of("displaced");
}

#[test]
pub fn every_answer_of_a_static_program_is_the_same() {
    every_answer_of("displaced-static");
}

#[test]
pub fn every_answer_of_a_program_with_musl_is_the_same() {
    every_answer_of("displaced-musl");
}

/// An instruction that is executed once more is a hit once more, if it is the first of its site.
#[test]
pub fn a_retry_is_a_hit_where_the_probe_is() {
    for flags in KINDS {
        let Some((mut program, pid)) = program("displaced") else { return };
        let (report, answer) = during(&count(flags, &pid), || program.ask("repair 20"));
        assert_eq!(answer, 20);
        for (function, hits) in [("do_load", 40), ("do_store_long", 40), ("do_load_inside", 20), ("do_divide", 20)] {
            report.assert_count(function, hits);
        }
        let (report, answer) = during(&count(flags, &pid), || program.ask("jump 20"));
        assert_eq!(answer, 20);
        for function in ["do_load", "do_load_inside", "do_divide", "do_undefined", "do_breakpoint", "do_push_elsewhere"]
        {
            report.assert_count(function, 20);
        }
        program.finish().ok();
    }
}

#[test]
pub fn handlers_from_before_the_attach_and_from_meanwhile_stay() {
    for flags in KINDS {
        let Some((mut program, pid)) = program("displaced") else { return };
        program.ask("leave 0");
        let (_, answer) = during(&count(flags, &pid), || program.ask("use 9"));
        assert_eq!((answer, program.ask("use 9")), (9, 9), "{flags:?}");
        let (_, answer) = during(&count(flags, &pid), || {
            program.ask("jump 1");
            program.ask("leave 0");
            program.ask("use 9")
        });
        assert_eq!((answer, program.ask("use 9")), (9, 9), "{flags:?}");
        program.finish().ok();
    }
}

/// Attached and detached at any moment: with an original address on the handler's frame, or a
/// signal under way.
#[test]
pub fn faults_go_on_while_probes_come_and_go() {
    for flags in KINDS {
        let Some((mut program, pid)) = program("displaced") else { return };
        for command in ["repair 20000", "skip 20000", "jump 20000", "threads 4000"] {
            program.send(command);
            for _ in 0..6 {
                Tracing::start(&count(flags, &pid)).stop();
            }
            let n = command.rsplit(' ').next().and_then(|n| n.parse().ok());
            assert_eq!(Some(program.answer()), n, "{command} {flags:?}");
        }
        program.finish().ok();
    }
}

/// Switched while a handler looks at where its fault was: that is the original all the time.
#[test]
pub fn a_handler_sees_the_original_while_its_probe_is_switched() {
    for flags in [&[][..], &["--live"], &["--no-optimize"]] {
        let Some((mut program, pid)) = program("displaced") else { return };
        let before = Snapshot::of(program.pid());
        let tracing = Tracing::start(&count(flags, &pid));
        let (done, short) = (AtomicBool::new(false), is_32_bit());
        let switched = std::thread::scope(|scope| {
            let switching = scope.spawn(|| {
                if short {
                    use_32_bit();
                }
                let (begin, mut times) = (Instant::now(), 0);
                while !done.load(Ordering::Relaxed) && begin.elapsed() < LIMIT {
                    for command in ["disable", "enable"] {
                        run(&mut sidestep(&[command, "-p", &pid]), LIMIT).ok();
                    }
                    times += 1;
                }
                times
            });
            let answer = program.ask("slow 60");
            done.store(true, Ordering::Relaxed);
            assert_eq!(answer, 60, "{flags:?}");
            switching.join().expect("it switches")
        });
        assert!(switched > 3, "{switched}");
        tracing.stop();
        before.assert_same(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

#[test]
pub fn a_program_that_is_started_sees_its_own_addresses() {
    let Some(path) = target("displaced") else { return };
    for flags in KINDS {
        let (output, report) =
            with_command(&[&["funccount"], flags, &["do_*"]].concat(), &[path.to_str().unwrap(), "repair", "25"]);
        assert_eq!(output.stdout.trim(), "25", "{output}");
        report.assert_count("do_load_inside", 25);
    }
}

/// How a program ended: signal, whether there is a core file, and the instruction pointer in it,
/// from the one that failed.
type Death = (Option<i32>, bool, Option<i64>);

fn death(kind: i64, flags: Option<&[&str]>) -> Option<Death> {
    let dir = std::env::temp_dir().join(format!("sidestep-displaced-{}-{kind}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let mut program = Program::start(Command::new(target("displaced")?).current_dir(&dir));
    let at = program.ask(&format!("where {}", kind % 100));
    let pid = program.pid().to_string();
    let tracing = flags.map(|flags| Tracing::start(&count(flags, &pid)));
    program.send(&format!("die {kind}"));
    let status = program.finish().status;
    if let Some(tracing) = tracing {
        tracing.end();
    }
    let core = fs::read_dir(&dir).unwrap().flatten().next().and_then(|file| core_ip(&file.path()));
    fs::remove_dir_all(&dir).unwrap();
    Some((status.signal(), status.core_dumped(), core.map(|ip| ip as i64 - at)))
}

/// The instruction pointer of the thread that died: of the first note of a core file, which is
/// `NT_PRSTATUS` (`struct elf_prstatus`: the registers of `struct user_regs_struct` at 112, `rip`
/// the 17th; of 32-bit programs at 72, `eip` the 13th).
fn core_ip(path: &Path) -> Option<u64> {
    const PT_NOTE: u64 = 4;
    /// Where and how wide words are.
    struct Layout {
        headers: usize,
        count: usize,
        header: usize,
        offset: usize,
        word: usize,
        ip: usize,
    }
    const WIDE: Layout = Layout { headers: 32, count: 56, header: 56, offset: 8, word: 8, ip: 112 + 16 * 8 };
    const SHORT: Layout = Layout { headers: 28, count: 44, header: 32, offset: 4, word: 4, ip: 72 + 12 * 4 };
    let core = fs::read(path).ok()?;
    let layout = if is_32_bit() { SHORT } else { WIDE };
    let number = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(core.get(at..at + len)?);
        Some(u64::from_le_bytes(bytes))
    };
    let (headers, count) = (number(layout.headers, layout.word)? as usize, number(layout.count, 2)? as usize);
    let note = (0..count).map(|i| headers + layout.header * i).find(|at| number(*at, 4) == Some(PT_NOTE))?;
    let at = number(note + layout.offset, layout.word)? as usize;
    let name = (number(at, 4)? as usize).next_multiple_of(4);
    number(at + 12 + name + layout.ip, layout.word)
}

#[test]
pub fn every_death_is_told_of_the_original() {
    // With no handler; in the handler, ignored, blocked.
    let kinds = (0..sites()).chain([101, 110, 200, 201, 204, 300, 301, 304, 307]);
    let mut cores = 0;
    for kind in kinds {
        let Some(alone) = death(kind, None) else { return };
        assert!(alone.0.is_some(), "kind {kind}");
        cores += u32::from(alone.2.is_some());
        for flags in KINDS {
            assert_eq!(death(kind, Some(flags)), Some(alone), "kind {kind} {flags:?}");
        }
    }
    if cores == 0 {
        skip("core files do not come to the directory of the program");
    }
}

/// Where the program could take a signal over behind our back: only what is there for its fault is
/// refused.
#[test]
pub fn without_guards_a_fault_shows_where_it_is() {
    let Some((mut program, pid)) = program("displaced-unguarded") else { return };
    let before = Snapshot::of(program.pid());
    let (report, answer) = during(&count(&["-v"], &pid), || program.ask("plain 8"));
    assert_eq!(answer, 8);
    let notes = &report.0.stderr;
    assert!(notes.contains("do_undefined_inside cannot be probed: an instruction there stops the program"), "{notes}");
    assert!(notes.contains("do_breakpoint cannot be probed"), "{notes}");
    assert!(notes.contains("the address of the fault is not its own: the system call at"), "{notes}");
    report.assert_count("do_load_inside", 8);
    before.assert_same(&Snapshot::of(program.pid()));
    ask_all(&mut program, "after the detach");
    program.finish().ok();
}

#[test]
pub fn go_recovers_from_faults_of_displaced_instructions() {
    for flags in KINDS {
        let Some((mut program, pid)) = program("recover") else { return };
        assert_eq!(program.ask("fail 5"), 5);
        for function in ["main.load", "main.far", "main.store"] {
            let args = [&["funccount"], flags, &["-p", &pid, function]].concat();
            let (report, answers) = during(&args, || (program.ask("fail 10"), program.ask("many 10")));
            assert_eq!(answers, (10, 200), "{function} {flags:?}");
            report.assert_count(function, 2 * 210);
        }
        program.finish().ok();
    }
}

/// What Go prints when nobody recovers, up to the stack of the goroutine.
#[test]
pub fn go_dies_with_the_same_words() {
    let last_words = |flags: Option<&[&str]>| {
        let (mut program, pid) = program("recover")?;
        let tracing = flags.map(|flags| Tracing::start(&[&["funccount"], flags, &["-p", &pid, "main.load"]].concat()));
        program.send("die 0");
        let output = program.finish();
        if let Some(tracing) = tracing {
            tracing.end();
        }
        Some((output.code(), output.stderr.lines().take(6).map(str::to_owned).collect::<Vec<_>>()))
    };
    let Some(alone) = last_words(None) else { return };
    assert!(alone.1.iter().any(|line| line.contains("SIGSEGV")), "{alone:?}");
    for flags in KINDS {
        assert_eq!(last_words(Some(flags)).as_ref(), Some(&alone), "{flags:?}");
    }
}

#[test]
pub fn java_turns_faults_into_exceptions() {
    if !installed("java") {
        return skip("no java");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/Nulls.java");
    let mut program = Program::start(Command::new("java").arg(source));
    let pid = program.pid().to_string();
    assert_eq!(program.ask("run 3000"), 6000);
    // Traps take SIGTRAP, reads of memory SIGSEGV, by which Java stops its threads and sees its
    // null pointers.
    let runs: [&[&str]; 4] = [
        &["funccount", "libc:mem*"],
        &["funccount", "libjvm:*Fetch*"],
        &["funccount", "--no-optimize", "libc:mem*"],
        &["trace", "libc:read \"%s\", arg1"],
    ];
    for run in runs {
        let args = [&run[..1], &["-p", &pid], &run[1..]].concat();
        let (_, answer) = during(&args, || program.ask("run 3000"));
        assert_eq!((answer, program.ask("run 3000")), (6000, 6000), "{run:?}");
    }
    program.finish().ok();
}
