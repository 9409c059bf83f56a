//! Language-specific data of exception handling: where landing pads are.
//!
//! The format is that of GCC's `.gcc_except_table` (gcc/except.cc,
//! `output_one_function_exception_table`), which C++, Rust, Ada, D and C cleanups share: header,
//! call-site table, actions, types. Only the first two are read.

use gimli::constants as c;
use gimli::{DwEhPe, EndianSlice, LittleEndian, Reader};
use sidestep_isa::object::Extent;
use sidestep_isa::{Isa, Len, Va};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Where exceptions land, and from where.
#[derive(Debug, Default)]
pub(crate) struct Landings {
    pub(crate) pads: Vec<Va>,
    /// Call sites with a landing pad.
    pub(crate) protected: Vec<Extent>,
    /// Call sites that were looked at.
    looked: usize,
}

/// Most call sites that are looked at: a file may name one table for all of its functions, each of
/// which goes through all of it.
const SITES: usize = 1 << 23;

/// Adds the landing pads of the LSDA at `va`, whose bytes (and what follows them) are `data`, for
/// the FDE that starts at `function`. `Err` if it is not of this format.
pub(crate) fn landing_pads(isa: Isa, data: &[u8], va: Va, function: Va, out: &mut Landings) -> gimli::Result<()> {
    let whole = Slice::new(data, LittleEndian);
    let mut input = whole;
    let start_encoding = DwEhPe(input.read_u8()?);
    let start = if start_encoding == c::DW_EH_PE_omit {
        function
    } else {
        let at = va.0.wrapping_add(input.offset_from(whole) as u64);
        Va(pointer(isa, &mut input, start_encoding, at)?)
    };
    if DwEhPe(input.read_u8()?) != c::DW_EH_PE_omit {
        input.read_uleb128()?;
    }
    let encoding = DwEhPe(input.read_u8()?);
    let length = input.read_uleb128()?;
    let mut sites = input.split(usize::try_from(length).map_err(|_| gimli::Error::UnsupportedOffset)?)?;
    while !sites.is_empty() {
        out.looked += 1;
        if out.looked > SITES {
            return Err(gimli::Error::UnsupportedOffset);
        }
        let first = pointer(isa, &mut sites, encoding, 0)?;
        let length = pointer(isa, &mut sites, encoding, 0)?;
        let pad = pointer(isa, &mut sites, encoding, 0)?;
        let _action = sites.read_uleb128()?;
        if pad != 0 {
            // Call sites count from the function, whatever landing pads count from.
            out.protected.push(Extent { start: isa.wrap(Va(function.0.wrapping_add(first))), len: Len(length) });
            out.pads.push(isa.wrap(Va(start.0.wrapping_add(pad))));
        }
    }
    Ok(())
}

/// A pointer in one of the encodings of the LSB, "DWARF Exception Header Encoding"; `at` is its own
/// address.
fn pointer(isa: Isa, input: &mut Slice<'_>, encoding: DwEhPe, at: u64) -> gimli::Result<u64> {
    let value = match encoding.format() {
        c::DW_EH_PE_absptr if !crate::arch::is_64(isa) => u64::from(input.read_u32()?),
        c::DW_EH_PE_absptr | c::DW_EH_PE_udata8 | c::DW_EH_PE_sdata8 => input.read_u64()?,
        c::DW_EH_PE_uleb128 => input.read_uleb128()?,
        c::DW_EH_PE_sleb128 => input.read_sleb128()? as u64,
        c::DW_EH_PE_udata2 => u64::from(input.read_u16()?),
        c::DW_EH_PE_sdata2 => i64::from(input.read_i16()?) as u64,
        c::DW_EH_PE_udata4 => u64::from(input.read_u32()?),
        c::DW_EH_PE_sdata4 => i64::from(input.read_i32()?) as u64,
        _ => return Err(gimli::Error::UnknownPointerEncoding(encoding)),
    };
    match encoding.application() {
        c::DW_EH_PE_absptr => Ok(value),
        c::DW_EH_PE_pcrel => Ok(isa.wrap(Va(at.wrapping_add(value))).0),
        _ => Err(gimli::Error::UnknownPointerEncoding(encoding)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_all_functions_named_took_time_without_end() {
        // No start of landing pads, no types, call sites as numbers of any length: two of them.
        let table = [0xff, 0xff, 0x01, 8, 0, 4, 8, 0, 4, 4, 0, 0];
        let mut found = Landings::default();
        for _ in 0..2 {
            landing_pads(Isa::X64, &table, Va(0), Va(0x1000), &mut found).unwrap();
        }
        assert_eq!((found.pads, found.looked), (vec![Va(0x1008); 2], 4));
        let mut many = Landings { looked: SITES - 1, ..Landings::default() };
        assert!(landing_pads(Isa::X64, &table, Va(0), Va(0x1000), &mut many).is_err());
    }
}
