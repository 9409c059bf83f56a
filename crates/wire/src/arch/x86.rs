//! x86-64 and x86-32.

use core::mem::offset_of;

use crate::header::PATCH_MAX;
use crate::masks::StandIns;

/// The patch of a trap: `int3`.
pub const BREAKPOINT: [u8; 1] = [0xcc];
/// Guards of ours see each end of a signal handler.
pub const STAND_INS: Option<StandIns> = None;
/// What a return trampoline begins with, by which other sessions know it: a nop (Intel SDM volume
/// 2, NOP) with a displacement that says `side`.
pub const TRAMPOLINE_MARK: [u8; 8] = [0x0f, 0x1f, 0x84, 0x00, b's', b'i', b'd', b'e'];
/// A prefix that a jump ignores: the segment override of `es` (SDM volume 2, 2.1.1).
pub const NO_PREFIX: u8 = 0x26;
/// First byte of a jump, behind its prefixes: `jmp rel32`.
const JUMP: u8 = 0xe9;
/// Bytes of a jump without prefixes.
const JUMP_LEN: usize = 5;

/// Bytes up to the end of the displacement of the jump that a patch is; `None`: the patch is no
/// such jump. The displacement may go on behind the bytes that are written.
#[must_use]
pub const fn jump_end(patch: &[u8; PATCH_MAX]) -> Option<usize> {
    let mut prefixes = 0;
    while prefixes < PATCH_MAX && patch[prefixes] == NO_PREFIX {
        prefixes += 1;
    }
    if prefixes < PATCH_MAX && patch[prefixes] == JUMP { Some(prefixes + JUMP_LEN) } else { None }
}

/// The patch of a trap in the instruction set of another patch.
#[must_use]
pub const fn breakpoint_like(_: &[u8; PATCH_MAX]) -> &'static [u8] {
    &BREAKPOINT
}

/// A hit.
pub type Hit = crate::context::HitOf<Regs>;

/// The registers at the probed instruction, in the order of the kernel's `struct pt_regs` on x86-64
/// (`arch/x86/include/uapi/asm/ptrace.h`), so that programs compiled for the kernel find their
/// arguments. A program's `r1` points here.
///
/// What a program or the agent may change is written back; which words are filled besides the
/// registers that the C ABI lets a callee change, `rbx` and `rsp`, depends on the program (`Thunk`
/// in `sidestep-plan`).
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the machine's names
pub struct Regs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    /// Address of the probed instruction; at a return, the real return address.
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    /// Stack pointer at the probed instruction. At a function entry the return address is at
    /// `[rsp]`; in the return trampoline `rsp - 8` is the slot that held the trampoline's address.
    pub rsp: u64,
    pub ss: u64,
}

/// Where [`Regs`] has the general registers, by the numbers that instructions have for them: bytes
/// (SDM volume 2, table 3-1).
pub const REGISTERS: [usize; 16] = [
    offset_of!(Regs, rax),
    offset_of!(Regs, rcx),
    offset_of!(Regs, rdx),
    offset_of!(Regs, rbx),
    offset_of!(Regs, rsp),
    offset_of!(Regs, rbp),
    offset_of!(Regs, rsi),
    offset_of!(Regs, rdi),
    offset_of!(Regs, r8),
    offset_of!(Regs, r9),
    offset_of!(Regs, r10),
    offset_of!(Regs, r11),
    offset_of!(Regs, r12),
    offset_of!(Regs, r13),
    offset_of!(Regs, r14),
    offset_of!(Regs, r15),
];
/// Where it has the stack pointer.
pub const STACK_POINTER: usize = offset_of!(Regs, rsp);
/// Where it has the frame pointer.
pub const FRAME_POINTER: usize = offset_of!(Regs, rbp);
/// Where it has the other register that unwind information restores frames by
/// ([`UnwindRule::BX`](crate::UnwindRule::BX)).
pub const FRAME_BASE: usize = offset_of!(Regs, rbx);
/// Where it has what functions return, if that is a word.
pub const RESULT: usize = offset_of!(Regs, rax);
/// Where it has the address of the instruction.
pub const INSTRUCTION_POINTER: usize = offset_of!(Regs, rip);
/// Where it has the flags.
pub const FLAGS: usize = offset_of!(Regs, eflags);
/// Where a hit has what functions return (System V ABI, AMD64 supplement, 3.2.3; i386 psABI,
/// "Functions Returning Scalars").
pub const RESULTS: [usize; 4] = [offset_of!(Regs, rax), offset_of!(Regs, rdx), Hit::FLOATS, Hit::FLOATS + 8];
/// Registers that mean nothing at the entry of a function: the result, and those in which callers
/// give nothing (AMD64 supplement, 3.2.1 and 3.2.3).
pub const UNUSED_AT_ENTRY: [usize; 3] = [offset_of!(Regs, rax), offset_of!(Regs, r10), offset_of!(Regs, r11)];
/// Where Go's code has its goroutine.
pub const GOROUTINE: usize = offset_of!(Regs, r14);
/// Words on the stack at the entry of a function before its first argument there: the return
/// address.
pub const WORDS_BEFORE_ARGUMENTS: usize = 1;

/// Bytes of the words that a program may change: the general registers but the stack pointer, and
/// the instruction pointer.
pub const CHANGEABLE: usize = offset_of!(Regs, cs);

impl Regs {
    /// Address of the probed instruction.
    #[must_use]
    pub const fn ip(&self) -> u64 {
        self.rip
    }

    /// The stack pointer.
    #[must_use]
    pub const fn sp(&self) -> u64 {
        self.rsp
    }

    /// The number of the system call that is about to be made.
    #[must_use]
    pub const fn call_number(&self) -> u64 {
        self.rax
    }

    /// Makes it another system call.
    pub fn set_call_number(&mut self, number: u64) {
        self.rax = number;
    }

    /// What a function returns, at its return.
    #[must_use]
    pub const fn result(&self) -> u64 {
        self.rax
    }

    /// Changes what a function returns.
    pub fn set_result(&mut self, value: u64) {
        self.rax = value;
    }

    /// The registers in which 64-bit functions get integers and pointers, in order (AMD64
    /// supplement, 3.2.3).
    pub fn arguments(&mut self) -> [&mut u64; 6] {
        [&mut self.rdi, &mut self.rsi, &mut self.rdx, &mut self.rcx, &mut self.r8, &mut self.r9]
    }
}
