//! Probes of one's own process. There can be one session at a time, so the tests take turns.
#![allow(unsafe_code, reason = "handlers are promises")]

use std::arch::asm;
use std::hint::black_box;
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
    (count, move |_: &mut Context| drop(theirs.fetch_add(1, SeqCst)))
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
