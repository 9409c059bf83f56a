//! Probes of one's own process that are switched beside others: at one place, and inside each other's jumps. There can be one session
//! at a time, so the tests take turns.
#![allow(unsafe_code, reason = "handlers are promises")]

use std::arch::global_asm;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use sidestep::{Context, Options, Original, Probe, Registration, Session, State};

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

// An instruction of three bytes, one of two, one of three; no padding near that a short jump could lead to.
global_asm!(
    ".globl close_by",
    ".type close_by,@function",
    ".rept 40",
    "lea rdi, [rdi + 1]",
    ".endr",
    "ret",
    "close_by:",
    "lea eax, [rdi + 1]",
    "add eax, edi",
    "add eax, 3",
    "ret",
    ".size close_by, . - close_by",
    ".rept 40",
    "lea rdi, [rdi + 1]",
    ".endr",
    "ret",
);

unsafe extern "C" {
    safe fn close_by(number: u32) -> u32;
}

#[inline(never)]
extern "C" fn sum(a: u64, b: u64) -> u64 {
    black_box(a.wrapping_mul(3).wrapping_add(b))
}

extern "C" fn other_sum(a: u64, b: u64) -> u64 {
    a + b
}

fn call() -> u64 {
    black_box(sum as extern "C" fn(u64, u64) -> u64)(1, 2)
}

#[track_caller]
fn call_close_by() {
    assert_eq!(black_box(close_by as extern "C" fn(u32) -> u32)(5), 14);
}

type Trace = Arc<Mutex<String>>;

fn note(trace: &Trace, what: char) -> impl Fn(&mut Context) + Send + Sync + 'static {
    let trace = Arc::clone(trace);
    move |_: &mut Context| trace.lock().unwrap().push(what)
}

/// Handlers `a`, `b`, and `c` with `d` at the return, of one place.
fn several(session: &Session, trace: &Trace) -> Vec<Registration> {
    let at = || Probe::function(sum as *const ()).unwrap();
    // SAFETY: they change nothing.
    let probes = unsafe {
        [
            at().on_entry(note(trace, 'a')),
            at().on_entry(note(trace, 'b')),
            at().on_entry(note(trace, 'c')).on_return(note(trace, 'd')),
            at(),
        ]
    };
    session.register_all(probes).unwrap()
}

#[test]
fn each_of_several_at_a_place_is_switched_alone() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let trace = Trace::default();
    let ids = several(&session, &trace);
    let ran = || {
        assert_eq!(call(), 5);
        std::mem::take(&mut *trace.lock().unwrap())
    };
    let states = || session.list().unwrap().iter().map(|probe| probe.state == State::Enabled).collect::<Vec<_>>();
    assert_eq!(ran(), "abcd");
    for (index, enable, expected) in [
        (1, false, "acd"),
        (0, false, "cd"),
        (1, true, "bcd"),
        (2, false, "b"),
        (1, false, ""),
        (2, true, "cd"),
        (0, true, "acd"),
        (1, true, "abcd"),
        (1, true, "abcd"),
        (3, false, "abcd"),
        (0, false, "bcd"),
        (1, false, "cd"),
        // The last one: the place gets its original code.
        (2, false, ""),
        (0, true, "a"),
        (3, true, "a"),
    ] {
        if enable {
            session.enable(ids[index]).unwrap()
        } else {
            session.disable(ids[index]).unwrap()
        }
        assert_eq!(ran(), expected);
        assert_eq!(states()[index], enable);
    }
    assert_eq!(states(), [true, false, false, true]);
    let counts: Vec<u64> = ids.iter().map(|id| session.counts(*id).unwrap().0).collect();
    assert_eq!(counts, [8, 7, 11, 11]);
    session.detach().unwrap();
    assert_eq!(ran(), "");
}

#[test]
fn one_of_several_is_unregistered() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let trace = Trace::default();
    let ids = several(&session, &trace);
    call();
    session.unregister(ids[1]).unwrap();
    assert_eq!(session.list().unwrap().iter().map(|probe| probe.registration).collect::<Vec<_>>(), [0, 2, 3]);
    call();
    [0, 2, 3].iter().for_each(|index: &usize| session.disable(ids[*index]).unwrap());
    call();
    [0, 2, 3].iter().for_each(|index: &usize| session.enable(ids[*index]).unwrap());
    call();
    assert_eq!(*trace.lock().unwrap(), "abcdacdacd");
    assert!(session.enable(ids[1]).is_err());
    let taken = session.register(Probe::function(sum as *const ()).unwrap());
    assert!(taken.is_err_and(|error| error.to_string().contains("a probe already")));
    [0, 2, 3].iter().for_each(|index: &usize| session.unregister(ids[*index]).unwrap());
    call();
    let again = session.register(Probe::function(sum as *const ()).unwrap()).unwrap();
    call();
    assert_eq!((trace.lock().unwrap().as_str(), session.counts(again).unwrap()), ("abcdacdacd", (1, 0)));
    session.detach().unwrap();
}

#[test]
fn a_replacement_is_switched_beside_handlers() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let (trace, original) = (Trace::default(), Original::new().unwrap());
    let at = || Probe::function(sum as *const ()).unwrap();
    // SAFETY: the replacement has the type of what it replaces.
    let probes = unsafe { [at().on_entry(note(&trace, 'a')), at().replace(other_sum as *const (), &original)] };
    let ids = session.register_all(probes).unwrap();
    assert_eq!(call(), 3);
    session.disable(ids[1]).unwrap();
    assert_eq!(call(), 5);
    session.disable(ids[0]).unwrap();
    assert_eq!(call(), 5);
    session.enable(ids[1]).unwrap();
    assert_eq!((call(), trace.lock().unwrap().as_str()), (3, "aa"));
    session.detach().unwrap();
    assert_eq!(call(), 5);
}

#[test]
fn handlers_are_switched_while_threads_run_them() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let at = || Probe::function(sum as *const ()).unwrap();
    let ids = session.register_all([at(), at(), at()]).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let threads: Vec<thread::JoinHandle<u64>> = (0..4)
        .map(|_| {
            let done = Arc::clone(&done);
            thread::spawn(move || {
                let mut calls = 0;
                while !done.load(SeqCst) {
                    assert_eq!(call(), 5);
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    for _ in 0..50 {
        session.disable(ids[1]).unwrap();
        session.enable(ids[1]).unwrap();
    }
    done.store(true, SeqCst);
    let calls: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    let counts: Vec<u64> = ids.iter().map(|id| session.counts(*id).unwrap().0).collect();
    assert!(counts[0] == calls && counts[2] == calls && counts[1] < calls, "{counts:?} of {calls}");
    session.detach().unwrap();
}

#[test]
fn jumps_are_switched_off_and_on() {
    let _turn = turn();
    let at = || Probe::function(sum as *const ()).unwrap();
    let session = Session::own().options(Options { live: true, ..Options::default() }).start().unwrap();
    let ids = session.register_all([at(), at()]).unwrap();
    let optimized = || session.list().unwrap().iter().map(|probe| probe.optimized).collect::<Vec<_>>();
    assert_eq!(optimized(), [true, true]);
    session.optimize(ids[0], false).unwrap();
    assert_eq!((call(), optimized()), (5, vec![false, false]));
    session.optimize(ids[1], true).unwrap();
    assert_eq!((call(), optimized()), (5, vec![true, true]));
    assert_eq!(session.counts(ids[0]).unwrap(), (2, 0));
    session.detach().unwrap();
    // Where no traps are taken.
    let session = Session::own().start().unwrap();
    let id = session.register(at()).unwrap();
    assert!(session.optimize(id, false).is_err_and(|error| error.to_string().contains("takes no traps")));
    session.optimize(id, true).unwrap();
    session.detach().unwrap();
}

#[test]
fn a_probe_is_a_jump_when_the_one_inside_is_gone() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let at = |offset: usize| Probe::function((close_by as *const ()).wrapping_byte_add(offset)).unwrap();
    let optimized = || session.list().unwrap()[0].optimized;
    let ids = session.register_all([at(0), at(3)]).unwrap();
    call_close_by();
    assert!(!optimized());
    session.disable(ids[1]).unwrap();
    call_close_by();
    assert!(optimized());
    session.enable(ids[1]).unwrap();
    call_close_by();
    assert!(!optimized());
    session.unregister(ids[1]).unwrap();
    call_close_by();
    assert!(optimized());
    // It can come again.
    let again = session.register(at(3)).unwrap();
    call_close_by();
    assert!(!optimized());
    session.unregister(again).unwrap();
    call_close_by();
    assert!(optimized());
    assert_eq!((session.counts(ids[0]).unwrap(), session.list().unwrap().len()), ((6, 0), 1));
    session.detach().unwrap();
    call_close_by();
}

#[test]
fn the_inner_probe_may_be_older() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let at = |offset: usize| Probe::function((close_by as *const ()).wrapping_byte_add(offset)).unwrap();
    let inner = session.register(at(3)).unwrap();
    call_close_by();
    let outer = session.register(at(0)).unwrap();
    call_close_by();
    let optimized = || session.list().unwrap().last().unwrap().optimized;
    assert!(!optimized());
    session.unregister(inner).unwrap();
    call_close_by();
    assert!(optimized());
    assert_eq!(session.counts(outer).unwrap(), (2, 0));
    session.detach().unwrap();
    call_close_by();
}
