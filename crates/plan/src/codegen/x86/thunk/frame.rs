//! The frame of a hit: registers saved and restored around compiled code, which may change all that
//! the C ABI lets a callee change.
//!
//! ```text
//!   high   probe, cell …           pushed by the detour
//!          return into the detour  pushed by its call (trampoline: the real return address)
//!          wire::Hit               registers as in struct pt_regs
//!          flags                   lahf/seto form         <- rbx, over the call
//!   low    xmm registers that the agent's code uses, 16-aligned
//! ```

use std::mem::offset_of;

use sidestep_isa::x86::emit::{Asm, Reg};
use sidestep_isa::{Isa, RegisterSet};
use sidestep_wire::arch::x86::{self as arch, Hit, Regs};

use crate::context::Context;

/// Registers that the C ABI lets a callee change.
const CALLER_SAVED: [Reg; 9] = [Reg::Rax, Reg::Rcx, Reg::Rdx, Reg::Rsi, Reg::Rdi, Reg::R8, Reg::R9, Reg::R10, Reg::R11];
/// Those of them that pass nothing to most functions: dead at their entries, as the flags are.
const UNUSED: [Reg; 3] = [Reg::Rax, Reg::R10, Reg::R11];
/// Registers that only programs want to see. `rbx` is always saved.
const CALLEE_SAVED: [Reg; 5] = [Reg::Rbp, Reg::R12, Reg::R13, Reg::R14, Reg::R15];

/// From rbx: the hit, behind the flags.
pub(super) const HIT: i32 = 8;
/// From rbx: the context.
pub(super) const REGS: i32 = HIT + offset_of!(Hit, regs) as i32;
/// From rbx: what was pushed last before the frame.
pub(super) const ABOVE: i32 = HIT + size_of::<Hit>() as i32;

/// Selectors of 64-bit programs (`arch/x86/include/asm/segment.h`).
const USER_CS: i32 = 0x33;
const USER_SS: i32 = 0x2b;

/// From rbx: a field of the hit.
macro_rules! hit {
    ($field:ident) => {
        HIT + offset_of!(Hit, $field) as i32
    };
}
/// From rbx: a word of the context.
macro_rules! regs {
    ($field:ident) => {
        REGS + offset_of!(Regs, $field) as i32
    };
}
pub(super) use {hit, regs};

/// From rbx: a register of the context.
fn offset(reg: Reg) -> i32 {
    REGS + arch::REGISTERS[reg as usize] as i32
}

/// [`UNUSED`] as a set.
pub(super) fn unused() -> RegisterSet {
    UNUSED.iter().fold(0, |set, reg| set | reg.bit())
}

/// What a frame is for.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    /// The xmm registers that the called code changes, a bit each.
    pub xmm: u32,
    /// What the called code looks at.
    pub context: Context,
    /// What it may change: goes into the registers again.
    pub changes: Context,
    /// How far above the stack pointer at the start the site's stack pointer lies.
    pub above_sp: i32,
    /// Nobody needs [`UNUSED`] and the flags any more.
    pub bare: bool,
}

impl Frame {
    /// What has to be put back.
    fn saved(&self) -> impl Iterator<Item = Reg> {
        let frame = *self;
        CALLER_SAVED.into_iter().filter(move |reg| !frame.bare || !UNUSED.contains(reg) || frame.changes(*reg))
    }

    /// Whether a program may change a register.
    fn changes(&self, reg: Reg) -> bool {
        self.changes.has(arch::REGISTERS[reg as usize])
    }

    /// Whether a program reads the word of a register.
    fn reads(&self, reg: Reg) -> bool {
        self.context.has(arch::REGISTERS[reg as usize])
    }

    /// Bytes of stack that it takes at most.
    pub fn bytes(&self) -> i32 {
        ABOVE + 16 * (numbers(self.xmm).len() as i32 + 1)
    }

    /// Saves registers as drawn above. Afterwards `rbx` is the frame, `rsp` is 16-aligned, and all
    /// other registers hold what they did, except `rax` and `rcx`.
    pub fn save(&self, asm: &mut Asm) {
        let context = self.context;
        asm.lea(Reg::Rsp, Reg::Rsp, -ABOVE);
        if context.has_flags(Isa::X64) {
            asm.pushf();
            asm.pop_to(Reg::Rsp, regs!(eflags));
        }
        let read_only = UNUSED.into_iter().filter(|reg| self.bare && self.reads(*reg) && !self.changes(*reg));
        for reg in self.saved().chain(read_only) {
            asm.store(Reg::Rsp, offset(reg), reg);
        }
        asm.store(Reg::Rsp, offset(Reg::Rbx), Reg::Rbx);
        if !self.bare {
            asm.flags_to_ax();
            asm.store(Reg::Rsp, 0, Reg::Rax);
        }
        asm.mov(Reg::Rbx, Reg::Rsp);
        asm.lea(Reg::Rcx, Reg::Rbx, ABOVE + self.above_sp);
        asm.store(Reg::Rbx, offset(Reg::Rsp), Reg::Rcx);
        for reg in CALLEE_SAVED.into_iter().filter(|reg| self.reads(*reg) || self.changes(*reg)) {
            asm.store(Reg::Rbx, offset(reg), reg);
        }
        for (at, disp, value) in [
            (offset_of!(Regs, orig_rax), regs!(orig_rax), -1),
            (offset_of!(Regs, cs), regs!(cs), USER_CS),
            (offset_of!(Regs, ss), regs!(ss), USER_SS),
        ] {
            if context.has(at) {
                asm.store_imm(Reg::Rbx, disp, value);
            }
        }
        for (i, at) in (0..8).zip((Hit::FLOATS..).step_by(8)).filter(|(_, at)| context.has(*at)) {
            asm.store_xmm_low(REGS + at as i32, i);
        }
        let xmm = numbers(self.xmm);
        if !xmm.is_empty() {
            asm.lea(Reg::Rsp, Reg::Rsp, -16 * xmm.len() as i32);
        }
        asm.and_imm8(Reg::Rsp, -16);
        for (i, x) in xmm.iter().enumerate() {
            asm.store_xmm(16 * i as i32, *x);
        }
    }

    /// Undoes [`Frame::save`].
    pub fn restore(&self, asm: &mut Asm) {
        for (i, x) in numbers(self.xmm).iter().enumerate() {
            asm.load_xmm(16 * i as i32, *x);
        }
        asm.mov(Reg::Rsp, Reg::Rbx);
        if !self.bare {
            asm.load(Reg::Rax, Reg::Rsp, 0);
            asm.ax_to_flags();
        }
        for reg in CALLEE_SAVED.into_iter().filter(|reg| self.changes(*reg)) {
            asm.load(reg, Reg::Rsp, offset(reg));
        }
        asm.load(Reg::Rbx, Reg::Rsp, offset(Reg::Rbx));
        for reg in self.saved() {
            asm.load(reg, Reg::Rsp, offset(reg));
        }
        asm.lea(Reg::Rsp, Reg::Rsp, ABOVE);
    }
}

pub(super) fn numbers(xmm: u32) -> Vec<u8> {
    (0..16).filter(|i| xmm >> i & 1 == 1).collect()
}
