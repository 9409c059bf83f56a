//! Functions that run instead of others.

use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use sidestep::{Original, Session};

use super::{Two, argument, at, counter, sum, turn};

static ORIGINAL: OnceLock<Original> = OnceLock::new();

fn original() -> &'static Original {
    ORIGINAL.get_or_init(|| Original::new().unwrap())
}

extern "C" fn instead(a: usize, b: usize) -> usize {
    // SAFETY: the type of what it replaces.
    let original: Two = unsafe { original().function() };
    original(a, b) + 1_000_000
}

#[test]
fn a_replaced_function_can_be_called() {
    let _turn = turn();
    let call: Two = black_box(sum);
    // SAFETY: of the same type.
    let probe = || unsafe { at(sum as *const ()).replace(instead as *const (), original()) };
    for options in [sidestep::Options::default(), sidestep::Options { no_optimize: true, ..Default::default() }] {
        let session = Session::own().options(options).start().unwrap();
        let id = session.register(probe()).unwrap();
        assert_eq!((call(1, 2), call(2, 2)), (1_000_005, 1_000_008));
        assert_eq!(session.counts(id).unwrap(), (2, 0));
        session.disable(id).unwrap();
        assert_eq!((call(1, 2), instead(1, 2)), (5, 1_000_005));
        session.enable(id).unwrap();
        assert_eq!(call(1, 2), 1_000_005);
        session.unregister(id).unwrap();
        assert_eq!((call(1, 2), instead(1, 2)), (5, 1_000_005));
        session.register(probe()).unwrap();
        assert_eq!(call(1, 2), 1_000_005);
        session.detach().unwrap();
        // Whoever is in the replacement still finds the function.
        assert_eq!((call(1, 2), instead(1, 2)), (5, 1_000_005));
    }
}

#[test]
fn calls_of_a_replaced_function_never_fail_while_it_comes_and_goes() {
    let _turn = turn();
    static STOP: AtomicU64 = AtomicU64::new(0);
    STOP.store(0, SeqCst);
    let work = || {
        let call: Two = black_box(sum);
        let mut replaced = 0u64;
        while STOP.load(SeqCst) == 0 {
            match call(4, 2) {
                14 => {}
                1_000_014 => replaced += 1,
                other => panic!("{other}"),
            }
        }
        replaced
    };
    let threads: Vec<_> = (0..3).map(|_| thread::spawn(work)).collect();
    for _ in 0..10 {
        let session = Session::own().start().unwrap();
        // SAFETY: of the same type.
        let probe = || unsafe { at(sum as *const ()).replace(instead as *const (), original()) };
        let id = session.register(probe()).unwrap();
        session.disable(id).unwrap();
        session.enable(id).unwrap();
        session.unregister(id).unwrap();
        session.register(probe()).unwrap();
        session.detach().unwrap();
    }
    STOP.store(1, SeqCst);
    let replaced: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(replaced.iter().all(|count| *count > 0), "{replaced:?}");
}

#[inline(never)]
extern "C-unwind" fn fallible(a: u64) -> u64 {
    if black_box(a) == 0 {
        panic!("of the original");
    }
    a + 1
}

extern "C-unwind" fn stricter(a: u64) -> u64 {
    if a == 1 {
        panic!("of the replacement");
    }
    // SAFETY: the type of what it replaces.
    let original: extern "C-unwind" fn(u64) -> u64 = unsafe { original().function() };
    original(a)
}

/// An allocator that was replaced must be the same in the child.
#[test]
fn a_forked_child_has_the_replacement() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    // SAFETY: of the same type.
    let probe = || unsafe { at(sum as *const ()).replace(instead as *const (), original()) };
    let id = session.register(probe()).unwrap();
    let call: Two = black_box(sum);
    // SAFETY: the child calls nothing but the functions under test.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(call(1, 2) != 1_000_005 || call(2, 2) != 1_000_008));
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        status
    };
    assert_eq!((status, session.counts(id).unwrap()), (0, (0, 0)));
    session.detach().unwrap();
}

#[test]
fn handlers_of_a_replaced_function_run_before() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let (count, handler) = counter();
    // SAFETY: it changes an argument, and of the same type.
    let probes = unsafe {
        [
            at(sum as *const ()),
            at(sum as *const ()).on_entry(move |context| {
                handler(context);
                *argument(context, 0) = 10;
            }),
            at(sum as *const ()).replace(instead as *const (), original()),
            at(sum as *const ()),
        ]
    };
    let ids = session.register_all(probes).unwrap();
    let call: Two = black_box(sum);
    assert_eq!((call(1, 2), call(1, 3), count.load(SeqCst)), (1_000_032, 1_000_033, 2));
    let hits: Vec<u64> = ids.iter().map(|id| session.counts(*id).unwrap().0).collect();
    assert_eq!(hits, [2, 2, 2, 0]);
    session.detach().unwrap();
    assert_eq!(call(1, 2), 5);
}

#[test]
fn a_panic_passes_through_a_replaced_function() {
    let _turn = turn();
    let call = |a: u64| std::panic::catch_unwind(move || black_box(fallible as extern "C-unwind" fn(u64) -> u64)(a));
    let said = |a| *call(a).unwrap_err().downcast::<&str>().unwrap();
    let session = Session::own().start().unwrap();
    // SAFETY: of the same type.
    let probe = unsafe { at(fallible as *const ()).replace(stricter as *const (), original()) };
    let id = session.register(probe).unwrap();
    assert_eq!((call(2).unwrap(), said(1), said(0)), (3, "of the replacement", "of the original"));
    assert_eq!(session.counts(id).unwrap(), (3, 0));
    session.detach().unwrap();
}
