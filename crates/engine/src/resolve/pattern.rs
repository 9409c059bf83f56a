//! `[OBJECT:]FUNC` as typed → [`Pattern`].
//!
//! OBJECT ends at the first single colon, so that the `::` of C++ and Rust names stays in FUNC.
//! FUNC in double quotes is a name: nothing in it is an offset or an address. (A `*` in it is no
//! obstacle: a glob that is exactly a function's name means that function.) `p:OBJECT:FUNC` is
//! accepted as bcc writes it. `OBJECT@FILE:LINE[:COLUMN]` is a line of a source file.

use sidestep_isa::{FileOff, Va};
use sidestep_symbols::Matcher;

/// `OBJECT:FUNC` as the user wrote it, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The whole text, for messages and headings.
    pub text: String,
    /// Path or short library name (`libc`, `c`, `libssl.so.3`); a glob = every mapped object that
    /// it matches; `None` = the main program, then every mapped object.
    pub object: Option<String>,
    /// The function part.
    pub func: FuncPattern,
}

/// The function part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FuncPattern {
    /// A glob or plain name, matched against raw and demangled names; a plain name matches exactly
    /// one function of one object (the first object that has it).
    Name(String),
    /// `symbol+0xOFF`.
    Offset(String, u64),
    /// `symbol+*`: every instruction of the functions that a glob or name means.
    Every(String),
    /// `0xADDR`: link-time virtual address.
    Addr(Va),
    /// `0xADDR+*`: every instruction of the function that holds a link-time address, whether or not
    /// it has a name.
    EveryAt(Va),
    /// An offset in the object's file, in bytes, as the kernel's `uprobe_events` has it.
    FileOffset(FileOff),
    /// A line of a source file, which is named by the end of its path, or a column of it: the first
    /// instruction in each function that has any.
    Line(String, u64, Option<u64>),
    /// `-r`: a regular expression is matched against names.
    Regex(String),
    /// USDT probes, by globs of provider and name: each of their sites.
    Usdt(String, String),
}

impl FuncPattern {
    /// May it mean many places of one object?
    #[must_use]
    pub fn is_many(&self) -> bool {
        let is_glob = |text: &String| !Matcher::glob(text).is_name();
        match self {
            FuncPattern::Name(text) => is_glob(text),
            FuncPattern::Usdt(provider, name) => is_glob(provider) || is_glob(name),
            FuncPattern::Regex(_) | FuncPattern::Every(_) | FuncPattern::EveryAt(_) => true,
            FuncPattern::Offset(..) | FuncPattern::Addr(_) | FuncPattern::FileOffset(_) | FuncPattern::Line(..) => {
                false
            }
        }
    }
}

/// Takes a pattern apart. `regexp`: FUNC is a regular expression.
pub fn parse(text: &str, regexp: bool) -> Result<Pattern, String> {
    let place = match text.strip_prefix("p:") {
        Some(rest) if !rest.starts_with(':') && split_object(rest).0.is_some() => rest,
        _ => text,
    };
    let (object, func) = split_object(place.trim_start_matches(':'));
    let object = object.map(str::to_owned);
    if func.is_empty() {
        return Err(format!("\"{text}\" names no function; expected [OBJECT:]FUNC, for example libc:malloc"));
    }
    if let Some((object, file)) = object.as_deref().and_then(|object| object.rsplit_once('@')) {
        if let (false, false, Some((line, column))) = (regexp, file.is_empty(), parse_line(func)) {
            let object = (!object.is_empty()).then(|| object.to_owned());
            let func = FuncPattern::Line(file.to_owned(), line, column);
            return Ok(Pattern { text: text.to_owned(), object, func });
        }
    }
    let func = if regexp { FuncPattern::Regex(func.to_owned()) } else { parse_func(func)? };
    Ok(Pattern { text: text.to_owned(), object, func })
}

/// The same, or `usdt:OBJECT:PROVIDER:NAME`.
pub fn place(text: &str, regexp: bool) -> Result<Pattern, String> {
    let Some(probe) = text.strip_prefix("usdt:") else { return parse(text, regexp) };
    match *probe.splitn(3, ':').collect::<Vec<_>>() {
        [object, provider, name] if ![object, provider, name].contains(&"") => Ok(usdt(object, provider, name)),
        _ => Err(format!("\"{text}\" is not usdt:OBJECT:PROVIDER:NAME")),
    }
}

/// The pattern of a USDT probe.
pub fn usdt(object: &str, provider: &str, name: &str) -> Pattern {
    let text = format!("usdt:{object}:{provider}:{name}");
    let func = FuncPattern::Usdt(provider.to_owned(), name.to_owned());
    Pattern { text, object: Some(object.to_owned()), func }
}

/// `LINE[:COLUMN]`
fn parse_line(text: &str) -> Option<(u64, Option<u64>)> {
    match text.split_once(':') {
        None => Some((text.parse().ok()?, None)),
        Some((line, column)) => Some((line.parse().ok()?, Some(column.parse().ok()?))),
    }
}

/// `FILE:LINE[:COLUMN]`
#[must_use]
pub fn line_text(file: &str, line: u64, column: Option<u64>) -> String {
    let column = column.map_or_else(String::new, |column| format!(":{column}"));
    format!("{file}:{line}{column}")
}

/// A name as it must be typed to be read as one, also by a shell.
pub fn quote(name: &str) -> String {
    let plain = parse_func(name) == Ok(FuncPattern::Name(name.to_owned()));
    if plain && !name.contains(['*', '?', '[', ' ', '(', '"']) { name.to_owned() } else { format!("\"{name}\"") }
}

/// At the first colon that is not one of a pair, outside quotes.
fn split_object(text: &str) -> (Option<&str>, &str) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => break,
            b':' if bytes.get(at + 1) == Some(&b':') => at += 2,
            b':' => return (Some(&text[..at]), &text[at + 1..]),
            _ => at += 1,
        }
    }
    (None, text)
}

fn parse_func(func: &str) -> Result<FuncPattern, String> {
    if let Some(rest) = func.strip_prefix('"') {
        return match rest.strip_suffix('"') {
            Some(name) if !name.is_empty() => Ok(FuncPattern::Name(name.to_owned())),
            _ => Err(format!("the quotes of {func} are not closed or hold nothing")),
        };
    }
    if let Some(digits) = func.strip_prefix("0x") {
        let (digits, what): (_, fn(Va) -> FuncPattern) = match digits.strip_suffix("+*") {
            Some(digits) => (digits, FuncPattern::EveryAt),
            None => (digits, FuncPattern::Addr),
        };
        return match u64::from_str_radix(digits, 16) {
            Ok(va) => Ok(what(Va(va))),
            Err(_) => Err(format!("\"{func}\" is no hexadecimal address")),
        };
    }
    if let Some((symbol, offset)) = func.rsplit_once('+') {
        if !symbol.is_empty() && offset == "*" {
            return Ok(FuncPattern::Every(symbol.to_owned()));
        }
        // `operator+` and the like are names.
        if !symbol.is_empty() && offset.starts_with(|c: char| c.is_ascii_digit()) {
            let number = match offset.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => offset.parse(),
            };
            return match number {
                Ok(offset) => Ok(FuncPattern::Offset(symbol.to_owned(), offset)),
                Err(_) => Err(format!("\"{offset}\" is no offset; expected a number like 0x1c")),
            };
        }
    }
    Ok(FuncPattern::Name(func.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn func(text: &str) -> (Option<String>, FuncPattern) {
        let pattern = parse(text, false).unwrap();
        assert_eq!(pattern.text, text);
        (pattern.object, pattern.func)
    }

    fn name(name: &str) -> FuncPattern {
        FuncPattern::Name(name.to_owned())
    }

    #[test]
    fn object_ends_at_the_first_single_colon() {
        for (text, object, function) in [
            ("malloc", None, "malloc"),
            ("libc:malloc", Some("libc"), "malloc"),
            ("c:str*", Some("c"), "str*"),
            ("/usr/lib/libssl.so.3:SSL_read", Some("/usr/lib/libssl.so.3"), "SSL_read"),
            ("./a.out:ns::Class::method", Some("./a.out"), "ns::Class::method"),
            ("std::string::append", None, "std::string::append"),
            ("core::fmt::*", None, "core::fmt::*"),
            (":main", None, "main"),
            ("::main", None, "main"),
            ("p:libc:malloc", Some("libc"), "malloc"),
            ("p:malloc", Some("p"), "malloc"),
            ("p::malloc", None, "p::malloc"),
            ("./t:operator+", Some("./t"), "operator+"),
        ] {
            assert_eq!(func(text), (object.map(str::to_owned), name(function)), "{text}");
        }
    }

    #[test]
    fn addresses_and_offsets() {
        assert_eq!(func("./a:0x1040"), (Some("./a".to_owned()), FuncPattern::Addr(Va(0x1040))));
        assert_eq!(func("a:0x1040+*").1, FuncPattern::EveryAt(Va(0x1040)));
        assert_eq!(func("main+0x1c").1, FuncPattern::Offset("main".to_owned(), 0x1c));
        assert_eq!(func("main+*").1, FuncPattern::Every("main".to_owned()));
        assert_eq!(func("main+28").1, FuncPattern::Offset("main".to_owned(), 28));
        assert!(parse("0x1040+", false).is_err() && parse("0x+*", false).is_err());
        for bad in ["libc:", "", "0xfoo", "main+0xz", "main+1f", "0x11112222333344445", "libc:\"", "libc:\"\""] {
            assert!(parse(bad, false).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_of_source_files() {
        let line = |file: &str, line| FuncPattern::Line(file.to_owned(), line, None);
        let column = FuncPattern::Line("a.c".to_owned(), 12, Some(5));
        assert_eq!(func("./a@src/a.c:12:5").1, FuncPattern::Line("src/a.c".to_owned(), 12, Some(5)));
        assert_eq!(func("@a.c:12:5"), (None, column));
        assert_eq!(func("./run@a.c:12:main").1, name("12:main"));
        assert_eq!(func("./a@src/a.c:12"), (Some("./a".to_owned()), line("src/a.c", 12)));
        assert_eq!(func("@a.c:12"), (None, line("a.c", 12)));
        assert_eq!(func("./run@1:main"), (Some("./run@1".to_owned()), name("main")));
    }

    #[test]
    fn usdt_probes_have_three_parts() {
        let pattern = place("usdt:libc:libc:setjmp", false).unwrap();
        assert_eq!((pattern.text.as_str(), pattern.object.as_deref()), ("usdt:libc:libc:setjmp", Some("libc")));
        assert_eq!(pattern.func, FuncPattern::Usdt("libc".to_owned(), "setjmp".to_owned()));
        assert!(place("usdt:libc:setjmp", false).is_err() && place("usdt::a:b", false).is_err());
        assert_eq!(place("libc:malloc", false), parse("libc:malloc", false));
    }

    #[test]
    fn quotes_hold_a_name() {
        assert_eq!(func("./a:\"f(char*, x[])\"").1, name("f(char*, x[])"));
        assert_eq!(func("\"a:b+0x1\"").1, name("a:b+0x1"));
    }

    #[test]
    fn quoted_names_are_read_back_as_names() {
        for text in ["malloc", "ns::f", "operator+", "f(char const*)", "operator new[](unsigned long)", "f+0x1", "0x12"]
        {
            let typed = format!("/lib/x.so:{}", quote(text));
            let (object, FuncPattern::Name(read)) = func(&typed) else { panic!("{typed} is no name") };
            assert_eq!(object.as_deref(), Some("/lib/x.so"));
            assert_eq!(read, text);
        }
        assert_eq!(quote("malloc"), "malloc");
    }

    #[test]
    fn regular_expressions_are_left_alone() {
        let pattern = parse("c:^(read|write)$", true).unwrap();
        assert_eq!(pattern.object.as_deref(), Some("c"));
        assert_eq!(pattern.func, FuncPattern::Regex("^(read|write)$".to_owned()));
    }
}
