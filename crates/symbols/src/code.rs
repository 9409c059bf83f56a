//! What an analysis of the code must know about an object.

use sidestep_isa::{Len, Va};

use crate::eh;
use crate::elf::{Elf, word};
use crate::function::Function;
use crate::reloc::Relocations;

/// A section's bytes at its link-time address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes<'a> {
    /// Section name.
    pub name: &'a str,
    /// Where it starts.
    pub va: Va,
    /// Its contents as in the file.
    pub data: &'a [u8],
}

/// A function's extent, from a symbol or an FDE of `.eh_frame`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: Va,
    /// Length; 0 = not known (a symbol without a size).
    pub len: Len,
}

/// The code facts of one object, all addresses link-time. The fields are those of `sidestep_plan::ObjectCode`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code<'a> {
    /// Executable sections, sorted by address.
    pub text: Vec<Bytes<'a>>,
    /// Other mapped sections with bytes in the file, sorted by address: jump tables and code pointers are here.
    pub data: Vec<Bytes<'a>>,
    /// Extents of all function symbols of all tables, and of all FDEs. Any order, with duplicates.
    pub extents: Vec<Extent>,
    /// The address of every symbol in text, of every type and size, and of the entry point, `DT_INIT` and `DT_FINI`.
    /// Sorted, unique.
    pub labels: Vec<Va>,
    /// Values in text that dynamic relocations store (`RELATIVE` also from `.relr.dyn`, `IRELATIVE`, `64`). A program
    /// at a fixed address has no relocations: there, every aligned word of its data that is an address in text.
    /// Sorted, unique.
    pub pointers: Vec<Va>,
    /// Landing pads of all LSDAs. Sorted, unique.
    pub landing_pads: Vec<Va>,
    /// The object was compiled by the Go toolchain.
    pub go: bool,
}

pub(crate) fn collect<'a>(
    elf: &'a Elf,
    functions: &[Function],
    labels: &[Va],
    relocations: &Relocations,
) -> Result<Code<'a>, &'static str> {
    let frames = eh::read(elf)?;
    let ranges = elf.text_ranges();
    let mut code = Code { landing_pads: frames.landing_pads, go: is_go(elf, functions), ..Code::default() };
    for section in &elf.sections {
        if section.is_text() || section.is_data() {
            let bytes = Bytes { name: &section.name, va: section.va, data: elf.data(section)? };
            if section.is_text() { code.text.push(bytes) } else { code.data.push(bytes) }
        }
    }
    code.text.sort_by_key(|bytes| bytes.va);
    code.data.sort_by_key(|bytes| bytes.va);

    code.extents = functions.iter().map(|f| Extent { start: f.va, len: f.size }).collect();
    code.extents.extend(frames.extents);

    code.labels = labels.to_vec();
    let special = [object::elf::DT_INIT, object::elf::DT_FINI].map(i64::from).into_iter();
    code.labels.extend(special.flat_map(|tag| elf.dynamic(tag)).map(Va).chain([elf.entry]));
    code.labels.retain(|va| ranges.contain(*va));
    code.labels.sort_unstable();
    code.labels.dedup();

    code.pointers = relocations.values.iter().copied().filter(|va| ranges.contain(*va)).collect();
    if elf.e_type == object::elf::ET_EXEC {
        for section in &code.data {
            let skip = (section.va.0.wrapping_neg() % 8) as usize;
            let words = section.data.get(skip..).unwrap_or(&[]).chunks_exact(8);
            code.pointers.extend(words.map(|bytes| Va(word(bytes, 0))).filter(|va| ranges.contain(*va)));
        }
    }
    code.pointers.sort_unstable();
    code.pointers.dedup();
    Ok(code)
}

/// The Go linker leaves these sections even in a stripped program.
pub(crate) fn is_go(elf: &Elf, functions: &[Function]) -> bool {
    elf.section(".gopclntab").is_some()
        || elf.section(".go.buildinfo").is_some()
        || functions.iter().any(|f| &*f.name == "runtime.morestack")
}
