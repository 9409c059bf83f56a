//! x86-32, under a 64-bit kernel: the entry convention of `int $0x80` is in
//! `arch/x86/entry/entry_64_compat.S`, system call numbers in
//! `arch/x86/entry/syscalls/syscall_32.tbl`, signal frames in `arch/x86/include/asm/sigframe.h`.

use core::arch::{asm, global_asm};

use sidestep_wire::{Regs, SigAction, SigAction32};

use crate::emulate::Registers;

pub mod load;

/// A word of the target's memory.
pub type Word = u32;
/// There are no addresses from here on.
pub const ADDRESS_END: u64 = 1 << 32;
/// Where glibc (`struct pthread`, `tid`) and musl (`struct pthread`, `tid`) keep the thread id,
/// from the thread pointer.
pub const TID_WORDS: [u32; 2] = [0x68, 0x18];
/// Arguments of functions that are passed in registers.
pub const REGISTER_ARGUMENTS: u64 = 0;
/// Whether functions may take arguments off the stack when they return.
pub const DROPS_ARGUMENTS: bool = true;
/// Whether signals leave the words right below the stack pointer alone.
pub const HAS_RED_ZONE: bool = false;

/// System call numbers.
pub mod nr {
    #![allow(missing_docs)] // the kernel's names
    pub const EXECVE: u64 = 11;
    pub const GETPID: u64 = 20;
    pub const KILL: u64 = 37;
    pub const CLONE: u64 = 120;
    pub const SCHED_YIELD: u64 = 158;
    pub const PRCTL: u64 = 172;
    pub const RT_SIGRETURN: u64 = 173;
    pub const RT_SIGACTION: u64 = 174;
    pub const RT_SIGPROCMASK: u64 = 175;
    pub const RT_SIGSUSPEND: u64 = 179;
    pub const SIGALTSTACK: u64 = 186;
    /// `mmap2`: the offset, 0 in ours, is in pages.
    pub const MMAP: u64 = 192;
    pub const VFORK: u64 = 190;
    pub const GETPPID: u64 = 64;
    pub const GETUID: u64 = 199;
    pub const GETGID: u64 = 200;
    pub const GETTID: u64 = 224;
    pub const TGKILL: u64 = 270;
    pub const GETCPU: u64 = 318;
    pub const RT_TGSIGQUEUEINFO: u64 = 335;
    pub const PROCESS_VM_READV: u64 = 347;
    pub const PROCESS_VM_WRITEV: u64 = 348;
    pub const EXECVEAT: u64 = 358;
    /// `clock_gettime64`: two words of 64 bits, as elsewhere.
    pub const CLOCK_GETTIME: u64 = 403;
    /// `futex_time64`, likewise.
    pub const FUTEX: u64 = 422;
    pub const CLONE3: u64 = 435;
    // With times of 32 and of 64 bits.
    pub const PSELECTS: [u64; 2] = [308, 413];
    pub const PPOLLS: [u64; 2] = [309, 414];
    pub const EPOLL_PWAITS: [u64; 2] = [319, 441];
}

/// Offset in `struct ucontext` of the alternate signal stack when the signal came: address, flags,
/// size (`stack_t`).
pub const UCONTEXT_STACK: usize = 8;
/// Offset of the interrupted registers (`uc_mcontext`).
const UCONTEXT_REGISTERS: usize = 20;
/// Which words of `uc_mcontext` the registers are, by their numbers in encodings.
const REGISTERS: [u8; 8] = [11, 10, 9, 8, 7, 6, 5, 4];
/// Offset of the interrupted instruction pointer, the 15th word.
pub const UCONTEXT_IP: usize = UCONTEXT_REGISTERS + 14 * 4;
/// Offset of the interrupted stack pointer, the 8th word.
pub const UCONTEXT_SP: usize = UCONTEXT_REGISTERS + 7 * 4;
/// Offset of the interrupted frame pointer.
pub const UCONTEXT_BP: usize = UCONTEXT_REGISTERS + 6 * 4;
/// Offset of the interrupted `ebx`.
pub const UCONTEXT_BX: usize = UCONTEXT_REGISTERS + 8 * 4;
/// Offset of the interrupted flags, the 17th word.
pub const UCONTEXT_FLAGS: usize = UCONTEXT_REGISTERS + 16 * 4;
/// Offset of the number of the exception, the 13th word.
pub const UCONTEXT_TRAPNO: usize = UCONTEXT_REGISTERS + 12 * 4;
/// Offset of the word for [`DEALT_WITH`](sidestep_wire::signals::DEALT_WITH).
pub const UCONTEXT_MARK: usize = UCONTEXT_TRAPNO;
/// Offset of `si_addr` in `siginfo_t`.
pub const SI_ADDR: usize = 12;
/// Distance from a `struct ucontext` down to the word at which the kernel has put the address of
/// the restorer: below `siginfo_t` (128 bytes), the addresses of both, and the signal
/// (`struct rt_sigframe_ia32`).
pub const UCONTEXT_RESTORER: usize = 144;

// Both want more registers than the compiler gives away. eax = address of the words that they take.
global_asm!(
    ".pushsection .text.sidestep_raw,\"ax\",@progbits",
    ".hidden sidestep_syscall, sidestep_replace",
    ".globl sidestep_syscall, sidestep_replace",
    // number, six arguments -> eax = result
    "sidestep_syscall:",
    "push ebx",
    "push esi",
    "push edi",
    "push ebp",
    "mov ebx, [eax + 4]",
    "mov ecx, [eax + 8]",
    "mov edx, [eax + 12]",
    "mov esi, [eax + 16]",
    "mov edi, [eax + 20]",
    "mov ebp, [eax + 24]",
    "mov eax, [eax]",
    "int 0x80",
    "pop ebp",
    "pop edi",
    "pop esi",
    "pop ebx",
    "ret",
    // address, old value (two words), new value (two words) -> eax = 1 if it was done, else 0
    "sidestep_replace:",
    "push ebx",
    "push edi",
    "mov edi, [eax]",
    "mov ebx, [eax + 12]",
    "mov ecx, [eax + 16]",
    "mov edx, [eax + 8]",
    "mov eax, [eax + 4]",
    "cmpxchg8b [edi]",
    "sete al",
    "movzx eax, al",
    "pop edi",
    "pop ebx",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn sidestep_syscall();
    fn sidestep_replace();
}

/// A system call; negative results are `-errno`.
///
/// # Safety
/// The arguments must be what the call wants.
#[inline(always)]
pub unsafe fn syscall(number: u64, args: [u64; 6]) -> i64 {
    const LAST_ERROR: u32 = -4095i32 as u32;
    let [a, b, c, d, e, f] = args;
    let words = [number as u32, a as u32, b as u32, c as u32, d as u32, e as u32, f as u32];
    let result: u32;
    // SAFETY: the kernel changes eax only, and memory as the caller of this function promised.
    // Called directly: a call in Rust would go through a table of addresses.
    unsafe {
        asm!("call {call}", call = sym sidestep_syscall,
            inout("eax") words.as_ptr() => result, out("ecx") _, out("edx") _);
    }
    // An address may lie in the upper half.
    if result >= LAST_ERROR { i64::from(result as i32) } else { i64::from(result) }
}

/// The context that a call with this number will restore, with this stack pointer, if it is the
/// return of a signal handler.
#[must_use]
pub fn returning_context(number: u64, sp: u64) -> Option<u64> {
    match number {
        // The handler's `ret` has popped the restorer's address.
        nr::RT_SIGRETURN => Some(sp + UCONTEXT_RESTORER as u64 - WORD_LEN),
        // The restorer of a frame without `siginfo_t` has popped the signal, too, and `sigcontext`
        // is there.
        SIGRETURN => Some(sp.wrapping_sub(UCONTEXT_REGISTERS as u64)),
        _ => None,
    }
}

/// Returns from a handler without `siginfo_t`.
const SIGRETURN: u64 = 119;

/// Where the context of a handler that is about to return has the signal mask that the call with
/// this number gives back: its lowest word.
#[must_use]
pub fn returning_mask(number: u64, context: u64) -> u64 {
    /// Bytes of `struct sigcontext_32`, and where its `oldmask` is.
    const CONTEXT: usize = 88;
    const OLD_MASK: usize = 80;
    let at = UCONTEXT_REGISTERS + if number == SIGRETURN { OLD_MASK } else { CONTEXT };
    context.wrapping_add(at as u64)
}

const WORD_LEN: u64 = size_of::<Word>() as u64;

/// Flags of our own actions that the kernel is not given: it puts the vDSO's restorer into frames,
/// where it stays when we go.
pub const NOT_OURS: u64 = sidestep_wire::signals::flags::RESTORER;

/// The restorer of a handler that was installed with this action. Our frame has a `siginfo_t`: one
/// that leaves another kind of frame would not do.
#[must_use]
pub fn restorer(action: &SigAction) -> Option<u64> {
    const BOTH: u64 = sidestep_wire::signals::flags::RESTORER | sidestep_wire::signals::flags::SIGINFO;
    (action.flags & BOTH == BOTH).then_some(action.restorer)
}

/// An action as `rt_sigaction` takes it.
pub type KernelAction = SigAction32;

/// To it.
#[must_use]
pub fn kernel_action(action: &SigAction) -> KernelAction {
    action.short()
}

/// An argument of a system call.
pub fn argument(frame: &mut Regs, number: u8) -> &mut u64 {
    match number {
        0 => &mut frame.rbx,
        1 => &mut frame.rcx,
        2 => &mut frame.rdx,
        3 => &mut frame.rsi,
        4 => &mut frame.rdi,
        _ => &mut frame.rbp,
    }
}

/// An argument of a function, of those in registers: all are on the stack.
#[must_use]
pub fn register_argument(_: &Regs, _: u64) -> Option<u64> {
    None
}

/// The thread pointer: the first word of what `gs` selects, 0 before there is any. The controller
/// attaches only where all threads have it there.
#[inline(always)]
#[must_use]
pub fn thread_pointer() -> u64 {
    let base: u32;
    // SAFETY: reads a register, and memory that is there if the selector is no null one.
    unsafe {
        asm!("mov {base:e}, gs", "and {base:e}, -4", "jz 2f", "mov {base:e}, gs:[0]", "2:",
            base = out(reg) base, options(readonly, nostack));
    }
    base.into()
}

/// `*at += by` in two instructions. A signal handler of this thread between them that adds
/// something itself changes nothing: the carry is among the registers that it gives back. Not whole
/// for other processors.
///
/// # Safety
/// `at` is writable, and only this thread writes it.
#[inline(always)]
pub unsafe fn add(at: *mut u64, by: u64) {
    // SAFETY: the caller promises that `at` is writable, and that only this thread writes it.
    unsafe {
        asm!("add dword ptr [{at}], {low:e}", "adc dword ptr [{at} + 4], {high:e}",
            at = in(reg) at, low = in(reg) by as u32, high = in(reg) (by >> 32) as u32, options(nostack));
    }
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
    let words = [at as u32, old as u32, (old >> 32) as u32, new as u32, (new >> 32) as u32];
    let done: u32;
    // SAFETY: the caller promises that `at` is writable. The code takes its arguments from `words`,
    // and changes only the registers that are listed.
    unsafe {
        asm!("call {call}", call = sym sidestep_replace,
            inout("eax") words.as_ptr() => done, out("ecx") _, out("edx") _);
    }
    done != 0
}

/// The registers of a signal's context.
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
#[must_use]
pub unsafe fn registers(context: *const u8) -> Registers {
    // SAFETY: the caller promises that `context` is what the kernel passes. All offsets are those
    // of words of it.
    let word = |at: usize| unsafe { u64::from(context.add(at).cast::<u32>().read_volatile()) };
    let mut registers = Registers { gpr: [0; 16], rip: word(UCONTEXT_IP), flags: word(UCONTEXT_FLAGS) };
    for (register, place) in registers.gpr.iter_mut().zip(REGISTERS) {
        *register = word(UCONTEXT_REGISTERS + 4 * usize::from(place));
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
    let set = |at: usize, value: u64| unsafe { context.add(at).cast::<u32>().write_volatile(value as u32) };
    for (register, place) in registers.gpr.iter().zip(REGISTERS) {
        set(UCONTEXT_REGISTERS + 4 * usize::from(place), *register);
    }
    set(UCONTEXT_IP, registers.rip);
    set(UCONTEXT_FLAGS, registers.flags);
}

/// There are no shadow stacks for 32-bit programs (Documentation/arch/x86/shstk.rst).
#[must_use]
pub fn has_shadow_stack() -> bool {
    false
}
