//! Everything that refers to code, for a whole object: computed once, asked for each site.

mod around;
mod whole;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use sidestep_isa::{Flow, Insn, sweep};
use sidestep_isa::{Len, Va};

use crate::analysis::family::{Families, Family};
use crate::analysis::sweep::{Borders, Edge, How, Stretch};
use crate::object::{Bytes, Extent, ObjectCode, Rewritten};
use crate::reason::Reason;

/// Whether nobody waits for the result any more: then it may be anything.
pub type IsOver<'s> = &'s dyn Fn() -> bool;

/// An object's code, indexed: where functions are, and all places that control or pointers can lead
/// to.
///
/// Building it decodes all text once. It can be shared between threads.
///
/// ```
/// use sidestep_isa::{Isa, Len, Va};
/// use sidestep_plan::object::{Bytes, Extent, ObjectCode};
/// use sidestep_plan::{Index, Technique, plan};
/// let text = [0xb8, 1, 0, 0, 0, 0xc3]; // mov $1,%eax; ret
/// let index = Index::new(ObjectCode {
///     text: vec![Bytes { name: ".text", va: Va(0x1000), data: &text }],
///     extents: vec![Extent { start: Va(0x1000), len: Len(6) }],
///     ..ObjectCode::new(Isa::X64)
/// });
/// assert_eq!(plan(&index, Va(0x1000), false)?.technique, Technique::Jump);
/// # Ok::<(), sidestep_plan::Refusal>(())
/// ```
pub struct Index<'a> {
    pub(crate) code: ObjectCode<'a>,
    found: Arc<Analysis>,
    /// Starts of functions whose computed jumps leave them.
    left: Vec<Va>,
}

/// What was found out about an object's code: an [`Index`] without the bytes, to be kept for later
/// ones.
pub struct Analysis {
    stretches: Vec<Stretch>,
    families: Families,
    /// Where the jump tables of all functions may lead: sorted.
    table_targets: Vec<Va>,
    /// Sorted by target.
    edges: Vec<Edge>,
    /// Starts of all extents, sorted.
    starts: Vec<Va>,
    /// Symbols and starts of extents, sorted.
    labels: Vec<Va>,
    /// Sorted.
    landing_pads: Vec<Va>,
    /// Addresses in text that some instruction, relocation or data word names, sorted.
    named: Vec<Va>,
    /// Padding between functions that nobody runs into or refers to, sorted: looked for when it is
    /// asked for.
    holes: OnceLock<Vec<Range<Va>>>,
    /// Found when they are asked for.
    exclusive_stores: OnceLock<Vec<Va>>,
}

impl<'a> Index<'a> {
    /// Indexes an object.
    #[must_use]
    pub fn new(code: ObjectCode<'a>) -> Index<'a> {
        Index::build(code, &|| false)
    }

    /// The same, which takes half a minute for the largest programs. None if `is_over` says in
    /// between that nobody waits for it.
    ///
    /// ```
    /// use sidestep_plan::Index;
    /// use sidestep_plan::object::ObjectCode;
    /// assert!(Index::unless(ObjectCode::new(Default::default()), &|| true).is_none());
    /// ```
    #[must_use]
    pub fn unless(code: ObjectCode<'a>, is_over: IsOver<'_>) -> Option<Index<'a>> {
        // Once over, it stays so.
        let was_over = Cell::new(false);
        let is_over = || {
            was_over.set(was_over.get() || is_over());
            was_over.get()
        };
        if is_over() {
            return None;
        }
        let index = Index::build(code, &is_over);
        (!is_over()).then_some(index)
    }

    fn build(mut code: ObjectCode<'a>, is_over: IsOver<'_>) -> Index<'a> {
        code.text.sort_by_key(|section| section.va);
        let found = Arc::new(Analysis::new(&code, is_over));
        Index { code, found, left: Vec::new() }
    }

    /// Indexes the functions around some addresses: enough to plan sites there, as far as the
    /// object describes them ([`Index::is_described`]), in a small part of the time. The whole
    /// index gives the same plan, or knows a better technique. Of other addresses nothing is known.
    #[must_use]
    pub fn around(mut code: ObjectCode<'a>, sites: &[Va]) -> Index<'a> {
        code.text.sort_by_key(|section| section.va);
        let found = Arc::new(Analysis::around(&code, sites));
        Index { code, found, left: Vec::new() }
    }

    /// Indexes an object that was indexed before: `found` is what [`Index::analysis`] said of the
    /// same code.
    #[must_use]
    pub fn again(mut code: ObjectCode<'a>, found: Arc<Analysis>) -> Index<'a> {
        code.text.sort_by_key(|section| section.va);
        Index { code, found, left: Vec::new() }
    }

    /// Whether the object describes the function around an address, and nothing of which it is not
    /// known whether it is code may lead there.
    #[must_use]
    pub fn is_described(&self, va: Va) -> bool {
        let certain = |stretch: &Stretch| self.edges_to(stretch.start, stretch.end).iter().all(|e| e.how != How::Maybe);
        self.stretch(va).is_some_and(|(_, stretch)| stretch.borders == Borders::Known && certain(stretch))
    }

    /// What was found out.
    #[must_use]
    pub fn analysis(&self) -> Arc<Analysis> {
        Arc::clone(&self.found)
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
        if !self.code.isa.limits().exclusive || self.exclusive_stores().is_empty() {
            return None;
        }
        let (mut seen, mut todo) = (BTreeSet::new(), vec![insn.va()]);
        while let Some(va) = todo.pop() {
            let Some(insn) = self.code.insn_at(va).filter(|_| seen.len() < MOST && seen.insert(va)) else { continue };
            if insn.is_exclusive_store() {
                // What ends the sequence without a store is of no use here.
                if self.exclusive_stores().binary_search(&va).is_ok() {
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

    /// All stores that end exclusive sequences, sorted.
    fn exclusive_stores(&self) -> &[Va] {
        self.found.exclusive_stores.get_or_init(|| {
            let words = |stretch: &Stretch| {
                let bytes = self.code.text_at(stretch.start, stretch.end).unwrap_or_default();
                sweep(self.code.isa, bytes, stretch.start)
                    .map_while(Result::ok)
                    .filter(|insn| insn.is_exclusive_store() && insn.may_fault())
                    .map(|insn| insn.va())
                    .collect::<Vec<_>>()
            };
            self.found.stretches.iter().flat_map(words).collect()
        })
    }

    /// Whether somebody is known to jump or call to an address from `from` up to, not including,
    /// `to`, or a function starts there. (Exceptions, and pointers to it, are rarely followed.)
    pub(crate) fn is_frequented(&self, from: Va, to: Va) -> bool {
        self.edges_to(from, to).iter().any(|edge| edge.how != How::Maybe)
            || first(&self.found.labels, from, to).is_some()
    }

    /// The object that was indexed.
    #[must_use]
    pub fn code(&self) -> &ObjectCode<'a> {
        &self.code
    }

    /// The stretch that holds an address, and its number.
    pub(crate) fn stretch(&self, va: Va) -> Option<(usize, &Stretch)> {
        let number = number_of(&self.found.stretches, va)?;
        Some((number, &self.found.stretches[number]))
    }

    /// All stretches, by address.
    pub(crate) fn stretches(&self) -> &[Stretch] {
        &self.found.stretches
    }

    /// The functions, and parts of such, that start in a stretch.
    pub(crate) fn starts_in(&self, stretch: &Stretch) -> &[Va] {
        let lo = self.found.starts.partition_point(|s| *s < stretch.start);
        let hi = self.found.starts.partition_point(|s| *s < stretch.end);
        &self.found.starts[lo..hi.max(lo)]
    }

    /// Whether tables of other functions may lead into a stretch: nobody calls it, and it has no
    /// name, as parts that compilers move away have none.
    fn is_led_to(&self, stretch: &Stretch) -> bool {
        let start = stretch.start;
        let nameless = stretch.borders == Borders::Found || self.is_nameless(start);
        nameless && self.edges_to(start, start.plus(Len(1))).iter().all(|edge| edge.how != How::Call)
    }

    /// Whether a table of another function leads into what starts here, and nothing else leads to
    /// its start: a part of that function.
    pub(crate) fn is_led_part(&self, va: Va) -> bool {
        let Some((_, stretch)) = self.stretch(va).filter(|(_, stretch)| stretch.start == va) else { return false };
        let alone = || !self.is_named(va) && self.edges_to(va, va.plus(Len(1))).is_empty();
        self.is_led_to(stretch) && alone() && first(&self.found.table_targets, va, stretch.end).is_some()
    }

    /// Whether what starts here is the rest of a function, which nobody calls: it has no name, and
    /// there is a frame already, or a conditional branch from elsewhere leads there, which
    /// compilers make no tail calls of.
    pub(crate) fn is_part(&self, va: Va) -> bool {
        let edges = self.edges_to(va, va.plus(Len(1)));
        let next = self.found.starts.get(self.found.starts.partition_point(|start| *start <= va));
        let own = |source| source >= va && next.is_none_or(|next| source < *next);
        let framed = self.code.parts.binary_search(&va).is_ok();
        let branched = || {
            let from_elsewhere = edges.iter().any(|edge| edge.how == How::Branch && !own(edge.source));
            from_elsewhere && self.code.nameless.binary_search(&va).is_ok() && !self.is_named(va)
        };
        (framed || branched()) && edges.iter().all(|edge| edge.how != How::Call)
    }

    /// Whether what starts here has no function's name, and neither the kernel nor the loader
    /// begins there: unwind information alone knows it.
    pub(crate) fn is_nameless(&self, va: Va) -> bool {
        self.code.nameless.binary_search(&va).is_ok() && !self.code.beginnings.contains(&va)
    }

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

    /// What is known of the indirect jumps of a stretch and of those that belong to it; `None`:
    /// there are none of concern.
    pub(crate) fn family(&self, stretch: usize) -> Option<&Family> {
        self.found.families.of_stretch(stretch)
    }

    /// Whether two stretches, given by their numbers, are parts of one function.
    pub(crate) fn same_family(&self, a: usize, b: usize) -> bool {
        self.found.families.same(a, b)
    }

    /// Whether an exception of the instruction at an address lands at a landing pad.
    pub(crate) fn is_protected(&self, va: Va) -> bool {
        let extents = &self.code.protected;
        let behind = extents.partition_point(|extent| extent.start <= va);
        // They follow each other, but parts of functions may be described twice.
        extents[..behind].iter().rev().take(4).any(|extent| va < extent.start.plus(extent.len))
    }

    /// Whether something that is no branch names an instruction of the function around a stretch,
    /// other than its first: a handler of a signal may go on there.
    pub(crate) fn has_inner_labels(&self, stretch: &Stretch) -> bool {
        let own = self.stretch(stretch.start).map_or(&[][..], |(number, _)| self.found.families.members(number));
        let parts = own.iter().map(|number| &self.found.stretches[*number]).chain([stretch]);
        let is_code = |own: &Stretch, va: Va| own.boundaries.get(va.since(own.start) as usize) && !self.is_start(va);
        let labels = |own: &Stretch| {
            let (from, to) = (own.start, own.end);
            let mut all = between(&self.found.named, from, to).iter().chain(between(&self.found.labels, from, to));
            all.any(|va| is_code(own, *va))
        };
        parts.into_iter().any(labels)
    }

    /// Where exceptions land between two addresses.
    pub(crate) fn landing_pads(&self, from: Va, to: Va) -> &[Va] {
        between(&self.found.landing_pads, from, to)
    }

    /// Addresses inside a stretch and its family that some instruction, relocation or data word
    /// names, and where no function starts.
    pub(crate) fn inner_names(&self, stretch: usize) -> Vec<Va> {
        let own = self.found.families.members(stretch).iter().map(|number| &self.found.stretches[*number]);
        let names = own.flat_map(|own| between(&self.found.named, own.start, own.end).iter().map(move |va| (own, *va)));
        let is_code = |own: &Stretch, va: Va| own.boundaries.get(va.since(own.start) as usize);
        names.filter(|(own, va)| is_code(own, *va) && !self.is_start(*va)).map(|(_, va)| va).collect()
    }

    /// The words of a table, as addresses of code, up to the first that is none.
    pub(crate) fn pointers_at(&self, table: Va) -> impl Iterator<Item = Va> {
        let word = self.code.isa.word() as usize;
        let bytes = self.code.bytes_at(table).unwrap_or_default();
        let value = |bytes: &[u8]| Va(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)));
        bytes.chunks_exact(word).map(value).take_while(|va| self.code.is_text(*va))
    }

    /// Whether an instruction of a stretch's family names an address of the family.
    pub(crate) fn names_itself(&self, stretch: usize) -> bool {
        let own = self.found.families.members(stretch).iter().map(|number| &self.found.stretches[*number]);
        self.family(stretch).is_some_and(|family| own.into_iter().any(|own| family.names(own.start, own.end)))
    }

    /// Whether nothing but nops lies between two addresses, of which the first lies in a gap.
    pub(crate) fn is_padding(&self, from: Va, to: Va) -> bool {
        let bytes = self.code.text_at(from, to).unwrap_or_default();
        !bytes.is_empty() && sweep(self.code.isa, bytes, from).all(|insn| insn.is_ok_and(|insn| insn.is_nop()))
    }

    /// Whether the unwind information says that the stack is not as a call leaves it where this
    /// starts.
    pub(crate) fn has_odd_frame(&self, va: Va) -> bool {
        // The description of a signal's return begins in front of its first instruction.
        [va, va.offset(-1)].iter().any(|start| self.code.odd_frames.binary_search(start).is_ok())
    }

    /// Whether a symbol is at the address.
    pub(crate) fn has_symbol(&self, va: Va) -> bool {
        self.found.labels.binary_search(&va).is_ok()
    }

    /// Whether a function, or a part of one, starts here.
    pub(crate) fn is_start(&self, va: Va) -> bool {
        self.found.starts.binary_search(&va).is_ok()
    }

    /// The direct branches and calls to addresses from `from` up to, not including, `to`.
    pub(crate) fn edges_to(&self, from: Va, to: Va) -> &[Edge] {
        let lo = self.found.edges.partition_point(|e| e.target < from);
        let hi = self.found.edges.partition_point(|e| e.target < to);
        &self.found.edges[lo..hi.max(lo)]
    }

    /// Whether a jump of the function itself leads back to `va`.
    pub(crate) fn is_loop_head(&self, va: Va) -> bool {
        let Some((own, _)) = self.stretch(va) else {
            return false;
        };
        self.edges_to(va, Va(va.0 + 1)).iter().any(|edge| {
            matches!(edge.how, How::Jump | How::Branch)
                && self.stretch(edge.source).is_some_and(|(other, _)| self.found.families.same(own, other))
        })
    }

    /// Whether some instruction, relocation or data word names the address.
    pub(crate) fn is_named(&self, va: Va) -> bool {
        self.found.named.binary_search(&va).is_ok()
    }

    /// It is known of the function that starts here, though not by its code, that jumps of it to
    /// computed addresses leave it.
    pub fn computed_jumps_leave(&mut self, function: Va) {
        self.left.push(function);
    }

    /// Who may jump to an address from `from` up to, not including, `to`.
    /// Complete but for indirect jumps to computed addresses: see [`Index::control_flow_known`].
    pub(crate) fn arrival(&self, from: Va, to: Va) -> Option<Reason> {
        if let Some(&Edge { target, source: source_at, how }) = self.edges_to(from, to).first() {
            return Some(match how {
                How::Call => Reason::Call { source_at, target },
                How::Maybe => Reason::MaybeJump { source_at, target },
                How::Jump | How::Branch if source_at > target => Reason::JumpBack { source_at, target },
                How::Jump | How::Branch => Reason::Jump { source_at, target },
            });
        }
        if let Some(at) = first(&self.found.labels, from, to) {
            return Some(Reason::Symbol { at });
        }
        if let Some(at) = first(&self.found.landing_pads, from, to) {
            return Some(Reason::LandingPad { at });
        }
        first(&self.found.named, from, to).map(|at| Reason::Pointer { at })
    }

    /// Whether all jumps of the function around `va` are known, and none goes through a table to an
    /// address after `from` and before `to`. If not, why.
    pub(crate) fn control_flow_known(&self, from: Va, to: Va) -> Result<(), Reason> {
        let Some((number, stretch)) = self.stretch(from) else {
            return Err(Reason::OutsideText { at: from });
        };
        match stretch.borders {
            Borders::Known | Borders::Found => {}
            Borders::Guessed => {
                return Err(Reason::EndNotKnown);
            }
            Borders::Gap => {
                return Err(Reason::NotCovered { at: from });
            }
        }
        if self.is_led_to(stretch) {
            if let Some(target) = first(&self.found.table_targets, Va(from.0 + 1), to) {
                return Err(Reason::JumpTable { target });
            }
        }
        let Some(family) = self.found.families.of_stretch(number) else {
            return Ok(());
        };
        let leaves = stretch.fault.is_none() && self.left.contains(&stretch.start);
        if let Some(unknown) = family.unknown.filter(|_| !leaves) {
            return Err(unknown.into());
        }
        match first(&family.targets, Va(from.0 + 1), to) {
            Some(target) => Err(Reason::JumpTable { target }),
            None => Ok(()),
        }
    }
}

/// The 64-bit words of a section that point into text. At every fourth byte: assembly code does not
/// always align.
fn words(section: &Bytes<'_>, code: &ObjectCode<'_>, named: &mut Vec<Va>) {
    let skip = (section.va.0.wrapping_neg() & 3) as usize;
    let Some((lo, hi)) = code.text.first().zip(code.text.last()) else {
        return;
    };
    let range = lo.va.0..hi.va.plus(Len(hi.data.len() as u64)).0;
    let data = section.data.get(skip..).unwrap_or_default();
    for at in (0..data.len().saturating_sub(7)).step_by(4) {
        let word = data.get(at..at + 8).and_then(|w| w.try_into().ok()).map_or(0, u64::from_le_bytes);
        if range.contains(&word) && code.is_text(Va(word)) {
            named.push(Va(word));
        }
    }
}

pub(crate) fn number_of(stretches: &[Stretch], va: Va) -> Option<usize> {
    let number = stretches.partition_point(|s| s.start <= va).checked_sub(1)?;
    (va < stretches[number].end).then_some(number)
}

fn between(sorted: &[Va], from: Va, to: Va) -> &[Va] {
    let lo = sorted.partition_point(|va| *va < from);
    let hi = sorted.partition_point(|va| *va < to);
    &sorted[lo..hi.max(lo)]
}

fn first(sorted: &[Va], from: Va, to: Va) -> Option<Va> {
    sorted.get(sorted.partition_point(|v| *v < from)).copied().filter(|v| *v < to)
}

fn sorted(mut all: Vec<Va>) -> Vec<Va> {
    all.sort_unstable();
    all.dedup();
    all
}
