//! What generated code saves of the site's registers, and restores.

use sidestep_isa::RegisterSet;
use sidestep_isa::live::Dead;
use sidestep_isa::x86::emit::{Asm, Reg};

/// All registers but `rsp`, those that need no save in most functions first.
pub const ORDER: [Reg; 15] = [
    Reg::R11,
    Reg::R10,
    Reg::R9,
    Reg::R8,
    Reg::Rcx,
    Reg::Rdx,
    Reg::Rsi,
    Reg::Rdi,
    Reg::Rax,
    Reg::Rbx,
    Reg::Rbp,
    Reg::R12,
    Reg::R13,
    Reg::R14,
    Reg::R15,
];

/// What a part of a detour has saved.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    /// Pushed in this order.
    regs: Vec<Reg>,
    flags: Flags,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Flags {
    #[default]
    Dead,
    /// In `ax`, which nothing in between changes.
    InRax,
    /// On the stack, above the registers.
    Pushed,
}

impl Saved {
    /// `changed`: registers that the code changes; `flags`: whether it changes those.
    pub fn new(dead: Dead, changed: RegisterSet, flags: bool) -> Saved {
        let live = |reg: Reg| dead.regs & reg.bit() == 0;
        let flags = match (flags && !dead.flags, changed & Reg::Rax.bit() != 0) {
            (false, _) => Flags::Dead,
            (true, false) => Flags::InRax,
            (true, true) => Flags::Pushed,
        };
        let rax = flags != Flags::Dead;
        let changes = |reg: Reg| changed & reg.bit() != 0 || rax && reg == Reg::Rax;
        let mut regs: Vec<Reg> = ORDER.into_iter().filter(|reg| changes(*reg) && live(*reg)).collect();
        // First, so that the flags can be pushed over it.
        regs.sort_by_key(|reg| *reg != Reg::Rax);
        Saved { regs, flags }
    }

    /// Whether the flags are saved, for which `rax` is used.
    pub fn has_flags(&self) -> bool {
        self.flags != Flags::Dead
    }

    /// Bytes that lie on the stack.
    pub fn bytes(&self) -> i32 {
        8 * (self.regs.len() as i32 + i32::from(self.flags == Flags::Pushed))
    }

    pub fn save(&self, asm: &mut Asm) {
        for reg in &self.regs {
            asm.push(*reg);
        }
        if self.flags != Flags::Dead {
            asm.flags_to_ax();
        }
        if self.flags == Flags::Pushed {
            asm.push(Reg::Rax);
        }
    }

    /// Loads these of the saved registers once more.
    pub fn reload(&self, asm: &mut Asm, wanted: RegisterSet) {
        for (i, reg) in self.regs.iter().enumerate().filter(|(_, reg)| wanted & reg.bit() != 0) {
            asm.load(*reg, Reg::Rsp, self.bytes() - 8 * (i as i32 + 1));
        }
    }

    pub fn restore(&self, asm: &mut Asm) {
        if self.flags == Flags::Pushed {
            asm.pop(Reg::Rax);
        }
        if self.flags != Flags::Dead {
            asm.ax_to_flags();
        }
        for reg in self.regs.iter().rev() {
            asm.pop(*reg);
        }
    }
}
