//! Which bits of data mean something. Padding is anything, and so is what an enumeration of Rust
//! has where the variant that is there has nothing. Keys are compared by their bytes, so values
//! that are the same would be several keys.

use super::super::checked::{Choice, Meaning, Value, ValueKind};
use super::super::ctype::{CType, Field, Layout, Variants};
use super::super::types::Type;
use super::Checker;

/// Members and variants of one value that are looked at; a value with more stays as it is.
const PARTS: usize = 1024;

impl Checker<'_> {
    /// A value whose meaningless bits are 0.
    pub(super) fn meant(&mut self, value: Value) -> Value {
        let Type::Data { ty, size } = &value.ty else { return value };
        let mut meaning = Meaning { words: vec![0; size.div_ceil(8)], choices: Vec::new() };
        let mut left = PARTS;
        let is_known = self.add_meaning(ty, 0, None, &mut meaning, &mut left).is_some();
        if !is_known || meaning.choices.is_empty() && meaning.is_whole(8 * *size as u64) {
            return value;
        }
        Value { ty: value.ty.clone(), kind: ValueKind::Meant(Box::new(value), Box::new(meaning)) }
    }

    /// Adds the bits of something at a bit. `None`: nobody knows which ones mean something.
    fn add_meaning(
        &mut self,
        ty: &CType,
        bit: u64,
        width: Option<u32>,
        to: &mut Meaning,
        left: &mut usize,
    ) -> Option<()> {
        *left = left.checked_sub(1)?;
        match ty {
            CType::Record(record) => {
                let layout = self.known_layout(record)?;
                match &layout.variants {
                    Some(variants) => self.add_choice(&layout, variants, bit, to, left)?,
                    None => {
                        for field in &layout.fields {
                            self.add_meaning(&field.ty, bit + field.bit, field.width, to, left)?;
                        }
                    }
                }
            }
            CType::Array(of, length) if matches!(**of, CType::Record(_) | CType::Array(..)) => {
                let step = 8 * self.known_size(of)?;
                for index in 0..*length {
                    self.add_meaning(of, bit + index * step, None, to, left)?;
                }
            }
            // A number of 80 bits.
            CType::Float { bytes: 12 | 16 } => to.set(bit, 80),
            ty => to.set(bit, width.map_or(8 * self.known_size(ty)?, u64::from)),
        }
        Some(())
    }

    /// The same of an enumeration: with the tag, the bits of one variant mean something.
    fn add_choice(
        &mut self,
        layout: &Layout,
        variants: &Variants,
        bit: u64,
        to: &mut Meaning,
        left: &mut usize,
    ) -> Option<()> {
        let own = |index: usize| layout.fields.get(index).map(|field| Field { bit: bit + field.bit, ..field.clone() });
        let Some(tag) = variants.tag.and_then(own) else {
            let [(_, index)] = variants.fields[..] else { return None };
            let field = own(index)?;
            return self.add_meaning(&field.ty, field.bit, None, to, left);
        };
        let CType::Int { bytes, .. } = tag.ty else { return None };
        if tag.bit % 8 != 0 {
            return None;
        }
        let mut choice = Choice { tag: (tag.bit / 8) as usize, bytes, variants: Vec::new() };
        let whole = 8 * layout.size;
        for (number, index) in &variants.fields {
            let field = own(*index)?;
            // What is around the enumeration stays.
            let mut meaning = Meaning { words: vec![u64::MAX; to.words.len()], choices: Vec::new() };
            meaning.clear(bit, whole);
            meaning.set(tag.bit, 8 * u64::from(bytes));
            self.add_meaning(&field.ty, field.bit, None, &mut meaning, left)?;
            choice.variants.push((*number, meaning));
        }
        to.set(bit, whole);
        to.choices.push(choice);
        Some(())
    }
}
