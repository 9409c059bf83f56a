//! Instructions one behind the other, with labels, in either instruction set; here those that go
//! elsewhere. Lengths do not depend on operands.

use super::super::decode::AL;
use super::b;
use crate::a32::{LINK, PC, SP};
use crate::patch::OutOfReach;
use crate::{Isa, Len, Va};

/// A place in the code that is being assembled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// Why code has no encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// A branch is too long.
    #[error(transparent)]
    Reach(#[from] OutOfReach),
    /// There is no such immediate.
    #[error("{value:#x} is no immediate of the instruction at {at}")]
    Operand {
        /// The address of the instruction.
        at: Va,
        /// The immediate.
        value: u32,
    },
}

/// A condition (section A8.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Cond {
    /// Equal.
    Eq = 0,
    /// Not equal.
    Ne = 1,
    /// Unsigned higher or same.
    Hs = 2,
}

/// Which kind of branch leads to a label.
#[derive(Clone, Copy)]
enum Fixup {
    /// `b` with a condition.
    Branch(u8),
    /// `ldr Rt` of a literal.
    Load(u8),
}

/// Code being assembled for a known address, which is a multiple of 4.
pub struct Asm {
    at: Va,
    thumb: bool,
    bytes: Vec<u8>,
    labels: Vec<Option<usize>>,
    fixups: Vec<(usize, Label, Fixup)>,
    /// What had no encoding, first of all.
    error: Option<EncodeError>,
}

impl Asm {
    /// Code of an instruction set that starts at a run-time address.
    #[must_use]
    pub fn new(isa: Isa, at: Va) -> Asm {
        let thumb = isa == Isa::T32;
        Asm { at, thumb, bytes: Vec::new(), labels: Vec::new(), fixups: Vec::new(), error: None }
    }

    /// Whether it is T32.
    #[must_use]
    pub fn is_thumb(&self) -> bool {
        self.thumb
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing emitted yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The address of the next instruction.
    #[must_use]
    pub fn here(&self) -> Va {
        self.address(self.bytes.len())
    }

    fn address(&self, offset: usize) -> Va {
        self.at.plus(Len(offset as u64))
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// A number of 8 bytes.
    pub fn quad(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// A halfword of T32.
    pub fn half(&mut self, half: u32) {
        self.raw(&(half as u16).to_le_bytes());
    }

    fn encoded(&self, word: u32) -> [u8; 4] {
        if self.thumb { word.rotate_left(16) } else { word }.to_le_bytes()
    }

    /// One of two words; of T32, the first halfword is the upper one.
    pub(super) fn either(&mut self, a32: u32, t32: u32) {
        let bytes = self.encoded(if self.thumb { t32 } else { a32 });
        self.raw(&bytes);
    }

    /// A word that both instruction sets have.
    pub(super) fn both(&mut self, word: u32) {
        self.either(word, word);
    }

    fn refuse(&mut self, error: EncodeError) {
        self.error.get_or_insert(error);
    }

    pub(super) fn operand(&mut self, value: u32) {
        let at = self.here();
        self.refuse(EncodeError::Operand { at, value });
    }

    /// A label that is not bound yet.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds a label to the next instruction.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.bytes.len());
    }

    fn at_label(&mut self, label: Label, fixup: Fixup) {
        self.fixups.push((self.bytes.len(), label, fixup));
        self.both(0);
    }

    /// `b label`
    pub fn b(&mut self, label: Label) {
        self.at_label(label, Fixup::Branch(AL));
    }

    /// `b` with a condition.
    pub fn b_cond(&mut self, condition: Cond, label: Label) {
        self.at_label(label, Fixup::Branch(condition as u8));
    }

    /// `b` with a condition by its number, which is less than 14.
    pub fn b_numbered(&mut self, condition: u8, label: Label) {
        self.at_label(label, Fixup::Branch(condition));
    }

    /// `ldr Rt, label`. The label is at a multiple of 4, and less than 4 KiB ahead.
    pub fn ldr_literal(&mut self, t: u8, label: Label) {
        self.at_label(label, Fixup::Load(t));
    }

    /// `b` to an address in the same instruction set, within its reach.
    ///
    /// # Errors
    /// It is farther away.
    pub fn b_to(&mut self, to: Va) -> Result<(), OutOfReach> {
        let from = self.here();
        let word = b(self.thumb, from, to).ok_or(OutOfReach { from, to })?;
        self.both(word);
        Ok(())
    }

    /// Calls A32 code at an address: `bl`, or `blx` of T32, within its reach. The link register
    /// says where to come back to, and in which instruction set.
    ///
    /// # Errors
    /// It is farther away.
    pub fn call_a32(&mut self, to: Va) -> Result<(), OutOfReach> {
        let from = self.here();
        // `blx` of T32 counts from a multiple of 4, and has other bits than `b.w` for that.
        let base = if self.thumb { Va(from.0 & !3) } else { from };
        let word = b(self.thumb, base, to).filter(|_| to.0 % 4 == 0).ok_or(OutOfReach { from, to })?;
        self.either(word | 1 << 24, word & !0x1001 | 0x4000);
        Ok(())
    }

    /// `bx`
    pub fn bx(&mut self, m: u8) {
        match self.thumb {
            true => self.half(0x4700 | u32::from(m) << 3),
            false => self.both(0xe12f_ff10 | u32::from(m)),
        }
    }

    /// `blx` of a register.
    pub fn blx(&mut self, m: u8) {
        match self.thumb {
            true => self.half(0x4780 | u32::from(m) << 3),
            false => self.both(0xe12f_ff30 | u32::from(m)),
        }
    }

    /// `nop`; of T32, in 16 bits.
    pub fn nop(&mut self) {
        match self.thumb {
            true => self.half(0xbf00),
            false => self.both(0xe320_f000),
        }
    }

    /// Nops up to a multiple of `to`, in bytes.
    pub fn align(&mut self, to: u64) {
        while self.here().0 % to != 0 {
            self.nop();
        }
    }

    /// Calls a function by its address, whose bit 0 says T32. Changes r12.
    pub fn call_any(&mut self, function: u64) {
        self.constant(12, function as u32);
        self.blx(12);
    }

    /// Resolves all labels and gives the code.
    ///
    /// # Errors
    /// An operand has no encoding, or a label is too far away.
    ///
    /// # Panics
    /// If a used label was never bound: an error in the caller, found by its first test.
    pub fn finish(mut self) -> Result<Vec<u8>, EncodeError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        for (at, label, fixup) in std::mem::take(&mut self.fixups) {
            let to = self.address(self.labels[label.0].expect("label is bound"));
            let from = self.address(at);
            let error = OutOfReach { from, to };
            let word = match fixup {
                Fixup::Branch(AL) => b(self.thumb, from, to),
                Fixup::Branch(condition) => branch(self.thumb, condition, from, to),
                Fixup::Load(t) => literal(self.thumb, t, from, to),
            };
            let word = self.encoded(word.ok_or(error)?);
            self.bytes[at..at + 4].copy_from_slice(&word);
        }
        Ok(self.bytes)
    }
}

/// `b` with a condition: ±32 MiB, of T32 ±1 MiB.
fn branch(thumb: bool, condition: u8, from: Va, to: Va) -> Option<u32> {
    if !thumb {
        return b(false, from, to).map(|word| word & 0x0fff_ffff | u32::from(condition) << 28);
    }
    let distance = i64::from(to.since(from.plus(Len(4))) as i32);
    let number = distance as u32;
    let [s, j2, j1] = [20, 19, 18].map(|at| number >> at & 1);
    let fits = distance >> 20 == distance >> 63 && distance & 1 == 0;
    let far = s << 26 | (number >> 12 & 0x3f) << 16 | j1 << 13 | j2 << 11 | number >> 1 & 0x7ff;
    fits.then_some(0xf000_8000 | u32::from(condition) << 22 | far)
}

/// `b` of 16 bits: ±2 KiB.
pub(crate) fn short(from: Va, to: Va) -> Option<u16> {
    let distance = i64::from(to.since(from.plus(Len(4))) as i32);
    let fits = distance >> 11 == distance >> 63 && distance & 1 == 0;
    fits.then_some(0xe000 | (distance >> 1) as u16 & 0x7ff)
}

/// `ldr Rt` of a literal ahead.
fn literal(thumb: bool, t: u8, from: Va, to: Va) -> Option<u32> {
    let ahead = if thumb { (from.0 & !3) + 4 } else { from.0 + 8 };
    let offset = u32::try_from(to.0.checked_sub(ahead)?).ok().filter(|offset| *offset < 1 << 12)?;
    Some(if thumb { 0xf8df_0000 } else { 0xe59f_0000 } | u32::from(t) << 12 | offset)
}

/// A list of registers, a bit each.
#[must_use]
pub fn list(registers: &[u8]) -> u16 {
    registers.iter().fold(0, |list, register| list | 1 << (register & 15))
}

const _: () = assert!(SP == 13 && LINK == 14 && PC == 15);

/// The two words of code of a switch in front of a handler: `nop`s, as they are when it is on, and
/// the same with a jump from `word` to `over`, which may replace each other while threads run
/// ([`crate::a32::patch`]). `None`: it is too far.
#[must_use]
pub fn switch(isa: Isa, word: Va, over: Va) -> Option<[u64; 2]> {
    let on = if isa == Isa::T32 { 0xbf00_bf00_bf00_bf00 } else { 0xe320_f000_e320_f000 };
    let off = match isa {
        Isa::T32 => on & !0xffff | u64::from(short(word, over)?),
        _ => on & !0xffff_ffff | u64::from(b(false, word, over)?),
    };
    Some([on, off])
}
