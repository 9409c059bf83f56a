//! `--audit`: a JSON line for each process that is attached to, and one when it is detached from:
//! who, what, for how long.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use sidestep_engine::{Request, Session};

use super::costs;
use crate::out::{json, time};

/// Where the system's log takes messages.
const SYSLOG: &str = "/dev/log";
/// Facility authpriv, level info: `RFC 3164`, 4.1.1.
const PRIORITY: u32 = 10 * 8 + 6;
/// Probes that a line names at most; their number is there in any case.
const NAMED: usize = 32;
/// Bytes of the command line that a line has at most: a message of the system's log is short.
const COMMAND: usize = 1024;

enum To {
    File(File, PathBuf),
    Syslog(UnixDatagram),
}

impl To {
    fn open(to: &Path) -> anyhow::Result<To> {
        if to == Path::new("syslog") {
            let socket = UnixDatagram::unbound().and_then(|socket| socket.connect(SYSLOG).map(|()| socket));
            return socket.map(To::Syslog).with_context(|| format!("--audit syslog: cannot send to {SYSLOG}"));
        }
        let failed = || format!("--audit: cannot write {}", to.display());
        let mut options = OpenOptions::new();
        // Nobody waits for the other end of a pipe.
        let file = options.append(true).create(true).mode(0o600).custom_flags(libc::O_NONBLOCK).open(to);
        let file = file.with_context(failed)?;
        if !file.metadata().with_context(failed)?.is_file() {
            return Err(io::Error::other("it is no regular file")).with_context(failed);
        }
        Ok(To::File(file, to.to_owned()))
    }

    /// One write, so that lines of several sessions do not mix.
    fn send(&mut self, line: &str) -> anyhow::Result<()> {
        match self {
            To::File(file, path) => {
                let bytes = format!("{line}\n").into_bytes();
                let written =
                    file.write(&bytes).with_context(|| format!("--audit: cannot write {}", path.display()))?;
                match written == bytes.len() {
                    true => Ok(()),
                    false => Err(anyhow::anyhow!("--audit: cannot write all of a line to {}", path.display())),
                }
            }
            To::Syslog(socket) => {
                let now = time::format("%b %e %H:%M:%S", time::realtime());
                let text = format!("<{PRIORITY}>{now} sidestep[{}]: {line}", std::process::id());
                socket.send(text.as_bytes()).map(drop).context("--audit syslog: cannot send a message")
            }
        }
    }
}

/// A process that is attached to.
struct Process {
    since: Instant,
    attached: String,
    members: Vec<(&'static str, String)>,
}

/// The log of one session.
#[derive(Default)]
pub struct Audit {
    to: Option<To>,
    who: Vec<(&'static str, String)>,
    processes: BTreeMap<(i32, u64), Process>,
    /// Why the session ends.
    why: String,
}

impl Audit {
    /// Before anything is attached to.
    pub fn open(to: Option<&Path>) -> anyhow::Result<Audit> {
        let Some(to) = to else { return Ok(Audit::default()) };
        let to = Some(To::open(to)?);
        Ok(Audit { to, who: who(), processes: BTreeMap::new(), why: "error".to_owned() })
    }

    /// Notes processes that have come, and those that have gone.
    pub fn look(&mut self, session: &Session, requests: &[Request]) -> anyhow::Result<()> {
        let Some(to) = &mut self.to else { return Ok(()) };
        let now: Vec<(i32, u64)> = session.processes().into_iter().filter_map(|pid| Some((pid, start(pid)?))).collect();
        let gone: Vec<_> = self.processes.keys().filter(|process| !now.contains(process)).copied().collect();
        for process in gone {
            if let Some(known) = self.processes.remove(&process) {
                to.send(&ended(&self.who, &known, "the process ended"))?;
            }
        }
        for (pid, start) in now {
            if self.processes.contains_key(&(pid, start)) {
                continue;
            }
            let attached = stamp(time::realtime());
            let process = Process {
                since: Instant::now(),
                attached: attached.clone(),
                members: what(pid, start, session, requests),
            };
            let head = [("event", json::string("attach")), ("time", json::string(&attached))];
            to.send(&json::object(head.into_iter().chain(self.who.clone()).chain(process.members.clone())))?;
            self.processes.insert((pid, start), process);
        }
        Ok(())
    }

    /// Why all that is attached to will be detached from.
    pub fn because(&mut self, why: String) {
        self.why = why;
    }

    /// Notes that the session is over.
    pub fn end(&mut self) -> anyhow::Result<()> {
        let Some(to) = &mut self.to else { return Ok(()) };
        for process in std::mem::take(&mut self.processes).into_values() {
            to.send(&ended(&self.who, &process, &self.why))?;
        }
        Ok(())
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        // What went wrong before is said already.
        let _ = self.end();
    }
}

fn ended(who: &[(&'static str, String)], process: &Process, why: &str) -> String {
    let head = [("event", json::string("detach")), ("time", json::string(&stamp(time::realtime())))];
    let tail = [
        ("attached", json::string(&process.attached)),
        ("seconds", format!("{:.3}", process.since.elapsed().as_secs_f64())),
        ("why", json::string(why)),
    ];
    json::object(head.into_iter().chain(who.to_vec()).chain(process.members.clone()).chain(tail))
}

/// Who runs this program: users as the kernel has them, and who has logged in, where that is known.
fn who() -> Vec<(&'static str, String)> {
    let status = fs::metadata("/proc/self").map(|meta| meta.uid()).ok();
    let name = |uid: u32| user_name(uid).map_or("null".to_owned(), |name| json::string(&name));
    let login = fs::read_to_string("/proc/self/loginuid").ok().and_then(|text| text.trim().parse::<u32>().ok());
    let mut who = Vec::new();
    if let Some(uid) = status {
        who.extend([("uid", uid.to_string()), ("user", name(uid))]);
    }
    // The kernel's word for nobody is -1.
    if let Some(uid) = login.filter(|uid| *uid != u32::MAX) {
        who.extend([("login_uid", uid.to_string()), ("login", name(uid))]);
    }
    let mut command: String = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned() + " ").collect();
    command.pop();
    if let Some((end, _)) = command.char_indices().find(|(at, _)| *at >= COMMAND) {
        command.truncate(end);
        command.push('…');
    }
    who.extend([("controller", std::process::id().to_string()), ("command", json::string(&command))]);
    who
}

/// By `passwd(5)`.
fn user_name(uid: u32) -> Option<String> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2)?.parse() == Ok(uid)).then(|| fields[0].to_owned())
    })
}

/// Which process, and which probes.
fn what(pid: i32, start: u64, session: &Session, requests: &[Request]) -> Vec<(&'static str, String)> {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let (probes, all) = (session.probes(), session.probes().len());
    let names = probes.iter().take(NAMED).map(|probe| json::string(&costs::name(probe, requests)));
    vec![
        ("pid", pid.to_string()),
        ("started", began(start).map_or("null".to_owned(), |began| json::string(&began))),
        ("exe", json::string(&exe.to_string_lossy())),
        ("probes", all.to_string()),
        ("names", json::array(names)),
    ]
}

/// When a process has started, in ticks since the machine has.
fn start(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold blanks and parentheses; the field is the 22nd, counted from 1.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// The same as a time of day.
fn began(ticks: u64) -> Option<String> {
    /// `USER_HZ` of the kernel's interface.
    const HZ: u64 = 100;
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())?;
    Some(stamp((boot * HZ + ticks) * (1_000_000_000 / HZ)))
}

fn stamp(realtime: u64) -> String {
    time::format("%Y-%m-%dT%H:%M:%S.%f%z", realtime)
}
