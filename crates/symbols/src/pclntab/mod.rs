//! The functions of a Go program by `.gopclntab`, which the runtime needs for its own stacks: it is
//! there in stripped programs, too.
//!
//! Source of the facts: `src/debug/gosym/pclntab.go`, `src/runtime/symtab.go` (`pcHeader`,
//! `moduledata`) and `runtime2.go` (`_func`) of Go 1.19 and 1.26.

mod lines;

use std::collections::HashSet;

pub(crate) use lines::Lines;
use sidestep_isa::{Len, Va};

use crate::elf::{Elf, Section, TextRanges, word};
use crate::function::{Binding, Function, FunctionKind, Source};
use crate::reloc;
use crate::symtab::Symbols;

/// In a position-independent program the second is what older linkers call it.
const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
/// Where the linker puts `runtime.firstmoduledata`, since Go 1.26.
const MODULE: &str = ".go.module";
/// The word of `moduledata` with the address of `runtime.text`.
const MODULE_TEXT: usize = 22;
/// Longer names are none.
const NAME_MAX: usize = 1 << 16;
/// The bit of `funcFlag` that says that a function is written in assembly, since Go 1.18.
const ASSEMBLY: u8 = 4;
const CUT: &str = "its table of Go functions is cut off";

/// How a table is laid out: its magic number says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layout {
    /// Go 1.2 to 1.15.
    Go12,
    /// 1.16 and 1.17: the parts have tables of their own.
    Go116,
    /// 1.18 and 1.19: addresses are offsets from `runtime.text`.
    Go118,
    /// From 1.20 on.
    Go120,
}

/// A table, and where its parts are. All offsets are checked when they are used.
struct Table<'d> {
    layout: Layout,
    /// Bytes of a pointer.
    pointer: usize,
    /// Bytes of the smallest instruction.
    quantum: u64,
    /// How many functions it has.
    count: usize,
    names: &'d [u8],
    /// Pairs of an address and an offset in `functions`, and the address behind the last function.
    pairs: &'d [u8],
    functions: &'d [u8],
    /// Which instruction is of which line, of which file, and so on.
    lines: &'d [u8],
    /// Offsets in `files`, one behind the other for each unit of the compiler; empty: the names of
    /// files are elsewhere.
    units: &'d [u8],
    /// Names of files.
    files: &'d [u8],
    /// What addresses are offsets from.
    text: Va,
}

/// Adds the functions of the table to `out`, and says how many it has; `None`: there is no table.
///
/// # Errors
/// It cannot be used, and why.
pub(crate) fn read(elf: &Elf, text: &TextRanges, out: &mut Symbols) -> Result<Option<usize>, &'static str> {
    let Some(section) = SECTIONS.iter().find_map(|name| elf.section(name)) else { return Ok(None) };
    let data = elf.data(section)?;
    let start = text_start(elf, section, data);
    let (found, assembly) = Table::parse(data, elf.word(), start)?.functions(text)?;
    let count = found.len();
    out.labels.extend(found.iter().map(|function| function.va));
    out.functions.extend(found);
    out.assembly.extend(assembly);
    out.assembly.sort_unstable();
    Ok(Some(count))
}

/// The address of `runtime.text`. The header had it until Go 1.25.
fn text_start(elf: &Elf, section: &Section, data: &[u8]) -> Va {
    let stored = |section: &Section, data: &[u8], index: usize| {
        let at = index * elf.word();
        let there = data.get(at..at + elf.word())?;
        let slot = section.va.plus(Len(at as u64));
        Some(reloc::relative(elf, slot).unwrap_or_else(|| Va(word(elf.word(), there, 0))))
    };
    // The magic number and sizes are 8 bytes: one word, or two.
    let header = stored(section, data, 8 / elf.word() + 2).filter(|va| elf.in_text(*va));
    let module = || {
        let module = elf.section(MODULE)?;
        stored(module, elf.data(module).ok()?, MODULE_TEXT)
    };
    header.or_else(module).unwrap_or(Va(0))
}

impl<'d> Table<'d> {
    /// `text`: what addresses are offsets from, if they are.
    fn parse(data: &'d [u8], size: usize, text: Va) -> Result<Table<'d>, &'static str> {
        let head = data.get(..8).ok_or(CUT)?;
        let layout = match word(4, head, 0) {
            0xffff_fffb => Layout::Go12,
            0xffff_fffa => Layout::Go116,
            0xffff_fff0 => Layout::Go118,
            0xffff_fff1 => Layout::Go120,
            _ => return Err("its table of Go functions is of an unknown version"),
        };
        if head[4..6] != [0, 0] || ![1, 2, 4].contains(&head[6]) || usize::from(head[7]) != size {
            return Err("its table of Go functions is for another machine");
        }
        let field = |index: usize| number(data, 8 + index * size, size).ok_or(CUT);
        let part = |index: usize| {
            let at = usize::try_from(field(index)?).map_err(|_| CUT)?;
            data.get(at..).ok_or(CUT)
        };
        let count = usize::try_from(field(0)?).map_err(|_| CUT)?;
        let (names, units, files, lines, functions) = match layout {
            Layout::Go12 => (data, &[][..], &[][..], data, data),
            Layout::Go116 => (part(2)?, part(3)?, part(4)?, part(5)?, part(6)?),
            Layout::Go118 | Layout::Go120 => (part(3)?, part(4)?, part(5)?, part(6)?, part(7)?),
        };
        let pairs = if layout == Layout::Go12 { data.get(8 + size..).ok_or(CUT)? } else { functions };
        let (text, quantum) = (if layout >= Layout::Go118 { text } else { Va(0) }, u64::from(head[6]));
        let table = Table { layout, pointer: size, quantum, count, names, pairs, functions, lines, units, files, text };
        let entries = count.checked_mul(2).and_then(|count| count.checked_add(1)).ok_or(CUT)?;
        let bytes = entries.checked_mul(table.entry()).ok_or(CUT)?;
        let pairs = pairs.get(..bytes).ok_or(CUT)?;
        Ok(Table { pairs, ..table })
    }

    /// Bytes of an address or an offset in `pairs`, and of the address in a function's description.
    fn entry(&self) -> usize {
        if self.layout >= Layout::Go118 { 4 } else { self.pointer }
    }

    fn pair(&self, index: usize) -> Option<u64> {
        number(self.pairs, index * self.entry(), self.entry())
    }

    /// All functions that are in code, with names, and those of them that are assembly.
    fn functions(&self, text: &TextRanges) -> Result<(Vec<Function>, HashSet<Va>), &'static str> {
        if self.layout >= Layout::Go118 && !text.contain(self.text) {
            return Err("nothing says where its Go code begins");
        }
        // Names may share their tails, and functions their lines, but a corrupt table must not turn
        // megabytes into gigabytes or hours.
        let mut names = (16 << 20).max(8 * self.names.len());
        let mut steps = (16 << 20).max(8 * self.lines.len());
        let mut found = Vec::new();
        let mut assembly = HashSet::new();
        for index in 0..self.count {
            let (Some(at), Some(place), Some(end)) =
                (self.pair(2 * index), self.pair(2 * index + 1), self.pair(2 * index + 2))
            else {
                break;
            };
            let Some(len) = end.checked_sub(at).filter(|len| *len > 0) else { continue };
            let va = Va(self.text.0.wrapping_add(at));
            let place = usize::try_from(place).unwrap_or(usize::MAX);
            if !text.contain(va) {
                continue;
            }
            let name = self.name(place);
            let looked_at = name.map_or(NAME_MAX, <[u8]>::len);
            names = names.checked_sub(looked_at).ok_or("its names of Go functions overlap beyond reason")?;
            let Some(name) = name.filter(|name| !name.is_empty()) else { continue };
            // Between functions there is padding, and, with cgo, code of C.
            let len = self.len(place, &mut steps).map_or(len, |own| len.min(own));
            if !text.contain(Va(va.0.saturating_add(len - 1))) {
                continue;
            }
            found.push(Function {
                name: String::from_utf8_lossy(name).into(),
                va,
                size: Len(len),
                kind: FunctionKind::Func,
                binding: Binding::Global,
                source: Source::Pclntab,
            });
            if self.is_assembly(place) {
                assembly.insert(va);
            }
        }
        name_assembly(&mut found, &assembly);
        Ok((found, assembly))
    }

    /// A field of 4 bytes behind the address of the description at `place`.
    fn field(&self, place: usize, index: usize) -> Option<usize> {
        let at = place.checked_add(self.entry() + 4 * index)?;
        number(self.functions, at, 4).and_then(|number| usize::try_from(number).ok())
    }

    fn name(&self, place: usize) -> Option<&'d [u8]> {
        text_at(self.names, self.field(place, 0)?)
    }

    /// Bytes of a function, without the padding behind it: as many as have lines.
    fn len(&self, place: usize, steps: &mut usize) -> Option<u64> {
        let at = self.field(place, 5).filter(|at| *at > 0)?;
        let mut bytes = self.lines.get(at..)?.iter();
        let mut len = 0u64;
        let mut is_first = true;
        loop {
            *steps = steps.checked_sub(1)?;
            // The change of the line; 0 ends the list, if it is not the first one.
            if varint(&mut bytes)? == 0 && !is_first {
                return Some(len).filter(|len| *len > 0);
            }
            is_first = false;
            len = len.checked_add(u64::from(varint(&mut bytes)?).checked_mul(self.quantum)?)?;
        }
    }

    fn is_assembly(&self, place: usize) -> bool {
        // Behind the offset of the unit there are the identity and the flags of the function; Go
        // 1.20 has put the line of its beginning between.
        let index = match self.layout {
            Layout::Go12 | Layout::Go116 => return false,
            Layout::Go118 => 8,
            Layout::Go120 => 9,
        };
        self.field(place, index).is_some_and(|field| (field >> 8) as u8 & ASSEMBLY != 0)
    }
}

/// Assembly that Go code calls by a wrapper of the same name is called `NAME.abi0`, as symbols call
/// it (`cmd/link/internal/ld/symtab.go`, `mangleABIName`).
fn name_assembly(functions: &mut [Function], assembly: &HashSet<Va>) {
    let of_go = functions.iter().filter(|function| !assembly.contains(&function.va));
    let of_go: HashSet<Box<str>> = of_go.map(|function| function.name.clone()).collect();
    for function in functions.iter_mut().filter(|function| assembly.contains(&function.va)) {
        if of_go.contains(&function.name) {
            function.name = format!("{}.abi0", function.name).into();
        }
    }
}

/// The text at an offset, which a NUL ends.
fn text_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().take(NAME_MAX).position(|byte| *byte == 0)?;
    Some(&rest[..end])
}

/// The number of `size` bytes at `at`.
fn number(data: &[u8], at: usize, size: usize) -> Option<u64> {
    Some(word(size, data.get(at..at.checked_add(size)?)?, 0))
}

/// Seven bits a byte, the lowest first, at most 32.
fn varint<'d>(bytes: &mut impl Iterator<Item = &'d u8>) -> Option<u32> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let byte = bytes.next()?;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: u64 = 0x40_1000;
    const LAYOUTS: [(u32, Layout); 4] = [
        (0xffff_fffb, Layout::Go12),
        (0xffff_fffa, Layout::Go116),
        (0xffff_fff0, Layout::Go118),
        (0xffff_fff1, Layout::Go120),
    ];
    /// Name, offset in the text, bytes with lines (0: no lines), whether it is assembly.
    const FUNCTIONS: [(&str, u64, u8, bool); 5] = [
        ("main.main", 0, 0x1c, false),
        ("main.f[...]", 0x20, 0x20, false),
        ("main.sum", 0x40, 5, true),
        ("main.sum", 0x60, 9, false),
        ("runtime.asm", 0x80, 0, true),
    ];
    const END: u64 = 0xa0;

    fn ranges() -> TextRanges {
        TextRanges::of(&[(Va(TEXT), Va(TEXT + 0x1000))])
    }

    fn put(out: &mut Vec<u8>, size: usize, value: u64) {
        out.extend_from_slice(&value.to_le_bytes()[..size]);
    }

    /// A table as the linker of that time wrote it.
    fn table(magic: u32, layout: Layout, pointer: usize) -> Vec<u8> {
        let entry = if layout >= Layout::Go118 { 4 } else { pointer };
        let base = if layout >= Layout::Go118 { 0 } else { TEXT };
        let (mut names, mut lines, mut descriptions) = (vec![0], vec![0], Vec::new());
        let pairs = (2 * FUNCTIONS.len() + 1) * entry;
        let mut places = Vec::new();
        // The oldest tables are one: offsets count from their beginning.
        let single = layout == Layout::Go12;
        let descriptions_at = if single { 8 + pointer + pairs } else { pairs };
        let room = 12 * 4 + entry;
        let names_at = if single { descriptions_at + FUNCTIONS.len() * room } else { 0 };
        let all_names: usize = 1 + FUNCTIONS.iter().map(|(name, ..)| name.len() + 1).sum::<usize>();
        let lines_at = if single { names_at + all_names } else { 0 };
        for (name, at, len, is_assembly) in FUNCTIONS {
            places.push((base + at, descriptions_at + descriptions.len()));
            let start = descriptions.len();
            put(&mut descriptions, entry, base + at);
            put(&mut descriptions, 4, (names_at + names.len()) as u64);
            descriptions.extend([0xee; 16]);
            put(&mut descriptions, 4, if len == 0 { 0 } else { (lines_at + lines.len()) as u64 });
            descriptions.extend([0xee; 8]);
            if layout >= Layout::Go120 {
                put(&mut descriptions, 4, 77);
            }
            descriptions.extend([0, if is_assembly { ASSEMBLY } else { 0 }, 0, 0]);
            descriptions.resize(start + room, 0xee);
            names.extend_from_slice(name.as_bytes());
            names.push(0);
            // A first line that changes by nothing, and another one.
            lines.extend([0, 2, 0x81, 0x02, len.saturating_sub(2), 0]);
        }
        let mut out = Vec::new();
        put(&mut out, 4, magic.into());
        out.extend([0, 0, 1, pointer as u8]);
        put(&mut out, pointer, FUNCTIONS.len() as u64);
        let mut rest = Vec::new();
        for (va, place) in &places {
            put(&mut rest, entry, *va);
            put(&mut rest, entry, *place as u64);
        }
        put(&mut rest, entry, base + END);
        rest.extend(descriptions);
        if single {
            out.extend(rest);
            out.extend(names);
            out.extend(lines);
            return out;
        }
        let fields = if layout == Layout::Go116 { 7 } else { 8 };
        let names_at = 8 + fields * pointer;
        let lines_at = names_at + names.len();
        let functions_at = lines_at + lines.len();
        put(&mut out, pointer, 1);
        if layout >= Layout::Go118 {
            put(&mut out, pointer, TEXT);
        }
        for at in [names_at, 0, 0, lines_at, functions_at] {
            put(&mut out, pointer, at as u64);
        }
        out.extend(names);
        out.extend(lines);
        out.extend(rest);
        out
    }

    fn parsed(data: &[u8], pointer: usize) -> Result<Vec<(String, u64, u64)>, &'static str> {
        let (found, _) = Table::parse(data, pointer, Va(TEXT))?.functions(&ranges())?;
        Ok(found.into_iter().map(|f| (f.name.into(), f.va.0, f.size.0)).collect())
    }

    #[test]
    fn tables_of_all_versions_say_the_same() {
        for (magic, layout) in LAYOUTS {
            for pointer in [4, 8] {
                let sum = if layout >= Layout::Go118 { "main.sum.abi0" } else { "main.sum" };
                let wanted = [
                    ("main.main", 0, 0x1c),
                    ("main.f[...]", 0x20, 0x20),
                    (sum, 0x40, 5),
                    ("main.sum", 0x60, 9),
                    ("runtime.asm", 0x80, 0x20),
                ];
                let wanted = wanted.map(|(name, at, len)| (name.to_owned(), TEXT + at, len));
                assert_eq!(parsed(&table(magic, layout, pointer), pointer).unwrap(), wanted, "{layout:?} {pointer}");
            }
        }
    }

    #[test]
    fn functions_outside_of_code_are_none() {
        let data = table(0xffff_fff1, Layout::Go120, 8);
        let (found, _) = Table::parse(&data, 8, Va(TEXT + 0xf98)).unwrap().functions(&ranges()).unwrap();
        assert_eq!(found.len(), 3, "{found:?}");
        for text in [Va(0), Va(TEXT - 1), Va(TEXT + 0x1000), Va(u64::MAX)] {
            assert!(Table::parse(&data, 8, text).unwrap().functions(&ranges()).is_err());
        }
    }

    #[test]
    fn corrupt_tables_are_refused_or_say_less() {
        let mut seed = 1u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for (magic, layout) in LAYOUTS {
            let whole = table(magic, layout, 8);
            for len in 0..whole.len() {
                let _ = parsed(&whole[..len], 8);
            }
            for _ in 0..20_000 {
                let mut data = whole.clone();
                for _ in 0..1 + random(4) {
                    let at = random(data.len());
                    data[at] = [0, 0x7f, 0x80, 0xff, random(256) as u8][random(5)];
                }
                if let Ok(found) = parsed(&data, 8) {
                    assert!(found.len() <= FUNCTIONS.len());
                    assert!(found.iter().all(|(_, va, len)| *va >= TEXT && va + len <= TEXT + 0x1000), "{found:?}");
                }
            }
        }
        assert!(parsed(&table(0xffff_fff2, Layout::Go120, 8), 8).is_err());
        assert!(parsed(&table(0xffff_fff1, Layout::Go120, 4), 8).is_err());
    }

    /// All functions share one long list of lines and one long name.
    #[test]
    fn overlaps_do_not_cost_hours() {
        const COUNT: usize = 1 << 16;
        let mut data = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
        let (names, lines) = (8 + 8 * 8, 8 + 8 * 8 + NAME_MAX);
        for word in [COUNT, 0, 0, names, 0, 0, lines, lines + 65536] {
            put(&mut data, 8, word as u64);
        }
        data.resize(lines - 1, b'n');
        data.push(0);
        data.resize(lines + 65535, 1);
        data.push(0);
        let description = (2 * COUNT + 1) * 4;
        for index in 0..COUNT {
            put(&mut data, 4, index as u64 % 0x800);
            put(&mut data, 4, description as u64);
        }
        put(&mut data, 4, 0x900);
        data.extend([0; 4]);
        put(&mut data, 4, 1);
        data.extend([0; 16]);
        put(&mut data, 4, 1);
        data.extend([0; 64]);
        assert!(parsed(&data, 8).is_err());
    }
}
