//! arm64: the kernel's entry convention is in `arch/arm64/kernel/entry.S`, system call numbers in
//! `include/uapi/asm-generic/unistd.h`, the signal frame in `arch/arm64/kernel/signal.c` and
//! `arch/arm64/include/uapi/asm/sigcontext.h`.

use core::arch::asm;

use sidestep_wire::{Regs, SigAction};

use crate::emulate::Registers;

pub mod call;
pub mod load;

/// A word of the target's memory.
pub type Word = u64;
/// Where addresses of the kernel begin, more or less: those with the highest bit.
pub const ADDRESS_END: u64 = 1 << 63;
/// Where C libraries keep the thread id, from the thread pointer. Here they do below it, at
/// distances that differ between versions.
pub const TID_WORDS: [u32; 0] = [];
/// Arguments of functions that are passed in registers.
pub const REGISTER_ARGUMENTS: u64 = 8;
/// Whether functions may take arguments off the stack when they return.
pub const DROPS_ARGUMENTS: bool = false;
/// Whether signals leave the words right below the stack pointer alone.
pub const HAS_RED_ZONE: bool = false;
/// Bytes below the stack pointer of which the kernel writes some when it puts a signal's frame
/// there: the frame ends with a record of two registers (`setup_return` in
/// `arch/arm64/kernel/signal.c`).
pub const ABOVE_FRAME: u64 = 16;
/// Bytes of the jump at a site.
pub const JUMP_LEN: u64 = 4;
/// How far behind a breakpoint the instruction pointer is when its signal comes.
pub const BEHIND_BREAKPOINT: u64 = 0;
/// `si_code` of a breakpoint (`brk_handler` in `arch/arm64/kernel/debug-monitors.c`).
pub const BREAKPOINT_CODE: i32 = 1;
/// Programs cannot ask for single steps: the kernel clears the bit.
pub const SINGLE_STEP: u64 = 0;

/// System call numbers.
pub mod nr {
    #![allow(missing_docs)] // the kernel's names
    pub const EPOLL_PWAITS: [u64; 2] = [22, 441];
    pub const PSELECTS: [u64; 1] = [72];
    pub const PPOLLS: [u64; 1] = [73];
    pub const FUTEX: u64 = 98;
    pub const CLOCK_GETTIME: u64 = 113;
    pub const SCHED_YIELD: u64 = 124;
    pub const KILL: u64 = 129;
    pub const TGKILL: u64 = 131;
    pub const SIGALTSTACK: u64 = 132;
    pub const RT_SIGSUSPEND: u64 = 133;
    pub const RT_SIGACTION: u64 = 134;
    pub const RT_SIGPROCMASK: u64 = 135;
    pub const RT_SIGRETURN: u64 = 139;
    pub const PRCTL: u64 = 167;
    pub const GETCPU: u64 = 168;
    pub const GETPID: u64 = 172;
    pub const GETPPID: u64 = 173;
    pub const GETUID: u64 = 174;
    pub const GETGID: u64 = 176;
    pub const GETTID: u64 = 178;
    pub const CLONE: u64 = 220;
    pub const EXECVE: u64 = 221;
    pub const MMAP: u64 = 222;
    pub const RT_TGSIGQUEUEINFO: u64 = 240;
    pub const PROCESS_VM_READV: u64 = 270;
    pub const PROCESS_VM_WRITEV: u64 = 271;
    pub const EXECVEAT: u64 = 281;
    pub const CLONE3: u64 = 435;
    /// There is no such call: `clone` does that.
    pub const VFORK: u64 = u64::MAX;
}

/// Offset in `struct ucontext` of the word for [`DEALT_WITH`](sidestep_wire::signals::DEALT_WITH):
/// `uc_link`.
pub const UCONTEXT_MARK: usize = 8;
/// Offset in `struct ucontext` of the alternate signal stack when the signal came: address, flags,
/// size (`stack_t`).
pub const UCONTEXT_STACK: usize = 16;
/// Offset of the signal mask.
const UCONTEXT_MASK: u64 = 40;
/// Offset of the interrupted x0, behind the address of a fault (`uc_mcontext`).
const UCONTEXT_REGISTERS: usize = 176 + 8;
/// Offset of the interrupted stack pointer.
pub const UCONTEXT_SP: usize = UCONTEXT_REGISTERS + 31 * 8;
/// Offset of the interrupted instruction pointer: the word behind.
pub const UCONTEXT_IP: usize = UCONTEXT_SP + 8;
/// Offset of the interrupted flags: the word behind.
pub const UCONTEXT_FLAGS: usize = UCONTEXT_IP + 8;
/// Offset of the interrupted frame pointer.
pub const UCONTEXT_BP: usize = UCONTEXT_REGISTERS + 29 * 8;
/// Offset of the interrupted link register.
pub const UCONTEXT_BX: usize = UCONTEXT_REGISTERS + 30 * 8;
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

/// A return address without the signature that `paciasp` puts into its upper bits, which no address
/// has where addresses have 48 bits.
#[inline(always)]
#[must_use]
pub const fn unsigned(address: u64) -> u64 {
    address & 0xffff_ffff_ffff
}
/// Offset of `si_addr` in `siginfo_t`.
pub const SI_ADDR: usize = 16;

/// A system call; negative results are `-errno`.
///
/// # Safety
/// The arguments must be what the call wants.
#[inline(always)]
pub unsafe fn syscall(number: u64, args: [u64; 6]) -> i64 {
    let result;
    // SAFETY: the kernel changes x0 only, and memory as the caller of this function promised.
    unsafe {
        asm!("svc #0",
            in("x8") number, inlateout("x0") args[0] => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack));
    }
    result
}

/// The context that a call with this number will restore, with this stack pointer, if it is the
/// return of a signal handler.
#[must_use]
pub fn returning_context(number: u64, sp: u64) -> Option<u64> {
    /// Bytes of `siginfo_t`, which the frame begins with.
    const INFO: u64 = 128;
    (number == nr::RT_SIGRETURN).then_some(sp.wrapping_add(INFO))
}

/// Where the context of a handler that is about to return has the signal mask that the call with
/// this number gives back (`uc_sigmask`).
#[must_use]
pub fn returning_mask(_number: u64, context: u64) -> u64 {
    context.wrapping_add(UCONTEXT_MASK)
}

/// The system call that this code makes, if it is what signal handlers return to, and how many
/// bytes it pops before: `mov x8, #139; svc #0`, or a guard of ours in the place of one of them.
#[must_use]
pub fn restorer_call(code: &[u8; 16]) -> Option<(u64, u64)> {
    const MOV_SIGRETURN: u32 = 0xd280_1168;
    const SVC: u32 = 0xd400_0001;
    let word = |at: usize| u32::from_le_bytes([code[at], code[at + 1], code[at + 2], code[at + 3]]);
    let is_number = word(0) == MOV_SIGRETURN || is_jump(word(0).into());
    let is_call = word(4) == SVC || word(0) == MOV_SIGRETURN && is_jump(word(4).into());
    (is_number && is_call).then_some((nr::RT_SIGRETURN, 0))
}

/// Is the jump of a site at the start of some code, of which these are the first bytes?
#[must_use]
pub fn is_jump(code: u64) -> bool {
    code as u32 >> 26 == 0b00_0101
}

/// Has code that signal handlers return to, which begins with these bytes, a guard? It takes the
/// place of one of the two instructions.
#[must_use]
pub fn is_guarded(code: u64) -> bool {
    is_jump(code) || is_jump(code >> 32)
}

/// Is a breakpoint at the start of some code, of which these are the first bytes?
#[must_use]
pub fn is_breakpoint(code: u64) -> bool {
    code as u32 & 0xffe0_001f == 0xd420_0000
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
    unsafe { return_address.read_volatile() }
}

/// Makes a handler of the program return elsewhere.
///
/// # Safety
/// `return_address` is where the stub takes the link register from.
pub unsafe fn set_return_address(_context: *mut u8, return_address: *mut u64, to: u64) {
    // SAFETY: the caller promises that the word can be written.
    unsafe { return_address.write_volatile(to) }
}

/// Flags of our own actions that the kernel is not given.
pub const NOT_OURS: u64 = sidestep_wire::signals::flags::RESTORER;

/// The restorer of a handler that was installed with this action; `None`: the vDSO's. The kernel
/// gives all of them the same frame.
#[must_use]
pub fn restorer(action: &SigAction) -> Option<u64> {
    (action.flags & sidestep_wire::signals::flags::RESTORER != 0).then_some(action.restorer)
}

/// An action as `rt_sigaction` takes it.
pub type KernelAction = SigAction;

/// To it.
#[must_use]
pub fn kernel_action(action: &SigAction) -> KernelAction {
    let SigAction { handler, flags, restorer, mask } = *action;
    SigAction { handler, flags, restorer, mask }
}

/// An argument of a system call.
pub fn argument(frame: &mut Regs, number: u8) -> &mut u64 {
    let [a, b, c, d, e, f, ..] = &mut frame.x;
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
    regs.x.get(number as usize).filter(|_| number < REGISTER_ARGUMENTS).copied()
}

/// The thread pointer.
#[inline(always)]
#[must_use]
pub fn thread_pointer() -> u64 {
    let base;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base
}

/// Asks for the cache line, which is about to be written. Any address will do.
#[inline(always)]
pub fn prefetch_for_write(at: *mut u64) {
    // SAFETY: a hint that never faults.
    unsafe { asm!("prfm pstl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags)) }
}

/// The counter of the generic timer. The controller selects it only where it is usable.
#[inline(always)]
#[must_use]
pub fn ticks() -> u64 {
    let counter;
    // SAFETY: reads a register that Linux lets user code read.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) counter, options(nomem, nostack, preserves_flags)) };
    counter
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
/// `at` is writable, and only this thread writes it.
#[inline(always)]
pub unsafe fn add(at: *mut u64, by: u64) {
    // SAFETY: the caller promises that `at` is writable, and that only this thread writes it.
    unsafe {
        asm!("2: ldxr {value}, [{at}]", "add {value}, {value}, {by}", "stxr {failed:w}, {value}, [{at}]",
            "cbnz {failed:w}, 2b",
            at = in(reg) at, by = in(reg) by, value = out(reg) _, failed = out(reg) _,
            options(nostack, preserves_flags));
    }
}

/// `if *at == old { *at = new }`: whole for this thread's signal handlers, not for other
/// processors. Returns whether it was done.
///
/// # Safety
/// `at` is writable, and only this thread writes it (others at most turn `old` values of theirs
/// into 0).
#[inline(always)]
#[must_use]
pub unsafe fn replace(at: *mut u64, old: u64, new: u64) -> bool {
    let found: u64;
    // SAFETY: the caller promises that `at` is writable.
    unsafe {
        asm!("2: ldxr {found}, [{at}]", "cmp {found}, {old}", "b.ne 3f", "stxr {failed:w}, {new}, [{at}]",
            "cbnz {failed:w}, 2b", "3:",
            at = in(reg) at, old = in(reg) old, new = in(reg) new, found = out(reg) found, failed = out(reg) _,
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
    let mut registers =
        Registers { x: [0; 31], sp: word(UCONTEXT_SP), pc: word(UCONTEXT_IP), pstate: word(UCONTEXT_FLAGS) };
    for (number, register) in registers.x.iter_mut().enumerate() {
        *register = word(UCONTEXT_REGISTERS + 8 * number);
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
    for (number, register) in registers.x.iter().enumerate() {
        set(UCONTEXT_REGISTERS + 8 * number, *register);
    }
    set(UCONTEXT_SP, registers.sp);
    set(UCONTEXT_IP, registers.pc);
    set(UCONTEXT_FLAGS, registers.pstate);
}

/// Has this thread a stack of return addresses of its own (`FEAT_GCS`)? Where there is none, the
/// instruction is a nop and leaves the register as it is (section C6.2, "CHKFEAT").
#[must_use]
pub fn has_shadow_stack() -> bool {
    let asked: u64;
    // SAFETY: changes one register.
    unsafe { asm!("hint #40", inlateout("x16") 1u64 => asked, options(nomem, nostack, preserves_flags)) };
    asked == 0
}
