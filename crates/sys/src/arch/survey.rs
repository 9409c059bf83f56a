//! Signal frames on stacks, as the kernel writes them.

use sidestep_isa::Va;

/// The word behind the saved flags in `struct sigcontext`: cs = 0x33, gs = fs = 0, ss = 0x2b
/// (arch/x86/include/uapi/asm/sigcontext.h; arch/x86/include/asm/segment.h, `__USER_CS`, `__USER_DS`).
const SELECTORS: u64 = 0x002b_0000_0000_0033;

/// Distance from the saved instruction pointer of a frame to the signal mask that it restores: the rest of `struct
/// sigcontext` (arch/x86/include/uapi/asm/ucontext.h).
pub const MASK_BEHIND_IP: u64 = 256 - 16 * 8;

/// All signal frames in the bytes of a stack (from an 8-aligned address): offset of the saved instruction pointer, its
/// value, and the saved stack pointer.
#[must_use]
pub fn signal_frames(stack: &[u8]) -> Vec<(usize, Va, Va)> {
    let word = |i: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&stack[i * 8..i * 8 + 8]);
        u64::from_le_bytes(bytes)
    };
    // … sp, ip, flags, selectors …
    (3..stack.len() / 8)
        .filter(|i| word(*i) == SELECTORS)
        .map(|i| ((i - 2) * 8, Va(word(i - 2)), Va(word(i - 3))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_found_by_its_selectors() {
        let words = [1u64, 0x7000, 0x4000, 0x246, SELECTORS, 5];
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(signal_frames(&bytes), [(16, Va(0x4000), Va(0x7000))]);
        assert_eq!(signal_frames(&bytes[..32]), []);
    }
}
