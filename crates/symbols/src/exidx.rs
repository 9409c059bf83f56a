//! `.ARM.exidx`: where exceptions land in arm32 code (Exception Handling ABI for the Arm
//! Architecture).
//!
//! The table has no bit that says which instruction set a function is of, so no function is taken
//! from it.

use sidestep_isa::Va;

use crate::arch;
use crate::elf::{Elf, word};
use crate::lsda::{self, Landings};

const CUT_OFF: &str = "an exception table is outside of the file";
/// The second word of functions that no exception passes.
const CANNOT_UNWIND: u64 = 1;

/// Adds the landing pads of all functions. An error means that some may be missing.
pub(crate) fn read(elf: &Elf, out: &mut Landings) -> Result<(), &'static str> {
    let Some(section) = arch::of(elf.isa).exceptions.and_then(|kind| elf.of_type(kind)) else { return Ok(()) };
    let before = out.pads.len();
    for (i, entry) in elf.data(section)?.chunks_exact(8).enumerate() {
        let va = section.va.offset(8 * i as i64);
        let function = arch::code(elf.isa, place(elf, va, word(4, entry, 0)));
        let second = word(4, entry, 4);
        // Its instructions are here: there are no landing pads.
        if second == CANNOT_UNWIND || second >> 31 == 1 {
            continue;
        }
        table(elf, function, place(elf, va.offset(4), second), out)?;
    }
    out.pads[before..].iter_mut().for_each(|pad| *pad = arch::code(elf.isa, *pad));
    out.pads.sort_unstable();
    out.pads.dedup();
    out.protected.sort_unstable_by_key(|extent| (extent.start, extent.len));
    out.protected.dedup();
    let text = elf.text_ranges();
    match out.pads.iter().all(|pad| text.contain(*pad)) {
        true => Ok(()),
        false => Err("a landing pad is not in code"),
    }
}

/// What a word at an address means: a distance of 31 bits with a sign.
fn place(elf: &Elf, at: Va, word: u64) -> Va {
    let distance = (word as u32) << 1;
    elf.isa.wrap(at.offset(i64::from(distance as i32 >> 1)))
}

/// The entry of a function in `.ARM.extab` (section 6.3 and 6.4).
fn table(elf: &Elf, function: Va, at: Va, out: &mut Landings) -> Result<(), &'static str> {
    let bytes = elf.data_from(at).filter(|bytes| bytes.len() >= 8).ok_or(CUT_OFF)?;
    let first = word(4, bytes, 0);
    if first >> 31 == 0 {
        // A routine of a language, the instructions with their number, and the table of the
        // language.
        let start = 8 + 4 * (word(4, bytes, 4) >> 24) as usize;
        let rest = bytes.get(start..).ok_or(CUT_OFF)?;
        let va = at.offset(start as i64);
        return lsda::landing_pads(elf.isa, rest, va, function, out).map_err(|_| "an exception table is not valid");
    }
    // One of the three routines of the ABI, and its descriptors, which end with a word of zeros.
    let more = if first >> 24 & 15 == 0 { 0 } else { first >> 16 & 255 };
    let end = 4 + 4 * more as usize;
    match bytes.get(end..end + 4) {
        Some([0, 0, 0, 0]) => Ok(()),
        Some(_) => Err("an exception table has descriptors of the ABI, which compilers do not write"),
        None => Err(CUT_OFF),
    }
}
