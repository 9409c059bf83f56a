//! Registers and gadgets of arm32. Code is A32 or T32, which a bit of the flags says; addresses are
//! those of the first byte, unless something else is said.

mod frame;
mod stub;
mod survey;

use std::io;

use sidestep_isa::{Isa, Va};

use super::regs::Regs;
use crate::process::Process;
use crate::ptrace;

pub(crate) use frame::{FpState, Frame, is_frame};
pub(crate) use stub::Gadgets;
pub use stub::{BATCH_CODE, GADGET_CODE};
pub(crate) use stub::{ENTRY_STUB_LEN, entry_stub};
pub use survey::signal_frames;

/// A word of the target's memory.
pub type Word = u32;
/// What the targets of this build are called.
pub const NAME: &str = "32-bit Arm";
/// And those of the other build.
pub const OTHER: &str = "64-bit Arm";
/// Class and machine of their files (`ELFCLASS32`, `EM_ARM`), and of those of the other build
/// (`EM_AARCH64`).
pub(crate) const ELF: (u8, u8) = (1, 40);
/// See [`ELF`].
pub(crate) const OTHER_ELF: (u8, u8) = (2, 183);
/// How seccomp filters name the architecture: `AUDIT_ARCH_ARM`.
pub(crate) const AUDIT: u32 = 0x4000_0028;
/// The system call that maps memory; the offset is 0 in all of ours.
pub const MMAP: libc::c_long = libc::SYS_mmap2;
/// In what it counts the offset in the file, in bytes.
pub const MMAP_UNIT: u64 = 4096;
/// `futex_time64`: the time has two words of 64 bits.
pub const FUTEX: libc::c_long = FUTEX_TIME64;
/// The system call of the agent's clock: `clock_gettime64`.
pub const CLOCK_GETTIME: libc::c_long = 403;
/// What a relocation by the load address alone is in its files (`R_ARM_RELATIVE`).
pub const RELATIVE: u32 = 23;
/// A program may set its thread pointer without a system call: user code cannot write the register
/// (`TPIDRURO`).
pub const SETS_THREAD_POINTER: bool = false;
/// There is no vDSO that handlers return through. The kernel's own page is left as it is, since
/// unwinders know its code.
pub const RETURNS_IN_VDSO: bool = false;
/// System calls that change signal masks or actions, or wait with another mask. Not the returns of
/// handlers: see `STAND_INS` in `sidestep-wire`.
pub const SIGNAL_CALLS: &[libc::c_long] = &[
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigsuspend,
    libc::SYS_pselect6,
    libc::SYS_ppoll,
    libc::SYS_epoll_pwait,
    PSELECT6_TIME64,
    PPOLL_TIME64,
    EPOLL_PWAIT2,
];
/// System calls that may make a child on its parent's memory.
pub const LENDING_CALLS: &[libc::c_long] = &[libc::SYS_vfork, libc::SYS_clone, CLONE3];
/// End of user space: under the page of the vectors, where a 64-bit kernel gives programs all.
pub const ADDRESS_END: u64 = 0xffff_0000;
/// The instruction set of our own code in targets.
pub const ISA: Isa = Isa::A32;
/// Those that the code of targets is of.
pub const ISAS: &[Isa] = &[Isa::A32, Isa::T32];
/// All that map memory and have their arguments in registers.
pub(crate) const MMAPS: &[libc::c_long] = &[libc::SYS_mmap2];
/// The shortest instruction that makes a system call: `svc #0` of T32.
pub(crate) const SYSCALL: [u8; 2] = [0x00, 0xdf];

// arch/arm/tools/syscall.tbl; not in every version of the libc crate.
const CLOCK_NANOSLEEP_TIME64: libc::c_long = 407;
const PSELECT6_TIME64: libc::c_long = 413;
const PPOLL_TIME64: libc::c_long = 414;
const FUTEX_TIME64: libc::c_long = 422;
const CLONE3: libc::c_long = 435;
const EPOLL_PWAIT2: libc::c_long = 441;

// include/uapi/linux/elf.h
const NT_PRSTATUS: i32 = 1;
/// `orig_r0` where a thread has not come to the kernel by a system call (`usr_entry` in
/// arch/arm/kernel/entry-armv.S), and what the kernel has in place of a number where none is to be
/// made.
const NO_CALL: i32 = -1;

/// The registers, as ptrace gives them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserRegs {
    /// `struct pt_regs`: r0 to r15, cpsr, and what r0 was at the start of a system call.
    pub words: [u32; 18],
    /// Number of the system call that the thread is in; below 0 there is none.
    pub call: i32,
}

const SP: usize = 13;
/// The link register.
const LR: usize = 14;
const PC: usize = 15;
const CPSR: usize = 16;
const ORIG_R0: usize = 17;
/// The words that a signal frame has of them.
const USER_WORDS: usize = ORIG_R0;
/// The register with the number of a system call.
const NUMBER: usize = 7;

/// Flag of T32 (DDI 0406C, B1.3.3).
const T: u32 = 1 << 5;
/// What is left of a block of `it`, and the state of Jazelle: code elsewhere does not go on there.
const IT_J: u32 = 3 << 25 | 0x3f << 10 | 1 << 24;

/// The first byte of the code that an address of a pointer or a file means: bit 0 says T32.
pub(crate) fn first_byte(at: Va) -> Va {
    Va(at.0 & !1)
}

/// Does such an address mean T32?
fn is_t32(at: Va) -> bool {
    at.0 & 1 != 0
}

/// The registers of a stopped thread.
///
/// Nothing tells for certain whether it is in a system call. What says so is that `orig_r0` is not
/// -1; of a call whose first argument is -1, it is taken for code in front of that call or behind
/// it, where the registers are the same. The number is in r7, which the kernel leaves alone.
pub(crate) fn get_user_regs(tid: i32) -> io::Result<UserRegs> {
    let mut regs = UserRegs { words: [0; 18], call: NO_CALL };
    let bytes = ptrace::get_regset(tid, NT_PRSTATUS, size_of_val(&regs.words))?;
    for (word, bytes) in regs.words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = bytes.try_into().map_or(0, u32::from_le_bytes);
    }
    if regs.words[ORIG_R0] != NO_CALL as u32 {
        regs.call = regs.words[NUMBER] as i32;
    }
    Ok(regs)
}

/// Sets the registers of a stopped thread. At the entry of a system call, that call is not made if
/// there is no number. At both ends of one, the kernel says in r12 which it is, and puts the
/// thread's own r12 back afterwards (`report_syscall` in arch/arm/kernel/ptrace.c).
pub(crate) fn set_user_regs(tid: i32, regs: &UserRegs) -> io::Result<()> {
    let words: Vec<u8> = regs.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    ptrace::set_regset(tid, NT_PRSTATUS, &words)?;
    if regs.call == NO_CALL { ptrace::set_syscall(tid, NO_CALL) } else { Ok(()) }
}

/// May user code read the thread pointer? On ARMv7 always.
#[must_use]
pub fn thread_pointer_readable() -> bool {
    true
}

/// The thread pointer of a stopped thread with these registers.
pub(crate) fn thread_pointer(tid: i32, _: &UserRegs) -> io::Result<u64> {
    ptrace::thread_area(tid).map(u64::from)
}

/// The counter of the generic timer, where user code may read it.
pub(crate) fn ticks() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a register.
    #[allow(unsafe_code)]
    unsafe {
        std::arch::asm!("isb", "mrrc p15, 1, {}, {}, c14", out(reg) low, out(reg) high,
            options(nostack, nomem, preserves_flags));
    }
    u64::from(low) | u64::from(high) << 32
}

/// May code of ours read the counter of the generic timer? Nothing tells: not all machines let user
/// code read it, and the kernel does not do it in its place (`arch_counter_set_user_access` in
/// drivers/clocksource/arm_arch_timer.c).
pub(crate) fn ticks_usable(_cpuinfo: &str, _clock_source: &str) -> bool {
    false
}

impl Regs {
    /// The address of the instruction that the thread executes next. If it was stopped inside a
    /// system call that the kernel will restart, this is the instruction that makes the call: the
    /// kernel has already gone back to it (`do_signal` in arch/arm/kernel/signal.c).
    #[must_use]
    pub fn ip(&self) -> Va {
        self.raw_ip()
    }

    /// Makes the thread go on at `at`, in the instruction set that it is in.
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
        const CALLS: [libc::c_long; 7] = [
            libc::SYS_rt_sigsuspend,
            libc::SYS_ppoll,
            libc::SYS_pselect6,
            libc::SYS_epoll_pwait,
            PSELECT6_TIME64,
            PPOLL_TIME64,
            EPOLL_PWAIT2,
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
    /// Such calls end here: nobody has tried yet what `ORIG_r0` says of their first argument.
    pub(crate) fn made_again(&self) -> Option<Regs> {
        None
    }

    /// Does no register tell which system call is about to be made? The number stays in r7, also
    /// where the kernel goes on from its own state.
    pub(crate) fn hides_restart(&self, _: &Process) -> bool {
        false
    }

    /// See [`Regs::hides_restart`].
    pub(crate) fn set_call_number(&mut self, _: &Regs) {}

    /// Would the kernel make the interrupted system call of the thread again, and not another one,
    /// if the thread went on at `at`? It does so by itself, without going back to user code, where
    /// the thread stands at the call (`do_signal` in arch/arm/kernel/signal.c).
    pub(crate) fn restarts_at(&self, at: Va) -> bool {
        first_byte(at) == self.raw_ip()
    }

    /// Will the restart use state that the kernel keeps for this thread (`restart_syscall(2)`), if
    /// there is one? These calls do that (kernel/time, kernel/futex, fs/select.c).
    pub(crate) fn restarts_from_block(&self) -> bool {
        const CONTINUED: [libc::c_long; 6] = [
            libc::SYS_poll,
            libc::SYS_nanosleep,
            libc::SYS_futex,
            libc::SYS_clock_nanosleep,
            FUTEX_TIME64,
            CLOCK_NANOSLEEP_TIME64,
        ];
        self.syscall().is_some_and(|nr| CONTINUED.contains(&(nr as libc::c_long)))
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
        let len = if self.raw.words[CPSR] & T != 0 { 2 } else { 4 };
        regs.set_raw_ip(self.raw_ip().offset(-len));
        regs.end_syscall();
        regs
    }

    /// The hardware register: behind the instruction in a system call.
    pub(crate) fn raw_ip(&self) -> Va {
        Va(self.raw.words[PC].into())
    }

    fn set_raw_ip(&mut self, at: Va) {
        self.raw.words[PC] = at.0 as u32;
        self.raw.words[CPSR] &= !IT_J;
    }

    /// Makes the thread go on at code whose address says by bit 0 of which instruction set it is.
    fn go_to(&mut self, at: Va) {
        self.set_raw_ip(first_byte(at));
        self.raw.words[CPSR] &= !T;
        if is_t32(at) {
            self.raw.words[CPSR] |= T;
        }
    }

    /// Stack pointer.
    #[must_use]
    pub fn sp(&self) -> Va {
        Va(self.raw.words[SP].into())
    }

    /// Frame pointer: of A32 code.
    #[must_use]
    pub fn frame_pointer(&self) -> Va {
        Va(self.raw.words[11].into())
    }

    /// Result of a system call, or whatever is in its register.
    pub(crate) fn result(&self) -> i64 {
        (self.raw.words[0] as i32).into()
    }

    /// What the kernel keeps of the number of a system call; as an `int` below 0 outside of one.
    pub(super) fn kept_number(&self) -> u64 {
        self.raw.call as u64
    }

    pub(super) fn end_syscall(&mut self) {
        self.raw.words[ORIG_R0] = NO_CALL as u32;
        self.raw.call = NO_CALL;
    }

    /// Third argument of a system call.
    pub(super) fn argument3(&self) -> u64 {
        self.raw.words[2].into()
    }

    /// The registers from which a system call takes its arguments, in their order.
    pub(crate) fn arguments(&self) -> [u64; 6] {
        let [a, b, c, d, e, f, ..] = self.raw.words;
        [a, b, c, d, e, f].map(u64::from)
    }

    /// Sets them. Each time the kernel makes an interrupted call again, r0 gets the value from the
    /// start of the call (`do_signal` in arch/arm/kernel/signal.c), so that is set, too.
    pub(crate) fn set_arguments(&mut self, arguments: [u64; 6]) {
        if self.raw.call != NO_CALL && self.raw.words[ORIG_R0] == self.raw.words[0] {
            self.raw.words[ORIG_R0] = arguments[0] as u32;
        }
        self.raw.words[..6].copy_from_slice(&arguments.map(|argument| argument as u32));
    }

    /// A general register by number: r0 to r12, the stack pointer, the link register. `None` for
    /// numbers above that.
    #[must_use]
    pub fn gpr(&self, n: u8) -> Option<u64> {
        self.raw.words[..PC].get(usize::from(n)).copied().map(u64::from)
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
        self.raw.words[CPSR].into()
    }

    /// The registers that execute a system call with the gadgets `g` and then return into the frame
    /// at `frame`.
    pub(crate) fn for_call(&self, g: Gadgets, frame: Va, nr: u64, args: [u64; 6]) -> Regs {
        let mut regs = *self;
        regs.go_to(g.syscall_ret);
        regs.raw.words[SP] = frame.0 as u32;
        regs.raw.words[NUMBER] = nr as u32;
        regs.raw.words[LR] = g.sigreturn.0 as u32;
        regs.set_arguments(args);
        regs.end_syscall();
        regs
    }

    /// The registers that execute [`BATCH_CODE`] at `code` and then return into the frame.
    pub(crate) fn for_batch(&self, g: Gadgets, frame: Va, code: Va, list: Va) -> Regs {
        let mut regs = self.for_call(g, frame, 0, [0; 6]);
        regs.go_to(code);
        regs.raw.words[stub::LIST] = list.0 as u32;
        regs
    }

    /// The call of [`entry_stub`] is not made; the rest of the stub is done here. `saved` is the
    /// stub's stack, and bit 0 of `entry` says T32.
    pub(crate) fn after_stub(&self, saved: [Word; 2], entry: Va) -> Regs {
        let mut regs = *self;
        [regs.raw.words[0], regs.raw.words[NUMBER]] = saved;
        regs.raw.words[SP] = regs.raw.words[SP].wrapping_add(size_of_val(&saved) as u32);
        regs.go_to(entry);
        regs.end_syscall();
        regs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All registers zero but these, of a thread in user code.
    pub(super) fn regs(pc: u32, thumb: bool) -> Regs {
        let mut words = [0; 18];
        (words[PC], words[CPSR], words[ORIG_R0]) = (pc, if thumb { 0x30 } else { 0x10 }, NO_CALL as u32);
        Regs::new(UserRegs { words, call: NO_CALL }, 0)
    }

    #[test]
    fn code_of_ours_runs_in_its_own_instruction_set() {
        let mut target = regs(0x8002, true);
        // In the middle of a block of `it`.
        target.raw.words[CPSR] |= IT_J;
        let (frame, list) = (Va(0x7000), Va(0x9000));
        let gadgets = Gadgets { syscall_ret: Va(0x1000), sigreturn: Va(0x2001) };
        let call = target.for_call(gadgets, frame, 45, [1, 2, 3, 4, 5, 6]);
        assert_eq!((call.ip(), call.flags(), call.sp()), (Va(0x1000), 0x10, frame));
        assert_eq!((call.gpr(14), call.gpr(7), call.arguments()), (Some(0x2001), Some(45), [1, 2, 3, 4, 5, 6]));
        let call = regs(0x8004, false).for_call(Gadgets { syscall_ret: Va(0x1003), ..gadgets }, frame, 45, [0; 6]);
        assert_eq!((call.ip(), call.flags()), (Va(0x1002), 0x30));
        let batch = target.for_batch(gadgets, frame, Va(0x3000), list);
        assert_eq!((batch.ip(), batch.flags(), batch.gpr(8)), (Va(0x3000), 0x10, Some(list.0)));
    }

    #[test]
    fn a_call_that_is_not_made_is_as_long_as_its_instruction_set_has_it() {
        assert_eq!(regs(0x1002, true).before_syscall().ip(), Va(0x1000));
        assert_eq!(regs(0x1004, false).before_syscall().ip(), Va(0x1000));
    }

    #[test]
    fn the_stub_ends_in_the_instruction_set_of_the_program() {
        let mut at_call = regs(0x5000, false);
        at_call.raw.words[SP] = 0x7000;
        let after = at_call.after_stub([7, 8], Va(0x1_0401));
        assert_eq!((after.ip(), after.flags() & u64::from(T) != 0, after.sp()), (Va(0x1_0400), true, Va(0x7008)));
        assert_eq!((after.gpr(0), after.gpr(7)), (Some(7), Some(8)));
    }

    #[test]
    fn the_first_argument_of_a_call_came_back_when_the_call_was_interrupted_again() {
        let mut waits = regs(0x1002, true);
        (waits.raw.words[0], waits.raw.words[ORIG_R0], waits.raw.call) = (1, 1, 179);
        waits.set_arguments([2; 6]);
        assert_eq!((waits.raw.words[0], waits.raw.words[ORIG_R0]), (2, 2));
        // With the result of its call; in no call.
        waits.raw.words[0] = 7;
        waits.set_arguments([3; 6]);
        assert_eq!((waits.raw.words[0], waits.raw.words[ORIG_R0]), (3, 2));
        let mut runs = regs(0x1002, true);
        runs.raw.words[0] = NO_CALL as u32;
        runs.set_arguments([4; 6]);
        assert_eq!(runs.raw.words[ORIG_R0], NO_CALL as u32);
    }

    #[test]
    fn a_thread_that_waits_is_not_sent_to_the_call_where_it_waits() {
        assert!(regs(0x1002, true).restarts_at(Va(0x1003)));
        assert!(!regs(0x1002, true).restarts_at(Va(0x1000)));
    }
}
