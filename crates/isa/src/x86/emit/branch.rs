//! Jumps, calls and returns.

use super::{Asm, Cond, Label, Reg};
use crate::patch::OutOfReach;
use crate::{Isa, Va};

impl Asm {
    /// `jcc label`
    pub fn jcc(&mut self, cond: Cond, label: Label) {
        if self.near {
            self.bytes.push(0x70 | cond as u8);
            return self.rel8(label);
        }
        self.raw(&[0x0f, 0x80 | cond as u8]);
        self.rel32(label);
    }

    /// Goes to `label` unless a condition holds, which is given as
    /// [`Insn::condition`](crate::x86::Insn::condition) gives it.
    pub fn jump_unless(&mut self, condition: u8, label: Label) {
        // The lowest bit of a condition negates it.
        let negated = condition ^ 1;
        if self.near {
            self.bytes.push(0x70 | negated);
            return self.rel8(label);
        }
        self.raw(&[0x0f, 0x80 | negated]);
        self.rel32(label);
    }

    /// `jmp label`
    pub fn jmp(&mut self, label: Label) {
        if self.near {
            self.bytes.push(0xeb);
            return self.rel8(label);
        }
        self.bytes.push(0xe9);
        self.rel32(label);
    }

    /// `jmp` to an absolute address within ±2 GiB; in 32-bit code, to any.
    pub fn jmp_to(&mut self, target: Va) -> Result<(), OutOfReach> {
        self.branch_to(0xe9, target)
    }

    /// `call` of an absolute address within ±2 GiB; in 32-bit code, of any.
    pub fn call_to(&mut self, target: Va) -> Result<(), OutOfReach> {
        self.branch_to(0xe8, target)
    }

    fn branch_to(&mut self, opcode: u8, to: Va) -> Result<(), OutOfReach> {
        let from = self.here();
        let rel = match self.isa {
            Isa::X86 => (to.since(from) - 5) as i32,
            _ => i32::try_from(to.since(from) - 5).map_err(|_| OutOfReach { from, to })?,
        };
        self.bytes.push(opcode);
        self.imm32(rel);
        Ok(())
    }

    /// `call reg`
    pub fn call_reg(&mut self, reg: Reg) {
        if reg.high() == 1 {
            self.bytes.push(0x41);
        }
        self.raw(&[0xff, 0xd0 | reg.low()]);
    }

    /// `call [rsp + disp]`: the address is read before the return address is pushed.
    pub fn call_mem_rsp(&mut self, disp: i32) {
        self.bytes.push(0xff);
        self.modrm_disp(2, Reg::Rsp, disp);
    }

    /// A jump that reaches everything: `jmp [rip + 0]` followed by the address, or in 32-bit code
    /// `jmp`.
    pub fn jmp_far(&mut self, target: Va) {
        match self.isa {
            Isa::X86 => {
                let distance = (target.since(self.here()) - 5) as i32;
                self.raw(&[0xe9]);
                self.imm32(distance);
            }
            _ => {
                self.raw(&[0xff, 0x25, 0, 0, 0, 0]);
                self.raw(&target.0.to_le_bytes());
            }
        }
    }

    /// `jmp` to where a word says, which has to be within ±2 GiB.
    pub fn jmp_by(&mut self, word: Va) {
        let operand = match self.isa {
            Isa::X86 => word.0 as u32,
            _ => (word.since(self.here()) - 6) as u32,
        };
        self.raw(&[0xff, 0x25]);
        self.raw(&operand.to_le_bytes());
    }

    /// `ret`
    pub fn ret(&mut self) {
        self.bytes.push(0xc3);
    }

    /// `ret imm16`: drops so many bytes behind the return address.
    pub fn ret_drop(&mut self, bytes: u16) {
        self.bytes.push(0xc2);
        self.raw(&bytes.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::*;

    #[test]
    fn branches_reach_labels_and_addresses() {
        let mut a = Asm::new(Va(0x1000));
        let end = a.label();
        a.jcc(Cond::Ne, end);
        a.jmp_to(Va(0x2000)).unwrap();
        a.call_to(Va(0x800)).unwrap();
        a.bind(end);
        a.lea_label(Reg::R9, end);
        assert_eq!(text(a), ["jne 0x1010", "jmp 0x2000", "call 0x800", "lea 0x1010,%r9"]);
        let far = Va(0x1_0000_0000);
        assert_eq!(Asm::new(Va(0x1000)).jmp_to(far), Err(OutOfReach { from: Va(0x1000), to: far }));
        let mut a = Asm::of(Isa::X86, Va(0x1000));
        a.jmp_to(Va(0xf7c0_0000)).unwrap();
        assert_eq!(text(a), ["jmp 0xF7C00000"]);
    }
}
