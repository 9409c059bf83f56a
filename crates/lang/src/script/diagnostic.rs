//! What is wrong with a script, and where.

use std::fmt::{self, Display, Formatter, Write as _};

/// A range of bytes of the source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// Behind the last.
    pub end: usize,
}

impl Span {
    /// From the start of this one to the end of another.
    #[must_use]
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start, end: other.end.max(self.end) }
    }
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// The script is not run.
    Error,
    /// It is run all the same.
    Warning,
}

/// A name that nothing has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// A word.
    Identifier(String),
    /// `@name`
    Map(String),
    /// `$name`
    Variable(String),
}

impl Display for Unknown {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Unknown::Identifier(name) => write!(f, "Unknown identifier: '{name}'"),
            Unknown::Map(name) => write!(f, "Undefined map: @{name}"),
            Unknown::Variable(name) => write!(f, "Undefined or undeclared variable: ${name}"),
        }
    }
}

/// Something that is wrong with a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is.
    pub span: Span,
    /// What it is.
    pub message: String,
    /// A line behind the message: numbers that are for those who know the machinery.
    pub details: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// The name, if it is one that nothing has.
    pub unknown: Option<Box<Unknown>>,
    /// The calls of macros that it is in, the innermost first.
    pub expanded: Box<[Span]>,
}

impl Diagnostic {
    /// An error.
    pub fn error(span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            span,
            message: message.into(),
            details: None,
            hint: None,
            unknown: None,
            expanded: Box::default(),
        }
    }

    /// An error: nothing has this name.
    #[must_use]
    pub fn unknown(span: Span, name: Unknown) -> Diagnostic {
        Diagnostic { unknown: Some(Box::new(name.clone())), ..Diagnostic::error(span, name.to_string()) }
    }

    /// A warning.
    pub fn warning(span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(span, message) }
    }

    /// The same with advice.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Diagnostic {
        Diagnostic { hint: Some(hint.into()), ..self }
    }

    /// As bpftrace prints it: `NAME:LINE:COLUMN-COLUMN: ERROR: …`, the line, and what is meant
    /// underlined. Columns count characters from 1; the second is behind the last.
    #[must_use]
    pub fn render(&self, name: &str, source: &str) -> String {
        let start = floor(source, self.span.start);
        let end = floor(source, self.span.end.max(start));
        let line_start = source[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = source[start..].find('\n').map_or(source.len(), |at| start + at);
        let line = source[..start].matches('\n').count() + 1;
        let severity = match self.severity {
            Severity::Error => "ERROR",
            Severity::Warning => "WARNING",
        };
        let mut text = String::new();
        let column = source[line_start..start].chars().count() + 1;
        let width = source[start..end.min(line_end)].chars().count().max(1);
        if end > line_end {
            let last = line + source[start..end].matches('\n').count();
            let _ = writeln!(text, "{name}:{line}-{last}: {severity}: {}", self.message);
        } else {
            let _ = writeln!(text, "{name}:{line}:{column}-{}: {severity}: {}", column + width, self.message);
        }
        if let Some(details) = &self.details {
            let _ = writeln!(text, "{details}");
        }
        // Tabs are one column wide in the message, and so they are here.
        let _ = writeln!(text, "{}", source[line_start..line_end].replace('\t', " "));
        let columns = |text: &str| text.chars().map(width_of).sum::<usize>();
        let (before, under) = (columns(&source[line_start..start]), columns(&source[start..end.min(line_end)]));
        let _ = writeln!(text, "{}{}", " ".repeat(before), "~".repeat(under.max(1)));
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "HINT: {hint}");
        }
        for span in &*self.expanded {
            let outer = Diagnostic { severity: self.severity, ..Diagnostic::error(*span, "expanded from") };
            text.push_str(&outer.render(name, source));
        }
        text
    }
}

/// Columns of a terminal that a character takes: two of East Asian scripts and pictures, none if it
/// belongs to the one before (Unicode Standard Annex 11, the blocks that are wide or full-width as
/// a whole).
fn width_of(c: char) -> usize {
    match u32::from(c) {
        0x300..=0x36f | 0x200b..=0x200f | 0x20d0..=0x20ff | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0x303e
        | 0x3041..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1f64f
        | 0x1f680..=0x1f6ff
        | 0x1f900..=0x1f9ff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// The start of the character that the byte belongs to.
fn floor(source: &str, at: usize) -> usize {
    let at = at.min(source.len());
    (0..=at).rev().find(|at| source.is_char_boundary(*at)).unwrap_or(0)
}
