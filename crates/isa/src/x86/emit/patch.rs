//! What is written at sites, and what is rewritten later.

use super::short::{self, THREAD_POINTER_32_LEN};
use super::{Asm, THREAD_POINTER_LEN};
use crate::patch::OutOfReach;
use crate::{Isa, Len, Va};

/// The patch of a trap site: `int3`.
pub const TRAP_PATCH: [u8; 1] = [0xcc];

/// The 5-byte patch of a jump site.
pub fn jump_patch(isa: Isa, site: Va, detour: Va) -> Result<[u8; 5], OutOfReach> {
    let mut asm = Asm::of(isa, site);
    asm.jmp_to(detour)?;
    let mut patch = [0; 5];
    patch.copy_from_slice(&asm.finish());
    Ok(patch)
}

/// Where the jump at the start of some bytes leads, if it is one of [`jump_patch`].
#[must_use]
pub fn jump_patch_target(isa: Isa, bytes: &[u8], at: Va) -> Option<Va> {
    let [0xe9, a, b, c, d, ..] = *bytes else { return None };
    Some(isa.wrap(at.plus(Len(5)).offset(i32::from_le_bytes([a, b, c, d]).into())))
}

/// The 2-byte patch that leads to an island nearby.
pub fn short_jump_patch(site: Va, island: Va) -> Result<[u8; 2], OutOfReach> {
    let rel = i8::try_from(island.since(site) - 2).map_err(|_| OutOfReach { from: site, to: island })?;
    Ok([0xeb, rel as u8])
}

/// Makes all that [`Asm::thread_pointer`] and [`Asm::thread_pointer_32`] emitted into some code
/// loads of the word that holds the pointer itself, in place. Says whether there were any to
/// change.
pub fn thread_pointer_through_self(code: &mut [u8]) -> bool {
    let mut found = false;
    for at in 0..code.len().saturating_sub(THREAD_POINTER_32_LEN - 1) {
        let asked = &mut code[at..at + THREAD_POINTER_32_LEN];
        let reg = asked[1] & 7;
        if *asked == short::asking(reg) {
            asked.copy_from_slice(&short::through_self(reg));
            found = true;
        }
    }
    for at in 0..code.len().saturating_sub(THREAD_POINTER_LEN - 1) {
        if let [0xf3, rex @ (0x48 | 0x49), 0x0f, 0xae, modrm @ 0xc0..=0xc7, 0x0f, 0x1f, 0x40, 0] =
            code[at..at + THREAD_POINTER_LEN]
        {
            let (low, high) = (modrm & 7, rex & 1);
            let load = [0x64, 0x48 | high << 2, 0x8b, 0x04 | low << 3, 0x25, 0, 0, 0, 0];
            code[at..at + THREAD_POINTER_LEN].copy_from_slice(&load);
            found = true;
        }
    }
    found
}

/// Most bytes of an instruction that [`sets_thread_pointer`] looks for.
pub const SETS_THREAD_POINTER_LEN: usize = 5;

/// May 64-bit code set its thread pointer itself, by `wrfsbase`? Looks at all bytes, so data may be
/// taken for it.
pub fn sets_thread_pointer(code: &[u8]) -> bool {
    let is_it = |at: usize| {
        // F3 [REX] 0F AE /2 with a register (Intel SDM, volume 2, WRFSBASE).
        let register = code.get(at + 1).is_some_and(|modrm| (0xd0..=0xd7).contains(modrm));
        register
            && match &code[..at] {
                [.., 0xf3, 0x0f] => true,
                [.., 0xf3, rex, 0x0f] => rex & 0xf0 == 0x40,
                _ => false,
            }
    };
    code.iter().enumerate().any(|(at, byte)| *byte == 0xae && is_it(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86::emit::Reg;

    #[test]
    fn promotion_of_the_thread_pointer_is_what_would_have_been_emitted() {
        let long = [Reg::Rax, Reg::Rcx, Reg::Rsi, Reg::R8, Reg::R11].map(|reg| (Isa::X64, reg));
        for (isa, reg) in long.into_iter().chain([Reg::Rax, Reg::Rcx, Reg::Rsi].map(|reg| (Isa::X86, reg))) {
            let code = |through_self| {
                let mut a = Asm::of(isa, Va(0));
                a.push(reg);
                match isa {
                    Isa::X86 => a.thread_pointer_32(reg, through_self),
                    _ => a.thread_pointer(reg, through_self),
                }
                a.pop(reg);
                a.finish()
            };
            let mut promoted = code(false);
            assert!(thread_pointer_through_self(&mut promoted));
            assert_eq!(promoted, code(true));
            assert!(!thread_pointer_through_self(&mut promoted));
        }
    }

    #[test]
    fn only_code_with_wrfsbase_sets_the_thread_pointer() {
        // gas: wrfsbase %rdi; wrfsbase %r9; wrfsbase %ecx.
        for code in [&[0xf3, 0x48, 0x0f, 0xae, 0xd7][..], &[0xf3, 0x49, 0x0f, 0xae, 0xd1], &[0xf3, 0x0f, 0xae, 0xd1]] {
            assert!(sets_thread_pointer(code) && sets_thread_pointer(&[&[0x90, 0xae], code, &[0xc3]].concat()));
            assert!(!sets_thread_pointer(&code[1..]) && !sets_thread_pointer(&code[..code.len() - 1]));
        }
        // rdfsbase %rdi; wrgsbase %rdi; ldmxcsr (%rdi).
        for code in [&[0xf3, 0x48, 0x0f, 0xae, 0xc7][..], &[0xf3, 0x48, 0x0f, 0xae, 0xdf], &[0x0f, 0xae, 0x17]] {
            assert!(!sets_thread_pointer(code));
        }
    }

    #[test]
    fn patches_reach_what_they_can() {
        let far = Va(0x1_0000_0000);
        assert_eq!(jump_patch(Isa::X64, Va(0x1000), far), Err(OutOfReach { from: Va(0x1000), to: far }));
        assert_eq!(jump_patch(Isa::X86, Va(0xf000_0000), Va(0x1000)), Ok([0xe9, 0xfb, 0x0f, 0, 0x10]));
        assert!(short_jump_patch(Va(0x1000), Va(0x1100)).is_err());
    }
}
