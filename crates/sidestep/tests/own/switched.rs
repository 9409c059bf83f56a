//! Probes of one place that are switched one by one.

use std::hint::black_box;
use std::sync::{Arc, Mutex};

use sidestep::{Context, Original, Registration, Session, State};

use super::{Two, at, calls_meanwhile, sum, turn};

extern "C" fn other_sum(a: usize, b: usize) -> usize {
    a + b
}

fn call() -> usize {
    black_box(sum as Two)(1, 2)
}

type Trace = Arc<Mutex<String>>;

fn note(trace: &Trace, what: char) -> impl Fn(&mut Context) + Send + Sync + 'static {
    let trace = Arc::clone(trace);
    move |_: &mut Context| trace.lock().unwrap().push(what)
}

/// Handlers `a`, `b`, and `c` with `d` at the return, of one place.
fn several(session: &Session, trace: &Trace) -> Vec<Registration> {
    let at = || at(sum as *const ());
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
    let taken = session.register(at(sum as *const ()));
    assert!(taken.is_err_and(|error| error.to_string().contains("a probe already")));
    [0, 2, 3].iter().for_each(|index: &usize| session.unregister(ids[*index]).unwrap());
    call();
    let again = session.register(at(sum as *const ())).unwrap();
    call();
    assert_eq!((trace.lock().unwrap().as_str(), session.counts(again).unwrap()), ("abcdacdacd", (1, 0)));
    session.detach().unwrap();
}

#[test]
fn a_replacement_is_switched_beside_handlers() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let (trace, original) = (Trace::default(), Original::new().unwrap());
    let at = || at(sum as *const ());
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
    let at = || at(sum as *const ());
    let ids = session.register_all([at(), at(), at()]).unwrap();
    let calls = calls_meanwhile(
        || assert_eq!(call(), 5),
        || {
            for _ in 0..50 {
                session.disable(ids[1]).unwrap();
                session.enable(ids[1]).unwrap();
            }
        },
    );
    let counts: Vec<u64> = ids.iter().map(|id| session.counts(*id).unwrap().0).collect();
    assert!(counts[0] == calls && counts[2] == calls && counts[1] < calls, "{counts:?} of {calls}");
    session.detach().unwrap();
}

#[test]
fn jumps_are_switched_off_and_on() {
    let _turn = turn();
    let at = || at(sum as *const ());
    let session = Session::own().start().unwrap();
    let ids = session.register_all([at(), at()]).unwrap();
    let optimized = || session.list().unwrap().iter().map(|probe| probe.optimized).collect::<Vec<_>>();
    assert_eq!(optimized(), [true, true]);
    session.optimize(ids[0], false).unwrap();
    assert_eq!((call(), optimized()), (5, vec![false, false]));
    session.optimize(ids[1], true).unwrap();
    assert_eq!((call(), optimized()), (5, vec![true, true]));
    assert_eq!(session.counts(ids[0]).unwrap(), (2, 0));
    session.detach().unwrap();
}
