//! System calls that touch no memory of the program, as safe functions.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;

use crate::arch::{self, nr};

// include/uapi/asm-generic/signal-defs.h
const SIG_BLOCK: u64 = 0;
const SIG_UNBLOCK: u64 = 1;
const SIG_SETMASK: u64 = 2;
/// Bytes of a signal set.
pub const SET_LEN: u64 = 8;
// include/uapi/linux/futex.h
const FUTEX_WAIT: u64 = 0;
const FUTEX_WAKE: u64 = 1;
const ETIMEDOUT: i64 = -110;
const ESRCH: i64 = -3;

/// The calling process, as it sees itself.
#[must_use]
pub fn process_id() -> u32 {
    ask(nr::GETPID) as u32
}

/// The calling thread, as its process sees it.
#[must_use]
pub fn thread_id() -> u32 {
    ask(nr::GETTID) as u32
}

/// The process that has made the calling one.
#[must_use]
pub fn parent_id() -> u64 {
    ask(nr::GETPPID)
}

/// The real user id.
#[must_use]
pub fn user_id() -> u32 {
    ask(nr::GETUID) as u32
}

/// The real group id.
#[must_use]
pub fn group_id() -> u32 {
    ask(nr::GETGID) as u32
}

fn ask(number: u64) -> u64 {
    // SAFETY: a call without arguments.
    (unsafe { arch::syscall(number, [0; 6]) }) as u64
}

/// Sends a signal to the process; negative results are `-errno`. A handler of the program may run
/// before this returns.
pub fn signal_process(signal: u64) -> i64 {
    // SAFETY: the call touches no memory.
    unsafe { arch::syscall(nr::KILL, [process_id().into(), signal, 0, 0, 0, 0]) }
}

/// Sends a signal to a thread of the process; the rest is as with [`signal_process`].
pub fn signal_thread(thread: u32, signal: u64) -> i64 {
    // SAFETY: the call touches no memory.
    unsafe { arch::syscall(nr::TGKILL, [process_id().into(), thread.into(), signal, 0, 0, 0]) }
}

/// Is there no thread with this id in the process?
#[must_use]
pub fn has_ended(thread: u32) -> bool {
    signal_thread(thread, 0) == ESRCH
}

/// The calling thread's signal mask; none, where a filter refuses the question.
#[must_use]
pub fn mask() -> u64 {
    let mut mask = MaybeUninit::<u64>::uninit();
    let at = mask.as_mut_ptr();
    // SAFETY: a set of our own, which the call fills or leaves. The accesses are volatile: the
    // compiler does not see that the kernel writes there.
    unsafe {
        at.write_volatile(0);
        arch::syscall(nr::RT_SIGPROCMASK, [SIG_BLOCK, 0, at as u64, SET_LEN, 0, 0]);
        at.read_volatile()
    }
}

/// Adds signals to the calling thread's mask.
pub fn block(signals: u64) {
    change_mask(SIG_BLOCK, signals);
}

/// Takes signals out of the calling thread's mask.
pub fn unblock(signals: u64) {
    change_mask(SIG_UNBLOCK, signals);
}

/// Gives the calling thread another mask.
pub fn set_mask(mask: u64) {
    change_mask(SIG_SETMASK, mask);
}

fn change_mask(how: u64, signals: u64) {
    let mut set = MaybeUninit::<u64>::uninit();
    let at = set.as_mut_ptr();
    // SAFETY: a set of our own, filled by a volatile write, which the kernel only reads. Our
    // signals, which must be open at hits, are the caller's business.
    unsafe {
        at.write_volatile(signals);
        arch::syscall(nr::RT_SIGPROCMASK, [how, at as u64, 0, SET_LEN, 0, 0]);
    }
}

/// The calling thread's alternate signal stack (`stack_t`): start, flags, size. `None`: the kernel
/// does not tell.
#[must_use]
pub fn alternate_stack() -> Option<(u64, u32, u64)> {
    let mut stack = MaybeUninit::<[arch::Word; 3]>::uninit();
    let words = stack.as_mut_ptr() as u64;
    // SAFETY: the call fills the three words of `stack`, or fails.
    unsafe {
        if arch::syscall(nr::SIGALTSTACK, [0, words, 0, 0, 0, 0]) != 0 {
            return None;
        }
        let word = |index: u64| arch::read_word(words + index * arch::WORD);
        Some((word(0), word(1) as u32, word(2)))
    }
}

/// Waits while a word is `seen`, at most for this time in nanoseconds, below a second. `false`: the
/// time is over.
#[must_use]
pub fn wait(word: &AtomicU32, seen: u32, nanoseconds: u64) -> bool {
    let mut time = MaybeUninit::<[u64; 2]>::uninit();
    let at = time.as_mut_ptr().cast::<u64>();
    // SAFETY: a `struct timespec` of 64-bit words on this stack, filled, and a word that is
    // borrowed for as long as the call lasts.
    unsafe {
        at.write_volatile(0);
        at.add(1).write_volatile(nanoseconds);
        arch::syscall(nr::FUTEX, [word.as_ptr() as u64, FUTEX_WAIT, seen.into(), at as u64, 0, 0]) != ETIMEDOUT
    }
}

/// Wakes all threads that wait for a word.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the call writes nothing.
    unsafe { arch::syscall(nr::FUTEX, [word.as_ptr() as u64, FUTEX_WAKE, i32::MAX as u64, 0, 0, 0]) };
}
