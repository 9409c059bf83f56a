//! Words of shared memory: one that somebody changes and wakes, as a descriptor that can be polled,
//! and one that grows as long as something is being done.
#![allow(unsafe_code, reason = "futex, eventfd and signal masks")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::shared::SharedMap;

/// Wakes all who wait for a word of shared memory to change.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: only the address is used.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// A thread that waits for the word.
#[derive(Debug)]
pub struct Watch {
    event: Arc<OwnedFd>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the word at an offset. The descriptor is readable when the word has changed since,
    /// until [`Watch::clear`].
    ///
    /// # Errors
    /// What the kernel says: there is no room for a descriptor or a thread.
    pub fn new(map: Arc<SharedMap>, at: usize) -> io::Result<Watch> {
        // SAFETY: no memory is involved.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor.
        let event = Arc::new(unsafe { OwnedFd::from_raw_fd(event) });
        let end = Arc::new(AtomicBool::new(false));
        let (to, until) = (event.clone(), end.clone());
        let builder = std::thread::Builder::new().name("bell".to_owned());
        let thread = without_signals(|| builder.spawn(move || listen(&map, at, &to, &until)))?;
        Ok(Watch { event, end, thread: Some(thread) })
    }

    /// From now on, only what changes later makes the descriptor readable.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: `count` has room for what an eventfd gives.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }

    /// Makes the descriptor readable, as a change of the word does.
    pub fn wake(&self) {
        wake(&self.event);
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        // It looks now and then.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A thread that adds one to a word of shared memory now and then, until this is dropped: whoever
/// waits for the process sees that it is alive, whatever it does meanwhile.
#[derive(Debug)]
pub struct Beat {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Beat {
    /// The word at an offset grows every `period`, but not for longer than `most`.
    ///
    /// # Errors
    /// What the kernel says: there is no room for a thread.
    pub fn new(map: Arc<SharedMap>, at: usize, period: Duration, most: Duration) -> io::Result<Beat> {
        let end = Arc::new(AtomicBool::new(false));
        let until = end.clone();
        let beat = move || {
            let (Some(word), begin) = (map.get::<AtomicU32>(at), Instant::now()) else { return };
            while !until.load(Ordering::Acquire) && begin.elapsed() < most {
                word.fetch_add(1, Ordering::AcqRel);
                std::thread::park_timeout(period);
            }
        };
        let thread = without_signals(|| std::thread::Builder::new().name("beat".to_owned()).spawn(beat))?;
        Ok(Beat { end, thread: Some(thread) })
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Signals are for the thread that polls.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: plain sets of our own; a thread inherits the mask of the one that makes it.
    unsafe {
        let (mut all, mut old) = (std::mem::zeroed::<libc::sigset_t>(), std::mem::zeroed::<libc::sigset_t>());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, ptr::null_mut());
        result
    }
}

fn listen(map: &SharedMap, at: usize, event: &OwnedFd, end: &AtomicBool) {
    let Some(word) = map.get::<AtomicU32>(at) else { return };
    let time = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut seen = word.load(Ordering::Acquire);
    while !end.load(Ordering::Acquire) {
        // SAFETY: the word is mapped as long as `map`, and `time` lives on this stack.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const time) };
        let now = word.load(Ordering::Acquire);
        if now != seen {
            seen = now;
            wake(event);
        }
    }
}

fn wake(event: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight bytes, as an eventfd takes them.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
}
