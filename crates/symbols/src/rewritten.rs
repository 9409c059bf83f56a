//! Places whose bytes a program changes itself, from the tables that name them.

use sidestep_isa::object::{Extent, Rewriter, Rewritten};
use sidestep_isa::{Len, Va, sweep};

use crate::arch;
use crate::elf::Elf;
use crate::reloc::{PATCHABLE, Relocations, XRAY};

/// Bytes of an entry of `xray_instr_map` of a 64-bit program (`XRaySledEntry` in LLVM's
/// compiler-rt/include/xray/xray_interface_internal.h).
const ENTRY: usize = 32;
/// Offsets in such an entry: the kind of the place, the version of the entry.
const KIND: usize = 16;
const VERSION: usize = 18;
/// From this version on, an address is a distance from where the distance is stored.
const RELATIVE: u8 = 2;

/// All of an object, sorted.
pub(crate) fn read(elf: &Elf, relocations: &Relocations) -> Result<Vec<Rewritten>, &'static str> {
    let mut all = Vec::new();
    if let (Some(section), Some(sled)) = (elf.section(XRAY), arch::of(elf.isa).sled) {
        for (i, entry) in elf.data(section)?.chunks_exact(ENTRY).enumerate() {
            let at = section.va.plus(Len((i * ENTRY) as u64));
            let stored = relocations.stored(elf.word(), at, entry, 0);
            let start = if entry[VERSION] >= RELATIVE { Va(at.0.wrapping_add(stored.0)) } else { stored };
            all.push(Rewritten { extent: Extent { start, len: sled(entry[KIND]) }, by: Rewriter::XRay });
        }
    }
    if let Some(section) = elf.section(PATCHABLE) {
        let bytes = elf.data(section)?;
        for at in (0..bytes.len() / elf.word()).map(|i| i * elf.word()) {
            let start = relocations.stored(elf.word(), section.va, bytes, at);
            let len = nops(elf, start);
            if len.0 != 0 {
                all.push(Rewritten { extent: Extent { start, len }, by: Rewriter::Patchable });
            }
        }
    }
    all.sort_unstable_by_key(|place| place.extent.start);
    Ok(all)
}

/// Bytes of the nops from an address on: in front of a function and at its start. A mark for
/// indirect branches lies between these.
fn nops(elf: &Elf, start: Va) -> Len {
    let Some(bytes) = elf.data_from(start) else { return Len(0) };
    let insns = sweep(elf.isa, bytes, start).map_while(Result::ok);
    let nops = insns.take_while(|insn| insn.is_nop() || insn.is_target_mark()).filter(|insn| insn.is_nop());
    Len(nops.last().map_or(0, |insn| insn.next().since(start) as u64))
}
