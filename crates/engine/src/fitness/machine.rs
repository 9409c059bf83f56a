//! The machine, and what the kernel lets this process do on it.

use std::fs;
use std::path::Path;

use sidestep_sys::{arch, bpf, tsc_usable};

use super::{Fact, field};

/// Bits of capabilities (include/uapi/linux/capability.h).
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_NICE: u32 = 23;
/// Inode numbers of the first namespaces (include/linux/proc_ns.h).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";
/// A session needs at most so many mappings beside those of the program.
const MAPPINGS: u64 = 13_000;

/// What we are ourselves.
struct Us {
    uid: u32,
    capabilities: u64,
}

impl Us {
    fn may(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 == 1
    }
}

/// Whether probes are possible on this machine at all, and for this user. Touches no process.
#[must_use]
pub fn machine() -> Vec<Fact> {
    let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let status = read("/proc/self/status").unwrap_or_default();
    let first = |key: &str| field(&status, key).and_then(|text| text.split_ascii_whitespace().nth(1)?.parse().ok());
    let capabilities = field(&status, "CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let us = Us { uid: first("Uid").unwrap_or(0), capabilities: capabilities.unwrap_or(0) };
    let limits = read("/proc/self/limits").unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    vec![
        system(read("/proc/sys/kernel/osrelease").as_deref()),
        Fact::fine(
            "build",
            format!("for {} programs; those of {} need that build of sidestep", arch::NAME, arch::OTHER),
        ),
        user(&us),
        ptrace_scope(read("/proc/sys/kernel/yama/ptrace_scope").as_deref(), &us),
        seccomp(field(&status, "Seccomp")),
        container(),
        security_module(read("/proc/self/attr/current").as_deref(), read("/sys/fs/selinux/enforce").as_deref()),
        forced_writes(read("/proc/cmdline").as_deref()),
        memfd(read("/proc/sys/vm/memfd_noexec").as_deref()),
        mappings(read("/proc/sys/vm/max_map_count").as_deref()),
        clock(),
        cet(&cpuinfo),
        priority(sidestep_sys::limit(&limits, "Max realtime priority"), &us),
        kernel(sidestep_sys::limit(&limits, "Max locked memory")),
    ]
}

fn system(release: Option<&str>) -> Fact {
    let what = format!("Linux {}", release.unwrap_or("of an unknown version"));
    match arch::thread_pointer_readable() {
        true => Fact::fine("system", what),
        false => Fact::prevented(
            "system",
            format!("{what}, without FSGSBASE instructions"),
            "Linux 5.9 or newer on a processor of 2012 or newer is needed",
        ),
    }
}

fn user(us: &Us) -> Fact {
    let uid = us.uid;
    match (us.may(CAP_SYS_PTRACE), uid) {
        (true, 0) => Fact::fine("user", "root: any process can be probed"),
        (true, _) => Fact::fine("user", format!("user id {uid} with CAP_SYS_PTRACE: any process can be probed")),
        (false, 0) => Fact::limited(
            "user",
            "root without CAP_SYS_PTRACE: only processes of root without privileges can be probed",
            "give this container CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)",
        ),
        (false, _) => Fact::limited(
            "user",
            format!("user id {uid}: only processes of this user can be probed"),
            "run as root for those of others",
        ),
    }
}

/// Documentation/admin-guide/LSM/Yama.rst
fn ptrace_scope(scope: Option<&str>, us: &Us) -> Fact {
    const NAME: &str = "ptrace_scope";
    let privileged = us.may(CAP_SYS_PTRACE);
    match scope {
        None => Fact::fine(NAME, "the Yama security module is not there"),
        Some("0") => Fact::fine(NAME, "0: own processes can be traced"),
        Some(scope @ ("1" | "2")) if privileged => Fact::fine(NAME, format!("{scope}: no matter with CAP_SYS_PTRACE")),
        Some("1") => Fact::limited(
            NAME,
            "1: only commands that sidestep starts (-- CMD) can be probed, no running processes",
            "run as root, or sysctl kernel.yama.ptrace_scope=0",
        ),
        Some("2") => Fact::prevented(NAME, "2: only root may trace", "run as root"),
        Some(scope) => Fact::prevented(
            NAME,
            format!("{scope}: nobody may trace until the next boot"),
            "change it in /etc/sysctl.d and reboot",
        ),
    }
}

fn seccomp(mode: Option<&str>) -> Fact {
    match mode {
        Some("0") | None => Fact::fine("seccomp", "no filter on this shell"),
        Some(_) => Fact::limited(
            "seccomp",
            "a filter is in force here (a container's, mostly), and on what is started from here",
            "if an attach fails: docker run --security-opt seccomp=unconfined",
        ),
    }
}

fn container() -> Fact {
    let namespace = |kind: &str, first: &str| {
        fs::read_link(format!("/proc/self/ns/{kind}")).is_ok_and(|link| link.as_os_str() != first)
    };
    let marked = ["/.dockerenv", "/run/.containerenv"].iter().any(|file| Path::new(file).exists());
    match (namespace("pid", FIRST_PID_NAMESPACE), namespace("user", FIRST_USER_NAMESPACE), marked) {
        (false, false, false) => Fact::fine("container", "none: all processes of the machine are seen"),
        (true, ..) => Fact::limited(
            "container",
            "a process namespace: only processes inside are seen, by their ids inside",
            "run on the host for others",
        ),
        (false, true, _) => {
            Fact::limited("container", "a user namespace: privileges end at its border", "run on the host for others")
        }
        (false, false, true) => Fact::fine("container", "one that sees all processes of the machine"),
    }
}

/// We map anonymous memory that is executed, but never both written and executed.
fn security_module(label: Option<&str>, selinux: Option<&str>) -> Fact {
    const NAME: &str = "security module";
    let label = label.map_or("", |label| label.trim_end_matches('\0'));
    let denied = |boolean: &str| {
        let value = fs::read_to_string(format!("/sys/fs/selinux/booleans/{boolean}")).unwrap_or_default();
        value.starts_with('1')
    };
    match selinux {
        Some("1") if denied("deny_ptrace") => {
            Fact::prevented(NAME, "SELinux: deny_ptrace is set", "setsebool deny_ptrace 0")
        }
        Some("1") if denied("deny_execmem") => {
            Fact::prevented(NAME, "SELinux: deny_execmem is set", "setsebool deny_execmem 0")
        }
        Some("1") => Fact::limited(
            NAME,
            "SELinux enforces: a confined program may not map memory for code (execmem)",
            "if an attach fails with EACCES: setenforce 0, or let its domain have execmem",
        ),
        _ if label.ends_with("(enforce)") => Fact::limited(
            NAME,
            format!("AppArmor: this shell is confined by {label}"),
            "if an attach is denied, run from an unconfined shell",
        ),
        _ => Fact::fine(NAME, "nothing enforced that is known to be in the way"),
    }
}

/// Code is written through `/proc/PID/mem`: Documentation/admin-guide/kernel-parameters.txt.
fn forced_writes(command_line: Option<&str>) -> Fact {
    const NAME: &str = "code writes";
    let value = command_line.unwrap_or_default().split_ascii_whitespace();
    match value.filter_map(|word| word.strip_prefix("proc_mem.force_override=")).next_back() {
        Some("never") => Fact::prevented(
            NAME,
            "proc_mem.force_override=never: nobody can write code through /proc/PID/mem",
            "boot with proc_mem.force_override=ptrace",
        ),
        _ => Fact::fine(NAME, "through /proc/PID/mem; no page is writable and executable at once"),
    }
}

/// Documentation/admin-guide/sysctl/vm.rst (and `memfd_create(2)`).
fn memfd(noexec: Option<&str>) -> Fact {
    match noexec {
        Some("2") => Fact::prevented(
            "memfd",
            "vm.memfd_noexec is 2: shared memory cannot be made",
            "sysctl vm.memfd_noexec=1 (it counts for this process namespace)",
        ),
        _ => Fact::fine("memfd", "shared memory can be made"),
    }
}

fn mappings(most: Option<&str>) -> Fact {
    const NAME: &str = "max_map_count";
    let Some(most) = most.and_then(|most| most.parse::<u64>().ok()) else {
        return Fact::fine(NAME, "no limit known");
    };
    match most < 2 * MAPPINGS {
        true => Fact::limited(
            NAME,
            format!("{most} mappings a process: thousands of probes in one may become traps"),
            "sysctl vm.max_map_count=65530",
        ),
        false => Fact::fine(NAME, format!("{most} mappings a process")),
    }
}

fn clock() -> Fact {
    match tsc_usable() {
        true => Fact::fine("clock", "the time-stamp counter: no system call"),
        false => Fact::limited(
            "clock",
            "the time-stamp counter cannot be used: each time stamp is a system call",
            "nothing on this machine; counting costs no more",
        ),
    }
}

fn cet(cpuinfo: &str) -> Fact {
    let flags = field(&cpuinfo.replace('\t', ""), "flags").unwrap_or_default().to_owned();
    let has = |flag: &str| flags.split_ascii_whitespace().any(|known| known == flag);
    match (has("user_shstk"), has("ibt")) {
        (true, _) => Fact::limited(
            "shadow stacks",
            "there are: a program that uses one cannot be probed",
            "start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off",
        ),
        (false, true) => Fact::fine("shadow stacks", "none for programs (IBT is the kernel's; endbr64 stays in place)"),
        (false, false) => Fact::fine("shadow stacks", "none for programs"),
    }
}

fn priority(most: Option<u64>, us: &Us) -> Fact {
    match us.may(CAP_SYS_NICE) || most.is_some_and(|most| most > 0) {
        true => Fact::fine("priority", "real-time while a target stands still"),
        false => Fact::limited(
            "priority",
            "none of its own: on a busy machine a target stands still for longer while probes are put in",
            "run as root, or ulimit -r 1",
        ),
    }
}

/// `--kernel`, which only compares.
fn kernel(locked: Option<u64>) -> Fact {
    let locked = locked.map_or_else(|| "no limit".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
    match bpf::permitted() {
        Ok(()) => {
            Fact::fine("bpf --kernel", format!("possible (locked memory: {locked}, which counts before Linux 5.11)"))
        }
        Err(refusal) => Fact::limited("bpf --kernel", refusal.to_string(), "only that comparison needs it"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    const ROOT: Us = Us { uid: 0, capabilities: u64::MAX };
    const USER: Us = Us { uid: 1000, capabilities: 0 };

    #[test]
    fn ptrace_scope_is_no_matter_for_root_up_to_two() {
        let verdicts =
            |us: &Us| [None, Some("0"), Some("1"), Some("2"), Some("3")].map(|s| ptrace_scope(s, us).verdict);
        use Verdict::{Fine, Limited, Prevented};
        assert_eq!(verdicts(&ROOT), [Fine, Fine, Fine, Fine, Prevented]);
        assert_eq!(verdicts(&USER), [Fine, Fine, Limited, Prevented, Prevented]);
    }

    #[test]
    fn what_is_not_fine_says_what_to_do() {
        let facts = [
            user(&USER),
            user(&Us { uid: 0, capabilities: 0 }),
            seccomp(Some("2")),
            forced_writes(Some("quiet proc_mem.force_override=never")),
            memfd(Some("2")),
            mappings(Some("4096")),
            cet("flags\t\t: fpu user_shstk\n"),
            priority(Some(0), &USER),
        ];
        for fact in facts {
            assert!(fact.verdict != Verdict::Fine && fact.advice.is_some(), "{fact:?}");
        }
        assert_eq!(forced_writes(Some("proc_mem.force_override=ptrace")).verdict, Verdict::Fine);
        assert_eq!(cet("flags\t\t: fpu ibt\n").verdict, Verdict::Fine);
    }
}
