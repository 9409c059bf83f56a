//! `trace`'s SPEC: `[p:|r[MAXACTIVE]:|post:][OBJECT:]FUNC[(signature)] ["FORMAT", VALUE, ...]`.

use sidestep_bpf::Size;
use sidestep_engine::{Pattern, pattern};
use sidestep_lang::uprobe_events::{self, Base, Event, Fetch, Kind, MAXACTIVE_MAX, Register, Type};

use super::format::{Format, Value};
use crate::out::number;

/// Most values that one record holds.
const ARGS_MAX: usize = 6;
/// Arguments that a function's stack frame is searched for: `arg0` ... `arg9`.
const ARG_LAST: u32 = 9;

/// A value that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Arg {
    /// `arg0`…, `retval` or `%reg`.
    base: Base,
    /// It is a pointer to a string.
    string: bool,
}

impl Arg {
    fn name(&self) -> String {
        let name = match &self.base {
            Base::Argument(index) => format!("arg{index}"),
            Base::Register(register) => register.name().to_owned(),
            _ => "retval".to_owned(),
        };
        if self.string { format!("{name}_string") } else { name }
    }

    /// Of the number: an argument on a stack is as long as a word there.
    fn size(&self) -> Size {
        let on_short_stack = matches!(self.base, Base::Argument(_)) && size_of::<usize>() == 4;
        if on_short_stack { Size::W } else { Size::Dw }
    }
}

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Before the instruction.
    Entry,
    /// When the function returns.
    Return,
    /// Behind the instruction.
    Post,
}

/// A parsed SPEC.
#[derive(Clone, Debug)]
pub struct Spec {
    pub pattern: Pattern,
    when: When,
    /// How many calls are watched at a time, 0 = any number.
    maxactive: u32,
    format: Option<Format>,
    /// What a record holds, each once.
    args: Vec<Arg>,
    /// For each conversion of the format: which of `args`.
    values: Vec<usize>,
}

impl Spec {
    /// Parses what the user typed. The error is a clause that says what is wrong.
    pub fn parse(text: &str) -> Result<Spec, String> {
        Self::parse_parts(text.trim()).map_err(|error| format!("in the probe '{text}': {error}"))
    }

    fn parse_parts(text: &str) -> Result<Spec, String> {
        let mut maxactive = 0;
        let (when, place) = match text.split_once(':') {
            Some(("p", rest)) if !rest.starts_with(':') => (When::Entry, rest),
            Some(("r", rest)) => (When::Return, rest),
            Some((kind, rest)) if is_limited(kind) => {
                maxactive = kind[1..].parse().map_err(|_| "the number behind r is too large")?;
                if maxactive > MAXACTIVE_MAX {
                    return Err(format!("at most {MAXACTIVE_MAX} calls are watched at a time, or with r: any number"));
                }
                (When::Return, rest)
            }
            Some(("post", rest)) if !rest.starts_with(':') => (When::Post, rest),
            Some(("t" | "u", rest)) if rest.contains(':') => {
                return Err("tracepoints and USDT probes are not supported, only functions".to_owned());
            }
            _ => (When::Entry, text),
        };
        let (place, rest) = split_place(place)?;
        let pattern =
            Pattern { text: text[..text.len() - rest.len()].trim().to_owned(), ..pattern::parse(place, false)? };
        let mut spec = Spec { pattern, when, maxactive, format: None, args: Vec::new(), values: Vec::new() };
        let rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(spec);
        }
        if rest.starts_with('(') {
            return Err("a filter is an option of its own: --filter 'arg0 > 3'".to_owned());
        }
        let (format, rest) = split_quoted(rest)?;
        let format = Format::parse(format)?;
        let values = split_values(rest)?;
        let kinds: Vec<char> = format.kinds().collect();
        as_many(kinds.len(), values.len())?;
        for (value, kind) in values.into_iter().zip(kinds) {
            if matches!(kind, 'U' | 'K') {
                return Err(format!("%{kind} is no part of records"));
            }
            let arg = Arg { base: spec.parse_value(value)?, string: kind == 's' };
            let index = spec.args.iter().position(|known| *known == arg).unwrap_or(spec.args.len());
            if index == spec.args.len() {
                spec.args.push(arg);
            }
            spec.values.push(index);
        }
        if spec.args.len() > ARGS_MAX {
            return Err(format!("a record holds at most {ARGS_MAX} values"));
        }
        spec.format = Some(format);
        Ok(spec)
    }

    fn parse_value(&self, text: &str) -> Result<Base, String> {
        let index = text.strip_prefix("arg").and_then(|digits| digits.parse::<u32>().ok());
        let register = text.strip_prefix('%').and_then(Register::by_name);
        match (text, index, self.when) {
            _ if register.is_some() => Ok(register.map_or(Base::ReturnValue, Base::Register)),
            ("retval", _, When::Return) => Ok(Base::ReturnValue),
            ("retval", _, _) => Err("retval is there at the return only; write r: in front".to_owned()),
            (_, Some(_), When::Return) => Err(format!("{text} is gone at the return; there is retval")),
            (_, Some(_), When::Post) => {
                Err(format!("{text} may be gone behind the instruction; there is %ax and so on"))
            }
            (_, Some(index), When::Entry) if index <= ARG_LAST => Ok(Base::Argument(index)),
            _ => Err(format!(
                "\"{text}\" is no value; there are arg0 ... arg{ARG_LAST}, retval, and registers such as %ax"
            )),
        }
    }

    /// It prints nothing but that it happened.
    pub fn is_plain(&self) -> bool {
        self.format.is_none()
    }

    /// Behind the instruction.
    pub fn is_post(&self) -> bool {
        self.when == When::Post
    }

    /// What is recorded at a hit.
    pub fn event(&self) -> Event {
        let kind = if self.when == When::Return { Kind::Return } else { Kind::Entry };
        let event = Event { maxactive: self.maxactive, ..Event::new(kind, "sidestep", "trace") };
        self.args.iter().fold(event, |event, arg| {
            let fetch = Fetch::value(arg.base.clone());
            event.with(match arg.string {
                true => uprobe_events::Arg::new(&arg.name(), fetch.deref(0), Type::String),
                false => uprobe_events::Arg::new(&arg.name(), fetch, Type::Unsigned(arg.size())),
            })
        })
    }

    /// The message for a record's values.
    pub fn message(&self, values: &[Value]) -> String {
        match &self.format {
            Some(format) => format.render(self.values.iter().filter_map(|&index| values.get(index))),
            None => String::new(),
        }
    }
}

/// Whether a probe of this kind is one that only records know: behind an instruction, or of a
/// limited number of calls.
pub fn is_recorded(text: &str) -> bool {
    let kind = text.trim().split_once(':').filter(|(_, rest)| !rest.starts_with(':')).map_or("", |(kind, _)| kind);
    kind == "post" || is_limited(kind) || text.contains("%xmm")
}

/// Whether there is a value for each conversion.
pub fn as_many(conversions: usize, values: usize) -> Result<(), String> {
    match conversions == values {
        true => Ok(()),
        false => Err(format!("the format takes {}, but {} given", number::of(conversions, "value"), are(values))),
    }
}

/// `r10`
fn is_limited(kind: &str) -> bool {
    kind.strip_prefix('r').is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
}

fn are(n: usize) -> String {
    if n == 1 { "1 is".to_owned() } else { format!("{n} are") }
}

/// `[OBJECT:]FUNC` and what follows it; a signature in parentheses is dropped. A name with
/// parentheses or blanks of its own is in double quotes.
fn split_place(text: &str) -> Result<(&str, &str), String> {
    if let Some(quote) = text.find('"') {
        // A quote that no blank precedes belongs to the name: lib:"f(int)".
        if !text[..quote].contains(char::is_whitespace) {
            let close = text[quote + 1..].find('"').ok_or("a \" is not closed")?;
            return Ok(text.split_at(quote + close + 2));
        }
    }
    let end = text.find(|c: char| c.is_whitespace() || c == '(').unwrap_or(text.len());
    let (place, rest) = text.split_at(end);
    if !rest.starts_with('(') {
        return Ok((place, rest));
    }
    let mut depth = 0;
    for (at, c) in rest.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok((place, &rest[at + 1..]));
        }
    }
    Err("the parenthesis behind the function is not closed".to_owned())
}

/// The text between the quotes, and what follows them.
pub fn split_quoted(text: &str) -> Result<(&str, &str), String> {
    let inner = text.strip_prefix('"').ok_or_else(|| format!("expected a format in double quotes, found {text}"))?;
    let mut escaped = false;
    for (at, c) in inner.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Ok((&inner[..at], &inner[at + 1..])),
            _ => {}
        }
    }
    Err("the format's \" is not closed".to_owned())
}

/// `, a, b` → `a`, `b`.
fn split_values(text: &str) -> Result<Vec<&str>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let values = text.strip_prefix(',').ok_or_else(|| format!("expected a comma behind the format, found {text}"))?;
    Ok(values.split(',').map(str::trim).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_engine::FuncPattern;

    fn error(text: &str) -> String {
        Spec::parse(text).unwrap_err()
    }

    fn arg(index: u32, string: bool) -> Arg {
        Arg { base: Base::Argument(index), string }
    }

    #[test]
    fn entry_with_arguments() {
        let spec = Spec::parse(r#"libc:open "%s %d", arg0, arg1"#).unwrap();
        assert_eq!(spec.pattern.text, "libc:open");
        assert_eq!(spec.pattern.object.as_deref(), Some("libc"));
        assert_eq!(spec.when, When::Entry);
        assert_eq!(spec.args, [arg(0, true), arg(1, false)]);
        assert!(spec.event().to_string().ends_with(" arg0_string=+0($arg1):string arg1=$arg2:u64"));
        assert_eq!(spec.message(&[Value::Str(b"/etc/passwd".to_vec()), Value::Int(0o100)]), "/etc/passwd 64");
    }

    #[test]
    fn return_with_value() {
        for text in [r#"r:libc:read "= %ld", retval"#, r#"  r:libc:read(int, void *)   "= %ld",retval "#] {
            let spec = Spec::parse(text).unwrap();
            assert_eq!(spec.when, When::Return);
            assert_eq!(spec.args, [Arg { base: Base::ReturnValue, string: false }]);
            assert_eq!(spec.event().to_string().split(' ').next_back(), Some("retval=$retval:u64"));
            assert_eq!(spec.pattern.func, FuncPattern::Name("read".to_owned()));
            assert_eq!(spec.message(&[Value::Int(u64::MAX)]), "= -1");
        }
    }

    #[test]
    fn returns_of_a_limited_number_of_calls() {
        let spec = Spec::parse(r#"r8:libc:read "%ld", retval"#).unwrap();
        assert_eq!((spec.when, spec.maxactive, spec.pattern.object.as_deref()), (When::Return, 8, Some("libc")));
        assert!(spec.event().to_string().starts_with("r8:"));
        assert_eq!(Spec::parse("r0:read").unwrap().maxactive, 0);
        assert_eq!(Spec::parse("r8x:read").unwrap().pattern.object.as_deref(), Some("r8x"));
        assert!(error("r4097:read").contains("at most 4096"));
        assert!(error("r99999999999:read").contains("too large"));
    }

    #[test]
    fn registers_behind_an_instruction() {
        let spec = Spec::parse(r#"post:libc:read+0x10 "%x %s %x", %ax, %r12, %ax"#).unwrap();
        assert!(spec.is_post());
        assert_eq!(spec.pattern.func, FuncPattern::Offset("read".to_owned(), 16));
        assert!(spec.event().to_string().ends_with(" ax=%ax:u64 r12_string=+0(%r12):string"));
        assert_eq!(spec.message(&[Value::Int(255), Value::Str(b"s".to_vec())]), "ff s ff");
        let spec = Spec::parse(r#"r:sin "%f", %xmm0"#).unwrap();
        assert!(spec.event().to_string().ends_with(" xmm0=%xmm0:u64"));
        assert_eq!(spec.message(&[Value::Int(0.5f64.to_bits())]), "0.500000");
        assert!(!Spec::parse(r#"read+0x10 "%d", %flags"#).unwrap().is_post());
        assert!(!Spec::parse("post::scope").unwrap().is_post());
    }

    #[test]
    fn places() {
        for (text, object, name) in [
            ("malloc", None, "malloc"),
            ("p:malloc", None, "malloc"),
            ("r:malloc", None, "malloc"),
            ("r::malloc", None, "malloc"),
            ("p:c:malloc", Some("c"), "malloc"),
            ("p::scope", None, "p::scope"),
            ("./a:ns::f(int (*)(char), long) \"x\"", Some("./a"), "ns::f"),
            ("./a:\"ns::f(int)\" \"x\"", Some("./a"), "ns::f(int)"),
            ("\"f(int)\"", None, "f(int)"),
        ] {
            let pattern = Spec::parse(text).unwrap().pattern;
            assert_eq!(
                (pattern.object.as_deref(), pattern.func),
                (object, FuncPattern::Name(name.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn an_argument_used_twice_is_recorded_once() {
        let spec = Spec::parse(r#"f "%d %x %s %d", arg0, arg0, arg0, arg9"#).unwrap();
        assert_eq!(spec.args, [arg(0, false), arg(0, true), arg(9, false)]);
        let values = [Value::Int(255), Value::Str(b"s".to_vec()), Value::Int(3)];
        assert_eq!(spec.message(&values), "255 ff s 3");
    }

    #[test]
    fn errors_say_what_is_wrong() {
        assert!(error(r#"f "%d""#).contains("the format takes 1 value, but 0 are given"));
        assert!(error(r#"f "x", arg0"#).contains("takes 0 values, but 1 is given"));
        assert!(error(r#"f "%d", retval"#).contains("write r: in front"));
        assert!(error(r#"r:f "%d", arg0"#).contains("gone at the return"));
        assert!(error(r#"f "%d", arg10"#).contains("\"arg10\" is no value"));
        assert!(error(r#"f "%d", %eax"#).contains("registers such as %ax"));
        assert!(error(r#"post:f "%d", arg0"#).contains("may be gone behind the instruction"));
        assert!(error(r#"post:f "%d", retval"#).contains("write r: in front"));
        assert!(error(r#"f "%d", x + 1"#).contains("\"x + 1\" is no value"));
        assert!(error(r#"f "%d" arg0"#).contains("comma"));
        assert!(error(r#"f (arg0 > 3) "%d", arg0"#).contains("--filter"));
        assert!(error(r#"f "%d, arg0"#).contains("not closed"));
        assert!(error("f(int").contains("not closed"));
        assert!(error("f arg0").contains("double quotes"));
        assert!(error("u:c:probe").contains("USDT"));
        assert!(error(r#"f "%d%d%d%d%d%d%d",arg0,arg1,arg2,arg3,arg4,arg5,arg6"#).contains("at most 6"));
        assert!(error("").contains("names no function"));
    }
}
