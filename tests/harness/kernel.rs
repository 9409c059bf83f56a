//! The kernel's uprobes as an independent counter of calls: `perf_event_open(2)`, type `uprobe`, of
//! one process.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use object::{Object, ObjectSegment, ObjectSymbol};

use crate::process::{LIMIT, Output, Running};

/// File offset of a function, from the symbol tables of an ELF file.
///
/// # Panics
/// If the file or the function is not there.
pub fn file_offset(path: &Path, function: &str) -> u64 {
    let data = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = object::File::parse(&*data).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let symbol = file.symbols().chain(file.dynamic_symbols()).find(|s| s.name() == Ok(function) && s.address() != 0);
    offset_of(path, symbol.unwrap_or_else(|| panic!("no {function} in {}", path.display())).address())
}

/// File offset of a link-time address of an ELF file.
///
/// # Panics
/// If no segment has it.
pub fn offset_of(path: &Path, va: u64) -> u64 {
    let data = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = object::File::parse(&*data).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let segment = file.segments().find(|s| (s.address()..s.address() + s.size()).contains(&va)).expect("in a segment");
    va - segment.address() + segment.file_range().0
}

/// Where a uprobe sits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Before the first instruction.
    Entry,
    /// At the return: a uretprobe.
    Return,
}

/// A uprobe of one process, counting until it is dropped.
pub struct Uprobe(File);

impl Uprobe {
    /// Puts it into a running process and all threads that it starts from now on. (Linux 6.18
    /// starts no thread in such a process any more: `clone` fails with EFAULT.) An error where
    /// the kernel does not offer this (no `CONFIG_UPROBES`) or does not permit it.
    pub fn attach(pid: i32, object: &Path, function: &str, at: At) -> std::io::Result<Uprobe> {
        Uprobe::attach_at(pid, object, file_offset(object, function), at)
    }

    /// The same at an offset in the file.
    pub fn attach_at(pid: i32, object: &Path, offset: u64, at: At) -> std::io::Result<Uprobe> {
        open(object, offset, pid, at, INHERIT).map(Uprobe)
    }

    /// Hits so far.
    pub fn hits(&mut self) -> std::io::Result<u64> {
        let mut value = [0; 8];
        self.0.read_exact(&mut value)?;
        Ok(u64::from_ne_bytes(value))
    }
}

/// Runs a command under uprobes at functions of `object`, and returns their counts with what the
/// command did. `None` where the kernel does not offer this: no `CONFIG_UPROBES`, or not permitted.
///
/// # Panics
/// If the command does not run.
pub fn count(object: &Path, functions: &[&str], command: &[&str]) -> Option<(Output, Vec<u64>)> {
    // The shell waits until the counters are there; they start to count when it becomes the
    // command.
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "read go && exec \"$@\"", "sh"]).args(command).stdin(Stdio::piped());
    let mut running = Running::start(&mut shell);
    let mut counters = Vec::new();
    for function in functions {
        let flags = DISABLED | INHERIT | ENABLE_ON_EXEC;
        counters.push(Uprobe(open(object, file_offset(object, function), running.pid(), At::Entry, flags).ok()?));
    }
    running.take_stdin()?.write_all(b"go\n").ok()?;
    let output = running.finish(LIMIT);
    Some((output, counters.iter_mut().map(Uprobe::hits).collect::<Result<_, _>>().ok()?))
}

/// `struct perf_event_attr` up to `config2` (`include/uapi/linux/perf_event.h`,
/// `PERF_ATTR_SIZE_VER1`).
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    uprobe_path: u64,
    probe_offset: u64,
}

const DISABLED: u64 = 1 << 0;
const INHERIT: u64 = 1 << 1;
const ENABLE_ON_EXEC: u64 = 1 << 12;
/// `PERF_FLAG_FD_CLOEXEC`.
const FD_CLOEXEC: u64 = 1 << 3;

#[allow(unsafe_code)]
fn open(object: &Path, offset: u64, pid: i32, at: At, flags: u64) -> std::io::Result<File> {
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let path = std::ffi::CString::new(object.as_os_str().as_bytes())?;
    let attr = Attr {
        kind: kind.trim().parse().map_err(|_| std::io::ErrorKind::InvalidData)?,
        size: size_of::<Attr>() as u32,
        // `/sys/bus/event_source/devices/uprobe/format/retprobe`: config bit 0.
        config: u64::from(at == At::Return),
        flags,
        uprobe_path: path.as_ptr() as u64,
        probe_offset: offset,
        ..Attr::default()
    };
    // SAFETY: `attr` is a `perf_event_attr` of the size that it states, `path` a C string that
    // outlives the call; the kernel copies both.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, -1, -1, FD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just opened and belongs to nobody else.
    Ok(unsafe { File::from_raw_fd(fd as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::count;
    use crate::{skip, target};

    #[test]
    fn the_oracle_counts_a_known_number_of_calls() {
        let Some(path) = target("counts") else { return };
        let command = [path.to_str().expect("UTF-8"), "work", "1234", "6"];
        match count(&path, &["leaf", "fib"], &command) {
            Some((output, counts)) => {
                assert_eq!((output.code(), counts), (6, vec![1234, 0]), "{output}")
            }
            None => skip("the kernel gives no uprobe counters here"),
        }
    }
}
