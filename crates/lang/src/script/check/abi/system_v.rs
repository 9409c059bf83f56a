//! What functions of x86-64 have in registers.
//!
//! Source: the System V ABI of x86-64, section 3.2.3, "Parameter Passing".

use super::super::super::ctype::CType;
use super::super::super::diagnostic::Span;
use super::super::memory::number_type;
use super::super::{Checker, Checking};
use super::pieces::{Class, Piece};

impl Checker<'_> {
    /// The registers that a value is in, one for each eight bytes; `None`: it is in memory.
    pub(super) fn system_v_pieces(&mut self, ty: &CType, span: Span) -> Checking<Option<Vec<Piece>>> {
        if let CType::Float { bytes } = ty {
            return Ok((*bytes <= 8).then(|| vec![Piece::word(Class::Float, 0)]));
        }
        if number_type(ty).is_some() {
            return Ok(Some(vec![Piece::word(Class::Integer, 0)]));
        }
        let size = self.size(ty, span)?;
        if size > 16 {
            return Ok(None);
        }
        let mut classes = vec![None; size.div_ceil(8) as usize];
        let in_registers = self.classify(ty, 0, &mut classes, span)?;
        let pieces = (0..).zip(classes).map(|(n, class)| Piece::word(class.unwrap_or(Class::Float), n));
        Ok(in_registers.then(|| pieces.collect()))
    }

    /// Whether a result is in a register that programs do not see: a `long double`, a vector. C
    /// returns no arrays, so an array is a vector, or a number of 16 bytes.
    pub(super) fn is_in_vector(&mut self, ty: &CType, span: Span) -> Checking<bool> {
        Ok(match ty {
            CType::Float { bytes } => *bytes > 8,
            CType::Array(of, length) => (&**of, *length) != (&CType::Int { bytes: 8, signed: false }, 2),
            CType::Record(record) => {
                let layout = self.layout(&record.clone(), span)?;
                match &layout.fields[..] {
                    [field] if layout.size <= 16 => match &field.ty {
                        CType::Array(..) => false,
                        ty => self.is_in_vector(&ty.clone(), span)?,
                    },
                    _ => false,
                }
            }
            _ => false,
        })
    }

    /// Notes the classes of what is at an offset in bits; `false`: all of it is in memory.
    fn classify(&mut self, ty: &CType, bit: u64, classes: &mut [Option<Class>], span: Span) -> Checking<bool> {
        let align = self.align(ty, span)?;
        match ty {
            CType::Array(of, length) => {
                let size = self.size(of, span)?;
                // What has at most 16 bytes has no more elements that matter.
                for n in 0..(*length).min(16) {
                    if !self.classify(of, bit + 8 * size * n, classes, span)? {
                        return Ok(false);
                    }
                }
                return Ok(true);
            }
            CType::Record(record) => {
                let record = record.clone();
                for field in self.layout(&record, span)?.fields {
                    let at = bit + field.bit;
                    if field.width.is_some() {
                        if let Some(class) = classes.get_mut((at / 64) as usize) {
                            *class = Some(Class::Integer);
                        }
                    } else if !self.classify(&field.ty, at, classes, span)? {
                        return Ok(false);
                    }
                }
                return Ok(true);
            }
            _ if bit % (8 * align.max(1)) != 0 => return Ok(false),
            CType::Float { bytes } if *bytes > 8 => return Ok(false),
            _ => {}
        }
        if let Some(class) = classes.get_mut((bit / 64) as usize) {
            let is_float = matches!(ty, CType::Float { .. }) && *class != Some(Class::Integer);
            *class = Some(if is_float { Class::Float } else { Class::Integer });
        }
        Ok(true)
    }
}
