//! Dynamic relocations: where pointers to code are stored.

use std::ops::Range;

use object::LittleEndian as LE;
use object::elf::{self, Rel32, Rela64};
use object::pod::slice_from_bytes;
use sidestep_isa::{Len, Va};

use crate::arch;
use crate::elf::{Elf, Section, word};
use crate::symtab;

/// The descriptions of restartable sequences, `struct rseq_cs` (include/uapi/linux/rseq.h), are
/// here by convention.
pub(crate) const SEQUENCES: &str = "__rseq_cs";
/// The addresses of places that `-fpatchable-function-entry` has left for patches.
pub(crate) const PATCHABLE: &str = "__patchable_function_entries";
/// The places that XRay changes.
pub(crate) const XRAY: &str = "xray_instr_map";

/// What the dynamic linker stores, and where.
#[derive(Debug, Default)]
pub(crate) struct Relocations {
    /// Values that are stored: addends of `RELATIVE`, `IRELATIVE` (the resolver) and symbol value +
    /// addend of `64` and `32`.
    pub(crate) values: Vec<Va>,
    /// `(slot, value)` of each `RELATIVE` of the sections whose words are asked for by address.
    pub(crate) slots: Vec<(Va, Va)>,
    /// `(resolver, slot)` of each `IRELATIVE`, sorted. The address is that of the resolver's first
    /// byte.
    pub(crate) irelative: Vec<(Va, Va)>,
    /// `(symbol name, slot)` of each `JUMP_SLOT` and `GLOB_DAT`, sorted.
    pub(crate) imports: Vec<(Box<[u8]>, Va)>,
}

impl Relocations {
    /// The address that is stored at `at` in `bytes`, which lie at `va`, in a section whose words
    /// are asked for by address.
    pub(crate) fn stored(&self, size: usize, va: Va, bytes: &[u8], at: usize) -> Va {
        let slot = va.plus(Len(at as u64));
        let found = self.slots.binary_search_by_key(&slot, |(slot, _)| *slot);
        found.map_or_else(|_| Va(word(size, bytes, at)), |found| self.slots[found].1)
    }
}

/// What is done with a slot.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Relative,
    Irelative,
    /// Symbol value plus addend.
    Absolute,
    Import,
    Other,
}

/// A relocation of either class.
struct Entry {
    slot: Va,
    kind: Kind,
    symbol: usize,
    addend: i64,
}

/// The entries of a table with addends.
fn rela(elf: &Elf, data: &[u8]) -> Result<Vec<Entry>, ()> {
    let (entries, _) = slice_from_bytes::<Rela64<LE>>(data, data.len() / size_of::<Rela64<LE>>())?;
    let entry = |raw: &Rela64<LE>| Entry {
        slot: Va(raw.r_offset.get(LE)),
        kind: (arch::of(elf.isa).relocation)(raw.r_type(LE, false)),
        symbol: raw.r_sym(LE, false) as usize,
        addend: raw.r_addend.get(LE),
    };
    Ok(entries.iter().map(entry).collect())
}

/// The entries of a table of 32-bit objects, where the addends are in the slots.
fn rel(elf: &Elf, data: &[u8]) -> Result<Vec<Entry>, ()> {
    let (entries, _) = slice_from_bytes::<Rel32<LE>>(data, data.len() / size_of::<Rel32<LE>>())?;
    let entry = |raw: &Rel32<LE>| {
        let slot = Va(raw.r_offset.get(LE).into());
        let there = elf.data_from(slot).filter(|bytes| bytes.len() >= elf.word());
        Entry {
            slot,
            kind: (arch::of(elf.isa).relocation)(raw.r_type(LE)),
            symbol: raw.r_sym(LE) as usize,
            addend: there.map_or(0, |bytes| word(elf.word(), bytes, 0) as i64),
        }
    };
    Ok(entries.iter().map(entry).collect())
}

pub(crate) fn read(elf: &Elf) -> Result<Relocations, &'static str> {
    let mut found = Relocations::default();
    let (symbols, strings) = symtab::entries(elf, elf::SHT_DYNSYM)?.unwrap_or((Vec::new(), &[]));
    let ranges = |is_meant: &dyn Fn(&Section) -> bool| {
        let sections = elf.sections.iter().filter(|s| is_meant(s));
        sections.map(|s| s.va..s.end()).collect::<Vec<Range<Va>>>()
    };
    let rewritten = |s: &Section| s.name == PATCHABLE || s.name == XRAY;
    let asked = ranges(&|s| s.name == SEQUENCES || s.is_array() || rewritten(s));
    // Nobody jumps to what these say.
    let no_pointers = ranges(&rewritten);
    for section in elf.sections.iter().filter(|s| s.is_alloc()) {
        let entries = match (section.sh_type, arch::is_64(elf.isa)) {
            (elf::SHT_RELA, true) => rela(elf, elf.data(section)?),
            (elf::SHT_REL, false) => rel(elf, elf.data(section)?),
            (elf::SHT_RELR, _) => {
                relr(elf, elf.data(section)?, &no_pointers, &mut found.values);
                continue;
            }
            _ => continue,
        };
        for Entry { slot, kind, symbol, addend } in entries.map_err(|()| "a relocation table is not readable")? {
            let symbol = || symbols.get(symbol).ok_or("a relocation names a symbol that is not there");
            let value = Va(addend as u64);
            match kind {
                Kind::Relative => {
                    if !no_pointers.iter().any(|range| range.contains(&slot)) {
                        found.values.push(value);
                    }
                    if asked.iter().any(|range| range.contains(&slot)) {
                        found.slots.push((slot, value));
                    }
                }
                Kind::Irelative => {
                    found.values.push(value);
                    found.irelative.push((arch::code(elf.isa, value), slot));
                }
                Kind::Absolute => {
                    let symbol = symbol()?;
                    if symbol.section != elf::SHN_UNDEF {
                        found.values.push(elf.isa.wrap(symbol.va.offset(addend)));
                    }
                }
                Kind::Import => {
                    let name = symtab::name(strings, symbol()?);
                    let name = name.ok_or("a symbol's name is outside of the string table")?;
                    found.imports.push((name.get(..4096).unwrap_or(name).into(), slot));
                }
                Kind::Other => {}
            }
        }
    }
    found.slots.sort_unstable();
    found.irelative.sort_unstable();
    found.imports.sort_unstable();
    Ok(found)
}

/// What a `RELATIVE` relocation with an addend of its own stores at an address. Reads the tables at
/// each call.
pub(crate) fn relative(elf: &Elf, at: Va) -> Option<Va> {
    let tables = elf.sections.iter().filter(|s| s.is_alloc() && s.sh_type == elf::SHT_RELA);
    let entries = tables.filter_map(|section| rela(elf, elf.data(section).ok()?).ok()).flatten();
    let relative = entries.filter(|entry| matches!(entry.kind, Kind::Relative) && entry.slot == at);
    relative.map(|entry| Va(entry.addend as u64)).next()
}

/// Packed relative relocations (gABI, "Relative Relocation Table"): an even word is an address to
/// relocate; an odd one a bitmap of the words behind it, one less than it has bits. The addends are
/// in the words themselves.
fn relr(elf: &Elf, table: &[u8], no_pointers: &[Range<Va>], values: &mut Vec<Va>) {
    let (size, bits) = (elf.isa.word(), u64::from(elf.isa.bits()));
    let mut store = |at: u64| {
        if no_pointers.iter().any(|range| range.contains(&Va(at))) {
            return;
        }
        if let Some(bytes) = elf.data_from(Va(at)).filter(|b| b.len() >= elf.word()) {
            values.push(Va(word(elf.word(), bytes, 0)));
        }
    };
    let mut next = 0u64;
    for entry in table.chunks_exact(elf.word()).map(|entry| word(elf.word(), entry, 0)) {
        if entry & 1 == 0 {
            store(entry);
            next = entry.wrapping_add(size);
        } else {
            for bit in (1..bits).filter(|bit| entry >> bit & 1 == 1) {
                store(next.wrapping_add(size * (bit - 1)));
            }
            next = next.wrapping_add((bits - 1) * size);
        }
    }
}
