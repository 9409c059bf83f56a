//! What calls and sites look like in code, of either instruction set.

use super::{is_breakpoint, is_jump};

/// Halfwords from a place on.
fn halves(code: [u8; 8]) -> [u16; 4] {
    let [a, b, c, d, e, f, g, h] = code;
    [[a, b], [c, d], [e, f], [g, h]].map(u16::from_le_bytes)
}

/// May a site begin in these bytes?
#[must_use]
pub fn is_patched(code: [u8; 8]) -> bool {
    let code = u64::from_le_bytes(code);
    // A jump of four bytes does not fit at the last one.
    (0..3).any(|half| is_jump(code >> (16 * half))) || (0..4).any(|half| is_breakpoint(code >> (16 * half)))
}

/// Is the last instruction of these bytes a call: `bl`, `blx` of a label or `blx` of a register
/// (DDI 0406C, A8.8.25 and A8.8.26)?
#[must_use]
pub fn ends(code: [u8; 8]) -> bool {
    let [_, _, before, last] = halves(code);
    let word = u32::from(last) << 16 | u32::from(before);
    let is_label_a32 = word >> 24 & 0xf == 0xb && word >> 28 != 0xf || word >> 25 == 0b111_1101;
    let is_register_a32 = word & 0x0fff_fff0 == 0x012f_ff30 && word >> 28 != 0xf;
    let is_label_t32 = before & 0xf800 == 0xf000 && (last & 0xd000 == 0xd000 || last & 0xd001 == 0xc000);
    let is_register_t32 = last & 0xff87 == 0x4780;
    is_label_a32 || is_register_a32 || is_label_t32 || is_register_t32
}

#[cfg(test)]
mod tests {
    use super::{ends, is_patched};

    #[test]
    fn calls_of_all_kinds() {
        let is_call = |word: u32| ends((u64::from(word) << 32).to_le_bytes());
        // bl, bleq, blx label (two), blx r3, blxne r3
        let calls = [0xeb00_0010, 0x0bff_fff0, 0xfa00_0010, 0xfb00_0010, 0xe12f_ff33, 0x112f_ff33];
        assert!(calls.into_iter().all(is_call));
        // bl, blx label of T32; blx r3 behind a nop
        assert!([0xf800_f000, 0xe800_f000, 0x4798_bf00].into_iter().all(is_call));
        // b, bx lr, ldr pc; b.w, bx lr, nop of T32
        let others = [0xea00_0010, 0xe12f_ff1e, 0xe59f_f000, 0xb800_f000, 0x4770_bf00, 0xbf00_bf00];
        assert!(!others.into_iter().any(is_call));
    }

    #[test]
    fn sites_of_both_instruction_sets() {
        let code = |first: u32, second: u32| (u64::from(second) << 32 | u64::from(first)).to_le_bytes();
        let nop = 0xe320_f000;
        assert!(!is_patched(code(nop, nop)));
        // A jump, a trap; in T32 between two halves, and at the end.
        assert!(is_patched(code(nop, 0xeaff_fff0)) && is_patched(code(0xe7f0_01f0, nop)));
        assert!(is_patched(code(0xf000_bf00, 0xbf00_b800)) && is_patched(code(0xbf00_bf00, 0xde01_bf00)));
    }
}
