//! Probes of one's own process. All tests are in it, so they take turns.
#![allow(unsafe_code, reason = "handlers are promises")]

mod handlers;
mod inside;
mod replaced;
mod session;
mod switched;
#[cfg_attr(target_arch = "x86", path = "vectors_32.rs")]
mod vectors;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use sidestep::{Context, Probe};

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The functions under test. Each has a body that is long enough to differ, and is called through a
/// pointer that the compiler does not see through.
macro_rules! function {
    ($name:ident($($arg:ident),*) -> $out:ty, $body:expr) => {
        #[inline(never)]
        extern "C" fn $name($($arg: usize),*) -> $out {
            black_box($body)
        }
    };
}
function!(sum(a, b) -> usize, a.wrapping_mul(3).wrapping_add(b));
function!(product(a, b) -> usize, a.wrapping_mul(b).wrapping_add(1));
function!(inner(a) -> usize, a ^ 0x55);
function!(half(a) -> f64, a as f64 / 2.0);

type Two = extern "C" fn(usize, usize) -> usize;

/// Argument `n` of one of them, at its entry.
fn argument(context: &mut Context, n: usize) -> &mut usize {
    // SAFETY: they have no others.
    unsafe { &mut *context.word_argument(n) }
}

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

/// How often four threads make a call while something is done.
fn calls_meanwhile(call: fn(), done: impl FnOnce()) -> u64 {
    let over = Arc::new(AtomicBool::new(false));
    let threads: Vec<thread::JoinHandle<u64>> = (0..4)
        .map(|_| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                let mut calls = 0;
                while !over.load(SeqCst) {
                    call();
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    done();
    over.store(true, SeqCst);
    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
}
