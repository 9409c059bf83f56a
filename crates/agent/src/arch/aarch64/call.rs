//! What calls look like in code.

use super::{is_breakpoint, is_jump};

/// May a site begin in these bytes?
#[must_use]
pub fn is_patched(code: [u8; 8]) -> bool {
    let [a, b, c, d, last @ ..] = code;
    [[a, b, c, d], last]
        .into_iter()
        .map(u32::from_le_bytes)
        .any(|word| is_jump(word.into()) || is_breakpoint(word.into()))
}

/// Is the last instruction of these bytes a call: `bl`, `blr`, or `blraa` and its like (section
/// C4.1.95, "Branches, Exception Generating and System instructions")?
#[must_use]
pub fn ends(code: [u8; 8]) -> bool {
    let [_, _, _, _, last @ ..] = code;
    let word = u32::from_le_bytes(last);
    word >> 26 == 0b10_0101 || word & 0xfeff_f000 == 0xd63f_0000
}

#[cfg(test)]
mod tests {
    use super::ends;

    #[test]
    fn calls_of_all_kinds() {
        let is_call = |word: u32| ends((u64::from(word) << 32).to_le_bytes());
        // bl, blr x1, blraaz x1, blrabz x1, blraa x1, x2, blrab x1, x2
        let calls = [0x9400_0010, 0xd63f_0020, 0xd63f_083f, 0xd63f_0c3f, 0xd73f_0822, 0xd73f_0c22];
        assert!(calls.into_iter().all(is_call));
        // b, br x1, ret, nop
        assert!(![0x1400_0010, 0xd61f_0020, 0xd65f_03c0, 0xd503_201f].into_iter().any(is_call));
    }
}
