//! Starting a command that stands still before its first instruction.
#![allow(unsafe_code, reason = "fork, execve, waitid")]

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ExitStatus;
use crate::access::OpenError;
use crate::arch::Regs;
use crate::patience::Limit;
use crate::process::Process;
use crate::ptrace::{self, Event};
use crate::startup::Startup;
use crate::stopped::{Stopped, wait_until};

/// Longest time from fork to the first instruction.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a command could not be started. No process is left behind.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// No command was given.
    #[error("no command given; name a program to start")]
    Empty,
    /// Not in any directory of `PATH`, or no such file.
    #[error("{}: command not found; check the name and PATH", .command.display())]
    NotFound {
        /// As given.
        command: PathBuf,
    },
    /// The file may not be executed.
    #[error("{}: not executable; set its x permission (chmod +x), or check for a noexec mount", .path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
    },
    /// A directory.
    #[error("{}: is a directory; name a program", .path.display())]
    IsDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Neither ELF nor a script.
    #[error("{}: not a program of this machine, and no script with a #! line; check it with file(1)", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// The file is there, but not what its first line or its ELF header names as interpreter.
    #[error("{}: its interpreter (#! line or dynamic loader) does not exist; install it", .path.display())]
    NoInterpreter {
        /// The file.
        path: PathBuf,
    },
    /// An argument or variable has a zero byte.
    #[error("an argument or environment variable of the command has a zero byte; remove it")]
    ZeroByte,
    /// The command started but cannot be probed; it has been killed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new process was killed before its first instruction.
    #[error("{}: the process ended before its first instruction ({status:?}); check memory limits", .path.display())]
    Died {
        /// The file.
        path: PathBuf,
        /// Its exit status, or the signal that ended it.
        status: ExitStatus,
    },
    /// Anything else.
    #[error("cannot start {}: {source}; check the limits on processes and memory (ulimit -a)", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A command that was started by us: its end can be waited for.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    status: Option<ExitStatus>,
}

impl Child {
    pub(crate) fn of(pid: i32) -> Child {
        Child { pid, status: None }
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for the end of the process. It must not be stopped by us.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.reap(0)? {
                return Ok(status);
            }
        }
    }

    /// The exit status if the process has ended. Never blocks.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.reap(libc::WNOHANG)
    }

    fn reap(&mut self, hang: i32) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = ptrace::wait_exit(self.pid, hang)?;
        }
        Ok(self.status)
    }
}

/// A started command that stands still: before its first instruction, or at an event of its startup
/// (see [`Spawned::next_mapping_change`]). If this is dropped the command runs.
#[derive(Debug)]
pub struct Spawned {
    pub(crate) process: Process,
    pub(crate) stopped: Stopped,
    pub(crate) child: Child,
    pub(crate) startup: Startup,
}

impl Spawned {
    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The stopped threads: read, write, call.
    #[must_use]
    pub fn stopped(&mut self) -> &mut Stopped {
        &mut self.stopped
    }

    /// Ends the command: nobody wants it without what was to be done first.
    pub fn kill(self) {
        let Spawned { stopped, mut child, .. } = self;
        // SAFETY: no memory is involved; the child has not been waited for, so its pid is still its
        // own.
        unsafe { libc::kill(child.pid, libc::SIGKILL) };
        drop(stopped);
        let _ = child.wait();
    }

    /// Lets the command run.
    #[must_use]
    pub fn into_process(self) -> (Process, Child) {
        let Spawned { process, stopped, child, .. } = self;
        // An error says that the process has died: the child's status tells.
        let _ = stopped.resume();
        (process, child)
    }
}

/// Starts a command with this environment (usually [`std::env::vars_os`]), in the current
/// directory, with our standard streams, and with the signal mask and dispositions that a shell
/// would give it.
pub fn spawn(argv: &[OsString], env: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Spawned, SpawnError> {
    let name = argv.first().filter(|a| !a.is_empty()).ok_or(SpawnError::Empty)?;
    let path = look_up(name)?;
    let image = Image::new(&path, argv, env)?;
    let io = |source| SpawnError::Io { path: path.clone(), source };
    let (mut ours, theirs) = UnixStream::pair().map_err(io)?;

    // SAFETY: the child makes only async-signal-safe calls until execve or _exit.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => return Err(io(io::Error::last_os_error())),
        0 => image.run(ours.as_raw_fd(), theirs.as_raw_fd()),
        _ => drop(theirs),
    }
    let mut child = Child { pid, status: None };
    let result = start(&mut ours, pid, &path);
    match result {
        Ok((process, regs)) => {
            let stopped = Stopped::adopt(process.clone(), regs);
            Ok(Spawned { process, stopped, child, startup: Startup::default() })
        }
        Err(e) => {
            // SAFETY: no memory is involved; the child has not been waited for, so its pid is still
            // its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            let _ = child.wait();
            Err(e)
        }
    }
}

/// Traces the new process, lets it execute the program and stops it there.
fn start(socket: &mut UnixStream, pid: i32, path: &Path) -> Result<(Process, Regs), SpawnError> {
    let io = |source| SpawnError::Io { path: path.to_owned(), source };
    ptrace::seize(pid, ptrace::OPTIONS).map_err(io)?;
    socket.write_all(&[1]).map_err(io)?;
    let limit = Limit::after(TIMEOUT);
    loop {
        match wait_until(pid, limit, || {}).map_err(io)? {
            None => return Err(io(io::ErrorKind::TimedOut.into())),
            Some(Event::Exec) => break,
            Some(Event::Exited(status)) => {
                let mut errno = [0; 4];
                return Err(match socket.read_exact(&mut errno) {
                    Ok(()) => exec_error(path, i32::from_ne_bytes(errno)),
                    Err(_) => SpawnError::Died { path: path.to_owned(), status },
                });
            }
            Some(Event::Signal(signal)) => ptrace::cont(pid, signal).map_err(io)?,
            Some(_) => ptrace::cont(pid, 0).map_err(io)?,
        }
    }
    match stop_after_exec(pid).map_err(io)? {
        // It stands until our caller kills it, if there is another build for it.
        Ok(regs) => Ok((Process::open(pid)?, regs)),
        Err(status) => Err(SpawnError::Died { path: path.to_owned(), status }),
    }
}

/// From the exec event to a stop at the first instruction.
pub(crate) fn stop_after_exec(pid: i32) -> io::Result<Result<Regs, ExitStatus>> {
    let mut signal = 0;
    let limit = Limit::after(TIMEOUT);
    ptrace::interrupt(pid)?;
    loop {
        ptrace::cont(pid, signal)?;
        match wait_until(pid, limit, || {})? {
            None => return Err(io::ErrorKind::TimedOut.into()),
            Some(Event::Stop) => {
                return Ok(Ok(ptrace::get_regs(pid)?));
            }
            Some(Event::Exited(status)) => return Ok(Err(status)),
            Some(Event::Signal(s)) => signal = s,
            _ => signal = 0,
        }
    }
}

fn exec_error(path: &Path, errno: i32) -> SpawnError {
    let path = path.to_owned();
    match errno {
        libc::ENOENT if path.exists() => SpawnError::NoInterpreter { path },
        libc::ENOENT => SpawnError::NotFound { command: path },
        libc::EACCES | libc::EPERM => SpawnError::NotExecutable { path },
        libc::ENOEXEC | libc::ELIBBAD | libc::EINVAL => SpawnError::Format { path },
        _ => SpawnError::Io { path, source: io::Error::from_raw_os_error(errno) },
    }
}

/// Finds a command as a shell does.
fn look_up(name: &OsStr) -> Result<PathBuf, SpawnError> {
    if name.as_bytes().contains(&b'/') {
        return check(Path::new(name));
    }
    // execvp(3) uses these two, too, without PATH.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refused = None;
    for dir in std::env::split_paths(&path) {
        let dir = if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir };
        match check(&dir.join(name)) {
            Ok(found) => return Ok(found),
            Err(e @ SpawnError::NotExecutable { .. }) => refused = refused.or(Some(e)),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| SpawnError::NotFound { command: name.into() }))
}

fn check(path: &Path) -> Result<PathBuf, SpawnError> {
    let path = path.to_owned();
    match fs::metadata(&path) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(SpawnError::NotExecutable { path }),
        Err(_) => Err(SpawnError::NotFound { command: path }),
        Ok(m) if m.is_dir() => Err(SpawnError::IsDirectory { path }),
        Ok(m) if !m.is_file() || m.permissions().mode() & 0o111 == 0 => Err(SpawnError::NotExecutable { path }),
        Ok(_) => Ok(path),
    }
}

/// Everything that the child needs, allocated before the fork.
struct Image {
    path: CString,
    /// Ends with a null pointer; points into `_strings`.
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    _strings: [Vec<CString>; 2],
}

impl Image {
    fn new(
        path: &Path,
        argv: &[OsString],
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Image, SpawnError> {
        let c = |s: &[u8]| CString::new(s).map_err(|_| SpawnError::ZeroByte);
        let variable = |(mut name, value): (OsString, OsString)| {
            name.push("=");
            name.push(value);
            CString::new(name.into_vec()).map_err(|_| SpawnError::ZeroByte)
        };
        let args = argv.iter().map(|a| c(a.as_bytes())).collect::<Result<Vec<_>, _>>()?;
        let vars = env.into_iter().map(variable).collect::<Result<Vec<_>, _>>()?;
        Ok(Image {
            path: c(path.as_os_str().as_bytes())?,
            argv: pointers(&args),
            env: pointers(&vars),
            _strings: [args, vars],
        })
    }

    /// In the child: waits until it is traced, then executes the program.
    fn run(&self, ours: i32, theirs: i32) -> ! {
        // SAFETY: only system calls; all pointers are to memory that lives until execve.
        unsafe {
            // Else this process itself would keep the socket open if the controller dies.
            libc::close(ours);
            // What we may ignore or block must not reach the program. Handlers are reset by the
            // kernel.
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGPIPE, libc::SIGCHLD] {
                libc::signal(signal, libc::SIG_DFL);
            }
            let mut none = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            let mut go = 0u8;
            if libc::read(theirs, (&raw mut go).cast(), 1) == 1 {
                libc::execve(self.path.as_ptr(), self.argv.as_ptr(), self.env.as_ptr());
                let errno = *libc::__errno_location();
                libc::write(theirs, (&raw const errno).cast(), size_of::<i32>());
            }
            libc::_exit(127)
        }
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str) -> String {
        look_up(OsStr::new(name)).unwrap_err().to_string()
    }

    #[test]
    fn a_command_that_is_not_there_is_named() {
        assert_eq!(error("no-such-cmd"), "no-such-cmd: command not found; check the name and PATH");
        assert_eq!(error("/no/such"), "/no/such: command not found; check the name and PATH");
        assert_eq!(error("/tmp"), "/tmp: is a directory; name a program");
        assert!(error("/etc/passwd").starts_with("/etc/passwd: not executable"));
        assert!(look_up(OsStr::new("sh")).unwrap().is_absolute());
    }
}
