//! Where the jumps of an A64 function go that jump through a register ([`crate::indirect`]).
//!
//! Tables of compilers hold distances in words from a label, of 1, 2 or 4 bytes:
//!
//! ```text
//! GCC                                LLVM
//! adrp x0, table                     adrp x8, table
//! add  x0, x0, #:lo12:table          add  x8, x8, #:lo12:table
//! ldrb w0, [x0, w1, uxtw]            adr  x9, label
//! adr  x1, label                     ldrb w10, [x8, x0]
//! add  x0, x1, w0, sxtb #2           add  x9, x9, x10, lsl #2
//! br   x0                            br   x9
//! ```
//!
//! or distances of 4 bytes from the table itself (`ldrsw x10, [x8, x0, lsl #2]; add x8, x8, x10`).
//! A jump through a register is also one to a [`thunk`](super::thunk::thunk).

use std::cell::Cell;

use super::class::Class;
use super::decode::Insn;
use super::pages::Pages;
use super::{FP, SP};
use crate::indirect::{Entries, Origin, Table};
use crate::insn::{Flow, Usage};
use crate::{Len, Va};

/// Instructions looked at for one jump before it is given up.
const BUDGET: usize = 20_000;
/// Definitions followed through other registers.
const DEPTH: usize = 6;
/// Most pairs of a base and a table that are tried for one jump where neither is certain.
const PAIRS: usize = 64;

/// The instructions of a function, of all of its parts, in ascending order of address.
pub(crate) struct Body {
    insns: Vec<Insn>,
    /// What each of them uses, as far as it was asked for.
    usages: Vec<Cell<Option<Usage>>>,
    /// Targets of direct jumps, and the jumps. Sorted.
    sources: Vec<(Va, usize)>,
    /// Indirect jumps, and their registers.
    jumps: Vec<(usize, u8)>,
    /// Addresses that the function names.
    bases: Vec<Va>,
}

impl Body {
    /// Prepares the questions below. `insns` in ascending order; gaps between parts are fine.
    /// `thunk`: as [`thunk`](super::thunk::thunk) says of an address.
    #[must_use]
    pub fn new(insns: Vec<Insn>, thunk: &dyn Fn(Va) -> Option<u8>) -> Body {
        let (mut sources, mut jumps, mut bases) = (Vec::new(), Vec::new(), Vec::new());
        let mut pages = Pages::default();
        for (i, insn) in insns.iter().enumerate() {
            bases.extend(pages.step(insn));
            match insn.flow() {
                Flow::Jump(target) | Flow::Branch(target) => {
                    sources.push((target, i));
                    let leaves = insns.binary_search_by_key(&target, Insn::va).is_err();
                    jumps.extend(thunk(target).filter(|_| leaves).map(|register| (i, register)));
                }
                Flow::JumpIndirect => jumps.push((i, insn.rn())),
                _ => {}
            }
        }
        sources.sort_unstable();
        bases.sort_unstable();
        bases.dedup();
        let usages = vec![Cell::new(None); insns.len()];
        Body { insns, usages, sources, jumps, bases }
    }

    /// All indirect jumps with the origin of their targets.
    pub fn indirect_jumps(&self) -> impl Iterator<Item = (Va, Origin)> {
        self.jumps.iter().map(|&(at, register)| (self.insns[at].va(), self.origin(at, register)))
    }

    fn origin(&self, at: usize, register: u8) -> Origin {
        let mut budget = BUDGET;
        let mut values = self.values(at, register, DEPTH, &mut budget);
        let unknown = values.computed || values.stack || !values.entries.is_empty() || !values.pages.is_empty();
        if unknown {
            Origin::Computed
        } else if values.tables.is_empty() {
            Origin::Pointer
        } else {
            values.tables.sort_unstable();
            values.tables.dedup();
            Origin::Table(values.tables)
        }
    }

    /// What a register may hold right before the instruction number `at`.
    fn values(&self, at: usize, register: u8, depth: usize, budget: &mut usize) -> Values {
        let mut values = Values::default();
        // 31 is the zero register or the stack pointer.
        if depth == 0 || register >= SP {
            values.computed = true;
            return values;
        }
        let mut seen = vec![false; self.insns.len()];
        seen[at] = true;
        let mut work = vec![at];
        let mut predecessors = Vec::new();
        while let Some(at) = work.pop() {
            self.predecessors(at, &mut predecessors, &mut values);
            for before in predecessors.drain(..) {
                if *budget == 0 {
                    values.computed = true;
                    return values;
                }
                *budget -= 1;
                if self.usage(before).writes >> register & 1 == 1 {
                    self.definition(before, register, depth, budget, &mut values);
                    continue;
                }
                // A call may return a pointer in the register, or leave it alone.
                let calls = matches!(self.insns[before].flow(), Flow::Call(_) | Flow::CallIndirect);
                values.pointer |= calls && register == 0;
                if !std::mem::replace(&mut seen[before], true) {
                    work.push(before);
                }
            }
        }
        values
    }

    /// What the instruction number `at` puts into a register, which it writes.
    fn definition(&self, at: usize, register: u8, depth: usize, budget: &mut usize, values: &mut Values) {
        let insn = &self.insns[at];
        // The value of a register that it reads.
        let mut of = |register| self.values(at, register, depth - 1, budget);
        if let Some((from, _)) = insn.copied().filter(|(_, to)| *to == register) {
            let mut copied = of(from);
            if insn.class() == Class::AddImmediate && copied.is_page() {
                // The address is the start of the page.
                copied.bases = std::mem::take(&mut copied.pages);
            }
            return values.add(copied);
        }
        match insn.class() {
            Class::Adr => values.bases.extend(insn.pc_target()),
            Class::Adrp => values.pages.extend(insn.pc_target()),
            // add Xd, Xn, #imm
            Class::AddImmediate if insn.word() >> 29 == 0b100 => {
                let pages = of(insn.rn());
                values.computed |= !pages.is_page();
                let low = Len(insn.immediate() as u64);
                values.bases.extend(pages.pages.iter().map(|page| page.plus(low)));
            }
            Class::ConditionalSelect if insn.is_wide() && insn.bits(30, 30) == 0 && insn.bits(10, 10) == 0 => {
                values.add(of(insn.rn()));
                values.add(of(insn.rm()));
            }
            // autia and its like of a pointer.
            Class::Authenticate => values.add(of(register)),
            Class::LoadLiteral if insn.bits(31, 30) == 1 => values.pointer = true,
            Class::Pair if insn.is_wide() => self.load(insn, register, values),
            Class::Single if insn.bits(31, 30) == 3 => self.load(insn, register, values),
            Class::Single => match self.table_entry(at, depth, budget) {
                Some(entry) => values.entries.push(entry),
                None => values.computed = true,
            },
            Class::AddShifted | Class::AddExtended if insn.word() >> 29 == 0b100 => {
                self.sum(at, depth, budget, values);
            }
            _ => values.computed = true,
        }
    }

    /// A load of 8 bytes.
    fn load(&self, insn: &Insn, register: u8, values: &mut Values) {
        // A base that is written back is a computed address.
        let is_base = insn.rn() == register && insn.writes_base();
        match insn.memory_base() {
            _ if is_base => values.computed = true,
            Some(SP | FP) => values.stack = true,
            _ => values.pointer = true,
        }
    }

    /// The memory operand of the instruction number `at`, if it is a table with an index.
    fn table_entry(&self, at: usize, depth: usize, budget: &mut usize) -> Option<Entry> {
        let insn = &self.insns[at];
        let (size, opc) = (insn.bits(31, 30), insn.bits(23, 22));
        if insn.access().is_some() || insn.is_store() {
            return None;
        }
        // The index counts entries.
        let scaled = insn.bits(12, 12) == 1;
        if !scaled && size != 0 {
            return None;
        }
        let values = self.values(at, insn.rn(), depth - 1, budget);
        let extended = match opc {
            1 => Extended::Zeros,
            2 => Extended::Sign64,
            _ => Extended::Sign32,
        };
        let entry = |bases| Entry { at, register: insn.rn(), bytes: 1 << size, extended, bases };
        values.is_base().then(|| entry(values.possible()))
    }

    /// The sum of a base and a table entry, or nothing known.
    fn sum(&self, at: usize, depth: usize, budget: &mut usize, values: &mut Values) {
        let insn = &self.insns[at];
        // As in AddExtended: which bits of the second register count, and the shift.
        let (option, shift) = match insn.class() {
            Class::AddExtended => (insn.bits(15, 13), insn.bits(12, 10)),
            // Not lsr and asr.
            _ if insn.bits(23, 22) != 0 => return values.computed = true,
            _ => (0b011, insn.bits(15, 10)),
        };
        let [first, second] = [insn.rn(), insn.rm()].map(|register| self.values(at, register, depth - 1, budget));
        if first.is_base() && second.is_offset() {
            self.pair(at, insn.rn(), &first, &second, (option, shift), values);
        } else if first.is_offset() && second.is_base() && (option, shift) == (0b011, 0) {
            self.pair(at, insn.rm(), &second, &first, (option, shift), values);
        } else {
            values.computed = true;
        }
    }

    /// What the instruction number `at` makes of a base, in a register, and entries of tables.
    fn pair(&self, at: usize, register: u8, base: &Values, offset: &Values, how: (u32, u32), values: &mut Values) {
        let bases = base.possible();
        for entry in &offset.entries {
            let Some(signed) = entry.sign(how.0).filter(|_| how.1 <= 4) else {
                values.computed = true;
                continue;
            };
            let entries = Entries { bytes: entry.bytes, signed, shift: how.1 as u8 };
            if entry.register == register && self.is_kept(register, entry.at, at) {
                // The table is where its base is.
                let certain = !bases.any;
                let own = self.candidates(&bases);
                values.tables.extend(own.iter().map(|base| Table { base: *base, start: *base, certain, entries }));
                continue;
            }
            let (bases, starts) = (self.candidates(&bases), self.candidates(&entry.bases));
            let certain = !base.possible().any && !entry.bases.any;
            if bases.len() * starts.len() > PAIRS {
                values.computed = true;
            }
            for base in bases.iter().take(PAIRS) {
                let pair = |start: &Va| Table { base: *base, start: *start, certain, entries };
                values.tables.extend(starts.iter().take(PAIRS).map(pair));
            }
        }
    }

    /// All bases that may be meant.
    fn candidates(&self, bases: &Bases) -> Vec<Va> {
        let others = if bases.any { &self.bases[..] } else { &[] };
        let mut all: Vec<Va> = bases.named.iter().chain(others).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether a register is the same in front of two instructions, of which the second is behind
    /// the first on a straight line.
    fn is_kept(&self, register: u8, from: usize, to: usize) -> bool {
        from < to
            && (from..to).all(|at| {
                let insn = &self.insns[at];
                let runs_on = insn.flow() == Flow::Next && insn.next() == self.insns[at + 1].va();
                runs_on && self.usage(at).writes >> register & 1 == 0
            })
    }

    fn usage(&self, at: usize) -> Usage {
        self.usages[at].get().unwrap_or_else(|| {
            let usage = self.insns[at].usage();
            self.usages[at].set(Some(usage));
            usage
        })
    }

    /// Fills `all` with the instructions that may run right before the instruction number `at`.
    fn predecessors(&self, at: usize, all: &mut Vec<usize>, values: &mut Values) {
        let va = self.insns[at].va();
        let first = self.sources.partition_point(|(target, _)| *target < va);
        all.extend(self.sources[first..].iter().take_while(|(target, _)| *target == va).map(|(_, jump)| *jump));
        let mut start = true;
        if let Some(before) = at.checked_sub(1) {
            if self.insns[before].next() == va {
                start = false;
                if self.insns[before].flow().falls_through() {
                    all.push(before);
                }
            }
        }
        if all.is_empty() {
            if start || self.jumps.is_empty() {
                values.entry = true;
            } else {
                // A `case` label: reached by the indirect jumps.
                all.extend(self.jumps.iter().map(|(jump, _)| *jump));
            }
        }
    }
}

/// What a base may be.
#[derive(Clone)]
struct Bases {
    named: Vec<Va>,
    /// Or another one that the function names.
    any: bool,
}

/// How a load fills the rest of its register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extended {
    Zeros,
    /// To 32 bits, with zeros above.
    Sign32,
    Sign64,
}

/// A word of a table.
struct Entry {
    /// The instruction that loads it.
    at: usize,
    /// The register that has the base there.
    register: u8,
    bytes: u8,
    extended: Extended,
    bases: Bases,
}

impl Entry {
    /// Whether a sum takes it as a number with a sign. `option`: how the sum extends it (section
    /// C6.2, "ADD (extended register)"). None: neither.
    fn sign(&self, option: u32) -> Option<bool> {
        // uxtx, sxtx and no extension at all; of 4 bytes and less with zeros above, uxtw as well.
        let whole = matches!(option, 0b011 | 0b111);
        let narrow = |log: u32| self.bytes == 1 << log;
        match self.extended {
            Extended::Sign64 => (whole || option == 0b110).then_some(true),
            Extended::Sign32 => (option == 0b110).then_some(true),
            Extended::Zeros => match option {
                0b000..=0b010 if self.bytes <= 1 << option => Some(false),
                0b100..=0b110 if narrow(option & 3) => Some(true),
                // Shorter ones have no sign there.
                0b101 | 0b110 if self.bytes < 1 << (option & 3) => Some(false),
                _ => whole.then_some(false),
            },
        }
    }
}

/// A set of possible values.
#[derive(Default)]
struct Values {
    /// Addresses named in instructions.
    bases: Vec<Va>,
    /// Addresses of pages.
    pages: Vec<Va>,
    /// Loaded as a whole from memory or returned.
    pointer: bool,
    /// Loaded from the stack frame: a value of this function.
    stack: bool,
    /// What the register held at the function's start.
    entry: bool,
    /// Entries of tables.
    entries: Vec<Entry>,
    /// Base plus such an entry.
    tables: Vec<Table>,
    /// Anything else.
    computed: bool,
}

impl Values {
    fn add(&mut self, other: Values) {
        self.bases.extend(other.bases);
        self.pages.extend(other.pages);
        self.pointer |= other.pointer;
        self.stack |= other.stack;
        self.entry |= other.entry;
        self.entries.extend(other.entries);
        self.tables.extend(other.tables);
        self.computed |= other.computed;
    }

    fn has_numbers(&self) -> bool {
        !(self.entries.is_empty() && self.tables.is_empty() && self.pages.is_empty())
    }

    /// A base, perhaps kept on the stack meanwhile. Other values may seem possible, since calls
    /// that never return look as if they came back: then every base of the function is tried.
    fn is_base(&self) -> bool {
        (!self.bases.is_empty() || self.stack) && !self.has_numbers()
    }

    fn possible(&self) -> Bases {
        Bases { named: self.bases.clone(), any: self.stack || self.pointer || self.entry || self.computed }
    }

    /// Whether it is some values that are none of those that have a name here.
    fn is_other(&self) -> bool {
        self.pointer || self.stack || self.entry || self.computed || !self.bases.is_empty() || !self.tables.is_empty()
    }

    fn is_page(&self) -> bool {
        !self.pages.is_empty() && self.entries.is_empty() && !self.is_other()
    }

    fn is_offset(&self) -> bool {
        !self.entries.is_empty() && self.pages.is_empty() && !self.is_other()
    }
}
