//! Stacks of programs that were compiled without frame pointers: what `.eh_frame` says of each
//! object, as the agent searches it (`wire::unwind`). Only for sessions whose programs ask for
//! stacks.

use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::path::PathBuf;

use sidestep_bpf::verify::Helper;
use sidestep_isa::{Len, Va};
use sidestep_symbols::{Cfa, Object, Rule, Saved, Unwinding};
use sidestep_sys::arch;
use sidestep_wire::{MapKind, PlainRule, Private, UnwindKind, UnwindObject, UnwindRule, UnwindTable};

use crate::api::Program;
use crate::error::SessionError;
use crate::memory::layout::{PAGE, round};
use crate::memory::raw::bytes_of;
use crate::resolve::names::Images;
use crate::resolve::objects;
use crate::target::allocator::Table;
use crate::target::hold::Hold;
use crate::target::regions::Regions;

/// Most rows of all objects together, 6 bytes each.
const ROWS_MAX: usize = 32 << 20;

/// The tables of a session.
#[derive(Clone, Default)]
pub(crate) struct Tables {
    rules: Vec<UnwindRule>,
    numbers: HashMap<UnwindRule, u16>,
    objects: Vec<UnwindObject>,
    rows: usize,
    /// Images that were looked at: path and run-time address.
    known: HashSet<(PathBuf, u64)>,
    /// Objects without a table, and why.
    pub left_out: Vec<(PathBuf, String)>,
}

/// Do any of these programs ask for stacks?
pub(crate) fn are_wanted(programs: &[Program]) -> bool {
    programs.iter().filter_map(Program::verified).any(|v| v.facts.calls(Helper::walks_stack))
}

impl Regions {
    /// Puts the rows of objects into the target that were not looked at before; they are found
    /// after [`Regions::show_unwinding`].
    pub fn add_unwinding(&mut self, hold: &mut Hold<'_>, images: &Images) -> Result<(), SessionError> {
        let process = hold.process();
        let mut bytes = Vec::new();
        let mut new = Vec::new();
        let vdso = objects::vdso(&process);
        let loaded = images.images().map(|(path, loaded)| (path, &*loaded.object, loaded.bias));
        let vdso = vdso.as_ref().map(|vdso| (vdso.object.path(), &*vdso.object, vdso.bias));
        for (path, object, bias) in loaded.chain(vdso) {
            if !self.unwinding.known.insert((path.to_owned(), bias as u64)) {
                continue;
            }
            match self.unwinding.add(object, bias, &mut bytes) {
                Ok(found) => new.extend(found),
                Err(reason) => self.unwinding.left_out.push((path.to_owned(), reason)),
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let len = Len(round(bytes.len() as u64, PAGE));
        let at = self.map_listed(hold, "tables", len, MapKind::Private)?;
        process.write(at, &bytes)?;
        // Up to here they said where the rows are among these.
        self.unwinding
            .objects
            .extend(new.into_iter().map(|object| UnwindObject { rows: at.0 + object.rows, ..object }));
        Ok(())
    }

    /// Puts the table into use. Frames in code of ours end a stack: what is on it there, no
    /// description says.
    pub fn show_unwinding(&mut self, hold: &mut Hold<'_>) -> Result<(), SessionError> {
        if self.unwinding.objects.is_empty() {
            return Ok(());
        }
        let ours = self.code()?;
        let strange = self.unwinding.number(UnwindRule { kind: UnwindKind::Strange as u8, ..UnwindRule::default() });
        let mut objects = self.unwinding.objects.clone();
        // Behind objects and rules there is the one row that all code of ours shares.
        let rules = &self.unwinding.rules;
        let head = UnwindTable { objects: (objects.len() + ours.len()) as u32, rules: rules.len() as u32 };
        let row = round(head.rules() + size_of_val(&rules[..]) as u64, 4);
        let len = Len(round(row + 6, PAGE));
        let table = self.room_for_table(hold, len)?;
        let rows = table.start + row;
        let own = |code: &std::ops::Range<u64>| UnwindObject { start: code.start, end: code.end, rows, len: 1 };
        objects.extend(ours.iter().map(own));
        objects.sort_by_key(|object| object.start);
        let mut bytes = bytes_of(&head).to_vec();
        bytes.extend(objects.iter().flat_map(bytes_of));
        bytes.extend(self.unwinding.rules.iter().flat_map(bytes_of));
        bytes.resize(row as usize, 0);
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(strange.unwrap_or(UnwindRule::UNKNOWN).to_ne_bytes());
        let process = hold.process();
        process.write(Va(table.start), &bytes)?;
        process.write(Va(self.private.0 + offset_of!(Private, unwind) as u64), &table.start.to_ne_bytes())?;
        self.spare.borrow_mut().put_into_use(Table::Frames, table);
        Ok(())
    }
}

impl Tables {
    /// The number of a rule; none if there are too many.
    fn number(&mut self, rule: UnwindRule) -> Option<u16> {
        if self.rules.is_empty() {
            // `UnwindRule::UNKNOWN`
            self.rules.push(UnwindRule::default());
            self.numbers.insert(UnwindRule::default(), 0);
        }
        if let Some(plain) = PlainRule::of(&rule, arch::ISA.word() as i32) {
            return Some(plain.number());
        }
        if let Some(number) = self.numbers.get(&rule) {
            return Some(*number);
        }
        if self.rules.len() == UnwindTable::RULES_MAX {
            return None;
        }
        let number = self.rules.len() as u16;
        self.rules.push(rule);
        self.numbers.insert(rule, number);
        Some(number)
    }

    /// Appends the rows of an object. Nothing, if it has none.
    fn add(&mut self, object: &Object, bias: i64, bytes: &mut Vec<u8>) -> Result<Option<UnwindObject>, String> {
        let Unwinding { rows, rules } = object.unwinding().map_err(|error| error.to_string())?;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(None) };
        if self.rows + rows.len() > ROWS_MAX {
            return Err(format!("it has {} descriptions of frames, which is too much", rows.len()));
        }
        let end = last.va.0 - first.va.0;
        if end > u64::from(u32::MAX) {
            return Err("its code is longer than 4 GiB".into());
        }
        let numbers: Option<Vec<u16>> = rules.iter().map(|rule| self.number(wire_rule(rule))).collect();
        let numbers =
            numbers.ok_or_else(|| format!("the target has more than {} kinds of frames", UnwindTable::RULES_MAX))?;
        self.rows += rows.len();
        let at = round(bytes.len() as u64, 4);
        bytes.resize(at as usize, 0);
        bytes.extend(rows.iter().flat_map(|row| ((row.va.0 - first.va.0) as u32).to_ne_bytes()));
        bytes.extend(rows.iter().flat_map(|row| numbers[row.rule as usize].to_ne_bytes()));
        let start = first.va.offset(bias).0;
        Ok(Some(UnwindObject { start, end: start + end, rows: at, len: rows.len() as u64 }))
    }
}

/// As the agent reads it. What does not fit is strange.
fn wire_rule(rule: &Rule) -> UnwindRule {
    let of = |kind: UnwindKind, base: u8, offset: i32, plus: i32| UnwindRule {
        kind: kind as u8,
        base,
        offset,
        plus,
        ..UnwindRule::default()
    };
    let mut made = match rule.cfa {
        Cfa::Unknown => of(UnwindKind::Unknown, 0, 0, 0),
        Cfa::Register { base, offset } => of(UnwindKind::Register, base, offset, 0),
        Cfa::Memory { base, offset, plus } => of(UnwindKind::Memory, base, offset, plus),
        Cfa::Outermost => of(UnwindKind::Outermost, 0, 0, 0),
        Cfa::Signal => of(UnwindKind::Signal, 0, 0, 0),
        Cfa::Strange => of(UnwindKind::Strange, 0, 0, 0),
    };
    for (saved, to, own) in
        [(rule.bp, &mut made.bp, UnwindRule::BP_BY_BP), (rule.bx, &mut made.bx, UnwindRule::BX_BY_BP)]
    {
        let (distance, flag) = match saved {
            Saved::Unchanged => continue,
            Saved::Lost => (None, 0),
            Saved::ByCfa(bytes) => (words(bytes).filter(|words| *words != 0), 0),
            Saved::ByFramePointer(bytes) => (words(bytes), own),
        };
        *to = distance.unwrap_or(UnwindRule::LOST);
        made.flags |= if distance.is_some() { flag } else { 0 };
    }
    made
}

fn words(bytes: i32) -> Option<i16> {
    let word = arch::ISA.word() as i32;
    (bytes % word == 0).then(|| i16::try_from(bytes / word).ok()).flatten().filter(|words| *words != UnwindRule::LOST)
}
