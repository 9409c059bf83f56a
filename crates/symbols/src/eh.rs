//! `.eh_frame`: where functions begin and end, and where exceptions land.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CallFrameInstruction, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian, Pointer,
    UnwindSection,
};
use sidestep_isa::{Len, Va};

use crate::arch::{self, Arch};
use crate::elf::Elf;
use crate::lsda::{self, Landings};
use sidestep_isa::object::Extent;

/// What the frame descriptions say. All link-time.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    pub(crate) extents: Vec<Extent>,
    pub(crate) landings: Landings,
    /// Where a frame is there at the first instruction.
    pub(crate) parts: Vec<Va>,
    /// Where the stack at the first instruction is not as a call leaves it: all of `parts`, and
    /// frames without a caller.
    pub(crate) odd: Vec<Va>,
}

type Slice<'a> = EndianSlice<'a, LittleEndian>;
pub(crate) type Section<'a> = EhFrame<Slice<'a>>;
pub(crate) type Entry<'a> = FrameDescriptionEntry<Slice<'a>>;

pub(crate) const NOT_VALID: &str = "an entry of .eh_frame is not valid";

/// Reads all FDEs with their LSDAs. An error means that landing pads may be missing.
pub(crate) fn read(elf: &Elf) -> Result<Frames, &'static str> {
    let mut frames = Frames::default();
    let machine = arch::of(elf.isa);
    walk(elf, |section, bases, fde| {
        let start = Va(fde.initial_address());
        frames.extents.push(Extent { start, len: Len(fde.len()) });
        match entered(fde, section, bases, machine).map_err(|_| NOT_VALID)? {
            Entered::ByCall => {}
            Entered::WithoutCaller => frames.odd.push(start),
            Entered::WithFrame => {
                frames.odd.push(start);
                frames.parts.push(start);
            }
        }
        match fde.lsda() {
            None | Some(Pointer::Direct(0)) => {}
            Some(Pointer::Direct(lsda)) => {
                let bytes = elf.data_from(Va(lsda)).ok_or("an exception table is outside of the file")?;
                lsda::landing_pads(elf.isa, bytes, Va(lsda), start, &mut frames.landings)
                    .map_err(|_| "an exception table is not valid")?;
            }
            Some(Pointer::Indirect(_)) => return Err("an exception table is addressed indirectly"),
        }
        Ok(())
    })?;
    // A table may be shared; its pads count once.
    frames.landings.pads.sort_unstable();
    frames.landings.pads.dedup();
    frames.landings.protected.sort_unstable_by_key(|extent| (extent.start, extent.len));
    frames.landings.protected.dedup();
    let text = elf.text_ranges();
    if frames.landings.pads.iter().any(|pad| !text.contain(*pad)) {
        return Err("a landing pad is not in code");
    }
    Ok(frames)
}

/// Shows all FDEs of code that is there.
pub(crate) fn walk<'e>(
    elf: &'e Elf,
    mut each: impl FnMut(&Section<'e>, &BaseAddresses, &Entry<'e>) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    let Some(section) = elf.section(".eh_frame") else { return Ok(()) };
    let data = elf.data(section)?;
    let va_of = |name: &str| elf.section(name).map_or(0, |s| s.va.0);
    let bases = BaseAddresses::default().set_eh_frame(section.va.0).set_text(va_of(".text")).set_got(va_of(".got"));
    let mut eh_frame = EhFrame::new(data, LittleEndian);
    eh_frame.set_address_size(elf.isa.word() as u8);
    eh_frame.set_vendor(crate::arch::of(elf.isa).vendor);
    let mut cies = HashMap::new();
    let text = elf.text_ranges();

    // The entries are walked here instead of by gimli: a zero length ends its walk, but linkers
    // leave such terminators in the middle (crtend.o before other input), and the unwinder finds
    // what is behind them through .eh_frame_hdr.
    let mut at = 0;
    while let Some(head) = data.get(at..at + 8) {
        let short = u64::from(u32::from_le_bytes([head[0], head[1], head[2], head[3]]));
        if short == 0 {
            at += 4;
            continue;
        }
        let (header, length, id_at) = if short == 0xffff_ffff {
            let long = data.get(at + 4..at + 12).ok_or("an entry of .eh_frame is cut off")?;
            (12, crate::elf::word(8, long, 0), at + 12)
        } else {
            (4, short, at + 4)
        };
        let id = data.get(id_at..id_at + 4).ok_or("an entry of .eh_frame is cut off")?;
        if id != [0; 4] {
            let fde = eh_frame
                .fde_from_offset(&bases, at.into(), |section, bases, offset| match cies.get(&offset.0) {
                    Some(cie) => Ok(gimli::CommonInformationEntry::clone(cie)),
                    None => {
                        let cie = section.cie_from_offset(bases, offset)?;
                        cies.insert(offset.0, cie.clone());
                        Ok(cie)
                    }
                })
                .map_err(|_| NOT_VALID)?;
            // Entries of functions that the linker dropped are left with an address of 0.
            if text.contain(Va(fde.initial_address())) {
                each(&eh_frame, &bases, &fde)?;
            }
        }
        let length = usize::try_from(length).map_err(|_| "an entry of .eh_frame is cut off")?;
        at = at.checked_add(header).and_then(|at| at.checked_add(length)).ok_or("an entry of .eh_frame is cut off")?;
    }
    Ok(())
}

/// What is at the first instruction of an entry's code.
enum Entered {
    /// The canonical frame address is where a call leaves it, and the return address is below it.
    ByCall,
    /// The canonical frame address is there, but the return address is not: the outermost frame.
    WithoutCaller,
    /// A frame is there already.
    WithFrame,
}

/// How the code of an entry is entered: the rows of its CIE, and its own in front of the first
/// advance (DWARF 5, 6.4.2). Code that was assembled may have its odd frame in a CIE of its own.
fn entered(fde: &Entry<'_>, section: &Section<'_>, bases: &BaseAddresses, machine: &Arch) -> gimli::Result<Entered> {
    use CallFrameInstruction::{
        AdvanceLoc, DefCfa, DefCfaExpression, DefCfaOffset, DefCfaOffsetSf, DefCfaRegister, DefCfaSf, Offset, SetLoc,
        Undefined,
    };
    let (mut cfa, mut caller) = (None, true);
    let align = fde.cie().data_alignment_factor();
    for mut instructions in [fde.cie().instructions(section, bases), fde.instructions(section, bases)] {
        while let Some(instruction) = instructions.next()? {
            cfa = match (instruction, cfa) {
                (AdvanceLoc { .. } | SetLoc { .. }, _) => break,
                (DefCfa { register, offset }, _) => Some((register, offset as i64)),
                (DefCfaSf { register, factored_offset }, _) => Some((register, factored_offset * align)),
                (DefCfaRegister { register }, Some((_, offset))) => Some((register, offset)),
                (DefCfaOffset { offset }, Some((register, _))) => Some((register, offset as i64)),
                (DefCfaOffsetSf { factored_offset }, Some((register, _))) => Some((register, factored_offset * align)),
                (DefCfaExpression { .. }, _) => None,
                (Undefined { register }, cfa) if register == machine.registers.ip => {
                    caller = false;
                    cfa
                }
                (Offset { register, .. }, cfa) if register == machine.registers.ip => {
                    caller = true;
                    cfa
                }
                (_, cfa) => cfa,
            };
        }
    }
    Ok(match caller {
        _ if cfa != Some((machine.registers.sp, machine.entered_at)) => Entered::WithFrame,
        true => Entered::ByCall,
        false => Entered::WithoutCaller,
    })
}
