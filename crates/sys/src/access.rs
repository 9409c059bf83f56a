//! May we trace this process? And if not: which setting forbids it.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::arch::{ELF, NAME, OTHER, OTHER_ELF};
use crate::memory::Memory;
use crate::procfs;

/// Why a process cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No process has this id.
    #[error("no process with pid {pid}; list the running ones with ps -e")]
    NoProcess {
        /// Process id asked for.
        pid: i32,
    },
    /// The id is that of a thread.
    #[error("{tid} is a thread of process {pid}; give the process id {pid} instead")]
    IsThread {
        /// Thread id asked for.
        tid: i32,
        /// Its process.
        pid: i32,
    },
    /// The process has exited and waits for its parent.
    #[error("process {pid} ({comm}) has exited already (zombie); choose a running process")]
    Zombie {
        /// Process id.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// Only the main thread has exited; the kernel gives no access to the memory through it.
    #[error(
        "the main thread of process {pid} ({comm}) has exited while others run; such a process cannot be probed yet"
    )]
    LeaderExited {
        /// Process id.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// A kernel thread has no user code.
    #[error("process {pid} ({comm}) is a kernel thread and has no user code to probe; choose a user process")]
    KernelThread {
        /// Process id.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// A program for another build of this tool.
    #[error(
        "process {pid} ({comm}) is a {OTHER} program, and this is the build for {NAME}; use the {OTHER} build of sidestep"
    )]
    OtherBuild {
        /// Process id.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// A foreign program.
    #[error("process {pid} ({comm}) is not a {NAME} program; this build of sidestep probes only those")]
    Unsupported {
        /// Process id.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// Another debugger or tracer is attached.
    #[error("process {pid} ({comm}) is traced already by {tracer_comm} (pid {tracer}); end that first")]
    Traced {
        /// Process id.
        pid: i32,
        /// Its name.
        comm: String,
        /// The tracer's process id.
        tracer: i32,
        /// Its name.
        tracer_comm: String,
    },
    /// It runs as another user.
    #[error("not permitted: process {pid} ({comm}) belongs to user id {uid}; run as that user or as root")]
    OtherUser {
        /// Process id.
        pid: i32,
        /// Its name.
        comm: String,
        /// Its user id.
        uid: u32,
    },
    /// The Yama security module restricts tracing.
    #[error("not permitted: kernel.yama.ptrace_scope is {scope}; {remedy}")]
    Yama {
        /// Process id.
        pid: i32,
        /// Value of the setting.
        scope: u32,
        /// What to do.
        remedy: &'static str,
    },
    /// The process is of this user, but has marked itself as not dumpable, or has gained
    /// privileges.
    #[error(
        "not permitted: process {pid} ({comm}) is not dumpable (set-user-ID, capabilities or prctl(PR_SET_DUMPABLE)); run as root"
    )]
    NotDumpable {
        /// Process id.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// The kernel refuses even root.
    #[error(
        "not permitted to trace process {pid} ({comm}) even as root: {source}; give this container CAP_SYS_PTRACE, or run on the host"
    )]
    NoCapability {
        /// Process id.
        pid: i32,
        /// Its name.
        comm: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something else.
    #[error("cannot open process {pid}: {source}; check that /proc is mounted")]
    Io {
        /// Process id.
        pid: i32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Checks everything that can be known before a thread is touched but for tracers, and opens the
/// memory.
pub fn open_memory(pid: i32, euid: u32) -> Result<Memory, OpenError> {
    let status = match fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(s) => s,
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
            return Err(OpenError::NoProcess { pid });
        }
        Err(source) => return Err(OpenError::Io { pid, source }),
    };
    let comm = procfs::status_field(&status, "Name").unwrap_or_default();
    let number = |key: &str| procfs::status_field(&status, key).and_then(|v| v.parse::<i32>().ok()).unwrap_or(0);
    let tgid = number("Tgid");
    if tgid != pid {
        return Err(OpenError::IsThread { tid: pid, pid: tgid });
    }
    let state = procfs::status_field(&status, "State").unwrap_or_default();
    if state.starts_with(['Z', 'X']) {
        let others = procfs::threads(pid).map_or(0, |t| t.len());
        return Err(if others > 1 { OpenError::LeaderExited { pid, comm } } else { OpenError::Zombie { pid, comm } });
    }
    // PF_KTHREAD of include/linux/sched.h, in field 9 of stat.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let flags = procfs::stat_field(&stat, 9).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    if flags & 0x0020_0000 != 0 {
        return Err(OpenError::KernelThread { pid, comm });
    }
    let memory = Memory::open(pid).map_err(|e| why_denied(pid, comm.clone(), euid, e))?;
    match elf_kind(pid) {
        Ok(kind) if kind == ELF => Ok(memory),
        Ok(kind) if kind == OTHER_ELF => Err(OpenError::OtherBuild { pid, comm }),
        Ok(_) => Err(OpenError::Unsupported { pid, comm }),
        Err(_) => Ok(memory),
    }
}

/// Fails if something else traces the process.
pub fn check_tracer(pid: i32) -> Result<(), OpenError> {
    let tracer = procfs::tracer(pid);
    // A command that we have started ourselves is traced by a thread of ours.
    if tracer == 0 || Path::new("/proc/self/task").join(tracer.to_string()).exists() {
        return Ok(());
    }
    let (comm, tracer_comm) = (procfs::comm(pid).unwrap_or_default(), procfs::comm(tracer).unwrap_or_default());
    Err(OpenError::Traced { pid, comm, tracer, tracer_comm })
}

/// The class and machine of the ELF file that the process executes.
fn elf_kind(pid: i32) -> io::Result<(u8, u8)> {
    let mut head = [0u8; 20];
    fs::File::open(format!("/proc/{pid}/exe"))?.read_exact_at(&mut head, 0)?;
    Ok((head[4], head[18]))
}

fn why_denied(pid: i32, comm: String, euid: u32, source: io::Error) -> OpenError {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => return OpenError::NoProcess { pid },
        Some(libc::EACCES | libc::EPERM) => {}
        _ => return OpenError::Io { pid, source },
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let uids = procfs::status_field(&status, "Uid").unwrap_or_default();
    let uid = uids.split_ascii_whitespace().next().and_then(|u| u.parse().ok()).unwrap_or(euid);
    if euid != 0 && uid != euid {
        return OpenError::OtherUser { pid, comm, uid };
    }
    // Documentation/admin-guide/LSM/Yama.rst
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    match scope.ok().and_then(|s| s.trim().parse::<u32>().ok()) {
        Some(1) if euid != 0 => {
            let remedy = "run as root, or set it to 0: sysctl kernel.yama.ptrace_scope=0";
            return OpenError::Yama { pid, scope: 1, remedy };
        }
        Some(2) if euid != 0 => {
            return OpenError::Yama { pid, scope: 2, remedy: "run as root" };
        }
        Some(scope @ 3..) => {
            let remedy = "it forbids all tracing until the next boot; change it in /etc/sysctl.d and reboot";
            return OpenError::Yama { pid, scope, remedy };
        }
        _ => {}
    }
    let owner = fs::metadata(format!("/proc/{pid}")).map_or(euid, |m| m.uid());
    if euid != 0 && owner != euid {
        return OpenError::NotDumpable { pid, comm };
    }
    OpenError::NoCapability { pid, comm, source }
}
