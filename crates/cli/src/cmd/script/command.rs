//! The command of a script that probes nothing: its intervals run for as long as the command does.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use sidestep_engine::{Entry, Maps, Value};

use crate::cmd::watch::{GRACE, killed};
use crate::signals::{self, Signals};

/// How often to look whether it has ended.
pub const PERIOD: Duration = Duration::from_millis(20);

/// A command that runs.
pub struct Command(Child);

impl Command {
    /// Starts it: the program and its arguments.
    pub fn start(words: &[OsString]) -> anyhow::Result<Command> {
        let (program, args) = words.split_first().context("-c: the command is empty")?;
        let started = std::process::Command::new(program).args(args).spawn();
        Ok(Command(started.with_context(|| format!("cannot run {}", Path::new(program).display()))?))
    }

    /// Tells a script its pid, by the map that `cpid` reads.
    pub fn tell(&self, map: usize, maps: Maps<'_>) {
        let pid = u64::from(self.0.id()).to_ne_bytes().to_vec();
        maps.insert(map, &Entry { key: 0u32.to_ne_bytes().to_vec(), value: Value::One(pid) });
    }

    /// Has it ended?
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Waits for its end, with its exit status. `ends`: the script has called `exit()`, and the
    /// command is to end, too. A Ctrl-C in a terminal reaches the command, too, but a SIGTERM only
    /// us, so it is handed on, as is a SIGHUP.
    pub fn status(mut self, ends: bool, by: Option<i32>, signals: &Signals) -> io::Result<ExitCode> {
        let handed_on = by.filter(|signal| [libc::SIGTERM, libc::SIGHUP].contains(signal));
        let deadline = Instant::now() + GRACE;
        if let Some(status) = self.0.try_wait()? {
            return Ok(code(status));
        }
        if let Some(signal) = handed_on.or(ends.then_some(libc::SIGTERM)) {
            signals::send(self.0.id() as i32, signal);
        }
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(code(status));
            }
            let is_late = (ends || handed_on.is_some()) && Instant::now() > deadline;
            if signals.wait(PERIOD).is_some() || is_late {
                self.0.kill()?;
            }
        }
    }
}

/// As a shell has it.
fn code(status: ExitStatus) -> ExitCode {
    match status.signal() {
        Some(signal) => killed(signal),
        None => ExitCode::from(status.code().unwrap_or(1) as u8),
    }
}
