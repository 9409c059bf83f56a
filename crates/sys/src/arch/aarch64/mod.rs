//! Registers and gadgets of arm64.

mod frame;
mod stub;
mod survey;

use std::io;

use sidestep_isa::{Isa, Va};

use super::regs::{CALL_LEN, Regs};
use crate::process::Process;
use crate::ptrace;

pub(crate) use frame::{FpState, Frame, is_frame};
pub(crate) use stub::Gadgets;
pub use stub::{BATCH_CODE, GADGET_CODE};
pub(crate) use stub::{ENTRY_STUB_LEN, entry_stub};
pub use survey::signal_frames;

/// A word of the target's memory.
pub type Word = u64;
/// What the targets of this build are called.
pub const NAME: &str = "64-bit Arm";
/// And those of the other build.
pub const OTHER: &str = "32-bit Arm";
/// Class and machine of their files (`ELFCLASS64`, `EM_AARCH64`), and of those of the other build
/// (`EM_ARM`).
pub(crate) const ELF: (u8, u8) = (2, 183);
/// See [`ELF`].
pub(crate) const OTHER_ELF: (u8, u8) = (1, 40);
/// How seccomp filters name the architecture: `AUDIT_ARCH_AARCH64`.
pub(crate) const AUDIT: u32 = 0xc000_00b7;
/// The system call that maps memory; the offset is 0 in all of ours.
pub const MMAP: libc::c_long = libc::SYS_mmap;
/// `futex`.
pub const FUTEX: libc::c_long = libc::SYS_futex;
/// In what it counts the offset in the file, in bytes.
pub const MMAP_UNIT: u64 = 1;
/// What a relocation by the load address alone is in its files (`R_AARCH64_RELATIVE`).
pub const RELATIVE: u32 = 1027;
/// A program may set its thread pointer without a system call (`msr tpidr_el0`).
pub const SETS_THREAD_POINTER: bool = true;
/// Signal handlers return through the vDSO, but no guard can be there: unwinders know that code by
/// its two instructions (`aarch64_fallback_frame_state` in libgcc).
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
/// System calls that may make a child on its parent's memory.
pub const LENDING_CALLS: &[libc::c_long] = &[libc::SYS_clone, libc::SYS_clone3];
/// End of user space with addresses of 48 bits.
pub const ADDRESS_END: u64 = 0xffff_ffff_f000;
/// The instruction set of targets.
pub const ISA: Isa = Isa::A64;
/// Those that the code of targets is of.
pub const ISAS: &[Isa] = &[ISA];
/// All that map memory.
pub(crate) const MMAPS: &[libc::c_long] = &[libc::SYS_mmap];
/// The instruction that makes a system call: `svc #0`.
pub(crate) const SYSCALL: [u8; 4] = 0xd400_0001u32.to_le_bytes();

// include/uapi/linux/elf.h
const NT_PRSTATUS: i32 = 1;
const NT_ARM_TLS: i32 = 0x401;
const NT_ARM_SYSTEM_CALL: i32 = 0x404;
/// What the kernel has in place of a number outside of system calls (`NO_SYSCALL`).
const NO_CALL: i32 = -1;
/// Bits of `pstate` that must not reach code elsewhere: single step, and the type of the branch
/// that has led here (arch/arm64/include/asm/ptrace.h).
const SS_BTYPE: u64 = 1 << 21 | 3 << 10;

/// The registers, as ptrace gives them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserRegs {
    /// `struct user_pt_regs`: x0 to x30, sp, pc, pstate.
    pub words: [u64; 34],
    /// Number of the system call that the thread is in.
    pub call: i32,
}

const SP: usize = 31;
const PC: usize = 32;
const PSTATE: usize = 33;
/// The link register.
const LR: usize = 30;
/// The register with the number of a system call.
const NUMBER: usize = 8;

/// The first byte of the code that an address means.
pub(crate) fn first_byte(at: Va) -> Va {
    at
}

/// The registers of a stopped thread.
pub(crate) fn get_user_regs(tid: i32) -> io::Result<UserRegs> {
    let mut regs = UserRegs { words: [0; 34], call: NO_CALL };
    let bytes = ptrace::get_regset(tid, NT_PRSTATUS, size_of_val(&regs.words))?;
    for (word, bytes) in regs.words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    let call = ptrace::get_regset(tid, NT_ARM_SYSTEM_CALL, size_of_val(&regs.call))?;
    regs.call = call.try_into().map_or(NO_CALL, i32::from_le_bytes);
    Ok(regs)
}

/// Sets the registers of a stopped thread.
pub(crate) fn set_user_regs(tid: i32, regs: &UserRegs) -> io::Result<()> {
    let words: Vec<u8> = regs.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    ptrace::set_regset(tid, NT_PRSTATUS, &words)?;
    ptrace::set_regset(tid, NT_ARM_SYSTEM_CALL, &regs.call.to_le_bytes())
}

/// May user code read the thread pointer? Always.
#[must_use]
pub fn thread_pointer_readable() -> bool {
    true
}

/// The thread pointer of a stopped thread with these registers.
pub(crate) fn thread_pointer(tid: i32, _: &UserRegs) -> io::Result<u64> {
    let bytes = ptrace::get_regset(tid, NT_ARM_TLS, 16)?;
    Ok(bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)))
}

/// The counter of the generic timer.
pub(crate) fn ticks() -> u64 {
    let counter: u64;
    // SAFETY: reads a register that Linux lets user code read.
    #[allow(unsafe_code)]
    unsafe {
        std::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) counter, options(nostack, nomem, preserves_flags));
    }
    counter
}

/// Does the counter tick at a constant rate on all CPUs, and does the kernel trust it as its own
/// clock?
pub(crate) fn ticks_usable(_cpuinfo: &str, clock_source: &str) -> bool {
    clock_source == "arch_sys_counter"
}

impl Regs {
    /// The address of the instruction that the thread executes next. If it was stopped inside a
    /// system call that the kernel will restart, this is the instruction that makes the call: the
    /// kernel has already gone back to it (`do_signal` in arch/arm64/kernel/signal.c).
    #[must_use]
    pub fn ip(&self) -> Va {
        self.raw_ip()
    }

    /// Makes the thread go on at `at`.
    pub(crate) fn set_ip(&mut self, at: Va) {
        self.set_raw_ip(at);
    }

    /// Was the thread stopped inside a system call that the kernel will restart when it goes on?
    /// No register tells: such a thread is as it was before the call.
    #[must_use]
    pub fn restarts(&self) -> bool {
        false
    }

    /// May the thread wait in a system call with a signal mask of its own? The kernel goes on with
    /// that call, or ends it with EINTR if a signal comes first, as long as the thread stays there.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        const CALLS: [libc::c_long; 5] = [
            libc::SYS_rt_sigsuspend,
            libc::SYS_ppoll,
            libc::SYS_pselect6,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
        ];
        CALLS.contains(&(self.raw.words[NUMBER] as libc::c_long))
    }

    /// Did the thread wait in a system call when it was stopped? No register tells whether the call
    /// has ended.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.syscall().is_some()
    }

    /// The same, but its system call has been interrupted for good.
    pub(crate) fn interrupted(&self) -> Regs {
        *self
    }

    /// The registers with which the kernel makes a call again that a stop has ended with EINTR.
    /// None are known: the call's first argument is gone.
    pub(crate) fn made_again(&self) -> Option<Regs> {
        None
    }

    /// Does no register tell whether a system call that is about to be made is one that the kernel
    /// restarts, perhaps from its own state? When the thread goes on without any change, the kernel
    /// writes the number of `restart_syscall`, and the call is made: then its number tells.
    pub(crate) fn hides_restart(&self, process: &Process) -> bool {
        process.read_pod(self.ip()).is_ok_and(|code: [u8; 4]| code == SYSCALL)
    }

    /// The number of the system call that is about to be made becomes what it is in other registers
    /// of the thread.
    pub(crate) fn set_call_number(&mut self, of: &Regs) {
        self.raw.words[NUMBER] = of.raw.words[NUMBER];
    }

    /// Would the kernel make the interrupted system call of the thread again, and not another one,
    /// if the thread went on at `at`? It goes on from user code alone.
    pub(crate) fn restarts_at(&self, _at: Va) -> bool {
        false
    }

    /// Will the restart use state that the kernel keeps for this thread (`restart_syscall(2)`)?
    pub(crate) fn restarts_from_block(&self) -> bool {
        false
    }

    /// The registers with which user code goes on if the kernel's restart logic is not asked again.
    /// A call which would be continued from kernel state begins anew; its argument registers are
    /// still there.
    pub(crate) fn settled(&self, _: &Process) -> Regs {
        let mut regs = *self;
        regs.end_syscall();
        regs
    }

    /// The call is not made now: the thread goes back to the instruction before it.
    pub(crate) fn before_syscall(&self) -> Regs {
        let mut regs = *self;
        regs.set_raw_ip(self.raw_ip().offset(-CALL_LEN));
        regs.end_syscall();
        regs
    }

    /// The hardware register: behind the instruction in a system call.
    pub(crate) fn raw_ip(&self) -> Va {
        Va(self.raw.words[PC])
    }

    pub(super) fn set_raw_ip(&mut self, at: Va) {
        self.raw.words[PC] = at.0;
        self.raw.words[PSTATE] &= !SS_BTYPE;
    }

    /// Stack pointer.
    #[must_use]
    pub fn sp(&self) -> Va {
        Va(self.raw.words[SP])
    }

    /// Frame pointer.
    #[must_use]
    pub fn frame_pointer(&self) -> Va {
        Va(self.raw.words[29])
    }

    /// Result of a system call, or whatever is in its register.
    pub(crate) fn result(&self) -> i64 {
        self.raw.words[0] as i64
    }

    /// What the kernel keeps of the number of a system call; as an `int` below 0 outside of one.
    pub(super) fn kept_number(&self) -> u64 {
        self.raw.call as u64
    }

    pub(super) fn end_syscall(&mut self) {
        self.raw.call = NO_CALL;
    }

    /// Third argument of a system call.
    pub(super) fn argument3(&self) -> u64 {
        self.raw.words[2]
    }

    /// The registers from which a system call takes its arguments, in their order.
    pub(crate) fn arguments(&self) -> [u64; 6] {
        let [a, b, c, d, e, f, ..] = self.raw.words;
        [a, b, c, d, e, f]
    }

    /// Sets them.
    pub(crate) fn set_arguments(&mut self, arguments: [u64; 6]) {
        self.raw.words[..6].copy_from_slice(&arguments);
    }

    /// A general register by number; 31 is the stack pointer. `None` for numbers above that.
    #[must_use]
    pub fn gpr(&self, n: u8) -> Option<u64> {
        self.raw.words[..=SP].get(usize::from(n)).copied()
    }

    /// Has a system call right before the instruction pointer left its address in a register? No
    /// call does.
    #[must_use]
    pub fn is_behind_call(&self) -> bool {
        false
    }

    /// See [`Regs::is_behind_call`]: the same behind a call at another address.
    pub(crate) fn set_behind_call(&mut self, at: Va) {
        self.set_raw_ip(at);
    }

    /// Flags.
    #[must_use]
    pub fn flags(&self) -> u64 {
        self.raw.words[PSTATE]
    }

    /// The registers that execute a system call with the gadgets `g` and then return into the frame
    /// at `frame`.
    pub(crate) fn for_call(&self, g: Gadgets, frame: Va, nr: u64, args: [u64; 6]) -> Regs {
        let mut regs = *self;
        regs.set_raw_ip(g.syscall_ret);
        regs.raw.words[SP] = frame.0;
        regs.raw.words[NUMBER] = nr;
        regs.raw.words[LR] = g.sigreturn.0;
        regs.set_arguments(args);
        regs.end_syscall();
        regs
    }

    /// The registers that execute [`BATCH_CODE`] at `code` and then return into the frame.
    pub(crate) fn for_batch(&self, g: Gadgets, frame: Va, code: Va, list: Va) -> Regs {
        let mut regs = self.for_call(g, frame, 0, [0; 6]);
        regs.set_raw_ip(code);
        regs.raw.words[stub::LIST] = list.0;
        regs
    }

    /// The call of [`entry_stub`] is not made; the rest of the stub is done here. `saved` is the
    /// stub's stack.
    pub(crate) fn after_stub(&self, saved: [Word; 2], entry: Va) -> Regs {
        let mut regs = *self;
        [regs.raw.words[0], regs.raw.words[NUMBER]] = saved;
        regs.raw.words[SP] = regs.raw.words[SP].wrapping_add(size_of_val(&saved) as u64);
        regs.set_raw_ip(entry);
        regs.end_syscall();
        regs
    }
}
