//! Types and expressions of C, as bcc's specifications have them, in the language of scripts.

/// What may stand in an expression beside parameters: types, functions and values of scripts.
pub const WORDS: &[&str] = &[
    "$entry",
    "struct",
    "union",
    "enum",
    "unsigned",
    "signed",
    "char",
    "short",
    "int",
    "long",
    "void",
    "bool",
    "size_t",
    "ssize_t",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8_t",
    "int16_t",
    "int32_t",
    "int64_t",
    "uint8_t",
    "uint16_t",
    "uint32_t",
    "uint64_t",
    "STRCMP",
    "sizeof",
    "str",
    "strlen",
    "strncmp",
    "strcontains",
    "usym",
    "pid",
    "tid",
    "uid",
    "gid",
    "comm",
    "cpu",
    "nsecs",
    "elapsed",
    "func",
    "probe",
    "true",
    "false",
];

/// What a type of C is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CType {
    /// A string: `char *`.
    Text,
    /// A number, by the name that scripts have for its type.
    Number(&'static str),
    /// An address, by the name of the type of what is there.
    Pointer(String),
}

impl CType {
    /// Reads one. The error is a clause.
    pub fn parse(text: &str) -> Result<CType, String> {
        let stars = text.matches('*').count();
        let bare = text.replace('*', " ");
        let words: Vec<&str> = bare
            .split_whitespace()
            .filter(|word| !["const", "volatile", "restrict", "__restrict"].contains(word))
            .collect();
        let number = number(&words.join(" "));
        match (stars, number) {
            (0, Some(name)) => Ok(CType::Number(name)),
            (1, Some("int8")) if words.contains(&"char") => Ok(CType::Text),
            (1, Some(name)) => Ok(CType::Pointer(name.to_owned())),
            (1, None) if words.first() == Some(&"struct") => Ok(CType::Pointer(words.join(" "))),
            (1, None) if !words.is_empty() => Ok(CType::Pointer("uint8".to_owned())),
            (2.., _) if !words.is_empty() => Ok(CType::Pointer("uint64".to_owned())),
            _ => Err(format!("the type '{}' is not known", text.trim())),
        }
    }

    /// A value of that type, made of a word.
    pub fn cast(&self, word: &str) -> String {
        match self {
            CType::Number(name) => format!("(({name}){word})"),
            CType::Pointer(name) => format!("(({name} *){word})"),
            CType::Text => format!("((int8 *){word})"),
        }
    }

    /// What is counted of a value of that type: what a string says, else the number.
    pub fn shown(&self, value: &str) -> String {
        match self {
            // A text already.
            CType::Text if value == "comm" => value.to_owned(),
            CType::Text => format!("str({value})"),
            CType::Number(name) => format!("({name})({value})"),
            CType::Pointer(_) => format!("(uint64)({value})"),
        }
    }
}

/// A type of numbers, by its name in scripts.
fn number(name: &str) -> Option<&'static str> {
    Some(match name {
        "char" | "signed char" | "s8" | "int8_t" | "int8" => "int8",
        "unsigned char" | "u8" | "uint8_t" | "uint8" | "bool" | "_Bool" => "uint8",
        "short" | "short int" | "s16" | "int16_t" | "int16" => "int16",
        "unsigned short" | "unsigned short int" | "u16" | "uint16_t" | "uint16" => "uint16",
        "int" | "signed" | "signed int" | "s32" | "int32_t" | "int32" | "pid_t" => "int32",
        "unsigned" | "unsigned int" | "u32" | "uint32_t" | "uint32" | "uid_t" | "gid_t" | "mode_t" | "socklen_t" => {
            "uint32"
        }
        "long" | "long int" | "long long" | "long long int" | "s64" | "int64_t" | "int64" | "ssize_t" | "off_t"
        | "time_t" | "intptr_t" | "ptrdiff_t" => "int64",
        "unsigned long"
        | "unsigned long int"
        | "unsigned long long"
        | "unsigned long long int"
        | "u64"
        | "uint64_t"
        | "uint64"
        | "size_t"
        | "uintptr_t" => "uint64",
        _ => return None,
    })
}

/// The names and types of a signature: `TYPE NAME, TYPE NAME`.
pub fn parameters(text: &str) -> Result<Vec<(String, CType)>, String> {
    let params = split(text, b',').into_iter().map(str::trim).filter(|param| !param.is_empty() && *param != "void");
    params
        .map(|param| {
            let start = param.rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map_or(0, |at| at + 1);
            let (ty, name) = param.split_at(start);
            if name.is_empty() || ty.trim().is_empty() {
                return Err(format!("the parameter '{param}' is no type with a name"));
            }
            Ok((name.to_owned(), CType::parse(ty)?))
        })
        .collect()
}

/// What stands for an identifier, with its `$` if it has one. `None`: it stays. It is asked twice
/// about what has parentheses behind it, the second time with what is between them.
pub type Replace<'a> = dyn FnMut(&str, Option<&str>) -> Result<Option<String>, String> + 'a;

/// Puts other text in place of names, and of calls: `$entry(x)`, `STRCMP("a", x)`.
pub fn translate(expr: &str, replace: &mut Replace<'_>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = expr;
    while let Some(c) = rest.chars().next() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let len = match c {
            '"' => 1 + string(&rest[1..]).ok_or_else(|| format!("a string in '{expr}' is not closed"))?,
            // The digits of a number, with its suffix or 0x.
            '0'..='9' => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
            '$' => 1 + rest[1..].find(|c| !is_name(c)).unwrap_or(rest.len() - 1),
            c if is_name(c) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (word, behind) = rest.split_at(len);
        rest = behind;
        // A member is no variable, nor is the name of a struct.
        let is_member = out.ends_with('.') || out.ends_with("->") || out.trim_end().ends_with("struct");
        if is_member || !(c == '$' || c == '_' || c.is_ascii_alphabetic()) {
            out.push_str(word);
            continue;
        }
        let inner = behind.trim_start().strip_prefix('(').and_then(|behind| Some(&behind[..close(behind)?]));
        match (replace(word, None)?, inner) {
            (Some(text), _) => out.push_str(&text),
            (None, Some(inner)) => match replace(word, Some(inner))? {
                Some(text) => {
                    out.push_str(&text);
                    let skipped = behind.len() - behind.trim_start().len();
                    rest = &behind[skipped + inner.len() + 2..];
                }
                None => out.push_str(word),
            },
            (None, None) => out.push_str(word),
        }
    }
    Ok(out)
}

/// Where a string ends, behind its quote.
fn string(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Where the parenthesis is that closes one before the text.
pub fn close(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        match text.as_bytes()[at] {
            b'"' => at += string(&text[at + 1..])?,
            b'(' => depth += 1,
            b')' if depth == 0 => return Some(at),
            b')' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    None
}

/// Parts between separators that are in no string and no parentheses. A colon that belongs to a `?`
/// separates nothing.
pub fn split(text: &str, separator: u8) -> Vec<&str> {
    let (mut parts, mut start, mut at, mut depth, mut questions) = (Vec::new(), 0, 0, 0_usize, 0_usize);
    while at < text.len() {
        match text.as_bytes()[at] {
            b'"' => at += string(&text[at + 1..]).unwrap_or(text.len() - at),
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'?' => questions += 1,
            b':' if separator == b':' && questions > 0 => questions -= 1,
            byte if byte == separator && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    parts.push(&text[start.min(text.len())..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types() {
        for (text, ty) in [
            ("size_t", CType::Number("uint64")),
            ("unsigned int", CType::Number("uint32")),
            ("const char *", CType::Text),
            ("char*", CType::Text),
            ("void *", CType::Pointer("uint8".to_owned())),
            ("FILE *", CType::Pointer("uint8".to_owned())),
            ("char **", CType::Pointer("uint64".to_owned())),
            ("int*", CType::Pointer("int32".to_owned())),
            ("struct a const *", CType::Pointer("struct a".to_owned())),
        ] {
            assert_eq!(CType::parse(text), Ok(ty), "{text}");
        }
        assert!(CType::parse("what").is_err() && CType::parse("").is_err());
    }

    #[test]
    fn names_are_replaced() {
        let mut replace = |name: &str, inner: Option<&str>| {
            Ok(match (name, inner) {
                ("n", None) => Some("arg0".to_owned()),
                ("$retval", None) => Some("retval".to_owned()),
                ("$entry", Some(inner)) => Some(format!("<{inner}>")),
                _ => None,
            })
        };
        for (expr, expected) in [
            ("n + 1", "arg0 + 1"),
            ("n->n", "arg0->n"),
            ("((struct n *)n)->n", "((struct n *)arg0)->n"),
            ("\"n\" == n", "\"n\" == arg0"),
            ("$retval > 0xn0", "retval > 0xn0"),
            ("$entry(f(n)) * (n)", "<f(n)> * (arg0)"),
            ("f(n)", "f(arg0)"),
        ] {
            assert_eq!(translate(expr, &mut replace).as_deref(), Ok(expected), "{expr}");
        }
        assert!(translate("\"n", &mut replace).is_err());
    }

    #[test]
    fn parts() {
        assert_eq!(split("a:b ? c : d:e(1:2)", b':'), ["a", "b ? c : d", "e(1:2)"]);
        assert_eq!(split("a,\"b,c\",f(d,e)", b','), ["a", "\"b,c\"", "f(d,e)"]);
        assert_eq!(split("", b':'), [""]);
    }
}
