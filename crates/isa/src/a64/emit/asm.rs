//! Words one behind the other, with labels.

use super::{Cond, EncodeError, Encoded, Reg, mov_address, mov_constant};
use crate::a64::WORD;
use crate::patch::OutOfReach;
use crate::{Len, Va};

/// A place in the code that is being assembled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// How a word gets its distance to a label.
type Encode = Box<dyn Fn(Va, Va) -> Encoded>;

/// Code being assembled for a known address, which is a multiple of 4.
pub struct Asm {
    at: Va,
    words: Vec<u32>,
    labels: Vec<Option<usize>>,
    /// Which words lead to labels.
    fixups: Vec<(usize, Label, Encode)>,
    /// The first operand that had no encoding.
    error: Option<EncodeError>,
}

impl Asm {
    /// Code that starts at a run-time address.
    #[must_use]
    pub fn new(at: Va) -> Asm {
        Asm { at, words: Vec::new(), labels: Vec::new(), fixups: Vec::new(), error: None }
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len() * WORD
    }

    /// Nothing emitted yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The address of the next instruction.
    #[must_use]
    pub fn here(&self) -> Va {
        self.address(self.words.len())
    }

    fn address(&self, word: usize) -> Va {
        self.at.plus(Len((word * WORD) as u64))
    }

    /// One word, as it is.
    pub fn word(&mut self, word: u32) {
        self.words.push(word);
    }

    /// One instruction. Where its operands have no encoding, [`Asm::finish`] says so.
    pub fn push(&mut self, word: Encoded) {
        match word {
            Ok(word) => self.words.push(word),
            Err(error) => {
                self.words.push(0);
                self.error.get_or_insert(error);
            }
        }
    }

    /// Any constant in a register, in 1 to 4 instructions.
    pub fn constant(&mut self, to: Reg, value: u64) {
        match mov_constant(to, value) {
            Ok(words) => self.words.extend(words),
            Err(error) => self.push(Err(error)),
        }
    }

    /// An address in a register, in 3 instructions.
    pub fn mov_address(&mut self, to: Reg, address: u64) {
        match mov_address(to, address) {
            Ok(words) => self.words.extend(words),
            Err(error) => self.push(Err(error)),
        }
    }

    /// A number of 8 bytes.
    pub fn quad(&mut self, value: u64) {
        self.words.extend([value as u32, (value >> 32) as u32]);
    }

    /// A label that is not bound yet.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds a label to the next instruction.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.words.len());
    }

    /// An instruction that has the distance to a label: `encode` gets its address and that of the
    /// label.
    pub fn to_label(&mut self, label: Label, encode: impl Fn(Va, Va) -> Encoded + 'static) {
        self.fixups.push((self.words.len(), label, Box::new(encode)));
        self.words.push(0);
    }

    /// `b label`
    pub fn b(&mut self, label: Label) {
        self.to_label(label, super::b);
    }

    /// `b.cond label`
    pub fn b_cond(&mut self, condition: Cond, label: Label) {
        self.to_label(label, move |from, to| super::b_cond(condition, from, to));
    }

    /// `cbz Xt, label`
    pub fn cbz(&mut self, register: Reg, label: Label) {
        self.to_label(label, move |from, to| super::cbz(register, from, to));
    }

    /// `cbnz Xt, label`
    pub fn cbnz(&mut self, register: Reg, label: Label) {
        self.to_label(label, move |from, to| super::cbnz(register, from, to));
    }

    /// `adr Xd, label`
    pub fn adr(&mut self, register: Reg, label: Label) {
        self.to_label(label, move |from, to| super::adr(register, from, to));
    }

    /// `ldr Xt, label`
    pub fn ldr_literal(&mut self, register: Reg, label: Label) {
        self.to_label(label, move |from, to| super::ldr_literal(register, from, to));
    }

    /// `b` to an address within ±128 MiB.
    ///
    /// # Errors
    /// It is farther away.
    pub fn b_to(&mut self, to: Va) -> Result<(), OutOfReach> {
        let from = self.here();
        let word = super::b(from, to).map_err(|_| OutOfReach { from, to })?;
        self.words.push(word);
        Ok(())
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
        for (at, label, encode) in std::mem::take(&mut self.fixups) {
            let bound = self.labels[label.0].expect("label is bound");
            self.words[at] = encode(self.address(at), self.address(bound))?;
        }
        Ok(self.words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }
}
