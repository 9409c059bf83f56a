//! How long a program is waited for that owes an answer: as long as it works. How many seconds that
//! takes is a matter of the machine, of what else runs there, and of what its probes do.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::process::{LIMIT, Program};

/// How often it is looked whether it works.
pub(super) const LOOK: Duration = Duration::from_secs(5);
/// CPU time of an answer at most, in ticks of 10 ms: without probes it takes less than a second of
/// it, and with a trap at each instruction of a loop up to two minutes.
const MOST: u64 = 60_000;
/// After this time something hangs, however busy the machine is: a program that has a timer uses
/// CPU time for ever.
pub(super) const HANGS: Duration = Duration::from_secs(20 * 60);

/// The work on one answer.
pub(super) struct Patience {
    pid: i32,
    /// CPU time when it was asked, and when it was seen to grow.
    begin: u64,
    last: u64,
    grew: Instant,
    since: Instant,
}

impl Patience {
    /// A process is asked now.
    pub fn begin(pid: i32) -> Patience {
        let now = cpu(pid);
        let since = Instant::now();
        Patience { pid, begin: now, last: now, grew: since, since }
    }

    /// Why it is waited for no longer: it stands still, or runs in circles.
    pub fn is_over(&mut self) -> Option<String> {
        let now = cpu(self.pid);
        if now != self.last {
            (self.last, self.grew) = (now, Instant::now());
        }
        let used = now.saturating_sub(self.begin);
        match () {
            () if used > MOST => Some(format!("no answer after {} s of CPU time", used / 100)),
            () if self.since.elapsed() > HANGS => Some(format!("no answer after {HANGS:?}")),
            () if self.grew.elapsed() > LIMIT => Some(format!("it has used no CPU time for {LIMIT:?}")),
            () => None,
        }
    }
}

/// The CPU time of a process and of its children, in ticks.
fn cpu(pid: i32) -> u64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let all: BTreeMap<i32, (i32, u64)> = pids.filter_map(|pid| Some((pid, times(pid)?))).collect();
    all.iter().filter(|(of, (parent, _))| **of == pid || *parent == pid).map(|(_, (_, ticks))| ticks).sum()
}

/// The parent of a process, and its CPU time.
fn times(pid: i32) -> Option<(i32, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
    Some((fields.get(1)?.parse().ok()?, ticks(11)? + ticks(12)?))
}

/// The answer of a program to what was sent to it: a number, for which a process works.
pub(super) fn answer(program: &mut Program, pid: i32) -> Result<i64, String> {
    let mut patience = Patience::begin(pid);
    loop {
        match program.next_line(LOOK) {
            Ok(line) => return line.parse().map_err(|_| format!("the answer is {line:?}")),
            Err(RecvTimeoutError::Disconnected) => return Err("it ended instead of answering".to_owned()),
            Err(RecvTimeoutError::Timeout) => patience.is_over().map_or(Ok(()), Err)?,
        }
    }
}

/// A connection to a server that is waited for as long as it works.
pub(super) struct Connection {
    stream: UnixStream,
    pid: i32,
}

impl Connection {
    /// To the socket of a process.
    pub fn to(socket: &Path, pid: i32) -> io::Result<Connection> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LOOK))?;
        Ok(Connection { stream, pid })
    }
}

impl Read for Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut patience = None;
        loop {
            match self.stream.read(bytes) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    let patience = patience.get_or_insert_with(|| Patience::begin(self.pid));
                    if let Some(why) = patience.is_over() {
                        return Err(io::Error::new(ErrorKind::TimedOut, why));
                    }
                }
                result => return result,
            }
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::Running;

    #[test]
    fn who_works_is_waited_for_and_who_stands_still_is_not() {
        let busy = Running::start(Command::new("sh").args(["-c", "while :; do :; done"]));
        let idle = Running::start(Command::new("sleep").arg("1000"));
        let long_ago = Instant::now() - 2 * LIMIT;
        let asked = |pid| Patience { grew: long_ago, ..Patience::begin(pid) };
        let (mut works, mut stands) = (asked(busy.pid()), asked(idle.pid()));
        // It may have to wait for a CPU.
        assert!(crate::process::eventually(LIMIT, || cpu(busy.pid()) > works.begin));
        assert_eq!(works.is_over(), None);
        assert!(stands.is_over().is_some_and(|why| why.contains("no CPU time")));
    }
}
