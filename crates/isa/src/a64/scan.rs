//! References that words would make if they were A64 instructions ([`crate::scan`]).

use super::class::Class;
use super::decode::{Insn, Reader};
use super::{SP, WORD};
use crate::scan::{Distance, Reference};
use crate::{Len, Va};

/// Words behind an `adrp` in which the lower part of its address is looked for.
const WINDOW: usize = 32;

/// The words of some bytes, with their offsets.
fn words(start: Va, bytes: &[u8]) -> impl Iterator<Item = usize> {
    let first = (start.0.next_multiple_of(WORD as u64) - start.0) as usize;
    (first..(bytes.len() + 1).saturating_sub(WORD)).step_by(WORD)
}

/// Whether a word may be a branch, an address or a load relative to the program counter. Fast.
fn may_refer(word: u32) -> bool {
    word >> 26 & 7 == 0b101 || word >> 24 & 0x1f == 0b1_0000 || word >> 24 & 0x3b == 0b01_1000
}

/// The instructions among some bytes that may refer to something.
fn referring(start: Va, bytes: &[u8]) -> impl Iterator<Item = (usize, Insn)> {
    let mut reader = Reader::new(bytes, start);
    words(start, bytes).filter_map(move |at| {
        let word = u32::from_le_bytes(bytes[at..at + WORD].try_into().ok()?);
        let insn = may_refer(word).then(|| reader.at(start.plus(Len(at as u64))).ok()).flatten()?;
        Some((at, insn))
    })
}

/// See [`crate::scan::distances`].
pub(crate) fn distances(start: Va, bytes: &[u8], mut found: impl FnMut(Distance)) {
    for (at, insn) in referring(start, bytes) {
        let branch = insn.branch_target();
        if let Some(target) = branch.or(insn.pc_target()) {
            found(Distance { at, target, is_branch: branch.is_some(), is_operand: branch.is_none() });
        }
    }
}

/// See [`crate::scan::references`]. `adrp` names a page: that, and what the words behind it may add
/// to it.
pub(crate) fn references(start: Va, bytes: &[u8], found: &mut dyn FnMut(Reference)) {
    for (at, insn) in referring(start, bytes) {
        if let Some(target) = insn.branch_target() {
            found(Reference::Branch { source: insn.va(), target });
        } else if let Some(target) = insn.pc_target() {
            found(Reference::Names(target));
            if insn.class() == Class::Adrp {
                let rest = &bytes[at + WORD..];
                lower_parts(&insn, start.plus(Len((at + WORD) as u64)), rest, |low| {
                    found(Reference::Names(target.plus(Len(low))));
                });
            }
        }
    }
}

/// The immediates that words add to the register of an `adrp`, as `add` does and loads do.
fn lower_parts(page: &Insn, start: Va, rest: &[u8], mut found: impl FnMut(u64)) {
    let mut reader = Reader::new(rest, start);
    for at in words(start, rest).take(WINDOW) {
        let Ok(insn) = reader.at(start.plus(Len(at as u64))) else { continue };
        if insn.rn() != page.rd() || insn.rn() == SP {
            continue;
        }
        if insn.class() == Class::AddImmediate {
            found(insn.immediate() as u64);
        } else if let Some(access) = insn.access() {
            found(access.offset as u64);
        }
    }
}
