//! x86-64: the kernel's entry convention is in `arch/x86/entry/entry_64.S`, system call numbers in
//! `arch/x86/entry/syscalls/syscall_64.tbl`, the signal frame in
//! `arch/x86/include/uapi/asm/sigcontext.h`.

use core::arch::asm;

use sidestep_wire::{Regs, SigAction};

use crate::emulate::Registers;

pub mod load;

/// A word of the target's memory.
pub type Word = u64;
/// Where addresses of the kernel begin, more or less: those with the highest bit.
pub const ADDRESS_END: u64 = 1 << 63;
/// Where glibc (`struct pthread`, `tid`) and musl (`struct pthread`, `tid`) keep the thread id,
/// from the thread pointer.
pub const TID_WORDS: [u32; 2] = [0x2d0, 0x30];
/// Arguments of functions that are passed in registers.
pub const REGISTER_ARGUMENTS: u64 = 6;
/// Whether functions may take arguments off the stack when they return.
pub const DROPS_ARGUMENTS: bool = false;
/// Whether signals leave the words right below the stack pointer alone.
pub const HAS_RED_ZONE: bool = true;

/// System call numbers.
pub mod nr {
    #![allow(missing_docs)] // the kernel's names
    pub const MMAP: u64 = 9;
    pub const RT_SIGACTION: u64 = 13;
    pub const RT_SIGPROCMASK: u64 = 14;
    pub const SCHED_YIELD: u64 = 24;
    pub const RT_SIGRETURN: u64 = 15;
    pub const GETPID: u64 = 39;
    pub const CLONE: u64 = 56;
    pub const VFORK: u64 = 58;
    pub const EXECVE: u64 = 59;
    pub const KILL: u64 = 62;
    pub const GETPPID: u64 = 110;
    pub const GETUID: u64 = 102;
    pub const GETGID: u64 = 104;
    pub const RT_SIGSUSPEND: u64 = 130;
    pub const SIGALTSTACK: u64 = 131;
    pub const PRCTL: u64 = 157;
    pub const GETTID: u64 = 186;
    pub const FUTEX: u64 = 202;
    pub const CLOCK_GETTIME: u64 = 228;
    pub const TGKILL: u64 = 234;
    pub const PSELECTS: [u64; 1] = [270];
    pub const PPOLLS: [u64; 1] = [271];
    pub const EPOLL_PWAITS: [u64; 2] = [281, 441];
    pub const RT_TGSIGQUEUEINFO: u64 = 297;
    pub const GETCPU: u64 = 309;
    pub const PROCESS_VM_READV: u64 = 310;
    pub const PROCESS_VM_WRITEV: u64 = 311;
    pub const EXECVEAT: u64 = 322;
    pub const CLONE3: u64 = 435;
}

/// Offset in `struct ucontext` of the alternate signal stack when the signal came: address, flags,
/// size (`stack_t`).
pub const UCONTEXT_STACK: usize = 16;
/// Offset of the interrupted registers (`uc_mcontext`).
const UCONTEXT_REGISTERS: usize = 40;
/// Which words of `uc_mcontext` the registers are, by their numbers in encodings.
const REGISTERS: [u8; 16] = [13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7];
/// Offset of the interrupted instruction pointer, the 17th word.
pub const UCONTEXT_IP: usize = UCONTEXT_REGISTERS + 16 * 8;
/// Offset of the interrupted stack pointer: the word before.
pub const UCONTEXT_SP: usize = UCONTEXT_IP - 8;
/// Offset of the interrupted frame pointer.
pub const UCONTEXT_BP: usize = UCONTEXT_REGISTERS + 10 * 8;
/// Offset of the interrupted `rbx`.
pub const UCONTEXT_BX: usize = UCONTEXT_REGISTERS + 11 * 8;
/// Offset of the interrupted flags: the word behind.
pub const UCONTEXT_FLAGS: usize = UCONTEXT_IP + 8;
/// Offset of the number of the exception.
pub const UCONTEXT_TRAPNO: usize = UCONTEXT_REGISTERS + 20 * 8;
/// Offset of the word for [`DEALT_WITH`](sidestep_wire::signals::DEALT_WITH).
pub const UCONTEXT_MARK: usize = UCONTEXT_TRAPNO;
/// Offset of `si_addr` in `siginfo_t`.
pub const SI_ADDR: usize = 16;
/// Distance from a `struct ucontext` down to the word at which the kernel has put the address of
/// the restorer (`struct rt_sigframe`, `arch/x86/include/asm/sigframe.h`).
pub const UCONTEXT_RESTORER: usize = 8;

/// A system call; negative results are `-errno`.
///
/// # Safety
/// The arguments must be what the call wants.
#[inline(always)]
pub unsafe fn syscall(number: u64, args: [u64; 6]) -> i64 {
    let result;
    // SAFETY: the kernel changes rax, rcx and r11 only, and memory as the caller of this function
    // promised.
    unsafe {
        asm!("syscall",
            inlateout("rax") number => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack));
    }
    result
}

/// The context that a call with this number will restore, with this stack pointer, if it is the
/// return of a signal handler.
#[must_use]
pub fn returning_context(number: u64, sp: u64) -> Option<u64> {
    (number == nr::RT_SIGRETURN).then_some(sp)
}

/// Where the context of a handler that is about to return has the signal mask that the call with
/// this number gives back (`uc_sigmask`): its lowest word.
#[must_use]
pub fn returning_mask(_number: u64, context: u64) -> u64 {
    /// Bytes of `struct sigcontext`.
    const CONTEXT: u64 = 256;
    context.wrapping_add(UCONTEXT_REGISTERS as u64 + CONTEXT)
}

/// Flags of our own actions that the kernel is not given.
pub const NOT_OURS: u64 = 0;

/// The restorer of a handler that was installed with this action. The kernel gives all of them the
/// same frame.
#[must_use]
pub fn restorer(action: &SigAction) -> Option<u64> {
    (action.flags & sidestep_wire::signals::flags::RESTORER != 0).then_some(action.restorer)
}

/// An action as `rt_sigaction` takes it.
pub type KernelAction = SigAction;

/// To it.
#[must_use]
pub fn kernel_action(action: &SigAction) -> KernelAction {
    // Word by word: a copy of the whole would go through an xmm register, which thunks do not save.
    let word = |word: &u64| core::hint::black_box(*word);
    let SigAction { handler, flags, restorer, mask } = action;
    SigAction { handler: word(handler), flags: word(flags), restorer: word(restorer), mask: word(mask) }
}

/// An argument of a system call.
pub fn argument(frame: &mut Regs, number: u8) -> &mut u64 {
    match number {
        0 => &mut frame.rdi,
        1 => &mut frame.rsi,
        2 => &mut frame.rdx,
        3 => &mut frame.r10,
        4 => &mut frame.r8,
        _ => &mut frame.r9,
    }
}

/// An argument of a function, of those in registers.
#[must_use]
pub fn register_argument(regs: &Regs, number: u64) -> Option<u64> {
    Some(match number {
        0 => regs.rdi,
        1 => regs.rsi,
        2 => regs.rdx,
        3 => regs.rcx,
        4 => regs.r8,
        5 => regs.r9,
        _ => return None,
    })
}

/// The thread pointer. The controller attaches only where the instruction may be used.
#[inline(always)]
#[must_use]
pub fn thread_pointer() -> u64 {
    let base;
    // SAFETY: reads a register.
    unsafe { asm!("rdfsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base
}

/// `*at += by` in one instruction: whole for this thread's signal handlers, not for other
/// processors.
///
/// # Safety
/// `at` is writable, and only this thread writes it.
#[inline(always)]
pub unsafe fn add(at: *mut u64, by: u64) {
    // SAFETY: the caller promises that `at` is writable, and that only this thread writes it.
    unsafe { asm!("add qword ptr [{at}], {by}", at = in(reg) at, by = in(reg) by, options(nostack)) }
}

/// `if *at == old { *at = new }` in one instruction: whole for this thread's signal handlers, not
/// for other processors. Returns whether it was done.
///
/// # Safety
/// `at` is writable, and only this thread writes it (others at most turn `old` values of theirs
/// into 0).
#[inline(always)]
#[must_use]
pub unsafe fn replace(at: *mut u64, old: u64, new: u64) -> bool {
    let found: u64;
    // SAFETY: the caller promises that `at` is writable. No other register than rax is changed.
    unsafe {
        asm!("cmpxchg qword ptr [{at}], {new}",
            at = in(reg) at, new = in(reg) new, inlateout("rax") old => found,
            options(nostack));
    }
    found == old
}

/// The registers of a signal's context.
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
#[must_use]
pub unsafe fn registers(context: *const u8) -> Registers {
    // SAFETY: the caller promises that `context` is what the kernel passes. All offsets are those
    // of words of it.
    let word = |at: usize| unsafe { context.add(at).cast::<u64>().read_volatile() };
    let mut registers = Registers { gpr: [0; 16], rip: word(UCONTEXT_IP), flags: word(UCONTEXT_FLAGS) };
    for (register, place) in registers.gpr.iter_mut().zip(REGISTERS) {
        *register = word(UCONTEXT_REGISTERS + 8 * usize::from(place));
    }
    registers
}

/// The program goes on with these.
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
pub unsafe fn set_registers(context: *mut u8, registers: &Registers) {
    // SAFETY: the caller promises that `context` is what the kernel passes. All offsets are those
    // of words of it.
    let set = |at: usize, value: u64| unsafe { context.add(at).cast::<u64>().write_volatile(value) };
    for (register, place) in registers.gpr.iter().zip(REGISTERS) {
        set(UCONTEXT_REGISTERS + 8 * usize::from(place), *register);
    }
    set(UCONTEXT_IP, registers.rip);
    set(UCONTEXT_FLAGS, registers.flags);
}

/// Has this thread a shadow stack (CET)? Where there is none, the instruction is a nop (SDM volume
/// 2, RDSSP).
#[must_use]
pub fn has_shadow_stack() -> bool {
    let pointer: u64;
    // SAFETY: reads a register.
    unsafe { asm!("rdsspq {}", inlateout(reg) 0u64 => pointer, options(nomem, nostack, preserves_flags)) };
    pointer != 0
}
