//! Colours of what is said about scripts: on a terminal, or as the user wants it.

use std::io::IsTerminal;

use clap::ValueEnum;

/// When there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// If stderr is a terminal, and neither `NO_COLOR` nor `TERM=dumb` is set.
    Auto,
    /// In any case.
    Always,
    /// Never.
    Never,
}

impl When {
    /// Are there colours? What the command line says counts, or else `BPFTRACE_COLOR`.
    pub fn now(flag: Option<When>) -> bool {
        let variable = || When::from_str(&std::env::var("BPFTRACE_COLOR").ok()?, true).ok();
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        match flag.or_else(variable).unwrap_or(When::Auto) {
            When::Always => true,
            When::Never => false,
            When::Auto => {
                std::io::stderr().is_terminal()
                    && !set("NO_COLOR")
                    && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
            }
        }
    }
}

/// The same text with its first word of severity, its underline and its hint in colours.
pub fn diagnostic(text: &str) -> String {
    let paint = |code: &str, text: &str| format!("\x1b[{code}m{text}\x1b[0m");
    let mut severity = "31;1";
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        lines.push(match number {
            0 => match line.split_once(": ERROR: ") {
                Some((place, message)) => format!("{place}: {}: {message}", paint(severity, "ERROR")),
                None => {
                    severity = "33;1";
                    line.replacen("WARNING", &paint(severity, "WARNING"), 1)
                }
            },
            2 => paint(severity, line),
            3 => line.replacen("HINT", &paint("36;1", "HINT"), 1),
            _ => line.to_owned(),
        });
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_stays() {
        let plain = "stdin:1:9-10: ERROR: wrong: ERROR: x\nBEGIN { x }\n        ~\nHINT: HINT";
        let colored = diagnostic(plain);
        assert!(colored.starts_with("stdin:1:9-10: \x1b[31;1mERROR\x1b[0m: wrong: ERROR: x\n"), "{colored:?}");
        assert!(colored.contains("\n\x1b[31;1m        ~\x1b[0m\n\x1b[36;1mHINT\x1b[0m: HINT"), "{colored:?}");
        let mut left = colored;
        for code in ["\x1b[31;1m", "\x1b[36;1m", "\x1b[0m"] {
            left = left.replace(code, "");
        }
        assert_eq!(left, plain);
        assert!(diagnostic("a:1:1-2: WARNING: w\nx\n~").contains("\x1b[33;1mWARNING\x1b[0m: w"));
    }
}
