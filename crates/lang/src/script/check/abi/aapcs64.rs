//! What functions of 64-bit Arm have in registers.
//!
//! Source: "Procedure Call Standard for the Arm 64-bit Architecture" (AAPCS64), 5.9.5 "Homogeneous
//! Aggregates" and 6.8.2 "Parameter passing rules".

use super::super::super::ctype::CType;
use super::super::super::diagnostic::Span;
use super::super::memory::number_type;
use super::super::{Checker, Checking};
use super::pieces::{Class, Piece};

/// Most members of a homogeneous aggregate.
const MEMBERS: u64 = 4;
/// Most bytes of a value that is in general registers.
const LARGEST: u64 = 16;

impl Checker<'_> {
    /// The registers that a value is in; `None`: its address is passed.
    pub(super) fn aapcs64_pieces(&mut self, ty: &CType, span: Span) -> Checking<Option<Vec<Piece>>> {
        if number_type(ty).is_some() {
            return Ok(Some(vec![Piece::word(Class::Integer, 0)]));
        }
        let size = self.size(ty, span)?;
        let mut float = None;
        if self.is_homogeneous(ty, &mut float, span)? {
            let bytes = float.unwrap_or(size).max(1);
            if size / bytes <= MEMBERS {
                let piece = |n| Piece { class: Class::Float, bit: 8 * bytes * n, bits: 8 * bytes };
                return Ok(Some((0..size / bytes).map(piece).collect()));
            }
        }
        let words = || (0..size.div_ceil(8)).map(|n| Piece::word(Class::Integer, n)).collect();
        Ok((size <= LARGEST).then(words))
    }

    /// Whether a value consists of floating-point numbers of one size; `float` is that size in
    /// bytes, once it is known.
    fn is_homogeneous(&mut self, ty: &CType, float: &mut Option<u64>, span: Span) -> Checking<bool> {
        match ty {
            CType::Float { bytes } => Ok(u64::from(*bytes) == *float.get_or_insert((*bytes).into())),
            CType::Array(of, length) => Ok(*length > 0 && self.is_homogeneous(of, float, span)?),
            CType::Record(record) => {
                let record = record.clone();
                let fields = self.layout(&record, span)?.fields;
                for field in &fields {
                    if field.width.is_some() || !self.is_homogeneous(&field.ty, float, span)? {
                        return Ok(false);
                    }
                }
                Ok(!fields.is_empty())
            }
            _ => Ok(false),
        }
    }
}
