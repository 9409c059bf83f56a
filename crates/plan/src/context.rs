//! What of the context of a hit a handler reads.

use std::mem::offset_of;

use sidestep_isa::RegisterSet;
use sidestep_isa::live::Dead;
use sidestep_isa::x86::emit::Reg;
use sidestep_wire::{Hit, Regs};

/// All general registers but the stack pointer.
const GENERAL: [Reg; 15] = [
    Reg::Rax,
    Reg::Rcx,
    Reg::Rdx,
    Reg::Rbx,
    Reg::Rbp,
    Reg::Rsi,
    Reg::Rdi,
    Reg::R8,
    Reg::R9,
    Reg::R10,
    Reg::R11,
    Reg::R12,
    Reg::R13,
    Reg::R14,
    Reg::R15,
];

/// Words of [`Regs`], a bit each: what a program reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Context(pub u32);

impl Context {
    /// All words.
    pub const ALL: Context = Context((1 << (size_of::<Regs>() / 8)) - 1);

    /// All that helpers may look at: not the flags.
    pub const HELPERS: Context = Context(Context::ALL.0 & !(1 << (offset_of!(Regs, eflags) / 8)));

    /// Those of them that mean something at the entry of a function: not the result, nor the
    /// registers that callers give nothing in (System V ABI, AMD64 supplement, 3.2.1 and 3.2.3).
    pub const HELPERS_AT_ENTRY: Context = Context(
        Context::HELPERS.0
            & !(1 << (offset_of!(Regs, rax) / 8) | 1 << (offset_of!(Regs, r10) / 8) | 1 << (offset_of!(Regs, r11) / 8)),
    );

    /// Where Go's code has its goroutine, `r14`, which the agent looks at.
    pub const GOROUTINE: Context = Context(1 << (offset_of!(Regs, r14) / 8));

    /// What either reads.
    #[must_use]
    pub fn union(self, other: Context) -> Context {
        Context(self.0 | other.0)
    }

    /// Machine registers among them, one bit each by their number.
    #[must_use]
    pub fn registers(self) -> RegisterSet {
        let reads = |reg: &&Reg| self.has(offset(**reg));
        GENERAL.iter().filter(reads).fold(0, |set, reg| set | reg.bit())
    }

    pub(crate) fn has(self, offset: usize) -> bool {
        self.0 >> (offset / 8) & 1 == 1
    }

    /// What stays dead although this is read.
    pub(crate) fn spare(self, dead: Dead) -> Dead {
        Dead { regs: dead.regs & !self.registers(), flags: dead.flags && !self.has_flags() }
    }

    /// Whether the flags are read.
    #[must_use]
    pub fn has_flags(self) -> bool {
        self.has(offset_of!(Regs, eflags))
    }

    /// Whether the stack pointer is read.
    pub(crate) fn has_sp(self) -> bool {
        self.has(offset(Reg::Rsp))
    }

    /// Whether the word behind the registers is read.
    pub(crate) fn has_cookie(self) -> bool {
        self.has(Hit::COOKIE)
    }

    /// Whether what is different behind a return is among them: the instruction pointer, the stack
    /// pointer, or the word that programs keep from the entry to the return.
    #[must_use]
    pub fn has_frame(self) -> bool {
        self.has_ip() || self.has_cookie() || self.has(offset_of!(Regs, rsp))
    }

    /// Whether registers are among them in which functions return their result (System V ABI, AMD64
    /// supplement, 3.2.3; i386 psABI, "Functions Returning Scalars").
    #[must_use]
    pub fn has_result(self) -> bool {
        let registers = [offset_of!(Regs, rax), offset_of!(Regs, rdx), Hit::XMM, Hit::XMM + 8];
        registers.into_iter().any(|at| self.has(at))
    }

    /// Whether the address of the probed instruction is among them.
    #[must_use]
    pub fn has_ip(self) -> bool {
        self.has(offset_of!(Regs, rip))
    }
}

/// Offset of a register in [`Regs`], in bytes.
pub(crate) fn offset(reg: Reg) -> usize {
    match reg {
        Reg::R15 => offset_of!(Regs, r15),
        Reg::R14 => offset_of!(Regs, r14),
        Reg::R13 => offset_of!(Regs, r13),
        Reg::R12 => offset_of!(Regs, r12),
        Reg::Rbp => offset_of!(Regs, rbp),
        Reg::Rbx => offset_of!(Regs, rbx),
        Reg::R11 => offset_of!(Regs, r11),
        Reg::R10 => offset_of!(Regs, r10),
        Reg::R9 => offset_of!(Regs, r9),
        Reg::R8 => offset_of!(Regs, r8),
        Reg::Rax => offset_of!(Regs, rax),
        Reg::Rcx => offset_of!(Regs, rcx),
        Reg::Rdx => offset_of!(Regs, rdx),
        Reg::Rsi => offset_of!(Regs, rsi),
        Reg::Rdi => offset_of!(Regs, rdi),
        Reg::Rsp => offset_of!(Regs, rsp),
    }
}
