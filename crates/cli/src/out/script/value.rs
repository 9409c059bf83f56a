//! Values of scripts: from what programs wrote to what is printed.

use std::collections::HashMap;

use sidestep_engine::{Frame, Maps, Symbols, split_symbol};
use sidestep_lang::script::checked::{Stack, StackMode};
use sidestep_lang::script::ctype::Layouts;
use sidestep_lang::script::lower::POINT;
use sidestep_lang::script::printf::{Printed, escaped};
use sidestep_lang::script::types::{Form, Type};

use super::data::{self, Float};
use super::meaning;
use crate::out::sink::say;
use crate::out::{escape, json, time};

/// What stands for something else, by number.
#[derive(Default)]
pub struct Names {
    /// Attach points of probes, by the lower half of the cookie.
    pub probes: HashMap<u64, String>,
    /// Functions that are probed, by the number of their name.
    pub functions: HashMap<u64, String>,
    /// Attach points of the script.
    pub points: Vec<String>,
    /// Functions of the target.
    pub symbols: Symbols,
    /// Addresses go with what they mean in one of several processes.
    pub several: bool,
    /// How stacks are printed, and in which map they are.
    pub stacks: Vec<(Stack, usize)>,
    /// Stacks have source lines and inlined functions.
    pub debug_info: bool,
    /// Lines of frames that were printed, and whether the next one was interrupted: by mode, what
    /// addresses mean, the address, and whether it is where a call returns.
    pub frames: HashMap<(StackMode, u32, u64, bool), (String, bool)>,
    /// Add to `CLOCK_MONOTONIC` to get nanoseconds since 1970.
    pub since_1970: u64,
    /// What is printed behind a text that was cut.
    pub trailer: String,
    /// Names of users that were looked up.
    pub users: HashMap<u64, String>,
    /// What the records of the script consist of.
    pub layouts: Layouts,
    /// Bytes of a pointer of the target.
    pub word: u8,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shown {
    /// A number.
    Int(i128),
    /// Bytes of a string, which is the target's.
    Text(Vec<u8>),
    /// Lines of ours, whose parts are escaped.
    Lines(String),
    /// The same: a frame each, innermost first, after an empty one.
    Stack(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Values.
    Tuple(Vec<Shown>),
    /// A number that has a name, which in JSON is a number.
    Named(i128, String),
    /// What is either true or false.
    Bool(bool),
    /// A number with a point.
    Float(Float),
    /// Members by their names.
    Members(Vec<(String, Shown)>),
    /// Elements.
    Elements(Vec<Shown>),
    /// A variant of an enumeration of Rust with what it has: a tuple, or members.
    Variant(String, Box<Shown>),
}

impl Shown {
    /// A number, also one that has a name, such as an address.
    pub fn number(&self) -> Option<i128> {
        match self {
            Shown::Int(n) | Shown::Named(n, _) => Some(*n),
            _ => None,
        }
    }

    /// As it stands in a row, which it cannot leave.
    pub fn text(&self) -> String {
        match self {
            Shown::Int(n) => n.to_string(),
            Shown::Text(bytes) => escape::row_of(bytes),
            Shown::Lines(text) | Shown::Stack(text) => text.clone(),
            Shown::Bytes(bytes) => escaped(bytes, 'r'),
            Shown::Tuple(parts) => {
                let parts: Vec<String> = parts.iter().map(Shown::text).collect();
                format!("({})", parts.join(", "))
            }
            Shown::Named(_, name) => escape::row(name).into_owned(),
            Shown::Bool(truth) => truth.to_string(),
            Shown::Float(number) => number.text(),
            Shown::Members(members) => {
                let list: Vec<String> =
                    members.iter().map(|(name, value)| format!(".{} = {}", escape::row(name), value.text())).collect();
                if list.is_empty() { "{ }".to_owned() } else { format!("{{ {} }}", list.join(", ")) }
            }
            Shown::Variant(name, inner) => match &**inner {
                Shown::Members(members) if members.is_empty() => escape::row(name).into_owned(),
                Shown::Tuple(_) => format!("{}{}", escape::row(name), inner.text()),
                _ => format!("{} {}", escape::row(name), inner.text()),
            },
            Shown::Elements(list) => {
                format!("[{}]", list.iter().map(Shown::text).collect::<Vec<_>>().join(","))
            }
        }
    }

    /// The bytes of a string as they are, for a reader that is no terminal; the text of all else.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Shown::Text(bytes) => bytes.clone(),
            Shown::Named(_, name) => name.clone().into_bytes(),
            other => other.text().into_bytes(),
        }
    }

    /// A key of an object in JSON, which is escaped there.
    pub fn key(&self) -> String {
        match self {
            Shown::Tuple(parts) => format!("({})", parts.iter().map(Shown::key).collect::<Vec<_>>().join(", ")),
            other => String::from_utf8_lossy(&other.bytes()).into_owned(),
        }
    }

    /// The same in JSON.
    pub fn json(&self) -> String {
        match self {
            Shown::Int(n) => match u64::try_from(*n) {
                Ok(n) => json::number(n),
                Err(_) => {
                    let number = json::number(n.unsigned_abs() as u64);
                    match number.strip_prefix('"') {
                        Some(rest) => format!("\"-{rest}"),
                        None => format!("-{number}"),
                    }
                }
            },
            Shown::Named(n, _) => Shown::Int(*n).json(),
            Shown::Bool(truth) => truth.to_string(),
            Shown::Float(number) => number.json(),
            Shown::Members(members) => json::object(members.iter().map(|(name, value)| (name, value.json()))),
            // As serde has it.
            Shown::Variant(name, inner) => match &**inner {
                Shown::Members(members) if members.is_empty() => json::string(name),
                Shown::Tuple(parts) if parts.len() == 1 => json::object([(name, parts[0].json())]),
                inner => json::object([(name, inner.json())]),
            },
            // Without blanks, as bpftrace has them.
            Shown::Tuple(list) | Shown::Elements(list) => {
                format!("[{}]", list.iter().map(Shown::json).collect::<Vec<_>>().join(","))
            }
            // As signed numbers, which they are in bpftrace.
            Shown::Bytes(bytes) => {
                let list: Vec<String> = bytes.iter().map(|byte| (*byte as i8).to_string()).collect();
                format!("[{}]", list.join(","))
            }
            other => json::string(&other.key()),
        }
    }

    /// For `printf`.
    pub fn printed(&self) -> Printed {
        match self {
            Shown::Int(n) => Printed::Int(*n),
            Shown::Text(bytes) => Printed::Text(bytes.clone()),
            Shown::Tuple(_) | Shown::Lines(_) | Shown::Stack(_) => Printed::Own(self.text()),
            Shown::Bytes(bytes) => Printed::Bytes(bytes.clone()),
            Shown::Named(n, _) => Printed::Named(*n as u64, self.text()),
            Shown::Bool(truth) => Printed::Named((*truth).into(), self.text()),
            Shown::Float(_) | Shown::Members(_) | Shown::Elements(_) | Shown::Variant(..) => Printed::Own(self.text()),
        }
    }
}

/// A text that was kept with one byte more than it may have, cut.
fn cut(bytes: &[u8], len: usize, trailer: &str) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    if end <= len {
        return bytes[..end].to_vec();
    }
    [&bytes[..len], trailer.as_bytes()].concat()
}

impl Names {
    /// A value of a key or a map.
    pub fn stored(&mut self, ty: &Type, bytes: &[u8], maps: Maps<'_>) -> Shown {
        match ty {
            Type::Text(len) => Shown::Text(cut(bytes, *len, &self.trailer)),
            Type::Bytes(_) | Type::List(_) => {
                let (len, bytes) = bytes.split_at(bytes.len().min(8));
                let len = len.try_into().map_or(0, u64::from_ne_bytes) as usize;
                let bytes = &bytes[..len.min(bytes.len())];
                match ty {
                    Type::List(list) => self.list(list, bytes),
                    _ => Shown::Bytes(bytes.to_vec()),
                }
            }
            Type::Tuple(types) => {
                let parts = self.parts(types, bytes, maps);
                match types.form() {
                    Form::Tuple => Shown::Tuple(parts),
                    Form::Record(names) => Shown::Members(names.iter().cloned().zip(parts).collect()),
                    Form::Variants(members) => self.variants(types, members, parts),
                    Form::Texts => self.texts(parts),
                }
            }
            Type::Data { ty, .. } => self.data(ty, bytes),
            ty => {
                let word = bytes.get(..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes);
                self.word(ty, word, maps)
            }
        }
    }

    /// Values that are kept one behind the other.
    pub fn parts(&mut self, types: &[Type], bytes: &[u8], maps: Maps<'_>) -> Vec<Shown> {
        let mut rest = bytes;
        let mut parts = Vec::new();
        for ty in types {
            let (own, behind) = rest.split_at(ty.stored().min(rest.len()));
            parts.push(self.stored(ty, own, maps));
            rest = behind;
        }
        parts
    }

    fn word(&mut self, ty: &Type, word: u64, maps: Maps<'_>) -> Shown {
        match ty {
            Type::Pointer(_) => data::address(word),
            Type::Enum(of) => data::named(of, word),
            Type::Int { signed: true, .. } => Shown::Int((word as i64).into()),
            Type::Stack(stack) => Shown::Stack(self.stack(*stack, word, maps)),
            Type::Symbol => Shown::Lines(escape::row(&self.symbol(word)).into_owned()),
            Type::Probe { func } => Shown::Lines(escape::row(&self.probe(word, *func)).into_owned()),
            Type::Meaning(of) => Shown::Text(meaning::text(*of, word).into_bytes()),
            Type::User => Shown::Text(self.user(word).into_bytes()),
            // Its format is the script's.
            Type::Time(format) => Shown::Lines(time::format(format, word.wrapping_add(self.since_1970))),
            _ => Shown::Int(word.into()),
        }
    }

    fn probe(&self, word: u64, func: bool) -> String {
        let name = match word & POINT {
            0 if func => self.functions.get(&word),
            0 => self.probes.get(&word),
            _ => self.points.get((word & !POINT) as usize),
        };
        name.cloned().unwrap_or_default()
    }

    fn user(&mut self, uid: u64) -> String {
        let find = || {
            let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
            let is_it = |line: &&str| line.split(':').nth(2).is_some_and(|id| id.parse() == Ok(uid));
            Some(passwd.lines().find(is_it)?.split(':').next()?.to_owned())
        };
        self.users.entry(uid).or_insert_with(|| find().unwrap_or_else(|| uid.to_string())).clone()
    }

    /// `usym`: a function or a variable.
    fn symbol(&mut self, word: u64) -> String {
        let (space, address) = if self.several { split_symbol(word) } else { (0, word) };
        let (_, function) = self.symbols.of(space, address);
        match function.or_else(|| self.symbols.variable(space, address)) {
            Some((name, 0)) => name,
            Some((name, offset)) => format!("{name}+{offset}"),
            None => format!("{address:#x}"),
        }
    }

    /// A line per frame, after an empty one.
    fn stack(&mut self, number: usize, id: u64, maps: Maps<'_>) -> String {
        let Some((stack, map)) = self.stacks.get(number).copied() else { return String::new() };
        let mut text = "\n".to_owned();
        let space = (id >> 32) as u32;
        // The innermost address is that of the instruction itself, and so is one that a signal has
        // interrupted.
        let mut called = false;
        for address in maps.stack(map, id).into_iter().take(stack.depth as usize) {
            let key = (stack.mode, space, address, called);
            if !self.frames.contains_key(&key) {
                let lines = self.frame(key);
                self.frames.insert(key, lines);
            }
            let (lines, interrupted) = &self.frames[&key];
            text.push_str(lines);
            called = !interrupted;
        }
        text
    }

    /// The lines of an address, and whether the next one was interrupted.
    fn frame(&mut self, (mode, space, address, called): (StackMode, u32, u64, bool)) -> (String, bool) {
        if mode == StackMode::Raw {
            return (format!("{address:x}\n"), false);
        }
        if mode == StackMode::BuildId {
            let line = match self.symbols.build_id(space, address) {
                Some((id, offset)) => format!("{id} {offset:#x}\n"),
                // As the kernel does where a file has no id.
                None => format!("{address:#x}\n"),
            };
            return (line, false);
        }
        let lines = self.debug_info;
        let frames = self.symbols.frames(space, address, called, lines);
        for missing in self.symbols.missing() {
            say(&format!("WARNING: {missing}: inlined functions are not shown"));
        }
        let shown = |frame: &Frame| match (&frame.symbol, frame.inlined) {
            (Some((name, _)), true) => escape::row(name).into_owned(),
            (Some((name, offset)), false) => format!("{}+{offset}", escape::row(name)),
            (None, _) if mode == StackMode::Perf => "[unknown]".to_owned(),
            (None, _) => format!("{address:#x}"),
        };
        let one = |frame: &Frame| match mode {
            StackMode::Perf => {
                let object =
                    frame.object.as_ref().map_or_else(|| "[unknown]".to_owned(), |path| path.display().to_string());
                let place = if frame.inlined { "inlined" } else { &*object };
                format!("\t{address:x} {} ({})\n", shown(frame), escape::row(place))
            }
            _ => {
                let line = frame
                    .line
                    .as_ref()
                    .map(|(file, line)| format!("@{}:{line}", escape::row(file)))
                    .unwrap_or_default();
                let inlined = if frame.inlined { "[inlined] " } else { "" };
                format!("        {inlined}{}{line}\n", shown(frame))
            }
        };
        let text = match &frames[..] {
            // Nothing is known about the target.
            [] => one(&Frame { object: None, symbol: None, line: None, inlined: false, interrupted: false }),
            frames => frames.iter().map(one).collect(),
        };
        (text, frames.last().is_some_and(|frame| frame.interrupted))
    }
}

/// The values of a record: a word each, and behind them what does not fit into a word.
pub fn values(record: &[u8], types: &[Type], names: &mut Names, maps: Maps<'_>) -> Vec<Shown> {
    let word = |index: usize| {
        let at = 8 * (index + 1);
        record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
    };
    let mut rest = record.get(8 * (types.len() + 1)..).unwrap_or_default();
    let mut shown = Vec::new();
    for (index, ty) in types.iter().enumerate() {
        let word = word(index);
        shown.push(match ty {
            ty if ty.is_wide() => {
                let len = usize::try_from(word as i64).unwrap_or(0).min(rest.len());
                let (own, behind) = rest.split_at(len);
                rest = behind;
                match ty {
                    Type::Bytes(_) => Shown::Bytes(own.to_vec()),
                    Type::List(list) => names.list(list, own),
                    ty => names.stored(ty, own, maps),
                }
            }
            ty => names.word(ty, word, maps),
        });
    }
    shown
}
