//! `.BTF.ext`: source lines, and relocations against types of the kernel
//! (`Documentation/bpf/btf.rst`, section 4).

use std::collections::HashMap;

use super::btf::{Btf, Kind, TypeId, Words, header, part};
use super::error::BtfError;

/// Where an instruction comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// The first slot that the line made.
    pub insn: usize,
    /// Path of the source, as the compiler had it.
    pub file: String,
    /// The line itself, if the compiler kept it.
    pub text: String,
    /// From 1.
    pub line: u32,
    /// From 1; 0 if not known.
    pub column: u32,
}

/// A relocation against a type of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CoRe {
    /// The slot in its section.
    pub insn: usize,
    ty: TypeId,
    path: String,
    kind: u32,
}

/// What `.BTF.ext` says of the code in a section, by slots in it, rising.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub lines: Vec<Line>,
    pub relocations: Vec<CoRe>,
}

/// Notes by name of the section.
pub(super) fn read(data: &[u8], btf: &Btf) -> Result<HashMap<String, Notes>, BtfError> {
    let (start, mut fields) = header(data)?;
    // Functions, lines, and in longer headers relocations: offset and length each.
    let mut parts = Vec::new();
    while !fields.is_empty() && parts.len() < 3 {
        let (offset, len) = (fields.next()?, fields.next()?);
        let offset = start.checked_add(offset as usize).ok_or(BtfError::Truncated)?;
        parts.push(part(data, offset, len)?);
    }
    let mut notes: HashMap<String, Notes> = HashMap::new();
    each(parts.get(1), 16, btf, |section, record| {
        let (insn, file, text, place) = (record.next()?, record.next()?, record.next()?, record.next()?);
        let (file, text) = (btf.string(file)?, btf.string(text)?.trim().to_owned());
        let line = Line { insn: insn as usize / 8, file, text, line: place >> 10, column: place & 0x3ff };
        // Line 0: made by the compiler, from nowhere.
        if line.line > 0 {
            notes.entry(section.to_owned()).or_default().lines.push(line);
        }
        Ok(())
    })?;
    each(parts.get(2), 16, btf, |section, record| {
        let (insn, ty, path, kind) = (record.next()?, record.next()?, record.next()?, record.next()?);
        let relocation = CoRe { insn: insn as usize / 8, ty, path: btf.string(path)?, kind };
        notes.entry(section.to_owned()).or_default().relocations.push(relocation);
        Ok(())
    })?;
    for notes in notes.values_mut() {
        notes.lines.sort_by_key(|line| line.insn);
        notes.relocations.sort_by_key(|relocation| relocation.insn);
    }
    Ok(notes)
}

/// Records of a part: their length, then for each section its name, their number, and they.
fn each(
    part: Option<&&[u8]>,
    least: u32,
    btf: &Btf,
    mut take: impl FnMut(&str, &mut Words) -> Result<(), BtfError>,
) -> Result<(), BtfError> {
    let Some(part) = part.filter(|p| !p.is_empty()) else { return Ok(()) };
    let mut words = Words::new(part);
    let size = words.next()?;
    if size < least {
        return Err(BtfError::Truncated);
    }
    while !words.is_empty() {
        let (section, count) = (btf.string(words.next()?)?, words.next()?);
        for _ in 0..count {
            take(&section, &mut words.take(size as usize)?)?;
        }
    }
    Ok(())
}

impl CoRe {
    /// Whether the compiled value is right without the kernel: offsets in the registers of the
    /// target, which are part of the kernel's interface, and numbers of the object's own types.
    pub fn is_settled(&self, btf: &Btf) -> bool {
        /// `BPF_CORE_TYPE_ID_LOCAL`
        const LOCAL_ID: u32 = 6;
        /// The last of the kinds about a field.
        const LAST_FIELD: u32 = 5;
        /// The registers of x86-64 (21) and of arm64 (34), and the bytes of these. Others have
        /// their own names.
        const REGISTERS: [(&str, u32); 2] = [("pt_regs", 168), ("user_pt_regs", 272)];
        if self.kind == LOCAL_ID {
            return true;
        }
        let of_registers = btf.resolve(self.ty).is_ok_and(|ty| {
            let Kind::Composite { size, is_union: false, .. } = ty.kind else { return false };
            REGISTERS.contains(&(&*ty.name, size))
        });
        self.kind <= LAST_FIELD && of_registers
    }

    /// What it accesses, in words.
    pub fn describe(&self, btf: &Btf) -> String {
        btf.describe_access(self.ty, &self.path)
    }
}
