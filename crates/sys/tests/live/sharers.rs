//! Processes that execute in the memory of another one.

use std::collections::BTreeSet;

use sidestep_sys::{Process, StopError, Stopped};

use crate::target::{Build, Target, kill};

/// The state letter of a process.
fn state(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

/// It went on while all threads stood, in the code that was changed.
#[test]
fn a_process_on_the_same_memory_stands_too() {
    let target = Target::start(Build::Worker, &["beside"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..50 {
        let mut stopped = process.stop().unwrap();
        let [other] = stopped.others()[..] else { panic!("{:?}", stopped.others()) };
        assert_eq!(stopped.threads().len(), 3);
        assert!((0..20).all(|_| state(other) == 't'));
        // It has descriptors, signals and limits of its own: calls are made by the one that is
        // meant.
        assert_eq!(stopped.call(libc::SYS_getpid, [0; 6]).unwrap(), target.pid() as u64);
        stopped.make_calls_in(other).unwrap();
        assert_eq!(stopped.call(libc::SYS_getpid, [0; 6]).unwrap(), other as u64);
        stopped.resume().unwrap();
        assert!(matches!(state(other), 'R' | 'S'));
    }
    target.finish_well();
}

#[test]
fn each_thread_of_a_process_on_the_same_memory_is_stopped() {
    let target = Target::start(Build::Worker, &["beside"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..50 {
        let mut seen = BTreeSet::new();
        let look = |stopped: &mut Stopped| {
            seen.extend(stopped.threads().iter().map(|thread| (thread.pid, thread.tid)));
            Ok::<(), StopError>(())
        };
        process.each_thread(false, look).unwrap();
        let others = seen.iter().filter(|(pid, tid)| *pid != target.pid() && pid == tid).count();
        assert_eq!((seen.len(), others), (3, 1), "{seen:?}");
    }
    target.finish_well();
}

/// Those that are made while threads are told to stop are traced for a moment, whatever memory they
/// have, and go on.
#[test]
fn processes_that_are_made_all_the_time_go_on() {
    let target = Target::start(Build::Worker, &["processes"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..500 {
        let stopped = process.stop().unwrap();
        assert_eq!(stopped.threads().iter().filter(|thread| thread.pid == target.pid()).count(), 3);
        for other in stopped.others() {
            assert_eq!(state(other), 't');
        }
        stopped.resume().unwrap();
    }
    target.finish_well();
}

#[test]
fn a_process_that_has_ended_is_none_on_the_same_memory() {
    let target = Target::start(Build::Worker, &["beside"]);
    let process = Process::open(target.pid()).unwrap();
    let others = process.stop().unwrap().others();
    kill(others[0], "KILL");
    while state(others[0]) != 'Z' {
        std::thread::yield_now();
    }
    assert_eq!(process.stop().unwrap().others(), []);
}
