//! Attach points.

use super::super::ast::{Field, Point, Provider};
use super::super::diagnostic::{Diagnostic, Span};
use super::super::near::near;
use super::super::token::TokenKind;
use super::{Parsed, Parser};

/// What there is, in words.
const THERE: &str = "there are uprobe, uretprobe, usdt, interval, self, begin and end";

/// The same, to find what a misspelled one was meant to be.
const NAMES: [&str; 7] = ["uprobe", "uretprobe", "usdt", "interval", "self", "begin", "end"];

/// What only the kernel can do, by all its names.
const KERNEL: &[&str] = &[
    "kprobe",
    "k",
    "kretprobe",
    "kr",
    "tracepoint",
    "t",
    "rawtracepoint",
    "rt",
    "fentry",
    "f",
    "kfunc",
    "fexit",
    "fr",
    "kretfunc",
    "iter",
    "it",
    "hardware",
    "h",
    "software",
    "s",
    "watchpoint",
    "w",
    "asyncwatchpoint",
    "aw",
    "profile",
    "p",
];

/// Those by their full names.
pub const KERNEL_KINDS: [&str; 11] = [
    "kprobe",
    "kretprobe",
    "tracepoint",
    "rawtracepoint",
    "fentry",
    "fexit",
    "iter",
    "hardware",
    "software",
    "watchpoint",
    "profile",
];

impl Parser<'_> {
    /// One attach point: `provider:field:…`
    pub(super) fn point(&mut self) -> Parsed<Point> {
        self.rewind();
        let span = self.lexer.point()?;
        self.last = span;
        let text = &self.source[span.start..span.end];
        if text.is_empty() {
            return Err(match self.peek()? {
                TokenKind::End => self.unexpected(""),
                _ => self.unexpected(", expecting an attach point"),
            });
        }
        // As it is written, for what is said about it.
        let written = split(text).first().map_or(0, |name| name.len());
        let text = &*self.with_params(text);
        let mut fields = split(text).into_iter();
        let name = fields.next().unwrap_or_default();
        let word = Span { start: span.start, end: span.start + written };
        // Short names differ by their case.
        let lower = name.to_ascii_lowercase();
        let provider = match if name.len() > 2 { lower.as_str() } else { name } {
            "begin" => Provider::Begin,
            "end" => Provider::End,
            "interval" | "i" => Provider::Interval,
            "uprobe" | "u" => Provider::Uprobe,
            "uretprobe" | "ur" => Provider::Uretprobe,
            "usdt" | "U" => Provider::Usdt,
            "test" => Provider::Test,
            "bench" => Provider::Bench,
            "self" => Provider::Own,
            _ if KERNEL.contains(&name) && self.given.only_read => {
                return Ok(Point { provider: Provider::Uprobe, fields: fields.map(field).collect(), name: None, span });
            }
            _ if KERNEL.contains(&name) => {
                let error = Diagnostic::error(word, format!("{name} needs the kernel: not available in this tool"));
                return Err(error.hint(advice(name)));
            }
            _ => {
                let error = Diagnostic::error(word, format!("Invalid probe type: {name}"));
                return Err(error.hint(match near(&lower, &NAMES).filter(|_| name.len() > 2) {
                    Some(near) => format!("did you mean {near}?"),
                    None => THERE.to_owned(),
                }));
            }
        };
        let fields: Vec<Field> = fields.map(field).collect();
        let point = Point { provider, fields, name: None, span };
        check(&point, self.given.has_process || self.given.only_read)?;
        Ok(point)
    }

    /// The text with the script's arguments put in, but for what is in quotes. Names of OCaml and
    /// Java have `$1` and the like inside: behind a letter, where the script has no such argument,
    /// the text stays as it is.
    fn with_params(&self, text: &str) -> String {
        let (mut out, mut quoted, mut rest) = (String::new(), false, text);
        while let Some(at) = rest.find(['"', '$']) {
            let digits = rest[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
            let number: Option<usize> = rest[at + 1..at + 1 + digits].parse().ok();
            out.push_str(&rest[..at]);
            match number {
                _ if rest[at..].starts_with('"') => {
                    quoted = !quoted;
                    out.push('"');
                    rest = &rest[at + 1..];
                    continue;
                }
                Some(number) if !quoted => {
                    let param = number.checked_sub(1).and_then(|index| self.given.params.get(index));
                    let is_name = rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                    let name = if is_name { &rest[at..at + 1 + digits] } else { "" };
                    out.push_str(param.map_or(name, String::as_str));
                    rest = &rest[at + 1 + digits..];
                }
                _ => {
                    out.push('$');
                    rest = &rest[at + 1..];
                }
            }
        }
        out.push_str(rest);
        out
    }
}

/// A field without its quotes. Behind those, an offset may stand: `"name"+4`.
fn field(text: &str) -> Field {
    let quotes = text.strip_prefix('"').and_then(|text| text.rsplit_once('"'));
    match quotes {
        Some((inner, "")) => Field { text: unescaped(inner), quoted: true },
        Some((inner, offset)) if offset.starts_with('+') => Field { text: unescaped(inner) + offset, quoted: false },
        _ => Field { text: text.to_owned(), quoted: false },
    }
}

/// In quotes, `\` stands before a character that means itself.
fn unescaped(text: &str) -> String {
    let (mut out, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        out.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    out
}

/// At colons that are not in quotes and no part of `::`.
fn split(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let (mut fields, mut start, mut quoted, mut at) = (Vec::new(), 0, false, 0);
    let is_usdt = text.starts_with("U:") || text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("usdt:"));
    while at < bytes.len() {
        match bytes[at] {
            b'"' => quoted = !quoted,
            b'\\' if quoted => at += 1,
            // `usdt:path::name` has an empty provider, `uprobe::name` no file; elsewhere `::` is a
            // part of a name.
            b':' if !quoted
                && bytes.get(at + 1) == Some(&b':')
                && !is_usdt
                && (fields.len() >= 2 || fields.len() == 1 && at > start) =>
            {
                at += 1;
            }
            b':' if !quoted => {
                fields.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    fields.push(&text[start..]);
    fields
}

fn advice(name: &str) -> &'static str {
    match name {
        "kprobe" | "k" | "fentry" | "f" | "kfunc" => "uprobe:PATH:FUNCTION probes functions of programs and libraries",
        "kretprobe" | "kr" | "fexit" | "fr" | "kretfunc" => {
            "uretprobe:PATH:FUNCTION probes returns of functions of programs and libraries"
        }
        "tracepoint" | "t" | "rawtracepoint" | "rt" => "usdt:PATH:PROVIDER:NAME probes static probes of programs",
        "profile" | "p" => "interval:s:1 runs again and again",
        _ => THERE,
    }
}

/// `has_process`: the file of a probe need not be named.
fn check(point: &Point, has_process: bool) -> Parsed<()> {
    let error = |message: String| Err(Diagnostic::error(point.span, message));
    let count = point.fields.len();
    let empty = point.fields.iter().any(|field| field.text.is_empty());
    let (fewest, no_object) = (if has_process { 1 } else { 2 }, point.object().is_empty() && !has_process);
    match point.provider {
        Provider::Begin | Provider::End if count != 0 => {
            error(format!("{} probe type requires 0 arguments, found {count}", point.provider.name()))
        }
        Provider::Begin | Provider::End => Ok(()),
        Provider::Test | Provider::Bench if count == 1 && !empty => Ok(()),
        Provider::Test | Provider::Bench => {
            error(format!("{} probe type requires 1 argument, found {count}", point.provider.name()))
        }
        Provider::Own => own(point),
        Provider::Interval => match period(point) {
            Some(1000..) => Ok(()),
            Some(0) => error("interval must be greater than 0".to_owned()),
            Some(found) => {
                error(format!("Invalid rate of interval probe. Minimum is 1000 or 1us. Found: {found} nanoseconds"))
            }
            None if count == 0 || count > 2 => {
                error(format!("interval probe type requires 2 arguments, found {count}"))
            }
            None => error("interval: expected s, ms, us or hz and a number, as in interval:s:1".to_owned()),
        },
        Provider::Uprobe | Provider::Uretprobe | Provider::Usdt
            if count >= fewest && point.fields[count - 1].text.is_empty() =>
        {
            error(format!("{} probe has no name behind the last colon", point.provider.name()))
        }
        Provider::Uprobe | Provider::Uretprobe if !(fewest..=3).contains(&count) || no_object => wrong_fields(point),
        Provider::Uretprobe if has_offset(&point.fields[count - 1]) => {
            error("Offset not allowed: a uretprobe is where a function returns".to_owned())
        }
        Provider::Usdt if count == 1 && !has_process => {
            let message = "usdt probe must specify at least path or pid to probe".to_owned();
            let hint = "usdt:PATH:NAME, or add -p PID; usdt:*:NAME with -p means all its files";
            Err(Diagnostic::error(point.span, message).hint(hint))
        }
        Provider::Usdt if !(fewest..=3).contains(&count) => wrong_fields(point),
        _ => Ok(()),
    }
}

/// Whether it is `name+4`.
fn has_offset(name: &Field) -> bool {
    let offset = name.text.rsplit_once('+').map(|(_, offset)| offset);
    !name.quoted && offset.is_some_and(|offset| super::super::lexer::number(offset).is_some())
}

/// The signals that `self:signal:…` may name.
pub const OWN_SIGNALS: [&str; 1] = ["SIGUSR1"];

/// `self:signal:SIGUSR1`
fn own(point: &Point) -> Parsed<()> {
    let texts: Vec<&str> = point.fields.iter().map(|field| &*field.text).collect();
    let message = match *texts {
        ["signal", signal] if OWN_SIGNALS.contains(&signal) => return Ok(()),
        ["signal", signal] => format!("{signal} is not a supported signal"),
        [kind, _] => format!("{kind} is not a supported trigger"),
        _ => format!("self probe type requires 2 arguments, found {}", texts.len()),
    };
    Err(Diagnostic::error(point.span, message).hint("there is self:signal:SIGUSR1"))
}

fn wrong_fields(point: &Point) -> Parsed<()> {
    let (name, count) = (point.provider.name(), point.fields.len());
    let message = format!("{name} probe type requires 2 or 3 arguments, found {count}");
    Err(Diagnostic::error(point.span, message).hint(super::advice::fields(point.provider)))
}

/// The nanoseconds between two ticks of an interval.
#[must_use]
pub fn period(point: &Point) -> Option<u64> {
    let number = |text: &str| super::super::lexer::number(text);
    match *point.fields.iter().map(|field| &*field.text).collect::<Vec<_>>() {
        [unit, n] => {
            let n: u64 = number(n)?;
            match unit {
                "s" => n.checked_mul(1_000_000_000),
                "ms" => n.checked_mul(1_000_000),
                "us" => n.checked_mul(1_000),
                "hz" => Some(1_000_000_000_u64.checked_div(n).unwrap_or(0)),
                _ => None,
            }
        }
        [duration] if duration.ends_with(|c: char| c.is_ascii_alphabetic()) => number(duration),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Given;
    use super::*;

    #[test]
    fn a_number_in_a_name_was_taken_for_an_argument_of_the_script() {
        let with = |text: &str, params: &[&str]| {
            let params = params.iter().map(|param| (*param).to_owned()).collect();
            Parser::new("", &Given { params, ..Given::default() }).with_params(text)
        };
        assert_eq!(with("u:camlStdlib__$27_1234", &[]), "u:camlStdlib__$27_1234");
        assert_eq!(with("u:$1:f$2", &["lib"]), "u:lib:f$2");
        assert_eq!(with("u:$1:$2", &["lib"]), "u:lib:");
        assert_eq!(with("u:x:$1$2", &["lib"]), "u:x:lib");
        assert_eq!(with(r#"u:x:"$1""#, &["lib"]), r#"u:x:"$1""#);
        assert_eq!(with("u:x:f$1", &["7"]), "u:x:f7");
    }
}
