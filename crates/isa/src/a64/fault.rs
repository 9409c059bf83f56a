//! Faults: which A64 instructions may raise a signal.

use super::access::Mode;
use super::class::Class;
use super::decode::Insn;
use super::emit::system;

impl Insn {
    /// See [`crate::Insn::may_fault`]. `false` is for instructions of the first version of A64 that
    /// compute with general-purpose registers, move vectors, or touch no memory but literals and,
    /// with a write-back, the top of the stack.
    ///
    /// A branch to an address that is none faults there, not at the branch (section D1.3.5).
    /// Division by 0 gives 0 (section C3.5.7).
    #[must_use]
    pub fn may_fault(&self) -> bool {
        match self.class() {
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
            | Class::Branch
            | Class::BranchLink
            | Class::CompareZero
            | Class::TestBit
            | Class::SupervisorCall
            | Class::ClearExclusive
            | Class::InstructionBarrier
            | Class::LoadLiteral
            | Class::LoadLiteralVector
            | Class::PrefetchLiteral
            | Class::Prefetch => false,
            // bc.cond is of FEAT_HBC.
            Class::BranchCondition => self.bits(4, 4) == 1,
            // braa and its like fault with FEAT_FPAC.
            Class::BranchRegister | Class::BranchLinkRegister | Class::Return => self.bits(15, 10) != 0,
            // Those that authenticate, likewise, and those that have no meaning yet.
            Class::Hint => !matches!(self.hint(), Some(0..=8 | 10 | 24..=27 | 32..=39)),
            // dsb and dmb as they always were.
            Class::Barrier => !matches!(self.bits(7, 5), 4 | 5),
            Class::MoveToSystem | Class::MoveFromSystem => !self.is_for_programs(),
            // udiv, sdiv, shifts.
            Class::TwoSources => !matches!(self.bits(15, 10), 0b0010 | 0b0011 | 0b1000..=0b1011),
            Class::OneSource => self.bits(15, 10) > 5,
            Class::ThreeSources => self.bits(23, 21) == 0b011,
            Class::Vector => !self.moves_vector(),
            _ => !self.is_on_top(),
        }
    }

    /// The same, where what lies on the stack above its pointer is there, too.
    #[must_use]
    pub fn may_fault_off_stack(&self) -> bool {
        self.may_fault() && !(self.is_on_stack() && self.is_plain_access())
    }

    /// What lies on the stack is not missing in a program that goes on.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        self.may_fault_off_stack()
    }

    /// A push or a pop.
    fn is_on_top(&self) -> bool {
        self.is_on_stack() && self.is_plain_access() && self.access().is_some_and(|access| access.mode != Mode::Offset)
    }

    /// A load or store that every processor has. `stlur` and `ldapur` are newer.
    fn is_plain_access(&self) -> bool {
        match self.class() {
            Class::Pair | Class::PairVector => true,
            Class::Single | Class::SingleVector => self.bits(29, 28) == 3,
            _ => false,
        }
    }

    /// `NZCV`, `FPCR`, `FPSR` and `TPIDR_EL0`, of one register.
    fn is_for_programs(&self) -> bool {
        let number = self.bits(20, 5) as u16;
        self.bits(22, 22) == 0 && matches!(number, system::NZCV | system::FPCR | system::FPSR | system::TPIDR_EL0)
    }

    /// Moves between registers, and `and`, `orr` and `eor` of vectors: no floating-point exception.
    fn moves_vector(&self) -> bool {
        let word = self.word();
        // and, orr, eor
        matches!(word & 0xbfe0_fc00, 0x0e20_1c00 | 0x0ea0_1c00 | 0x2e20_1c00)
            // fmov of s and d
            || word & 0xffbf_fc00 == 0x1e20_4000
            // fmov between s and w, d and x
            || matches!(word & 0xfffe_fc00, 0x1e26_0000 | 0x9e66_0000)
            // movi of zeros
            || matches!(word & 0xffff_ffe0, 0x2f00_e400 | 0x6f00_e400)
    }
}
