//! The frame of a hit: registers saved and restored around compiled code, which may change all that
//! the C ABI lets a callee change.
//!
//! ```text
//!   high   probe, cell …           pushed by the detour
//!          return into the detour  pushed by its call     (trampoline: the slot that gets the real return address)
//!          wire::Hit               registers as in struct pt_regs
//!          flags                   lahf/seto form         <- rbx, over the call
//!   low    xmm registers that the agent's code uses, 16-aligned
//! ```

use std::mem::offset_of;

use sidestep_isa::x86::emit::{Asm, Reg};
use sidestep_isa::x86::live::Dead;
use sidestep_wire::{Hit, Regs};

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
    pub fn registers(self) -> u16 {
        let reads = |reg: &&Reg| self.has((offset(**reg) - REGS) as usize);
        CALLER_SAVED.iter().chain(&CALLEE_SAVED).chain(&[Reg::Rbx]).filter(reads).fold(0, |set, reg| set | reg.bit())
    }

    pub(super) fn has(self, offset: usize) -> bool {
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
        self.has((offset(Reg::Rsp) - REGS) as usize)
    }

    /// Whether the word behind the registers is read.
    pub(super) fn has_cookie(self) -> bool {
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

/// Offset of a register in [`Regs`].
fn offset(reg: Reg) -> i32 {
    let offset = match reg {
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
    };
    REGS + offset as i32
}

/// [`UNUSED`] as a set.
pub(super) fn unused() -> u16 {
    UNUSED.iter().fold(0, |set, reg| set | reg.bit())
}

/// What a frame is for.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    /// The xmm registers that the called code changes, a bit each.
    pub xmm: u16,
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
        self.changes.has((offset(reg) - REGS) as usize)
    }

    /// Whether a program reads the word of a register.
    fn reads(&self, reg: Reg) -> bool {
        self.context.has((offset(reg) - REGS) as usize)
    }

    /// Saves registers as drawn above. Afterwards `rbx` is the frame, `rsp` is 16-aligned, and all
    /// other registers hold what they did, except `rax` and `rcx`.
    pub fn save(&self, asm: &mut Asm) {
        let context = self.context;
        asm.lea(Reg::Rsp, Reg::Rsp, -ABOVE);
        if context.has_flags() {
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
        for (i, at) in (0..8).zip((Hit::XMM..).step_by(8)).filter(|(_, at)| context.has(*at)) {
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

pub(super) fn numbers(xmm: u16) -> Vec<u8> {
    (0..16).filter(|i| xmm >> i & 1 == 1).collect()
}
