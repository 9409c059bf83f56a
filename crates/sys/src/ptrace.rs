//! The `ptrace(2)` requests we use, and `waitid(2)` for tracees, one thin function each.
//!
//! ptrace knows its tracer by thread: whoever seized a thread must make all requests for it.
#![allow(unsafe_code, reason = "raw system calls")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{c_uint, c_void, pid_t};

use crate::ExitStatus;
use crate::arch::{self, Regs};
use crate::procfs;
use crate::seccomp::Filter;

// linux/ptrace.h; not in every version of the libc crate.
const PTRACE_GETSIGMASK: c_uint = 0x420a;
const PTRACE_SETSIGMASK: c_uint = 0x420b;
const PTRACE_GET_RSEQ_CONFIGURATION: c_uint = 0x420f;
const PTRACE_EVENT_STOP: i32 = 128;
/// Seccomp filters are off for as long as we trace (needs `CAP_SYS_ADMIN` and a kernel with
/// checkpoint support).
pub const SUSPEND_SECCOMP: i32 = 1 << 21;
/// System-call stops are told from SIGTRAP; an exec is an event.
pub const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
/// A thread that a traced one makes is traced from its birth, with the same options, and begins
/// with an [`Event::Stop`].
pub const TRACE_NEW: i32 = libc::PTRACE_O_TRACECLONE;

/// Why a traced thread stands still, or that it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Stopped by PTRACE_INTERRUPT or by a group stop: the thread is in the kernel's signal code,
    /// its registers are those of the user program, and the restart of an interrupted system call
    /// is still to be decided by them.
    Stop,
    /// About to receive this signal; resuming without naming it discards it.
    Signal(i32),
    /// At the entry or exit of a system call.
    Syscall,
    /// Inside `execve`, after the point of no return.
    Exec,
    /// Inside `clone`: the new thread is traced, too ([`TRACE_NEW`], [`new_thread`]).
    Clone,
    /// Some other ptrace event.
    Other,
    /// The thread or process has ended.
    Exited(ExitStatus),
}

fn request(op: c_uint, tid: pid_t, addr: usize, data: usize) -> io::Result<()> {
    request_count(op, tid, addr, data).map(drop)
}

/// A request that answers with a number.
fn request_count(op: c_uint, tid: pid_t, addr: usize, data: usize) -> io::Result<usize> {
    // SAFETY: callers pass as `addr` and `data` numbers, or pointers that live until the call
    // returns and are valid for what the request reads and writes.
    let r = unsafe { libc::ptrace(op, tid, addr as *mut c_void, data as *mut c_void) };
    usize::try_from(r).map_err(|_| io::Error::last_os_error())
}

/// Starts tracing without stopping.
pub fn seize(tid: pid_t, options: i32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, options as usize)
}

/// Asks for an [`Event::Stop`]: at once if the thread runs, else after the current stop.
pub fn interrupt(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Ends the tracing of a stopped thread, which goes on, with a signal if `signal` is not 0.
pub fn detach(tid: pid_t, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

/// The thread that was made, of one that is at an [`Event::Clone`].
pub fn new_thread(tid: pid_t) -> io::Result<pid_t> {
    let mut id: libc::c_ulong = 0;
    request(libc::PTRACE_GETEVENTMSG, tid, 0, ptr::from_mut(&mut id) as usize)?;
    Ok(id as pid_t)
}

/// The id of the calling thread: it is the tracer of all that it has seized.
pub fn own_id() -> pid_t {
    // SAFETY: has no arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as pid_t }
}

/// Lets a stopped thread run.
pub fn cont(tid: pid_t, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as usize)
}

/// Lets a stopped thread run until it enters or leaves a system call.
pub fn cont_to_syscall(tid: pid_t, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, signal as usize)
}

/// The registers of a stopped thread.
pub fn get_regs(tid: pid_t) -> io::Result<Regs> {
    let raw = arch::get_user_regs(tid)?;
    Ok(Regs::new(raw, arch::thread_pointer(tid, &raw)?))
}

/// Sets the registers of a stopped thread.
pub fn set_regs(tid: pid_t, regs: &Regs) -> io::Result<()> {
    arch::set_user_regs(tid, &regs.raw)
}

/// The general registers of a stopped thread.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
pub fn get_user_regs(tid: pid_t) -> io::Result<libc::user_regs_struct> {
    let mut regs = MaybeUninit::<libc::user_regs_struct>::zeroed();
    request(libc::PTRACE_GETREGS, tid, 0, regs.as_mut_ptr() as usize)?;
    // SAFETY: zeroed, and all-integer, so every bit pattern is valid; the kernel has filled it.
    Ok(unsafe { regs.assume_init() })
}

/// Sets the general registers of a stopped thread.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
pub fn set_user_regs(tid: pid_t, regs: &libc::user_regs_struct) -> io::Result<()> {
    request(libc::PTRACE_SETREGS, tid, 0, ptr::from_ref(regs) as usize)
}

/// A segment that the thread has set up: `struct user_desc`.
#[cfg(target_arch = "x86")]
pub fn thread_area(tid: pid_t, number: i32) -> io::Result<[u32; 4]> {
    const PTRACE_GET_THREAD_AREA: c_uint = 25;
    let mut area = [0u32; 4];
    request(PTRACE_GET_THREAD_AREA, tid, number as usize, area.as_mut_ptr() as usize)?;
    Ok(area)
}

/// The thread pointer.
#[cfg(target_arch = "arm")]
pub fn thread_area(tid: pid_t) -> io::Result<u32> {
    const PTRACE_GET_THREAD_AREA: c_uint = 22;
    let mut pointer = 0u32;
    request(PTRACE_GET_THREAD_AREA, tid, 0, ptr::from_mut(&mut pointer) as usize)?;
    Ok(pointer)
}

/// Makes the system call that a thread is about to make another one; -1: none.
#[cfg(target_arch = "arm")]
pub fn set_syscall(tid: pid_t, number: i32) -> io::Result<()> {
    const PTRACE_SET_SYSCALL: c_uint = 23;
    request(PTRACE_SET_SYSCALL, tid, 0, number as usize)
}

/// The signal mask that the thread will have back in user code.
pub fn get_sigmask(tid: pid_t) -> io::Result<u64> {
    let mut mask = 0u64;
    request(PTRACE_GETSIGMASK, tid, size_of::<u64>(), ptr::from_mut(&mut mask) as usize)?;
    Ok(mask)
}

/// Sets the signal mask of a stopped thread.
pub fn set_sigmask(tid: pid_t, mask: u64) -> io::Result<()> {
    request(PTRACE_SETSIGMASK, tid, size_of::<u64>(), ptr::from_ref(&mask) as usize)
}

/// Has a stopped thread executed an instruction that raised a signal, and not got the signal yet?
/// It gets such a signal before all others, as soon as it goes on (`dequeue_synchronous_signal` in
/// kernel/signal.c).
pub fn has_raised(tid: pid_t) -> io::Result<bool> {
    const PTRACE_PEEKSIGINFO: c_uint = 0x4209;
    const AT_ONCE: usize = 8;
    const RAISED: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGTRAP, libc::SIGFPE, libc::SIGSYS];
    let is_raised = |info: &libc::siginfo_t| info.si_code > 0 && RAISED.contains(&info.si_signo);
    let mut raised = 0;
    // struct ptrace_peeksiginfo_args: offset u64, flags u32 (0: those of the thread), count i32.
    #[repr(C)]
    struct Args(u64, u32, i32);
    for first in (0..).step_by(AT_ONCE) {
        let args = Args(first, 0, AT_ONCE as i32);
        let mut infos = [const { MaybeUninit::<libc::siginfo_t>::zeroed() }; AT_ONCE];
        let count = request_count(PTRACE_PEEKSIGINFO, tid, ptr::from_ref(&args) as usize, infos.as_mut_ptr() as usize)?;
        // SAFETY: zeroed (a valid siginfo of plain integers), then filled by the kernel.
        let infos = infos[..count].iter().map(|info| unsafe { info.assume_init_ref() });
        raised |= infos.filter(|info| is_raised(info)).fold(0, |set, info| set | 1u64 << (info.si_signo - 1));
        if count < AT_ONCE {
            break;
        }
    }
    // One that is blocked waits.
    Ok(raised != 0 && raised & !get_sigmask(tid)? != 0)
}

/// A register set (`NT_…`) of a stopped thread.
pub fn get_regset(tid: pid_t, note: i32, max: usize) -> io::Result<Vec<u8>> {
    let mut buf = vec![0u8; max];
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    request(libc::PTRACE_GETREGSET, tid, note as usize, ptr::from_mut(&mut iov) as usize)?;
    buf.truncate(iov.iov_len);
    Ok(buf)
}

/// Sets a register set of a stopped thread.
#[cfg(any(target_arch = "aarch64", target_arch = "arm"))]
pub fn set_regset(tid: pid_t, note: i32, bytes: &[u8]) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    request(libc::PTRACE_SETREGSET, tid, note as usize, ptr::from_mut(&mut iov) as usize)
}

/// The `index`-th seccomp filter of a stopped thread, 0 = the newest; ENOENT behind the last.
pub(crate) fn seccomp_filter(tid: pid_t, index: usize) -> io::Result<Vec<Filter>> {
    const PTRACE_SECCOMP_GET_FILTER: c_uint = 0x420c;
    /// `BPF_MAXINSNS`
    const MAX: usize = 4096;
    let mut filter = vec![Filter::default(); MAX];
    let len = request_count(PTRACE_SECCOMP_GET_FILTER, tid, index, filter.as_mut_ptr() as usize)?;
    filter.truncate(len);
    Ok(filter)
}

/// Address of the thread's `struct rseq`, if it has registered one (Linux 5.13).
pub fn rseq_area(tid: pid_t) -> Option<u64> {
    // struct ptrace_rseq_configuration: pointer u64, size, signature, flags, pad u32.
    let mut conf = [0u64; 3];
    let len = size_of_val(&conf);
    request(PTRACE_GET_RSEQ_CONFIGURATION, tid, len, conf.as_mut_ptr() as usize).ok()?;
    (conf[0] != 0).then_some(conf[0])
}

/// Does the kernel give a thread's system calls back to the program, as signals (`prctl` with
/// `PR_SET_SYSCALL_USER_DISPATCH`)? Only known since Linux 6.4.
pub fn has_dispatch(tid: pid_t) -> bool {
    const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: c_uint = 0x4211;
    // struct ptrace_sud_config: mode, selector, offset, length. Mode 0 is "off".
    let mut config = [0u64; 4];
    let len = size_of_val(&config);
    let asked = request(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, len, config.as_mut_ptr() as usize);
    asked.is_ok() && config[0] != 0
}

/// Is a thread that stands at a system call at its entry (else at its exit)? Linux 5.3.
pub fn at_entry(tid: pid_t) -> io::Result<bool> {
    const PTRACE_GET_SYSCALL_INFO: c_uint = 0x420e;
    const PTRACE_SYSCALL_INFO_ENTRY: u8 = 1;
    // struct ptrace_syscall_info: u8 op, …; as much as fits is written.
    let mut info = [0u64; 1];
    let len = size_of_val(&info);
    request(PTRACE_GET_SYSCALL_INFO, tid, len, info.as_mut_ptr() as usize)?;
    let [word] = info;
    Ok(word.to_le_bytes()[0] == PTRACE_SYSCALL_INFO_ENTRY)
}

/// What has become of a tracee (or child), without blocking if `nohang`: `None` = nothing yet.
///
/// A stop is looked at but not consumed (`WNOWAIT`): the kernel takes a consumed signal-delivery
/// stop as "discard the signal" if the tracer dies before it resumes the thread
/// (`wait_task_stopped` clears `exit_code`), so a killed controller would lose a signal of the
/// target. An end is consumed, as a traced zombie blocks an `execve` of its process; but the end of
/// a child of ours stays there for [`wait_exit`]. An `execve` is consumed, too: if another thread
/// than the first has made it, which it is now, the kernel answers no request before that
/// (`looks_like_a_spurious_pid`).
pub fn wait(tid: pid_t, nohang: bool) -> io::Result<Option<Event>> {
    let hang = if nohang { libc::WNOHANG } else { 0 };
    loop {
        let options = libc::WEXITED | libc::WSTOPPED | libc::__WALL | hang;
        let Some((code, status)) = waitid(tid, options | libc::WNOWAIT)? else {
            return Ok(None);
        };
        return Ok(Some(match code {
            libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED => {
                if !is_own_child(tid) {
                    waitid(tid, libc::WEXITED | libc::__WALL | libc::WNOHANG)?;
                }
                Event::Exited(exit_status(code, status))
            }
            libc::CLD_TRAPPED => {
                let event = decode_stop(status);
                if event == Event::Exec {
                    waitid(tid, libc::WSTOPPED | libc::__WALL | libc::WNOHANG)?;
                }
                event
            }
            // A child that we do not trace has stopped: not our business.
            _ if nohang => return Ok(None),
            _ => continue,
        }));
    }
}

/// Waits for the end of a child (`options`: 0 or `WNOHANG`) and takes it away.
pub fn wait_exit(pid: pid_t, options: i32) -> io::Result<Option<ExitStatus>> {
    Ok(waitid(pid, libc::WEXITED | libc::__WALL | options)?.map(|(code, status)| exit_status(code, status)))
}

fn exit_status(code: i32, status: i32) -> ExitStatus {
    if code == libc::CLD_EXITED { ExitStatus::Code(status) } else { ExitStatus::Signal(status) }
}

/// Is this a process (not a thread of one) that we have started?
fn is_own_child(tid: pid_t) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{tid}/status")) else {
        return false;
    };
    let is = |key, value: i64| procfs::status_field(&status, key).is_some_and(|v| v == value.to_string());
    is("Tgid", tid.into()) && is("PPid", std::process::id().into())
}

fn decode_stop(status: i32) -> Event {
    match (status >> 8, status & 0xff) {
        (PTRACE_EVENT_STOP, _) => Event::Stop,
        (libc::PTRACE_EVENT_EXEC, _) => Event::Exec,
        (libc::PTRACE_EVENT_CLONE, _) => Event::Clone,
        (0, sig) if sig == libc::SIGTRAP | 0x80 => Event::Syscall,
        (0, sig) => Event::Signal(sig),
        _ => Event::Other,
    }
}

/// `(si_code, si_status)`; retries on EINTR.
fn waitid(tid: pid_t, options: i32) -> io::Result<Option<(i32, i32)>> {
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: `info` is valid for writing.
        let r = unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, info.as_mut_ptr(), options) };
        if r == 0 {
            // SAFETY: zeroed (a valid siginfo of plain integers), then filled by the kernel.
            let info = unsafe { info.assume_init() };
            // SAFETY: `si_pid` and `si_status` are what waitid fills; all zero if nothing was there
            // (WNOHANG).
            let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
            return Ok((pid != 0).then_some((info.si_code, status)));
        }
        let e = io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::EINTR) {
            return Err(e);
        }
    }
}
