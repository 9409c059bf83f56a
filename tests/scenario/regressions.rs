//! What went wrong once, named after it.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use sidestep_tests::build::target_dir;
use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, during, sidestep};
use sidestep_tests::{Snapshot, skip, target};

use super::bpf::{Mode, variable, with_object};
use super::counts::work;

/// The child of `posix_spawn` gives every signal its default action, in the memory of its parent.
#[test]
pub fn spawned_child_took_the_parents_sigtrap_handler_away() {
    let Some(path) = target("trap") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    program.ask("install 0");
    let (report, own) = during(&["funccount", "--no-optimize", "-p", &pid, "leaf"], || {
        assert_eq!(program.ask("spawn 3"), 3);
        program.ask("mixed 100")
    });
    assert_eq!(own, 200, "{}", report.0);
    assert_eq!(program.ask("mixed 10"), 20, "its handler is gone after the detach");
    program.finish().ok();
}

/// The stack of a thread that stands at its deepest point has little room below.
#[test]
pub fn no_stack_was_left_to_attach_with() {
    let Some(path) = target("deep") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let (report, answer) = during(&["funccount", "-p", &pid, "leaf"], || program.ask("work 100"));
    assert_eq!(answer, work(100));
    report.assert_count("leaf", 100);
    program.finish().ok();
}

/// A frame of a signal stays on the stack when its handler has returned. A thread that waits in a
/// function with a large buffer seemed to be in that handler for as long as it waits, and memory
/// was left behind.
#[test]
pub fn a_frame_of_a_fault_that_was_long_over_kept_memory() {
    let Some(path) = target("stale") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let before = Snapshot::of(program.pid());
    let script = "u:stale:leaf { @ = count(); if (*(uint32*)0x10008 == 7) { @never = count() } }";
    for mode in [&["--no-optimize"][..], &[]] {
        let args = [mode, &["-f", "json", "-p", &pid, "-e", script]].concat();
        let (report, answer) = during(&args, || program.ask("below 10"));
        assert_eq!(answer, work(10));
        assert!(report.0.stdout.contains(r#"{"@": 10}"#), "{}", report.0);
        assert!(!report.0.stderr.contains("stay there"), "{}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
}

/// The frame of a handler without information about its signal lies where a frame of ours was a
/// moment before, and the kernel writes only a part of it anew. On x86 its address is in a detour.
#[test]
pub fn a_frame_where_one_of_ours_had_been_was_taken_for_ours() {
    let Some(path) = target("stale") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    program.ask("alternate 0");
    for mode in [&["--no-optimize"][..], &[]] {
        for on_alternate in ["0", "1"] {
            let wait = format!("wait {on_alternate}");
            assert_eq!(program.ask(&wait), 1);
            let before = Snapshot::of(program.pid());
            assert_eq!(program.ask("end it"), 10);

            let script = "u:stale:sent { @ = count() }";
            let args = [mode, &["-f", "json", "-p", &pid, "-e", script]].concat();
            let (report, in_handler) = during(&args, || program.ask(&wait));
            assert_eq!(in_handler, 1);
            assert!(report.0.stdout.contains(r#"{"@": 1}"#), "{}", report.0);
            assert!(!report.0.stderr.contains("stay there"), "{}", report.0);
            before.assert_same(&Snapshot::of(program.pid()));
            assert_eq!(program.ask("end it"), 10);
        }
    }
    program.finish().ok();
}

/// The number of a system call may be set by the first instruction of a probed function. The guard
/// has to run behind the probe, right before the call.
#[test]
pub fn guard_of_a_system_call_ran_at_the_entry_of_its_function() {
    let Some(path) = target("trap") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let args = ["funccount", "--no-optimize", "-p", &pid, "-r", "libc:^(syscall|getppid)$"];
    let (report, answer) = during(&args, || program.ask("direct 100"));
    assert_eq!(answer, 100, "{}", report.0);
    report.assert_count("syscall", 200);
    report.assert_count("getppid", 100);
    program.finish().ok();
}

/// A trap stood right in front of padding that led to the detour of another site. A thread that had
/// just executed the trap was taken for one that had jumped there, and went on in the middle of an
/// instruction.
#[test]
pub fn a_trap_in_front_of_an_island_was_taken_for_a_jump_to_it() {
    let Some(path) = target("load") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    assert_eq!(program.ask("start 0"), 0);
    let before = Snapshot::of(program.pid());
    // The padding behind `leaf` is taken by the short jumps of `tree`; so its `ret` is a trap.
    let script = "u:load:tree,u:load:tree+4,u:load:tree+6,u:load:leaf+5 { @ = count() } interval:ms:50 { exit() }";
    for _ in 0..10 {
        run(&mut sidestep(&["-p", &pid, "-e", script]), LIMIT).ok();
        assert!(program.is_running(), "killed by the detach");
    }
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0);
    program.finish().ok();
}

/// Sites were written in order of address: a controller that died meanwhile left traps without the
/// guards that keep SIGTRAP deliverable, and the next program code that blocked all signals was its
/// last.
#[test]
pub fn controller_killed_while_it_wrote_left_traps_without_guards() {
    let Some(path) = target("trap") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let stopped = |program: &Program| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('t')
    };
    for round in 0..12u32 {
        let tracing = Tracing::launch(&["funccount", "--no-optimize", "-p", &pid, "libc:*"]);
        // From the moment at which the threads are stopped, some way into the work on them.
        for _ in 0..20_000 {
            if stopped(&program) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_micros(500));
        }
        std::thread::sleep(std::time::Duration::from_millis(u64::from(round) * 5));
        tracing.kill();
        assert_eq!(program.ask("direct 20"), 20, "round {round}");
        assert_eq!(program.ask("spawn 1"), 1, "round {round}");
    }
    program.finish().ok();
}

/// The unwinder of a stripped program that brings its own cannot be hooked: it met the trampoline
/// and aborted.
#[test]
fn unwinder_without_a_name_met_a_replaced_return_address() {
    for name in ["comparator", "comparator-stripped"] {
        let Some(program) = target(name) else { return };
        let program = program.to_str().expect("a path in UTF-8");
        let output = run(&mut sidestep(&["funclatency", "libc:qsort", "--", program]), LIMIT);
        assert_eq!(output.code(), 3, "{output}");
        assert!(output.stdout.contains("100\n"), "{output}");
        let count = run(&mut sidestep(&["funccount", "libc:qsort", "--", program]), LIMIT);
        assert_eq!(count.code(), 3, "{count}");
    }
}

/// There is no guard page below the stack of a goroutine: what did not fit went into somebody
/// else's memory.
#[test]
fn program_ran_over_the_end_of_a_goroutines_stack() {
    let Some(path) = target("grow") else { return };
    let mut program = Program::start(&mut Command::new(path));
    for (mode, flags) in [(Mode::User, &[][..]), (Mode::User, &["--interpret"]), (Mode::Trap, &[])] {
        let found = with_object(mode, "room.bpf.o", flags, &mut program, |program| program.ask("deep 2000"));
        let Some((report, answer)) = found else { return };
        assert_eq!(answer, 10, "{}", report.0);
        let missed: i64 = report.0.stderr.lines().filter_map(missed_hits).sum();
        // What finds no room runs on a stack of the thread's own.
        assert_eq!((variable(&report, "runs"), missed), (10 * 2001, 0), "{mode:?} {flags:?}: {}", report.0);
    }
    program.finish().ok();
}

/// The number in `Missed N hits of FUNCTION`.
fn missed_hits(line: &str) -> Option<i64> {
    line.strip_prefix("Missed ")?.split_once(" hits of ")?.0.parse().ok()
}

/// In a container, `/proc/PID/root` reads as `/`, so what follows was looked for on the host.
#[test]
fn a_path_through_the_root_of_a_container_was_one_of_the_host() {
    let Some(counts) = target("counts-static") else { return };
    let root = target_dir().join(format!("test-targets/pivot.{}", std::process::id()));
    std::fs::create_dir_all(root.join("old")).unwrap();
    std::fs::copy(counts, root.join("counts")).unwrap();
    let pivot = "mount --bind . . && cd \"$PWD\" && pivot_root . old && exec /counts \"$@\"";
    let start = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", pivot, "sh"]).args(args).current_dir(&root);
        command
    };
    if run(&mut start(&["work", "1"]), LIMIT).code() == 0 {
        let mut program = Program::start(&mut start(&[]));
        let pid = program.pid().to_string();
        let pattern = format!("/proc/{pid}/root/counts:leaf");
        let tracing = Tracing::start(&["funccount", "-p", &pid, &pattern]);
        program.ask("work 3");
        assert_eq!(tracing.stop().counts()["leaf"], 3);
        let listed = run(&mut sidestep(&["-l", &format!("uprobe:{pattern}")]), LIMIT).ok();
        assert_eq!(listed.stdout, format!("uprobe:{pattern}\n"));
        program.finish().ok();
    } else {
        skip("a mount namespace is not permitted: run as root");
    }
    let _ = std::fs::remove_dir_all(root);
}

/// The kernel names mapped files as seen from our root, not from that of a process in a chroot.
#[test]
fn nothing_was_found_in_a_chroot() {
    let Some(path) = target("counts-static") else { return };
    let root = target_dir().join(format!("test-targets/chroot.{}", std::process::id()));
    std::fs::create_dir_all(&root).unwrap();
    std::fs::copy(path, root.join("counts")).unwrap();
    let mut chroot = Command::new("chroot");
    let allowed = run(chroot.arg(&root).args(["/counts", "work", "1"]), LIMIT).code() == 0;
    if allowed {
        let mut program = Program::start(Command::new("chroot").arg(&root).arg("/counts"));
        let pid = program.pid().to_string();
        let (report, answer) = during(&["funccount", "-p", &pid, "leaf"], || program.ask("work 100"));
        assert_eq!(answer, work(100));
        report.assert_count("leaf", 100);
        program.finish().ok();
    } else {
        skip("chroot is not permitted: run as root");
    }
    std::fs::remove_dir_all(&root).unwrap();
}

/// Runs commands again and again, each list of them beside the others, with the process, and
/// `funccount` with the functions of the first library, while two libraries take turns at one
/// place.
fn while_libraries_take_turns(lists: &[&[&[&str]]]) {
    let (Some(path), Some(first), Some(_)) = (target("swap"), target("libswapped1.so"), target("libswapped2.so"))
    else {
        return;
    };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let pattern = format!("{}:f*", first.display());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for list in lists {
            scope.spawn(|| {
                for command in list.iter().cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                    let named = if command[0] == "funccount" { vec![&pattern[..]] } else { Vec::new() };
                    // Whether the library is there, and stays, is a matter of chance.
                    run(&mut sidestep(&[*command, &["-p", &pid], &named].concat()), LIMIT);
                }
            });
        }
        for _ in 0..5 {
            let wrong = program.ask("swap 2000");
            if wrong > 0 {
                over.store(true, Ordering::Relaxed);
            }
            // Negative: memory of ours was for a moment where the library had been.
            assert!(wrong <= 0, "{wrong} wrong results");
        }
        over.store(true, Ordering::Relaxed);
    });
    program.finish().ok();
}

/// Sites were compared with the file while the program ran, and written later: into another library
/// that was there by then.
#[test]
fn a_library_that_took_the_place_of_another_was_written_to() {
    while_libraries_take_turns(&[&[&["funccount", "-d", "0.01"]]]);
}

/// The journal named the file that was mapped when the work began, not the one that was there when
/// the sites were written: a probe that was disabled came back in the other library.
#[test]
fn a_disabled_probe_was_enabled_in_the_library_that_took_the_place_of_its_own() {
    while_libraries_take_turns(&[&[&["funccount", "--no-optimize", "-d", "1"]], &[&["disable"], &["enable"]]]);
}

/// A part of the main program that is mapped far away was taken for a part of its image, from which
/// no memory reaches all of it (node).
#[test]
pub fn code_mapped_twice_left_no_room_for_any_detour() {
    let Some(path) = target("copied") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let (report, answer) = during(&["funccount", "-p", &pid, "leaf"], || program.ask("work 100"));
    assert_eq!(answer, work(100));
    report.assert_count("leaf", 100);
    // A probe in the image would not see the copy's hits.
    let output = run(&mut sidestep(&["funccount", "-p", &pid, "copied:copied"]), LIMIT);
    assert!(output.code() == 1 && output.stderr.contains("has mapped this code a second time"), "{output}");
    assert_eq!(program.ask("elsewhere 100"), work(100));
    program.finish().ok();
}

/// Beside other work, a script with an interval of 20 ms counted 4 rounds in 110 ms: the fifth and
/// the end were over when the tool came to run, and the fifth was left out.
#[test]
fn an_interval_that_was_late_was_left_out() {
    let tracing = Tracing::launch(&["-q", "-e", "interval:ms:100 { @n++ } interval:ms:1000 { exit() }"]);
    // However long it stands still, and when.
    std::thread::sleep(std::time::Duration::from_millis(300));
    tracing.signal(libc::SIGSTOP);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    tracing.signal(libc::SIGCONT);
    let output = tracing.output().ok();
    assert!(output.stdout.contains("@n: 10\n"), "{output}");
}
