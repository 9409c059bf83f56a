//! What is wrong with a script, and where.

use std::fmt::Write as _;

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

/// Something that is wrong with a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is.
    pub span: Span,
    /// What it is.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// An error.
    pub fn error(span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic { severity: Severity::Error, span, message: message.into(), hint: None }
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

    /// As bpftrace prints it: `NAME:LINE:COLUMN-COLUMN: ERROR: …`, the line, and what is meant underlined. Columns count
    /// characters from 1; the second is behind the last.
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
        // Tabs are one column wide in the message, and so they are here.
        let _ = writeln!(text, "{}", source[line_start..line_end].replace('\t', " "));
        let _ = writeln!(text, "{}{}", " ".repeat(column - 1), "~".repeat(width));
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "HINT: {hint}");
        }
        text
    }
}

/// The start of the character that the byte belongs to.
fn floor(source: &str, at: usize) -> usize {
    let at = at.min(source.len());
    (0..=at).rev().find(|at| source.is_char_boundary(*at)).unwrap_or(0)
}
