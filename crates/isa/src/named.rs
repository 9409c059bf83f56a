//! Addresses that instructions name, one by one or several together.

use crate::Va;
use crate::a32::pages::Halves;
use crate::a64::pages::Pages;
use crate::insn::Insn;

/// What has to be known of the instructions before. Where an instruction names an address by
/// itself, that is nothing; on A64, one of two has the page and the other one the rest, and on A32
/// and T32 each has a half.
///
/// Instructions are taken one behind the other, as they lie in memory.
#[derive(Clone, Default, Debug)]
pub struct Named {
    pages: Pages,
    halves: Halves,
}

impl Named {
    /// Goes on behind an instruction. Returns the address that it names: as a value
    /// ([`Insn::address_candidate`]), or as an operand.
    ///
    /// ```
    /// use sidestep_isa::{Isa, Va, named::Named, sweep};
    /// // adrp x0, 0x5000; add x0, x0, #0x10
    /// let code = [0x20, 0, 0, 0x90, 0, 0x40, 0, 0x91];
    /// let mut named = Named::default();
    /// let insns = sweep(Isa::A64, &code, Va(0x1000)).map_while(Result::ok);
    /// let found: Vec<_> = insns.map(|insn| named.step(&insn)).collect();
    /// assert_eq!(found, [None, Some(Va(0x5010))]);
    /// ```
    pub fn step(&mut self, insn: &Insn) -> Option<Va> {
        match insn {
            Insn::A64(insn) => self.pages.step(insn),
            Insn::A32(insn) => self.halves.step(insn),
            _ => insn.address_candidate(),
        }
    }
}
