//! `-c 'CMD'`: a line split into words as a POSIX shell splits it, with quotes and backslashes and
//! nothing else: no variables, no globs, no pipes.

/// The words of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words(pub Vec<String>);

/// Splits a line. Errors on an unclosed quote and on a backslash at the end.
pub fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    // `None` between words; `''` is an empty word.
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return Err("a ' is not closed".to_owned()),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('"') => break,
                        Some('\\') => match chars.next() {
                            Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                            Some('\n') => {}
                            Some(c) => word.extend(['\\', c]),
                            None => return Err("a \" is not closed".to_owned()),
                        },
                        Some(c) => word.push(c),
                        None => return Err("a \" is not closed".to_owned()),
                    }
                }
            }
            '\\' => match chars.next() {
                Some('\n') => {}
                Some(c) => word.get_or_insert_default().push(c),
                None => return Err("nothing follows the last backslash".to_owned()),
            },
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::split;

    /// The shell is the oracle.
    #[test]
    fn splits_as_sh_does() {
        for line in [
            "grep -c 7 numbers.txt",
            "  a\tb  ",
            "sh -c 'echo \"a  b\"; exit 3'",
            r#"a"b c"'d e'f"#,
            r#"\'a\ b \"c"#,
            r#"'' "" x"#,
            r#""a\"b\\c\d\`""#,
            r"'a\b'",
            "\"two\nlines\" a\\\nb",
            "ü 'ß x'",
        ] {
            let script = format!("for w in {line}\ndo printf '%s\\0' \"$w\"\ndone");
            let output = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let mut expected: Vec<_> = text.split('\0').collect();
            expected.pop();
            assert_eq!(split(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn unclosed_quotes_are_errors() {
        for line in ["'a", "\"a", "a\\", "\"a\\"] {
            assert!(split(line).is_err(), "{line}");
        }
        assert_eq!(split("  ").unwrap(), [""; 0]);
    }
}
