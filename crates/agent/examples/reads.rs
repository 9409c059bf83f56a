//! What reads of the target's memory cost: a string of 16 bytes directly, by the kernel, and from a
//! bad address.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Instant;

use sidestep_agent::{agent_signal, reads};
use sidestep_wire::Private;

static PRIVATE: AtomicPtr<Private> = AtomicPtr::new(ptr::null_mut());

extern "C" fn stub(signal: i32, info: *mut u8, context: *mut u8) {
    // SAFETY: set before the handler was installed; the rest is the kernel's.
    unsafe { agent_signal(PRIVATE.load(Ordering::Acquire), signal, info, context, std::ptr::null_mut()) };
}

fn measure(name: &str, rounds: u32, mut run: impl FnMut()) {
    let best = (0..9)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| run());
            start.elapsed()
        })
        .min();
    let best = best.unwrap_or_default();
    println!("{name:<40} {:8.1} ns", best.as_nanos() as f64 / f64::from(rounds));
}

fn main() {
    // SAFETY: integers and atomics: zeros are values. Reads look at `signals` alone.
    let private: &'static mut Private = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
    PRIVATE.store(private, Ordering::Release);
    // SAFETY: a handler that lives as long as the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = stub as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut());
    }
    let text = std::hint::black_box(*b"sixteen letters.\0");
    let mut to = [0u8; 256];
    let string = |from: u64, to: &mut [u8; 256]| {
        // SAFETY: a private region as far as reads look at it, and 256 bytes of room.
        std::hint::black_box(unsafe { reads::copy_str(PRIVATE.load(Ordering::Relaxed), from, to.as_mut_ptr(), 256) });
    };
    // SAFETY: a private region as far as reads look at it.
    let word = |from: u64| std::hint::black_box(unsafe { reads::word(PRIVATE.load(Ordering::Relaxed), from) });
    let at = text.as_ptr() as u64;
    measure("string of 16 bytes, by the kernel", 20_000, || string(at, &mut to));
    private.signals.readable.store(1, Ordering::Release);
    measure("string of 16 bytes", 1_000_000, || string(at, &mut to));
    measure("word", 1_000_000, || {
        let _ = word(at);
    });
    measure("string at NULL", 20_000, || string(0, &mut to));
    measure("string at a bad address", 20_000, || string(0x1_0000_0000, &mut to));
}
