//! Instructions that must stay as they are, where they are.

use std::collections::BTreeSet;

use sidestep_isa::{Flow, Insn, Va};

use super::Index;
use crate::object::{Extent, Rewritten};
use crate::reason::Reason;

impl Index<'_> {
    /// The place that the program changes itself and that an instruction is in.
    pub(crate) fn rewritten(&self, insn: &Insn) -> Option<Rewritten> {
        let next = self.code.rewritten.partition_point(|place| place.extent.start < insn.next());
        let place = self.code.rewritten[..next].last()?;
        (insn.va() < place.extent.start.plus(place.extent.len)).then_some(*place)
    }

    /// Whether an instruction is filler that belongs to nobody.
    pub(crate) fn is_free(&self, insn: &Insn) -> bool {
        insn.is_filler() && self.rewritten(insn).is_none()
    }

    /// Why an instruction must stay as it is, where it is.
    pub(crate) fn stays(&self, insn: &Insn) -> Option<Reason> {
        // The sequence, or the signature of its abort handler.
        let meets = |e: &&Extent| e.start < insn.next() && insn.va() < e.start.plus(e.len);
        let sequence = self.code.restartable.iter().find(meets);
        let sequence = sequence.map(|extent| Reason::RestartableSequence { insn: *insn, start: extent.start });
        let rewritten = || Some(Reason::Rewritten { insn: *insn, by: self.rewritten(insn)?.by });
        let calls = match insn.flow() {
            Flow::Call(_) | Flow::CallIndirect => true,
            Flow::JumpIndirect => insn.is_slot_jump(),
            _ => false,
        };
        let is_read = || (self.code.mono && calls).then_some(Reason::ReadByMono { insn: *insn });
        let exclusive = || Some(Reason::ExclusiveSequence { insn: *insn, store: self.exclusive_store(insn)? });
        sequence.or_else(rewritten).or_else(is_read).or_else(exclusive)
    }

    /// The store that ends the exclusive sequence that an instruction is in: one that execution can
    /// reach from there without a load that begins a new sequence.
    fn exclusive_store(&self, insn: &Insn) -> Option<Va> {
        /// Instructions that are looked at. Sequences are short (Arm ARM, "Load-Exclusive and
        /// Store-Exclusive instruction usage restrictions": at most 128 bytes).
        const MOST: usize = 128;
        if !self.found.exclusive {
            return None;
        }
        let (mut seen, mut todo) = (BTreeSet::new(), vec![insn.va()]);
        while let Some(va) = todo.pop() {
            let Some(insn) = self.code.insn_at(va).filter(|_| seen.len() < MOST && seen.insert(va)) else { continue };
            if insn.is_exclusive_store() {
                // What ends the sequence without a store is of no use here.
                if insn.may_fault() {
                    return Some(va);
                }
                continue;
            }
            if insn.is_exclusive_load() {
                continue;
            }
            match insn.flow() {
                Flow::Jump(to) => todo.push(to),
                Flow::Branch(to) => todo.extend([to, insn.next()]),
                Flow::Next => todo.push(insn.next()),
                // A return may have a condition.
                Flow::Return | Flow::JumpIndirect if insn.falls_through() => todo.push(insn.next()),
                _ => {}
            }
        }
        None
    }
}
