//! What may fail while a script runs, and is said with its place (`-k`).

use super::diagnostic::Span;

/// What may fail at a place of the script.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// A read of memory.
    Read(Memory),
    /// A read of a text, up to its NUL.
    ReadText(Memory),
    /// A read of an entry of a map.
    Lookup,
    /// The removal of an entry of a map.
    Delete,
}

/// Whose memory is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Memory {
    /// That of the program.
    Program,
    /// Anyone's: it is said in the controller.
    Any,
}

impl Failure {
    /// What is said of it.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Failure::Read(_) | Failure::ReadText(_) => "Bad address",
            Failure::Lookup => "Can't lookup map element because it does not exist.",
            Failure::Delete => "Can't delete map element because it does not exist.",
        }
    }

    /// What is said of it in JSON: what the C library calls the helper's number.
    #[must_use]
    pub const fn error(self) -> &'static str {
        match self {
            Failure::Read(_) | Failure::ReadText(_) => "Bad address",
            Failure::Lookup => "Success",
            Failure::Delete => "No such file or directory",
        }
    }

    /// The helper of bpftrace's program that would have failed, and the number that it gives.
    #[must_use]
    pub const fn helper(self) -> (&'static str, i32) {
        match self {
            Failure::Read(Memory::Program) => ("probe_read_user", -14),
            Failure::Read(Memory::Any) => ("probe_read", -14),
            Failure::ReadText(Memory::Program) => ("probe_read_user_str", -14),
            Failure::ReadText(Memory::Any) => ("probe_read_str", -14),
            Failure::Lookup => ("map_lookup_elem", 0),
            Failure::Delete => ("map_delete_elem", -2),
        }
    }
}

/// A failure that is said when it happens first, and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noted {
    /// What fails.
    pub failure: Failure,
    /// The expression or statement that it is said of.
    pub span: Span,
    /// The action that says it.
    pub action: usize,
}
