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

/// A command that runs. It is told to end if nobody waits for it: something has failed.
pub struct Command(Option<Child>);

impl Command {
    /// Starts it: the program and its arguments.
    pub fn start(words: &[OsString]) -> anyhow::Result<Command> {
        let (program, args) = words.split_first().context("-c: the command is empty")?;
        let started = std::process::Command::new(program).args(args).spawn();
        Ok(Command(Some(started.with_context(|| format!("cannot run {}", Path::new(program).display()))?)))
    }

    /// Tells a script its pid, by the map that `cpid` reads.
    pub fn tell(&self, map: usize, maps: Maps<'_>) {
        let pid = u64::from(self.0.as_ref().map_or(0, Child::id)).to_ne_bytes().to_vec();
        maps.insert(map, &Entry { key: 0u32.to_ne_bytes().to_vec(), value: Value::One(pid) });
    }

    /// Has it ended?
    pub fn has_ended(&mut self) -> io::Result<bool> {
        self.0.as_mut().map_or(Ok(true), |child| Ok(child.try_wait()?.is_some()))
    }

    /// Waits for its end, with its exit status. `ends`: the script has called `exit()`, and the
    /// command is to end, too. A Ctrl-C in a terminal reaches the command, too, but a SIGTERM only
    /// us, so it is handed on, as is a SIGHUP. A signal while we wait kills a command that was told
    /// to end, and so does the end of the time that it has after `exit()`; any other command goes
    /// on alone. `hurry`: such a signal has come.
    pub fn status(mut self, ends: bool, by: Option<i32>, hurry: bool, signals: &Signals) -> io::Result<ExitCode> {
        let Some(mut child) = self.0.take() else { return Ok(ExitCode::SUCCESS) };
        if let Some(status) = child.try_wait()? {
            return Ok(code(status));
        }
        let handed_on = by.filter(|signal| [libc::SIGTERM, libc::SIGHUP].contains(signal));
        let told = handed_on.or(ends.then_some(libc::SIGTERM));
        if let Some(signal) = told {
            signals::send(child.id() as i32, signal);
        }
        let deadline = ends.then(|| Instant::now() + GRACE);
        let mut signal = hurry.then(|| by.unwrap_or(libc::SIGINT));
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(code(status));
            }
            let is_late = deadline.is_some_and(|deadline| Instant::now() > deadline);
            match (told, signal) {
                // It may be another user's.
                (Some(_), signal) if signal.is_some() || is_late => drop(child.kill()),
                (None, Some(signal)) => return Ok(killed(signal)),
                _ => {}
            }
            signal = signals.wait(PERIOD);
        }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            if matches!(child.try_wait(), Ok(None)) {
                signals::send(child.id() as i32, libc::SIGTERM);
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
