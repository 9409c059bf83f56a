//! Where variables are.

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSymbol, RelocationTarget};

use super::DumpError;
use crate::object::Btf;

/// The types of an object, with the variables of its sections where they are; `None` if it was
/// compiled without `-g`.
///
/// In `.BTF` as it lies in the file the offset of a global variable is 0, and a relocation
/// (`R_BPF_64_NODYLD32` or `R_BPF_64_ABS32`, `Documentation/bpf/llvm_reloc.rst`) adds the address
/// of its symbol.
///
/// # Errors
/// If the object or its types cannot be read.
pub fn placed_types(object: &[u8]) -> Result<Option<Btf>, DumpError> {
    let wrong = |e: object::Error| DumpError::Elf(e.to_string());
    let file = ElfFile64::<Endianness>::parse(object).map_err(wrong)?;
    let Some(section) = file.section_by_name(".BTF") else { return Ok(None) };
    let mut data = section.data().map_err(wrong)?.to_vec();
    for (offset, relocation) in section.relocations() {
        let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
        let symbol = file.symbol_by_index(symbol).map_err(wrong)?;
        let place = usize::try_from(offset).ok().and_then(|at| data.get_mut(at..)?.first_chunk_mut::<4>());
        let place = place.ok_or(DumpError::Btf(crate::object::BtfError::Truncated))?;
        *place = u32::from_le_bytes(*place).wrapping_add(symbol.address() as u32).to_le_bytes();
    }
    Ok(Some(Btf::parse(&data)?))
}
