//! Code that nothing describes, functions without a name, and padding between functions.

use std::ops::Range;

use sidestep_isa::{Len, Va, sweep};

use super::Index;
use crate::analysis::sweep::{Borders, Stretch};
use crate::object::{Bytes, Extent};

impl Index<'_> {
    /// The code that nothing describes and that was found by walking: runs of instructions,
    /// ascending, and whether a function starts with the first.
    pub fn found(&self) -> impl Iterator<Item = (Extent, bool)> {
        let found = self.found.stretches.iter().filter(|stretch| stretch.borders == Borders::Found);
        found.map(|s| (Extent { start: s.start, len: Len(s.len() as u64) }, self.is_start(s.start)))
    }

    /// The functions that no symbol names, by address: those that unwind information alone
    /// describes, and those that were found by walking. Neither parts of functions nor linkage
    /// tables.
    #[must_use]
    pub fn unnamed(&self) -> Vec<Extent> {
        let holds = |section: &&Bytes<'_>, va: Va| section.va <= va && va.since(section.va) < section.data.len() as i64;
        let is_plt = |va| self.code.text.iter().find(|s| holds(s, va)).is_some_and(|s| s.name.starts_with(".plt"));
        let nameless = |va| self.code.nameless.binary_search(&va).is_ok() && !self.is_part(va) && !is_plt(va);
        let mut all: Vec<Extent> = self.code.extents.iter().filter(|extent| nameless(extent.start)).copied().collect();
        let walked = |stretch: &Stretch| stretch.borders == Borders::Found && self.is_start(stretch.start);
        let starts = self.found.stretches.iter().enumerate().filter(|(_, stretch)| walked(stretch));
        all.extend(starts.map(|(first, stretch)| {
            let own = self.found_from(first).last().unwrap_or(stretch);
            Extent { start: stretch.start, len: Len(own.end.since(stretch.start) as u64) }
        }));
        all.sort_unstable_by_key(|extent| (extent.start, extent.len.0));
        all.dedup_by_key(|extent| extent.start);
        all
    }

    /// What was found of the function that starts with a stretch, given by its number.
    fn found_from(&self, first: usize) -> impl Iterator<Item = &Stretch> {
        let undescribed = |stretch: &&Stretch| matches!(stretch.borders, Borders::Found | Borders::Gap);
        let rest = self.found.stretches[first + 1..].iter().take_while(undescribed);
        let rest = rest.take_while(|stretch| !self.is_start(stretch.start));
        std::iter::once(&self.found.stretches[first]).chain(rest).filter(|stretch| stretch.borders == Borders::Found)
    }

    /// The instructions of the function around `va`, if it is one that nothing describes and that
    /// was found by walking the code.
    #[must_use]
    pub fn found_around(&self, va: Va) -> Vec<Va> {
        let Some((number, _)) = self.stretch(va).filter(|(_, stretch)| stretch.borders == Borders::Found) else {
            return Vec::new();
        };
        let undescribed = |stretch: &&Stretch| matches!(stretch.borders, Borders::Found | Borders::Gap);
        let before = self.found.stretches[..number].iter().rev().take_while(undescribed).count();
        let own = |at: &usize| self.is_start(self.found.stretches[*at].start);
        let first = (number - before..=number).rev().find(own).unwrap_or(number - before);
        self.found_from(first).flat_map(Stretch::insns).collect()
    }

    fn find_holes(&self) -> Vec<Range<Va>> {
        let padding = |stretch: &Stretch| {
            let bytes = self.code.text_at(stretch.start, stretch.end).unwrap_or_default();
            sweep(self.code.isa, bytes, stretch.start).all(|insn| insn.is_ok_and(|insn| self.is_free(&insn)))
        };
        let pairs = self.found.stretches.windows(2).filter(|pair| pair[1].borders == Borders::Gap && !pair[0].open_end);
        let hole = |pair: &[Stretch]| {
            let (before, gap) = (&pair[0], &pair[1]);
            let fits = before.end == gap.start && before.fault.is_none() && gap.end.since(gap.start) >= 5;
            let free = || self.arrival(gap.start, gap.end).is_none() && padding(gap);
            (matches!(before.borders, Borders::Known | Borders::Found) && fits && free()).then_some(gap.start..gap.end)
        };
        pairs.filter_map(hole).collect()
    }

    /// Padding that nobody runs into or refers to and that begins or ends between two addresses.
    pub(crate) fn holes(&self, from: Va, to: Va) -> &[Range<Va>] {
        let holes = self.found.holes.get_or_init(|| self.find_holes());
        let lo = holes.partition_point(|hole| hole.end <= from);
        let hi = holes.partition_point(|hole| hole.start < to);
        &holes[lo..hi.max(lo)]
    }
}
