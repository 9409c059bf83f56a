//! What of a file can be executed, and nothing else: the cheapest look at its code.

use std::path::Path;

use object::LittleEndian as LE;
use object::elf::{FileHeader32, FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use sidestep_isa::object::Bytes;
use sidestep_isa::{Isa, Va};

use crate::arch;
use crate::error::ObjectError;
use crate::zip::Part;

/// The executable segments of a file: its text, and what else lies in the same pages.
pub struct Executable {
    isa: Isa,
    segments: Vec<(Va, Vec<u8>)>,
}

impl Executable {
    /// Reads them.
    ///
    /// # Errors
    /// The file cannot be read, or its headers make no sense.
    pub fn read(file: &Path) -> Result<Executable, ObjectError> {
        let open = Part::open(file)?;
        let corrupt = ObjectError::Corrupt { path: file.to_owned(), what: "its program headers make no sense" };
        let first = open.read(&(0..4096.min(open.len()))).map_err(|source| failed(file, source))?;
        // e_machine is at the same place in both classes.
        let isa = match first.get(..20) {
            Some(ident) => arch::isa_of(ident[4], u16::from_le_bytes([ident[18], ident[19]])),
            None => None,
        };
        let isa = isa.ok_or(ObjectError::Corrupt { path: file.to_owned(), what: "it is for another machine" })?;
        let ranges = match arch::is_64(isa) {
            true => ranges::<FileHeader64<LE>>(&first),
            false => ranges::<FileHeader32<LE>>(&first),
        };
        let mut segments = Vec::new();
        for (va, offset, size) in ranges.ok_or(corrupt)? {
            let end = offset.saturating_add(size).min(open.len());
            segments.push((va, open.read(&(offset..end)).map_err(|source| failed(file, source))?));
        }
        Ok(Executable { isa, segments })
    }

    /// What its instructions are.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The segments.
    #[must_use]
    pub fn bytes(&self) -> Vec<Bytes<'_>> {
        self.segments.iter().map(|(va, data)| Bytes { name: "", va: *va, data }).collect()
    }
}

fn failed(file: &Path, source: std::io::Error) -> ObjectError {
    ObjectError::Read { path: file.to_owned(), source }
}

/// Address, place in the file and size of each segment.
fn ranges<H: FileHeader<Endian = LE>>(first: &[u8]) -> Option<Vec<(Va, u64, u64)>> {
    let headers = H::parse(first).ok()?.program_headers(LE, first).ok()?;
    let code = headers.iter().filter(|header| header.p_type(LE) == PT_LOAD && header.p_flags(LE) & PF_X != 0);
    let place = |header: &H::ProgramHeader| {
        let (offset, size) = header.file_range(LE);
        (Va(header.p_vaddr(LE).into()), offset, size)
    };
    Some(code.map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Object;

    #[test]
    fn all_text_is_executable() {
        let exe = std::env::current_exe().unwrap();
        let (object, code) = (Object::open(&exe, &[]).unwrap(), Executable::read(&exe).unwrap());
        assert_eq!(code.isa(), object.isa());
        let holds = |text: &Bytes<'_>| {
            code.bytes().iter().any(|segment| {
                let from = usize::try_from(text.va.since(segment.va)).ok();
                from.and_then(|from| segment.data.get(from..)).is_some_and(|rest| rest.starts_with(text.data))
            })
        };
        assert!(object.text().unwrap().iter().all(holds));
    }
}
