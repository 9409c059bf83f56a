//! The tool while the program works: started, looked at without waiting, ended.

use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use super::patience::HANGS;
use super::{Failure, Scene, Wrong};
use crate::process::{LIMIT, Output, Running};
use crate::tool::{Written, sidestep};

/// A run of the tool.
pub(super) struct Controller {
    running: Running,
    written: Written,
    what: String,
    started: Instant,
    ended: bool,
}

/// What became of an attach.
pub(super) enum Begun {
    /// It traces.
    Attached(Box<Controller>),
    /// It was refused.
    Refused,
}

impl Controller {
    /// Starts `sidestep ARGS`.
    pub fn start(scene: &mut Scene, args: &[&str]) -> Controller {
        Controller::of(scene, sidestep(args))
    }

    /// Starts a command that runs the tool.
    pub fn of(scene: &mut Scene, mut command: Command) -> Controller {
        let what = format!("{command:?}");
        scene.log(&what);
        let (running, written) = Written::by(command.stdin(std::process::Stdio::null()));
        Controller { running, written, what, started: Instant::now(), ended: false }
    }

    /// Has it said that it traces? It may have ended instead.
    fn has_begun(&mut self) -> bool {
        let heading = self.written.heading(Duration::ZERO);
        self.ended |= heading == Err(RecvTimeoutError::Disconnected);
        heading.is_ok()
    }

    /// Lets the program work until the tool traces or has ended. Gives the calls that the program
    /// made meanwhile.
    pub fn begin(mut self, scene: &mut Scene, idle: bool) -> Result<(Begun, u64), Failure> {
        let mut calls = 0;
        while !self.has_begun() {
            if self.ended {
                let output = self.end(scene)?;
                if output.code() == 0 {
                    return Err(Failure::new(Wrong::Tool, format!("ended without a word: {output}")));
                }
                return Ok((Begun::Refused, calls));
            }
            if self.started.elapsed() > HANGS {
                return Err(Failure::new(Wrong::Tool, format!("no attach after {HANGS:?}: {}", self.what)));
            }
            match idle {
                true => std::thread::sleep(Duration::from_millis(2)),
                false => calls += scene.work(1)?,
            }
        }
        scene.round.sessions[0] += 1;
        Ok((Begun::Attached(Box::new(self)), calls))
    }

    /// Ctrl-C, and what it wrote.
    pub fn stop(self, scene: &mut Scene) -> Result<Output, Failure> {
        self.running.signal(libc::SIGINT);
        let output = self.end(scene)?;
        match output.code() {
            0 => Ok(output),
            // The program is as it was, but for memory: other sessions go on.
            1 if output.stderr.contains(" bytes of memory stay there") => {
                scene.round.failures.push(Failure::new(Wrong::Left, output.stderr.clone()));
                Ok(output)
            }
            _ => Err(Failure::new(Wrong::Tool, format!("a session ended with an error: {output}"))),
        }
    }

    /// SIGKILL.
    pub fn kill(self, scene: &mut Scene) {
        self.running.signal(libc::SIGKILL);
        let _ = self.running.end(LIMIT);
        scene.log("killed");
        scene.round.sessions[2] += 1;
    }

    /// Is it still there?
    pub fn is_running(&mut self) -> bool {
        self.running.is_running()
    }

    /// Does it take Ctrl-C by now (`SigCgt` of `/proc/PID/status`)? Before that it would die of it.
    pub fn takes_interrupts(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.pid())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t"));
        caught.and_then(|set| u64::from_str_radix(set, 16).ok()).is_some_and(|set| set & 1 << (libc::SIGINT - 1) != 0)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        self.running.signal(signal);
    }

    /// Waits for its end. A panic, a signal, or no end in time is a failure.
    pub fn end(mut self, scene: &mut Scene) -> Result<Output, Failure> {
        let end = Instant::now() + HANGS;
        self.written.rest(|| end.saturating_duration_since(Instant::now()));
        let ended = self.running.end(end.saturating_duration_since(Instant::now()) + Duration::from_secs(1));
        let is_late = ended.is_err();
        let output = self.written.output(ended.unwrap_or_else(|output| output));
        if is_late {
            return Err(Failure::new(Wrong::Tool, format!("no end after {HANGS:?}: {}\n{output}", self.what)));
        }
        scene.log(&output.to_string());
        if ![0, 1].contains(&output.code()) || output.stderr.contains("panicked") {
            return Err(Failure::new(Wrong::Tool, format!("{}: {output}", self.what)));
        }
        if output.code() == 1 {
            scene.round.sessions[1] += 1;
        }
        Ok(output)
    }
}
