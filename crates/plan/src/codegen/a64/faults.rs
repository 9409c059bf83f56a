//! Places in the detours of arm64 where handlers save registers.

use sidestep_isa::a64::WORD;
use sidestep_isa::a64::emit::nop;
use sidestep_wire::CopyPair;

use crate::codegen::detour::Detour;

/// The first store of the first handler, and those with which the ways to thunks begin behind the
/// copies. No register has changed there but dead ones, and the stack pointer is the one of the
/// site: a store that faults does not change its base. Where one finds no room, the handlers can be
/// left out.
pub(crate) fn saves(detour: &Detour) -> Vec<CopyPair> {
    let (Some((_, first)), Some(last)) = (detour.copies.first(), detour.copies.iter().map(|(_, to)| *to).max()) else {
        return Vec::new();
    };
    if !detour.leads {
        return Vec::new();
    }
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    let words: Vec<(u16, u32)> = (0..).step_by(WORD).zip(detour.bytes.chunks_exact(WORD).map(word)).collect();
    // Switches are nops.
    let front = words.iter().take_while(|(at, _)| at < first).find(|(_, word)| *word != nop());
    let cold = words.iter().filter(|(at, _)| *at > last);
    let stores = front.into_iter().chain(cold).filter(|(_, word)| lowers_stack(*word));
    stores.map(|(at, _)| CopyPair { original: CopyPair::SAVES, copy: *at }).collect()
}

/// `stp Xt, Xt2, [sp, #…]!` and `str Xt, [sp, #…]!`.
fn lowers_stack(word: u32) -> bool {
    word & 0xffc0_03e0 == 0xa980_03e0 || word & 0xffe0_0fe0 == 0xf800_0fe0
}
