//! Programs whose threads come and go all the time.

use std::collections::BTreeSet;
use std::time::Duration;

use sidestep_sys::{Process, StopError, Stopped};

use crate::target::{Build, Target, kill};

/// Does any thread of the process run? As the kernel says, time and again: one that was not found
/// is seen sooner or later, as it makes others.
fn runs(stopped: &Stopped) -> Vec<(i32, char)> {
    let pid = stopped.process().pid();
    let mut running = Vec::new();
    for _ in 0..20 {
        for tid in stopped.process().threads().unwrap() {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            running.extend(state.filter(|state| !matches!(state, 't' | 'Z')).map(|state| (tid, state)));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    running
}

/// Has a thread not begun to end?
fn runs_or_waits(pid: i32, tid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn nobody_runs_while_it_stands(args: &[&str], stops: usize) {
    let target = Target::start(Build::Worker, args);
    let process = Process::open(target.pid()).unwrap();
    let mut most = 0;
    for _ in 0..stops {
        let stopped = process.stop().unwrap();
        assert_eq!(runs(&stopped), []);
        most = most.max(stopped.threads().len());
        stopped.resume().unwrap();
    }
    assert!(most > 2, "{most} threads at most");
    target.finish_well();
}

#[test]
fn threads_that_make_threads_before_they_stop() {
    nobody_runs_while_it_stands(&["chains", "24"], 200);
}

/// A pass over the list of threads ended where one of them did.
#[test]
fn a_thread_behind_others_that_ended_was_missed() {
    nobody_runs_while_it_stands(&["generations"], 1000);
}

#[test]
fn each_thread_of_a_program_that_makes_them_all_the_time_is_stopped() {
    let target = Target::start(Build::Worker, &["chains", "24"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..50 {
        let mut seen = 0;
        let look = |stopped: &mut Stopped| {
            seen += stopped.threads().len();
            Ok::<(), StopError>(())
        };
        process.each_thread(false, look).unwrap();
        assert!(seen > 0);
    }
    target.finish_well();
}

/// One that lived all the time was missed where others ended before it in the list.
#[test]
fn each_thread_that_stays_is_seen_while_others_end() {
    let target = Target::start(Build::Worker, &["generations"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..2000 {
        let before = process.threads().unwrap();
        let mut seen = BTreeSet::new();
        let look = |stopped: &mut Stopped| {
            seen.extend(stopped.threads().iter().map(|thread| thread.tid));
            Ok::<(), StopError>(())
        };
        process.each_thread(false, look).unwrap();
        let lives = |tid: &i32| runs_or_waits(target.pid(), *tid);
        let missed: Vec<i32> = before.into_iter().filter(lives).filter(|tid| !seen.contains(tid)).collect();
        assert_eq!(missed, []);
    }
    target.finish_well();
}

/// The end of the first thread is told to nobody as long as others run.
#[test]
fn a_process_whose_first_thread_has_ended_stops() {
    let target = Target::start(Build::Worker, &["leaderless"]);
    let process = Process::open(target.pid()).unwrap();
    target.await_state('S');
    kill(target.pid(), "USR1");
    target.await_state('Z');
    for _ in 0..20 {
        let stopped = process.stop().unwrap();
        assert_eq!(stopped.threads().len(), 1);
        assert_ne!(stopped.threads()[0].tid, target.pid());
        stopped.resume().unwrap();
    }
    kill(target.pid(), "KILL");
    assert_eq!(target.finish().1, None);
}
