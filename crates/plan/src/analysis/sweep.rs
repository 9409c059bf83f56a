//! Every byte of text, once: which stretches of code there are, and what each of them refers to.

use sidestep_isa::held::Held;
use sidestep_isa::scan::{Reference, references};
use sidestep_isa::thunk::{is_jump_by_return, is_thunk};
use sidestep_isa::{Flow, Len, Va};

use crate::analysis::boundaries::Boundaries;
use crate::analysis::discover::Piece;
use crate::analysis::family::candidates;
use crate::analysis::parallel;
use crate::object::{Extent, ObjectCode};
use crate::reason::Fault;

/// How well the borders of a stretch are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Borders {
    /// A symbol with a size, or an FDE.
    Known,
    /// From a symbol without a size to whatever comes next.
    Guessed,
    /// By walking the code (`discover`), as nothing describes it.
    Found,
    /// Bytes between functions: padding, data, and code that nothing describes and no walk has
    /// reached.
    Gap,
}

/// A function, or several that overlap, or what lies between.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    pub start: Va,
    pub end: Va,
    pub borders: Borders,
    /// Why the instructions in it are not known for certain.
    pub fault: Option<Fault>,
    /// Some jump goes through a register or a word of the stack.
    pub value_jumps: bool,
    /// Execution may run over the end.
    pub open_end: bool,
    /// Offsets of its instructions from `start`, one behind the other up to where that fails. Of a
    /// gap, none.
    pub boundaries: Boundaries,
}

impl Stretch {
    /// Its bytes.
    pub fn len(&self) -> usize {
        self.end.since(self.start) as usize
    }

    /// Where the instruction around `va` starts.
    pub fn insn_start(&self, va: Va) -> Option<Va> {
        let offset = usize::try_from(va.since(self.start)).ok()?;
        let at = if self.boundaries.get(offset) { Some(offset) } else { self.boundaries.before(offset) };
        at.map(|at| self.start.plus(Len(at as u64)))
    }

    /// The addresses of all its instructions.
    pub fn insns(&self) -> impl Iterator<Item = Va> {
        self.boundaries.iter().map(|at| self.start.plus(Len(at as u64)))
    }
}

/// How control gets from one place to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum How {
    Jump,
    Branch,
    Call,
    /// The bytes would be a branch if they were an instruction.
    Maybe,
}

/// A direct branch or call into text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Edge {
    pub target: Va,
    pub source: Va,
    pub how: How,
}

/// What the sweep found.
#[derive(Default)]
pub(crate) struct Found {
    pub edges: Vec<Edge>,
    /// Values named in instructions that are addresses in text.
    pub named: Vec<Va>,
    /// Those of them that instructions make available as values, and where no function starts that
    /// is described.
    pub labels: Vec<Va>,
    /// Those with which instructions compute others.
    pub computed: Vec<Va>,
    /// Jumps that leave their stretch, and their targets.
    pub leaving: Vec<(Va, Va)>,
    /// Some instruction ends an exclusive sequence.
    pub exclusive: bool,
}

/// Splits all text into stretches, sorted by address, without overlap or hole.
pub(crate) fn stretches(code: &ObjectCode<'_>) -> Vec<Stretch> {
    let mut extents = code.extents.clone();
    extents.sort_unstable_by_key(|e| (e.start, e.len));
    let mut all = Vec::new();
    for section in &code.text {
        let end = section.va.plus(Len(section.data.len() as u64));
        let mut known: Vec<(Va, Va)> = Vec::new();
        let mut unsized_: Vec<Va> = Vec::new();
        for Extent { start, len } in &extents {
            if *start < section.va || *start >= end {
                continue;
            }
            if len.0 == 0 {
                unsized_.push(*start);
                continue;
            }
            let extent_end = Va(start.0.saturating_add(len.0)).min(end);
            match known.last_mut() {
                Some(last) if *start < last.1 => last.1 = last.1.max(extent_end),
                _ => known.push((*start, extent_end)),
            }
        }
        unsized_.dedup();
        fill(section.va, end, &known, &unsized_, &mut all);
    }
    all
}

/// The stretches of one section.
fn fill(start: Va, end: Va, known: &[(Va, Va)], unsized_: &[Va], all: &mut Vec<Stretch>) {
    let mut at = start;
    let borders = known.iter().copied().map(Some).chain([None]);
    for next in borders {
        let (next_start, next_end) = next.unwrap_or((end, end));
        // Symbols without a size in the hole before the next known extent.
        let lo = unsized_.partition_point(|s| *s < at);
        let hi = unsized_.partition_point(|s| *s < next_start);
        let holes = &unsized_[lo..hi.max(lo)];
        for (i, &hole) in holes.iter().enumerate() {
            push(all, at, hole, Borders::Gap);
            at = holes.get(i + 1).copied().unwrap_or(next_start);
            push(all, hole, at, Borders::Guessed);
        }
        push(all, at, next_start, Borders::Gap);
        push(all, next_start, next_end, Borders::Known);
        at = next_end;
    }
}

fn push(all: &mut Vec<Stretch>, start: Va, end: Va, borders: Borders) {
    if start < end {
        let boundaries = Boundaries::default();
        all.push(Stretch { start, end, borders, fault: None, value_jumps: false, open_end: true, boundaries });
    }
}

impl Found {
    pub fn append(&mut self, mut other: Found) {
        self.edges.append(&mut other.edges);
        self.named.append(&mut other.named);
        self.labels.append(&mut other.labels);
        self.computed.append(&mut other.computed);
        self.leaving.append(&mut other.leaving);
        self.exclusive |= other.exclusive;
    }
}

/// Puts the code that was found in gaps in their place.
pub(crate) fn split(stretches: Vec<Stretch>, pieces: &[Piece]) -> Vec<Stretch> {
    let mut all = Vec::with_capacity(stretches.len() + 2 * pieces.len());
    let mut pieces = pieces.iter().peekable();
    for stretch in stretches {
        if stretch.borders != Borders::Gap {
            all.push(stretch);
            continue;
        }
        let mut at = stretch.start;
        while let Some(piece) = pieces.next_if(|piece| piece.range.start < stretch.end) {
            push(&mut all, at, piece.range.start, Borders::Gap);
            push(&mut all, piece.range.start, piece.range.end, Borders::Found);
            at = piece.range.end;
        }
        push(&mut all, at, stretch.end, Borders::Gap);
    }
    all
}

/// Decodes those stretches that `wanted` names. The edges that it finds are sorted.
pub(crate) fn sweep(
    code: &ObjectCode<'_>,
    starts: &[Va],
    stretches: &mut [Stretch],
    wanted: impl Fn(&Stretch) -> bool + Sync,
) -> Found {
    let parts = parallel::map(stretches, Stretch::len, |_, part| {
        let mut found = Found::default();
        for stretch in part.iter_mut().filter(|stretch| wanted(stretch)) {
            let Some(bytes) = code.text_at(stretch.start, stretch.end) else {
                continue;
            };
            if stretch.borders != Borders::Gap {
                linear(code, stretch, bytes, starts, &mut found);
            }
            if stretch.borders == Borders::Gap || stretch.fault.is_some() || code.isa.limits().data_in_code {
                everywhere(code, stretch.start, bytes, &mut found);
            }
        }
        found.edges.sort_unstable();
        found
    });
    let mut all = Found::default();
    parts.into_iter().for_each(|found| all.append(found));
    // Finds the sorted parts, and merges them.
    all.edges.sort();
    all
}

/// One instruction behind the other, as a compiler wrote them; checks that the result makes sense.
fn linear(code: &ObjectCode<'_>, stretch: &mut Stretch, bytes: &[u8], starts: &[Va], found: &mut Found) {
    let first_edge = found.edges.len();
    stretch.boundaries = Boundaries::new(bytes.len());
    let (mut held, mut last) = (Held::default(), None);
    for insn in sidestep_isa::sweep(code.isa, bytes, stretch.start) {
        let insn = match insn {
            Ok(insn) => insn,
            Err(error) => {
                stretch.fault = Some(error.into());
                break;
            }
        };
        let source = insn.va();
        stretch.boundaries.set(source.since(stretch.start) as usize);
        // Functions that end in nops end where those begin.
        if !insn.is_filler() {
            stretch.open_end = insn.falls_through();
        }
        let (target, how) = match insn.flow() {
            Flow::Next => (None, How::Maybe),
            Flow::Jump(target) => (Some(target), How::Jump),
            Flow::Branch(target) | Flow::Transaction(target) => (Some(target), How::Branch),
            Flow::Call(target) => (Some(target), How::Call),
            Flow::JumpIndirect => {
                stretch.value_jumps |= insn.jumps_through_value();
                (None, How::Maybe)
            }
            Flow::Return => {
                let jumps = last.is_some_and(|last| is_jump_by_return(&last, &insn));
                stretch.value_jumps |= jumps;
                if !jumps && !insn.falls_through() {
                    held.returned();
                }
                (None, How::Maybe)
            }
            _ => (None, How::Maybe),
        };
        if let Some(target) = target {
            if code.is_text(target) {
                found.edges.push(Edge { target, source, how });
                let leaves = target < stretch.start || target >= stretch.end;
                if leaves && how != How::Call {
                    stretch.value_jumps |= is_thunk(code.isa, target, |va| code.insn_at(va));
                    found.leaving.push((source, target));
                }
            }
        }
        found.exclusive |= code.isa.limits().exclusive && insn.is_exclusive_store();
        held.step(&insn, &mut found.computed);
        if code.fixed {
            found.computed.extend(insn.address_in_sum().filter(|va| code.is_text(*va)));
        }
        for va in candidates(code, &insn) {
            held.name(&insn, va);
            found.named.push(va);
            if insn.makes_address() && starts.binary_search(&va).is_err() {
                found.labels.push(va);
            }
        }
        last = Some(insn);
    }
    // Each function that starts in the stretch, and each target of its own branches, must be an
    // instruction.
    let lo = starts.partition_point(|s| *s < stretch.start);
    let hi = starts.partition_point(|s| *s < stretch.end);
    let inner = starts[lo..hi].iter().map(|s| (*s, *s));
    let branches = found.edges[first_edge..].iter().map(|e| (e.target, e.source));
    for (target, source) in inner.chain(branches) {
        if target < stretch.start || target >= stretch.end || stretch.fault.is_some() {
            continue;
        }
        let offset = target.since(stretch.start) as usize;
        let skips = code.isa.limits().skipped_prefix;
        let behind_prefix = offset > 0 && Some(bytes[offset - 1]) == skips && stretch.boundaries.get(offset - 1);
        if !stretch.boundaries.get(offset) && !behind_prefix {
            stretch.fault = Some(Fault::InsideInstruction { source_at: source, target });
        }
    }
}

/// Everything that would be a direct branch at any offset: a superset, for bytes of which it is not
/// known whether and where they are code.
fn everywhere(code: &ObjectCode<'_>, start: Va, bytes: &[u8], found: &mut Found) {
    references(code, start, bytes, &mut |reference| match reference {
        Reference::Branch { source, target } if code.is_text(target) => {
            found.edges.push(Edge { target, source, how: How::Maybe });
        }
        Reference::Names(va) if code.is_text(va) => found.named.push(va),
        // A label, or the start of a function.
        Reference::Sum(va) if code.is_text(va) => {
            found.labels.push(va);
            found.computed.push(va);
        }
        _ => {}
    });
}
