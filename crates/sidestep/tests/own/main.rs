//! Probes of one's own process. There can be one session at a time, so the tests take turns.
#![allow(unsafe_code, reason = "handlers are promises")]

mod handlers;
mod replaced;
mod session;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sidestep::{Context, Probe};

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
