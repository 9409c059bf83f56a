//! The controller is killed at any moment.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sidestep_sys::Process;

use crate::target::{Build, Target};

/// Starts the example that stops the target and makes calls in a loop.
fn hammer(pid: i32, die: &[&str]) -> Child {
    let here = std::env::current_exe().unwrap();
    let examples = here.parent().unwrap().parent().unwrap().join("examples");
    let mut child =
        Command::new(examples.join("hammer")).arg(pid.to_string()).args(die).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// Kills it at moments spread over some milliseconds, in which it has gone through hundreds of
/// calls.
fn survives_kills(target: &Target, kills: u64) {
    survives_kills_of(target, &[], kills);
}

fn survives_kills_of(target: &Target, how: &[&str], kills: u64) {
    for i in 0..kills {
        let mut controller = hammer(target.pid(), how);
        std::thread::sleep(Duration::from_micros(i * 7919 % 6000));
        controller.kill().unwrap();
        let status = controller.wait().unwrap();
        // Not ended by an error of its own.
        assert_eq!(status.code(), None, "{status}");
    }
}

/// Dies with the calling thread at the end of a remote call, so that it must come back through its
/// frame.
fn survives_death_in_a_call(target: &Target, times: usize) {
    for _ in 0..times {
        let status = hammer(target.pid(), &["die"]).wait().unwrap();
        assert_eq!(status.code(), None, "{status}");
    }
}

#[test]
fn threads_of_all_kinds_survive_kills_of_the_controller() {
    let target = Target::start(Build::Worker, &["mixed"]);
    survives_kills(&target, 100);
    survives_death_in_a_call(&target, 10);
    target.finish_well();
}

#[test]
fn threads_of_all_kinds_survive_kills_while_they_make_several_calls() {
    for kind in ["mixed", "one-sum", "one-nap"] {
        let target = Target::start(Build::Worker, &[kind]);
        survives_kills_of(&target, &["batch"], 30);
        target.finish_well();
    }
}

#[test]
fn a_computing_thread_survives() {
    let target = Target::start(Build::Worker, &["one-sum"]);
    survives_kills(&target, 40);
    survives_death_in_a_call(&target, 10);
    target.finish_well();
}

#[test]
fn a_thread_that_traps_survives() {
    let target = Target::start(Build::Worker, &["one-trap"]);
    survives_kills(&target, 200);
    survives_death_in_a_call(&target, 10);
    target.finish_well();
}

#[test]
fn a_sleeping_thread_survives() {
    let target = Target::start(Build::Worker, &["one-nap"]);
    survives_kills(&target, 40);
    survives_death_in_a_call(&target, 10);
    target.finish_well();
}

#[test]
fn vector_registers_survive() {
    // Busy threads and a main thread blocked in read, and no others.
    let target = Target::start(Build::Worker, &["vectors", "1"]);
    survives_kills(&target, 20);
    survives_death_in_a_call(&target, 5);
    target.finish_well();
}

#[cfg(target_pointer_width = "64")]
#[test]
fn go_survives() {
    let target = Target::start(Build::Go, &[]);
    survives_kills(&target, 20);
    survives_death_in_a_call(&target, 5);
    target.finish_well();
}

/// The first thread is on a goroutine's stack all the time, so nothing says how far its own stack
/// was used.
#[cfg(target_pointer_width = "64")]
#[test]
fn frames_of_dead_controllers_left_no_room_in_a_go_program() {
    let target = Target::start(Build::Go, &["first"]);
    survives_death_in_a_call(&target, 20);
    survives_kills(&target, 20);
    target.finish_well();
}

#[test]
fn a_program_without_any_library_survives() {
    let target = Target::start(Build::Tiny, &[]);
    survives_death_in_a_call(&target, 5);
    survives_kills(&target, 20);
    // And the next controller copes with what the dead ones left.
    let process = Process::open(target.pid()).unwrap();
    let pid = process.stop().unwrap().call(libc::SYS_getpid, [0; 6]).unwrap();
    assert_eq!(pid, target.pid() as u64);
    assert_eq!(target.finish(), (String::new(), Some(0)));
}
