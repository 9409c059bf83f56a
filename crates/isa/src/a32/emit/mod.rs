//! The instructions that copies, patches and detours consist of.

mod asm;
mod insns;

pub use asm::{Asm, Cond, EncodeError, Label, list, switch};

use super::decode::AL;
use super::{LINK, PC};
use crate::{Len, Va};

/// Code of one of the two instruction sets, written from an address on.
pub(crate) struct Code {
    pub bytes: Vec<u8>,
    at: Va,
    thumb: bool,
}

impl Code {
    pub fn new(at: Va, thumb: bool) -> Code {
        Code { bytes: Vec::new(), at, thumb }
    }

    /// Where the next instruction comes.
    pub fn here(&self) -> Va {
        self.at.plus(Len(self.bytes.len() as u64))
    }

    /// A word of A32, or two halfwords of T32 with the first one above.
    pub fn word(&mut self, word: u32) {
        self.bytes.extend(if self.thumb { word.rotate_left(16) } else { word }.to_le_bytes());
    }

    pub fn half(&mut self, half: u32) {
        self.bytes.extend((half as u16).to_le_bytes());
    }

    /// One of two words.
    pub fn either(&mut self, a32: u32, t32: u32) {
        self.word(if self.thumb { t32 } else { a32 });
    }

    /// Puts a number into a register by `movw` and `movt`. No flag changes.
    pub fn constant(&mut self, register: u8, value: u32) {
        for (value, a32, t32) in [(value & 0xffff, 0xe300_0000, 0xf240_0000), (value >> 16, 0xe340_0000, 0xf2c0_0000)] {
            let d = u32::from(register);
            let t32 = t32 | value >> 12 << 16 | (value >> 11 & 1) << 26 | (value >> 8 & 7) << 12 | d << 8 | value & 255;
            self.either(a32 | value >> 12 << 16 | d << 12 | value & 0xfff, t32);
        }
    }

    /// A jump to anywhere: bit 0 says T32. In T32, the address is in front of padding or behind it.
    pub fn jump(&mut self, to: u32) {
        if !self.thumb {
            self.word(0xe51f_f004);
            self.bytes.extend(to.to_le_bytes());
        } else if self.here().0 % 4 == 0 {
            self.word(0xf8df_f000);
            self.bytes.extend(to.to_le_bytes());
            self.half(NOP_16);
        } else {
            self.word(0xf8df_f004);
            self.half(NOP_16);
            self.bytes.extend(to.to_le_bytes());
        }
    }

    /// `str Xt, [sp, #-8]!`: the register, and a free word above it.
    pub fn spill(&mut self, register: u8) {
        let t = u32::from(register) << 12;
        self.either(0xe52d_0008 | t, 0xf84d_0d08 | t);
    }

    /// Takes both words off again.
    pub fn unspill(&mut self, register: u8) {
        let t = u32::from(register) << 12;
        self.either(0xe49d_0008 | t, 0xf85d_0b08 | t);
    }

    /// Takes both words off: the register has the address to go to, and gets its old value.
    pub fn unspill_and_go(&mut self, register: u8) {
        let t = u32::from(register) << 12;
        self.either(0xe58d_0004 | t, 0xf8cd_0004 | t);
        let list = 1 << register | 1 << PC;
        self.either(0xe8bd_0000 | list, 0xe8bd_0000 | list);
    }

    /// A branch over what has so many bytes, if the opposite of a condition holds.
    pub fn skip_unless(&mut self, condition: u8, len: usize) {
        let opposite = u32::from(condition ^ 1);
        match self.thumb {
            true => self.half(0xd000 | opposite << 8 | (len as u32 - 2) >> 1 & 255),
            false => self.word(opposite << 28 | 0x0a00_0000 | (len as u32).wrapping_sub(4) >> 2 & 0x00ff_ffff),
        }
    }

    /// Bytes of such a branch.
    pub fn skip_len(thumb: bool) -> usize {
        if thumb { 2 } else { 4 }
    }

    /// An instruction without effect, of 4 bytes.
    pub fn nop(&mut self) {
        self.either(0xe320_f000, 0xf3af_8000);
    }

    /// `bx`.
    pub fn branch_register(&mut self, register: u8) {
        match self.thumb {
            true => self.half(0x4700 | u32::from(register) << 3),
            false => self.word(0xe12f_ff10 | u32::from(register)),
        }
    }

    /// `push {lr}`.
    pub fn push_link(&mut self) {
        let t = u32::from(LINK) << 12;
        self.either(0xe52d_0004 | t, 0xf84d_0d04 | t);
    }

    /// `pop {pc}`.
    pub fn pop_pc(&mut self) {
        let t = u32::from(PC) << 12;
        self.either(0xe49d_0004 | t, 0xf85d_0b04 | t);
    }
}

const NOP_16: u32 = 0xbf00;

/// `it` for one instruction.
pub(crate) fn it(condition: u8) -> u32 {
    0xbf08 | u32::from(condition & 15) << 4
}

/// The word of `b` (±32 MiB) or `b.w` (±16 MiB) to an address in the same instruction set.
pub(crate) fn b(thumb: bool, from: Va, to: Va) -> Option<u32> {
    let (ahead, bits) = if thumb { (4, 25) } else { (8, 26) };
    // Addresses go around at 4 GiB.
    let distance = i64::from(to.since(from.plus(Len(ahead))) as i32);
    let fits = distance >> (bits - 1) == distance >> 63 && distance & if thumb { 1 } else { 3 } == 0;
    let number = distance as u32;
    let s = number >> 24 & 1;
    let [j1, j2] = [23, 22].map(|at| 1 ^ number >> at & 1 ^ s);
    let t32 = 0xf000_9000 | s << 26 | (number >> 12 & 0x3ff) << 16 | j1 << 13 | j2 << 11 | number >> 1 & 0x7ff;
    let a32 = u32::from(AL) << 28 | 0x0a00_0000 | number >> 2 & 0x00ff_ffff;
    fits.then_some(if thumb { t32 } else { a32 })
}
