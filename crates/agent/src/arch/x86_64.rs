//! x86-64: the kernel's entry convention is in `arch/x86/entry/entry_64.S`, system call numbers in
//! `arch/x86/entry/syscalls/syscall_64.tbl`, the signal frame in `arch/x86/include/uapi/asm/sigcontext.h`.

use core::arch::asm;

/// System call numbers.
pub mod nr {
    #![allow(missing_docs)] // the kernel's names
    pub const MMAP: u64 = 9;
    pub const RT_SIGACTION: u64 = 13;
    pub const RT_SIGPROCMASK: u64 = 14;
    pub const SCHED_YIELD: u64 = 24;
    pub const GETPID: u64 = 39;
    pub const RT_SIGSUSPEND: u64 = 130;
    pub const PRCTL: u64 = 157;
    pub const GETTID: u64 = 186;
    pub const CLOCK_GETTIME: u64 = 228;
    pub const TGKILL: u64 = 234;
    pub const PPOLL: u64 = 271;
    pub const EPOLL_PWAIT: u64 = 281;
    pub const RT_TGSIGQUEUEINFO: u64 = 297;
    pub const PROCESS_VM_READV: u64 = 310;
    pub const EPOLL_PWAIT2: u64 = 441;
}

/// Offset in `struct ucontext` of the interrupted instruction pointer: `uc_mcontext` at 40, `rip` its 17th word.
pub const UCONTEXT_IP: usize = 40 + 16 * 8;
/// The one-byte breakpoint instruction, `int3`.
pub const BREAKPOINT: u8 = 0xcc;
/// First byte of `int imm8`; `cd 03` traps like `int3`, but is two bytes long.
pub const INT_IMM8: u8 = 0xcd;

/// A system call; negative results are `-errno`.
///
/// # Safety
/// The arguments must be what the call wants.
#[inline(always)]
pub unsafe fn syscall(number: u64, args: [u64; 6]) -> i64 {
    let result;
    // SAFETY: the kernel changes rax, rcx and r11 only, and memory as the caller of this function promised.
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

/// The time stamp counter.
#[inline(always)]
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has `rdtsc`; the controller selects it only where it is usable.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// `*at += by` in one instruction: whole for this thread's signal handlers, not for other processors.
///
/// # Safety
/// `at` is writable, and only this thread writes it.
#[inline(always)]
pub unsafe fn add(at: *mut u64, by: u64) {
    // SAFETY: the caller's.
    unsafe { asm!("add qword ptr [{at}], {by}", at = in(reg) at, by = in(reg) by, options(nostack)) }
}

/// `if *at == old { *at = new }` in one instruction: whole for this thread's signal handlers, not for other processors.
/// Returns whether it was done.
///
/// # Safety
/// `at` is writable, and only this thread writes it (others at most turn `old` values of theirs into 0).
#[inline(always)]
#[must_use]
pub unsafe fn replace(at: *mut u64, old: u64, new: u64) -> bool {
    let found: u64;
    // SAFETY: the caller's.
    unsafe {
        asm!("cmpxchg qword ptr [{at}], {new}",
            at = in(reg) at, new = in(reg) new, inlateout("rax") old => found,
            options(nostack));
    }
    found == old
}
