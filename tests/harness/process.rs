//! Child processes with limits: run to the end, or talk line by line.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// The longest time that anything here may take, unless said otherwise. Far more than needed, also
/// on a busy machine.
///
/// 32-bit Arm is only tested in an emulated machine, which is some twenty times slower.
pub const LIMIT: Duration = Duration::from_secs(if cfg!(target_arch = "arm") { 240 } else { 120 });

/// How a command ended and what it wrote.
#[derive(Debug)]
pub struct Output {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output; bytes that are no UTF-8 are replaced.
    pub stdout: String,
    /// Standard error, the same way.
    pub stderr: String,
}

impl Output {
    /// The exit code, or 128 + the signal as a shell says it.
    pub fn code(&self) -> i32 {
        self.status.code().or_else(|| self.status.signal().map(|s| 128 + s)).unwrap_or(-1)
    }

    /// Asserts a clean end.
    ///
    /// # Panics
    /// If the exit code is not 0.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code(), 0, "{self}");
        self
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n--- stdout\n{}\n--- stderr\n{}\n---", self.status, self.stdout, self.stderr)
    }
}

/// Runs a command to its end.
///
/// # Panics
/// If it cannot be started or is not done within `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Output {
    Running::start(command).finish(limit)
}

/// A child in a process group of its own, killed with all of the group on drop. Its output is
/// collected.
pub struct Running {
    pub(crate) child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    what: String,
}

impl Running {
    /// Starts it with its output collected.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Running {
        let mut running = Running::start_streaming(command);
        running.stdout = running.child.stdout.take().map(collect);
        running
    }

    /// The same, but `child.stdout` is left to the caller.
    pub(crate) fn start_streaming(command: &mut Command) -> Running {
        let mut running = Running::spawn(command);
        running.stderr = running.child.stderr.take().map(collect);
        running
    }

    /// The same, with all lines as they are written.
    pub(crate) fn start_lines(command: &mut Command) -> (Running, Receiver<Line>) {
        let mut running = Running::spawn(command);
        let (sender, receiver) = channel();
        send(running.child.stdout.take(), Line::Out, sender.clone());
        send(running.child.stderr.take(), Line::Err, sender);
        (running, receiver)
    }

    #[allow(unsafe_code)]
    fn spawn(command: &mut Command) -> Running {
        let what = format!("{command:?}");
        // The same hashes and the same messages at every run.
        command.env("PYTHONHASHSEED", "0").env("LC_ALL", "C");
        // SAFETY: signal(2) may be called between fork and exec. A shell starts what runs in the
        // background with both ignored, and the tests send them.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                libc::signal(libc::SIGQUIT, libc::SIG_DFL);
                Ok(())
            });
        }
        let child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.unwrap_or_else(|e| panic!("{what}: {e}"));
        Running { child, stdout: None, stderr: None, what }
    }

    /// Process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Its input, if the command had it piped.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// What it prints, if that was left to the caller.
    pub(crate) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Sends a signal to it alone.
    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    /// Is it still there?
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// If that takes longer than `limit`.
    pub fn finish(self, limit: Duration) -> Output {
        let what = self.what.clone();
        self.end(limit).unwrap_or_else(|output| panic!("not done after {limit:?}: {what}\n{output}"))
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// If that takes longer than `limit`: what it has written so far. It is killed.
    pub fn end(mut self, limit: Duration) -> Result<Output, Output> {
        let status = self.wait(limit);
        if status.is_none() {
            kill(-self.pid(), libc::SIGKILL);
        }
        let text = |handle: Option<JoinHandle<Vec<u8>>>| {
            let bytes = handle.and_then(|h| h.join().ok()).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (stdout, stderr) = (text(self.stdout.take()), text(self.stderr.take()));
        match status {
            Some(status) => Ok(Output { status, stdout, stderr }),
            None => Err(Output { status: ExitStatus::from_raw(libc::SIGKILL), stdout, stderr }),
        }
    }

    /// How it ended, unless that takes longer.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            sleep(Duration::from_millis(2));
        }
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The group may outlive its leader: a tool that was killed leaves its command behind.
        kill(-self.pid(), libc::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A target program in conversation: a command per line in, a number per line out.
pub struct Program {
    running: Running,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    /// Starts it and waits until it says that it is ready.
    ///
    /// # Panics
    /// If it is not ready in time.
    pub fn start(command: &mut Command) -> Program {
        let mut running = Running::start_streaming(command.stdin(Stdio::piped()));
        let stdin = running.child.stdin.take();
        let lines = lines(running.child.stdout.take());
        let program = Program { running, stdin, lines };
        assert_eq!(program.line(), "ready");
        program
    }

    /// Process id.
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Sends a command without waiting for its answer.
    ///
    /// # Panics
    /// If the program is gone.
    #[track_caller]
    pub fn send(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("not finished");
        // At once: the program reads once.
        let sent = stdin.write_all(format!("{command}\n").as_bytes());
        assert!(sent.is_ok(), "{} is gone before `{command}`", self.running.what);
    }

    /// The answer to a command that was sent.
    ///
    /// # Panics
    /// If there is none in time, or it is not a number.
    #[track_caller]
    pub fn answer(&mut self) -> i64 {
        let line = self.line();
        line.parse().unwrap_or_else(|_| panic!("{} answered {line:?}", self.running.what))
    }

    /// The same, but `None` if the program ended instead.
    pub fn try_answer(&mut self) -> Option<i64> {
        self.next_line(LIMIT).ok()?.parse().ok()
    }

    /// The next line that it prints.
    ///
    /// # Errors
    /// There is none within the time, or the program has ended.
    pub fn next_line(&mut self, limit: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(limit)
    }

    /// Sends a command and returns its answer.
    #[track_caller]
    pub fn ask(&mut self, command: &str) -> i64 {
        self.send(command);
        self.answer()
    }

    /// Is it still there?
    pub fn is_running(&mut self) -> bool {
        self.running.is_running()
    }

    /// Its exit code, if it has ended by itself.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.running.child.try_wait().ok().flatten()?.code()
    }

    /// Closes its input and waits for its end. `stdout` of the output is what was not asked for.
    pub fn finish(mut self) -> Output {
        drop(self.stdin.take());
        let mut rest = String::new();
        while let Ok(line) = self.lines.recv_timeout(LIMIT) {
            rest += &line;
            rest.push('\n');
        }
        let mut output = self.running.finish(LIMIT);
        output.stdout = rest;
        output
    }

    #[track_caller]
    fn line(&self) -> String {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                panic!("no answer after {LIMIT:?}: {}", self.running.what)
            }
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{} ended instead of answering", self.running.what)
            }
        }
    }
}

/// A line that a child has written.
pub(crate) enum Line {
    /// To its standard output.
    Out(String),
    /// To its standard error.
    Err(String),
}

/// The lines of a pipe as they come.
pub(crate) fn lines(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    send(pipe, |line| line, sender);
    receiver
}

fn send<T: Send + 'static>(pipe: Option<impl Read + Send + 'static>, of: fn(String) -> T, to: Sender<T>) {
    if let Some(pipe) = pipe {
        spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if to.send(of(line)).is_err() {
                    break;
                }
            }
        });
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// `kill(2)`; a process that is gone is fine.
#[allow(unsafe_code)]
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: takes two integers and touches no memory of this process.
    unsafe { libc::kill(pid, signal) };
}

/// Polls until `done`, at most `limit`; was it done?
pub fn eventually(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        sleep(Duration::from_millis(2));
    }
}
