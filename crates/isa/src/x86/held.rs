//! Addresses of functions in registers, followed from one instruction to the next: whether a
//! distance is added to one.

use iced_x86::{Mnemonic, OpKind, Register};

use super::decode::{Flow, Insn, register_bit};
use crate::{Isa, Va};

/// Instructions for which an address is followed.
const WINDOW: usize = 64;
/// Registers that a call may change (System V psABI, "Register Usage").
const CHANGED_64: u16 = 0x0fc7;
const CHANGED_32: u16 = 0x0007;

/// Registers that hold addresses of code.
///
/// Instructions are taken one behind the other, as they lie in memory: a register holds an address
/// until something else is written to it.
#[derive(Default)]
pub struct Held {
    addresses: [Va; 16],
    /// A bit per register.
    mask: u16,
    left: usize,
}

impl Held {
    /// An instruction puts an address into its register, if that is what it does.
    pub fn name(&mut self, insn: &Insn, address: Va) {
        if insn.makes_address() && insn.iced.op0_kind() == OpKind::Register {
            let bit = register_bit(insn.iced.op0_register());
            self.addresses[bit.trailing_zeros() as usize] = address;
            self.mask |= bit;
            self.left = WINDOW;
        }
    }

    /// Goes on behind an instruction. Returns the address with which it computes another one.
    pub fn step(&mut self, insn: &Insn) -> Option<Va> {
        if self.mask == 0 {
            return None;
        }
        self.left -= 1;
        if self.left == 0 {
            self.mask = 0;
            return None;
        }
        if matches!(insn.flow(), Flow::Call(_) | Flow::CallIndirect) {
            self.mask &= !if insn.isa() == Isa::X64 { CHANGED_64 } else { CHANGED_32 };
            return None;
        }
        let iced = &insn.iced;
        let usage = insn.usage();
        let moved = iced.mnemonic() == Mnemonic::Mov
            && iced.op0_kind() == OpKind::Register
            && iced.op1_kind() == OpKind::Register
            && insn.whole(iced.op0_register()).is_gpr64()
            && self.mask & register_bit(iced.op1_register()) != 0;
        let sums = match iced.mnemonic() {
            Mnemonic::Lea => iced.memory_index() != Register::None || insn.displacement() != 0,
            Mnemonic::Add => true,
            _ => false,
        };
        let computes = self.mask & usage.reads & if sums { !0 } else { usage.writes };
        if computes != 0 {
            let found = self.addresses[computes.trailing_zeros() as usize];
            self.mask &= !usage.writes;
            return Some(found);
        }
        self.mask &= !usage.writes;
        if moved {
            let from = register_bit(iced.op1_register()).trailing_zeros() as usize;
            let to = register_bit(iced.op0_register());
            self.addresses[to.trailing_zeros() as usize] = self.addresses[from];
            self.mask |= to;
        }
        None
    }
}
