//! What was not found, or could not be read: it is counted, and said with `-k`.

use sidestep_bpf::{AtomicOp, Cond, Insn, Reg, Size, Width};

use super::super::checked::{Entry, Value, ValueKind};
use super::{FAULTS, Lower};
use crate::build::Label;

impl Lower<'_, '_> {
    /// If `r0` is below 0, which stays as it is, a read of the target at this address has failed.
    pub(super) fn failed_read(&mut self, address: &Value) {
        let ValueKind::Noted(_, read) = address.kind else { return self.count_fault() };
        let (used, fine) = (self.used, self.out.label());
        self.out.branch_imm(Width::W64, Cond::Sge, Reg::R0, 0, fine);
        let result = self.stack(8);
        self.out.put(Reg::R10, result, Reg::R0);
        self.note(read);
        self.out.load(Size::Dw, Reg::R0, Reg::R10, result);
        self.out.bind(fine);
        self.release(used);
    }

    /// The same of a read that is only counted, as one of the block.
    pub(super) fn count_fault(&mut self) {
        let fine = self.out.label();
        self.out.branch_imm(Width::W64, Cond::Sge, Reg::R0, 0, fine);
        self.count_in(self.shared.block, false);
        self.out.bind(fine);
    }

    /// If `r0` is below 0, there was no such entry to remove.
    pub(super) fn failed_removal(&mut self, entry: &Entry) {
        let Some(read) = entry.read else { return };
        let fine = self.out.label();
        self.out.branch_imm(Width::W64, Cond::Sge, Reg::R0, 0, fine);
        self.note(read);
        self.out.bind(fine);
    }

    /// Goes to `missing` if `r0` is 0, for there is no such entry. It is 0 there.
    pub(super) fn unless_there(&mut self, entry: &Entry, missing: Label) {
        let Some(read) = entry.read else {
            self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, missing);
            return;
        };
        let there = self.out.label();
        self.out.branch_imm(Width::W64, Cond::Ne, Reg::R0, 0, there);
        self.note(read);
        self.out.mov_imm(Reg::R0, 0);
        self.out.goto(missing);
        self.out.bind(there);
    }

    /// The same of a map with one value, of which a word says whether it was ever set.
    pub(super) fn unless_set(&mut self, entry: &Entry) {
        let Some(read) = entry.read else { return };
        let set = self.out.label();
        self.load_set(entry);
        self.out.branch_imm(Width::W64, Cond::Ne, Reg::R1, 0, set);
        self.note(read);
        self.out.bind(set);
    }

    /// Whether a map with one value was ever set, into `r1`.
    fn load_set(&mut self, entry: &Entry) {
        let at = self.shared.checked.maps[entry.map].content.stored();
        self.out.map_value(Reg::R1, self.map_index(entry.map), at as u32);
        self.out.load(Size::Dw, Reg::R1, Reg::R1, 0);
    }

    /// Counts something of [`Checked::reads`](super::Checked::reads). The controller says what a
    /// thread meets first. Registers but `r6` are lost.
    fn note(&mut self, read: usize) {
        let again = self.out.label();
        self.count_in(self.shared.checked.blocks.len() + read, true);
        self.out.branch_imm(Width::W64, Cond::Ne, Reg::R2, 0, again);
        self.act(self.shared.checked.reads[read].action, &[]);
        self.out.bind(again);
    }

    /// One more of these. `fetch`: `r2` becomes how many there were in this thread.
    fn count_in(&mut self, number: usize, fetch: bool) {
        self.out.map_value(Reg::R1, FAULTS, 8 * number as u32);
        self.out.mov_imm(Reg::R2, 1);
        let op = AtomicOp::Add { fetch };
        self.out.push(Insn::Atomic { width: Width::W64, op, base: Reg::R1, off: 0, src: Reg::R2 });
    }
}
