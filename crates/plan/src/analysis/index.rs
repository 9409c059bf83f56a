//! Everything that refers to code, for a whole object: computed once, asked for each site.

mod around;
mod stays;
mod undescribed;
mod whole;

use std::cell::Cell;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use sidestep_isa::{Len, Va, sweep};

use crate::analysis::family::{Families, Family};
use crate::analysis::sweep::{Borders, Edge, How, Stretch};
use crate::object::{Bytes, ObjectCode};
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
    /// Some instruction ends an exclusive sequence.
    exclusive: bool,
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

    /// Does the unwind information know what starts here?
    pub(crate) fn has_frame(&self, va: Va) -> bool {
        self.code.frames.binary_search(&va).is_ok()
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
