//! Where do the jumps of a function go that jump through a register?
//!
//! Compilers make them for `switch` (a table of 32-bit offsets from a base, or of 64-bit pointers),
//! computed `goto` and tail calls through function pointers. A value that was stored, passed in or
//! returned as a pointer can only be one that some instruction, relocation or data word names;
//! those sets are known for the whole object. An offset from a table, added to a base, is read from
//! that table. Any other arithmetic on a code address is [`Origin::Computed`]: its targets are
//! unknown.
//!
//! In position-independent 32-bit code the base is the `_GLOBAL_OFFSET_TABLE_`, which functions
//! compute from their own address (`call __x86.get_pc_thunk.bx; add $distance,%ebx`) and often keep
//! on the stack.

use std::cell::Cell;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::decode::{Flow, Insn, Usage, is_stack, register_bit};
use crate::{Isa, Va};

/// Instructions looked at for one jump before it is given up.
const BUDGET: usize = 20_000;
/// Definitions followed through other registers.
const DEPTH: usize = 6;

/// Registers that functions give back as they were (i386 psABI, "Registers").
const SAVED: [Register; 4] = [Register::EBX, Register::EBP, Register::ESI, Register::EDI];
/// Instructions between the first restored register and a tail call.
const EPILOGUE: usize = 8;

/// Where the target of an indirect jump comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A whole pointer: loaded from memory, passed in, returned, or an address named in the code.
    Pointer,
    /// `base + table[i]` with signed 32-bit entries; the table starts at one of [`Body::bases`]
    /// plus one of these.
    Table(Vec<i64>),
    /// Something else.
    Computed,
}

/// The instructions of a function, of all of its parts, in ascending order of address.
pub struct Body {
    insns: Vec<Insn>,
    /// What each of them uses, as far as it was asked for: a search comes by most of them often.
    usages: Vec<Cell<Option<Usage>>>,
    /// Targets of direct jumps, and the jumps. Sorted.
    sources: Vec<(Va, usize)>,
    /// Indirect jumps.
    jumps: Vec<usize>,
    /// rbp points into the stack frame, at least at times.
    frame_pointer: bool,
    got: Option<Va>,
    /// Return addresses of calls, where there is a `got`. Sorted.
    returns: Vec<Va>,
}

impl Body {
    /// Prepares the questions below. `insns` in ascending order; gaps between parts are fine.
    /// `got`: as in [`ObjectCode`](crate::ObjectCode).
    #[must_use]
    pub fn new(insns: Vec<Insn>, got: Option<Va>) -> Body {
        let mut sources = Vec::new();
        let mut jumps = Vec::new();
        for (i, insn) in insns.iter().enumerate() {
            match insn.flow() {
                Flow::Jump(target) | Flow::Branch(target) | Flow::Transaction(target) => sources.push((target, i)),
                Flow::JumpIndirect => jumps.push(i),
                _ => {}
            }
        }
        let frame_pointer = insns.iter().any(sets_frame_pointer);
        sources.sort_unstable();
        let usages = vec![Cell::new(None); insns.len()];
        let calls = |insn: &&Insn| got.is_some() && matches!(insn.flow(), Flow::Call(_));
        let returns = insns.iter().filter(calls).map(Insn::next).collect();
        Body { insns, usages, sources, jumps, frame_pointer, got, returns }
    }

    /// Every address named by a `lea` or a `mov` of an immediate, and the `got`: what a table can
    /// start at.
    #[must_use]
    pub fn bases(&self) -> Vec<Va> {
        let mut bases: Vec<Va> = self
            .insns
            .iter()
            .filter(|i| is_base(&i.iced))
            .filter_map(Insn::address_candidate)
            .chain(self.got)
            .collect();
        bases.sort_unstable();
        bases.dedup();
        bases
    }

    /// All indirect jumps with the origin of their targets.
    pub fn indirect_jumps(&self) -> impl Iterator<Item = (Va, Origin)> {
        self.jumps.iter().map(|&at| (self.insns[at].va(), self.origin(at)))
    }

    fn origin(&self, at: usize) -> Origin {
        let insn = &self.insns[at];
        if !insn.jumps_through_value() {
            return Origin::Pointer;
        }
        if insn.iced.op0_kind() != OpKind::Register {
            return if self.in_frame(insn) && !self.is_tail_call(at) { Origin::Computed } else { Origin::Pointer };
        }
        let mut budget = BUDGET;
        let values = self.values(at, insn.whole(insn.iced.op0_register()), DEPTH, &mut budget);
        // A table of pointers looks as one of distances, until something is added.
        let distance = insn.isa() == Isa::X64 && !values.offsets.is_empty();
        if values.computed || distance || values.stack && !self.is_tail_call(at) {
            Origin::Computed
        } else if values.tables.is_empty() {
            Origin::Pointer
        } else {
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
            _ if is_base(insn) || self.is_got(&self.insns[at]) => values.base = true,
            // A constant: 0 from `xor %eax,%eax`.
            Mnemonic::Xor if usage.kills & register_bit(register) != 0 => {}
            Mnemonic::Mov if whole && source_is_register && whole_of(insn.op0_register()) == register => {
                values.add(self.values(at, whole_of(insn.op1_register()), depth - 1, budget));
            }
            Mnemonic::Mov if whole && source_is_memory && whole_of(insn.op0_register()) == register => {
                if self.in_frame(&self.insns[at]) {
                    values.stack = true
                } else if self.got.is_some() && self.is_in_table(at, depth, budget) {
                    values.offsets.push(self.insns[at].displacement());
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
                let sum = [
                    self.values(at, register, depth - 1, budget),
                    self.values(at, whole_of(insn.op1_register()), depth - 1, budget),
                ];
                values.sum(sum);
            }
            Mnemonic::Add if whole && source_is_memory && self.got.is_some() => {
                let mut entry = Values::default();
                self.offset(at, depth, budget, &mut entry);
                let sum = [self.values(at, register, depth - 1, budget), entry];
                values.sum(sum);
            }
            Mnemonic::Lea
                if whole
                    && insn.memory_index_scale() == 1
                    && insn.memory_displacement64() == 0
                    && insn.memory_base() != Register::None
                    && insn.memory_index() != Register::None =>
            {
                let sum = [
                    self.values(at, whole_of(insn.memory_base()), depth - 1, budget),
                    self.values(at, whole_of(insn.memory_index()), depth - 1, budget),
                ];
                values.sum(sum);
            }
            _ if matches!(self.insns[at].flow(), Flow::Call(_) | Flow::CallIndirect) => values.pointer = true,
            _ => values.computed = true,
        }
    }

    /// A load of 4 bytes: the entry of a table, if its address is a base plus something.
    fn offset(&self, at: usize, depth: usize, budget: &mut usize, values: &mut Values) {
        if self.insns[at].iced.is_ip_rel_memory_operand() {
            // The compiler knew the index; the base is that of the sum.
            values.offsets.push(0);
            return;
        }
        if self.is_in_table(at, depth, budget) {
            values.offsets.push(self.insns[at].displacement());
        } else {
            values.computed = true;
        }
    }

    /// Whether the memory operand of the instruction number `at` is relative to a base.
    fn is_in_table(&self, at: usize, depth: usize, budget: &mut usize) -> bool {
        let insn = &self.insns[at];
        [insn.iced.memory_base(), insn.iced.memory_index()]
            .iter()
            .any(|&part| part != Register::None && self.values(at, insn.whole(part), depth - 1, budget).is_base())
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
                if self.insns[before].falls_through() {
                    all.push(before);
                }
            }
        }
        if all.is_empty() {
            if start || self.jumps.is_empty() {
                values.entry = true;
            } else {
                // A `case` label: reached by the indirect jumps.
                all.clone_from(&self.jumps);
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

/// A set of possible values.
#[derive(Default)]
struct Values {
    /// An address named in an instruction.
    base: bool,
    /// Loaded as a whole from memory or returned.
    pointer: bool,
    /// Loaded from the stack frame: a value of this function.
    stack: bool,
    /// What the register held at the function's start.
    entry: bool,
    /// Entries of a table whose start has these distances to a base.
    offsets: Vec<i64>,
    /// Base plus such an entry.
    tables: Vec<i64>,
    /// Anything else.
    computed: bool,
}

impl Values {
    fn add(&mut self, other: Values) {
        self.base |= other.base;
        self.pointer |= other.pointer;
        self.stack |= other.stack;
        self.entry |= other.entry;
        self.offsets.extend(other.offsets);
        self.tables.extend(other.tables);
        self.computed |= other.computed;
    }

    /// The sum of one value of each: base and table entry, in any order, or nothing known.
    fn sum(&mut self, [a, b]: [Values; 2]) {
        match (a.is_base() && b.is_offset(), a.is_offset() && b.is_base()) {
            (true, _) => self.tables.extend(b.offsets),
            (_, true) => self.tables.extend(a.offsets),
            _ => self.computed = true,
        }
    }

    /// A base, perhaps kept on the stack meanwhile. Other values may seem possible, since calls
    /// that never return look as if they came back; they do not matter, for every base of the
    /// function is tried in the end.
    fn is_base(&self) -> bool {
        (self.base || self.stack) && self.offsets.is_empty() && self.tables.is_empty()
    }

    fn is_offset(&self) -> bool {
        !self.offsets.is_empty()
            && self.tables.is_empty()
            && !(self.base || self.pointer || self.stack || self.entry || self.computed)
    }
}
