//! What is probed.

use std::ffi::OsString;

use clap::{ArgGroup, Args};
use sidestep_engine::Target;

use super::{Protect, words};

/// What to probe; exactly one of them.
#[derive(Args, Clone, Debug)]
pub struct TargetFlags {
    /// Attach to this process; several: -p 1,2 or -p 1 -p 2.
    #[arg(short = 'p', long, value_name = "PID", value_parser = parse_pid, value_delimiter = ',',
          conflicts_with_all = ["cmd", "command"])]
    pub pid: Vec<i32>,
    /// Probe children, too, and what they and the process itself execute; wait for objects that are
    /// not there yet.
    #[arg(long)]
    pub follow: bool,
    /// Let processes of different users share the memory of one session (-p 1,2, --follow): each of
    /// them can then read and falsify what the others count.
    #[arg(long)]
    pub share_across_users: bool,
    #[command(flatten)]
    pub protect: Protect,
    /// Run CMD (words as in a shell; no shell is run) and probe it.
    #[arg(short = 'c', long = "cmd", value_name = "CMD", value_parser = parse_words, conflicts_with = "command")]
    pub cmd: Option<words::Words>,
    /// Run a command and probe it; its exit status becomes ours.
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl TargetFlags {
    /// The one target that was given.
    pub fn target(&self) -> Target {
        match (&*self.pid, &self.cmd) {
            ([pid], _) => Target::Pid(*pid),
            ([], Some(words)) => Target::Command(words.0.iter().map(OsString::from).collect()),
            ([], None) => Target::Command(self.command.clone()),
            (pids, _) => Target::Pids(pids.to_vec()),
        }
    }

    /// The process that stands for all, where one is enough.
    pub fn first(&self) -> Option<i32> {
        self.pid.first().copied()
    }

    /// Whether one was given at all.
    pub fn is_given(&self) -> bool {
        !self.pid.is_empty() || self.cmd.is_some() || !self.command.is_empty()
    }

    /// An error for the first process of `-p` that does not exist.
    pub fn are_there(&self) -> anyhow::Result<()> {
        for pid in &self.pid {
            let is_there = std::path::Path::new(&format!("/proc/{pid}")).exists();
            anyhow::ensure!(is_there, "cannot attach to process {pid}: No such process");
        }
        Ok(())
    }

    /// Whether there may be more than one process.
    pub fn are_several(&self) -> bool {
        self.pid.len() > 1 || self.follow
    }
}

/// For commands that cannot do without one.
pub(super) fn target_group() -> ArgGroup {
    ArgGroup::new("target").args(["pid", "cmd", "command"]).required(true)
}

/// The kernel has no larger process ids, whatever `/proc/sys/kernel/pid_max` says.
const LARGEST_PID: i32 = 1 << 22;

pub(super) fn parse_pid(text: &str) -> Result<i32, String> {
    match text.parse::<i32>() {
        Ok(pid) if pid > LARGEST_PID => Err(format!("Pid out of range: {pid}")),
        Ok(pid) if pid > 0 => Ok(pid),
        Ok(_) => Err(format!("Failed to parse pid: not positive: {text}")),
        Err(_) => {
            let is_digit = |byte: &u8| byte.is_ascii_digit();
            Err(match text.as_bytes() {
                bytes if !bytes.is_empty() && bytes.iter().all(is_digit) => format!("Pid out of range: {text}"),
                [first, ..] if is_digit(first) => format!("Failed to parse pid: invalid trailing bytes: {text}"),
                _ => format!("Failed to parse pid: invalid integer: {text}"),
            })
        }
    }
}

fn parse_words(text: &str) -> Result<words::Words, String> {
    let words = words::split(text)?;
    if words.is_empty() { Err("the command is empty".to_owned()) } else { Ok(words::Words(words)) }
}
