//! Where the stack pointer is behind an A64 instruction ([`crate::stack`]).

use super::access::Mode;
use super::class::Class;
use super::decode::{Insn, hint};
use super::{FP, LINK, SP};
use crate::stack::Stack;

impl Insn {
    /// The return address is in the link register, and functions that call others save it on the
    /// stack: with the frame pointer, in two words that the frame pointer points to (AAPCS64,
    /// 6.4.6). Functions save and restore it, sign and authenticate it, and return. Anything else
    /// that takes it has a use for its value.
    pub(crate) fn names_return_address(&self, _stack: Stack) -> bool {
        let reads_link = self.usage().reads & 1 << LINK != 0;
        match self.class() {
            Class::Return | Class::ReturnAuthenticated | Class::ReturnHere | Class::SupervisorCall => false,
            Class::SignHere | Class::AuthenticateHere | Class::AuthenticateLink => false,
            Class::Hint => self.hint() == Some(hint::XPACLRI),
            Class::Pair | Class::Single if self.is_store() => {
                reads_link && !matches!(self.memory_base(), Some(SP | FP))
            }
            // The second word of a frame, to another register.
            Class::Pair | Class::Single if self.memory_base() == Some(FP) => {
                let offset = self.access().map_or(8, |access| access.offset);
                let second = if self.class() == Class::Pair { (self.ra(), offset + 8) } else { (self.rd(), offset) };
                let first = (self.rd(), offset);
                [first, second].iter().any(|(register, at)| *at == 8 && *register != LINK)
            }
            _ => reads_link,
        }
    }

    /// See [`Stack::after`].
    pub(crate) fn stack_after(&self, stack: Stack) -> Stack {
        let of = |register| match register {
            SP => stack.sp,
            FP => stack.fp,
            _ => None,
        };
        let writes = self.usage().writes;
        let mut next = stack;
        let mut track = |register, value| match register {
            SP => next.sp = value,
            FP => next.fp = value,
            _ => {}
        };
        for register in [SP, FP] {
            if writes & 1 << register != 0 {
                track(register, None);
            }
        }
        if self.class() == Class::AddImmediate && self.is_wide() && writes & 1 << self.rd() != 0 {
            let by = if self.bits(30, 30) == 1 { -self.immediate() } else { self.immediate() };
            track(self.rd(), of(self.rn()).map(|value| value.wrapping_add(by)));
        } else if let Some((from, to)) = self.copied() {
            track(to, of(from));
        } else if let Some(access) = self.access().filter(|access| access.mode != Mode::Offset) {
            // A load of the base itself leaves nothing that is known.
            let loads = !self.is_store() && [self.rd(), self.ra()].contains(&self.rn()) && self.rn() != SP;
            let value = of(self.rn()).map(|value| value.wrapping_add(access.offset));
            track(self.rn(), value.filter(|_| !loads));
        }
        next
    }
}
