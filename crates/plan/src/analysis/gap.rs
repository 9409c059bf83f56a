//! Code that nothing describes, as far as it is known.

use std::ops::Range;

use sidestep_isa::{Flow, INSN_MAX, Insn, Isa, Len, Reader, Va, sweep};

use crate::analysis::boundaries::Boundaries;
use crate::analysis::sweep::{Borders, Stretch};
use crate::object::ObjectCode;

/// Text that nothing describes, and what of it was found to be code.
#[derive(Clone)]
pub(super) struct Gap<'a> {
    pub start: Va,
    pub bytes: &'a [u8],
    /// First bytes of instructions.
    pub first: Boundaries,
    /// Their other bytes.
    pub inner: Boundaries,
    /// Some of it is code.
    pub reached: bool,
    /// Offsets at which code may begin that nothing runs into: behind known instructions that do
    /// not go on, and in between one instruction behind the other, as compilers write it.
    pub heads: Boundaries,
    /// Where the last walk over the gap has decoded an instruction.
    walked: Boundaries,
    /// What was found since then: offsets of instructions and of what is behind them.
    news: Vec<Range<usize>>,
}

impl<'a> Gap<'a> {
    /// Padding alone is none.
    pub fn new(code: &ObjectCode<'a>, stretch: &Stretch) -> Option<Gap<'a>> {
        let bytes = code.text_at(stretch.start, stretch.end).filter(|_| stretch.borders == Borders::Gap)?;
        let mut insns = sweep(code.isa, bytes, stretch.start);
        let padding = insns.all(|insn| insn.is_ok_and(|insn| insn.is_filler()));
        (!padding).then(|| Gap::of(stretch.start, bytes))
    }

    /// All of it is unknown.
    fn of(start: Va, bytes: &'a [u8]) -> Gap<'a> {
        let empty = || Boundaries::new(bytes.len());
        let mut heads = empty();
        heads.set(0);
        let (first, inner, walked, all) = (empty(), empty(), empty(), 0..bytes.len());
        Gap { start, bytes, first, inner, reached: false, heads, walked, news: Vec::from([all]) }
    }

    pub fn end(&self) -> Va {
        self.start.plus(Len(self.bytes.len() as u64))
    }

    pub fn offset(&self, va: Va) -> usize {
        va.since(self.start) as usize
    }

    pub fn has(&self, va: Va) -> bool {
        self.first.get(self.offset(va))
    }

    /// Whether an instruction has bytes of one that is known, other than the same ones.
    pub fn cuts(&self, insn: &Insn) -> bool {
        let at = self.offset(insn.va());
        self.inner.get(at) || (at + 1..at + insn.len()).any(|at| self.first.get(at))
    }

    pub fn set(&mut self, insn: &Insn) {
        let at = self.offset(insn.va());
        self.first.set(at);
        (at + 1..at + insn.len()).for_each(|at| self.inner.set(at));
    }

    /// An instruction stays: heads may change around it.
    pub fn note(&mut self, insn: &Insn) {
        self.reached = true;
        let at = self.offset(insn.va());
        match self.news.last_mut() {
            Some(last) if last.end == at => last.end += insn.len(),
            _ => self.news.push(at..at + insn.len()),
        }
    }

    pub fn clear(&mut self, insn: &Insn) {
        let at = self.offset(insn.va());
        self.first.clear(at);
        (at + 1..at + insn.len()).for_each(|at| self.inner.clear(at));
    }

    /// The known instructions from one on, as long as there is one behind the other.
    pub fn run(&self, code: &ObjectCode<'a>, from: Va) -> impl Iterator<Item = Insn> {
        let insns = sweep(code.isa, &self.bytes[self.offset(from)..], from).map_while(Result::ok);
        insns.take_while(|insn| self.has(insn.va()))
    }

    /// Takes what was found since the last time into `heads`. A walk over all of the gap would come
    /// to the same: what it does at an offset depends on the next few bytes alone, so it goes on as
    /// the last one did where it is behind the news and where the last one was.
    pub fn find_heads(&mut self, isa: Isa) {
        let mut news = std::mem::take(&mut self.news);
        news.sort_unstable_by_key(|range| range.start);
        let (mut reader, mut at) = (Reader::new(isa, self.bytes, self.start), 0);
        for new in news {
            let from = new.start.saturating_sub(INSN_MAX);
            if from >= at {
                at = self.walked.before(from).unwrap_or(0);
            }
            while at < self.bytes.len() && (at < new.end || !self.walked.get(at)) {
                at = self.walk_on(&mut reader, at);
            }
        }
    }

    /// One step of a walk over the gap. Returns the offset of the next one.
    fn walk_on(&mut self, reader: &mut Reader<'a>, at: usize) -> usize {
        let insn = reader.at(self.start.plus(Len(at as u64))).ok();
        let insn = insn.filter(|insn| self.first.get(at) || !self.cuts(insn));
        let next = at + insn.as_ref().map_or(1, Insn::len);
        for inside in at + 1..next.min(self.bytes.len()) {
            self.walked.clear(inside);
            self.heads.clear(inside);
        }
        self.walked.set(at);
        match insn.as_ref().is_some_and(ends) {
            true => self.heads.set(next),
            false => self.heads.clear(next),
        }
        next
    }
}

/// Nothing runs on behind it, or what runs on is padding.
fn ends(insn: &Insn) -> bool {
    !insn.falls_through() || insn.is_filler() || matches!(insn.flow(), Flow::Call(_) | Flow::CallIndirect)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stays the same however often something was found in between.
    #[test]
    fn heads_are_those_of_a_walk_over_all_of_the_gap() {
        let mut seed = 1_u64;
        let mut chance = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for round in 0..200 {
            // Bytes of which many are returns, calls, jumps and prefixes.
            let usual = [0xc3, 0xe8, 0xe9, 0xeb, 0x55, 0x48, 0x89, 0x90, 0xcc, 0x0f, 0x66, 0x00, 0x74, 0xff];
            let text: Vec<u8> =
                (0..400).map(|_| if chance(8) == 0 { chance(256) as u8 } else { usual[chance(14)] }).collect();
            let (isa, start) = (Isa::default(), Va(0x1000));
            let (mut gap, mut fresh) = (Gap::of(start, &text), Gap::of(start, &text));
            for _ in 0..30 {
                let from = start.plus(Len(chance(400) as u64));
                let insns = sweep(isa, &text[gap.offset(from)..], from).map_while(Result::ok).take(chance(6));
                for insn in insns {
                    if gap.has(insn.va()) || gap.cuts(&insn) {
                        break;
                    }
                    for gap in [&mut gap, &mut fresh] {
                        gap.set(&insn);
                        gap.note(&insn);
                    }
                }
                gap.find_heads(isa);
                let mut whole = fresh.clone();
                whole.find_heads(isa);
                assert!(gap.heads.iter().eq(whole.heads.iter()), "round {round}: {text:02x?}");
            }
        }
    }
}
