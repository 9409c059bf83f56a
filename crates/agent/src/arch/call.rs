//! What calls look like in code.

use super::processor::{BREAKPOINT, JUMP};

/// May a site begin in these bytes?
#[must_use]
pub fn is_patched(code: [u8; 8]) -> bool {
    code.iter().any(|byte| matches!(*byte, JUMP | BREAKPOINT))
}

/// Is the last instruction of these bytes a call: `call rel32`, or `call r/m` (`ff /2`) of two to
/// seven bytes (Intel SDM volume 2, CALL)?
#[must_use]
pub fn ends(code: [u8; 8]) -> bool {
    let indirect = |at: &usize| {
        let (modrm, len) = (code[at + 1], 8 - at);
        let sib = code.get(at + 2).copied().unwrap_or(0);
        code[*at] == 0xff && modrm >> 3 & 7 == 2 && len == 2 + operand_len(modrm, sib)
    };
    code[3] == 0xe8 || (1..7).any(|at| indirect(&at))
}

/// Bytes of an operand behind its ModRM byte (Intel SDM volume 2, table 2-2).
fn operand_len(modrm: u8, sib: u8) -> usize {
    let has_sib = modrm & 7 == 4;
    match (modrm >> 6, modrm & 7) {
        (0, 5) => 4,
        (0, 4) if sib & 7 == 5 => 5,
        (0, _) => usize::from(has_sib),
        (1, _) => 1 + usize::from(has_sib),
        (2, _) => 4 + usize::from(has_sib),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::ends;

    #[test]
    fn calls_of_all_lengths() {
        let is_call = |call: &[u8]| {
            let mut code = [0x90; 8];
            code[8 - call.len()..].copy_from_slice(call);
            ends(code)
        };
        let calls: [&[u8]; 10] = [
            &[0xe8, 1, 2, 3, 4],             // call X
            &[0xff, 0xd0],                   // call *%rax
            &[0xff, 0x10],                   // call *(%rax)
            &[0xff, 0x14, 0x24],             // call *(%rsp)
            &[0xff, 0x50, 8],                // call *8(%rax)
            &[0xff, 0x54, 0x24, 8],          // call *8(%rsp)
            &[0xff, 0x15, 1, 2, 3, 4],       // call *X(%rip)
            &[0xff, 0x90, 1, 2, 3, 4],       // call *X(%rax)
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4], // call *X(,%rax,8)
            &[0xff, 0x94, 0x24, 1, 2, 3, 4], // call *X(%rsp)
        ];
        calls.iter().for_each(|call| assert!(is_call(call), "{call:x?}"));
        // Parts of calls, a jump, an addition.
        let others: [&[u8]; 5] =
            [&[0xe8, 1, 2, 3], &[0xff, 0xe0], &[0xff, 0x50], &[0xff, 0x15, 1, 2], &[0x48, 0x01, 0xc8]];
        others.iter().for_each(|other| assert!(!is_call(other), "{other:x?}"));
    }
}
