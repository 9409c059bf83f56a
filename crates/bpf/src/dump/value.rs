//! One value, by its type: what `tools/bpf/bpftool/btf_dumper.c` does.

use super::{DumpError, Style};
use crate::object::{Btf, BtfError, Kind, Member, TypeId, Variable};

/// Types nested deeper than this are a circle.
const MAX_DEPTH: usize = 32;

pub(super) struct Printer<'a> {
    btf: &'a Btf,
    style: Style,
    pub out: String,
    /// Most that `out` may become: members may overlap, so a small value with many unions could
    /// fill the memory.
    limit: usize,
}

impl<'a> Printer<'a> {
    /// For a value of `len` bytes. Names and digits for each of its bits fit well into the limit.
    pub fn new(btf: &'a Btf, style: Style, len: usize) -> Printer<'a> {
        let limit = len.saturating_mul(1 << 10).clamp(1 << 20, 1 << 30);
        Printer { btf, style, out: String::new(), limit }
    }

    pub fn value(&mut self, ty: TypeId, bytes: &[u8]) -> Result<(), DumpError> {
        self.any(ty, bytes, MAX_DEPTH)
    }

    /// All variables of a section.
    pub fn variables(&mut self, section: &str, bytes: &[u8]) -> Result<(), DumpError> {
        let list = self.btf.section(section).ok_or_else(|| DumpError::NoSection(section.to_owned()))?;
        // The object has them in the order of their types.
        let mut list: Vec<Variable> = list.to_vec();
        list.sort_by_key(|variable| variable.offset);
        if self.style == Style::Json {
            self.out.push('{');
            self.string(section);
            self.out.push_str(":[");
        }
        for (n, variable) in list.iter().enumerate() {
            self.bounded()?;
            let bytes = part(variable.ty, bytes, variable.offset as usize, variable.size as usize)?;
            let name = &self.btf.get(variable.ty)?.name;
            match self.style {
                Style::Json => {
                    self.out.push_str(if n > 0 { ",{" } else { "{" });
                    self.name(name);
                    self.value(variable.ty, bytes)?;
                    self.out.push('}');
                }
                Style::Text => {
                    self.out.push_str(if n > 0 { "\n" } else { "" });
                    self.out.push_str(name);
                    self.out.push_str(": ");
                    self.value(variable.ty, bytes)?;
                }
            }
        }
        if self.style == Style::Json {
            self.out.push_str("]}");
        }
        Ok(())
    }

    fn any(&mut self, ty: TypeId, bytes: &[u8], depth: usize) -> Result<(), DumpError> {
        let depth = depth.checked_sub(1).ok_or(BtfError::Circle(ty))?;
        self.bounded()?;
        let btf = self.btf;
        let size = btf.size(ty)? as usize;
        let bytes = part(ty, bytes, 0, size)?;
        match &btf.resolve(ty)?.kind {
            Kind::Int { is_bool: true, .. } => {
                self.out.push_str(if bytes.iter().any(|b| *b != 0) { "true" } else { "false" });
            }
            Kind::Int { is_char: true, size: 1, .. } => self.string(&char::from(bytes[0]).to_string()),
            Kind::Int { size: 1 | 2 | 4 | 8, signed: true, .. } => self.print(signed(bytes)),
            Kind::Int { size: 1 | 2 | 4 | 8, .. } => self.print(unsigned(bytes)),
            Kind::Int { size: ..=16, .. } => self.hex(unsigned(bytes)),
            Kind::Pointer(_) if self.style == Style::Json => self.print(unsigned(bytes)),
            Kind::Pointer(_) => self.hex(unsigned(bytes)),
            Kind::Float(4) => self.float(f32::from_bits(unsigned(bytes) as u32)),
            Kind::Float(8) => self.float(f64::from_bits(unsigned(bytes) as u64)),
            Kind::Float(_) | Kind::Int { .. } => self.hex_bytes(bytes),
            Kind::Enum { values, .. } => {
                // The list has values with or without sign.
                let same = |value: i64| value.to_le_bytes()[..bytes.len().min(8)] == bytes[..bytes.len().min(8)];
                match values.iter().find(|(_, value)| same(*value)) {
                    Some((name, _)) => self.string(name),
                    None => self.print(signed(bytes)),
                }
            }
            Kind::Array { element, count } => self.array(*element, *count, bytes, depth)?,
            Kind::Composite { members, .. } => {
                self.out.push('{');
                for (n, member) in members.iter().enumerate() {
                    self.bounded()?;
                    if n > 0 {
                        self.out.push(',');
                    }
                    self.name(&member.name);
                    self.member(ty, member, bytes, depth)?;
                }
                self.out.push('}');
            }
            Kind::Variable(of) => self.any(*of, bytes, depth)?,
            _ => return Err(BtfError::NoSize(ty).into()),
        }
        Ok(())
    }

    fn bounded(&self) -> Result<(), DumpError> {
        if self.out.len() > self.limit { Err(DumpError::TooLong) } else { Ok(()) }
    }

    fn array(&mut self, element: TypeId, count: u32, bytes: &[u8], depth: usize) -> Result<(), DumpError> {
        if self.is_char(element)? {
            if let Some(text) = text(bytes) {
                self.string(text);
                return Ok(());
            }
        }
        let size = self.btf.size(element)? as usize;
        self.out.push('[');
        // As many elements of no length as somebody likes fit into nothing.
        let count = if size == 0 { 0 } else { count as usize };
        for n in 0..count {
            if n > 0 {
                self.out.push(',');
            }
            self.any(element, &bytes[n * size..], depth)?;
        }
        self.out.push(']');
        Ok(())
    }

    fn member(&mut self, ty: TypeId, member: &Member, bytes: &[u8], depth: usize) -> Result<(), DumpError> {
        let (byte, bit) = (member.bit as usize / 8, member.bit as usize % 8);
        if member.bits == 0 {
            let rest = bytes.get(byte..).ok_or(short(ty, byte, bytes.len()))?;
            return self.any(member.ty, rest, depth);
        }
        // 128 bits at most, and up to 7 before them; the compiler never makes that more than 16
        // bytes.
        let bits = member.bits as usize;
        let field = part(ty, bytes, byte, (bit + bits).div_ceil(8).min(16))?;
        let value = unsigned(field) >> bit;
        self.hex(if bits < 128 { value & ((1 << bits) - 1) } else { value });
        Ok(())
    }

    /// `char`, but for `const` and `volatile`: another name for it does not make text, nor do
    /// `signed` and `unsigned`.
    fn is_char(&self, mut ty: TypeId) -> Result<bool, DumpError> {
        for _ in 0..MAX_DEPTH {
            let found = self.btf.get(ty)?;
            match found.kind {
                Kind::Alias(next) if found.name.is_empty() => ty = next,
                Kind::Int { size: 1, is_char, .. } => return Ok(is_char || found.name == "char"),
                _ => return Ok(false),
            }
        }
        Err(BtfError::Circle(ty).into())
    }

    fn print(&mut self, value: impl ToString) {
        self.out.push_str(&value.to_string());
    }

    fn float<T: Into<f64> + ToString + Copy>(&mut self, value: T) {
        if value.into().is_finite() { self.print(value) } else { self.string(&value.to_string()) }
    }

    fn hex(&mut self, value: u128) {
        let quote = if self.style == Style::Json { "\"" } else { "" };
        self.out.push_str(&format!("{quote}{value:#x}{quote}"));
    }

    fn hex_bytes(&mut self, bytes: &[u8]) {
        let bytes = bytes.iter().map(|b| format!("\"0x{b:02x}\"")).collect::<Vec<_>>();
        self.out.push_str(&format!("[{}]", bytes.join(",")));
    }

    fn name(&mut self, name: &str) {
        self.string(name);
        self.out.push(':');
        if self.style == Style::Text {
            self.out.push(' ');
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => self.out.extend(['\\', c]),
                c if c.is_ascii_control() => self.out.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn short(ty: TypeId, needs: usize, has: usize) -> DumpError {
    DumpError::Short { ty, needs, has }
}

/// `size` bytes from `start` on.
fn part(ty: TypeId, bytes: &[u8], start: usize, size: usize) -> Result<&[u8], DumpError> {
    let end = start.saturating_add(size);
    bytes.get(start..end).ok_or(short(ty, end, bytes.len()))
}

/// A little-endian number of 16 bytes at most.
fn unsigned(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u128::from(*byte))
}

fn signed(bytes: &[u8]) -> i128 {
    let unused = 128 - 8 * bytes.len().clamp(1, 16);
    (unsigned(bytes) << unused) as i128 >> unused
}

/// Printable ASCII up to a zero byte, if there is one.
fn text(bytes: &[u8]) -> Option<&str> {
    let text = &bytes[..bytes.iter().position(|b| *b == 0)?];
    let text = std::str::from_utf8(text).ok()?;
    text.bytes().all(|b| (0x20..0x7f).contains(&b)).then_some(text)
}
