//! What does a hit cost, above the call of a function that is not probed?
#![allow(unsafe_code, reason = "handlers are promises")]

use std::ffi::c_void;
use std::hint::black_box;
use std::time::Instant;

use sidestep::{Context, Error, Original, Probe, Session};

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl cost_push",
    ".type cost_push, @function",
    "cost_push:",
    "push %rbx",
    "mov %rdi, %rbx",
    "lea 1(%rbx), %rax",
    "pop %rbx",
    "ret",
    ".size cost_push, . - cost_push",
    options(att_syntax)
);
#[cfg(target_arch = "x86")]
std::arch::global_asm!(
    ".globl cost_push",
    ".type cost_push, @function",
    "cost_push:",
    "push %ebx",
    "mov 8(%esp), %ebx",
    "lea 1(%ebx), %eax",
    "pop %ebx",
    "ret",
    ".size cost_push, . - cost_push",
    options(att_syntax)
);

unsafe extern "C" {
    /// Its first instruction is a `push`.
    safe fn cost_push(number: usize) -> usize;
}

const CALLS: usize = 20_000;
const ROUNDS: usize = 200;

/// Nanoseconds per call, the best of some rounds.
fn measure() -> f64 {
    let function = black_box(cost_push as extern "C" fn(usize) -> usize);
    let round = |_| {
        let start = Instant::now();
        let sum: usize = (0..CALLS).fold(0, |sum, number| sum ^ function(number));
        black_box(sum);
        start.elapsed().as_nanos() as f64 / CALLS as f64
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

static mut ORIGINAL: Option<Original> = None;

extern "C" fn nothing(_context: *mut Context, _data: *mut c_void) {}

extern "C" fn instead(number: usize) -> usize {
    // SAFETY: it was written before this function was registered.
    let original: extern "C" fn(usize) -> usize = unsafe {
        let Some(original) = ORIGINAL else { return 0 };
        original.function()
    };
    original(number)
}

fn main() -> Result<(), Error> {
    let at = || Probe::function(cost_push as *const ());
    let original = Original::new()?;
    // SAFETY: handlers that do nothing, and a function of the same type.
    let probes = unsafe {
        ORIGINAL = Some(original);
        [
            ("count", at()?),
            ("closure at the entry", at()?.on_entry(|_| {})),
            ("closures at entry and return", at()?.on_entry(|_| {}).on_return(|_| {})),
            ("function", at()?.callbacks(Some((nothing, 0)), None, false)),
            ("function without vectors", at()?.callbacks(Some((nothing, 0)), None, true)),
            ("replaced, calls the original", at()?.replace(instead as *const (), &original)),
        ]
    };
    let session = Session::own().start()?;
    let bare = measure();
    println!("{bare:6.1} ns  not probed");
    for (name, probe) in probes {
        let id = session.register(probe)?;
        println!("{:6.1} ns  {name}", measure() - bare);
        session.unregister(id)?;
    }
    session.detach()
}
