//! Probes of one's own process. There can be one session at a time, so the tests take turns.
#![allow(unsafe_code, reason = "handlers are promises")]

use std::arch::asm;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use sidestep::{Context, Error, Original, Probe, Session, State};

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The functions under test. Each has a body that is long enough to differ, and is called through a pointer that the compiler does
/// not see through.
macro_rules! function {
    ($name:ident($($arg:ident),*) -> $out:ty, $body:expr) => {
        #[inline(never)]
        extern "C" fn $name($($arg: u64),*) -> $out {
            black_box($body)
        }
    };
}
function!(sum(a, b) -> u64, a.wrapping_mul(3).wrapping_add(b));
function!(product(a, b) -> u64, a.wrapping_mul(b).wrapping_add(1));
function!(inner(a) -> u64, a ^ 0x55);
function!(half(a) -> f64, a as f64 / 2.0);

type Two = extern "C" fn(u64, u64) -> u64;

fn at(function: *const ()) -> Probe {
    Probe::function(function).unwrap()
}

fn counter() -> (Arc<AtomicU64>, impl Fn(&mut Context) + Send + Sync + 'static) {
    let count = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&count);
    let handler = move |_: &mut Context| {
        theirs.fetch_add(1, SeqCst);
    };
    (count, handler)
}

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
                context.cookie = context.argument(0).unwrap();
                context.set_argument(1, context.argument(1).unwrap() + 1000);
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
fn a_handler_sees_numbers_with_a_point() {
    let _turn = turn();
    extern "C" fn third(a: f64, b: f64, c: f64) -> f64 {
        black_box(a + b * c)
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (entry, exit) = (Arc::clone(&seen), Arc::clone(&seen));
    // SAFETY: they change nothing.
    let probe = unsafe {
        at(third as *const ())
            .on_entry(move |context| entry.lock().unwrap().extend((0..3).filter_map(|n| context.double(n))))
            .on_return(move |context| exit.lock().unwrap().extend(context.double(0)))
    };
    let session = Session::own().probe(probe).start().unwrap();
    assert_eq!(black_box(third as extern "C" fn(f64, f64, f64) -> f64)(1.5, 2.5, 3.0), 9.0);
    assert_eq!(*seen.lock().unwrap(), [1.5, 2.5, 3.0, 9.0]);
    session.detach().unwrap();
}

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

static ORIGINAL: OnceLock<Original> = OnceLock::new();

fn original() -> &'static Original {
    ORIGINAL.get_or_init(|| Original::new().unwrap())
}

extern "C" fn instead(a: u64, b: u64) -> u64 {
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

#[test]
fn a_hit_inside_a_handler_is_missed() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let call: extern "C" fn(u64) -> u64 = black_box(inner);
    let nested = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&nested);
    // SAFETY: they change nothing.
    let probes = unsafe {
        [
            at(sum as *const ()).on_entry(move |_| {
                theirs.fetch_add(call(1), SeqCst);
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

std::arch::global_asm!(
    ".type spoilt, @function",
    "spoilt:",
    "mov %rdi, %rax",
    ".type spoilt_inside, @function",
    "spoilt_inside:",
    "lea 1(%rax), %rax",
    "ret",
    ".size spoilt, . - spoilt",
    options(att_syntax)
);

unsafe extern "C" {
    fn spoilt();
    fn spoilt_inside();
}

/// The state that is looked at: `ymm7`, `ymm9`, `zmm17`, `k3`, flags, MXCSR.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen([[u8; 32]; 2], [u8; 64], u64, u64, u32);

/// Changes all of it, and `errno`.
fn spoil(_: &mut Context) {
    // SAFETY: these registers are the C ABI's to change, or nobody's in code that is compiled without AVX-512; the x87 stack is
    // what it was.
    unsafe {
        asm!(
            "vcmpps ymm7, ymm7, ymm7, 15", "vmovaps ymm9, ymm7", "fldpi", "fstp st(0)",
            "mov {three}, 3", "cvtsi2sd xmm0, {three}", "divsd xmm0, xmm7",
            three = out(reg) _,
            out("xmm0") _, out("xmm7") _, out("xmm9") _,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
        if is_x86_feature_detected!("avx512bw") {
            asm!("vpternlogd zmm17, zmm17, zmm17, 255", "kxnorq k3, k3, k3");
        }
        black_box(black_box(1.0) / black_box(3.0));
        *libc::__errno_location() = libc::EXDEV;
    }
}

/// Calls `spoilt` with this state, and gives the state afterwards.
fn call_spoilt(before: &Seen, wide: bool) -> Seen {
    let mut after = Seen([[0; 32]; 2], [0; 64], 0, 0, 0);
    // SAFETY: a call of the C ABI, but for the direction flag and registers that `spoilt` does not look at.
    unsafe {
        asm!(
            "test r15, r15", "jz 2f", "vmovdqa64 zmm17, [r12 + 64]", "kmovq k3, [r12 + 128]",
            "2:", "vmovdqu ymm7, [r12]", "vmovdqu ymm9, [r12 + 32]", "ldmxcsr [r12 + 144]", "fldpi", "std",
            "call {spoilt}",
            "pushfq", "cld", "pop rcx", "and ecx, 0x400", "mov [r13 + 136], rcx",
            "stmxcsr [r13 + 144]", "vmovdqu [r13], ymm7", "vmovdqu [r13 + 32], ymm9", "fstp st(0)",
            "test r15, r15", "jz 2f", "vmovdqa64 [r13 + 64], zmm17", "kmovq [r13 + 128], k3",
            "2:",
            spoilt = sym spoilt, in("r12") before, in("r13") &mut after, in("r15") u64::from(wide),
            in("rdi") 9u64, clobber_abi("C"),
        );
    }
    after
}

#[test]
fn vectors_flags_and_errno_survive_a_handler() {
    let _turn = turn();
    let wide = is_x86_feature_detected!("avx512bw");
    let bytes = |from: u8| std::array::from_fn(|i| (i as u8).wrapping_mul(7) + from);
    let long = if wide { std::array::from_fn(|i| i as u8 * 3 + 1) } else { [0; 64] };
    // The direction flag is set, and MXCSR is as at the start.
    let before = Seen([bytes(1), bytes(2)], long, u64::from(wide) * 0x1234_5678_9abc_def0, 0x400, 0x1f80);
    assert_eq!(call_spoilt(&before, wide), before);
    // SAFETY: what they change is saved.
    let probes = unsafe {
        [
            at(spoilt as *const ()).on_entry(spoil),
            at(spoilt as *const ()).on_entry(spoil).on_return(spoil),
            at(spoilt_inside as *const ()).on_entry(spoil),
        ]
    };
    let session = Session::own().start().unwrap();
    for probe in probes {
        let id = session.register(probe).unwrap();
        // SAFETY: it is this thread's.
        unsafe { *libc::__errno_location() = libc::E2BIG };
        let after = call_spoilt(&before, wide);
        // SAFETY: see above.
        assert_eq!(unsafe { *libc::__errno_location() }, libc::E2BIG);
        assert_eq!(after, before);
        assert_eq!(session.counts(id).unwrap(), (1, 0));
        session.unregister(id).unwrap();
    }
    session.detach().unwrap();
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
fn a_handler_sends_the_thread_elsewhere() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    // SAFETY: the other function has the same type, so that its return is that of the call.
    let probe = unsafe {
        at(sum as *const ()).on_entry(|context| {
            if context.argument(0) == Some(3) {
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
fn there_is_one_session_at_a_time() {
    let _turn = turn();
    let first = Session::own().probe(at(sum as *const ())).start().unwrap();
    let second = Session::own().probe(at(product as *const ())).start();
    assert!(second.is_err_and(|error| error.to_string().contains("already probed")));
    drop(first);
    Session::own().probe(at(product as *const ())).start().unwrap().detach().unwrap();
}

#[test]
fn what_cannot_be_probed_is_an_error_and_no_harm() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    assert!(matches!(Probe::at("libc:"), Err(Error::Place { .. })));
    let missing = session.register(Probe::at("libc:no_such_function").unwrap());
    assert!(missing.is_err_and(|error| error.to_string().contains("no_such_function")));
    let id = session.register(at(sum as *const ())).unwrap();
    assert!(session.register(Probe::at("libc:no_such_function").unwrap()).is_err());
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
    let id = session.register(unsafe { Probe::at("libc:malloc").unwrap().on_entry(handler) }).unwrap();
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
    // SAFETY: see above.
    unsafe { libc::munmap(far.0, far.1) };
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
                context.set_argument(0, 10);
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

#[test]
fn a_process_goes_on_without_its_controller() {
    let _turn = turn();
    let (count, handler) = counter();
    // SAFETY: it counts.
    let session = Session::own().probe(unsafe { at(sum as *const ()).on_entry(handler) }).start().unwrap();
    let own = std::process::id() as i32;
    let status = sidestep_engine::status(own, &sidestep::Options::default()).unwrap();
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
