//! USDT probes: places in a program that its authors named (`python:function__entry`), with where
//! their arguments are.
//!
//! Each is a nop in the code and a note in the section `.note.stapsdt`, which is not loaded. Source
//! of the facts: the wiki page "UserSpaceProbeImplementation" of SystemTap.

pub(crate) mod argument;
pub(crate) mod register;
mod spec;

use std::collections::HashMap;
use std::path::PathBuf;

use object::elf::{SHN_ABS, SHN_COMMON, SHN_UNDEF, SHT_DYNSYM, SHT_NOTE, SHT_SYMTAB, STT_TLS};
use sidestep_isa::{Isa, Len, Va};

pub use self::argument::{Argument, ArgumentError, ArgumentKind, Memory, Place, Symbol, parse_arguments};
pub use self::register::Register;
pub use self::spec::{SpecError, SpecLayout};
use crate::arch;
pub use crate::arch::operand::Syntax;
use crate::elf::{Elf, word};
use crate::error::ObjectError;
use crate::{matcher, symtab};

/// One site of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Who named it: usually the library or program.
    pub provider: Box<str>,
    /// Its name. Several sites can have one name.
    pub name: Box<str>,
    /// The code that it is in.
    pub isa: Isa,
    /// Link-time address of its nop; in an executable section.
    pub va: Va,
    /// Link-time address of a `u16` in writable data that counts who listens: programs look at it
    /// to save the work of making arguments. Whoever attaches adds 1 to it, and takes 1 away
    /// afterwards.
    pub semaphore: Option<Va>,
    /// The text that says where the arguments are.
    pub text: Box<str>,
    /// The arguments; the error if the text is not understood.
    pub arguments: Result<Vec<Argument>, ArgumentError>,
}

impl Probe {
    /// Whether the globs match the whole provider and name.
    #[must_use]
    pub fn matches(&self, provider: &str, name: &str) -> bool {
        matcher::glob(provider, &self.provider) && matcher::glob(name, &self.name)
    }

    /// Where its arguments are, as the assembler writes it: `%rax`, `-8(%rbp)`, `$5`.
    pub fn operands(&self) -> impl Iterator<Item = &str> {
        argument::split(&self.text).map(|part| part.split_once('@').map_or(part, |(_, operand)| operand))
    }
}

/// Why a USDT probe was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsdtError {
    /// The object cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// Nothing matches.
    #[error("no USDT probe `{provider}:{name}` in {}{}", path.display(), others(*count, nearest))]
    NotFound {
        /// The glob for providers.
        provider: String,
        /// The glob for names.
        name: String,
        /// In which object.
        path: PathBuf,
        /// How many sites of probes the object has.
        count: usize,
        /// At most three `provider:name` that are close.
        nearest: Vec<String>,
    },
}

fn others(count: usize, nearest: &[String]) -> String {
    match (count, nearest) {
        (0, _) => ": it has no USDT probes".to_owned(),
        (_, []) => format!(": none of its {count} sites matches"),
        _ => format!("; did you mean `{}`?", nearest.join("` or `")),
    }
}

/// The owner of the notes, with its NUL, and their type.
const OWNER: &[u8] = b"stapsdt\0";
const NOTE_TYPE: u32 = 3;

/// What one note says, with the addresses as they are there.
struct Note<'a> {
    pc: u64,
    base: u64,
    semaphore: u64,
    provider: &'a [u8],
    name: &'a [u8],
    arguments: &'a [u8],
}

/// The probes of an object by provider, name and address. What the linker dropped (`--gc-sections`)
/// leaves notes whose addresses are not code: they are left out.
pub(crate) fn read(elf: &Elf) -> Result<Vec<Probe>, &'static str> {
    let text = elf.text_ranges();
    let syntax = arch::of(elf.isa).syntax;
    // prelink moves sections but not what notes say. Therefore each has the address of this section
    // as it was linked.
    let base = elf.section(".stapsdt.base").map_or(0, |section| section.va.0);
    let mut probes = Vec::new();
    for section in elf.sections.iter().filter(|s| s.sh_type == SHT_NOTE && s.name == ".note.stapsdt") {
        let mut rest = elf.data(section)?;
        while !rest.is_empty() {
            let Some(note) = next(elf.isa, &mut rest)? else { continue };
            let moved = if base == 0 || note.base == 0 { 0 } else { base.wrapping_sub(note.base) };
            let va = elf.isa.wrap(Va(note.pc).plus(Len(moved)));
            if !text.contain(va) {
                continue;
            }
            let semaphore = (note.semaphore != 0).then(|| elf.isa.wrap(Va(note.semaphore).plus(Len(moved))));
            if semaphore.is_some_and(|at| !is_data(elf, at)) {
                return Err("the semaphore of a USDT probe is not in its writable data");
            }
            let text = match note.arguments {
                // What macros before version 3 wrote.
                [b':', ..] => String::new(),
                other => String::from_utf8_lossy(other).into_owned(),
            };
            probes.push(Probe {
                provider: String::from_utf8_lossy(note.provider).into(),
                name: String::from_utf8_lossy(note.name).into(),
                isa: elf.isa,
                va,
                semaphore,
                arguments: parse_arguments(&text, syntax),
                text: text.into(),
            });
        }
    }
    resolve(elf, &mut probes)?;
    probes.sort_by(|a, b| (&a.provider, &a.name, a.va).cmp(&(&b.provider, &b.name, b.va)));
    // One site said twice is hit once.
    probes.dedup();
    Ok(probes)
}

/// Whether a `u16` that can be written is there.
fn is_data(elf: &Elf, at: Va) -> bool {
    let has = |va: Va, size: Len| va <= at && at.0 - va.0 <= size.0.saturating_sub(2) && size.0 >= 2;
    elf.segments.iter().any(|s| s.write && !s.execute && has(s.va, s.size))
}

/// Takes a note off the front; `None` if it is of somebody else.
fn next<'a>(isa: Isa, rest: &mut &'a [u8]) -> Result<Option<Note<'a>>, &'static str> {
    const CUT: &str = "a note of .note.stapsdt ends behind its section";
    let (header, tail) = rest.split_first_chunk::<12>().ok_or(CUT)?;
    let field = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (owner, tail) = padded(tail, field(0)).ok_or(CUT)?;
    let (body, tail) = padded(tail, field(4)).ok_or(CUT)?;
    *rest = tail;
    if owner != OWNER || field(8) != NOTE_TYPE {
        return Ok(None);
    }
    note(isa, body).map(Some).ok_or("a note of .note.stapsdt does not have three addresses and three strings")
}

/// The first `size` bytes, and what follows their padding. At the end of a section the padding may
/// be missing.
fn padded(bytes: &[u8], size: u32) -> Option<(&[u8], &[u8])> {
    let size = usize::try_from(size).ok()?;
    let taken = bytes.get(..size)?;
    Some((taken, bytes.get(size.checked_next_multiple_of(4)?..).unwrap_or(&[])))
}

fn note(isa: Isa, body: &[u8]) -> Option<Note<'_>> {
    let size = isa.word() as usize;
    let (addresses, strings) = body.split_at_checked(3 * size)?;
    let mut strings = strings.split(|b| *b == 0);
    let (provider, name, arguments) = (strings.next()?, strings.next()?, strings.next()?);
    // What follows the last NUL: so there were three.
    strings.next()?;
    (!name.is_empty()).then_some(Note {
        pc: word(size, addresses, 0),
        base: word(size, addresses, size),
        semaphore: word(size, addresses, 2 * size),
        provider,
        name,
        arguments,
    })
}

/// Looks up the symbols in arguments.
fn resolve(elf: &Elf, probes: &mut [Probe]) -> Result<(), &'static str> {
    // `Some(None)`: several symbols have this name.
    let mut found: HashMap<Box<[u8]>, Option<Option<Va>>> = HashMap::new();
    for probe in probes.iter_mut() {
        found.extend(symbols(probe).map(|s| (s.in_tables().0.as_bytes().into(), None)));
    }
    if found.is_empty() {
        return Ok(());
    }
    for table in [SHT_SYMTAB, SHT_DYNSYM] {
        let Some((entries, strings)) = symtab::entries(elf, table)? else {
            continue;
        };
        for entry in entries {
            let va = entry.va;
            if matches!(entry.section, SHN_UNDEF | SHN_ABS | SHN_COMMON) || entry.kind() == STT_TLS {
                continue;
            }
            let name = entry.text(strings).unwrap_or(&[]);
            let name = &name[..name.len().min(argument::NAME_MAX)];
            let end = name.iter().position(|b| matches!(b, 0 | b'@')).unwrap_or(0);
            if let Some(known) = found.get_mut(&name[..end]) {
                *known = Some(match known {
                    None => Some(va),
                    Some(other) => other.filter(|other| *other == va),
                });
            }
        }
    }
    let got = elf.global_offset_table();
    for symbol in probes.iter_mut().flat_map(symbols) {
        let (name, from_got) = symbol.in_tables();
        let va = found.get(name.as_bytes()).copied().flatten().flatten();
        (symbol.va, symbol.origin) = match (from_got, got) {
            (false, _) => (va, Va(0)),
            (true, Some(got)) => (va, got),
            (true, None) => (None, Va(0)),
        };
    }
    Ok(())
}

/// The symbols in a probe's arguments.
fn symbols(probe: &mut Probe) -> impl Iterator<Item = &mut Symbol> {
    probe.arguments.iter_mut().flatten().filter_map(|argument| match &mut argument.place {
        Place::Memory(memory) => memory.symbol.as_mut(),
        _ => None,
    })
}
