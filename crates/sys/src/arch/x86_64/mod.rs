//! Registers and gadgets of x86-64.

mod frame;
mod survey;

use std::io;

use sidestep_isa::{Isa, Va};

use super::regs::Regs;
use crate::process::Process;

pub use super::processor::LENDING_CALLS;
pub(crate) use super::processor::{first_byte, get_user_regs, set_user_regs, ticks, ticks_usable};
pub(crate) use frame::{FpState, Frame, is_frame};
pub use survey::signal_frames;

/// The general registers, as ptrace gives them.
pub(crate) type UserRegs = libc::user_regs_struct;
/// A word of the target's memory.
pub type Word = u64;
/// What the targets of this build are called.
pub const NAME: &str = "64-bit x86";
/// And those of the other build.
pub const OTHER: &str = "32-bit x86";
/// Class and machine of their files (`ELFCLASS64`, `EM_X86_64`), and of those of the other build
/// (`EM_386`).
pub(crate) const ELF: (u8, u8) = (2, 62);
/// See [`ELF`].
pub(crate) const OTHER_ELF: (u8, u8) = (1, 3);
/// How seccomp filters name the architecture: `AUDIT_ARCH_X86_64`.
pub(crate) const AUDIT: u32 = 0xc000_003e;
/// The system call that maps memory; the offset is 0 in all of ours.
pub const MMAP: libc::c_long = libc::SYS_mmap;
/// `futex`.
pub const FUTEX: libc::c_long = libc::SYS_futex;
/// In what it counts the offset in the file, in bytes.
pub const MMAP_UNIT: u64 = 1;
/// What a relocation by the load address alone is in its files (`R_X86_64_RELATIVE`).
pub const RELATIVE: u32 = 8;
/// A program may set its thread pointer without a system call (`wrfsbase`).
pub const SETS_THREAD_POINTER: bool = true;
/// Signal handlers may return through the vDSO.
pub const RETURNS_IN_VDSO: bool = false;
/// The system call of the agent's clock.
pub const CLOCK_GETTIME: libc::c_long = libc::SYS_clock_gettime;
/// System calls that change signal masks or actions, or wait with another mask.
pub const SIGNAL_CALLS: &[libc::c_long] = &[
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_pselect6,
    libc::SYS_ppoll,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];
/// End of user space with 4-level paging.
pub const ADDRESS_END: u64 = 0x7fff_ffff_f000;
/// The instruction set of targets.
pub const ISA: Isa = Isa::X64;
/// Those that the code of targets is of.
pub const ISAS: &[Isa] = &[ISA];
/// All that map memory.
pub(crate) const MMAPS: &[libc::c_long] = &[libc::SYS_mmap];
/// The instruction that makes a system call.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The calls that the kernel continues (kernel/time, kernel/futex, fs/select.c).
pub(crate) const CONTINUED: [libc::c_long; 4] =
    [libc::SYS_poll, libc::SYS_nanosleep, libc::SYS_futex, libc::SYS_clock_nanosleep];

/// The calls that end with EINTR when a thread stops and goes on, with no handler in between
/// (signal(7), "Interruption of system calls and library functions by stop signals"; of the calls
/// that wait for events also `io_uring_enter(2)` and `io_getevents(2)`). Those that read and write
/// do so at sockets with a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
pub(crate) const END_AT_STOPS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_uring_enter,
    libc::SYS_io_getevents,
    IO_PGETEVENTS,
];

/// arch/x86/entry/syscalls/syscall_64.tbl; not in every version of the libc crate.
pub(crate) const IO_PGETEVENTS: libc::c_long = 333;

/// The number that the code in front of a `syscall` at `ip` sets.
pub(crate) fn number_from_code(process: &Process, ip: Va, _: Va) -> Option<u32> {
    const MOV_EAX_IMM32: u8 = 0xb8;
    let [op, imm @ ..]: [u8; 5] = process.read_pod(ip.offset(-5)).ok()?;
    (op == MOV_EAX_IMM32).then_some(u32::from_le_bytes(imm))
}

/// May user code execute `rdfsbase`, which generated code takes the thread pointer from? The kernel
/// says so in bit 1 of `AT_HWCAP2` (Documentation/arch/x86/x86_64/fsgs.rst).
#[must_use]
pub fn thread_pointer_readable() -> bool {
    // SAFETY: only reads our own auxiliary vector.
    #[allow(unsafe_code)]
    unsafe {
        libc::getauxval(libc::AT_HWCAP2) & 2 != 0
    }
}

/// The thread pointer of a stopped thread with these registers.
pub(crate) fn thread_pointer(_: i32, raw: &UserRegs) -> io::Result<u64> {
    Ok(raw.fs_base)
}

impl Regs {
    /// The hardware register: behind the instruction in a system call.
    pub(crate) fn raw_ip(&self) -> Va {
        Va(self.raw.rip)
    }

    pub(super) fn set_raw_ip(&mut self, at: Va) {
        self.raw.rip = at.0;
    }

    /// Stack pointer.
    #[must_use]
    pub fn sp(&self) -> Va {
        Va(self.raw.rsp)
    }

    /// Frame pointer.
    #[must_use]
    pub fn frame_pointer(&self) -> Va {
        Va(self.raw.rbp)
    }

    /// Result of a system call, or whatever is in its register.
    pub(crate) fn result(&self) -> i64 {
        self.raw.rax as i64
    }

    pub(super) fn set_result(&mut self, value: u64) {
        self.raw.rax = value;
    }

    /// What the kernel keeps of the number of a system call; as an `int` below 0 outside of one.
    pub(super) fn kept_number(&self) -> u64 {
        self.raw.orig_rax
    }

    pub(super) fn end_syscall(&mut self) {
        self.raw.orig_rax = u64::MAX;
    }

    /// Third argument of a system call.
    pub(super) fn argument3(&self) -> u64 {
        self.raw.rdx
    }

    /// The registers from which a system call takes its arguments, in their order.
    pub(crate) fn arguments(&self) -> [u64; 6] {
        let r = &self.raw;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
    }

    /// Sets them.
    pub(crate) fn set_arguments(&mut self, arguments: [u64; 6]) {
        let r = &mut self.raw;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = arguments;
    }

    /// A general register by hardware number: rax rcx rdx rbx rsp rbp rsi rdi r8 … r15.
    ///
    /// `None` for numbers above 15.
    #[must_use]
    pub fn gpr(&self, n: u8) -> Option<u64> {
        let r = &self.raw;
        [r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15]
            .get(usize::from(n))
            .copied()
    }

    /// Has a `syscall` right before the instruction pointer just returned? Its address behind it is
    /// in rcx then (SDM volume 2, "SYSCALL"), until something else writes that register.
    #[must_use]
    pub fn is_behind_call(&self) -> bool {
        self.raw.rcx == self.raw.rip && !self.restarts()
    }

    /// See [`Regs::is_behind_call`]: the same behind a call at another address.
    pub(crate) fn set_behind_call(&mut self, at: Va) {
        (self.raw.rip, self.raw.rcx) = (at.0, at.0);
    }

    /// Flags.
    #[must_use]
    pub fn flags(&self) -> u64 {
        self.raw.eflags
    }

    /// The registers that execute a system call with the gadgets `g` and then return into the frame
    /// at `frame`.
    pub(crate) fn for_call(&self, g: Gadgets, frame: Va, nr: u64, args: [u64; 6]) -> Regs {
        /// Trap, direction and resume flag: must not reach the gadget.
        const TF_DF_RF: u64 = 1 << 8 | 1 << 10 | 1 << 16;
        let mut r = self.raw;
        r.rip = g.syscall_ret.0;
        r.rsp = frame.0;
        r.rax = nr;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = args;
        r.eflags &= !TF_DF_RF;
        r.orig_rax = u64::MAX;
        Regs { raw: r, ..*self }
    }

    /// The registers that execute [`BATCH_CODE`] at `code` and then return into the frame.
    pub(crate) fn for_batch(&self, g: Gadgets, frame: Va, code: Va, list: Va) -> Regs {
        let mut regs = self.for_call(g, frame, 0, [0; 6]);
        (regs.raw.rip, regs.raw.rbx) = (code.0, list.0);
        regs
    }
}

/// Makes the system calls of a list of eight words each (number, arguments, result), up to a number
/// below 0, and returns. [`crate::Call`]s with the number [`crate::ADD`] are no system calls. Uses
/// no stack.
pub const BATCH_CODE: &[u8] = &[
    0x48, 0x8b, 0x03, // 0: mov (%rbx), %rax
    0x85, 0xc0, // test %eax, %eax
    0x78, 0x33, // js 1f
    0x48, 0x8b, 0x7b, 0x08, // mov 8(%rbx), %rdi
    0x48, 0x8b, 0x73, 0x10, // mov 16(%rbx), %rsi
    0x3d, 0xff, 0xff, 0xff, 0x7f, // cmp $ADD, %eax
    0x74, 0x1c, // je 3f
    0x48, 0x8b, 0x53, 0x18, // mov 24(%rbx), %rdx
    0x4c, 0x8b, 0x53, 0x20, // mov 32(%rbx), %r10
    0x4c, 0x8b, 0x43, 0x28, // mov 40(%rbx), %r8
    0x4c, 0x8b, 0x4b, 0x30, // mov 48(%rbx), %r9
    0x0f, 0x05, // syscall
    0x48, 0x89, 0x43, 0x38, // 2: mov %rax, 56(%rbx)
    0x48, 0x83, 0xc3, 0x40, // add $64, %rbx
    0xeb, 0xce, // jmp 0b
    0xf0, 0x66, 0x01, 0x37, // 3: lock add %si, (%rdi)
    0x31, 0xc0, // xor %eax, %eax
    0xeb, 0xee, // jmp 2b
    0xc3, // 1: ret
];

impl Regs {
    /// The call of [`entry_stub`] is not made; the rest of the stub is done here. `saved` is the
    /// stub's stack.
    pub(crate) fn after_stub(&self, saved: StubStack, entry: Va) -> Regs {
        let mut r = self.raw;
        [r.r11, r.rcx, r.rax] = saved;
        r.rsp = r.rsp.wrapping_add(size_of_val(&saved) as u64);
        r.rip = entry.0;
        r.orig_rax = u64::MAX;
        Regs { raw: r, ..*self }
    }
}

/// What [`entry_stub`] has on the stack at its system call.
pub(crate) type StubStack = [Word; 3];
/// Room for [`entry_stub`].
pub const ENTRY_STUB_LEN: u64 = 4096;

/// Code that makes a system call (`getpid`) and jumps to `entry`, with all registers as they were.
pub fn entry_stub(entry: Va) -> Vec<u8> {
    let mut code = vec![
        0x50, // push %rax
        0x51, // push %rcx
        0x41, 0x53, // push %r11
        0xb8, 39, 0, 0, 0, // mov $39, %eax
        0x0f, 0x05, // syscall
        0x41, 0x5b, // pop %r11
        0x59, // pop %rcx
        0x58, // pop %rax
        0xff, 0x25, 0, 0, 0, 0, // jmp *0(%rip)
    ];
    code.extend_from_slice(&entry.0.to_le_bytes());
    code
}

/// Instructions of the target that a remote call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gadgets {
    /// `syscall; ret`.
    pub syscall_ret: Va,
    /// `mov $15, %eax; syscall`: `rt_sigreturn`, which every C library has as a signal restorer.
    pub sigreturn: Va,
}

const SYSCALL_RET: &[u8] = &[0x0f, 0x05, 0xc3];
const SIGRETURN: [&[u8]; 2] = [
    &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], // mov $15, %rax; syscall
    &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05],             // mov $15, %eax; syscall
];

/// Both instructions of a remote call in a row (`Gadgets`), for targets that have none that stay.
pub const GADGET_CODE: [u8; 12] = [0x0f, 0x05, 0xc3, 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

impl Gadgets {
    /// The gadgets if [`GADGET_CODE`] is at `at`.
    pub fn of_code_at(at: Va) -> Gadgets {
        Gadgets { syscall_ret: at, sigreturn: at.offset(SYSCALL_RET.len() as i64) }
    }

    /// Are the instructions still there?
    pub fn check(&self, process: &Process) -> bool {
        let begins = |at: Va, code: &[u8]| {
            let mut buf = [0u8; 9];
            let Some(buf) = buf.get_mut(..code.len()) else {
                return false;
            };
            process.read(at, buf).is_ok() && buf == code
        };
        begins(self.syscall_ret, SYSCALL_RET) && SIGRETURN.iter().any(|code| begins(self.sigreturn, code))
    }

    /// Looks for the gadgets in some executable code that lies at `at`, filling in what is still
    /// missing.
    pub fn search(found: &mut (Option<Va>, Option<Va>), at: Va, code: &[u8]) {
        let mut from = 0;
        // The byte pair 0f 05 is rare; everything hangs on it.
        while let Some(i) = code.get(from..).and_then(|c| c.windows(2).position(|w| w == [0x0f, 0x05])) {
            let i = from + i;
            if found.0.is_none() && code.get(i..).is_some_and(|c| c.starts_with(SYSCALL_RET)) {
                found.0 = Some(at.offset(i as i64));
            }
            for pattern in SIGRETURN {
                let start = (i + SYSCALL.len()).wrapping_sub(pattern.len());
                if found.1.is_none() && code.get(start..).is_some_and(|c| c.starts_with(pattern)) {
                    found.1 = Some(at.offset(start as i64));
                }
            }
            if found.0.is_some() && found.1.is_some() {
                return;
            }
            from = i + 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::restart::ERESTART_RESTARTBLOCK;
    use super::*;

    fn regs(rip: u64, rax: i64, orig_rax: i64) -> Regs {
        // Built field by field: the type has no Default.
        let raw = libc::user_regs_struct {
            r15: 0,
            r14: 0,
            r13: 0,
            r12: 0,
            rbp: 0,
            rbx: 0,
            r11: 0,
            r10: 0,
            r9: 0,
            r8: 0,
            rax: rax as u64,
            rcx: 0,
            rdx: 0,
            rsi: 0,
            rdi: 0,
            orig_rax: orig_rax as u64,
            rip,
            cs: 0x33,
            eflags: 0x202,
            rsp: 0,
            ss: 0x2b,
            fs_base: 0,
            gs_base: 0,
            ds: 0,
            es: 0,
            fs: 0,
            gs: 0,
        };
        Regs { raw, thread_pointer: 0 }
    }

    #[test]
    fn a_restarting_call_stands_at_its_syscall_instruction() {
        let mut r = regs(0x1002, -512, 0);
        assert_eq!(r.ip(), Va(0x1000));
        r.set_ip(Va(0x2000));
        assert_eq!((r.raw.rip, r.ip()), (0x2002, Va(0x2000)));
    }

    #[test]
    fn a_value_like_a_restart_code_outside_a_call_is_just_a_value() {
        let r = regs(0x1002, -512, -1);
        assert_eq!(r.ip(), Va(0x1002));
        assert!(!r.restarts());
        // A finished call that returned EINTR goes on behind it.
        assert_eq!(regs(0x1002, -4, 232).ip(), Va(0x1002));
    }

    /// A pause ended calls that a program had not interrupted.
    #[test]
    fn a_call_that_a_stop_has_ended_is_made_again() {
        let again =
            |rax, orig_rax| regs(0x1002, rax, orig_rax).made_again().map(|regs| (regs.raw.rax as i64, regs.ip()));
        assert_eq!(again(-4, libc::SYS_epoll_wait), Some((-514, Va(0x1000))));
        // Its file descriptor is closed already.
        assert_eq!(again(-4, libc::SYS_close), None);
        assert_eq!(again(-11, libc::SYS_epoll_wait), None);
        // It waits with a mask: an argument of these registers is not 0.
        let mut masked = regs(0x1002, -4, libc::SYS_epoll_pwait);
        assert!(masked.made_again().is_some());
        masked.raw.r8 = 0x7000;
        assert!(masked.made_again().is_none());
        assert_eq!(again(-4, -1), None);
    }

    /// mov $35,%eax; syscall; nop; nop
    static NANOSLEEP: [u8; 9] = [0xb8, 35, 0, 0, 0, 0x0f, 0x05, 0x90, 0x90];

    #[test]
    fn a_sleep_that_was_stopped_just_before_its_restart_begins_anew() {
        let this = Process::open(std::process::id() as i32).unwrap();
        let at = NANOSLEEP.as_ptr() as u64 + 5;
        let number = |rip, rax, orig_rax| {
            let settled = regs(rip, rax, orig_rax).settled(&this).raw;
            (settled.rip - at, settled.rax)
        };
        // Stopped in the call, for the first time and again; stopped between the kernel's decision
        // and the call.
        assert_eq!(number(at + 2, ERESTART_RESTARTBLOCK, libc::SYS_nanosleep), (0, 35));
        assert_eq!(number(at + 2, ERESTART_RESTARTBLOCK, libc::SYS_restart_syscall), (0, 35));
        assert_eq!(number(at, libc::SYS_restart_syscall, libc::SYS_nanosleep), (0, 35));
        assert_eq!(number(at, libc::SYS_restart_syscall, libc::SYS_restart_syscall), (0, 35));
        // A call that gave this number.
        assert_eq!(number(at + 2, libc::SYS_restart_syscall, libc::SYS_read), (2, 219));
    }

    #[test]
    fn gadgets_are_found_in_our_own_code() {
        let mut found = (None, None);
        Gadgets::search(&mut found, Va(0x1000), &GADGET_CODE);
        let g = Gadgets::of_code_at(Va(0x1000));
        assert_eq!(found, (Some(g.syscall_ret), Some(g.sigreturn)));
    }

    #[test]
    fn the_short_form_of_sigreturn_is_found_at_the_very_start() {
        let mut found = (None, None);
        Gadgets::search(&mut found, Va(0), &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]);
        assert_eq!(found, (None, Some(Va(0))));
    }
}
