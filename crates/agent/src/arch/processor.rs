//! What an x86 processor does alike in 32-bit and in 64-bit code.

use core::arch::asm;
#[cfg(target_arch = "x86")]
use core::arch::x86::_rdtsc;
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::_rdtsc;

use sidestep_wire::Regs;

use super::{SI_ADDR, UCONTEXT_RESTORER, UCONTEXT_TRAPNO, WORD, nr, read_word, syscall, write_word};

/// Number of the exception after a single step (`X86_TRAP_DB`).
const DEBUG_EXCEPTION: u64 = 1;
/// The trap flag: a trap after the next instruction.
pub const SINGLE_STEP: u64 = 1 << 8;
/// `si_code` of `int3` (`arch/x86/kernel/traps.c`: `force_sig`).
pub const BREAKPOINT_CODE: i32 = 0x80;
/// How far behind a breakpoint the instruction pointer is when its signal comes.
pub const BEHIND_BREAKPOINT: u64 = 1;
/// Calls leave the return address on the stack.
pub const LINKS: bool = false;
/// How far behind a return the stack pointer is above the one in front of it.
pub const POPPED: u64 = WORD;

/// The return address of a function, at its entry or in front of its return. `slot` is the stack
/// pointer there.
///
/// # Safety
/// It is such a place: the return address is on top of the stack.
#[inline(always)]
#[must_use]
pub unsafe fn returns_to(_: *const Regs, slot: u64) -> u64 {
    // SAFETY: the caller promises that the return address is there.
    unsafe { read_word(slot) }
}

/// A return address as it is.
#[inline(always)]
#[must_use]
pub const fn unsigned(address: u64) -> u64 {
    address
}

/// Bytes of the jump at a site.
pub const JUMP_LEN: u64 = 5;
/// Bytes below the stack pointer of which the kernel writes some when it puts a signal's frame
/// there: the frame begins below the red zone, at a multiple of 64, with the state of the vector
/// unit, of which the last word is always written (`arch/x86/kernel/signal.c`: `get_sigframe`,
/// `arch/x86/kernel/fpu/signal.c`).
pub const ABOVE_FRAME: u64 = 256;
/// The one-byte breakpoint instruction, `int3`.
pub(super) const BREAKPOINT: u8 = 0xcc;
/// First byte of a patch that is no breakpoint: `jmp rel32`.
pub(super) const JUMP: u8 = 0xe9;

/// Is the jump of a site at the start of some code, of which these are the first bytes?
#[must_use]
pub fn is_jump(code: u64) -> bool {
    code as u8 == JUMP
}

/// Has code that signal handlers return to, which begins with these bytes, a guard?
#[must_use]
pub fn is_guarded(code: u64) -> bool {
    is_jump(code)
}

/// Is a breakpoint at the start of some code, of which these are the first bytes?
#[must_use]
pub fn is_breakpoint(code: u64) -> bool {
    code as u8 == BREAKPOINT
}

/// Does a breakpoint that was executed at a place, of which these are the first bytes and the byte
/// before, stand there no more? `cd 03` traps like `int3`, but is two bytes long.
#[must_use]
pub fn has_gone(before: u8, code: u64) -> bool {
    const INT_IMM8: u8 = 0xcd;
    !is_breakpoint(code) && [before, code as u8] != [INT_IMM8, 3]
}

/// A breakpoint at the end of a stack, where the kernel found no room for the frame of SIGTRAP. It
/// raises SIGSEGV instead, which the program may take on another stack (`signal_setup_done` in
/// kernel/signal.c).
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
#[must_use]
pub unsafe fn had_no_room(code: i32, context: *const u8) -> bool {
    /// Number of the exception that `int3` raises (SDM volume 3, table 6-1).
    const BREAKPOINT_EXCEPTION: u64 = 3;
    // SAFETY: the number of the exception is a word of the context.
    let exception = unsafe { read_word(context.add(UCONTEXT_TRAPNO) as u64) };
    code == BREAKPOINT_CODE && exception == BREAKPOINT_EXCEPTION
}

/// Tells a handler of the program of a single step that has come to an address, as the kernel does
/// (`send_sigtrap` in arch/x86/kernel/traps.c).
///
/// # Safety
/// `info` and `context` are what the kernel passes to a handler with `SA_SIGINFO`.
pub unsafe fn tell_of_step(info: *mut u8, context: *mut u8, to: u64) {
    // SAFETY: words of the information and of the context.
    unsafe {
        write_word(info.add(SI_ADDR) as u64, to);
        write_word(context.add(UCONTEXT_TRAPNO) as u64, DEBUG_EXCEPTION);
    }
}

/// Where a handler of ours that the kernel has called will return to.
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
#[must_use]
pub unsafe fn return_address(context: *const u8, _: *const u64) -> u64 {
    // SAFETY: that word below the context is the return address of the handler.
    unsafe { read_word(context.sub(UCONTEXT_RESTORER) as u64) }
}

/// Makes a handler of the program return elsewhere.
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
pub unsafe fn set_return_address(context: *mut u8, _: *mut u64, to: u64) {
    // SAFETY: that word below the context is the return address of the handler that the kernel has
    // called.
    unsafe { write_word(context.sub(UCONTEXT_RESTORER) as u64, to) }
}

/// The system call that this code makes, if it is what signal handlers return to, and how many
/// bytes it pops before. The code says which of several kinds of frames is there, as debuggers know
/// it: `mov`, then `syscall` or `int $0x80`, with a `pop` in front in old frames of 32-bit
/// programs. Code with a probe says nothing, but for that of 32-bit programs, where a guard of ours
/// has taken the place of the `mov`.
#[must_use]
pub fn restorer_call(code: &[u8; 16]) -> Option<(u64, u64)> {
    /// The call at the end of a handler whose frame has no `siginfo_t`, in 32-bit programs.
    const SIGRETURN: u32 = 119;
    let word = |at: usize| u32::from_le_bytes([code[at], code[at + 1], code[at + 2], code[at + 3]]);
    let (number, call, popped) = match code[0] {
        0x48 if word(0) & 0xff_ffff == 0xc0_c748 => (word(3), word(7), 0),
        0xb8 => (word(1), word(5), 0),
        0x58 if code[1] == 0xb8 => (word(2), word(6), WORD),
        JUMP => (nr::RT_SIGRETURN as u32, word(5), 0),
        0x58 if code[1] == JUMP => (SIGRETURN, word(6), WORD),
        _ => return None,
    };
    let call = call as u16;
    let is_call = call == u16::from_le_bytes([0x0f, 0x05]) || call == u16::from_le_bytes([0xcd, 0x80]);
    is_call.then_some((number.into(), popped))
}

/// Asks for the cache line, which is about to be written. Any address will do.
#[inline(always)]
pub fn prefetch_for_write(at: *mut u64) {
    // SAFETY: a hint that never faults; processors that do not know it take it for a nop (Intel
    // SDM, PREFETCHW).
    unsafe { asm!("prefetchw [{at}]", at = in(reg) at, options(nostack, preserves_flags)) }
}

/// The time stamp counter.
#[inline(always)]
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: every processor with 64 bits has `rdtsc`; the controller selects it only where it is
    // usable.
    unsafe { _rdtsc() }
}

/// The processor that the thread is on. The kernel keeps its number in the limit of a segment
/// (`arch/x86/include/asm/segment.h`: `vdso_read_cpunode`): no system call, and no question whether
/// there is `rdpid`.
#[must_use]
pub fn processor() -> Option<u64> {
    const CPUNODE: u32 = 15 * 8 + 3;
    const NUMBER: u32 = 0xfff;
    let (limit, valid): (u32, u8);
    // SAFETY: `lsl` only reads the descriptor, and says so if there is none.
    unsafe {
        asm!("mov ecx, {selector}", "xor eax, eax", "lsl eax, ecx", "setz cl",
            selector = const CPUNODE, out("eax") limit, out("cl") valid, options(nomem, nostack));
    }
    if valid != 0 {
        return Some((limit & NUMBER).into());
    }
    let mut cpu = core::mem::MaybeUninit::<u32>::uninit();
    // SAFETY: the call fills the word or fails.
    unsafe {
        let done = syscall(nr::GETCPU, [cpu.as_mut_ptr() as u64, 0, 0, 0, 0, 0]) == 0;
        done.then(|| cpu.as_ptr().read_volatile().into())
    }
}
