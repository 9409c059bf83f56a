//! Objects as clang makes them and libbpf loads them: programs in sections, maps in `.maps`, global
//! variables.
//!
//! Programs come out in one piece with the functions that they call, and refer to maps by their
//! index in [`Object::maps`]: [`Imm64::Map`](crate::Imm64::Map) and
//! [`Imm64::MapValue`](crate::Imm64::MapValue), the kernel's `BPF_PSEUDO_MAP_IDX` and
//! `BPF_PSEUDO_MAP_IDX_VALUE`. So they can be verified as they are:
//!
//! ```no_run
//! use sidestep_bpf::object::Object;
//! use sidestep_bpf::verify::{Rules, verify};
//!
//! let object = Object::parse(&std::fs::read("prog.bpf.o")?)?;
//! let maps = object.map_shapes();
//! for program in &object.programs {
//!     verify(&program.program, &Rules { maps: &maps, ..Rules::default() })?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What concerns the kernel's own types (CO-RE relocations) is refused, except offsets in
//! `struct pt_regs`.

mod attach;
mod btf;
mod elf;
mod error;
mod ext;
mod link;
mod maps;

pub use attach::{Attach, ProbeTarget};
pub use btf::{Btf, Kind, Member, Type, TypeId, Variable};
pub use error::{BtfError, CodeProblem, MapProblem, ObjectError};
pub use ext::Line;
pub use maps::ObjectMap;

use std::collections::HashMap;

use crate::map::Map;
use crate::program::Program;

/// Bytes of variables in a section at most.
pub const MAX_DATA: u64 = 1 << 26;

/// Bytes of an object at most.
pub const MAX_FILE: usize = 1 << 26;

/// An object, ready to be verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// In the order of the file.
    pub programs: Vec<ObjectProgram>,
    /// Programs refer to them by index.
    pub maps: Vec<ObjectMap>,
    /// What section `license` says; empty if there is none.
    pub license: String,
    /// The types, if it was compiled with `-g`.
    pub btf: Option<Btf>,
}

/// A program of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectProgram {
    /// Of the function.
    pub name: String,
    /// Where it is.
    pub section: String,
    /// What the name of the section says.
    pub attach: Attach,
    /// The code, with the functions that it calls.
    pub program: Program,
    /// First slots and names of its functions; the first is the program itself.
    pub functions: Vec<(usize, String)>,
    /// Source lines, by rising slot.
    pub lines: Vec<Line>,
}

impl Object {
    /// Reads an object.
    ///
    /// # Errors
    /// If it is none, or needs what only the kernel has.
    pub fn parse(bytes: &[u8]) -> Result<Object, ObjectError> {
        let elf = elf::Elf::parse(bytes)?;
        let in_section = |section| move |error| ObjectError::Btf { section, error };
        let btf = elf.data(".BTF").map(Btf::parse).transpose().map_err(in_section(".BTF"))?;
        let notes = match (&btf, elf.data(".BTF.ext")) {
            (Some(btf), Some(data)) => ext::read(data, btf).map_err(in_section(".BTF.ext"))?,
            _ => HashMap::new(),
        };
        let maps = maps::Maps::read(&elf, btf.as_ref())?;
        let linker = link::Linker::new(&elf, &maps, btf.as_ref(), &notes)?;
        let mut programs = Vec::new();
        // Functions are copied for each program that calls them.
        let mut room = 4 * crate::verify::MAX_SLOTS;
        for (place, section, name) in linker.programs() {
            let linked = linker.link(place, room)?;
            room -= linked.program.slots.len();
            programs.push(ObjectProgram {
                name: name.to_owned(),
                section: section.to_owned(),
                attach: Attach::parse(section),
                program: linked.program,
                functions: linked.functions,
                lines: linked.lines,
            });
        }
        if programs.is_empty() {
            return Err(ObjectError::NoProgram);
        }
        let license = elf.data("license").unwrap_or_default();
        let license = license.split(|b| *b == 0).next().unwrap_or_default();
        let license = String::from_utf8_lossy(license).into_owned();
        Ok(Object { programs, maps: maps.list, license, btf })
    }

    /// The maps without their types, as [`crate::verify::Rules`] takes them.
    #[must_use]
    pub fn map_shapes(&self) -> Vec<Map> {
        self.maps.iter().map(|m| m.map.clone()).collect()
    }
}

impl ObjectProgram {
    /// The source line of an instruction: the last that begins at it or before, in the same
    /// function.
    #[must_use]
    pub fn line_of(&self, insn: usize) -> Option<&Line> {
        let function = self.functions.iter().map(|(start, _)| *start).filter(|start| *start <= insn).max()?;
        self.lines.iter().filter(|line| line.insn >= function && line.insn <= insn).max_by_key(|line| line.insn)
    }
}
