//! What of this machine, and of a process, decides whether an attach works, and how well.

mod machine;
mod process;

pub use machine::machine;
pub use process::process;

/// What a fact means for an attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is in the way.
    Fine,
    /// It works with a restriction, or slower.
    Limited,
    /// It does not work.
    Prevented,
}

/// Something that decides whether an attach works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// A word for it.
    pub name: &'static str,
    /// What it means.
    pub verdict: Verdict,
    /// What is so: a clause.
    pub what: String,
    /// What to do about it, unless nothing needs to be done, or `what` says it.
    pub advice: Option<String>,
}

impl Fact {
    fn fine(name: &'static str, what: impl Into<String>) -> Fact {
        Fact { name, verdict: Verdict::Fine, what: what.into(), advice: None }
    }

    fn limited(name: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Fact {
        Fact { verdict: Verdict::Limited, advice: Some(advice.into()), ..Fact::fine(name, what) }
    }

    fn prevented(name: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Fact {
        Fact { verdict: Verdict::Prevented, advice: Some(advice.into()), ..Fact::fine(name, what) }
    }

    /// An error, which says what to do itself.
    pub fn error(name: &'static str, error: impl std::fmt::Display) -> Fact {
        Fact { verdict: Verdict::Prevented, ..Fact::fine(name, error.to_string()) }
    }
}

/// The value behind `key:` in a file such as `/proc/PID/status`.
fn field<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}
