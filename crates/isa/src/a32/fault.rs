//! Faults: which instructions may raise a signal.

use super::class::{Class, Op};
use super::decode::Insn;
use super::{PC, SP};

impl Insn {
    /// See [`crate::Insn::may_fault`]. `false` is for instructions of the first processors with T32
    /// that compute with general-purpose registers, or touch no memory but literals and, with a
    /// write-back, the top of the stack.
    ///
    /// A branch to an address that is none faults there. Division by 0 gives 0 (section A4.4.8).
    #[must_use]
    pub fn may_fault(&self) -> bool {
        self.ops().any(|op| !op.is_harmless() && !op.is_on_top())
    }

    /// The same, where what lies on the stack above its pointer is there, too.
    #[must_use]
    pub fn may_fault_off_stack(&self) -> bool {
        self.ops().any(|op| !op.is_harmless() && !op.is_on_stack())
    }

    /// What lies on the stack is not missing in a program that goes on.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        self.may_fault_off_stack()
    }
}

impl Op {
    fn is_harmless(&self) -> bool {
        match self.class {
            Class::Address
            | Class::Constant
            | Class::MoveTop
            | Class::Preload
            | Class::ClearExclusive
            | Class::Branch
            | Class::BranchLink
            | Class::BranchExchange
            | Class::BranchLinkRegister
            | Class::CompareZero
            | Class::SupervisorCall
            | Class::Barrier
            | Class::ReadStatus
            | Class::WriteStatus => true,
            // Not bxj.
            Class::BranchRegister => self.thumb && self.len == 2 || !self.thumb && !self.bit(5),
            Class::Hint => self.hint() < 5,
            Class::Compute => self.is_old(),
            Class::Load => self.base == Some(PC) && self.offset().is_some() && !self.writes_pc(),
            _ => false,
        }
    }

    /// Computes as every processor with T32 does: not division and not CRC.
    fn is_old(&self) -> bool {
        let word = self.word;
        match (self.thumb, self.len) {
            (true, 2) => true,
            (true, _) => word >> 28 == 0xe || word >> 27 == 0x1e,
            // Data processing and multiplies, and not the other instructions between them.
            _ => word >> 26 & 3 == 0 && word & 0x0190_0000 != 0x0100_0000 || word & 0x0fff_0ff0 == 0x01a0_0000,
        }
    }

    /// Whether it accesses memory by the stack pointer and an immediate, as every processor can.
    pub(super) fn is_on_stack(&self) -> bool {
        let plain = matches!(self.class, Class::Load | Class::Store | Class::LoadMultiple | Class::StoreMultiple);
        plain && self.base == Some(SP) && self.offset().is_some()
    }

    /// A push or a pop.
    fn is_on_top(&self) -> bool {
        self.is_on_stack() && self.write_back
    }
}
