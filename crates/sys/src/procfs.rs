//! The little of `/proc/PID` that this crate itself has to understand.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use sidestep_isa::Va;

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: Va,
    /// First address behind it.
    pub end: Va,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub exec: bool,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Inode number of the file; 0 = none.
    pub inode: u64,
    /// Path, `[name]` or empty.
    pub name: OsString,
}

impl Mapping {
    /// Does the mapping cover `at`?
    #[must_use]
    pub fn contains(&self, at: Va) -> bool {
        self.start <= at && at < self.end
    }
}

/// Reads the text of `/proc/PID/maps` (proc(5)); lines that are not understood are left out.
#[must_use]
pub fn parse_maps(text: &[u8]) -> Vec<Mapping> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    // 00400000-0041f000 r-xp 00002000 08:01 1234   /path with spaces
    let mut fields = line.splitn(6, |b| *b == b' ');
    let range = std::str::from_utf8(fields.next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let perms = fields.next()?;
    fn text(field: Option<&[u8]>) -> Option<&str> {
        std::str::from_utf8(field?).ok()
    }
    let offset = u64::from_str_radix(text(fields.next())?, 16).ok()?;
    let inode = text(fields.nth(1))?.parse().ok()?;
    let name = fields.next().unwrap_or_default().trim_ascii_start();
    Some(Mapping {
        start: Va(u64::from_str_radix(start, 16).ok()?),
        end: Va(u64::from_str_radix(end, 16).ok()?),
        read: perms.first() == Some(&b'r'),
        write: perms.get(1) == Some(&b'w'),
        exec: perms.get(2) == Some(&b'x'),
        offset,
        inode,
        name: OsString::from_vec(name.to_vec()),
    })
}

/// A whole file of the kernel's. It has no size to go by, and growing a buffer step by step takes
/// longer than the kernel does.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(64 * 1024);
    File::open(path)?.read_to_end(&mut text)?;
    Ok(text)
}

/// A short file of the kernel's, such as `/proc/PID/stat`, in two reads. The name of a process in
/// there may be no text.
pub fn read_short(path: &str) -> io::Result<String> {
    let mut text = Vec::with_capacity(4096);
    // Not by the file itself, which would ask for its size.
    File::open(path)?.take(u64::MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// How often a thread has got a CPU: the third number in `/proc/PID/task/TID/schedstat`
/// (Documentation/scheduler/sched-stats.rst in the kernel). `None`: the kernel does not count that,
/// or the thread is gone.
#[must_use]
pub fn time_slices(pid: i32, tid: i32) -> Option<u64> {
    let text = read_short(&format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    text.split_ascii_whitespace().nth(2)?.parse().ok().filter(|slices| *slices != 0)
}

/// The value behind `key:` in `/proc/PID/status`.
pub fn status_field(status: &str, key: &str) -> Option<String> {
    let rest = status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    Some(rest.trim().to_owned())
}

/// The value behind `key:` in `/proc/PID/status`, of a set of signals.
pub fn signal_set(status: &str, key: &str) -> Option<u64> {
    u64::from_str_radix(&status_field(status, key)?, 16).ok()
}

/// A line of `/proc/PID/limits`: the soft limit, `None` if there is none.
#[must_use]
pub fn limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// How many more bytes a process may map before it meets a limit of its own (setrlimit(2),
/// `RLIMIT_AS`, and `RLIMIT_DATA`, which counts private memory only); `None`: it has none.
#[must_use]
pub fn room(pid: i32) -> Option<u64> {
    let limits = read_short(&format!("/proc/{pid}/limits")).ok()?;
    let status = read_short(&format!("/proc/{pid}/status")).ok()?;
    let left = |(name, used): (&str, &str)| {
        let limit = limit(&limits, name)?;
        let used: u64 = status_field(&status, used)?.strip_suffix(" kB")?.trim().parse().ok()?;
        Some(limit.saturating_sub(used * 1024))
    };
    [("Max address space", "VmSize"), ("Max data size", "VmData")].into_iter().filter_map(left).min()
}

/// Field `n` of `/proc/PID/stat`, counted from 1 as in proc(5). The field is behind the name, so
/// `n` is 3 or more.
pub fn stat_field(stat: &str, n: usize) -> Option<&str> {
    // The name may hold blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(n.checked_sub(3)?)
}

/// When a process began, in clock ticks since boot (field 22 of `/proc/PID/stat`); `None` if there
/// is no such process, or only its exit status is left.
#[must_use]
pub fn start_time_of(pid: i32) -> Option<u64> {
    let stat = read_short(&format!("/proc/{pid}/stat")).ok()?;
    let ended = matches!(stat_field(&stat, 3)?, "Z" | "X");
    stat_field(&stat, 22).filter(|_| !ended)?.parse().ok()
}

/// Is a process on its way out: killed, or past its last instruction? The kernel takes some time
/// for one that has much memory.
#[must_use]
pub fn is_ending(pid: i32) -> bool {
    /// PF_EXITING, PF_SIGNALED (include/linux/sched.h).
    const ENDING: u64 = 0x4 | 0x400;
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let stat = read_short(&format!("/proc/{pid}/stat")).unwrap_or_default();
    let flags = stat_field(&stat, 9).and_then(|flags| flags.parse().ok()).unwrap_or(0u64);
    let status = read_short(&format!("/proc/{pid}/status")).unwrap_or_default();
    let is_killed = |key| signal_set(&status, key).is_some_and(|pending| pending & KILLED != 0);
    flags & ENDING != 0 || is_killed("SigPnd") || is_killed("ShdPnd")
}

/// The parent of a process, which has no other one as long as that lives; 0: it has none that we
/// see.
#[must_use]
pub fn parent(pid: i32) -> Option<i32> {
    let stat = read_short(&format!("/proc/{pid}/stat")).ok()?;
    stat_field(&stat, 4)?.parse().ok()
}

/// The state letter of a thread (`R`, `S`, `D`, `Z`…), `None` if it is gone.
pub fn thread_state(pid: i32, tid: i32) -> Option<char> {
    let stat = read_short(&format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat_field(&stat, 3)?.chars().next()
}

/// The CPU time that a thread has used in user code, to 10 ms (`utime`, field 14 of
/// `/proc/PID/task/TID/stat`).
pub fn user_time(pid: i32, tid: i32) -> Option<Duration> {
    /// A tick of `USER_HZ`, which is 100 on all our architectures.
    const TICK: Duration = Duration::from_millis(10);
    let stat = read_short(&format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let ticks: u32 = stat_field(&stat, 14)?.parse().ok()?;
    Some(TICK * ticks)
}

/// Has a thread ended? Its entry may still be there.
pub fn has_ended(pid: i32, tid: i32) -> bool {
    matches!(thread_state(pid, tid), None | Some('Z' | 'X'))
}

/// Is a thread of a process one of the kernel's: a worker of io_uring or of a vhost device? It has
/// the memory and the thread pointer of the thread that it works for, never executes code of the
/// program, and fails the operation that it is at if it is interrupted.
pub fn is_worker(pid: i32, tid: i32) -> bool {
    /// PF_IO_WORKER, PF_USER_WORKER (include/linux/sched.h).
    const WORKERS: u64 = 0x10 | 0x4000;
    /// What io_uring/io-wq.c, io_uring/sqpoll.c and drivers/vhost/vhost.c call them. Kernels before
    /// 5.12 have other flags, and no such threads in processes.
    const NAMES: [&str; 2] = ["iou-", "vhost-"];
    let is_named = || comm(tid).is_ok_and(|name| NAMES.iter().any(|start| name.starts_with(start)));
    let flags = || -> Option<u64> {
        let stat = read_short(&format!("/proc/{pid}/task/{tid}/stat")).ok()?;
        stat_field(&stat, 9)?.parse().ok()
    };
    is_named() && flags().is_some_and(|flags| flags & WORKERS != 0)
}

/// Has it ended, and nobody has waited for it yet?
pub fn is_zombie(pid: i32, tid: i32) -> bool {
    thread_state(pid, tid) == Some('Z')
}

/// The ids of all processes of which we may know, ascending.
#[must_use]
pub fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The process that a thread belongs to.
pub fn process_of(tid: i32) -> Option<i32> {
    let status = read_short(&format!("/proc/{tid}/status")).ok()?;
    status_field(&status, "Tgid")?.parse().ok()
}

/// Is it a thread of this process?
pub fn is_thread(pid: i32, tid: i32) -> bool {
    fs::exists(format!("/proc/{pid}/task/{tid}")).unwrap_or(false)
}

/// Which thread traces a process or thread; 0 = none, or it is gone.
pub fn tracer(pid: i32) -> i32 {
    let status = read_short(&format!("/proc/{pid}/status")).unwrap_or_default();
    status_field(&status, "TracerPid").and_then(|t| t.parse().ok()).unwrap_or(0)
}

/// The name of a process, of any bytes.
pub fn comm_bytes(pid: i32) -> io::Result<Vec<u8>> {
    Ok(fs::read(format!("/proc/{pid}/comm"))?.trim_ascii_end().to_vec())
}

/// The ids of a process in the PID namespaces that we see, one inside the other: the last one is
/// its own (`NSpid` of proc(5)).
#[must_use]
pub fn namespace_ids(pid: i32) -> Vec<i32> {
    let status = read_short(&format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status_field(&status, "NSpid").unwrap_or_default();
    ids.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// The name of a thread or process.
pub fn comm(pid: i32) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&comm_bytes(pid)?).into_owned())
}

/// How many threads a process has, with those that have ended and were not waited for yet.
///
/// The kernel counts them under the lock under which it makes them (`proc_task_getattr` in
/// fs/proc/base.c: the links of the folder). The list is no such thing: see [`threads`].
pub fn thread_count(pid: i32) -> io::Result<usize> {
    /// Links that a folder without folders in it has.
    const OWN: u64 = 2;
    let links = fs::metadata(format!("/proc/{pid}/task"))?.nlink();
    Ok(links.saturating_sub(OWN) as usize)
}

/// The thread ids of a process, ascending. Threads may be missing that live all the time: the
/// kernel ends the list, or goes on at a number of entries, when the thread ends that it has come
/// to (`next_tid` and `first_tid` in fs/proc/base.c).
pub fn threads(pid: i32) -> io::Result<Vec<i32>> {
    let mut tids = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        if let Some(tid) = entry?.file_name().to_str().and_then(|n| n.parse().ok()) {
            tids.push(tid);
        }
    }
    tids.sort_unstable();
    Ok(tids)
}

/// Bytes of memory of the mappings in a text of `/proc/PID/smaps` that begin where `of` says.
pub fn resident(smaps: &str, of: impl Fn(Va) -> bool) -> u64 {
    let mut chosen = false;
    let mut kib = 0;
    for line in smaps.lines() {
        let start = line.split_once('-').and_then(|(start, _)| u64::from_str_radix(start, 16).ok());
        if let Some(start) = start {
            chosen = of(Va(start));
        } else if let (true, Some(rest)) = (chosen, line.strip_prefix("Rss:")) {
            kib += rest.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0);
        }
    }
    kib << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A controller that was killed, and whose parent does not ask for its status, is no controller
    /// any more.
    #[test]
    fn a_zombie_has_no_start_time() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        assert!(start_time_of(pid).is_some());
        drop(child.stdin.take());
        while thread_state(pid, pid) != Some('Z') {
            std::thread::yield_now();
        }
        assert_eq!(start_time_of(pid), None);
        child.wait().unwrap();
    }

    #[test]
    fn limits_of_a_process() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max data size             unlimited            unlimited            bytes     \n\
                      Max address space         268435456            unlimited            bytes     \n";
        assert_eq!(limit(limits, "Max address space"), Some(256 << 20));
        assert_eq!((limit(limits, "Max data size"), limit(limits, "Max queue size")), (None, None));
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let set = |to: &str| {
            let done = std::process::Command::new("prlimit").args([&format!("--pid={pid}"), to]).status();
            assert!(done.unwrap().success());
        };
        set("--as=1099511627776:");
        assert!(room(pid).is_some_and(|room| room < 1 << 40));
        set("--data=1:");
        assert_eq!(room(pid), Some(0));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn maps_lines_with_and_without_a_name() {
        let text = b"00400000-00452000 r-xp 00002000 08:02 173521      /usr/bin/a b\n\
                     7ffd1000-7ffd2000 rw-p 00000000 00:00 0 \n7ffe0000-7ffe2000 rw-p 00000000 00:00 0    [stack]\n";
        let maps = parse_maps(text);
        assert_eq!(maps.len(), 3);
        assert_eq!((maps[0].start, maps[0].end), (Va(0x40_0000), Va(0x45_2000)));
        assert!(maps[0].exec && !maps[0].write);
        assert_eq!(maps[0].name, "/usr/bin/a b");
        assert_eq!((maps[0].offset, maps[0].inode), (0x2000, 173_521));
        assert_eq!((maps[1].name.to_str(), maps[1].inode), (Some(""), 0));
        assert_eq!(maps[2].name, "[stack]");
    }

    #[test]
    fn stat_fields_behind_an_odd_name() {
        assert_eq!(stat_field("7 (a) b (c) S 1 7", 3), Some("S"));
        assert_eq!(stat_field("7 (a) b (c) S 1 7", 4), Some("1"));
    }

    #[test]
    fn our_own_maps_hold_this_function() {
        let text = fs::read("/proc/self/maps").unwrap();
        let at = Va(our_own_maps_hold_this_function as *const () as u64);
        assert!(parse_maps(&text).iter().any(|m| m.contains(at) && m.exec));
    }
}
