//! Addresses of functions in registers, followed from one instruction to the next: whether a
//! distance is added to one.

use crate::Va;
use crate::insn::{Flow, Insn, RegisterSet};

/// Instructions for which an address is followed.
const WINDOW: usize = 64;
/// Registers that hold addresses of code.
///
/// Instructions are taken one behind the other, as they lie in memory: a register holds an address
/// until something else is written to it.
#[derive(Default)]
pub struct Held {
    addresses: [Va; RegisterSet::BITS as usize],
    mask: RegisterSet,
    left: usize,
}

impl Held {
    /// An instruction puts an address into its register, if that is what it does.
    pub fn name(&mut self, insn: &Insn, address: Va) {
        if let Some(register) = insn.destination().filter(|_| insn.makes_address()) {
            self.hold(register, address);
            self.left = WINDOW;
        }
    }

    fn hold(&mut self, register: u8, address: Va) {
        self.addresses[usize::from(register)] = address;
        self.mask |= 1 << register;
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
            self.mask &= !insn.isa().limits().changed_by_calls;
            return None;
        }
        let usage = insn.usage();
        let copied = insn.copied().filter(|(from, _)| self.mask >> from & 1 == 1);
        let computes = self.mask & usage.reads & if insn.is_sum() { !0 } else { usage.writes };
        self.mask &= !usage.writes;
        if computes != 0 {
            return Some(self.addresses[computes.trailing_zeros() as usize]);
        }
        if let Some((from, to)) = copied {
            self.hold(to, self.addresses[usize::from(from)]);
        }
        None
    }
}
