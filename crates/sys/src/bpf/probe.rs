//! Programs at places of a file: uprobes.
#![allow(unsafe_code, reason = "perf_event_open and bpf(2) take pointers to paths")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::call::{Command, EventAttr, EventRequest, LinkPerfEvent, LinkUprobes};
use super::call::{bpf_new, c_path, event_request, perf_event_open};
use super::program::Program;

const DEVICE: &str = "/sys/bus/event_source/devices/uprobe";
/// `BPF_PERF_EVENT`
const PERF_EVENT: u32 = 41;
/// `BPF_TRACE_UPROBE_MULTI`
pub(super) const UPROBE_MULTI: u32 = 48;
/// `BPF_F_UPROBE_MULTI_RETURN`
const MULTI_RETURN: u32 = 1;
/// The counter of a USDT probe lies in the upper half of `config`
/// (`PERF_UPROBE_REF_CTR_OFFSET_SHIFT`).
const COUNTER_SHIFT: u32 = 32;

/// A place of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site<'a> {
    /// The object, as we see it: `/proc/PID/root/…` for a process with another root.
    pub path: &'a Path,
    /// Where, in bytes from the start of the file.
    pub offset: u64,
    /// The counter (semaphore) of a USDT probe, in bytes from the start of the file; 0: none.
    pub counter: u32,
    /// At the return of the function that begins there.
    pub on_return: bool,
    /// In this process; `None`: in all that map the file.
    pub pid: Option<i32>,
    /// What `bpf_get_attach_cookie` says (Linux 5.15); 0 needs no such kernel.
    pub cookie: u64,
}

impl Default for Site<'_> {
    fn default() -> Self {
        Site { path: Path::new(""), offset: 0, counter: 0, on_return: false, pid: None, cookie: 0 }
    }
}

/// Many places of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultiSite<'a> {
    /// As [`Site::path`].
    pub path: &'a Path,
    /// Where, in bytes from the start of the file, and what `bpf_get_attach_cookie` says there.
    pub places: &'a [(u64, u64)],
    /// As [`Site::on_return`].
    pub on_return: bool,
    /// As [`Site::pid`].
    pub pid: Option<i32>,
}

/// Why a program could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The kernel does not say how it wants to be asked.
    #[error("cannot read {}: {source}", path.display())]
    Device {
        /// File in sysfs.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It says something unknown.
    #[error("{} says '{text}', which is not understood", path.display())]
    Format {
        /// File in sysfs.
        path: PathBuf,
        /// What it says.
        text: String,
    },
    /// There is no uprobe at this place.
    #[error("the kernel refuses a uprobe at {}+{offset:#x}: {source}; see bpf::permitted", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program does not go with a uprobe.
    #[error("the kernel does not attach program '{program}' to a uprobe: {source}; load it as ProgramKind::Probe")]
    Bind {
        /// Its name.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// No cookies.
    #[error("the kernel does not attach program '{program}' with a cookie: {source}; that needs Linux 5.15")]
    Cookie {
        /// Its name.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Not many places at once.
    #[error(
        "the kernel does not attach program '{program}' to {count} places of {}: {source}; that needs Linux 6.6 and ProgramKind::ProbeMulti",
        path.display()
    )]
    Multi {
        /// Its name.
        program: String,
        /// The file.
        path: PathBuf,
        /// How many places.
        count: usize,
        /// What the kernel said.
        source: io::Error,
    },
}

/// An attached program; it runs no more when this is dropped.
#[derive(Debug)]
pub struct Probe {
    // In this order: the link ends before its event.
    _link: Option<OwnedFd>,
    _event: Option<OwnedFd>,
}

/// Attaches a program to a place.
///
/// # Errors
/// What the kernel says.
pub fn attach(program: &Program, site: &Site<'_>) -> Result<Probe, AttachError> {
    let return_bit = if site.on_return { 1 << return_bit()? } else { 0 };
    let open = |source| AttachError::Open { path: site.path.to_owned(), offset: site.offset, source };
    let path = c_path(site.path).map_err(open)?;
    let attr = EventAttr {
        kind: event_type()?,
        config: u64::from(site.counter) << COUNTER_SHIFT | return_bit,
        sample_period: 1,
        config1: path.as_ptr() as u64,
        config2: site.offset,
        ..EventAttr::default()
    };
    // All processes are asked for by way of a CPU; the program runs on the others, too.
    let (pid, cpu) = site.pid.map_or((-1, 0), |pid| (pid, -1));
    // SAFETY: the path lives during the call.
    let event = unsafe { perf_event_open(&attr, pid, cpu) }.map_err(open)?;
    let name = || program.name().to_owned();
    let bind = |source| AttachError::Bind { program: name(), source };
    let link = if site.cookie == 0 {
        event_request(event.as_fd(), EventRequest::SetBpf, program.as_fd().as_raw_fd()).map_err(bind)?;
        None
    } else {
        let mut attr = LinkPerfEvent {
            program: program.as_fd().as_raw_fd() as u32,
            event: event.as_raw_fd() as u32,
            attach_type: PERF_EVENT,
            flags: 0,
            cookie: site.cookie,
        };
        // SAFETY: the attribute of this command, without pointers.
        let link = unsafe { bpf_new(Command::LinkCreate, &mut attr) };
        Some(link.map_err(|source| AttachError::Cookie { program: name(), source })?)
    };
    event_request(event.as_fd(), EventRequest::Enable, 0).map_err(bind)?;
    Ok(Probe { _link: link, _event: Some(event) })
}

/// Attaches a program of [`super::ProgramKind::ProbeMulti`] to many places at once.
///
/// # Errors
/// What the kernel says: Linux 6.6 is the first that can.
pub fn attach_multi(program: &Program, site: &MultiSite<'_>) -> Result<Probe, AttachError> {
    let count = site.places.len();
    let refused =
        |source| AttachError::Multi { program: program.name().to_owned(), path: site.path.to_owned(), count, source };
    let path = c_path(site.path).map_err(refused)?;
    let (offsets, cookies): (Vec<u64>, Vec<u64>) = site.places.iter().copied().unzip();
    let mut attr = LinkUprobes {
        program: program.as_fd().as_raw_fd() as u32,
        target: 0,
        attach_type: UPROBE_MULTI,
        flags: 0,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        counters: 0,
        cookies: cookies.as_ptr() as u64,
        count: count as u32,
        probe_flags: if site.on_return { MULTI_RETURN } else { 0 },
        pid: site.pid.map_or(0, |pid| pid as u32),
        padding: 0,
    };
    // SAFETY: the attribute of this command; path and lists live during the call and have the
    // length given.
    let link = unsafe { bpf_new(Command::LinkCreate, &mut attr) }.map_err(refused)?;
    Ok(Probe { _link: Some(link), _event: None })
}

fn device(file: &str) -> Result<(PathBuf, String), AttachError> {
    let path = Path::new(DEVICE).join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok((path, text.trim().to_owned())),
        Err(source) => Err(AttachError::Device { path, source }),
    }
}

/// The number of this kind of event on this machine.
pub(super) fn event_type() -> Result<u32, AttachError> {
    let (path, text) = device("type")?;
    text.parse().map_err(|_| AttachError::Format { path, text })
}

/// Which bit of the configuration says that it is a return: `config:0`.
fn return_bit() -> Result<u32, AttachError> {
    let (path, text) = device("format/retprobe")?;
    let bit = text.strip_prefix("config:").and_then(|bit| bit.parse().ok()).filter(|bit| *bit < COUNTER_SHIFT);
    bit.ok_or(AttachError::Format { path, text })
}
