//! What of a process must be after a detach as it was before the attach.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::process::eventually;

/// Code of the kernel that no `/proc/PID/mem` shows, on x86-64 and on arm32.
const UNREADABLE: [&str; 2] = ["[vsyscall]", "[vectors]"];

/// A part of a process and its description or contents.
type Parts = BTreeMap<String, Vec<u8>>;

/// Mappings, the bytes of the executable ones, threads, descriptors and signal dispositions of a
/// process.
pub struct Snapshot {
    mapped: Parts,
    anonymous: Parts,
    code: Parts,
    threads: Parts,
    descriptors: Parts,
    signals: Parts,
}

impl Snapshot {
    /// Takes it. The process should be at rest.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn of(pid: i32) -> Snapshot {
        let proc = |what: &str| format!("/proc/{pid}/{what}");
        let maps = std::fs::read_to_string(proc("maps")).expect("process exists");
        let memory = File::open(proc("mem")).expect("process exists");
        let mut threads = entries(&proc("task"), |_| Vec::new());
        threads.retain(|path, _| !is_exiting(path));
        let mut snapshot = Snapshot {
            mapped: Parts::new(),
            anonymous: Parts::new(),
            code: Parts::new(),
            threads,
            descriptors: entries(&proc("fd"), |path| {
                std::fs::read_link(path).map(|to| to.to_string_lossy().into_owned().into_bytes()).unwrap_or_default()
            }),
            signals: Parts::new(),
        };
        let status = status_at_rest(pid);
        let kept = ["TracerPid", "SigBlk", "SigIgn", "SigCgt", "Seccomp"];
        for line in status.lines().filter(|l| kept.iter().any(|k| l.starts_with(k))) {
            snapshot.signals.insert(line.to_owned(), Vec::new());
        }
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let (Some(range), Some(access)) = (words.next(), words.next()) else {
                continue;
            };
            let path = words.nth(3).unwrap_or("");
            let (start, end) = range.split_once('-').expect("a range");
            match path {
                // They grow as the program runs.
                "[heap]" | "[stack]" => continue,
                // The kernel leaves its page for displaced instructions where a uprobe was; tests
                // use them as an oracle. And the one by which optimized uprobes get there.
                "[uprobes]" | "[uprobes-trampoline]" => continue,
                "" => snapshot.anonymous.insert(line.to_owned(), Vec::new()),
                _ => snapshot.mapped.insert(line.to_owned(), Vec::new()),
            };
            if access.contains('x') && !UNREADABLE.contains(&path) {
                let parse = |hex| u64::from_str_radix(hex, 16).expect("hexadecimal");
                let (start, end) = (parse(start), parse(end));
                let mut bytes = vec![0; (end - start) as usize];
                memory.read_exact_at(&mut bytes, start).unwrap_or_else(|e| panic!("reading {line}: {e}"));
                snapshot.code.insert(line.to_owned(), bytes);
            }
        }
        snapshot
    }

    /// Asserts that the code is the same, of a child that was forked for example.
    ///
    /// # Panics
    /// With all differences.
    #[track_caller]
    pub fn assert_same_code(&self, other: &Snapshot) {
        let mut found = Vec::new();
        differ("code", &self.code, &other.code, &mut found);
        assert!(found.is_empty(), "the code differs:\n{}", found.join("\n"));
    }

    /// Asserts that nothing changed.
    ///
    /// # Panics
    /// With all differences.
    #[track_caller]
    pub fn assert_same(&self, after: &Snapshot) {
        let mut found = self.differences(after);
        differ("anonymous mapping", &self.anonymous, &after.anonymous, &mut found);
        assert!(found.is_empty(), "the process differs after the detach:\n{}", found.join("\n"));
    }

    /// The same without anonymous memory that is not executable: a program like Redis or Go takes
    /// some as it runs.
    ///
    /// # Panics
    /// With all differences.
    #[track_caller]
    pub fn assert_same_but_data(&self, after: &Snapshot) {
        let found = self.differences(after);
        assert!(found.is_empty(), "the process differs after the detach:\n{}", found.join("\n"));
    }

    fn differences(&self, after: &Snapshot) -> Vec<String> {
        let mut found = Vec::new();
        differ("mapping", &self.mapped, &after.mapped, &mut found);
        differ("code", &self.code, &after.code, &mut found);
        differ("thread", &self.threads, &after.threads, &mut found);
        differ("descriptor", &self.descriptors, &after.descriptors, &mut found);
        differ("status", &self.signals, &after.signals, &mut found);
        found
    }

    /// Start addresses and bytes of the executable mappings.
    pub fn code(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.code.iter().map(|(line, bytes)| (line.as_str(), bytes.as_slice()))
    }
}

fn differ(what: &str, before: &Parts, after: &Parts, found: &mut Vec<String>) {
    for (part, value) in before {
        match after.get(part) {
            None => found.push(format!("{what} gone: {part}")),
            Some(now) if now != value => {
                let at = value.iter().zip(now).position(|(a, b)| a != b).unwrap_or(value.len().min(now.len()));
                let count = value.iter().zip(now).filter(|(a, b)| a != b).count();
                found.push(format!("{what} changed, {count} bytes from +{at:#x}: {part}"));
            }
            Some(_) => {}
        }
    }
    for part in after.keys().filter(|p| !before.contains_key(*p)) {
        found.push(format!("{what} new: {part}"));
    }
}

fn entries(dir: &str, value: impl Fn(&str) -> Vec<u8>) -> Parts {
    let names = std::fs::read_dir(dir).expect("process exists").flatten();
    names.map(|entry| entry.path().to_string_lossy().into_owned()).map(|path| (path.clone(), value(&path))).collect()
}

/// The status of a process whose first thread waits in a system call. A thread that runs may be
/// inside a handler of the program, whose mask is not the thread's own. Where the first thread
/// never waits, the status is the last one that was read.
fn status_at_rest(pid: i32) -> String {
    let read = |what| std::fs::read_to_string(format!("/proc/{pid}/{what}"));
    let mut status = String::new();
    // The number, the arguments, the stack pointer and the place; or a word.
    let mut waits = || {
        let call = read("syscall").unwrap_or_default();
        status = read("status").expect("process exists");
        call != "running\n" && read("syscall").is_ok_and(|then| then == call)
    };
    eventually(Duration::from_secs(2), &mut waits);
    status
}

/// Is a thread, given by its directory, on its way out or gone? It may be there for a while after
/// it was joined.
fn is_exiting(task: &str) -> bool {
    /// `PF_EXITING`, in the ninth field of `stat`.
    const EXITING: u64 = 4;
    let stat = std::fs::read_to_string(format!("{task}/stat")).unwrap_or_default();
    let flags = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(6)?.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::Snapshot;
    use crate::{Program, target};

    #[test]
    fn a_process_at_rest_is_the_same_and_new_threads_and_pipes_are_seen() {
        let Some(path) = target("load") else { return };
        let mut program = Program::start(&mut Command::new(path));
        let before = Snapshot::of(program.pid());
        assert_eq!(program.ask("rounds 0"), 0);
        before.assert_same(&Snapshot::of(program.pid()));
        assert_eq!(program.ask("start 0"), 0);
        let found = before.differences(&Snapshot::of(program.pid()));
        let count = |what: &str| found.iter().filter(|f| f.starts_with(what)).count();
        assert_eq!((count("thread new"), count("descriptor new"), count("code")), (8, 2, 0), "{found:?}");
        assert_eq!(program.ask("finish 0"), 0);
    }

    #[test]
    fn one_changed_byte_of_code_is_seen() {
        let Some(path) = target("counts") else { return };
        let program = Program::start(&mut Command::new(path));
        let before = Snapshot::of(program.pid());
        let mut after = Snapshot::of(program.pid());
        let bytes = after.code.values_mut().next().expect("a program has code");
        bytes[100] ^= 1;
        let found = before.differences(&after);
        assert!(found.len() == 1 && found[0].starts_with("code changed, 1 bytes from +0x64"), "{found:?}");
    }
}
