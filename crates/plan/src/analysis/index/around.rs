//! Some functions of an object: all that refers to them is found without decoding the rest.
//!
//! Whoever refers to an address has its distance or itself among his bytes. So one look at all text
//! finds the places that may do so, and only the functions of these are decoded: what is said of
//! the code in question is the same as by a whole [`Index`]. Where more is needed (code that jumps
//! there takes part in its control flow), that is not known.
//!
//! [`Index`]: super::Index

use std::ops::Range;
use std::sync::OnceLock;

use sidestep_isa::{Isa, Len, Va, scan};

use super::{Analysis, number_of, sorted, words};
use crate::analysis::family::{Families, joins};
use crate::analysis::parallel;
use crate::analysis::sweep::{self, Borders, Found, How, Stretch};
use crate::object::{Bytes, ObjectCode};
use crate::reason::UnknownJumps;

/// Text of which one processor looks at one piece after the other.
const PIECE: usize = 64 << 10;
/// Bits of an address within a grain: of the map of what is looked for.
const GRAIN: u32 = 5;

impl Analysis {
    /// Of the functions around `sites` alone.
    pub(super) fn around(code: &ObjectCode<'_>, sites: &[Va]) -> Analysis {
        let starts = sorted(code.extents.iter().map(|e| e.start).filter(|s| code.is_text(*s)).collect());
        let mut stretches = sweep::stretches(code);
        let own = parts(code, &starts, &mut stretches, sites);
        let wanted = Wanted::new(code, own.iter().map(|number| &stretches[*number]), sites);
        let mut others = Vec::new();
        for number in &own {
            let stretch = &stretches[*number];
            let short = code.isa.limits().short_branch;
            let (from, to) = (stretch.start.offset(-short), stretch.end.offset(short));
            let before = stretches[..*number].iter().rev().take_while(|near| near.end > from).count();
            let behind = stretches[number + 1..].iter().take_while(|near| near.start < to).count();
            others.extend(number - before..=number + behind);
        }
        others.extend(wanted.referrers(code).into_iter().filter_map(|va| number_of(&stretches, va)));
        others.sort_unstable();
        others.dedup();
        others.retain(|number| own.binary_search(number).is_err());

        let mut found = decode(code, &starts, &mut stretches, &own);
        let theirs = decode(code, &starts, &mut stretches, &others);
        // Of the others' families nothing is asked.
        others.iter().for_each(|number| (stretches[*number].value_jumps, stretches[*number].fault) = (false, None));
        let strays = sorted(theirs.named.iter().copied().filter(|va| wanted.has(*va)).collect());
        found.append(theirs);
        found.edges.sort();
        let mut named = std::mem::take(&mut found.named);
        named.extend(code.pointers.iter().filter(|p| wanted.is_near(**p)));
        if code.isa.limits().words_name_code {
            for section in code.data.iter().chain(&code.text) {
                words(section, code, &mut named);
            }
        }
        named.retain(|va| wanted.is_near(*va) && code.isa.can_begin_at(*va));
        let named = sorted(named);

        let stretch_of = |va| number_of(&stretches, va);
        let mut families = match code.go {
            true => Families::new(code, &[], &starts, &[], |_| None),
            false => Families::new(code, &stretches, &starts, &found.leaving, stretch_of),
        };
        families.doubt_computed(&stretches, &found.labels, &found.computed, &starts);
        // Whose tables lead there is not known.
        let is_led_to = |stretch: &Stretch| {
            let at = found.edges.partition_point(|edge| edge.target < stretch.start);
            let mut own = found.edges[at..].iter().take_while(|edge| edge.target == stretch.start);
            code.nameless.binary_search(&stretch.start).is_ok() && own.all(|edge| edge.how != How::Call)
        };
        let joined = |target| joins(code, &starts, target);
        for number in own {
            let stretch = &stretches[number];
            if is_led_to(stretch) || !is_whole(stretch, &found, &strays, &wanted, joined) {
                families.doubt(number, UnknownJumps::NotIndexed);
            }
        }
        Analysis {
            table_targets: families.targets(code),
            families,
            edges: found.edges,
            labels: sorted(code.labels.iter().chain(&starts).copied().collect()),
            starts,
            landing_pads: sorted(code.landing_pads.clone()),
            named,
            stretches,
            // Who refers to padding between functions is not known.
            holes: OnceLock::from(Vec::new()),
            exclusive: found.exclusive,
        }
    }
}

/// The stretches around `sites`, and those that belong to the same functions: what they jump to the
/// middle of, and cold parts.
fn parts(code: &ObjectCode<'_>, starts: &[Va], stretches: &mut [Stretch], sites: &[Va]) -> Vec<usize> {
    let mut own: Vec<usize> = Vec::new();
    let mut new = sites.to_vec();
    loop {
        let before = own.len();
        let around = new.iter().filter_map(|va| number_of(stretches, *va));
        own.extend(around.filter(|number| stretches[*number].borders == Borders::Known));
        own.sort_unstable();
        own.dedup();
        if own.len() == before {
            return own;
        }
        let found = decode(code, starts, stretches, &own);
        let is_part = |to: &Va| joins(code, starts, *to) || code.nameless.binary_search(to).is_ok();
        new = found.leaving.iter().map(|(_, target)| *target).filter(is_part).collect();
    }
}

/// Decodes some stretches, given by their numbers.
fn decode(code: &ObjectCode<'_>, starts: &[Va], stretches: &mut [Stretch], numbers: &[usize]) -> Found {
    let at: Vec<Va> = numbers.iter().map(|number| stretches[*number].start).collect();
    sweep::sweep(code, starts, stretches, |stretch| at.binary_search(&stretch.start).is_ok())
}

/// Whether all that takes part in the control flow of a stretch is wanted, too. `strays`: what code
/// names that is not; a jump there that nobody understands may go to those. `joined`: a jump from
/// elsewhere makes one function of both.
fn is_whole(stretch: &Stretch, found: &Found, strays: &[Va], wanted: &Wanted, joined: impl Fn(Va) -> bool) -> bool {
    let own = stretch.start..stretch.end;
    let from = found.edges.partition_point(|edge| edge.target < own.start);
    let to = found.edges.partition_point(|edge| edge.target < own.end);
    let enters = found.edges[from..to].iter().any(|edge| !wanted.has(edge.source) && joined(edge.target));
    let leaves = |(source, target): &(Va, Va)| own.contains(source) && !wanted.has(*target) && joined(*target);
    let from = strays.partition_point(|va| *va < own.start);
    let to = strays.partition_point(|va| *va < own.end);
    !enters && !found.leaving.iter().any(leaves) && !strays[from..to].iter().any(|va| joined(*va))
}

/// Addresses that are looked for.
struct Wanted {
    isa: Isa,
    got: Option<Va>,
    fixed: bool,
    /// The functions, ascending.
    own: Vec<Range<Va>>,
    /// What may be referred to there that matters: not their first instructions, which many call,
    /// unless those are sites. And what a jump in place of their last instructions may need: nobody
    /// may come there, either.
    near: Vec<Range<Va>>,
    /// The same with the first instructions: who names those may compute with them.
    whole: Vec<Range<Va>>,
    /// How far before the address that is meant the target of an operand may be.
    slack: u64,
    /// What the first bit of `grains` stands for.
    base: u64,
    /// A bit for each grain of addresses that may be meant by a number.
    grains: Vec<u64>,
}

impl Wanted {
    fn new<'s>(code: &ObjectCode<'_>, own: impl Iterator<Item = &'s Stretch>, sites: &[Va]) -> Wanted {
        let own: Vec<Range<Va>> = own.map(|stretch| stretch.start..stretch.end).collect();
        let near = |range: &Range<Va>| {
            let first = Len(u64::from(!sites.contains(&range.start)));
            // Zeros are padding up to the next multiple of 16, if nobody refers to them.
            let zeros = code.text_from(range.end).is_some_and(|rest| rest.first() == Some(&0));
            range.start.plus(first)..range.end.plus(Len(if zeros { 16 } else { 4 }))
        };
        let near: Vec<Range<Va>> = own.iter().map(near).collect();
        let whole = near.iter().zip(&own).map(|(near, own)| own.start..near.end).collect();
        let slack = code.isa.limits().operand_slack;
        let base = near.first().map_or(0, |range| range.start.0.saturating_sub(slack));
        let end = near.last().map_or(0, |range| range.end.0);
        let mut grains = vec![0; ((end - base) >> GRAIN) as usize / 64 + 1];
        for range in &near {
            let (from, to) = (range.start.0.saturating_sub(slack) - base, range.end.0 - base);
            for grain in from >> GRAIN..=(to - 1) >> GRAIN {
                grains[grain as usize / 64] |= 1 << (grain % 64);
            }
        }
        Wanted { isa: code.isa, got: code.got, fixed: code.fixed, own, near, whole, slack, base, grains }
    }

    /// Is it in one of the functions?
    fn has(&self, va: Va) -> bool {
        holds(&self.own, va)
    }

    /// Does it matter who refers to it?
    fn is_near(&self, va: Va) -> bool {
        holds(&self.near, va)
    }

    /// May the operand of a branch mean one of those?
    fn is_target(&self, va: u64) -> bool {
        self.may_have(va) && self.is_near(Va(va))
    }

    /// May an operand mean one of those or a first instruction, or up to so many bytes before?
    fn is_meant(&self, va: u64, before: u64) -> bool {
        self.may_have(va) && (0..=before).any(|bytes| holds(&self.whole, Va(va.wrapping_add(bytes))))
    }

    fn may_have(&self, va: u64) -> bool {
        let grain = va.wrapping_sub(self.base) >> GRAIN;
        let bits = usize::try_from(grain / 64).ok().and_then(|at| self.grains.get(at));
        bits.is_some_and(|bits| bits & 1 << (grain % 64) != 0)
    }

    /// Where in text may be somebody who refers to them by four bytes.
    fn referrers(&self, code: &ObjectCode<'_>) -> Vec<Va> {
        if self.own.is_empty() {
            return Vec::new();
        }
        // Each piece with the last byte of the one before, and the bytes in the next one of an
        // operand that begins at its end.
        let pieces = code.text.iter().flat_map(|section| {
            let starts = (0..section.data.len()).step_by(PIECE);
            starts.map(|at| {
                let from = at.saturating_sub(1);
                let data = &section.data[from..section.data.len().min(at + PIECE + 5)];
                Bytes { name: section.name, va: section.va.plus(Len(from as u64)), data }
            })
        });
        let mut pieces: Vec<Bytes<'_>> = pieces.collect();
        let found = parallel::map(
            &mut pieces,
            |piece| piece.data.len(),
            |_, part| {
                let mut found = Vec::new();
                part.iter().for_each(|piece| self.in_piece(piece, &mut found));
                found
            },
        );
        found.concat()
    }

    /// The operands in a piece of text that may refer to them.
    fn in_piece(&self, piece: &Bytes<'_>, found: &mut Vec<Va>) {
        let behind = |at: usize| piece.data.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let place = |at: usize| piece.va.plus(Len(at as u64));
        scan::distances(self.isa, piece.va, piece.data, |distance| {
            let target = distance.target.0;
            let is_branch = distance.is_branch && self.is_target(target);
            if is_branch || distance.is_operand && self.is_meant(target, self.slack) {
                found.push(place(distance.at));
            }
        });
        if !self.fixed && self.got.is_none() {
            return;
        }
        let upper = self.base & !u64::from(u32::MAX);
        for at in 0..piece.data.len() {
            let Some(word) = behind(at) else { break };
            let from_table = || self.got.is_some_and(|got| self.is_meant(self.wrap(got.0, word), 0));
            if self.fixed && self.is_meant(upper | u64::from(word), 0) || from_table() {
                found.push(place(at));
            }
        }
    }

    fn wrap(&self, base: u64, distance: u32) -> u64 {
        self.isa.wrap(Va(base).offset(i64::from(distance as i32))).0
    }
}

/// Is an address in one of these ranges, which are sorted by their starts?
fn holds(ranges: &[Range<Va>], va: Va) -> bool {
    let behind = ranges.partition_point(|range| range.start <= va);
    ranges[..behind].iter().rev().take(2).any(|range| va < range.end)
}
