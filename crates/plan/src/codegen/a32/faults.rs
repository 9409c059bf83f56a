//! Places in the detours of arm32 where handlers save registers.

use sidestep_isa::a32::emit::{Asm, list};
use sidestep_isa::a32::{LINK, SP};
use sidestep_isa::{Isa, Va, decode};
use sidestep_wire::CopyPair;

use super::thunk::{FRAME, IP};
use crate::codegen::detour::Detour;

/// The first store of the first handler, and those with which the ways to thunks begin behind the
/// copies. No register has changed there but dead ones and the stack pointer, which is lower by a
/// frame on the way to a thunk. Where one finds no room, the handlers can be left out.
pub(crate) fn saves(detour: &Detour) -> Vec<CopyPair> {
    let (Some((_, first)), Some(last)) = (detour.copies.first(), detour.copies.iter().map(|(_, to)| *to).max()) else {
        return Vec::new();
    };
    if !detour.leads {
        return Vec::new();
    }
    let frame = frame(detour.isa);
    let save = |depth: u32, copy: usize| CopyPair { original: depth as u16 | CopyPair::SAVES, copy: copy as u16 };
    // Where a way to a thunk begins at an offset: its store.
    let thunk = |at: usize| {
        let (lower, store) = &frame;
        let code = detour.bytes.get(at..)?.strip_prefix(&lower[..])?;
        code.starts_with(store).then(|| save(FRAME, at + lower.len()))
    };
    let mut all = Vec::new();
    // Switches are nops.
    let mut at = 0;
    while let Ok(insn) = decode(detour.isa, &detour.bytes[at..usize::from(*first)], Va(at as u64)) {
        if !insn.is_nop() {
            all.extend(thunk(at).or_else(|| is_push(detour, at).then(|| save(0, at))));
            break;
        }
        at += insn.len();
    }
    let step = detour.isa.limits().alignment as usize;
    all.extend((usize::from(last)..detour.bytes.len()).step_by(step).filter_map(thunk));
    all
}

/// The two instructions with which a way to a thunk begins.
fn frame(isa: Isa) -> (Vec<u8>, Vec<u8>) {
    let emitted = |emit: &dyn Fn(&mut Asm)| {
        let mut asm = Asm::new(isa, Va(0));
        emit(&mut asm);
        asm.finish().unwrap_or_default()
    };
    (emitted(&|asm| asm.sub_imm(SP, SP, FRAME)), emitted(&|asm| asm.stm(SP, list(&[IP, LINK]))))
}

/// Whether a `push` is at an offset, by which a count saves registers ([`Asm::push`]).
fn is_push(detour: &Detour, at: usize) -> bool {
    let Some(Ok(bytes)) = detour.bytes.get(at..at + 4).map(<[u8; 4]>::try_from) else { return false };
    let word = u32::from_le_bytes(bytes);
    match detour.isa {
        Isa::T32 => {
            let word = word.rotate_left(16);
            word >> 16 == 0xe92d || word & 0xffff_0fff == 0xf84d_0d04
        }
        _ => word >> 16 == 0xe92d || word & 0xffff_0fff == 0xe52d_0004,
    }
}
