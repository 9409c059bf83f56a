//! What A64 instructions change, for probes behind them ([`crate::passed`]).

use super::SP;
use super::access::Mode;
use super::class::Class;
use super::decode::{Insn, hint, is_bti};
use crate::insn::Flow;
use crate::passed::Passed;

impl Insn {
    /// See [`crate::Insn::passed`]. `None` where it writes to memory other than by a push, to
    /// vectors or to system registers, goes elsewhere, or may fault by reading through a pointer
    /// other than the stack's.
    #[must_use]
    pub fn passed(&self) -> Option<Passed> {
        if self.flow() != Flow::Next {
            return None;
        }
        if self.hint().is_some_and(|number| number == hint::NOP || is_bti(number)) {
            return Some(Passed::Nothing);
        }
        if let Some(bytes) = self.lowers_stack() {
            return Some(Passed::Stack { bytes, flags: false });
        }
        let usage = self.usage();
        let is_plain = match self.class() {
            Class::Pair | Class::Single => !self.is_store() && !self.may_fault_off_stack(),
            Class::LoadLiteral | Class::MoveFromSystem => !self.may_fault(),
            Class::Adr
            | Class::Adrp
            | Class::AddImmediate
            | Class::LogicImmediate
            | Class::MoveWide
            | Class::Bitfield
            | Class::Extract
            | Class::Logic
            | Class::AddShifted
            | Class::AddExtended
            | Class::AddCarry
            | Class::ConditionalCompare
            | Class::ConditionalSelect
            | Class::TwoSources
            | Class::OneSource
            | Class::ThreeSources => !self.may_fault(),
            // paciasp and pacibsp.
            Class::Hint => self.is_target_mark(),
            _ => false,
        };
        let is_whole = is_plain && usage.writes & 1 << SP == 0;
        is_whole.then_some(Passed::Registers { regs: usage.writes, flags: usage.flags_killed != 0 })
    }

    /// By how much it lowers the stack pointer, if that, and what it writes there, is all.
    fn lowers_stack(&self) -> Option<i32> {
        let bytes = match self.class() {
            // sub sp, sp, #imm
            Class::AddImmediate if self.word() & 0xff80_03ff == 0xd100_03ff => self.immediate(),
            Class::Pair | Class::PairVector | Class::Single | Class::SingleVector if self.is_store() => {
                let access = self.access().filter(|access| access.mode == Mode::Pre && self.rn() == SP)?;
                -access.offset
            }
            _ => return None,
        };
        i32::try_from(bytes).ok().filter(|bytes| *bytes > 0)
    }

    /// The immediate of `add` and `sub`, without its sign.
    pub(super) fn immediate(&self) -> i64 {
        i64::from(self.bits(21, 10)) << (12 * self.bits(22, 22))
    }
}
