//! Code that neither symbols nor unwind information describe: found by walking it from what is
//! known.
//!
//! A walk begins where execution certainly begins: at the entry point, where known code calls or
//! jumps to, and so on from there. What it decodes are instructions, as surely as its start is one.
//! Pointers (words of data, addresses in instructions) are believed where the code before them
//! ends, in a gap where calls have led to code before, and only if all that a walk from there
//! reaches makes sense. What no walk reaches remains a gap: it may be data.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use sidestep_isa::indirect::{Origin, indirect_jumps};
use sidestep_isa::stack::Stack;
use sidestep_isa::{Flow, Insn, Len, Reader, Va, sweep};

use crate::analysis::family::{candidates, read_tables};
use crate::analysis::gap::Gap;
use crate::analysis::index::IsOver;
use crate::analysis::sweep::{Borders, Found, How, Stretch};
use crate::object::ObjectCode;

/// Instructions that are looked at to see whether a function starts somewhere.
const ENTRY_BUDGET: usize = 4000;

/// Code that was found: instructions one behind the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub range: Range<Va>,
    /// A function starts here.
    pub entry: bool,
    /// It belongs to the function that the piece before belongs to.
    pub joins: bool,
}

/// Finds the code in the gaps between known functions. `seen` is what those refer to. Sorted by
/// address.
pub(crate) fn discover(code: &ObjectCode<'_>, stretches: &[Stretch], seen: &Found, is_over: IsOver<'_>) -> Vec<Piece> {
    let gaps: Vec<Gap<'_>> = stretches.iter().filter_map(|stretch| Gap::new(code, stretch)).collect();
    if gaps.is_empty() {
        return Vec::new();
    }
    let mut walk = Walk::new(code, stretches, gaps, is_over);
    for start in &code.beginnings {
        for start in std::iter::once(*start).chain(handed_over(code, *start)) {
            if walk.reach(start, Trust::Certain) {
                walk.called.push(start);
            }
        }
    }
    for edge in seen.edges.iter().filter(|edge| edge.how != How::Maybe) {
        if walk.reach(edge.target, Trust::Certain) && edge.how == How::Call {
            walk.called.push(edge.target);
        }
    }
    walk.pointers.extend(seen.named.iter().chain(&code.pointers));
    while !is_over() && walk.believe_tables() | walk.believe_pointers() {}
    if is_over() { Vec::new() } else { walk.pieces() }
}

/// Addresses that the first code of a program hands to the C library: `main`, above all.
fn handed_over(code: &ObjectCode<'_>, start: Va) -> Vec<Va> {
    let bytes = code.text_from(start).unwrap_or_default();
    let insns = sweep(code.isa, bytes, start).map_while(Result::ok);
    insns
        .take_while(|insn| insn.flow() == Flow::Next)
        .flat_map(|insn| candidates(code, &insn).collect::<Vec<_>>())
        .collect()
}

/// How far a start is to be believed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    Certain,
    /// Only if all that is reached from there makes sense.
    Likely,
}

/// How a chunk of code ends.
enum End {
    /// Execution does not go on, or goes on in what is known.
    Whole,
    /// At the end of the gap.
    Border,
    /// In bytes that are no code.
    Nonsense,
}

struct Walk<'w, 'a> {
    code: &'w ObjectCode<'a>,
    stretches: &'w [Stretch],
    gaps: Vec<Gap<'a>>,
    /// Where calls lead.
    called: Vec<Va>,
    /// Where tables lead.
    cases: BTreeSet<Va>,
    /// Addresses that may be code: not looked at yet.
    pointers: Vec<Va>,
    /// Those at which code was found.
    believed: Vec<Va>,
    /// Jumps through registers.
    jumps: Vec<Va>,
    is_over: IsOver<'w>,
}

/// What one walk has found, to be taken back if it makes no sense.
#[derive(Default)]
struct Trail {
    insns: Vec<(usize, Insn)>,
    called: Vec<Va>,
    cases: Vec<Va>,
    named: Vec<Va>,
}

impl<'w, 'a> Walk<'w, 'a> {
    fn new(
        code: &'w ObjectCode<'a>,
        stretches: &'w [Stretch],
        gaps: Vec<Gap<'a>>,
        is_over: IsOver<'w>,
    ) -> Walk<'w, 'a> {
        let (called, pointers, believed, jumps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Walk { code, stretches, gaps, called, cases: BTreeSet::new(), pointers, believed, jumps, is_over }
    }

    fn gap(&self, va: Va) -> Option<usize> {
        let number = self.gaps.partition_point(|gap| gap.start <= va).checked_sub(1)?;
        (va < self.gaps[number].end()).then_some(number)
    }

    /// Whether a branch may lead to an address: to an instruction as far as those are known.
    fn may_lead_to(&self, va: Va) -> bool {
        if let Some(number) = self.gap(va) {
            let gap = &self.gaps[number];
            return !gap.inner.get(gap.offset(va));
        }
        let number = self.stretches.partition_point(|s| s.start <= va).checked_sub(1);
        number.map(|number| &self.stretches[number]).is_some_and(|stretch| {
            let known = || stretch.boundaries.get(va.since(stretch.start) as usize);
            va < stretch.end && (stretch.borders != Borders::Gap && (stretch.fault.is_some() || known()))
        })
    }

    /// One instruction behind the other from `at`, which lies in the gap.
    fn chunk(&self, gap: &Gap<'a>, at: Va) -> (Vec<Insn>, End) {
        let mut insns = Vec::new();
        for insn in sweep(self.code.isa, &gap.bytes[gap.offset(at)..], at) {
            let Ok(insn) = insn else { return (insns, End::Nonsense) };
            if gap.has(insn.va()) {
                return (insns, End::Whole);
            }
            let target = match insn.flow() {
                Flow::Jump(to) | Flow::Branch(to) | Flow::Transaction(to) | Flow::Call(to) => Some(to),
                _ => None,
            };
            if !insn.is_usual() || gap.cuts(&insn) || target.is_some_and(|to| !self.may_lead_to(to)) {
                return (insns, End::Nonsense);
            }
            insns.push(insn);
            if !insn.falls_through() {
                return (insns, End::Whole);
            }
        }
        (insns, End::Border)
    }

    /// Walks from `start`, and says whether it is code.
    fn reach(&mut self, start: Va, trust: Trust) -> bool {
        let mut trail = Trail::default();
        let mut todo = vec![start];
        while let Some(at) = todo.pop() {
            let Some(number) = self.gap(at) else { continue };
            let gap = &self.gaps[number];
            if gap.has(at) {
                continue;
            }
            let (mut insns, end) = self.chunk(gap, at);
            // Behind a call that never returns may be anything.
            let is_call = |insn: &Insn| matches!(insn.flow(), Flow::Call(_) | Flow::CallIndirect);
            let kept = match end {
                End::Whole => insns.len(),
                End::Border => insns.iter().rposition(is_call).map_or(0, |call| call + 1),
                End::Nonsense => insns.iter().position(is_call).map_or(0, |call| call + 1),
            };
            if kept == 0 || trust == Trust::Likely && matches!(end, End::Nonsense) {
                if trust == Trust::Likely {
                    trail.insns.iter().for_each(|(number, insn)| self.gaps[*number].clear(insn));
                    return false;
                }
                continue;
            }
            insns.truncate(kept);
            for insn in insns {
                self.gaps[number].set(&insn);
                trail.insns.push((number, insn));
                self.follow(&insn, &mut trail, &mut todo);
            }
        }
        for (number, insn) in &trail.insns {
            self.gaps[*number].note(insn);
            if insn.jumps_through_value() {
                self.jumps.push(insn.va());
            }
        }
        self.called.append(&mut trail.called);
        self.cases.extend(trail.cases);
        self.pointers.append(&mut trail.named);
        self.gap(start).is_some_and(|number| self.gaps[number].has(start))
    }

    /// Where an instruction leads.
    fn follow(&self, insn: &Insn, trail: &mut Trail, todo: &mut Vec<Va>) {
        match insn.flow() {
            Flow::Jump(to) | Flow::Branch(to) | Flow::Transaction(to) => todo.push(to),
            Flow::Call(to) => {
                todo.push(to);
                // 32-bit code calls the next instruction to know where it is.
                if to != insn.next() {
                    trail.called.push(to);
                }
            }
            _ => {}
        }
        if let Some(table) = insn.pointer_table() {
            let word = self.code.isa.word() as usize;
            let bytes = self.code.bytes_at(table).unwrap_or_default();
            let entries = bytes.chunks_exact(word).map(|entry| {
                let mut raw = [0; 8];
                raw[..word].copy_from_slice(entry);
                Va(u64::from_le_bytes(raw))
            });
            trail.cases.extend(entries.take_while(|to| self.gap(*to).is_some()));
        }
        trail.named.extend(candidates(self.code, insn));
    }

    /// Takes up those of `starts` at which code may begin. Returns these.
    fn believe(&mut self, mut starts: Vec<Va>) -> (Vec<Va>, bool) {
        starts.sort_unstable();
        starts.dedup();
        let (mut good, mut news) = (Vec::new(), false);
        self.gaps.iter_mut().filter(|gap| gap.reached).for_each(|gap| gap.find_heads(self.code.isa));
        for start in starts {
            if (self.is_over)() {
                break;
            }
            let Some(number) = self.gap(start) else { continue };
            let gap = &self.gaps[number];
            if !gap.reached || !gap.heads.get(gap.offset(start)) {
                continue;
            }
            if gap.has(start) {
                good.push(start);
            } else if self.reach(start, Trust::Likely) {
                good.push(start);
                news = true;
            }
        }
        (good, news)
    }

    /// Pointers to code. Returns whether there was any news.
    fn believe_pointers(&mut self) -> bool {
        let before = self.pointers.len();
        let cases = self.believe(self.cases.iter().copied().collect());
        let pointers = self.believe(self.pointers.clone());
        self.believed = pointers.0;
        cases.1 || pointers.1 || self.pointers.len() > before
    }

    /// Tables of distances, of jumps that were found. Returns whether there was any news.
    fn believe_tables(&mut self) -> bool {
        let mut jumps = std::mem::take(&mut self.jumps);
        if jumps.is_empty() {
            return false;
        }
        jumps.sort_unstable();
        let entries = self.likely_entries();
        let mut cases = Vec::new();
        let mut jumps = jumps.into_iter().peekable();
        while let Some(jump) = jumps.next().filter(|_| !(self.is_over)()) {
            let Some(gap) = self.gap(jump).map(|number| &self.gaps[number]) else { continue };
            let own = self.likely_function(gap, &entries, jump);
            let mut reader = Reader::new(self.code.isa, gap.bytes, gap.start);
            let starts = gap.first.within(gap.offset(own.start)..gap.offset(own.end));
            let insns = starts.filter_map(|at| reader.at(gap.start.plus(Len(at as u64))).ok()).collect();
            let mut new = vec![jump];
            while let Some(jump) = jumps.next_if(|jump| own.contains(jump)) {
                new.push(jump);
            }
            let origins = indirect_jumps(self.code.isa, insns, self.code.got, &|va| self.code.insn_at(va));
            for (_, origin) in origins.into_iter().filter(|(va, _)| new.binary_search(va).is_ok()) {
                let Origin::Table(tables) = origin else { continue };
                read_tables(self.code, &tables, |va| self.code.is_text(va).then_some(true), &mut cases);
            }
        }
        self.cases.extend(cases);
        true
    }

    /// From the entry in front of an address in a gap to the one behind.
    fn likely_function(&self, gap: &Gap<'_>, entries: &[(Va, bool)], at: Va) -> Range<Va> {
        let (before, behind) = entries.split_at(entries.partition_point(|(entry, _)| *entry <= at));
        let mut before = before.iter().rev().take_while(|(entry, _)| *entry >= gap.start);
        let mut behind = behind.iter().take_while(|(entry, _)| *entry < gap.end());
        let is_entry = |entry: &&(Va, bool)| self.is_entry(entry);
        let start = before.find(is_entry).map_or(gap.start, |(entry, _)| *entry);
        let end = behind.find(is_entry).map_or(gap.end(), |(entry, _)| *entry);
        start..end
    }

    /// Where functions may start, sorted: what is called, which is certain, and what is pointed to.
    fn likely_entries(&self) -> Vec<(Va, bool)> {
        let called = self.called.iter().map(|va| (*va, true));
        let believed = self.believed.iter().filter(|va| !self.cases.contains(va)).map(|va| (*va, false));
        let mut entries: Vec<(Va, bool)> = called.chain(believed).collect();
        entries.retain(|(va, _)| self.gap(*va).is_some_and(|number| self.gaps[number].has(*va)));
        entries.sort_unstable_by_key(|(va, called)| (*va, !called));
        entries.dedup_by_key(|(va, _)| *va);
        entries
    }

    /// Whether a function starts here: what is only pointed to must look like it.
    fn is_entry(&self, &(va, called): &(Va, bool)) -> bool {
        called || !(self.is_over)() && self.looks_like_entry(va)
    }

    /// Whether what begins here leaves the return address alone, and returns with the stack as it
    /// is at an entry. Not every time, as far as can be seen: behind a call that never returns may
    /// be code with another frame.
    fn looks_like_entry(&self, entry: Va) -> bool {
        let mut todo = vec![(entry, Stack::ENTRY)];
        let mut seen = HashSet::new();
        let (mut fitting, mut other, mut handed_on) = (0, 0, 0);
        while let Some((at, mut stack)) = todo.pop() {
            let Some(gap) = self.gap(at).map(|number| &self.gaps[number]) else {
                fitting += usize::from(stack.is_as_at_entry());
                continue;
            };
            for insn in gap.run(self.code, at) {
                if at == entry && seen.is_empty() && insn.is_filler() {
                    return false;
                }
                if seen.len() > ENTRY_BUDGET || !seen.insert(insn.va()) {
                    break;
                }
                if stack.names_return_address(&insn) {
                    return false;
                }
                match insn.flow() {
                    Flow::Return if stack.is_as_at_entry() => fitting += 1,
                    Flow::Return => other += 1,
                    Flow::JumpIndirect if stack.is_as_at_entry() => handed_on += 1,
                    Flow::Jump(to) | Flow::Branch(to) | Flow::Transaction(to) => todo.push((to, stack.after(&insn))),
                    _ => {}
                }
                stack = stack.after(&insn);
                if !insn.falls_through() {
                    break;
                }
            }
        }
        fitting > 0 && fitting >= other || handed_on > 0 && other == 0
    }

    /// All that was found, cut where functions start.
    fn pieces(&self) -> Vec<Piece> {
        let entries: Vec<Va> =
            self.likely_entries().into_iter().filter(|entry| self.is_entry(entry)).map(|(va, _)| va).collect();
        let mut pieces = Vec::new();
        for gap in &self.gaps {
            let mut piece: Option<Piece> = None;
            for at in gap.first.iter() {
                let end = (at + 1..).find(|at| !gap.inner.get(*at)).unwrap_or(at);
                let (start, end) = (gap.start.plus(Len(at as u64)), gap.start.plus(Len(end as u64)));
                let entry = entries.binary_search(&start).is_ok();
                match &mut piece {
                    Some(piece) if piece.range.end == start && !entry => piece.range.end = end,
                    _ => {
                        let joins = !entry && piece.is_some();
                        pieces.extend(piece.replace(Piece { range: start..end, entry, joins }));
                    }
                }
            }
            pieces.extend(piece);
        }
        pieces
    }
}
