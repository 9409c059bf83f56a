//! How loads and stores make their addresses (section C1.3.3).

use super::class::Class;
use super::decode::Insn;
use super::{SP, signed};

/// How a base and an immediate make an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Access {
    /// The immediate, in bytes.
    pub offset: i64,
    pub mode: Mode,
}

/// When the immediate is added to the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// For the access only.
    Offset,
    /// Before the access, and kept.
    Pre,
    /// After the access.
    Post,
}

impl Insn {
    /// If it accesses memory by a general-purpose register: that register, or [`SP`].
    #[must_use]
    pub fn memory_base(&self) -> Option<u8> {
        let has_base = matches!(
            self.class(),
            Class::Pair
                | Class::PairVector
                | Class::PairTag
                | Class::Single
                | Class::SingleVector
                | Class::Prefetch
                | Class::LoadAuthenticated
                | Class::LoadExclusive
                | Class::LoadExclusivePair
                | Class::StoreExclusive
                | Class::StoreExclusivePair
                | Class::LoadAcquire
                | Class::StoreRelease
                | Class::OrderedWriteBack
                | Class::OrderedPair
                | Class::CompareSwap
                | Class::CompareSwapPair
                | Class::Atomic
                | Class::AtomicPair
                | Class::Load64Bytes
                | Class::Store64Bytes
                | Class::StoreTag
                | Class::LoadTag
                | Class::TagBlock
                | Class::Structures
                | Class::StructureOrdered
        );
        has_base.then(|| self.rn())
    }

    /// Whether it stores registers and loads none.
    pub(super) fn is_store(&self) -> bool {
        let load = self.bits(22, 22) == 1;
        match self.class() {
            Class::Pair | Class::PairVector | Class::OrderedPair | Class::OrderedWriteBack => !load,
            Class::Single => self.bits(23, 22) == 0,
            // Also of 128 bits.
            Class::SingleVector => !load,
            Class::Structures | Class::StructureOrdered => !load,
            Class::PairTag | Class::StoreRelease | Class::StoreTag => true,
            _ => false,
        }
    }

    /// Of a load or store of one or two registers by a base: how the base and an immediate make the
    /// address.
    pub(super) fn access(&self) -> Option<Access> {
        let size = self.bits(31, 30);
        match self.class() {
            Class::Pair | Class::PairVector | Class::PairTag => {
                let scale = match self.class() {
                    Class::PairTag => 4,
                    Class::PairVector => 2 + size,
                    // ldpsw has words.
                    _ => 2 + (size >> 1),
                };
                let offset = signed(self.word(), 21, 15) << scale;
                let mode = match self.bits(24, 23) {
                    0b01 => Mode::Post,
                    0b11 => Mode::Pre,
                    _ => Mode::Offset,
                };
                Some(Access { offset, mode })
            }
            Class::Single | Class::SingleVector | Class::Prefetch => {
                let vector = self.class() == Class::SingleVector;
                // Vectors of 128 bits have their size in another bit.
                let scale = if vector { self.bits(23, 23) << 2 | size } else { size };
                let scaled = Access { offset: i64::from(self.bits(21, 10)) << scale, mode: Mode::Offset };
                let unscaled = |mode| Access { offset: signed(self.word(), 20, 12), mode };
                match (self.bits(29, 28), self.bits(25, 24)) {
                    (3, 1) => Some(scaled),
                    (3, _) if self.bits(21, 21) == 1 => None,
                    (3, _) => Some(unscaled(match self.bits(11, 10) {
                        0b01 => Mode::Post,
                        0b11 => Mode::Pre,
                        _ => Mode::Offset,
                    })),
                    _ => Some(unscaled(Mode::Offset)),
                }
            }
            Class::LoadAuthenticated => {
                let offset = (signed(self.word(), 22, 22) << 9 | i64::from(self.bits(20, 12))) << 3;
                Some(Access { offset, mode: if self.bits(11, 11) == 1 { Mode::Pre } else { Mode::Offset } })
            }
            Class::StoreTag => {
                let mode = match self.bits(11, 10) {
                    0b01 => Mode::Post,
                    0b11 => Mode::Pre,
                    _ => Mode::Offset,
                };
                Some(Access { offset: signed(self.word(), 20, 12) << 4, mode })
            }
            _ => None,
        }
    }

    /// Whether the base is written back, whatever is added to it.
    pub(super) fn writes_base(&self) -> bool {
        match self.class() {
            Class::OrderedWriteBack => true,
            Class::OrderedPair => self.bits(15, 12) == 0,
            Class::Structures => self.bits(23, 23) == 1,
            _ => self.access().is_some_and(|access| access.mode != Mode::Offset),
        }
    }

    /// Whether it accesses memory by the stack pointer and an immediate.
    pub(super) fn is_on_stack(&self) -> bool {
        self.memory_base() == Some(SP) && self.access().is_some()
    }
}
