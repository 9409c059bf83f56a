//! Sessions: what comes and goes, threads, forked children, and the end.

use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use sidestep::{Error, Options, Probe, Session, State};

use super::{Two, at, counter, product, sum, turn};

#[test]
fn probes_come_and_go_while_others_stay() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    assert_eq!(session.list().unwrap(), []);
    let (sums, handler) = counter();
    // SAFETY: it counts.
    let first = session.register(unsafe { at(sum as *const ()).on_entry(handler) }).unwrap();
    let (call, other): (Two, Two) = (black_box(sum), black_box(product));
    call(1, 2);
    let second = session.register(at(product as *const ())).unwrap();
    call(1, 2);
    other(3, 4);
    assert_eq!((session.counts(first).unwrap(), session.counts(second).unwrap()), ((2, 0), (1, 0)));

    session.disable(first).unwrap();
    let states: Vec<State> = session.list().unwrap().iter().map(|probe| probe.state).collect();
    assert_eq!(states, [State::Disabled, State::Enabled]);
    call(1, 2);
    other(3, 4);
    session.enable(first).unwrap();
    call(1, 2);
    assert_eq!((session.counts(first).unwrap().0, session.counts(second).unwrap().0), (3, 2));

    // Its place is taken until it is unregistered.
    let taken = session.register(at(sum as *const ()));
    assert!(taken.is_err_and(|error| error.to_string().contains("a probe already")));
    session.unregister(first).unwrap();
    assert!(matches!(session.enable(first), Err(Error::NoRegistration { id: 0 })));
    call(1, 2);
    assert_eq!(sums.load(SeqCst), 3);
    assert_eq!(session.list().unwrap().len(), 1);
    let (again, handler) = counter();
    // SAFETY: it counts.
    let third = session.register(unsafe { at(sum as *const ()).on_return(handler) }).unwrap();
    call(1, 2);
    call(1, 2);
    other(3, 4);
    assert_eq!((sums.load(SeqCst), again.load(SeqCst)), (3, 2));
    assert_eq!((session.counts(third).unwrap(), session.counts(second).unwrap()), ((2, 0), (3, 0)));
    let list = session.list().unwrap();
    assert!(list.iter().all(|probe| probe.state == State::Enabled), "{list:?}");
    assert!(list[1].name.contains("sum") && list[1].registration == third.0, "{list:?}");

    session.detach().unwrap();
    call(1, 2);
    assert_eq!(again.load(SeqCst), 2);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("sidestep:") && !maps.contains("memfd"), "{maps}");
}

#[test]
fn a_probe_of_a_trap_can_come_again() {
    let _turn = turn();
    let options = sidestep::Options { no_optimize: true, ..sidestep::Options::default() };
    let session = Session::own().options(options).start().unwrap();
    let call: Two = black_box(sum);
    let mut ids = Vec::new();
    for calls in 1..4 {
        let (count, handler) = counter();
        // SAFETY: it counts.
        let id = session.register(unsafe { at(sum as *const ()).on_entry(handler) }).unwrap();
        (0..calls).for_each(|_| assert_eq!(call(1, 2), 5));
        assert_eq!((count.load(SeqCst), session.counts(id).unwrap()), (calls, (calls, 0)));
        assert_eq!(session.list().unwrap()[0].technique, "trap");
        session.unregister(id).unwrap();
        ids.push(id);
        assert_eq!((call(1, 2), count.load(SeqCst)), (5, calls));
    }
    session.detach().unwrap();
    assert_eq!(call(1, 2), 5);
}

#[test]
fn threads_that_come_and_go_are_counted_exactly() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let (count, handler) = counter();
    let (returns, on_return) = counter();
    // SAFETY: they count.
    let probe = unsafe { at(sum as *const ()).on_entry(handler).on_return(on_return) };
    let id = session.register(probe).unwrap();
    for _ in 0..20 {
        let work = || (0..1000).for_each(|n| assert_eq!(black_box(sum as Two)(n, 1), n * 3 + 1));
        let threads: Vec<_> = (0..4).map(|_| thread::spawn(work)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    let expected = 20 * 4 * 1000;
    assert_eq!((count.load(SeqCst), returns.load(SeqCst)), (expected, expected));
    assert_eq!(session.counts(id).unwrap(), (expected, 0));
    session.detach().unwrap();
}

#[test]
fn a_forked_child_runs_no_handler_and_leaves_the_session_alone() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let (count, handler) = counter();
    // SAFETY: it counts.
    let id = session.register(unsafe { at(sum as *const ()).on_entry(handler) }).unwrap();
    let call: Two = black_box(sum);
    assert_eq!(call(1, 2), 5);
    // SAFETY: the child makes no call but those of the functions under test.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let right = call(1, 2) == 5 && count.load(SeqCst) == 1;
            let forked = matches!(session.disable(id), Err(Error::Forked));
            libc::_exit(i32::from(!(right && forked)));
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        status
    };
    assert_eq!((status, session.counts(id).unwrap()), (0, (1, 0)));
    session.detach().unwrap();
}

#[test]
fn the_end_of_a_session_waits_for_handlers() {
    let _turn = turn();
    static GO: AtomicU64 = AtomicU64::new(0);
    static DONE: AtomicU64 = AtomicU64::new(0);
    let session = Session::own().start().unwrap();
    // SAFETY: it waits.
    let probe = unsafe {
        at(sum as *const ()).on_entry(|_| {
            GO.store(1, SeqCst);
            thread::sleep(std::time::Duration::from_millis(300));
            DONE.store(1, SeqCst);
        })
    };
    session.register(probe).unwrap();
    let thread = thread::spawn(|| black_box(sum as Two)(1, 2));
    while GO.load(SeqCst) == 0 {
        thread::yield_now();
    }
    session.detach().unwrap();
    assert_eq!((DONE.load(SeqCst), thread.join().unwrap()), (1, 5));
}

#[test]
fn two_sessions_probe_the_process_at_once() {
    let _turn = turn();
    let ((sums, on_sum), (products, on_product)) = (counter(), counter());
    // SAFETY: they count.
    let (on_sum, on_product) =
        unsafe { (at(sum as *const ()).on_entry(on_sum), at(product as *const ()).on_entry(on_product)) };
    let first = Session::own().probe(on_sum).start().unwrap();
    let second = Session::own().probe(on_product).start().unwrap();
    let call = || (black_box(sum as Two)(1, 2), black_box(product as Two)(2, 3));
    let counted = || (sums.load(SeqCst), products.load(SeqCst));
    let results = call();
    assert_eq!(counted(), (1, 1));
    drop(first);
    assert_eq!((call(), counted()), (results, (1, 2)));
    second.detach().unwrap();
    assert_eq!((call(), counted()), (results, (1, 2)));
}

/// The handler of all sessions found the trap of a probe that was removed, at a place where another
/// session has one now.
#[test]
fn a_removed_trap_took_the_hits_of_another_session() {
    let _turn = turn();
    let traps = || Session::own().options(Options { no_optimize: true, ..Options::default() }).start().unwrap();
    let call = || (black_box(sum as Two)(1, 2), black_box(product as Two)(2, 3));
    let results = call();
    let (first, second) = (traps(), traps());
    let sums = first.register(at(sum as *const ())).unwrap();
    for round in 1..4 {
        // With a function to call, the trap leads to a detour; without, the handler counts.
        let (hits, handler) = counter();
        // SAFETY: it counts.
        let removed = second.register(unsafe { at(product as *const ()).on_entry(handler) }).unwrap();
        assert_eq!((call(), hits.load(SeqCst)), (results, 1));
        second.unregister(removed).unwrap();
        let products = first.register(at(product as *const ())).unwrap();
        assert_eq!(call(), results);
        assert_eq!((first.counts(products).unwrap(), hits.load(SeqCst)), ((1, 0), 1), "{round}");
        first.unregister(products).unwrap();
    }
    assert_eq!(first.counts(sums).unwrap(), (6, 0));
    first.detach().unwrap();
    assert_eq!(call(), results);
    second.detach().unwrap();
    assert_eq!(call(), results);
}

/// The controller is a fork, in which a lock of the standard library that another thread held is
/// never free.
#[test]
fn a_session_waited_for_ever_for_a_lock_that_another_thread_had_at_its_start() {
    let _turn = turn();
    let over = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&over);
    let writer = thread::spawn(move || {
        while !until.load(SeqCst) {
            // SAFETY: all that reads the environment meanwhile is the standard library, which has a
            // lock.
            unsafe { std::env::set_var("SIDESTEP_TEST_WRITER", "on") };
            (0..1000).for_each(|_| std::hint::spin_loop());
        }
    });
    let until = Arc::clone(&over);
    let beginner = thread::spawn(move || {
        while !until.load(SeqCst) {
            thread::spawn(|| {}).join().unwrap();
        }
    });
    for _ in 0..100 {
        let session = Session::own().start().unwrap();
        // It is looked for in PATH.
        let missing = session.register(Probe::at("no-such-program:main").unwrap());
        assert!(missing.is_err_and(|error| error.to_string().contains("no-such-program")));
        session.detach().unwrap();
    }
    over.store(true, SeqCst);
    writer.join().unwrap();
    beginner.join().unwrap();
}

#[test]
fn what_cannot_be_probed_is_an_error_and_no_harm() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    assert!(matches!(Probe::at("libc:"), Err(Error::Place { .. })));
    let missing = session.register(Probe::at("no_such_function").unwrap());
    assert!(missing.is_err_and(|error| error.to_string().contains("no_such_function")));
    let id = session.register(at(sum as *const ())).unwrap();
    assert!(session.register(Probe::at("no_such_function").unwrap()).is_err());
    assert_eq!(black_box(sum as Two)(1, 2), 5);
    assert_eq!(session.counts(id).unwrap(), (1, 0));
    session.detach().unwrap();
}

#[test]
fn no_child_is_left_to_wait_for() {
    let _turn = turn();
    let session = Session::own().probe(at(sum as *const ())).start().unwrap();
    // SAFETY: no memory is involved.
    let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!((waited, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ECHILD)));
    session.detach().unwrap();
}

#[test]
fn the_allocator_can_be_probed() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let (count, handler) = counter();
    // SAFETY: it counts.
    let id = session.register(unsafe { at(libc::malloc as *const ()).on_entry(handler) }).unwrap();
    let before = count.load(SeqCst);
    let boxes: Vec<Box<u64>> = (0..1000).map(|n| Box::new(black_box(n))).collect();
    drop(boxes);
    let after = count.load(SeqCst);
    assert!(after - before >= 1001, "{before} {after}");
    let (hits, _) = session.counts(id).unwrap();
    assert!(hits >= after);
    session.detach().unwrap();
}

/// As backtraces do.
#[test]
fn a_program_that_reads_its_own_file_can_be_probed() {
    let _turn = turn();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: a new mapping, which nobody else uses.
    let far = unsafe {
        let len = file.metadata().unwrap().len() as usize;
        (libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0), len)
    };
    assert_ne!(far.0, libc::MAP_FAILED);
    let session = Session::own().probe(at(sum as *const ())).start().unwrap();
    assert_eq!(black_box(sum as Two)(1, 2), 5);
    assert_eq!(session.list().unwrap()[0].hits, 1);
    session.detach().unwrap();
    // SAFETY: the mapping was made above, and nothing else uses it.
    unsafe { libc::munmap(far.0, far.1) };
}

#[test]
fn a_process_goes_on_without_its_controller() {
    let _turn = turn();
    let (count, handler) = counter();
    // SAFETY: it counts.
    let session = Session::own().probe(unsafe { at(sum as *const ()).on_entry(handler) }).start().unwrap();
    let own = std::process::id() as i32;
    let found = sidestep_engine::status(own, &sidestep::Options::default()).unwrap();
    let [status] = &found[..] else { panic!("one session") };
    assert!(status.controller != own && status.controller_alive);
    // SAFETY: no memory is involved.
    unsafe { libc::kill(status.controller, libc::SIGKILL) };
    assert!(matches!(session.list(), Err(Error::ControllerGone)));
    assert_eq!((black_box(sum as Two)(1, 2), count.load(SeqCst)), (5, 1));
    assert!(matches!(session.detach(), Err(Error::ControllerGone)));
    assert_eq!((black_box(sum as Two)(1, 2), count.load(SeqCst)), (5, 2));
    // The next one cleans up.
    Session::own().probe(at(product as *const ())).start().unwrap().detach().unwrap();
    assert_eq!((black_box(sum as Two)(1, 2), count.load(SeqCst)), (5, 2));
}
