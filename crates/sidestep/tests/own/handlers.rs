//! What handlers see and change, and what happens when they are interrupted.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use sidestep::{Context, Session};

use super::{Two, argument, at, counter, half, inner, product, sum, turn};

#[test]
fn a_handler_sees_and_changes_arguments_and_result() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&seen);
    // SAFETY: the function takes any number.
    let probe = unsafe {
        at(sum as *const ())
            .on_entry(move |context| {
                context.cookie = *argument(context, 0) as u64;
                *argument(context, 1) += 1000;
            })
            .on_return(move |context| {
                theirs.lock().unwrap().push((context.cookie, context.result()));
                context.set_result(context.result() + 1);
            })
    };
    let id = session.register(probe).unwrap();
    let call: Two = black_box(sum);
    assert_eq!(call(7, 5), 7 * 3 + 1005 + 1);
    assert_eq!(call(8, 5), 8 * 3 + 1005 + 1);
    assert_eq!(*seen.lock().unwrap(), [(7, 1026), (8, 1029)]);
    assert_eq!(session.counts(id).unwrap(), (2, 0));
    session.detach().unwrap();
    assert_eq!(call(7, 5), 26);
}

#[test]
fn several_handlers_of_a_place_run_in_order() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let trace = Arc::new(Mutex::new(String::new()));
    let note = |what: char| {
        let trace = Arc::clone(&trace);
        move |_: &mut Context| trace.lock().unwrap().push(what)
    };
    // SAFETY: they change nothing.
    let probes = unsafe {
        [
            at(sum as *const ()).on_entry(note('a')),
            at(sum as *const ()).on_entry(note('b')),
            at(sum as *const ()).on_entry(note('c')).on_return(note('d')),
        ]
    };
    session.register_all(probes).unwrap();
    let call: Two = black_box(sum);
    assert_eq!((call(1, 2), trace.lock().unwrap().as_str()), (5, "abcd"));
    session.detach().unwrap();
}

#[test]
fn a_hit_inside_a_handler_is_missed() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let call: extern "C" fn(usize) -> usize = black_box(inner);
    let nested = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&nested);
    // SAFETY: they change nothing.
    let probes = unsafe {
        [
            at(sum as *const ()).on_entry(move |_| {
                theirs.fetch_add(call(1) as u64, SeqCst);
            }),
            at(inner as *const ()).on_entry(|_| {}),
            // What only counts is not kept away.
            at(product as *const ()).on_entry(|_| {}).on_return(|_| {
                black_box(half)(2);
            }),
            at(half as *const ()),
        ]
    };
    let ids = session.register_all(probes).unwrap();
    let (outer, other): (Two, Two) = (black_box(sum), black_box(product));
    (0..5).for_each(|_| assert_eq!(outer(1, 2), 5));
    assert_eq!(call(1), 0x54);
    (0..3).for_each(|_| assert_eq!(other(2, 3), 7));
    assert_eq!(nested.load(SeqCst), 5 * 0x54);
    let counts: Vec<_> = ids.iter().map(|id| session.counts(*id).unwrap()).collect();
    assert_eq!(counts, [(5, 0), (1, 5), (3, 0), (3, 0)]);
    session.detach().unwrap();
}

#[test]
fn a_handler_sends_the_thread_elsewhere() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    // SAFETY: the other function has the same type, so that its return is that of the call.
    let probe = unsafe {
        at(sum as *const ()).on_entry(|context| {
            if *argument(context, 0) == 3 {
                context.regs.rip = product as *const () as u64;
            }
        })
    };
    session.register(probe).unwrap();
    let call: Two = black_box(sum);
    assert_eq!((call(2, 5), call(3, 5), call(4, 5)), (11, 16, 17));
    session.detach().unwrap();
}

#[test]
fn a_signal_handler_inside_a_handler_runs_none() {
    let _turn = turn();
    extern "C" fn on_signal(_: i32) {
        assert_eq!(black_box(product as Two)(2, 3), 7);
    }
    // SAFETY: the handler calls a function of this file.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as usize) };
    let session = Session::own().start().unwrap();
    let (count, handler) = counter();
    // SAFETY: they change nothing, and a signal goes to this thread.
    let probes = unsafe {
        [
            at(sum as *const ()).on_entry(|_| assert_eq!(libc::raise(libc::SIGUSR1), 0)),
            at(product as *const ()).on_entry(handler),
        ]
    };
    let ids = session.register_all(probes).unwrap();
    (0..3).for_each(|_| assert_eq!(black_box(sum as Two)(1, 2), 5));
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(libc::SIGUSR1) };
    assert_eq!(count.load(SeqCst), 1);
    assert_eq!((session.counts(ids[0]).unwrap(), session.counts(ids[1]).unwrap()), ((3, 0), (1, 3)));
    session.detach().unwrap();
}
