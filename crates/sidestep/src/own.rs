//! The controller of one's own process. A process cannot trace itself, so it forks one: the copy
//! has all that the engine needs, and no program has to be found and executed.
//!
//! What is allowed in the copy of a process with threads? POSIX: calls that are async-signal-safe.
//! glibc and musl: more, since their `fork` puts the locks of their allocator, of the loader and of
//! threads into order. The controller allocates, reads files and starts threads; it takes no other
//! lock of the process (it neither prints nor reads or changes the environment), runs none of its
//! code, and leaves by `_exit`. It is forked twice, so that the process has no child that it does
//! not know of, and has none of its files open: pipes and sockets end when the process closes them.
#![allow(unsafe_code, reason = "fork, and what has to be set right after it")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use std::{env, mem, process, ptr, thread};

/// Stack of a controller.
pub const STACK: usize = 8 << 20;
/// Its socket.
const SOCKET: i32 = 3;
/// How long the first copy waits for locks. Each one after it waits twice as long.
const PATIENCE: Duration = Duration::from_millis(50);
/// So many copies are tried.
const COPIES: u32 = 8;
/// Bytes of a number in the first answer of a copy.
const NUMBER: usize = size_of::<u32>();
/// Signals of the kernel.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// Forks a controller, which serves one end of a socket. The other end.
pub fn start(serve: impl FnOnce(&UnixStream) + Send) -> io::Result<UnixStream> {
    let target = process::id() as i32;
    // Programs that are not mapped are looked for in it. The copy must not take the lock of the
    // environment.
    let path = env::var_os("PATH");
    let mut copies = 0;
    loop {
        let (mut ours, theirs) = UnixStream::pair()?;
        if fork_twice()? {
            let serve = |socket: &UnixStream| {
                sidestep_engine::search_in(path);
                serve(socket);
            };
            run(target, &theirs, PATIENCE * (1 << copies), serve);
        }
        drop(theirs);
        copies += 1;
        match first_answer(&mut ours)? {
            First::Ready(pid) => {
                // SAFETY: no memory is involved. Where Yama is at work (ptrace_scope 1), a process
                // says who may trace it.
                unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(pid), 0, 0, 0) };
                return Ok(ours);
            }
            First::Failed(error) => return Err(error),
            First::Ended if copies < COPIES => {}
            First::Ended => {
                return Err(io::Error::other(format!("{COPIES} copies of the process could start no thread")));
            }
        }
    }
}

/// What a copy says first.
#[derive(Debug)]
enum First {
    /// It serves: its process id.
    Ready(u32),
    /// Something that another copy would not get either.
    Failed(io::Error),
    /// Nothing: it has waited for a lock that was never free.
    Ended,
}

/// Reads a process id, or a zero and the number of an error.
fn first_answer(socket: &mut UnixStream) -> io::Result<First> {
    let mut number = || {
        let mut bytes = [0; NUMBER];
        match socket.read_exact(&mut bytes) {
            Ok(()) => Ok(Some(u32::from_ne_bytes(bytes))),
            // One that is killed with bytes of ours unread resets the connection; we have sent
            // none.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    };
    Ok(match number()? {
        None => First::Ended,
        Some(0) => {
            First::Failed(number()?.map_or(io::ErrorKind::Other.into(), |e| io::Error::from_raw_os_error(e as i32)))
        }
        Some(pid) => First::Ready(pid),
    })
}

/// True in a copy of this process, which is not its child. In the copy, all signals are blocked: no
/// handler of the program may run.
fn fork_twice() -> io::Result<bool> {
    // SAFETY: sets of signals are plain data, and the child that is waited for is our own. The
    // program may have waited for it, or wants no children to wait for.
    unsafe {
        let (mut all, mut before) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let fork = libc::fork();
        if fork == 0 {
            match libc::fork() {
                0 => return Ok(true),
                // Numbers of errors are smaller than 256.
                second => libc::_exit(if second < 0 { errno() } else { 0 }),
            }
        }
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        if fork < 0 {
            return Err(error);
        }
        let mut status = 0;
        while libc::waitpid(fork, &mut status, 0) < 0 && errno() == libc::EINTR {}
        match libc::WEXITSTATUS(status) {
            0 => Ok(false),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// In the forked process.
fn run(target: i32, socket: &UnixStream, patience: Duration, serve: impl FnOnce(&UnixStream) + Send) -> ! {
    // A panic is a mistake of ours; it must not get to the program's code.
    let status = match catch_unwind(AssertUnwindSafe(|| set_up(target, socket, patience, serve))) {
        Ok(Ok(())) => 0,
        Ok(Err(_)) | Err(_) => 1,
    };
    // SAFETY: nothing of the program is to run at the end of this copy.
    unsafe { libc::_exit(status) }
}

fn set_up(
    target: i32,
    socket: &UnixStream,
    patience: Duration,
    serve: impl FnOnce(&UnixStream) + Send,
) -> io::Result<()> {
    // SAFETY: the descriptors are this process's own, which uses none of those that it was forked
    // with but the socket.
    let mut socket = unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"sidestep".as_ptr());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..SOCKET {
            libc::dup2(null, standard);
        }
        if libc::dup2(socket.as_raw_fd(), SOCKET) != SOCKET {
            return Err(io::Error::last_os_error());
        }
        libc::syscall(libc::SYS_close_range, SOCKET + 1, u32::MAX, 0);
        for signal in SIGNALS {
            libc::signal(signal, if signal == libc::SIGPIPE { libc::SIG_IGN } else { libc::SIG_DFL });
        }
        let mut none = mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        UnixStream::from_raw_fd(SOCKET)
    };
    let pidfd = begin(target, &mut socket, patience).inspect_err(|error| {
        let number = error.raw_os_error().unwrap_or(0) as u32;
        let _ = socket.write_all(&[0, number].map(u32::to_ne_bytes).concat());
    })?;
    thread::scope(|scope| {
        // What is left of the stack that this was forked on may be little.
        thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || {
            let served = catch_unwind(AssertUnwindSafe(|| serve(&socket)));
            // SAFETY: ends the forked helper, which has nothing to clean up.
            unsafe { libc::_exit(i32::from(served.is_err())) }
        })?;
        // When the target has ended, there is nothing to take out; a child of it may still have the
        // other end of the socket.
        let mut end = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `end` is one valid pollfd. `_exit` ends the forked helper, which has nothing to
        // clean up.
        unsafe {
            while libc::poll(&mut end, 1, -1) < 0 {}
            libc::_exit(0)
        }
    })
}

/// What may fail: starting threads, and watching the target. The other side is told that all is
/// well.
fn begin(target: i32, socket: &mut UnixStream, patience: Duration) -> io::Result<File> {
    take_lock_of_threads(patience)?;
    // SAFETY: no memory is involved; the kernel gives a new descriptor, or an error.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, target, 0) } as i32;
    if pidfd < 0 {
        return Err(io::Error::last_os_error());
    }
    socket.write_all(&process::id().to_ne_bytes())?;
    // SAFETY: the descriptor is new.
    Ok(unsafe { File::from_raw_fd(pidfd) })
}

/// Takes the lock under which the standard library starts threads. SIGALRM ends this process if it
/// is never free.
fn take_lock_of_threads(patience: Duration) -> io::Result<()> {
    alarm(patience);
    let begun = thread::Builder::new().spawn(|| {})?.join();
    alarm(Duration::ZERO);
    begun.map_err(|_| io::Error::other("a thread has panicked"))
}

/// SIGALRM after some time; never, if that is zero.
fn alarm(after: Duration) {
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let after = libc::timeval { tv_sec: after.as_secs() as _, tv_usec: after.subsec_micros() as _ };
    let timer = libc::itimerval { it_interval: never, it_value: after };
    // SAFETY: a timer of this process's own; what was set before is not asked for.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "failed to fill whole buffer" was all that was said of a copy that could start no thread.
    #[test]
    fn why_a_copy_has_ended_was_not_said() {
        let said = |numbers: &[i32]| {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(&numbers.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<u8>>()).unwrap();
            drop(theirs);
            first_answer(&mut ours).unwrap()
        };
        assert!(matches!(said(&[4321]), First::Ready(4321)));
        assert!(matches!(said(&[0, libc::EAGAIN]), First::Failed(e) if e.raw_os_error() == Some(libc::EAGAIN)));
        assert!(matches!(said(&[]), First::Ended));
    }
}
