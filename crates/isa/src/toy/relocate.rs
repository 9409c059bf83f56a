//! Copies of instructions for other addresses.
//!
//! | instruction | copy | bytes |
//! |---|---|---|
//! | jump | the same, with another number | 4 |
//! | conditional jump | the same over a jump: `jump-if +2; jump +2; jump target` | 12 |
//! | call | `link = the word behind; jump target; the return address` | 16 |
//! | address | `rd = the word behind; jump over it; the address` | 16 |
//! | load from here | `rd = the word behind; rd = the word at rd; jump over; the address` | 20 |
//! | call of a register | `link = the word behind; jump register; the return address` | 16 |
//! | all others | the same bytes | 4 |

use super::{Insn, LINK, WORD, decode, op, word, word_16, word_24};
use crate::relocate::RelocateError;
use crate::{Len, Va};

/// The length of the copy that [`relocate()`] makes.
///
/// # Errors
/// It is no instruction.
pub fn relocated_len(bytes: &[u8], from: Va) -> Result<usize, RelocateError> {
    Ok(match decode(bytes, from)?.op() {
        op::JUMP_EQUAL | op::JUMP_ZERO => 12,
        op::CALL | op::CALL_REGISTER | op::ADDRESS => 16,
        op::LOAD_HERE => 20,
        _ => WORD,
    })
}

/// Appends the copy of the instruction at the start of `bytes`.
///
/// # Errors
/// It is no instruction, or the copy is too far from where it leads.
pub fn relocate(bytes: &[u8], from: Va, to: Va, out: &mut Vec<u8>) -> Result<(), RelocateError> {
    let insn = decode(bytes, from)?;
    let words = copy(&insn, to).ok_or(RelocateError::OutOfReach { target: insn.target(), to })?;
    out.extend(words.concat());
    Ok(())
}

fn copy(insn: &Insn, to: Va) -> Option<Vec<[u8; WORD]>> {
    let number = |value: u64| {
        let bytes = value.to_le_bytes();
        [[bytes[0], bytes[1], bytes[2], bytes[3]], [bytes[4], bytes[5], bytes[6], bytes[7]]]
    };
    let jump = |words_before: u64| {
        let at = to.plus(Len(words_before * WORD as u64));
        word_24(op::JUMP, insn.target().since(at) / WORD as i64)
    };
    let same = word(insn.op(), insn.rd(), insn.rs(), insn.number() as u8);
    Some(match insn.op() {
        op::JUMP => vec![jump(0)?],
        op::JUMP_EQUAL => vec![word_24(op::JUMP_EQUAL, 2)?, word_24(op::JUMP, 2)?, jump(2)?],
        op::JUMP_ZERO => vec![word_16(op::JUMP_ZERO, insn.rd(), 2)?, word_24(op::JUMP, 2)?, jump(2)?],
        op::CALL => {
            let [low, high] = number(insn.next().0);
            vec![word_16(op::LOAD_HERE, LINK, 2)?, jump(1)?, low, high]
        }
        op::CALL_REGISTER => {
            let [low, high] = number(insn.next().0);
            vec![word_16(op::LOAD_HERE, LINK, 2)?, word(op::JUMP_REGISTER, 0, insn.rs(), 0), low, high]
        }
        op::ADDRESS => {
            let [low, high] = number(insn.target().0);
            vec![word_16(op::LOAD_HERE, insn.rd(), 2)?, word_24(op::JUMP, 3)?, low, high]
        }
        op::LOAD_HERE => {
            let [low, high] = number(insn.target().0);
            let load = word(op::LOAD, insn.rd(), insn.rd(), 0);
            vec![word_16(op::LOAD_HERE, insn.rd(), 3)?, load, word_24(op::JUMP, 3)?, low, high]
        }
        op::LOAD_NUMBER => vec![word_16(op::LOAD_NUMBER, insn.rd(), insn.number())?],
        op::HIT => vec![word_24(op::HIT, insn.number())?],
        _ => vec![same],
    })
}
