//! Instructions at any place of one piece of code, and one behind the other.

use std::collections::BTreeSet;

use super::class::{Class, Op};
use super::decode::{Insn, decode};
use super::{PC, bit};
use crate::insn::DecodeError;
use crate::{Isa, Len, Va};

/// Decodes at any place of one piece of code.
pub struct Reader<'a> {
    isa: Isa,
    code: &'a [u8],
    base: Va,
}

impl<'a> Reader<'a> {
    /// For `code`, which lies at `base`.
    #[must_use]
    pub fn new(isa: Isa, code: &'a [u8], base: Va) -> Reader<'a> {
        Reader { isa, code, base }
    }

    /// The instruction at an address.
    ///
    /// # Errors
    /// There is none, or the code does not have it.
    pub fn at(&mut self, at: Va) -> Result<Insn, DecodeError> {
        let offset = usize::try_from(at.since(self.base)).map_err(|_| DecodeError { at })?;
        decode(self.isa, self.code.get(offset..).unwrap_or_default(), at)
    }
}

/// One instruction behind the other, up to the first error. What instructions load as literals is
/// data when its turn comes.
pub struct Sweep<'a> {
    reader: Reader<'a>,
    /// Literals that are still to come, a word each.
    literals: BTreeSet<Va>,
    /// None behind an error.
    at: Option<Va>,
}

impl<'a> Sweep<'a> {
    /// Of `bytes`, which lie at `at`.
    #[must_use]
    pub fn new(isa: Isa, bytes: &'a [u8], at: Va) -> Sweep<'a> {
        Sweep { reader: Reader::new(isa, bytes, at), literals: BTreeSet::new(), at: Some(at) }
    }
}

impl Sweep<'_> {
    /// Remembers what an instruction loads as literals.
    fn note(&mut self, insn: &Insn) {
        let loads = |op: &Op| matches!(op.class, Class::Load | Class::VectorLoad) && op.base == Some(PC);
        if insn.single().is_some_and(|op| !loads(op)) {
            return;
        }
        for (va, op) in insn.places().filter(|(_, op)| loads(op)) {
            let Some(target) = op.operand(va).filter(|target| *target > va) else { continue };
            // A second word, where two are loaded.
            let double = op.writes.count_ones() > 1 || op.class == Class::VectorLoad && bit(op.word, 8);
            self.literals.extend([target, target.plus(Len(if double { 4 } else { 0 }))]);
        }
    }

    /// The literal at an address.
    fn literal(&mut self, at: Va) -> Option<Insn> {
        while let Some(first) = self.literals.first().filter(|first| **first < at).copied() {
            self.literals.remove(&first);
        }
        let here = at.0 % 4 == 0 && self.literals.remove(&at);
        let offset = usize::try_from(at.since(self.reader.base)).ok().filter(|_| here)?;
        let word = self.reader.code.get(offset..offset.checked_add(4)?)?;
        let word = u32::from_le_bytes(word.try_into().ok()?);
        Some(Insn::data(at, word, self.reader.isa == Isa::T32))
    }
}

impl Iterator for Sweep<'_> {
    type Item = Result<Insn, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at.filter(|at| (at.since(self.reader.base) as usize) < self.reader.code.len())?;
        let insn = self.literal(at).map_or_else(|| self.reader.at(at), Ok);
        self.at = insn.ok().map(|insn| insn.next());
        if let Ok(insn) = &insn {
            self.note(insn);
        }
        Some(insn)
    }
}
