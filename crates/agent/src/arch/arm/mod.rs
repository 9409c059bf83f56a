//! arm32, whose code is A32 or T32; the agent's is A32. The kernel's entry convention is in
//! `arch/arm/kernel/entry-common.S` (EABI), system call numbers in `arch/arm/tools/syscall.tbl`,
//! signal frames in `arch/arm/kernel/signal.c` and `arch/arm/include/asm/ucontext.h`.

use core::arch::asm;

use sidestep_wire::{Regs, SigAction, SigAction32};

use crate::emulate::Registers;

pub mod call;
pub mod load;

/// A word of the target's memory.
pub type Word = u32;
/// There are no addresses from here on.
pub const ADDRESS_END: u64 = 1 << 32;
/// Where C libraries keep the thread id, from the thread pointer. Here they do below it, at
/// distances that differ between versions.
pub const TID_WORDS: [u32; 0] = [];
/// Arguments of functions that are passed in registers.
pub const REGISTER_ARGUMENTS: u64 = 4;
/// Whether functions may take arguments off the stack when they return.
pub const DROPS_ARGUMENTS: bool = false;
/// Whether signals leave the words right below the stack pointer alone.
pub const HAS_RED_ZONE: bool = false;
/// Bytes below the stack pointer of which the kernel writes some when it puts a signal's frame
/// there: the frame ends with room for four words of code, of which the first two are written
/// (`setup_return` in `arch/arm/kernel/signal.c`).
pub const ABOVE_FRAME: u64 = 16;
/// Bytes of the jump at a site.
pub const JUMP_LEN: u64 = 4;
/// How far behind a breakpoint the instruction pointer is when its signal comes: the kernel sets it
/// back (`do_undefinstr` in `arch/arm/kernel/traps.c`).
pub const BEHIND_BREAKPOINT: u64 = 0;
/// `si_code` of a breakpoint (`ptrace_break` in `arch/arm/kernel/ptrace.c`).
pub const BREAKPOINT_CODE: i32 = 1;
/// There are no single steps.
pub const SINGLE_STEP: u64 = 0;

/// System call numbers.
pub mod nr {
    #![allow(missing_docs)] // the kernel's names
    pub const EXECVE: u64 = 11;
    pub const GETPID: u64 = 20;
    pub const KILL: u64 = 37;
    pub const GETPPID: u64 = 64;
    pub const CLONE: u64 = 120;
    pub const SCHED_YIELD: u64 = 158;
    pub const PRCTL: u64 = 172;
    pub const RT_SIGRETURN: u64 = 173;
    pub const RT_SIGACTION: u64 = 174;
    pub const RT_SIGPROCMASK: u64 = 175;
    pub const RT_SIGSUSPEND: u64 = 179;
    pub const SIGALTSTACK: u64 = 186;
    pub const VFORK: u64 = 190;
    /// `mmap2`: the offset, 0 in ours, is in pages.
    pub const MMAP: u64 = 192;
    pub const GETUID: u64 = 199;
    pub const GETGID: u64 = 200;
    pub const GETTID: u64 = 224;
    pub const TGKILL: u64 = 268;
    pub const GETCPU: u64 = 345;
    pub const RT_TGSIGQUEUEINFO: u64 = 363;
    pub const PROCESS_VM_READV: u64 = 376;
    pub const PROCESS_VM_WRITEV: u64 = 377;
    pub const EXECVEAT: u64 = 387;
    /// `clock_gettime64`: two words of 64 bits, as elsewhere.
    pub const CLOCK_GETTIME: u64 = 403;
    /// `futex_time64`, likewise.
    pub const FUTEX: u64 = 422;
    pub const CLONE3: u64 = 435;
    // With times of 32 and of 64 bits.
    pub const PSELECTS: [u64; 2] = [335, 413];
    pub const PPOLLS: [u64; 2] = [336, 414];
    pub const EPOLL_PWAITS: [u64; 2] = [346, 441];
}

/// Returns from a handler without `siginfo_t`.
const SIGRETURN: u64 = 119;

/// Offset in `struct ucontext` of the alternate signal stack when the signal came: address, flags,
/// size (`stack_t`).
pub const UCONTEXT_STACK: usize = 8;
/// Offset of the number of the exception, which is the word for
/// [`DEALT_WITH`](sidestep_wire::signals::DEALT_WITH).
pub const UCONTEXT_MARK: usize = 20;
/// Offset of the interrupted r0, behind three words of `uc_mcontext`.
const UCONTEXT_REGISTERS: usize = 20 + 12;
/// Offset of the interrupted frame pointer.
pub const UCONTEXT_BP: usize = UCONTEXT_REGISTERS + 11 * 4;
/// Offset of the interrupted stack pointer.
pub const UCONTEXT_SP: usize = UCONTEXT_REGISTERS + 13 * 4;
/// Offset of the interrupted link register.
pub const UCONTEXT_BX: usize = UCONTEXT_REGISTERS + 14 * 4;
/// Offset of the interrupted instruction pointer.
pub const UCONTEXT_IP: usize = UCONTEXT_REGISTERS + 15 * 4;
/// Offset of the interrupted flags.
pub const UCONTEXT_FLAGS: usize = UCONTEXT_REGISTERS + 16 * 4;
/// Offset of the signal mask, behind the address of a fault.
const UCONTEXT_MASK: u64 = 104;
/// Offset of `si_addr` in `siginfo_t`.
pub const SI_ADDR: usize = 12;
/// Calls leave the return address in a register.
pub const LINKS: bool = true;
/// How far behind a return the stack pointer is above the one in front of it.
pub const POPPED: u64 = 0;

/// The return address of a function, at its entry or in front of its return. `slot` is the stack
/// pointer there.
///
/// # Safety
/// `regs` are the registers of such a hit.
#[inline(always)]
#[must_use]
pub unsafe fn returns_to(regs: *const Regs, _slot: u64) -> u64 {
    // SAFETY: the caller promises the registers of a hit.
    unsigned(unsafe { super::register(regs, sidestep_wire::arch::FRAME_BASE) })
}

/// The first byte of the code that a return address means: its bit 0 says T32.
#[inline(always)]
#[must_use]
pub const fn unsigned(address: u64) -> u64 {
    address & !1
}

/// A system call; negative results are `-errno`.
///
/// # Safety
/// The arguments must be what the call wants.
#[inline(always)]
pub unsafe fn syscall(number: u64, args: [u64; 6]) -> i64 {
    const LAST_ERROR: u32 = -4095i32 as u32;
    let [a, b, c, d, e, f] = args.map(|argument| argument as u32);
    let result: u32;
    // SAFETY: the kernel changes r0 only, and memory as the caller of this function promised.
    unsafe {
        asm!("svc #0",
            in("r7") number as u32, inlateout("r0") a => result,
            in("r1") b, in("r2") c, in("r3") d, in("r4") e, in("r5") f,
            options(nostack));
    }
    // An address may lie in the upper half.
    if result >= LAST_ERROR { i64::from(result as i32) } else { i64::from(result) }
}

/// The context that a call with this number will restore, with this stack pointer, if it is the
/// return of a signal handler.
#[must_use]
pub fn returning_context(number: u64, sp: u64) -> Option<u64> {
    /// Bytes of `siginfo_t`, which one kind of frame begins with.
    const INFO: u64 = 128;
    match number {
        nr::RT_SIGRETURN => Some(sp.wrapping_add(INFO)),
        SIGRETURN => Some(sp),
        _ => None,
    }
}

/// Where the context of a handler that is about to return has the signal mask that the call with
/// this number gives back (`uc_sigmask`).
#[must_use]
pub fn returning_mask(_number: u64, context: u64) -> u64 {
    context.wrapping_add(UCONTEXT_MASK)
}

/// The system call that this code makes, if it is what signal handlers return to, and how many
/// bytes it pops before: `mov r7, #NUMBER; svc #0` of either instruction set. The number in the
/// `svc` of the kernel's page is one of the old ABI, and not looked at.
#[must_use]
pub fn restorer_call(code: &[u8; 16]) -> Option<(u64, u64)> {
    const SVC_T32: u16 = 0xdf00;
    let half = |at: usize| u16::from_le_bytes([code[at], code[at + 1]]);
    let number = code[0].into();
    let (number, is_call) = match (half(0) & 0xff00, half(2)) {
        // mov r7, #NUMBER
        (0x7000, 0xe3a0) => (number, code[7] == 0xef),
        // mov.w r7, #NUMBER
        (0xf000, insn) if half(0) == 0xf04f && insn & 0xff00 == 0x0700 => (code[2].into(), half(4) == SVC_T32),
        // movs r7, #NUMBER
        (0x2700, SVC_T32) => (number, true),
        _ => return None,
    };
    (is_call && matches!(number, nr::RT_SIGRETURN | SIGRETURN)).then_some((number, 0))
}

/// Is the jump of a site at the start of some code, of which these are the first bytes: `b` of A32,
/// or `b.w` of T32?
#[must_use]
pub fn is_jump(code: u64) -> bool {
    code as u32 >> 24 == 0xea || code & 0xd000_f800 == 0x9000_f000
}

/// Has code that signal handlers return to, which begins with these bytes, a guard? None has.
#[must_use]
pub fn is_guarded(_code: u64) -> bool {
    false
}

/// Is a breakpoint at the start of some code, of which these are the first bytes: `udf #16` of A32
/// with any condition, `udf #1` of T32, or its long form (`arch/arm/kernel/ptrace.c`)?
#[must_use]
pub fn is_breakpoint(code: u64) -> bool {
    let word = code as u32;
    word & 0x0fff_ffff == 0x07f0_01f0 || word as u16 == 0xde01 || word == 0xa000_f7f0
}

/// Does a breakpoint that was executed at a place, of which these are the first bytes and the byte
/// before, stand there no more?
#[must_use]
pub fn has_gone(_before: u8, code: u64) -> bool {
    !is_breakpoint(code)
}

/// A breakpoint at the end of a stack, where the kernel found no room for the frame of SIGTRAP. It
/// raises SIGSEGV instead, which the program may take on another stack (`signal_setup_done` in
/// kernel/signal.c).
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
#[must_use]
pub unsafe fn had_no_room(code: i32, _context: *const u8) -> bool {
    /// `si_code` of a signal that the kernel raises for no instruction.
    const SI_KERNEL: i32 = 0x80;
    code == SI_KERNEL
}

/// Tells a handler of the program of a single step. There is none here ([`SINGLE_STEP`]).
///
/// # Safety
/// `info` and `context` are what the kernel passes to a handler with `SA_SIGINFO`.
pub unsafe fn tell_of_step(_info: *mut u8, _context: *mut u8, _to: u64) {}

/// Where a handler of ours that the kernel has called will return to.
///
/// # Safety
/// `return_address` is where the stub has put the link register.
#[must_use]
pub unsafe fn return_address(_context: *const u8, return_address: *const u64) -> u64 {
    // SAFETY: the caller promises that the word can be read.
    unsafe { return_address.cast::<Word>().read_volatile().into() }
}

/// Makes a handler of the program return elsewhere.
///
/// # Safety
/// `return_address` is where the stub takes the link register from.
pub unsafe fn set_return_address(_context: *mut u8, return_address: *mut u64, to: u64) {
    // SAFETY: the caller promises that the word can be written.
    unsafe { return_address.cast::<Word>().write_volatile(to as Word) }
}

/// Flags of our own actions that the kernel is not given: the code that its own page has for
/// handlers to return to stays when we go.
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
    let [a, b, c, d, e, f, ..] = &mut frame.r;
    match number {
        0 => a,
        1 => b,
        2 => c,
        3 => d,
        4 => e,
        _ => f,
    }
}

/// An argument of a function, of those in registers.
#[must_use]
pub fn register_argument(regs: &Regs, number: u64) -> Option<u64> {
    regs.r.get(number as usize).filter(|_| number < REGISTER_ARGUMENTS).copied()
}

/// The thread pointer.
#[inline(always)]
#[must_use]
pub fn thread_pointer() -> u64 {
    let base: u32;
    // SAFETY: reads a register.
    unsafe { asm!("mrc p15, 0, {}, c13, c0, 3", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base.into()
}

/// Asks for the cache line, which is about to be written. Any address will do.
#[inline(always)]
pub fn prefetch_for_write(at: *mut u64) {
    // SAFETY: a hint that never faults. The one that says for a write is not in all of ARMv7.
    unsafe { asm!("pld [{at}]", at = in(reg) at, options(nostack, preserves_flags)) }
}

/// The counter of the generic timer. The controller selects it only where it is usable.
#[inline(always)]
#[must_use]
pub fn ticks() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a register. Where user code may not, the controller does not select it.
    unsafe {
        asm!("mrrc p15, 1, {low}, {high}, c14", low = out(reg) low, high = out(reg) high,
            options(nomem, nostack, preserves_flags));
    }
    u64::from(low) | u64::from(high) << 32
}

/// The processor that the thread is on.
#[must_use]
pub fn processor() -> Option<u64> {
    let mut cpu = core::mem::MaybeUninit::<u32>::uninit();
    // SAFETY: the call fills the word or fails.
    unsafe {
        let done = syscall(nr::GETCPU, [cpu.as_mut_ptr() as u64, 0, 0, 0, 0, 0]) == 0;
        done.then(|| cpu.as_ptr().read_volatile().into())
    }
}

/// `*at += by`: whole for this thread's signal handlers, whose return ends the reservation, not for
/// other processors.
///
/// # Safety
/// `at` is writable and a multiple of 8, and only this thread writes it.
#[inline(always)]
pub unsafe fn add(at: *mut u64, by: u64) {
    // SAFETY: the caller promises that `at` is writable, and that only this thread writes it.
    unsafe {
        asm!("2: ldrexd r2, r3, [{at}]", "adds r2, r2, {low}", "adc r3, r3, {high}",
            "strexd {failed}, r2, r3, [{at}]", "cmp {failed}, #0", "bne 2b",
            at = in(reg) at, low = in(reg) by as u32, high = in(reg) (by >> 32) as u32,
            failed = out(reg) _, out("r2") _, out("r3") _, options(nostack));
    }
}

/// `if *at == old { *at = new }`: whole for this thread's signal handlers, not for other
/// processors. Returns whether it was done.
///
/// # Safety
/// `at` is writable and a multiple of 8, and only this thread writes it (others at most turn `old`
/// values of theirs into 0).
#[inline(always)]
#[must_use]
pub unsafe fn replace(at: *mut u64, old: u64, new: u64) -> bool {
    let (low, high): (u32, u32);
    // SAFETY: the caller promises that `at` is writable.
    unsafe {
        asm!("2: ldrexd r2, r3, [{at}]", "cmp r2, {old_low}", "cmpeq r3, {old_high}", "bne 3f",
            "strexd {failed}, r4, r5, [{at}]", "cmp {failed}, #0", "bne 2b", "3:",
            at = in(reg) at, old_low = in(reg) old as u32, old_high = in(reg) (old >> 32) as u32,
            failed = out(reg) _, out("r2") low, out("r3") high,
            in("r4") new as u32, in("r5") (new >> 32) as u32, options(nostack));
    }
    (u64::from(low) | u64::from(high) << 32) == old
}

/// The registers of a signal's context.
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
#[must_use]
pub unsafe fn registers(context: *const u8) -> Registers {
    // SAFETY: the caller promises that `context` is what the kernel passes. All offsets are those
    // of words of it.
    let word = |at: usize| unsafe { context.add(at).cast::<u32>().read_volatile() };
    let mut registers = Registers { r: [0; 16], cpsr: word(UCONTEXT_FLAGS) };
    for (number, register) in registers.r.iter_mut().enumerate() {
        *register = word(UCONTEXT_REGISTERS + 4 * number);
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
    let set = |at: usize, value: u32| unsafe { context.add(at).cast::<u32>().write_volatile(value) };
    for (number, register) in registers.r.iter().enumerate() {
        set(UCONTEXT_REGISTERS + 4 * number, *register);
    }
    set(UCONTEXT_FLAGS, registers.cpsr);
}

/// There are no stacks of return addresses on arm32.
#[must_use]
pub fn has_shadow_stack() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restorers_of_both_instruction_sets() {
        let call = |words: [u32; 2]| {
            let mut code = [0; 16];
            code[..4].copy_from_slice(&words[0].to_le_bytes());
            code[4..8].copy_from_slice(&words[1].to_le_bytes());
            restorer_call(&code)
        };
        // glibc's, the kernel's page's, and the same of T32.
        for words in [[0xe3a0_70ad, 0xef00_0000], [0xe3a0_70ad, 0xef90_00ad], [0x07ad_f04f, 0xdf00], [0xdf00_27ad, 0]] {
            assert_eq!(call(words), Some((nr::RT_SIGRETURN, 0)), "{words:x?}");
        }
        assert_eq!(call([0xe3a0_7077, 0xef00_0000]), Some((SIGRETURN, 0)));
        assert_eq!(call([0xdf00_2777, 0]), Some((SIGRETURN, 0)));
        // Another register, another call, no call.
        for words in [[0xe3a0_60ad, 0xef00_0000], [0xe3a0_7014, 0xef00_0000], [0xe3a0_70ad, 0xe320_f000]] {
            assert_eq!(call(words), None, "{words:x?}");
        }
    }

    #[test]
    fn updates_of_words_of_64_bits() {
        let mut word = u64::from(u32::MAX);
        // SAFETY: a variable of this thread, which is aligned.
        unsafe {
            add(&raw mut word, 1 << 32 | 2);
            assert_eq!(word, 0x2_0000_0001);
            assert!(!replace(&raw mut word, 0x1_0000_0001, 7) && !replace(&raw mut word, 0x2_0000_0002, 7));
            assert!(replace(&raw mut word, 0x2_0000_0001, 7 << 40));
        }
        assert_eq!(word, 7 << 40);
    }

    #[test]
    fn results_are_errors_or_addresses() {
        // SAFETY: the calls touch no memory.
        let (pid, error) = unsafe { (syscall(nr::GETPID, [0; 6]), syscall(nr::KILL, [0, 1000, 0, 0, 0, 0])) };
        assert!(pid > 0);
        assert_eq!(error, -22);
    }
}
