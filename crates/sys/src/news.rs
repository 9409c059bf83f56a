//! Waiting for threads that are about to stop without taking a CPU from them: to look again and
//! again would, as a yield lets nobody run who has a lower priority, and a sleep is too long. The
//! kernel says when something has happened to a tracee by SIGCHLD (`do_notify_parent_cldstop` in
//! kernel/signal.c), so that is waited for. If we do not wait yet, another thread of ours may take
//! it instead, so nothing depends on it but how long it takes.
#![allow(unsafe_code, reason = "pthread_sigmask, sigaction, sigtimedwait, kill")]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

/// For how long nothing is waited for at a time, in nanoseconds: whether it has been too long is
/// the caller's business.
const LONGEST: libc::c_long = 1_000_000;

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State { wanted: false, taken: false }) };
}

#[derive(Clone, Copy)]
struct State {
    /// SIGCHLD waits for us to ask for it.
    wanted: bool,
    /// We have, and it may have been somebody else's, too.
    taken: bool,
}

/// The calling thread gets to know what happens to its tracees until this is dropped. Whoever else
/// in the process waits for SIGCHLD is told then. Several at a time are as one.
#[derive(Debug)]
pub struct News {
    /// The signals that were blocked before; `None`: nothing has been changed.
    before: Option<libc::sigset_t>,
}

impl News {
    /// From now on, before the first thread is told to stop.
    pub fn new() -> News {
        if STATE.get().wanted || !is_sent() {
            return News { before: None };
        }
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets live through the call, and it fills the second one if it says that it
        // has not failed.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &sigchld(), before.as_mut_ptr()) } != 0;
        if failed {
            return News { before: None };
        }
        STATE.set(State { wanted: true, taken: false });
        // SAFETY: `pthread_sigmask` has not failed, so it has filled the set.
        News { before: Some(unsafe { before.assume_init() }) }
    }
}

impl Drop for News {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        let taken = STATE.replace(State { wanted: false, taken: false }).taken;
        // SAFETY: a set that lives through the calls. `kill` touches no memory.
        unsafe {
            let waits = libc::sigismember(&before, libc::SIGCHLD) == 1 || action().sa_sigaction != libc::SIG_DFL;
            if taken && waits {
                libc::kill(libc::getpid(), libc::SIGCHLD);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        }
    }
}

/// Waits until something has happened to a tracee, but not for long. Without [`News`] it only lets
/// others run.
pub fn wait() {
    let state = STATE.get();
    if !state.wanted {
        return std::thread::yield_now();
    }
    let longest = libc::timespec { tv_sec: 0, tv_nsec: LONGEST };
    // SAFETY: set and time live through the call; nothing is to be filled.
    let signal = unsafe { libc::sigtimedwait(&sigchld(), ptr::null_mut(), &longest) };
    if signal == libc::SIGCHLD {
        STATE.set(State { taken: true, ..state });
    }
}

/// Does the kernel send it for stops, as the process has it?
fn is_sent() -> bool {
    let action = action();
    action.sa_sigaction != libc::SIG_IGN && action.sa_flags & libc::SA_NOCLDSTOP == 0
}

fn action() -> libc::sigaction {
    // SAFETY: an all-zero action is a valid one: the default; a null new one asks for what is.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        libc::sigaction(libc::SIGCHLD, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    }
}

fn sigchld() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    fn is_blocked() -> bool {
        let mut set = MaybeUninit::zeroed();
        // SAFETY: asks for the mask, which fills the set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set.as_mut_ptr());
            libc::sigismember(set.as_ptr(), libc::SIGCHLD) == 1
        }
    }

    #[test]
    fn the_end_of_a_child_is_news_and_the_mask_is_as_it_was() {
        assert!(!is_blocked());
        let news = News::new();
        drop(News::new());
        assert!(is_blocked(), "an inner one has ended");
        let begin = Instant::now();
        // Another thread takes the signal of one that ends before it is waited for.
        while !STATE.get().taken && begin.elapsed() < Duration::from_secs(10) {
            let mut child = Command::new("sleep").arg("0.01").spawn().unwrap();
            while child.try_wait().unwrap().is_none() {
                wait();
            }
        }
        assert!(STATE.get().taken);
        drop(news);
        assert!(!is_blocked());
    }
}
