//! Symbol tables.

use object::LittleEndian as LE;
use object::elf::{self, Sym32, Sym64};
use object::pod::slice_from_bytes;
use object::read::elf::Sym;
use sidestep_isa::{Len, Va};

use crate::arch;
use crate::elf::{Elf, TextRanges};
use crate::function::{Binding, Function, FunctionKind, Source};

/// What the tables of one object and its debug files say, in the order they were read.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    pub(crate) functions: Vec<Function>,
    /// Addresses of all symbols in text, of every type.
    pub(crate) labels: Vec<Va>,
    /// Functions of Go that are written in assembly, as far as symbols do not say it.
    pub(crate) assembly: Vec<Va>,
}

/// An entry of a table of either class.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    name: usize,
    info: u8,
    pub(crate) section: u16,
    pub(crate) va: Va,
    pub(crate) size: Len,
}

impl Symbol {
    fn of(raw: &impl Sym<Endian = LE>) -> Symbol {
        Symbol {
            name: raw.st_name(LE) as usize,
            info: raw.st_info(),
            section: raw.st_shndx(LE),
            va: Va(raw.st_value(LE).into()),
            size: Len(raw.st_size(LE).into()),
        }
    }

    /// `STT_…`.
    pub(crate) fn kind(&self) -> u8 {
        self.info & 0xf
    }

    /// `STB_LOCAL`.
    pub(crate) fn is_local(&self) -> bool {
        self.info >> 4 == elf::STB_LOCAL
    }

    /// What the string table has from its name on.
    pub(crate) fn text<'a>(&self, strings: &'a [u8]) -> Option<&'a [u8]> {
        strings.get(self.name..)
    }
}

/// The entries of a table, and its strings.
type Table<'a> = (Vec<Symbol>, &'a [u8]);

/// The first table of this section type; `None` if there is none.
pub(crate) fn entries(elf: &Elf, table: u32) -> Result<Option<Table<'_>>, &'static str> {
    let Some(section) = elf.of_type(table) else {
        return Ok(None);
    };
    let data = elf.data(section)?;
    let symbols = match arch::is_64(elf.isa) {
        false => slice_from_bytes::<Sym32<LE>>(data, data.len() / size_of::<Sym32<LE>>())
            .map(|(symbols, _)| symbols.iter().map(Symbol::of).collect()),
        true => slice_from_bytes::<Sym64<LE>>(data, data.len() / size_of::<Sym64<LE>>())
            .map(|(symbols, _)| symbols.iter().map(Symbol::of).collect()),
    };
    let symbols = symbols.map_err(|()| "a symbol table is not readable")?;
    let strings = elf.sections.get(section.link).ok_or("a symbol table has no string table")?;
    Ok(Some((symbols, elf.data(strings)?)))
}

/// A symbol's name, without its version. `None` if it is outside of the string table.
pub(crate) fn name<'a>(strings: &'a [u8], symbol: &Symbol) -> Option<&'a [u8]> {
    let rest = symbol.text(strings)?;
    let name = &rest[..rest.iter().position(|&b| b == 0)?];
    // Linkers write name@@VERSION (default) and name@VERSION into .symtab.
    let end = name.iter().skip(1).position(|&b| b == b'@').map_or(name.len(), |at| at + 1);
    Some(&name[..end])
}

/// Adds the functions and labels of a table to `out`. `text` are the ranges of the *object*: a
/// debug file has the same addresses. Returns how many functions it has; `None` = there is no such
/// table.
pub(crate) fn read(
    elf: &Elf,
    table: u32,
    source: Source,
    text: &TextRanges,
    out: &mut Symbols,
) -> Result<Option<usize>, &'static str> {
    let Some((symbols, strings)) = entries(elf, table)? else {
        return Ok(None);
    };
    // Names may share their tails, but a corrupt table must not turn megabytes into gigabytes.
    let mut budget = (16 << 20).max(8 * strings.len());
    let before = out.functions.len();
    for symbol in symbols {
        let Symbol { section, va, size, .. } = symbol;
        let st_type = symbol.kind();
        let defined = !matches!(section, elf::SHN_UNDEF | elf::SHN_ABS | elf::SHN_COMMON);
        if !defined || st_type == elf::STT_TLS || !text.contain(va) {
            continue;
        }
        let is_function = matches!(st_type, elf::STT_FUNC | elf::STT_GNU_IFUNC);
        if !is_function && name(strings, &symbol).is_some_and(|name| arch::is_mapping(elf.isa, name)) {
            continue;
        }
        let foreign = is_function && arch::is_foreign(elf.isa, va);
        let va = arch::code(elf.isa, va);
        out.labels.push(va);
        if !is_function || foreign {
            continue;
        }
        let name = name(strings, &symbol).ok_or("a symbol's name is outside of the string table")?;
        if name.is_empty() {
            continue;
        }
        budget = budget.checked_sub(name.len()).ok_or("its symbol names overlap beyond reason")?;
        let name: Box<str> = String::from_utf8_lossy(name).into();
        out.functions.push(Function {
            va,
            size,
            kind: match st_type {
                elf::STT_GNU_IFUNC => FunctionKind::Ifunc,
                _ if is_cold(&name) => FunctionKind::Cold,
                _ => FunctionKind::Func,
            },
            name,
            binding: match symbol.info >> 4 {
                elf::STB_LOCAL => Binding::Local,
                elf::STB_WEAK => Binding::Weak,
                _ => Binding::Global,
            },
            source,
        });
    }
    Ok(Some(out.functions.len() - before))
}

/// What a symbol of either table names, and its size: a global one before others.
pub(crate) fn find(elf: &Elf, wanted: &str) -> Option<(Va, Len)> {
    let mut found: Option<(bool, Va, Len)> = None;
    for table in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let Ok(Some((symbols, strings))) = entries(elf, table) else { continue };
        for symbol in symbols {
            let defined = !matches!(symbol.section, elf::SHN_UNDEF | elf::SHN_ABS | elf::SHN_COMMON);
            let names = matches!(symbol.kind(), elf::STT_OBJECT | elf::STT_FUNC | elf::STT_NOTYPE | elf::STT_GNU_IFUNC);
            if !defined || !names || name(strings, &symbol) != Some(wanted.as_bytes()) {
                continue;
            }
            let local = symbol.is_local();
            if found.is_none_or(|(known, ..)| known && !local) {
                found = Some((local, symbol.va, symbol.size));
            }
        }
    }
    found.map(|(_, va, size)| (va, size))
}

/// Addresses of all functions that are there, as the tables have them. With what is not readable,
/// nothing is found.
pub(crate) fn functions(elf: &Elf) -> Vec<Va> {
    let mut found = Vec::new();
    for table in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let Ok(Some((symbols, _))) = entries(elf, table) else { continue };
        let is_there = |symbol: &&Symbol| symbol.kind() == elf::STT_FUNC && symbol.section != elf::SHN_UNDEF;
        found.extend(symbols.iter().filter(is_there).map(|symbol| symbol.va));
    }
    found
}

/// Whether other objects can see a symbol of the object.
pub(crate) fn exports(elf: &Elf, wanted: &str) -> bool {
    let Ok(Some((symbols, strings))) = entries(elf, elf::SHT_DYNSYM) else { return false };
    symbols.iter().any(|symbol| symbol.section != elf::SHN_UNDEF && name(strings, symbol) == Some(wanted.as_bytes()))
}

/// `foo.cold` and `foo.cold.3`: what GCC and LLVM call the part that is split off.
fn is_cold(name: &str) -> bool {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    name.ends_with(".cold") || stem.ends_with(".cold.")
}
