//! Where the jumps of an x86 function go that jump through a register ([`crate::indirect`]).
//!
//! A jump through a register is also one to a [`thunk`](super::thunk::thunk), and a return to what
//! was just pushed.
//!
//! In position-independent 32-bit code the base is the `_GLOBAL_OFFSET_TABLE_`, which functions
//! compute from their own address (`call __x86.get_pc_thunk.bx; add $distance,%ebx`) and often keep
//! on the stack.

use std::cell::Cell;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::decode::{Insn, is_stack, register_bit};
use super::thunk::{THUNK, handed_to};
use crate::indirect::{Entries, Origin, Table};
use crate::insn::{Flow, Usage};
use crate::{Isa, Va};

/// Instructions looked at for one jump before it is given up.
const BUDGET: usize = 20_000;
/// Definitions followed through other registers.
const DEPTH: usize = 6;

/// Registers that functions give back as they were (i386 psABI, "Registers").
const SAVED: [Register; 4] = [Register::EBX, Register::EBP, Register::ESI, Register::EDI];
/// Instructions between the first restored register and a tail call.
const EPILOGUE: usize = 8;

/// Most pairs of a base and a table that are tried for one jump where neither is certain.
const PAIRS: usize = 64;
/// The instructions of a function, of all of its parts, in ascending order of address.
pub(crate) struct Body {
    insns: Vec<Insn>,
    /// What each of them uses, as far as it was asked for: a search comes by most of them often.
    usages: Vec<Cell<Option<Usage>>>,
    /// Targets of direct jumps, and the jumps. Sorted.
    sources: Vec<(Va, usize)>,
    /// Indirect jumps, and the registers of those that go through a thunk or a return.
    jumps: Vec<(usize, Option<Register>)>,
    /// [`Body::bases`].
    bases: Vec<Va>,
    /// rbp points into the stack frame, at least at times.
    frame_pointer: bool,
    got: Option<Va>,
    /// Return addresses of calls, where there is a `got`. Sorted.
    returns: Vec<Va>,
}

impl Body {
    /// Prepares the questions below. `insns` in ascending order; gaps between parts are fine.
    /// `got`: as in [`ObjectCode`](crate::ObjectCode). `thunk`: as
    /// [`thunk`](super::thunk::thunk) says of an address.
    #[must_use]
    pub fn new(insns: Vec<Insn>, got: Option<Va>, thunk: &dyn Fn(Va) -> Option<Register>) -> Body {
        let mut sources = Vec::new();
        let mut jumps = Vec::new();
        for (i, insn) in insns.iter().enumerate() {
            match insn.flow() {
                Flow::Jump(target) | Flow::Branch(target) | Flow::Transaction(target) => {
                    sources.push((target, i));
                    let leaves = insns.binary_search_by_key(&target, Insn::va).is_err();
                    jumps.extend(thunk(target).filter(|_| leaves).map(|register| (i, Some(register))));
                }
                // The inner call of a thunk, which does not return.
                Flow::Call(to) if (0..THUNK).contains(&to.since(insn.next())) => sources.push((to, i)),
                Flow::JumpIndirect => jumps.push((i, None)),
                Flow::Return => {
                    let before = i.checked_sub(1).and_then(|before| handed_to(&insns[before], insn));
                    jumps.extend(before.map(|register| (i, Some(register))));
                }
                _ => {}
            }
        }
        let frame_pointer = insns.iter().any(sets_frame_pointer);
        sources.sort_unstable();
        let usages = vec![Cell::new(None); insns.len()];
        let calls = |insn: &&Insn| got.is_some() && matches!(insn.flow(), Flow::Call(_));
        let returns = insns.iter().filter(calls).map(Insn::next).collect();
        let named = insns.iter().filter(|i| is_base(&i.iced)).filter_map(Insn::address_candidate);
        let mut bases: Vec<Va> = named.chain(got).collect();
        bases.sort_unstable();
        bases.dedup();
        Body { insns, usages, sources, jumps, bases, frame_pointer, got, returns }
    }

    /// All indirect jumps with the origin of their targets.
    pub fn indirect_jumps(&self) -> impl Iterator<Item = (Va, Origin)> {
        self.jumps.iter().map(|&(at, through)| (self.insns[at].va(), self.origin(at, through)))
    }

    fn origin(&self, at: usize, through: Option<Register>) -> Origin {
        let insn = &self.insns[at];
        if through.is_none() && !insn.jumps_through_value() {
            return Origin::Pointer;
        }
        if through.is_none() && insn.iced.op0_kind() != OpKind::Register {
            return if self.in_frame(insn) && !self.is_tail_call(at) { Origin::Computed } else { Origin::Pointer };
        }
        let mut budget = BUDGET;
        let register = insn.whole(through.unwrap_or(insn.iced.op0_register()));
        let mut values = self.values(at, register, DEPTH, &mut budget);
        // A table of pointers looks as one of distances, until something is added.
        let distance = insn.isa() == Isa::X64 && !values.entries.is_empty();
        if values.computed || distance || values.stack && !self.is_tail_call(at) {
            Origin::Computed
        } else if values.tables.is_empty() {
            Origin::Pointer
        } else {
            values.tables.sort_unstable();
            values.tables.dedup();
            Origin::Table(values.tables)
        }
    }

    /// Whether the caller's registers were just restored, in 32-bit code: then it goes to another
    /// function, and what was on the stack was an argument, as a rule. In 64-bit code arguments are
    /// in registers.
    fn is_tail_call(&self, at: usize) -> bool {
        if self.insns[at].isa() == Isa::X64 {
            return false;
        }
        let target = self.insns[at].iced.op0_register();
        let mut next = self.insns[at].va();
        for insn in self.insns[..at].iter().rev().take(EPILOGUE) {
            if insn.next() != next || insn.flow() != Flow::Next {
                return false;
            }
            match insn.iced.mnemonic() {
                Mnemonic::Leave => return true,
                Mnemonic::Pop if insn.iced.op0_register() != target => {
                    return SAVED.contains(&insn.iced.op0_register());
                }
                _ => next = insn.va(),
            }
        }
        false
    }

    /// What the `register` (a 64-bit name) may hold right before the instruction number `at`.
    fn values(&self, at: usize, register: Register, depth: usize, budget: &mut usize) -> Values {
        let mut values = Values::default();
        if depth == 0 || !register.is_gpr64() {
            values.computed = true;
            return values;
        }
        let bit = register_bit(register);
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
                let usage = self.usage(before);
                if usage.writes & bit == 0 {
                    // A call may return a pointer in the register, or leave it alone.
                    if !std::mem::replace(&mut seen[before], true) {
                        work.push(before);
                    }
                    continue;
                }
                self.definition(before, register, usage, depth, budget, &mut values);
            }
        }
        values
    }

    /// What the instruction number `at` puts into `register`, which it writes.
    fn definition(
        &self,
        at: usize,
        register: Register,
        usage: Usage,
        depth: usize,
        budget: &mut usize,
        values: &mut Values,
    ) {
        let insn = &self.insns[at].iced;
        let whole_of = |register| self.insns[at].whole(register);
        let source_is_register = insn.op_count() == 2 && insn.op1_kind() == OpKind::Register;
        let source_is_memory = insn.op_count() == 2 && insn.op1_kind() == OpKind::Memory;
        let whole = insn.op_count() == 2
            && insn.op0_kind() == OpKind::Register
            && insn.op0_register().full_register() == register;
        match insn.mnemonic() {
            _ if is_base(insn) => values.bases.extend(self.insns[at].address_candidate()),
            _ if self.is_got(&self.insns[at]) => values.bases.extend(self.got),
            // A constant: 0 from `xor %eax,%eax`.
            Mnemonic::Xor if usage.kills & register_bit(register) != 0 => {}
            Mnemonic::Mov if whole && source_is_register && whole_of(insn.op0_register()) == register => {
                values.add(self.values(at, whole_of(insn.op1_register()), depth - 1, budget));
            }
            Mnemonic::Mov if whole && source_is_memory && whole_of(insn.op0_register()) == register => {
                if self.in_frame(&self.insns[at]) {
                    values.stack = true
                } else if let Some(entry) = self.got.and_then(|_| self.table_entry(at, depth, budget)) {
                    values.entries.push(entry);
                } else {
                    values.pointer = true
                }
            }
            Mnemonic::Movsxd if whole && source_is_memory => self.offset(at, depth, budget, values),
            // `mov table(…),%eax; cltq` of unoptimised code.
            Mnemonic::Cdqe => match self.insns[..at].last().map(|i| &i.iced) {
                Some(load)
                    if load.mnemonic() == Mnemonic::Mov
                        && load.op0_kind() == OpKind::Register
                        && load.op0_register() == Register::EAX
                        && load.op1_kind() == OpKind::Memory =>
                {
                    self.offset(at - 1, depth, budget, values);
                }
                _ => values.computed = true,
            },
            Mnemonic::Add if whole && source_is_register => {
                self.sum(at, [register, whole_of(insn.op1_register())], depth, budget, values);
            }
            Mnemonic::Add if whole && source_is_memory && self.got.is_some() => {
                let mut entry = Values::default();
                self.offset(at, depth, budget, &mut entry);
                let base = self.values(at, register, depth - 1, budget);
                self.pair(at, register, &base, &entry, values);
            }
            Mnemonic::Lea
                if whole
                    && insn.memory_index_scale() == 1
                    && insn.memory_displacement64() == 0
                    && insn.memory_base() != Register::None
                    && insn.memory_index() != Register::None =>
            {
                let parts = [whole_of(insn.memory_base()), whole_of(insn.memory_index())];
                self.sum(at, parts, depth, budget, values);
            }
            _ if matches!(self.insns[at].flow(), Flow::Call(_) | Flow::CallIndirect) => values.pointer = true,
            _ => values.computed = true,
        }
    }

    /// A load of 4 bytes: the entry of a table, if its address is a base plus something.
    fn offset(&self, at: usize, depth: usize, budget: &mut usize, values: &mut Values) {
        if let Some(start) = self.insns[at].pc_target() {
            // The compiler knew the index; the base is that of the sum.
            let bases = Bases { named: vec![start], any: false };
            values.entries.push(Entry { at, register: None, distance: 0, bases });
            return;
        }
        match self.table_entry(at, depth, budget) {
            Some(entry) => values.entries.push(entry),
            None => values.computed = true,
        }
    }

    /// The memory operand of the instruction number `at`, if it is relative to a base.
    fn table_entry(&self, at: usize, depth: usize, budget: &mut usize) -> Option<Entry> {
        let insn = &self.insns[at];
        let parts = [insn.iced.memory_base(), insn.iced.memory_index()];
        let mut registers = parts.into_iter().filter(|part| *part != Register::None).map(|part| insn.whole(part));
        registers.find_map(|register| {
            let values = self.values(at, register, depth - 1, budget);
            let entry = |bases| Entry { at, register: Some(register), distance: insn.displacement(), bases };
            values.is_base().then(|| entry(values.possible()))
        })
    }

    /// The sum of two registers in front of the instruction number `at`: base and table entry, in
    /// any order, or nothing known.
    fn sum(&self, at: usize, parts: [Register; 2], depth: usize, budget: &mut usize, values: &mut Values) {
        let [a, b] = parts.map(|register| self.values(at, register, depth - 1, budget));
        match (a.is_base() && b.is_offset(), a.is_offset() && b.is_base()) {
            (true, _) => self.pair(at, parts[0], &a, &b, values),
            (_, true) => self.pair(at, parts[1], &b, &a, values),
            _ => values.computed = true,
        }
    }

    /// What the instruction number `at` makes of a base, in a register, and entries of tables.
    fn pair(&self, at: usize, register: Register, base: &Values, offset: &Values, values: &mut Values) {
        if !base.is_base() || !offset.is_offset() {
            values.computed = true;
            return;
        }
        let x64 = self.insns[at].isa() == Isa::X64;
        let bases = base.possible();
        for entry in &offset.entries {
            // In front of a table may be anything, which would be taken for its end.
            if x64 && entry.distance != 0 {
                values.computed = true;
                continue;
            }
            let start = |base: Va| self.insns[at].isa().wrap(base.offset(entry.distance));
            if entry.register == Some(register) && self.is_kept(register, entry.at, at) {
                // The table is where its base is.
                let own = self.candidates(&bases);
                values.tables.extend(own.iter().map(|base| Table {
                    base: *base,
                    start: start(*base),
                    certain: !bases.any,
                    entries: Entries::WORDS,
                }));
                continue;
            }
            let (bases, starts) = (self.candidates(&bases), self.candidates(&entry.bases));
            let certain = !base.possible().any && !entry.bases.any;
            if bases.len() * starts.len() > PAIRS {
                values.computed = true;
            }
            for base in bases.iter().take(PAIRS) {
                let pair = |from: &Va| Table { base: *base, start: start(*from), certain, entries: Entries::WORDS };
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
    fn is_kept(&self, register: Register, from: usize, to: usize) -> bool {
        let bit = register_bit(register);
        from < to
            && (from..to).all(|at| {
                let insn = &self.insns[at];
                let runs_on = insn.flow() == Flow::Next && insn.next() == self.insns[at + 1].va();
                runs_on && self.usage(at).writes & bit == 0
            })
    }

    /// `add $distance,%ebx` whose result is the `got`, if the register has the return address of
    /// some call.
    fn is_got(&self, insn: &Insn) -> bool {
        let Some(got) = self.got.filter(|_| insn.iced.mnemonic() == Mnemonic::Add) else { return false };
        let distance = insn.iced.try_immediate(1).unwrap_or(0) as i32;
        self.returns.binary_search(&insn.isa().wrap(got.offset(-i64::from(distance)))).is_ok()
    }

    /// Whether a memory operand may be a word of the function's own stack frame.
    fn in_frame(&self, insn: &Insn) -> bool {
        let base = insn.iced.memory_base();
        is_stack(base) && (insn.whole(base) == Register::RSP || self.frame_pointer)
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

/// An instruction whose result is an address named in it.
fn is_base(insn: &Instruction) -> bool {
    match insn.mnemonic() {
        Mnemonic::Lea => insn.is_ip_rel_memory_operand(),
        Mnemonic::Mov => {
            insn.op0_kind() == OpKind::Register
                && matches!(insn.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64)
        }
        _ => false,
    }
}

/// `mov %rsp,%rbp` and its like.
fn sets_frame_pointer(decoded: &Insn) -> bool {
    let insn = &decoded.iced;
    let is = |register, wanted| decoded.whole(register) == wanted;
    match insn.mnemonic() {
        Mnemonic::Enter => true,
        Mnemonic::Mov => is(insn.op0_register(), Register::RBP) && is(insn.op1_register(), Register::RSP),
        Mnemonic::Lea => is(insn.op0_register(), Register::RBP) && is(insn.memory_base(), Register::RSP),
        _ => false,
    }
}

/// What a base may be.
#[derive(Clone)]
struct Bases {
    named: Vec<Va>,
    /// Or another one that the function names.
    any: bool,
}

/// A word of a table.
struct Entry {
    /// The instruction that loads it.
    at: usize,
    /// The register that has the base there.
    register: Option<Register>,
    /// Where the table begins, from the base.
    distance: i64,
    bases: Bases,
}

/// A set of possible values.
#[derive(Default)]
struct Values {
    /// Addresses named in instructions.
    bases: Vec<Va>,
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
        self.pointer |= other.pointer;
        self.stack |= other.stack;
        self.entry |= other.entry;
        self.entries.extend(other.entries);
        self.tables.extend(other.tables);
        self.computed |= other.computed;
    }

    /// A base, perhaps kept on the stack meanwhile. Other values may seem possible, since calls
    /// that never return look as if they came back: then every base of the function is tried.
    fn is_base(&self) -> bool {
        (!self.bases.is_empty() || self.stack) && self.entries.is_empty() && self.tables.is_empty()
    }

    fn possible(&self) -> Bases {
        Bases { named: self.bases.clone(), any: self.stack || self.pointer || self.entry || self.computed }
    }

    fn is_offset(&self) -> bool {
        !self.entries.is_empty()
            && self.tables.is_empty()
            && !(!self.bases.is_empty() || self.pointer || self.stack || self.entry || self.computed)
    }
}
