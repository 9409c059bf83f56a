//! One object file: its functions and what else there is to know about it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use object::elf;
use sidestep_isa::object::Bytes;
use sidestep_isa::{FileOff, Isa, Len, ObjectCode, Va};

use crate::arch;
use crate::code;
use crate::debugfile::{self, DebugSearch, Outcome, Searched};
use crate::dwarf::{Place, Sections};
use crate::elf::{Elf, Kind, Segment};
use crate::error::{LineError, ObjectError, SymbolError, TypeError};
use crate::function::{Function, Source};
use crate::image::Image;
use crate::line;
use crate::maps::Mapping;
use crate::nearest::nearest;
use crate::pclntab;
use crate::reloc::{self, Relocations};
use crate::symtab::{self, Symbols};
use crate::types::DebugInfo;
use crate::unwind::{self, Rule, Unwinding};
use crate::usdt::{self, UsdtError};
use crate::variable::Variables;

mod names;
mod overloads;

/// An x86-64 or i386 program or shared library with the functions of all its symbol tables and
/// debug files.
#[derive(Debug)]
pub struct Object {
    path: PathBuf,
    elf: Elf,
    /// By address, then by rank.
    functions: Vec<Function>,
    /// Indices into `functions`, by name.
    by_name: Vec<u32>,
    labels: Vec<Va>,
    searched: Vec<Searched>,
    relocations: OnceLock<Result<Relocations, &'static str>>,
    /// All of [`Object::code`] but the bytes.
    code: OnceLock<Result<ObjectCode<'static>, &'static str>>,
    /// See [`Object::frame_rule`].
    frames: OnceLock<Unwinding>,
    /// See [`Object::unnamed`].
    pub(crate) unnamed: OnceLock<Vec<Function>>,
    /// See [`Object::variable_at`].
    pub(crate) variables: OnceLock<Variables>,
    /// See [`Object::shown_name`].
    overloads: overloads::Overloads,
    go: bool,
    /// See [`Object::is_go_code`]; sorted.
    pub(crate) assembly: Vec<Va>,
    debug: Place,
}

/// Threads share an object.
const _: fn(&Object) -> &(dyn Send + Sync) = |object| object;

impl Object {
    /// Opens a file; looks for debug files in `debug_dirs`, then in `/usr/lib/debug` and beside the
    /// file.
    pub fn open(path: &Path, debug_dirs: &[PathBuf]) -> Result<Self, ObjectError> {
        // Debug files lie beside the real file, not beside a link to it.
        let real = crate::zip::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let image = Image::read(path, is_wanted)?;
        Self::build(path, &real, Some(path), image, DebugSearch::with_dirs(debug_dirs))
    }

    /// Opens `file`, which is `path` to the user and in messages. For `/usr/bin/redis-server`,
    /// `file` is `/proc/42/root/usr/bin/redis-server` or `/proc/42/map_files/…`.
    pub fn open_at(path: &Path, file: &Path, search: &DebugSearch) -> Result<Self, ObjectError> {
        let image = Image::read(file, is_wanted)?;
        Self::build(path, path, Some(file), image, search.clone())
    }

    /// An object whose bytes are in memory. `path` is for messages and for finding debug files.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>, search: &DebugSearch) -> Result<Self, ObjectError> {
        Self::build(path, path, None, Image::from_bytes(bytes), search.clone())
    }

    fn build(
        path: &Path,
        real: &Path,
        file: Option<&Path>,
        image: Image,
        search: DebugSearch,
    ) -> Result<Self, ObjectError> {
        let elf = Elf::parse(path, image)?;
        let corrupt = |what| ObjectError::Corrupt { path: path.to_owned(), what };
        for section in elf.sections.iter().filter(|s| s.is_text() || s.is_data()) {
            elf.data(section).map_err(corrupt)?;
        }
        let text = elf.text_ranges();
        let mut symbols = Symbols::default();
        let mut searched = Vec::new();
        for (table, name, source) in
            [(elf::SHT_SYMTAB, ".symtab", Source::Symtab), (elf::SHT_DYNSYM, ".dynsym", Source::Dynsym)]
        {
            let found = symtab::read(&elf, table, source, &text, &mut symbols).map_err(corrupt)?;
            searched.push(Searched { place: name.to_owned(), outcome: found.map_or(Outcome::Absent, Outcome::Found) });
        }
        // With a full table, the others hold nothing new.
        if searched[0].outcome == Outcome::Absent {
            let outcome = debugfile::read_debugdata(path, &elf, &text, &mut symbols);
            searched.push(Searched { place: ".gnu_debugdata".to_owned(), outcome });
            debugfile::read_debug_file(real, &elf, &search, &text, &mut symbols, &mut searched);
            // Nobody misses it in a program that is not of Go.
            if let Some(outcome) = match pclntab::read(&elf, &text, &mut symbols) {
                Ok(found) => found.map(Outcome::Found),
                Err(why) => Some(Outcome::Rejected(why.to_owned())),
            } {
                searched.push(Searched { place: ".gopclntab".to_owned(), outcome });
            }
        }
        let (functions, by_name) = index(symbols.functions);
        let go = code::is_go(&elf, &functions);
        Ok(Self {
            path: path.to_owned(),
            elf,
            functions,
            by_name,
            labels: symbols.labels,
            searched,
            relocations: OnceLock::new(),
            code: OnceLock::new(),
            frames: OnceLock::new(),
            unnamed: OnceLock::new(),
            variables: OnceLock::new(),
            overloads: overloads::Overloads::default(),
            go,
            assembly: symbols.assembly,
            debug: Place { file: file.map(Path::to_owned), path: real.to_owned(), search },
        })
    }

    pub(crate) fn debug_place(&self) -> &Place {
        &self.debug
    }

    pub(crate) fn elf(&self) -> &Elf {
        &self.elf
    }

    /// The link-time address and the size of what a symbol names, data as well as functions: those
    /// that are visible to other objects first. Nothing of each thread. Reads the tables at each
    /// call: keep the result.
    #[must_use]
    pub fn symbol(&self, name: &str) -> Option<(Va, Len)> {
        let own = symtab::find(&self.elf, name);
        own.or_else(|| symtab::find(self.debug_symbols()?.elf(), name))
    }

    /// A file that has a full symbol table: this one, or its debug file. Read at each call.
    pub(crate) fn debug_symbols(&self) -> Option<Sections> {
        let wanted = |section: &[u8]| matches!(section, b".symtab" | b".strtab") || section.starts_with(b".note");
        self.debug.open(&self.elf, ".symtab", wanted).ok()
    }

    /// The path it was opened as.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its instructions are.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.elf.isa
    }

    /// Program or library, at a fixed address or not.
    #[must_use]
    pub fn kind(&self) -> Kind {
        let flags = self.elf.dynamic(i64::from(elf::DT_FLAGS_1));
        let pie = flags.iter().any(|flags| flags & u64::from(elf::DF_1_PIE) != 0);
        // Before DF_1_PIE (binutils 2.26), and for libraries that can be run like libc.so.6, the
        // name has to tell.
        let program = pie || self.interpreter().is_some() && self.soname().is_none();
        match self.elf.e_type {
            elf::ET_EXEC => Kind::Program,
            _ if program => Kind::PieProgram,
            _ => Kind::Library,
        }
    }

    /// Whether it can be loaded anywhere (a library or a position-independent program).
    #[must_use]
    pub fn is_pie(&self) -> bool {
        self.kind() != Kind::Program
    }

    /// Whether it is a program without a dynamic linker.
    #[must_use]
    pub fn is_static(&self) -> bool {
        self.kind() != Kind::Library && self.interpreter().is_none()
    }

    /// The dynamic linker (`PT_INTERP`). Some shared libraries have one, too (libc.so.6 can be
    /// run).
    #[must_use]
    pub fn interpreter(&self) -> Option<&str> {
        self.elf.interpreter.as_deref()
    }

    /// Link-time address of the first byte of the entry point; 0 in most libraries.
    #[must_use]
    pub fn entry(&self) -> Va {
        arch::code(self.elf.isa, self.elf.entry)
    }

    /// The first byte of the code that a pointer to a function means, a link-time address. `None`:
    /// that is no code of this object, or of another instruction set.
    #[must_use]
    pub fn pointed_to(&self, pointer: Va) -> Option<Va> {
        let va = arch::code(self.elf.isa, pointer);
        (self.elf.in_text(va) && !arch::is_foreign(self.elf.isa, pointer)).then_some(va)
    }

    /// The `PT_LOAD` segments, in file order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.elf.segments
    }

    /// The bytes of the GNU build id.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        self.elf.build_id.as_deref()
    }

    /// `DT_SONAME`.
    #[must_use]
    pub fn soname(&self) -> Option<String> {
        self.elf.dynamic_strings(i64::from(elf::DT_SONAME)).pop()
    }

    /// `DT_NEEDED`, in order.
    #[must_use]
    pub fn needed(&self) -> Vec<String> {
        self.elf.dynamic_strings(i64::from(elf::DT_NEEDED))
    }

    /// Whether the Go toolchain compiled it.
    #[must_use]
    pub fn is_go(&self) -> bool {
        self.go
    }

    /// All functions, by address; names of one address with the preferred one first.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Where symbols were looked for.
    #[must_use]
    pub fn searched(&self) -> &[Searched] {
        &self.searched
    }

    /// The addresses of a line of a source file, or of a column of it, one in each function that
    /// has code of it: where it begins first. `file` is the end of its path. Reads the line table
    /// at each call.
    pub fn line(&self, file: &str, line: u64, column: Option<u64>) -> Result<Vec<Va>, LineError> {
        let mut functions = HashSet::new();
        let mut addresses = line::addresses(&self.debug, &self.elf, line::Wanted { file, line, column })?;
        addresses.retain(|va| self.elf.in_text(*va));
        addresses.retain(|va| functions.insert(self.function_at(*va).map_or(*va, |(f, _)| f.va)));
        Ok(addresses)
    }

    /// `0xADDR`: checks that a link-time address is code.
    pub fn check_code(&self, va: Va) -> Result<(), SymbolError> {
        if self.elf.in_text(va) { Ok(()) } else { Err(SymbolError::NotCode { va: va.0, path: self.path.clone() }) }
    }

    /// The function around a link-time address, and the offset in it. Of several names, the
    /// preferred one. A function without a size reaches to the next symbol.
    #[must_use]
    pub fn function_at(&self, va: Va) -> Option<(&Function, u64)> {
        if !self.elf.in_text(va) {
            return None;
        }
        let end = self.functions.partition_point(|f| f.va <= va);
        let last = self.functions.get(end.checked_sub(1)?)?.va;
        // Functions can be nested (entry points within assembler routines), so the nearest start is
        // not always it.
        let around = self.functions[..end].iter().rev().take(256).filter(|f| match f.size.0 {
            0 => f.va == last,
            size => va.0 - f.va.0 < size,
        });
        let best = around.max_by(|a, b| (a.va, b.rank()).cmp(&(b.va, a.rank())))?;
        Some((best, va.0 - best.va.0))
    }

    /// The link-time address of a byte of the file; `None` if no segment has it.
    #[must_use]
    pub fn va_of(&self, offset: FileOff) -> Option<Va> {
        let has = |s: &&Segment| s.offset <= offset && offset.0 - s.offset.0 < s.file_size.0;
        self.segments().iter().find(has).map(|s| Va(s.va.0 + (offset.0 - s.offset.0)))
    }

    /// The place in the file of a link-time address; `None` if the file has no such byte.
    #[must_use]
    pub fn offset_of(&self, va: Va) -> Option<FileOff> {
        let has = |s: &&Segment| s.va <= va && va.0 - s.va.0 < s.file_size.0;
        self.segments().iter().find(has).map(|s| FileOff(s.offset.0 + (va.0 - s.va.0)))
    }

    /// What must be added to a link-time address to get the run-time one, from one *executable*
    /// mapping of this file (other mappings may be of parts that two segments share). `None` if the
    /// mapping is not of an executable segment.
    #[must_use]
    pub fn load_bias(&self, mapping: &Mapping) -> Option<i64> {
        if !mapping.execute {
            return None;
        }
        const PAGE: u64 = 4096;
        // The kernel and the dynamic linker map whole pages: both ends are rounded outwards.
        let segment = self.segments().iter().filter(|s| s.execute && s.file_size.0 > 0).find(|s| {
            let start = s.offset.0 & !(PAGE - 1);
            start <= mapping.offset.0 && mapping.offset.0 < s.offset.0.saturating_add(s.file_size.0)
        })?;
        let linked = segment.va.0.wrapping_add(mapping.offset.0.wrapping_sub(segment.offset.0));
        Some(mapping.start.since(Va(linked)))
    }

    /// Link-time addresses of the slots in this object that hold the implementation of the ifunc
    /// whose resolver is at `resolver` (`R_X86_64_IRELATIVE`, `R_386_IRELATIVE`). At run time each
    /// holds the address that the resolver chose.
    #[must_use]
    pub fn irelative_slots(&self, resolver: Va) -> Vec<Va> {
        let Ok(relocations) = self.relocations() else {
            return Vec::new();
        };
        let first = relocations.irelative.partition_point(|(r, _)| *r < resolver);
        relocations.irelative[first..].iter().take_while(|(r, _)| *r == resolver).map(|(_, slot)| *slot).collect()
    }

    /// Link-time addresses of the slots through which this object reaches the function `name` of
    /// whichever object has it (`JUMP_SLOT` and `GLOB_DAT`; versions not told apart). With lazy
    /// binding a slot points into this object's own PLT until the first call: check that the value
    /// is in the object that defines the function.
    #[must_use]
    pub fn import_slots(&self, name: &str) -> Vec<Va> {
        let Ok(relocations) = self.relocations() else {
            return Vec::new();
        };
        let first = relocations.imports.partition_point(|(n, _)| **n < *name.as_bytes());
        relocations.imports[first..]
            .iter()
            .take_while(|(n, _)| **n == *name.as_bytes())
            .map(|(_, slot)| *slot)
            .collect()
    }

    /// Its types, and those of its functions. Reads what may be most of the file at each call: keep
    /// the result.
    ///
    /// # Errors
    /// There is no debug information, or it is corrupt.
    pub fn debug_info(&self) -> Result<DebugInfo, TypeError> {
        DebugInfo::open(&self.debug, &self.elf)
    }

    /// All sites of all USDT probes, by provider, name and address. Reads the notes at each call:
    /// keep the result.
    pub fn usdt_probes(&self) -> Result<Vec<usdt::Probe>, ObjectError> {
        usdt::read(&self.elf).map_err(|what| ObjectError::Corrupt { path: self.path.clone(), what })
    }

    /// All sites of the USDT probes whose provider and name match these globs; an error with near
    /// names if there is none.
    pub fn find_usdt(&self, provider: &str, name: &str) -> Result<Vec<usdt::Probe>, UsdtError> {
        let all = self.usdt_probes()?;
        let found: Vec<_> = all.iter().filter(|probe| probe.matches(provider, name)).cloned().collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let names: Vec<String> = all.iter().map(|probe| format!("{}:{}", probe.provider, probe.name)).collect();
        Err(UsdtError::NotFound {
            provider: provider.to_owned(),
            name: name.to_owned(),
            path: self.path.clone(),
            count: all.len(),
            nearest: nearest(&format!("{provider}:{name}"), names.iter().map(String::as_str), 3),
        })
    }

    fn relocations(&self) -> Result<&Relocations, ObjectError> {
        let read = self.relocations.get_or_init(|| reloc::read(&self.elf));
        read.as_ref().map_err(|what| ObjectError::Corrupt { path: self.path.clone(), what })
    }

    /// The code facts for an analysis. `Err` if `.eh_frame` or the relocations are corrupt, because
    /// then jump targets may be missing from it.
    pub fn code(&self) -> Result<ObjectCode<'_>, ObjectError> {
        let code = self.described()?.clone();
        let with_bytes = || Ok(ObjectCode { text: code::text(&self.elf)?, data: code::data(&self.elf)?, ..code });
        with_bytes().map_err(|what| ObjectError::Corrupt { path: self.path.clone(), what })
    }

    /// All of [`Object::code`] but the bytes.
    pub(crate) fn described(&self) -> Result<&ObjectCode<'static>, ObjectError> {
        let relocations = self.relocations()?;
        let collect = || code::collect(&self.elf, &self.functions, &self.labels, relocations, self.go);
        let known = self.code.get_or_init(collect);
        known.as_ref().map_err(|what| ObjectError::Corrupt { path: self.path.clone(), what })
    }

    /// How to find the callers of frames, as `.eh_frame` says. Reads it at each call: keep the
    /// result.
    ///
    /// # Errors
    /// It is corrupt.
    pub fn unwinding(&self) -> Result<Unwinding, ObjectError> {
        unwind::read(&self.elf).map_err(|what| ObjectError::Corrupt { path: self.path.clone(), what })
    }

    /// The rule for frames at an instruction, by its link-time address. `None`: no description
    /// covers the instruction. Reads `.eh_frame` at the first call.
    #[must_use]
    pub fn frame_rule(&self, va: Va) -> Option<Rule> {
        let Unwinding { rows, rules } = self.frames.get_or_init(|| self.unwinding().unwrap_or_default());
        let row = rows.get(rows.partition_point(|row| row.va <= va).checked_sub(1)?)?;
        rules.get(row.rule as usize).copied()
    }

    /// The sections with instructions, by address: of [`Object::code`] what costs nothing.
    pub fn text(&self) -> Result<Vec<Bytes<'_>>, ObjectError> {
        code::text(&self.elf).map_err(|what| ObjectError::Corrupt { path: self.path.clone(), what })
    }
}

/// What a program's DWARF says is not needed here, and can be most of the file.
fn is_wanted(section: &[u8]) -> bool {
    !section.starts_with(b".debug_") && !section.starts_with(b".zdebug_")
}

/// Drops what another table said already (the best binding, a known size and the first source
/// stay), sorts by address and rank, and sorts the names.
fn index(mut functions: Vec<Function>) -> (Vec<Function>, Vec<u32>) {
    functions.sort_by(|a, b| {
        let rest = |f: &Function| (f.binding, f.size.0 == 0, f.source);
        (a.va, &a.name, rest(a)).cmp(&(b.va, &b.name, rest(b)))
    });
    functions.dedup_by(|b, a| a.va == b.va && a.name == b.name);
    functions.sort_by(|a, b| (a.va, a.rank()).cmp(&(b.va, b.rank())));
    let mut by_name: Vec<u32> = (0..u32::try_from(functions.len()).unwrap_or(u32::MAX)).collect();
    by_name.sort_by(|a, b| functions[*a as usize].name.cmp(&functions[*b as usize].name));
    (functions, by_name)
}
