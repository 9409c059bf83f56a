//! Instructions that compute, load and store. Each method emits the same one in both instruction
//! sets; of T32, the form of 32 bits (DDI 0406C, A8.8). None of them changes a flag, but for the
//! comparisons and `msr`.

use super::Asm;

impl Asm {
    /// `movw` of a number of 16 bits, which clears the upper half.
    pub fn movw(&mut self, d: u8, value: u16) {
        self.half_constant(d, value, [0xe300_0000, 0xf240_0000]);
    }

    /// `movt`
    pub fn movt(&mut self, d: u8, value: u16) {
        self.half_constant(d, value, [0xe340_0000, 0xf2c0_0000]);
    }

    fn half_constant(&mut self, d: u8, value: u16, [a32, t32]: [u32; 2]) {
        let (d, value) = (u32::from(d), u32::from(value));
        let t32 = t32 | value >> 12 << 16 | (value >> 11 & 1) << 26 | (value >> 8 & 7) << 12 | d << 8 | value & 255;
        self.either(a32 | value >> 12 << 16 | d << 12 | value & 0xfff, t32);
    }

    /// Any number, in two instructions.
    pub fn constant(&mut self, d: u8, value: u32) {
        self.movw(d, value as u16);
        self.movt(d, (value >> 16) as u16);
    }

    /// `mov Rd, Rm`
    pub fn mov(&mut self, d: u8, m: u8) {
        let (d, m) = (u32::from(d), u32::from(m));
        self.either(0xe1a0_0000 | d << 12 | m, 0xea4f_0000 | d << 8 | m);
    }

    /// `add Rd, Rn, Rm, lsl #shift`
    pub fn add(&mut self, d: u8, n: u8, m: u8, shift: u32) {
        self.register(d, n, m, shift, [0xe080_0000, 0xeb00_0000]);
    }

    /// `sub Rd, Rn, Rm`
    pub fn sub(&mut self, d: u8, n: u8, m: u8) {
        self.register(d, n, m, 0, [0xe040_0000, 0xeba0_0000]);
    }

    /// `orr Rd, Rn, Rm, lsl #shift`
    pub fn orr(&mut self, d: u8, n: u8, m: u8, shift: u32) {
        self.register(d, n, m, shift, [0xe180_0000, 0xea40_0000]);
    }

    fn register(&mut self, d: u8, n: u8, m: u8, shift: u32, [a32, t32]: [u32; 2]) {
        let (d, n, m, shift) = (u32::from(d), u32::from(n), u32::from(m), shift & 31);
        let t32 = t32 | n << 16 | shift >> 2 << 12 | d << 8 | (shift & 3) << 6 | m;
        self.either(a32 | n << 16 | d << 12 | shift << 7 | m, t32);
    }

    /// `mul Rd, Rn, Rm`
    pub fn mul(&mut self, d: u8, n: u8, m: u8) {
        let (d, n, m) = (u32::from(d), u32::from(n), u32::from(m));
        self.either(0xe000_0090 | d << 16 | m << 8 | n, 0xfb00_f000 | n << 16 | d << 8 | m);
    }

    /// `umull`: the product of two registers, in 64 bits.
    pub fn umull(&mut self, low: u8, high: u8, n: u8, m: u8) {
        let [low, high, n, m] = [low, high, n, m].map(u32::from);
        self.either(
            0xe080_0090 | high << 16 | low << 12 | m << 8 | n,
            0xfba0_0000 | n << 16 | low << 12 | high << 8 | m,
        );
    }

    /// `ubfx`: `width` bits from `low` on.
    pub fn ubfx(&mut self, d: u8, n: u8, low: u32, width: u32) {
        let (d, n) = (u32::from(d), u32::from(n));
        if width == 0 || low + width > 32 {
            return self.operand(width);
        }
        let t32 = 0xf3c0_0000 | n << 16 | low >> 2 << 12 | d << 8 | (low & 3) << 6 | (width - 1);
        self.either(0xe7e0_0050 | (width - 1) << 16 | d << 12 | low << 7 | n, t32);
    }

    /// `add Rd, Rn, #value`, where [`Asm::has_immediate`].
    pub fn add_imm(&mut self, d: u8, n: u8, value: u32) {
        self.immediate(d, n, value, [0xe280_0000, 0xf200_0000]);
    }

    /// `sub Rd, Rn, #value`, where [`Asm::has_immediate`].
    pub fn sub_imm(&mut self, d: u8, n: u8, value: u32) {
        self.immediate(d, n, value, [0xe240_0000, 0xf2a0_0000]);
    }

    /// Whether `add` and `sub` have this number in one instruction: 12 bits of T32, 8 rotated bits
    /// of A32 (section A5.2.4).
    #[must_use]
    pub fn has_immediate(&self, value: u32) -> bool {
        if self.is_thumb() { value < 1 << 12 } else { rotated(value).is_some() }
    }

    fn immediate(&mut self, d: u8, n: u8, value: u32, [a32, t32]: [u32; 2]) {
        let (d, n) = (u32::from(d), u32::from(n));
        let twelve = (value >> 11 & 1) << 26 | (value >> 8 & 7) << 12 | value & 255;
        if !self.has_immediate(value) {
            return self.operand(value);
        }
        self.either(a32 | n << 16 | d << 12 | rotated(value).unwrap_or(0), t32 | n << 16 | d << 8 | twelve);
    }

    /// `and`, `bic` or `orr` of a number of 8 bits.
    fn logic(&mut self, d: u8, n: u8, value: u8, [a32, t32]: [u32; 2]) {
        let (d, n, value) = (u32::from(d), u32::from(n), u32::from(value));
        self.either(a32 | n << 16 | d << 12 | value, t32 | n << 16 | d << 8 | value);
    }

    /// `and Rd, Rn, #value`
    pub fn and_imm(&mut self, d: u8, n: u8, value: u8) {
        self.logic(d, n, value, [0xe200_0000, 0xf000_0000]);
    }

    /// `bic Rd, Rn, #value`. Of T32, the stack pointer is no operand.
    pub fn bic_imm(&mut self, d: u8, n: u8, value: u8) {
        self.logic(d, n, value, [0xe3c0_0000, 0xf020_0000]);
    }

    /// `orr Rd, Rn, #value`
    pub fn orr_imm(&mut self, d: u8, n: u8, value: u8) {
        self.logic(d, n, value, [0xe380_0000, 0xf040_0000]);
    }

    /// `cmp Rn, #value`, which changes the flags.
    pub fn cmp_imm(&mut self, n: u8, value: u8) {
        let (n, value) = (u32::from(n), u32::from(value));
        self.either(0xe350_0000 | n << 16 | value, 0xf1b0_0f00 | n << 16 | value);
    }

    /// `cmp Rn, Rm`, which changes the flags.
    pub fn cmp(&mut self, n: u8, m: u8) {
        let (n, m) = (u32::from(n), u32::from(m));
        self.either(0xe150_0000 | n << 16 | m, 0xebb0_0f00 | n << 16 | m);
    }

    /// `ldr Rt, [Rn, #offset]`, of less than 4 KiB.
    pub fn ldr(&mut self, t: u8, n: u8, offset: u32) {
        self.access(t, n, offset, [0xe590_0000, 0xf8d0_0000]);
    }

    /// `str Rt, [Rn, #offset]`, of less than 4 KiB.
    pub fn str(&mut self, t: u8, n: u8, offset: u32) {
        self.access(t, n, offset, [0xe580_0000, 0xf8c0_0000]);
    }

    fn access(&mut self, t: u8, n: u8, offset: u32, [a32, t32]: [u32; 2]) {
        if offset >= 1 << 12 {
            return self.operand(offset);
        }
        let rest = u32::from(n) << 16 | u32::from(t) << 12 | offset;
        self.either(a32 | rest, t32 | rest);
    }

    /// `stm Rn, {…}`: at least two registers, a bit each.
    pub fn stm(&mut self, n: u8, list: u16) {
        self.both(0xe880_0000 | u32::from(n) << 16 | u32::from(list));
    }

    /// `ldm Rn, {…}`: at least two registers, a bit each.
    pub fn ldm(&mut self, n: u8, list: u16) {
        self.both(0xe890_0000 | u32::from(n) << 16 | u32::from(list));
    }

    /// `push {…}`: at least one register, a bit each.
    pub fn push(&mut self, list: u16) {
        match list.count_ones() {
            1 => {
                let t = list.trailing_zeros() << 12;
                self.either(0xe52d_0004 | t, 0xf84d_0d04 | t);
            }
            _ => self.both(0xe92d_0000 | u32::from(list)),
        }
    }

    /// `pop {…}`: at least one register, a bit each.
    pub fn pop(&mut self, list: u16) {
        match list.count_ones() {
            1 => {
                let t = list.trailing_zeros() << 12;
                self.either(0xe49d_0004 | t, 0xf85d_0b04 | t);
            }
            _ => self.both(0xe8bd_0000 | u32::from(list)),
        }
    }

    /// `ldrex Rt, [Rn]`
    pub fn ldrex(&mut self, t: u8, n: u8) {
        let (t, n) = (u32::from(t), u32::from(n));
        self.either(0xe190_0f9f | n << 16 | t << 12, 0xe850_0f00 | n << 16 | t << 12);
    }

    /// `strex Rd, Rt, [Rn]`: `Rd` becomes 0 if it is stored.
    pub fn strex(&mut self, d: u8, t: u8, n: u8) {
        let (d, t, n) = (u32::from(d), u32::from(t), u32::from(n));
        self.either(0xe180_0f90 | n << 16 | d << 12 | t, 0xe840_0000 | n << 16 | t << 12 | d << 8);
    }

    /// `mrs Rd, apsr`
    pub fn mrs(&mut self, d: u8) {
        let d = u32::from(d);
        self.either(0xe10f_0000 | d << 12, 0xf3ef_8000 | d << 8);
    }

    /// `msr apsr_nzcvqg, Rn`: all flags.
    pub fn msr(&mut self, n: u8) {
        let n = u32::from(n);
        self.either(0xe12c_f000 | n, 0xf380_8c00 | n << 16);
    }

    /// The thread pointer: `TPIDRURO` (section B4.1.150).
    pub fn thread_pointer(&mut self, t: u8) {
        self.both(0xee1d_0f70 | u32::from(t) << 12);
    }

    /// `svc #0`
    pub fn svc(&mut self) {
        match self.is_thumb() {
            true => self.half(0xdf00),
            false => self.both(0xef00_0000),
        }
    }

    /// `vstr Dd, [Rn, #offset]`, of d0 to d31 and a multiple of 4 up to 1020.
    pub fn vstr(&mut self, d: u8, n: u8, offset: u32) {
        self.vector(d, n, offset, 0xed80_0b00);
    }

    /// `vldr Dd, [Rn, #offset]`
    pub fn vldr(&mut self, d: u8, n: u8, offset: u32) {
        self.vector(d, n, offset, 0xed90_0b00);
    }

    fn vector(&mut self, d: u8, n: u8, offset: u32, word: u32) {
        if offset > 1020 || offset % 4 != 0 {
            return self.operand(offset);
        }
        let d = u32::from(d);
        self.both(word | d >> 4 << 22 | u32::from(n) << 16 | (d & 15) << 12 | (offset / 4));
    }

    /// `vmrs Rt, fpscr`
    pub fn vmrs(&mut self, t: u8) {
        self.both(0xeef1_0a10 | u32::from(t) << 12);
    }

    /// `vmsr fpscr, Rt`
    pub fn vmsr(&mut self, t: u8) {
        self.both(0xeee1_0a10 | u32::from(t) << 12);
    }
}

/// The bits of A32 for a number of 8 bits that are rotated right by an even distance.
fn rotated(value: u32) -> Option<u32> {
    (0..16).map(|by| (by, value.rotate_left(2 * by))).find(|(_, byte)| *byte < 256).map(|(by, byte)| by << 8 | byte)
}
