//! All signals that end a program and can be caught go through a pipe, so that none is lost and a
//! wait ends at once: whatever a user or a lost terminal sends, the target is detached from first.
//!
//! SIGPIPE gets a handler that does nothing instead of being ignored as Rust programs have it: a
//! write to a closed pipe fails with `EPIPE` either way, but a handler does not survive `execve`,
//! so a command that is started has the default action like under a shell. SIGCHLD has it, too, so
//! that the end of a command interrupts a wait.
#![allow(unsafe_code, reason = "sigaction, poll and a self-pipe have no safe interface in std")]

use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::out::time;

/// Write end of the pipe, for the handler; -1 before it exists.
static PIPE: AtomicI32 = AtomicI32::new(-1);
/// A script has blocks for SIGUSR1: the signal ends nothing, and is counted.
static HAS_BLOCKS: AtomicBool = AtomicBool::new(false);
/// How often SIGUSR1 came for the blocks of a script.
static FOR_BLOCKS: AtomicU32 = AtomicU32::new(0);
/// What the pipe gets to end a wait, where no signal is to be told.
const WAKE: u8 = 0;
/// When the last signal arrived, in nanoseconds of `CLOCK_MONOTONIC`; 0: there was none.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Signals whose default action ends the program, without those that name a mistake of its own
/// (SIGSEGV and its like). A limit of CPU time is one of them; that of a file's size makes a write
/// fail instead.
const ENDS: [i32; 12] = [
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
    libc::SIGXCPU,
];

/// Signals that ask the program to end, from the moment it exists.
#[derive(Debug)]
pub struct Signals {
    pipe: OwnedFd,
}

/// Signals that follow so closely are one wish: `timeout(1)` sends each signal to its command and
/// then to the process group, and nobody presses Ctrl-C twice that fast.
const ECHO_NS: u64 = 100_000_000;
/// The kernel may keep the tool so long after the signal that asks it to end.
const KEPT: Duration = Duration::from_secs(10);

impl Signals {
    /// Installs the handlers. A SIGHUP that was ignored stays ignored: that is what nohup(1) is
    /// for. `command`: a command will be started; then what was ignored (SIGINT and SIGQUIT in a
    /// background job of a shell script) stays ignored, because the command inherits that.
    pub fn install(command: bool) -> io::Result<Signals> {
        let mut fds = [0; 2];
        // SAFETY: `fds` has room for the two descriptors.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: pipe2 has just returned it, so nothing else owns it. The write end stays open for
        // the handler.
        let pipe = unsafe { OwnedFd::from_raw_fd(fds[0]) };
        PIPE.store(fds[1], Ordering::SeqCst);
        for signal in [libc::SIGPIPE, libc::SIGXFSZ, libc::SIGCHLD] {
            handle(signal, nothing)?;
        }
        for signal in ENDS.into_iter().chain([libc::SIGINT]) {
            if !((command || signal == libc::SIGHUP) && is_ignored(signal)?) {
                handle(signal, forward)?;
            }
        }
        blocked(|| std::thread::Builder::new().name("ends".to_owned()).spawn(end_if_stuck))?;
        Ok(Signals { pipe })
    }

    /// The next signal, waiting for it up to `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<i32> {
        self.wait_or(timeout, None)
    }

    /// The same; also ends the waiting when a descriptor is readable.
    pub fn wait_or(&self, timeout: Duration, other: Option<BorrowedFd<'_>>) -> Option<i32> {
        // A negative one is left out.
        let fds = [self.pipe.as_raw_fd(), other.map_or(-1, |fd| fd.as_raw_fd())];
        let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // Rounded up, so that a wait for half a millisecond does not spin.
        let millis = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
        // SAFETY: `polls` are two pollfds. If a signal interrupts the call, the read below finds
        // it.
        unsafe { libc::poll(polls.as_mut_ptr(), 2, millis) };
        let mut signal = 0u8;
        // SAFETY: there is room for one byte; the descriptor does not block.
        let got = unsafe { libc::read(self.pipe.as_raw_fd(), ptr::from_mut(&mut signal).cast(), 1) };
        (got == 1 && signal != WAKE).then_some(signal.into())
    }
}

/// Ends the tool if it cannot do so by itself.
fn end_if_stuck() {
    let signals: Vec<i32> = ENDS.into_iter().chain([libc::SIGINT]).collect();
    sidestep_engine::until_stuck(&signals, || sidestep_engine::interrupts() > 0, KEPT);
    let text = format!(
        "sidestep: the kernel has kept this command waiting for {} s, in a read of memory that nobody gives: it ends \
         without a detach; `sidestep detach -p PID` removes the probes",
        KEPT.as_secs()
    );
    let stderr = io::stderr();
    if let Ok(file) = stderr.as_fd().try_clone_to_owned().map(File::from) {
        if first_writable(&[&file], 1000).is_some() {
            let _ = writeln!(&file, "{text}");
        }
    }
    std::process::exit(1);
}

/// From now on SIGUSR1 is for the blocks of a script. Handlers are there already, or come with
/// [`Signals::install`].
pub fn keep_for_blocks() -> io::Result<()> {
    HAS_BLOCKS.store(true, Ordering::SeqCst);
    handle(libc::SIGUSR1, forward)
}

/// How often SIGUSR1 came since the last call.
pub fn taken_for_blocks() -> u32 {
    FOR_BLOCKS.swap(0, Ordering::SeqCst)
}

/// Has a signal come so soon after the one before? The first one comes after 0.
fn is_echo(last: u64, now: u64) -> bool {
    last != 0 && now.saturating_sub(last) < ECHO_NS
}

/// Sends a signal to a process, for example the SIGTERM that only we have got to the command. A
/// process that is gone is no error.
pub fn send(pid: i32, signal: i32) {
    if pid > 0 {
        // SAFETY: kill touches no memory of ours.
        unsafe { libc::kill(pid, signal) };
    }
}

/// From now on they end the program again, but for those that it was started to ignore.
pub fn give_back() {
    for signal in ENDS.into_iter().chain([libc::SIGINT]) {
        // SAFETY: an all-zero sigaction is a valid one, of the default action.
        let action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        if is_ignored(signal).is_ok_and(|ignored| !ignored) {
            // SAFETY: `action` is initialised, and has no handler.
            unsafe { libc::sigaction(signal, &action, ptr::null_mut()) };
        }
    }
}

/// Makes a thread that gets no signals: they are for the one that waits.
pub fn blocked<T>(make: impl FnOnce() -> T) -> T {
    let (mut all, mut old) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets are written before they are read; a thread inherits the mask of the one
    // that makes it.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
        let made = make();
        libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), ptr::null_mut());
        made
    }
}

/// The first of these files that takes bytes, or fails at once, within a time.
pub fn first_writable(files: &[&File], millis: i32) -> Option<usize> {
    let poll = |file: &&File| libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    let mut polls: Vec<libc::pollfd> = files.iter().map(poll).collect();
    // SAFETY: so many pollfds, whose descriptors are open as long as the files.
    unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, millis) };
    polls.iter().position(|poll| poll.revents != 0)
}

extern "C" fn forward(signal: i32) {
    let byte = if signal == libc::SIGUSR1 && HAS_BLOCKS.load(Ordering::SeqCst) {
        // One byte wakes for all of them: a full pipe would lose the signals that end the tool.
        if FOR_BLOCKS.fetch_add(1, Ordering::SeqCst) != 0 {
            return;
        }
        WAKE
    } else {
        let now = time::monotonic();
        if is_echo(LAST.swap(now, Ordering::SeqCst), now) {
            return;
        }
        // Whatever is waited for in the engine.
        sidestep_engine::interrupt();
        signal as u8
    };
    // SAFETY: `__errno_location` is valid for the thread, and `write` and `clock_gettime` may be
    // called in a handler (signal-safety(7)); errno is put back because the interrupted code may be
    // about to read it. A full pipe holds enough signals.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(PIPE.load(Ordering::SeqCst), ptr::from_ref(&byte).cast(), 1);
        *libc::__errno_location() = errno;
    }
}

extern "C" fn nothing(_: i32) {}

fn handle(signal: i32, handler: extern "C" fn(i32)) -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid one: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is initialised and the handler does only what a handler may do.
    if unsafe { libc::sigaction(signal, &action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn is_ignored(signal: i32) -> io::Result<bool> {
    // SAFETY: an all-zero sigaction is a valid one; it is only written to.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: a null new action asks for the current one.
    if unsafe { libc::sigaction(signal, ptr::null(), &mut action) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(action.sa_sigaction == libc::SIG_IGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_not_lost_and_its_echo_is_dropped() {
        let signals = Signals::install(false).unwrap();
        assert_eq!(signals.wait(Duration::ZERO), None);
        for signal in [libc::SIGTERM, libc::SIGTERM] {
            // SAFETY: raise touches no memory of ours; the handler runs before it returns.
            unsafe { libc::raise(signal) };
        }
        assert_eq!(signals.wait(Duration::from_secs(5)), Some(libc::SIGTERM));
        assert_eq!(signals.wait(Duration::ZERO), None);
        std::thread::sleep(Duration::from_nanos(2 * ECHO_NS));
        // SAFETY: raise touches no memory of ours; the handler runs before it returns.
        unsafe { libc::raise(libc::SIGINT) };
        assert_eq!(signals.wait(Duration::from_secs(5)), Some(libc::SIGINT));
        assert_eq!(sidestep_engine::interrupts(), 2);
    }

    /// `timeout 1 sidestep ...` printed nothing: its two SIGTERMs were taken for an impatient user.
    #[test]
    fn two_signals_of_timeout_are_one_wish() {
        assert!(!is_echo(0, 7));
        assert!(is_echo(1_000_000_000, 1_000_050_000));
        assert!(!is_echo(1_000_000_000, 1_200_000_000));
    }
}
