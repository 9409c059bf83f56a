//! Data of C: bytes → what is printed.

use std::net::{Ipv4Addr, Ipv6Addr};

use sidestep_lang::script::ctype::{CType, Enum, Field, Layout, Net, Variants};
use sidestep_lang::script::types::{List, Parts, Type};

use super::value::{Names, Shown};
use crate::out::json;

/// Elements of an array at most.
const ELEMENTS: u64 = 1024;

/// A floating-point number by its bits, so that it can be compared and sorted; -0 and what is no
/// number as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Float {
    bits: u64,
    /// It was a `float`, which has fewer digits.
    short: bool,
}

impl Float {
    /// As C++ and Rust print it, with the digits that tell it from all others.
    pub fn text(self) -> String {
        let number = f64::from_bits(self.bits);
        if self.short { (number as f32).to_string() } else { number.to_string() }
    }

    /// The same in JSON, where a number cannot be infinite.
    pub fn json(self) -> String {
        if f64::from_bits(self.bits).is_finite() { self.text() } else { json::string(&self.text()) }
    }
}

/// An address.
pub fn address(word: u64) -> Shown {
    Shown::Named(word.into(), format!("{word:#x}"))
}

/// A number of an enumeration.
pub fn named(of: &Enum, word: u64) -> Shown {
    let number = if of.signed { (word as i64).into() } else { i128::from(word) };
    match of.name_of(word) {
        Some(_) if of.is_bool() => Shown::Bool(word != 0),
        Some(name) => Shown::Named(number, name.to_owned()),
        None => Shown::Int(number),
    }
}

/// An address of a network; bytes that are missing are zeros.
fn net(of: Net, bytes: &[u8]) -> String {
    let mut all = [0; 16];
    let len = bytes.len().min(of.size());
    all[..len].copy_from_slice(&bytes[..len]);
    match of {
        Net::V4 => Ipv4Addr::new(all[0], all[1], all[2], all[3]).to_string(),
        Net::V6 => Ipv6Addr::from(all).to_string(),
        Net::Mac => all[..6].iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":"),
    }
}

/// So many bits, from one on. What is behind the end is zeros.
fn bits(bytes: &[u8], from: u64, width: u64, signed: bool) -> u64 {
    let first = usize::try_from(from / 8).unwrap_or(usize::MAX);
    let byte = |n: usize| first.checked_add(n).and_then(|at| bytes.get(at)).copied().unwrap_or(0);
    let wide = (0..9).rev().fold(0_u128, |wide, n| wide << 8 | u128::from(byte(n)));
    let (width, number) = (width.clamp(1, 64), (wide >> (from % 8)) as u64);
    let unused = 64 - width;
    if signed { ((number << unused) as i64 >> unused) as u64 } else { number << unused >> unused }
}

impl Names {
    /// Something of this type.
    pub fn data(&self, ty: &CType, bytes: &[u8]) -> Shown {
        self.at(ty, bytes, 0, None)
    }

    /// Something of this type from a bit on; of a bit-field, its width.
    fn at(&self, ty: &CType, bytes: &[u8], bit: u64, width: Option<u32>) -> Shown {
        let number = |len: u8, signed| bits(bytes, bit, width.map_or(8 * u64::from(len), u64::from), signed);
        match ty {
            // A bit-field has no bit for a sign, as in bpftrace, unless it is as wide as its type.
            CType::Char | CType::Int { signed: true, .. } => {
                let len = if let CType::Int { bytes, .. } = ty { *bytes } else { 1 };
                let signed = width.is_none_or(|width| width == 8 * u32::from(len));
                Shown::Int((number(len, signed) as i64).into())
            }
            CType::Int { bytes, .. } => Shown::Int(number(*bytes, false).into()),
            CType::Enum(of) => named(of, number(of.bytes, of.signed)),
            CType::Pointer(_) | CType::Reference(_) => address(number(self.word, false)),
            CType::Float { bytes: 4 } => {
                let wide = f64::from(f32::from_bits(number(4, false) as u32));
                Shown::Float(Float { bits: wide.to_bits(), short: true })
            }
            CType::Float { bytes: 8 } => Shown::Float(Float { bits: number(8, false), short: false }),
            // The format of the x87: 64 bits of digits, and 16 of exponent and sign.
            CType::Float { .. } => {
                let (digits, rest) = (number(8, false), bits(bytes, bit + 64, 16, false));
                let exponent = (rest & 0x7fff) as i32 - 16383 - 63;
                let size = digits as f64 * 2_f64.powi(exponent);
                let wide = if rest & 0x8000 == 0 { size } else { -size };
                Shown::Float(Float { bits: wide.to_bits(), short: false })
            }
            CType::Array(of, length) if **of == CType::Char => {
                let text = bytes.get((bit / 8) as usize..).unwrap_or_default();
                let text = &text[..text.len().min(*length as usize)];
                Shown::Text(text.iter().copied().take_while(|byte| *byte != 0).collect())
            }
            CType::Array(of, length) => {
                let size = 8 * self.size(of);
                Shown::Elements(
                    (0..(*length).min(ELEMENTS)).map(|n| self.at(of, bytes, bit + n * size, None)).collect(),
                )
            }
            CType::Record(record) => {
                let layout = self.layouts.get(&record.key());
                if let Some(variant) = layout.and_then(|layout| self.variant(layout, bytes, bit)) {
                    return variant;
                }
                let fields = layout.map_or(&[][..], |layout| &layout.fields);
                let mut members = Vec::new();
                for Field { name, ty, bit: at, width } in fields {
                    match (self.at(ty, bytes, bit + at, *width), name) {
                        // Members of what has no name are members of what it is in.
                        (Shown::Members(inner), name) if name.is_empty() => members.extend(inner),
                        (value, name) => members.push((name.clone(), value)),
                    }
                }
                Shown::Members(members)
            }
            CType::Net(of) => Shown::Text(net(*of, bytes.get((bit / 8) as usize..).unwrap_or_default()).into_bytes()),
            CType::Void | CType::Function => Shown::Bytes(Vec::new()),
        }
    }

    /// The elements of a list. One that was cut ends as a text does.
    pub fn list(&self, list: &List, bytes: &[u8]) -> Shown {
        let elements = bytes.chunks_exact(list.size.max(1));
        let is_cut = elements.len() > list.len;
        self.elements(elements.take(list.len).map(|bytes| self.data(&list.of, bytes)).collect(), is_cut)
    }

    /// [`Form::Texts`](sidestep_lang::script::types::Form::Texts)
    pub fn texts(&self, parts: Vec<Shown>) -> Shown {
        let mut parts = parts.into_iter();
        let count = parts.next().and_then(|count| usize::try_from(count.number()?).ok()).unwrap_or(0);
        let texts: Vec<Shown> = parts.collect();
        let is_cut = count > texts.len();
        self.elements(texts.into_iter().take(count).collect(), is_cut)
    }

    fn elements(&self, mut elements: Vec<Shown>, is_cut: bool) -> Shown {
        if is_cut && !self.trailer.is_empty() {
            elements.push(Shown::Text(self.trailer.clone().into_bytes()));
        }
        Shown::Elements(elements)
    }

    /// [`Form::Variants`](sidestep_lang::script::types::Form::Variants)
    pub fn variants(&self, types: &Parts, members: &[usize], parts: Vec<Shown>) -> Shown {
        let which = parts.first().and_then(|which| usize::try_from(which.number()?).ok()).unwrap_or(0);
        let Some(member) = which.checked_sub(1).and_then(|index| members.get(index)) else {
            return parts.into_iter().nth(1).unwrap_or_else(|| Shown::Bytes(Vec::new()));
        };
        let inner = parts.into_iter().nth(1 + which).unwrap_or_else(|| Shown::Bytes(Vec::new()));
        let layout = match types.get(1) {
            Some(Type::Data { ty: CType::Record(record), .. }) => self.layouts.get(&record.key()),
            _ => None,
        };
        let name = layout.and_then(|layout| layout.fields.get(*member)).map_or("", |field| &field.name);
        named_variant(name, inner)
    }

    /// The variant that is there; `None`: the layout has none.
    fn variant(&self, layout: &Layout, bytes: &[u8], bit: u64) -> Option<Shown> {
        let Variants { tag, fields } = layout.variants.as_ref()?;
        let at = match tag.and_then(|tag| layout.fields.get(tag)) {
            Some(Field { ty, bit: at, .. }) => {
                let width = 8 * self.size(ty);
                let tag = bits(bytes, bit + at, width, false);
                let is_it = |number: u64| bits(&number.to_le_bytes(), 0, width, false) == tag;
                let known = fields.iter().find(|(number, _)| number.is_some_and(is_it));
                known.or_else(|| fields.iter().find(|(number, _)| number.is_none()))?.1
            }
            None => fields.first()?.1,
        };
        let Field { name, ty, bit: at, .. } = layout.fields.get(at)?;
        Some(named_variant(name, self.at(ty, bytes, bit + at, None)))
    }

    fn size(&self, ty: &CType) -> u64 {
        ty.size(self.word, &mut |record| self.layouts.get(&record.key())).unwrap_or(1)
    }
}

/// A variant with what it has. Members of a tuple have no names in Rust.
fn named_variant(name: &str, inner: Shown) -> Shown {
    let inner = match inner {
        Shown::Members(members) if members.first().is_some_and(|(name, _)| name == "__0") => {
            Shown::Tuple(members.into_iter().map(|(_, value)| value).collect())
        }
        inner => inner,
    };
    Shown::Variant(name.to_owned(), Box::new(inner))
}
