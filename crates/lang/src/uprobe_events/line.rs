//! Lines of `uprobe_events`: which event, where.

use super::error::{ErrorKind, ParseError};
use super::event::{Event, Kind};
use super::fetch::{Args, is_identifier};
use super::number;

/// Arguments of an event at most, as in the kernel (`MAX_TRACE_ARGS`).
const MAX_ARGS: usize = 128;

/// Bytes of a group's or an event's name, with the zero byte that ends it in the kernel
/// (`MAX_EVENT_NAME_LEN`).
const MAX_NAME: usize = 64;

/// Most calls that are watched at a time, as in the kernel (`KRETPROBE_MAXACTIVE_MAX`).
pub const MAXACTIVE_MAX: u32 = 4096;

/// What the kernel's `isspace` takes of ASCII.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// A word of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    pub text: &'a str,
    /// Where it starts, in bytes.
    pub at: usize,
}

impl<'a> Word<'a> {
    /// An error at an offset from the start of the word.
    pub fn error(self, offset: usize, kind: ErrorKind) -> ParseError {
        ParseError { position: self.at + offset, kind }
    }

    /// The word from an offset on.
    pub fn from(self, offset: usize) -> Word<'a> {
        Word { text: &self.text[offset..], at: self.at + offset }
    }
}

fn words(line: &str) -> impl Iterator<Item = Word<'_>> {
    let blank = |c: char| u8::try_from(c).is_ok_and(is_space);
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(blank);
        let at = line.len() - rest.len();
        let (text, after) = rest.split_at(rest.find(blank).unwrap_or(rest.len()));
        rest = after;
        (!text.is_empty()).then_some(Word { text, at })
    })
}

pub(super) fn parse(line: &str) -> Result<Event, ParseError> {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = words(line);
    let Some(command) = words.next() else { return Err(ParseError { position: 0, kind: ErrorKind::Empty }) };
    let mut kind = match command.text.as_bytes()[0] {
        b'p' => Kind::Entry,
        b'r' => Kind::Return,
        b'-' => return Err(command.error(0, ErrorKind::Delete)),
        _ => return Err(command.error(0, ErrorKind::BadCommand)),
    };
    let (maxactive, name) = match command.text[1..].split_once(':') {
        None => (command.text.get(1..).unwrap_or_default(), None),
        Some((maxactive, _)) => (maxactive, Some(command.from(maxactive.len() + 2))),
    };
    let maxactive = parse_maxactive(maxactive, kind).map_err(|kind| command.error(1, kind))?;
    let Some(place) = words.next() else {
        return Err(ParseError { position: line.len(), kind: ErrorKind::NoPath });
    };
    let args: Vec<_> = words.collect();
    if args.len() > MAX_ARGS {
        return Err(args[0].error(0, ErrorKind::TooManyArgs));
    }
    let place = parse_place(place)?;
    if place.is_return {
        kind = Kind::Return;
    }
    let (group, name) = parse_name(name)?;
    let name = name.map_or_else(|| automatic_name(place.path, place.offset), str::to_owned);
    let mut event = Event::new(kind, group.unwrap_or("uprobes"), &name);
    (event.path, event.offset, event.ref_ctr) = (place.path.to_owned(), place.offset, place.ref_ctr);
    event.maxactive = maxactive;
    event.args = Args::new(kind).parse(&args)?;
    Ok(event)
}

/// What `kprobe_events` takes behind `r`: how many calls are watched at a time.
fn parse_maxactive(text: &str, kind: Kind) -> Result<u32, ErrorKind> {
    match (text, kind) {
        ("", _) => Ok(0),
        (_, Kind::Entry) if text.bytes().all(|byte| byte.is_ascii_digit()) => Err(ErrorKind::MaxactNoKprobe),
        (_, Kind::Entry) => Err(ErrorKind::BadCommandSuffix),
        (_, Kind::Return) => match number::unsigned(text).map(u32::try_from) {
            Some(Ok(limit @ 0..=MAXACTIVE_MAX)) => Ok(limit),
            Some(_) => Err(ErrorKind::MaxactTooBig),
            None => Err(ErrorKind::BadMaxact),
        },
    }
}

/// `PATH:OFFSET[%return][(REF_CTR)]`
struct Place<'a> {
    path: &'a str,
    offset: u64,
    ref_ctr: Option<u64>,
    is_return: bool,
}

fn parse_place(word: Word<'_>) -> Result<Place<'_>, ParseError> {
    if !word.text.contains('/') {
        return Err(word.error(0, ErrorKind::BadPath));
    }
    let colon = word.text.rfind(':').ok_or_else(|| word.error(word.text.len(), ErrorKind::NoOffset))?;
    let rest = word.from(colon + 1);
    if !rest.text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(rest.error(0, ErrorKind::NoOffset));
    }
    let mut offset = rest.text;
    let mut ref_ctr = None;
    if let Some(open) = offset.find('(') {
        let inner = rest.from(open + 1);
        let close = inner.text.find(')').ok_or_else(|| inner.error(inner.text.len(), ErrorKind::RefcntOpenBrace))?;
        if close + 1 != inner.text.len() {
            return Err(inner.error(close + 1, ErrorKind::BadRefcntSuffix));
        }
        let number = number::unsigned(&inner.text[..close]);
        // The kernel takes 0 for none.
        ref_ctr = Some(number.ok_or_else(|| inner.error(0, ErrorKind::BadRefcnt))?).filter(|offset| *offset != 0);
        offset = &offset[..open];
    }
    let mut is_return = false;
    if let Some(percent) = offset.find('%') {
        if &offset[percent..] != "%return" {
            return Err(rest.error(percent, ErrorKind::BadAddrSuffix));
        }
        is_return = true;
        offset = &offset[..percent];
    }
    let offset = number::unsigned(offset).ok_or_else(|| rest.error(0, ErrorKind::BadUprobeOffs))?;
    Ok(Place { path: &word.text[..colon], offset, ref_ctr, is_return })
}

/// `[GROUP/][EVENT]`, or a dot for the slash.
fn parse_name(word: Option<Word<'_>>) -> Result<(Option<&str>, Option<&str>), ParseError> {
    let Some(word) = word else { return Ok((None, None)) };
    let mut event = word;
    let mut group = None;
    if let Some(slash) = word.text.find('/').or_else(|| word.text.find('.')) {
        let name = &word.text[..slash];
        if name.is_empty() {
            return Err(word.error(0, ErrorKind::NoGroupName));
        }
        if name.len() >= MAX_NAME {
            return Err(word.error(0, ErrorKind::GroupTooLong));
        }
        // Groups may have a minus, too.
        if !is_identifier(&name.replace('-', "_")) {
            return Err(word.error(0, ErrorKind::BadGroupName));
        }
        group = Some(name);
        event = word.from(slash + 1);
    }
    if event.text.is_empty() {
        return if group.is_some() { Ok((group, None)) } else { Err(event.error(0, ErrorKind::NoEventName)) };
    }
    if event.text.len() >= MAX_NAME {
        return Err(event.error(0, ErrorKind::EventTooLong));
    }
    if !is_identifier(event.text) {
        return Err(event.error(0, ErrorKind::BadEventName));
    }
    Ok((group, Some(event.text)))
}

/// `p_FILE_0xOFFSET`, at returns, too.
fn automatic_name(path: &str, offset: u64) -> String {
    let file = path.rsplit('/').next().unwrap_or_default();
    let file = file.split(['.', '-', '_']).next().unwrap_or_default();
    let mut name = format!("p_{file}_{offset:#x}");
    let end = (0..MAX_NAME).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name.truncate(end);
    name
}
