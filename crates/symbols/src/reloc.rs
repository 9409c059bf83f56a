//! Dynamic relocations: where pointers to code are stored.

use object::LittleEndian as LE;
use object::elf::{self, Rela64};
use object::pod::slice_from_bytes;
use sidestep_isa::{Len, Va};

use crate::elf::{Elf, word};
use crate::symtab;

/// The descriptions of restartable sequences, `struct rseq_cs` (include/uapi/linux/rseq.h), are here by convention.
pub(crate) const SEQUENCES: &str = "__rseq_cs";

/// What the dynamic linker stores, and where.
#[derive(Debug, Default)]
pub(crate) struct Relocations {
    /// Values that are stored: addends of `RELATIVE`, `IRELATIVE` (the resolver) and symbol value + addend of `64`.
    pub(crate) values: Vec<Va>,
    /// `(slot, value)` of each `R_X86_64_RELATIVE` of the sections whose words are asked for by address.
    pub(crate) slots: Vec<(Va, Va)>,
    /// `(resolver, slot)` of each `R_X86_64_IRELATIVE`, sorted.
    pub(crate) irelative: Vec<(Va, Va)>,
    /// `(symbol name, slot)` of each `R_X86_64_JUMP_SLOT` and `R_X86_64_GLOB_DAT`, sorted.
    pub(crate) imports: Vec<(Box<[u8]>, Va)>,
}

pub(crate) fn read(elf: &Elf) -> Result<Relocations, &'static str> {
    let mut found = Relocations::default();
    let (symbols, strings) = symtab::entries(elf, elf::SHT_DYNSYM)?.unwrap_or((&[], &[]));
    let sequences = elf.section(SEQUENCES).map_or(Va(0)..Va(0), |s| s.va..s.va.plus(Len(s.size)));
    for section in elf.sections.iter().filter(|s| s.is_alloc()) {
        match section.sh_type {
            elf::SHT_RELA => {
                let data = elf.data(section)?;
                let (entries, _) = slice_from_bytes::<Rela64<LE>>(data, data.len() / size_of::<Rela64<LE>>())
                    .map_err(|()| "a relocation table is not readable")?;
                for entry in entries {
                    let slot = Va(entry.r_offset.get(LE));
                    let addend = entry.r_addend.get(LE);
                    let symbol = || symbols.get(entry.r_sym(LE, false) as usize);
                    match entry.r_type(LE, false) {
                        elf::R_X86_64_RELATIVE => {
                            found.values.push(Va(addend as u64));
                            if sequences.contains(&slot) {
                                found.slots.push((slot, Va(addend as u64)));
                            }
                        }
                        elf::R_X86_64_IRELATIVE => {
                            found.values.push(Va(addend as u64));
                            found.irelative.push((Va(addend as u64), slot));
                        }
                        elf::R_X86_64_64 => {
                            let symbol = symbol().ok_or("a relocation names a symbol that is not there")?;
                            if symbol.st_shndx.get(LE) != elf::SHN_UNDEF {
                                found.values.push(Va(symbol.st_value.get(LE)).offset(addend));
                            }
                        }
                        elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT => {
                            let symbol = symbol().ok_or("a relocation names a symbol that is not there")?;
                            let name = symtab::name(strings, symbol);
                            let name = name.ok_or("a symbol's name is outside of the string table")?;
                            found.imports.push((name.get(..4096).unwrap_or(name).into(), slot));
                        }
                        _ => {}
                    }
                }
            }
            elf::SHT_RELR => relr(elf, elf.data(section)?, &mut found.values),
            _ => {}
        }
    }
    found.slots.sort_unstable();
    found.irelative.sort_unstable();
    found.imports.sort_unstable();
    Ok(found)
}

/// Packed relative relocations (gABI, "Relative Relocation Table"): an even word is an address to relocate; an odd one
/// a bitmap of the 63 words behind it. The addends are in the words themselves.
fn relr(elf: &Elf, table: &[u8], values: &mut Vec<Va>) {
    let mut store = |at: u64| {
        if let Some(bytes) = elf.data_from(Va(at)).filter(|b| b.len() >= 8) {
            values.push(Va(word(bytes, 0)));
        }
    };
    let mut next = 0u64;
    for entry in table.chunks_exact(8).map(|entry| word(entry, 0)) {
        if entry & 1 == 0 {
            store(entry);
            next = entry.wrapping_add(8);
        } else {
            for bit in (1..64).filter(|bit| entry >> bit & 1 == 1) {
                store(next.wrapping_add(8 * (bit - 1)));
            }
            next = next.wrapping_add(63 * 8);
        }
    }
}
