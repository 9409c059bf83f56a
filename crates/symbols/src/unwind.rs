//! How to find the caller of a frame: the rows of `.eh_frame`, of which each holds for some
//! instructions.
//!
//! Of the registers only those are kept by which compilers find frames: stack pointer, frame
//! pointer, `rbx`; on arm64, the link register in place of that. (Register numbers: the psABIs of
//! x86-64, table "DWARF Register Number Mapping", and of i386.)

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use gimli::{
    BaseAddresses, CfaRule, Encoding, Format, Operation, Register, RegisterRule, UnwindContext, UnwindExpression,
};
use sidestep_isa::Va;

use sidestep_isa::syscalls::calls;

use crate::arch::{self, Arch};
use crate::eh::{self, Entry, NOT_VALID, Section};
use crate::elf::Elf;

/// Bytes of code for which an expression about the instruction pointer is worked out: procedure
/// linkage tables.
const BY_ADDRESS: u64 = 1 << 22;

/// Where the callers of an object's frames are.
#[derive(Clone, Debug, Default)]
pub struct Unwinding {
    /// In order of their addresses; each holds up to the next one.
    pub rows: Vec<Row>,
    /// What they refer to, each once.
    pub rules: Vec<Rule>,
}

/// From an address on, a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Link-time address.
    pub va: Va,
    /// Index of the rule.
    pub rule: u32,
}

/// Where a frame's canonical frame address is, which is above its return address, and what it has
/// saved of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The canonical frame address.
    pub cfa: Cfa,
    /// The caller's frame pointer.
    pub bp: Saved,
    /// The caller's `rbx` or `ebx`. On arm64, the return address.
    pub bx: Saved,
}

/// How to find a canonical frame address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cfa {
    /// No description covers the code.
    Unknown,
    /// A register and an offset. The register as its place in the kernel's `struct pt_regs` of
    /// x86-64.
    Register {
        /// Its place.
        base: u8,
        /// In bytes.
        offset: i32,
    },
    /// The word there, and another offset.
    Memory {
        /// The register's place.
        base: u8,
        /// Of the word, in bytes.
        offset: i32,
        /// What is added to the word.
        plus: i32,
    },
    /// The frame has no caller.
    Outermost,
    /// A signal handler returns here.
    Signal,
    /// A description that is not understood.
    Strange,
}

/// Where a register of the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Saved {
    /// In the register.
    Unchanged,
    /// In a word: its distance from the canonical frame address, in bytes.
    ByCfa(i32),
    /// In a word: its distance from this frame's frame pointer.
    ByFramePointer(i32),
    /// Nowhere, or nobody can tell.
    Lost,
}

impl Rule {
    const fn bare(cfa: Cfa) -> Rule {
        Rule { cfa, bp: Saved::Unchanged, bx: Saved::Unchanged }
    }
}

/// Reads all rows.
pub(crate) fn read(elf: &Elf) -> Result<Unwinding, &'static str> {
    let machine = arch::of(elf.isa);
    let mut context = UnwindContext::new();
    let mut rules = Rules::default();
    let unknown = rules.number(Rule::bare(Cfa::Unknown));
    // With their ends, which come before a beginning at the same address.
    let mut rows: Vec<(Va, bool, u32)> = Vec::new();
    eh::walk(elf, |section, bases, fde| {
        let reader = Reader { machine, section, is_signal: fde.is_signal_trampoline() };
        rows.push((elf.isa.wrap(Va(fde.initial_address().wrapping_add(fde.len()))), false, unknown));
        reader.rows(bases, fde, &mut context, &mut |va, rule| rows.push((Va(va), true, rules.number(rule))))
    })?;
    rows.sort_by_key(|(va, begins, _)| (*va, *begins));
    let signal = rules.number(Rule::bare(Cfa::Signal));
    let undescribed = |(start, _): &(Va, Va)| {
        let at = rows.partition_point(|(va, ..)| va <= start);
        at.checked_sub(1).is_none_or(|at| rows[at].2 == unknown)
    };
    let restorers: Vec<_> = restorers(elf)?.into_iter().filter(undescribed).collect();
    rows.extend(restorers.iter().flat_map(|(start, end)| [(*start, true, signal), (*end, false, unknown)]));
    rows.sort_by_key(|(va, begins, _)| (*va, *begins));
    let mut out: Vec<Row> = Vec::with_capacity(rows.len());
    for (va, _, rule) in rows {
        match out.last_mut() {
            Some(last) if last.va == va => last.rule = rule,
            Some(last) if last.rule == rule => {}
            _ => out.push(Row { va, rule }),
        }
    }
    Ok(Unwinding { rows: out, rules: rules.all })
}

/// Code to which signal handlers return, in libraries that do not describe it (musl, Go). From the
/// byte in front on, since a call would end there.
fn restorers(elf: &Elf) -> Result<Vec<(Va, Va)>, &'static str> {
    let codes = arch::of(elf.isa).restorers;
    let mut found = Vec::new();
    for section in elf.sections.iter().filter(|section| section.is_text()) {
        let data = elf.data(section)?;
        for call in calls(elf.isa).iter().filter(|_| !codes.is_empty()) {
            for end in
                data.windows(call.len()).enumerate().filter(|(_, code)| code == call).map(|(at, _)| at + call.len())
            {
                if let Some(code) = codes.iter().find(|code| data[..end].ends_with(code)) {
                    let start = section.va.0 + (end - code.len()) as u64;
                    found.push((Va(start.saturating_sub(1)), Va(section.va.0 + end as u64)));
                }
            }
        }
    }
    Ok(found)
}

#[derive(Default)]
struct Rules {
    all: Vec<Rule>,
    numbers: HashMap<Rule, u32>,
}

impl Rules {
    fn number(&mut self, rule: Rule) -> u32 {
        match self.numbers.entry(rule) {
            Slot::Occupied(known) => *known.get(),
            Slot::Vacant(new) => {
                self.all.push(rule);
                *new.insert(self.all.len() as u32 - 1)
            }
        }
    }
}

/// What an expression computes, as far as it can be said without the program.
#[derive(Clone, Copy)]
enum Value {
    Number(i64),
    Register { base: u8, offset: i64 },
    Memory { base: u8, offset: i64, plus: i64 },
}

/// Reads one entry.
struct Reader<'m, 'e> {
    machine: &'m Arch,
    section: &'m Section<'e>,
    is_signal: bool,
}

impl Reader<'_, '_> {
    fn rows(
        &self,
        bases: &BaseAddresses,
        fde: &Entry<'_>,
        context: &mut UnwindContext<usize>,
        each: &mut impl FnMut(u64, Rule),
    ) -> Result<(), &'static str> {
        if self.is_signal {
            each(fde.initial_address(), Rule::bare(Cfa::Signal));
            return Ok(());
        }
        let mut table = fde.rows(self.section, bases, context).map_err(|_| NOT_VALID)?;
        let mut end = fde.initial_address();
        loop {
            let row = match table.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => return Ok(()),
                // Assembler code may ask for what DWARF does not have, such as another register for
                // an expression (libgcrypt): nobody can tell what holds in the rest of this
                // function, but the others are as they are.
                Err(_) => {
                    each(end, Rule::bare(Cfa::Strange));
                    return Ok(());
                }
            };
            let start = row.start_address();
            end = row.end_address();
            let is_linked = self.machine.entered_at == 0;
            let caller = match row.register(self.machine.registers.ip) {
                // Where it is not said, the return address still is in its register.
                RegisterRule::Undefined | RegisterRule::SameValue | RegisterRule::Offset(_) if is_linked => None,
                RegisterRule::Undefined => Some(Cfa::Outermost),
                RegisterRule::Offset(at) if !is_linked && at == -self.machine.entered_at => None,
                _ => Some(Cfa::Strange),
            };
            if let Some(cfa) = caller {
                each(start, Rule::bare(cfa));
                continue;
            }
            let (bp, bx) = (
                self.saved(&row.register(self.machine.registers.bp)),
                self.saved(&row.register(self.machine.registers.bx)),
            );
            let mut put = |va: u64, cfa: Cfa| each(va, Rule { cfa, bp, bx });
            match row.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => {
                    let value = self.place(*register).map(|base| Value::Register { base, offset: *offset });
                    put(start, cfa(value));
                }
                CfaRule::Expression(expression) => match self.value(*expression, None) {
                    Some(value) => put(start, cfa(Some(value))),
                    // It may depend on the instruction: a procedure linkage table has one for all
                    // its entries.
                    None => {
                        for va in start..end.min(start.saturating_add(BY_ADDRESS)) {
                            put(va, cfa(self.value(*expression, Some(va))));
                        }
                    }
                },
            }
        }
    }

    fn place(&self, register: Register) -> Option<u8> {
        self.machine.registers.places.get(usize::from(register.0)).copied()
    }

    fn saved(&self, rule: &RegisterRule<usize>) -> Saved {
        match rule {
            RegisterRule::Undefined | RegisterRule::SameValue => Saved::Unchanged,
            RegisterRule::Offset(at) => i32::try_from(*at).map_or(Saved::Lost, Saved::ByCfa),
            RegisterRule::Expression(expression) => match self.value(*expression, None) {
                Some(Value::Register { base, offset }) if Some(base) == self.place(self.machine.registers.bp) => {
                    i32::try_from(offset).map_or(Saved::Lost, Saved::ByFramePointer)
                }
                _ => Saved::Lost,
            },
            _ => Saved::Lost,
        }
    }

    /// Works an expression out, at an instruction.
    fn value(&self, expression: UnwindExpression<usize>, at: Option<u64>) -> Option<Value> {
        let address_size = self.machine.isa.word() as u8;
        let encoding = Encoding { address_size, format: Format::Dwarf32, version: 4 };
        let mut stack = Vec::new();
        let mut operations = expression.get(self.section).ok()?.operations(encoding);
        while let Some(operation) = operations.next().ok()? {
            let result = match operation {
                Operation::UnsignedConstant { value } => Value::Number(value as i64),
                Operation::SignedConstant { value } => Value::Number(value),
                Operation::RegisterOffset { register, offset, .. } if register == self.machine.registers.ip => {
                    Value::Number((at? as i64).wrapping_add(offset))
                }
                Operation::RegisterOffset { register, offset, .. } => {
                    Value::Register { base: self.place(register)?, offset }
                }
                Operation::PlusConstant { value } => plus(stack.pop()?, Value::Number(value as i64))?,
                Operation::Plus => plus(stack.pop()?, stack.pop()?)?,
                Operation::Deref { space: false, size, .. } if size == address_size => match stack.pop()? {
                    Value::Register { base, offset } => Value::Memory { base, offset, plus: 0 },
                    _ => return None,
                },
                Operation::And | Operation::Shl | Operation::Ge => {
                    let (Value::Number(right), Value::Number(left)) = (stack.pop()?, stack.pop()?) else { return None };
                    Value::Number(match operation {
                        Operation::And => left & right,
                        Operation::Shl => left.checked_shl(u32::try_from(right).ok()?)?,
                        _ => i64::from(left >= right),
                    })
                }
                _ => return None,
            };
            stack.push(result);
        }
        stack.pop()
    }
}

fn plus(a: Value, b: Value) -> Option<Value> {
    let ((Value::Number(number), other) | (other, Value::Number(number))) = (a, b) else { return None };
    Some(match other {
        Value::Number(other) => Value::Number(number.wrapping_add(other)),
        Value::Register { base, offset } => Value::Register { base, offset: offset.wrapping_add(number) },
        Value::Memory { base, offset, plus } => Value::Memory { base, offset, plus: plus.wrapping_add(number) },
    })
}

fn cfa(value: Option<Value>) -> Cfa {
    let cfa = match value {
        Some(Value::Register { base, offset }) => {
            i32::try_from(offset).ok().map(|offset| Cfa::Register { base, offset })
        }
        Some(Value::Memory { base, offset, plus }) => i32::try_from(offset)
            .ok()
            .zip(i32::try_from(plus).ok())
            .map(|(offset, plus)| Cfa::Memory { base, offset, plus }),
        _ => None,
    };
    cfa.unwrap_or(Cfa::Strange)
}
