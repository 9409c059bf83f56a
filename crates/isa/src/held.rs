//! Addresses of functions in registers, followed from one instruction to the next: whether a
//! distance is added to one.

use crate::Va;
use crate::insn::{Flow, Insn, RegisterSet};

/// Instructions for which an address is followed.
const WINDOW: usize = 64;
/// Addresses one of which a register may hold. Further ones count as computed with.
const MOST: usize = 2;

/// Addresses of which a register holds one.
#[derive(Clone, Copy, Default)]
struct Addresses([Option<Va>; MOST]);

impl Addresses {
    /// Adds one. False if there is no room for the address.
    fn add(&mut self, address: Va) -> bool {
        match self.0.iter_mut().find(|own| own.is_none_or(|own| own == address)) {
            Some(own) => *own = Some(address),
            None => return false,
        }
        true
    }

    fn iter(self) -> impl Iterator<Item = Va> {
        self.0.into_iter().flatten()
    }
}

/// Registers that hold addresses of code.
///
/// Instructions are taken one behind the other, as they lie in memory: a register holds an address
/// until something else is written to it. Behind a return only those addresses are held that were
/// there at a jump or a call: control may come behind the return from there.
#[derive(Default)]
pub struct Held {
    addresses: [Addresses; RegisterSet::BITS as usize],
    mask: RegisterSet,
    /// Those of the registers whose addresses came since the last jump or call.
    fresh: RegisterSet,
    left: usize,
}

impl Held {
    /// An instruction puts an address into its register, if that is what it does.
    pub fn name(&mut self, insn: &Insn, address: Va) {
        if let Some(register) = insn.destination().filter(|_| insn.makes_address()) {
            self.hold(register, Addresses([Some(address), None]));
            self.fresh |= 1 << register;
            self.left = WINDOW;
        }
    }

    fn hold(&mut self, register: u8, addresses: Addresses) {
        self.addresses[usize::from(register)] = addresses;
        self.mask |= 1 << register;
    }

    /// Goes on behind an instruction. `computed` gets the addresses with which the instruction
    /// computes another address.
    pub fn step(&mut self, insn: &Insn, computed: &mut Vec<Va>) {
        if self.mask == 0 {
            return;
        }
        self.left -= 1;
        if self.left == 0 {
            self.mask = 0;
            return;
        }
        match insn.flow() {
            Flow::Call(_) | Flow::CallIndirect => {
                self.mask &= !insn.isa().limits().changed_by_calls;
                self.fresh = 0;
                return;
            }
            Flow::Jump(_) | Flow::Branch(_) | Flow::Transaction(_) | Flow::JumpIndirect => self.fresh = 0,
            _ => {}
        }
        let usage = insn.usage();
        let copied = insn.copied().map(|(from, to)| (1 << from, to)).or_else(|| insn.selected());
        let copied = copied.map(|(from, to)| (self.registers(from), to)).filter(|(from, _)| *from != 0);
        let changed = if insn.is_sum() { !0 } else { usage.writes };
        let computes = if copied.is_some() { 0 } else { self.registers(usage.reads & changed) };
        computed.extend(self.held(computes));
        let Some((from, to)) = copied else {
            self.mask &= !usage.writes;
            return;
        };
        let mut addresses = Addresses::default();
        computed.extend(self.held(from).filter(|address| !addresses.add(*address)));
        self.mask &= !usage.writes;
        self.hold(to, addresses);
        // An address of before the last jump counts on.
        let is_fresh = from & !self.fresh == 0;
        self.fresh = self.fresh & !(1 << to) | RegisterSet::from(is_fresh) << to;
    }

    /// A return without a condition: what lies behind it is not reached from in front of it.
    pub fn returned(&mut self) {
        self.mask &= !self.fresh;
    }

    /// Those of some registers that hold addresses.
    fn registers(&self, some: RegisterSet) -> RegisterSet {
        self.mask & some
    }

    /// The addresses in some registers.
    fn held(&self, some: RegisterSet) -> impl Iterator<Item = Va> + '_ {
        let held = (0..RegisterSet::BITS as usize).filter(move |register| some >> register & 1 == 1);
        held.flat_map(|register| self.addresses[register].iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, decode};

    #[test]
    fn choices_of_each_instruction_set() {
        let selected = |isa: Isa, code: &[u8]| decode(isa, code, Va(0x1000)).ok().and_then(|insn| insn.selected());
        // cmovne %rdx,%rax; cmovne %edx,%eax; cmovne (%rdx),%rax
        assert_eq!(selected(Isa::X64, &[0x48, 0x0f, 0x45, 0xc2]), Some((1 << 0 | 1 << 2, 0)));
        assert_eq!(selected(Isa::X64, &[0x0f, 0x45, 0xc2]), None);
        assert_eq!(selected(Isa::X64, &[0x48, 0x0f, 0x45, 0x02]), Some((1 << 0, 0)));
        assert_eq!(selected(Isa::X86, &[0x0f, 0x45, 0xc2]), Some((1 << 0 | 1 << 2, 0)));
        // setne %al, jne
        assert_eq!(selected(Isa::X64, &[0x0f, 0x95, 0xc0]), None);
        assert_eq!(selected(Isa::X64, &[0x75, 0x00]), None);
        // csel x0, x1, x2, eq; csel x0, x1, xzr, eq; csinc x0, x1, x2, eq
        assert_eq!(selected(Isa::A64, &0x9a82_0020u32.to_le_bytes()), Some((1 << 1 | 1 << 2, 0)));
        assert_eq!(selected(Isa::A64, &0x9a9f_0020u32.to_le_bytes()), Some((1 << 1, 0)));
        assert_eq!(selected(Isa::A64, &0x9a82_0420u32.to_le_bytes()), None);
        // moveq r0, r1; mov r0, r1
        assert_eq!(selected(Isa::A32, &0x01a0_0001u32.to_le_bytes()), Some((1 << 0 | 1 << 1, 0)));
        assert_eq!(selected(Isa::A32, &0xe1a0_0001u32.to_le_bytes()), None);
    }
}
