//! Work on a process that goes on running.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sidestep_sys::{Process, StopError};

use crate::target::{Build, Target, kill};

const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(20);

#[test]
fn each_of_sixty_four_threads_is_stopped_by_itself() {
    let target = Target::start(Build::Worker, &["sums", "64"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..20 {
        let mut seen = BTreeSet::new();
        let each = process.each_thread(false, |stopped| {
            assert_eq!(stopped.threads().len(), 1);
            let thread = &stopped.threads()[0];
            assert!(stopped.maps().unwrap().iter().any(|m| m.exec && m.contains(thread.regs.ip())));
            assert!(seen.insert(thread.tid), "twice");
            Ok::<(), StopError>(())
        });
        assert!(each.unwrap() > Duration::ZERO);
        assert!(seen.iter().eq(&process.threads().unwrap()));
    }
    target.finish_well();
}

#[test]
fn those_that_wait_in_the_kernel_are_left_out() {
    let target = Target::start(Build::Worker, &["nanosleep"]);
    let process = Process::open(target.pid()).unwrap();
    target.await_state('S');
    let mut seen = 0;
    let look = |_: &mut _| {
        seen += 1;
        Ok::<(), StopError>(())
    };
    assert_eq!(process.each_thread(true, look).unwrap(), Duration::ZERO);
    assert_eq!(seen, 0);
}

#[test]
fn a_process_that_ends_has_no_threads_left() {
    let target = Target::start(Build::Worker, &["sums", "4"]);
    let process = Process::open(target.pid()).unwrap();
    kill(target.pid(), "KILL");
    while process.is_alive() {
        std::thread::yield_now();
    }
    let each = process.each_thread(false, |_| Ok::<(), StopError>(()));
    assert!(matches!(each, Err(StopError::Exited { .. })), "{each:?}");
}

/// Whoever asks has to wait until the one before is done, or dead.
#[test]
fn one_at_a_time_may_change_a_process() {
    let target = Target::start(Build::Worker, &["sums", "1"]);
    let pid = target.pid();
    let inside = AtomicU32::new(0);
    let take_turns = || {
        let process = Process::look_at(pid).unwrap();
        for _ in 0..30 {
            let turn = process.turn(LONG).unwrap().expect("the others are quick");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
            std::thread::sleep(Duration::from_micros(300));
            inside.fetch_sub(1, Ordering::SeqCst);
            drop(turn);
        }
    };
    std::thread::scope(|scope| (0..3).for_each(|_| _ = scope.spawn(take_turns)));
    let process = Process::open(pid).unwrap();
    let turn = process.turn(SHORT).unwrap();
    assert!(turn.is_some() && process.turn(SHORT).unwrap().is_none());
    drop(turn);
    assert!(process.turn(SHORT).unwrap().is_some());
    target.finish_well();
}
