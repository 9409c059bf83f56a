//! Contents of maps and records of rings, printed by their types: as `bpftool -j map dump` does
//! (its `formatted`), or in lines to read.
//!
//! ```no_run
//! use sidestep_bpf::dump::{self, MapForm, Style};
//! use sidestep_bpf::object::Object;
//!
//! let file = std::fs::read("prog.bpf.o")?;
//! let object = Object::parse(&file)?;
//! let types = dump::placed_types(&file)?;
//! let form = MapForm::of(&object.maps[0], types.as_ref());
//! // {"key":7,"value":{"count":1,"name":"redis"}}
//! println!("{}", form.entry(Style::Json, &[7, 0, 0, 0], &[0; 24])?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod place;
mod value;

pub use error::DumpError;
pub use place::placed_types;

use crate::object::{Btf, Kind, ObjectMap, TypeId};
use value::Printer;

/// How output looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// JSON on one line. Pointers are numbers; bit fields and integers of 128 bits are strings in
    /// hex.
    Json,
    /// To read: all these in hex, bytes without a type too.
    Text,
}

/// What bytes mean.
#[derive(Clone, Copy, Debug)]
pub enum Form<'a> {
    /// Nothing is known: `["0x01","0x02"]`, or `01 02`.
    Bytes,
    /// A run of bytes that nobody wants to pick apart: `"0102"`, or `0102`.
    Hex,
    /// A value of this type.
    Type(&'a Btf, TypeId),
    /// All variables of the section with this name, by name: `{".bss":[{"hits":1},{"missed":0}]}`,
    /// or lines `hits: 1`.
    Variables(&'a Btf, &'a str),
}

/// What the keys and values of a map mean.
#[derive(Clone, Copy, Debug)]
pub struct MapForm<'a> {
    /// `None`: there is only one, of which nobody wants to know.
    pub key: Option<Form<'a>>,
    /// Of one value.
    pub value: Form<'a>,
}

impl Form<'_> {
    /// The bytes, printed. There may be more of them than the type has, as after records of perf.
    ///
    /// # Errors
    /// If there are fewer, or the types are broken.
    pub fn print(&self, style: Style, bytes: &[u8]) -> Result<String, DumpError> {
        Ok(match *self {
            Form::Bytes if style == Style::Json => {
                let each = |b: &u8| format!("\"0x{b:02x}\"");
                format!("[{}]", bytes.iter().map(each).collect::<Vec<_>>().join(","))
            }
            Form::Bytes => bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" "),
            Form::Hex => {
                let hex = bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
                if style == Style::Json { format!("\"{hex}\"") } else { hex }
            }
            Form::Type(btf, ty) => {
                let mut printer = Printer::new(btf, style, bytes.len());
                printer.value(ty, bytes)?;
                printer.out
            }
            Form::Variables(btf, section) => {
                let mut printer = Printer::new(btf, style, bytes.len());
                printer.variables(section, bytes)?;
                printer.out
            }
        })
    }
}

impl<'a> MapForm<'a> {
    /// What the object says about its map. Types from [`placed_types`], or the variables are not
    /// where they should be.
    #[must_use]
    pub fn of(map: &'a ObjectMap, types: Option<&'a Btf>) -> MapForm<'a> {
        let form = |ty: Option<TypeId>| match (types, ty) {
            (Some(btf), Some(ty)) => Form::Type(btf, ty),
            _ => Form::Bytes,
        };
        match types {
            Some(btf) if btf.section(&map.map.name).is_some() => {
                MapForm { key: None, value: Form::Variables(btf, &map.map.name) }
            }
            _ => MapForm { key: Some(form(map.key)), value: form(map.value) },
        }
    }

    /// An entry: `{"key":1,"value":2}`, or `key: 1  value: 2`.
    ///
    /// # Errors
    /// As [`Form::print`].
    pub fn entry(&self, style: Style, key: &[u8], value: &[u8]) -> Result<String, DumpError> {
        let key = self.key(style, key)?;
        let value = self.value.print(style, value)?;
        Ok(match (style, self.value) {
            (Style::Json, _) => format!("{{{key}\"value\":{value}}}"),
            (Style::Text, Form::Variables(..)) => value,
            (Style::Text, _) => format!("{key}value: {value}"),
        })
    }

    /// An entry with several values, of which `label` says what tells them apart, such as `tid`:
    /// `{"key":1,"values":[{"tid":7,"value":2}]}`, or lines `key: 1  tid 7: 2`.
    ///
    /// # Errors
    /// As [`Form::print`].
    pub fn entry_by<'v>(
        &self,
        style: Style,
        key: &[u8],
        label: &str,
        values: impl IntoIterator<Item = (u64, &'v [u8])>,
    ) -> Result<String, DumpError> {
        let key = self.key(style, key)?;
        let mut parts = Vec::new();
        for (number, value) in values {
            let value = self.value.print(style, value)?;
            parts.push(match style {
                Style::Json => format!("{{\"{label}\":{number},\"value\":{value}}}"),
                Style::Text => format!("{key}{label} {number}: {value}"),
            });
        }
        Ok(match style {
            Style::Json => format!("{{{key}\"values\":[{}]}}", parts.join(",")),
            Style::Text => parts.join("\n"),
        })
    }

    /// The key with its name, and what parts it from what follows.
    fn key(&self, style: Style, key: &[u8]) -> Result<String, DumpError> {
        let Some(form) = self.key else { return Ok(String::new()) };
        let printed = form.print(style, key)?;
        Ok(match style {
            Style::Json => format!("\"key\":{printed},"),
            Style::Text => format!("key: {printed}  "),
        })
    }
}

/// The type that somebody calls `name`: `struct event`, `union u`, `enum e`, or any of them or a
/// typedef as `event`.
#[must_use]
pub fn type_named(btf: &Btf, name: &str) -> Option<TypeId> {
    let (keyword, bare) = name.split_once(' ').unwrap_or(("", name));
    (1..).map_while(|id| Some((id, btf.get(id).ok()?))).find_map(|(id, ty)| {
        let fits = match ty.kind {
            Kind::Composite { is_union, .. } => {
                keyword.is_empty() || keyword == if is_union { "union" } else { "struct" }
            }
            Kind::Enum { .. } => matches!(keyword, "" | "enum"),
            Kind::Alias(_) => keyword.is_empty(),
            _ => false,
        };
        // Integers have names of several words.
        let is_int = matches!(ty.kind, Kind::Int { .. }) && ty.name == name;
        (fits && ty.name == bare.trim() && !bare.is_empty() || is_int).then_some(id)
    })
}
