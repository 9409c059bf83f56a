//! References that bytes would make if they were x86 instructions ([`crate::scan`]).

use crate::scan::{Distance, Reference};
use crate::{Isa, Len, ObjectCode, Va};

/// See [`crate::scan::references`].
pub(crate) fn references(code: &ObjectCode<'_>, start: Va, bytes: &[u8], found: &mut dyn FnMut(Reference)) {
    let rel8 = |at: usize| bytes.get(at).map(|b| i64::from(*b as i8) + 1 + at as i64);
    let disp32 = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let rel32 = |at: usize| Some(i64::from(disp32(at)? as i32) + 4 + at as i64);
    for (i, byte) in bytes.iter().enumerate() {
        let after = bytes.get(i + 1).copied().unwrap_or(0);
        // Code at fixed addresses may name one in any operand.
        if code.fixed {
            disp32(i).into_iter().for_each(|word| found(Reference::Names(Va(word.into()))));
            let sum = sum_at(*byte, after).and_then(|at| disp32(i + at));
            sum.into_iter().for_each(|word| found(Reference::Sum(Va(word.into()))));
        }
        let target = match (*byte, after) {
            (0xeb | 0x70..=0x7f | 0xe0..=0xe3, _) => rel8(i + 1),
            (0xe8 | 0xe9, _) => rel32(i + 1),
            (0x0f, 0x80..=0x8f) => rel32(i + 2),
            (0x8d, modrm) => {
                let value = match code.isa {
                    Isa::X64 if modrm & 0xc7 == 0x05 => rel32(i + 2).map(|d| start.offset(d)),
                    // Absolute, or a distance from the table.
                    Isa::X86 if modrm & 0xc7 == 0x05 => disp32(i + 2).map(|d| Va(d.into())),
                    Isa::X86 if modrm & 0xc0 == 0x80 => {
                        let at = i + 2 + usize::from(modrm & 7 == 4);
                        code.got.zip(disp32(at)).map(|(got, d)| code.isa.wrap(got.plus(Len(d.into()))))
                    }
                    _ => None,
                };
                value.into_iter().for_each(|value| found(Reference::Names(value)));
                None
            }
            _ => None,
        };
        if let Some(distance) = target {
            let source = start.plus(Len(i as u64));
            found(Reference::Branch { source, target: code.isa.wrap(start.offset(distance)) });
        }
    }
}

/// Where the address is to which an instruction adds a register, if bytes are one as
/// [`Insn::address_in_sum`](super::Insn::address_in_sum) knows them: in bytes behind its first.
fn sum_at(opcode: u8, modrm: u8) -> Option<usize> {
    let has_index = modrm & 7 == 4;
    match (opcode, modrm >> 6) {
        // `add $address,%eax`
        (0x05, _) => Some(1),
        // `add $address,reg`
        (0x81, 3) if modrm & 0x38 == 0 => Some(2),
        // `lea address(base),reg`, `lea address(base,index),reg`
        (0x8d, 2) => Some(2 + usize::from(has_index)),
        // `lea address(,index),reg`
        (0x8d, 0) if has_index => Some(3),
        _ => None,
    }
}

/// See [`crate::scan::distances`].
pub(crate) fn distances(isa: Isa, start: Va, bytes: &[u8], mut found: impl FnMut(Distance)) {
    let mut last = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let before = std::mem::replace(&mut last, byte);
        if !PRECEDES[usize::from(byte)] || !precedes_distance(before, byte) {
            continue;
        }
        let Some(b) = bytes.get(at + 1..at + 5) else { return };
        let distance = i32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let target = isa.wrap(start.plus(Len(at as u64 + 5)).offset(distance.into()));
        // One byte may be both.
        found(Distance { at, target, is_branch: precedes_branch(before, byte), is_operand: is_rip(byte) });
    }
}

/// Whether the distance of a branch or of an operand may follow these two bytes: the opcode
/// (`e8`, `e9`, `0f 80` to `0f 8f`), that of `xbegin` (`c7 f8`), or a ModR/M byte that says
/// relative to `rip`.
const fn precedes_distance(before: u8, byte: u8) -> bool {
    precedes_branch(before, byte) || is_rip(byte)
}

const fn precedes_branch(before: u8, byte: u8) -> bool {
    match byte {
        0xe8 | 0xe9 => true,
        0x80..=0x8f => before == 0x0f,
        0xf8 => before == 0xc7,
        _ => false,
    }
}

const fn is_rip(byte: u8) -> bool {
    byte & 0xc7 == 5
}

/// The second of these two bytes.
const PRECEDES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let second = byte as u8;
        table[byte] = precedes_distance(0x0f, second) || precedes_distance(0xc7, second);
        byte += 1;
    }
    table
};
