//! Programs of an object: each with the functions that it calls, and references by map index.

use std::collections::{HashMap, VecDeque};

use super::btf::Btf;
use super::elf::{Elf, Relocation, Section, Symbol};
use super::error::{CodeProblem, ObjectError};
use super::ext::{Line, Notes};
use super::maps::Maps;
use crate::insn::{Imm64, Insn, Slot};
use crate::program::Program;
use crate::verify::MAX_SLOTS;

/// `R_BPF_64_64`, in long immediates, and `R_BPF_64_32`, in calls
/// (`Documentation/bpf/llvm_reloc.rst`).
const R_BPF_64_64: u32 = 1;
const R_BPF_64_32: u32 = 10;

/// A function: its section, and its first byte there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    section: usize,
    offset: u64,
}

/// A function of the object.
#[derive(Clone, Debug)]
struct Function<'a> {
    name: String,
    code: &'a [u8],
}

/// A program with its functions in one piece.
#[derive(Debug)]
pub(super) struct Linked {
    pub program: Program,
    /// First slots and names.
    pub functions: Vec<(usize, String)>,
    pub lines: Vec<Line>,
}

/// What programs are put together from.
#[derive(Debug)]
pub(super) struct Linker<'a> {
    elf: &'a Elf<'a>,
    maps: &'a Maps,
    btf: Option<&'a Btf>,
    notes: &'a HashMap<String, Notes>,
    functions: HashMap<Place, Function<'a>>,
}

/// A slot of the function that is linked, and what is wrong there.
type Located = (usize, CodeProblem);

/// A reference to a function: the slot that has it, and what it refers to.
struct Reference {
    at: usize,
    to: Place,
}

impl<'a> Linker<'a> {
    pub fn new(
        elf: &'a Elf<'a>,
        maps: &'a Maps,
        btf: Option<&'a Btf>,
        notes: &'a HashMap<String, Notes>,
    ) -> Result<Linker<'a>, ObjectError> {
        let mut functions = HashMap::new();
        for symbol in elf.symbols.iter().filter(|s| s.is_function) {
            let section = symbol.section.and_then(|index| elf.section(index)).filter(|s| s.is_code);
            let Some(section) = section else { continue };
            let end = symbol.offset.checked_add(symbol.size);
            let code = end.and_then(|end| section.data.get(symbol.offset as usize..end as usize));
            let code = code.filter(|code| symbol.offset % 8 == 0 && code.len() % 8 == 0 && !code.is_empty());
            let code = code.ok_or_else(|| {
                let (function, insn, problem) = (symbol.name.clone(), 0, CodeProblem::Truncated);
                ObjectError::Code { function, insn, problem }
            })?;
            let place = Place { section: section.index, offset: symbol.offset };
            functions.insert(place, Function { name: symbol.name.clone(), code });
        }
        Ok(Linker { elf, maps, btf, notes, functions })
    }

    /// Functions outside of `.text`, in the order of the file: programs.
    pub fn programs(&self) -> Vec<(Place, &str, &str)> {
        let mut programs: Vec<_> = self
            .functions
            .iter()
            .filter_map(|(place, function)| {
                let section = self.elf.section(place.section)?;
                (section.name != ".text").then_some((*place, section.name.as_str(), function.name.as_str()))
            })
            .collect();
        programs.sort();
        programs
    }

    /// The program that begins with a function; it may have `room` slots at most.
    pub fn link(&self, entry: Place, room: usize) -> Result<Linked, ObjectError> {
        let mut slots = Vec::new();
        let mut starts = HashMap::from([(entry, 0)]);
        let mut names = Vec::new();
        let mut lines = Vec::new();
        let mut references = Vec::new();
        let mut open = VecDeque::from([entry]);
        while let Some(place) = open.pop_front() {
            let Some(function) = self.functions.get(&place) else { continue };
            let start = slots.len();
            starts.insert(place, start);
            names.push((start, function.name.clone()));
            let located = |(insn, problem)| ObjectError::Code { function: function.name.clone(), insn, problem };
            if start + function.code.len() / 8 > room.min(MAX_SLOTS) {
                return Err(located((0, CodeProblem::TooLong)));
            }
            let refers = self.copy(place, function, &mut slots).map_err(located)?;
            for reference in refers {
                // Where it goes is known when its turn comes.
                starts.entry(reference.to).or_insert_with(|| {
                    open.push_back(reference.to);
                    usize::MAX
                });
                references.push(Reference { at: start + reference.at, to: reference.to });
            }
            lines.extend(self.lines(place, function, start));
        }
        for reference in references {
            let Some(&target) = starts.get(&reference.to) else { continue };
            slots[reference.at].imm = (target as i64 - reference.at as i64 - 1) as i32;
        }
        let program = Program::new(slots).map_err(|e| {
            let function = names.first().map(|(_, name)| name.clone()).unwrap_or_default();
            ObjectError::Code { function, insn: e.at, problem: CodeProblem::Decode(e) }
        })?;
        Ok(Linked { program, functions: names, lines })
    }

    /// Appends the code of a function, with map references resolved. Returns its references to
    /// functions, by slots in it.
    fn copy(&self, place: Place, function: &Function, slots: &mut Vec<Slot>) -> Result<Vec<Reference>, Located> {
        let code = Program::from_bytes(function.code).map_err(|e| (e.at, CodeProblem::Decode(e)))?;
        let section = self.elf.section(place.section).ok_or((0, CodeProblem::Truncated))?;
        self.check_core(section, place, code.slots.len())?;
        let mut references = Vec::new();
        let base = slots.len();
        slots.extend_from_slice(&code.slots);
        for insn in code.iter() {
            let (pc, insn) = insn.map_err(|e| (e.at, CodeProblem::Decode(e)))?;
            let offset = place.offset + pc as u64 * 8;
            let target = match self.relocation(section, offset) {
                Some(relocation) => self.refer(insn, relocation).map(Some),
                None => self.local_target(place.section, offset, insn),
            };
            let imm = match target.map_err(|problem| (pc, problem))? {
                Some(Target::Function(to)) => {
                    references.push(Reference { at: pc, to });
                    Imm64::Func(0)
                }
                Some(Target::Value(imm)) => imm,
                None => continue,
            };
            if let Insn::LoadImm64 { dst, .. } = insn {
                let (first, second) = Insn::LoadImm64 { dst, imm }.encode();
                slots[base + pc] = first;
                slots[base + pc + 1] = second.unwrap_or_default();
            }
        }
        Ok(references)
    }

    /// The function that an instruction without relocation refers to: one of the same section.
    fn local_target(&self, section: usize, offset: u64, insn: Insn) -> Result<Option<Target>, CodeProblem> {
        let (Insn::CallLocal(off) | Insn::LoadImm64 { imm: Imm64::Func(off), .. }) = insn else { return Ok(None) };
        let target = offset as i64 + 8 + i64::from(off) * 8;
        self.function_at(section, target as u64).map(|to| Some(Target::Function(to)))
    }

    fn function_at(&self, section: usize, offset: u64) -> Result<Place, CodeProblem> {
        let place = Place { section, offset };
        if self.functions.contains_key(&place) {
            return Ok(place);
        }
        let section = self.elf.section(section).map(|s| s.name.clone()).unwrap_or_default();
        Err(CodeProblem::NoFunction { section, offset })
    }

    fn relocation(&self, section: &Section, offset: u64) -> Option<Relocation> {
        let index = section.relocations.partition_point(|r| r.offset < offset);
        section.relocations.get(index).copied().filter(|r| r.offset == offset)
    }

    /// What a relocated instruction refers to.
    fn refer(&self, insn: Insn, relocation: Relocation) -> Result<Target, CodeProblem> {
        let symbol = self.elf.symbols.get(relocation.symbol);
        let symbol = symbol.ok_or_else(|| CodeProblem::Undefined(format!("symbol {}", relocation.symbol)))?;
        let name = || symbol.name.clone();
        let section = symbol.section.and_then(|index| self.elf.section(index));
        let Some(section) = section else { return self.known(&symbol.name, relocation.kind) };
        match (relocation.kind, insn) {
            (R_BPF_64_32, Insn::CallLocal(off)) => {
                let offset = (symbol.offset as i64).wrapping_add((i64::from(off) + 1) * 8);
                self.function_at(section.index, offset as u64).map(Target::Function)
            }
            (R_BPF_64_64, Insn::LoadImm64 { imm: Imm64::Value(value), .. }) => {
                // The addend is what the instruction has in its first half.
                self.address(symbol, section, i64::from(value as u32 as i32))
            }
            (R_BPF_64_32 | R_BPF_64_64, _) => Err(CodeProblem::Misplaced(name())),
            (other, _) => Err(CodeProblem::Relocation(other)),
        }
    }

    /// What the object only declares: variables that the loader knows.
    fn known(&self, name: &str, relocation: u32) -> Result<Target, CodeProblem> {
        if let (Some((map, offset)), R_BPF_64_64) = (self.maps.known(name), relocation) {
            return Ok(Target::Value(Imm64::MapValue { map: map as u32, offset }));
        }
        let named = |btf: &Btf, id| btf.get(id).is_ok_and(|ty| ty.name == name);
        let has = |btf: &Btf, section| btf.section(section).unwrap_or_default().iter().any(|v| named(btf, v.ty));
        if self.btf.is_some_and(|btf| has(btf, ".kconfig") || has(btf, ".ksyms")) {
            return Err(CodeProblem::Kernel(name.to_owned()));
        }
        Err(CodeProblem::Undefined(name.to_owned()))
    }

    fn address(&self, symbol: &Symbol, section: &Section, addend: i64) -> Result<Target, CodeProblem> {
        let offset = (symbol.offset as i64).wrapping_add(addend);
        if section.is_code {
            return self.function_at(section.index, offset as u64).map(Target::Function);
        }
        if section.name == ".maps" {
            let map = self.maps.defined_at(offset as u64).ok_or_else(|| CodeProblem::NoMap(symbol.name.clone()))?;
            return Ok(Target::Value(Imm64::Map(map as u32)));
        }
        let inside = u32::try_from(offset).ok().filter(|offset| u64::from(*offset) <= section.size);
        match (self.maps.of_section(section.index), inside) {
            (Some(map), Some(offset)) => Ok(Target::Value(Imm64::MapValue { map: map as u32, offset })),
            _ if matches!(section.name.as_str(), ".kconfig" | ".ksyms") => {
                Err(CodeProblem::Kernel(symbol.name.clone()))
            }
            _ => Err(CodeProblem::Section { symbol: symbol.name.clone(), section: section.name.clone() }),
        }
    }

    /// Refuses relocations against types of the kernel.
    fn check_core(&self, section: &Section, place: Place, len: usize) -> Result<(), Located> {
        let (Some(notes), Some(btf)) = (self.notes.get(&section.name), self.btf) else { return Ok(()) };
        let first = (place.offset / 8) as usize;
        let inside = within(&notes.relocations, first..first + len, |r| r.insn);
        match inside.iter().find(|r| !r.is_settled(btf)) {
            Some(r) => Err((r.insn - first, CodeProblem::CoRe { access: r.describe(btf) })),
            None => Ok(()),
        }
    }

    fn lines(&self, place: Place, function: &Function, start: usize) -> Vec<Line> {
        let section = self.elf.section(place.section);
        let Some(notes) = section.and_then(|s| self.notes.get(&s.name)) else { return Vec::new() };
        let first = (place.offset / 8) as usize;
        let inside = within(&notes.lines, first..first + function.code.len() / 8, |line| line.insn);
        inside.iter().map(|line| Line { insn: line.insn - first + start, ..line.clone() }).collect()
    }
}

/// The part of a sorted list that is about these slots.
fn within<T>(sorted: &[T], slots: std::ops::Range<usize>, slot: impl Fn(&T) -> usize) -> &[T] {
    let start = sorted.partition_point(|entry| slot(entry) < slots.start);
    let end = sorted.partition_point(|entry| slot(entry) < slots.end);
    &sorted[start..end]
}

/// What an instruction refers to.
enum Target {
    Function(Place),
    /// What a long immediate loads.
    Value(Imm64),
}
