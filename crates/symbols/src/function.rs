//! Functions as symbols name them.

use std::borrow::Cow;

use sidestep_isa::{Len, Va};

use crate::demangle;

/// What a symbol says about a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    /// Code that is called.
    Func,
    /// An indirect function (`STT_GNU_IFUNC`): the address is that of the *resolver*, which runs
    /// once and returns the implementation. To probe the function, read the slots of
    /// [`crate::Object::irelative_slots`].
    Ifunc,
    /// The cold part that the compiler split off (`foo.cold`): it is jumped to, not called. Globs
    /// and regular expressions leave it out; its own name finds it.
    Cold,
}

/// Binding of a symbol, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Binding {
    /// Visible to other objects (also `STB_GNU_UNIQUE`).
    Global,
    /// Weak.
    Weak,
    /// Local to a compilation unit.
    Local,
}

/// Which table a symbol came from (the first that has it, in this order).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// `.symtab` of the object.
    Symtab,
    /// `.dynsym` of the object.
    Dynsym,
    /// The compressed table in `.gnu_debugdata` ("MiniDebugInfo").
    DebugData,
    /// A separate debug file.
    DebugFile,
    /// The table of functions that Go's runtime uses (`.gopclntab`).
    Pclntab,
    /// None: its code was found ([`crate::Object::unnamed`]).
    Code,
}

/// A function symbol, defined in an executable section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The raw (mangled) name, without a version (`@@GLIBC_2.2.5`).
    pub name: Box<str>,
    /// Link-time address.
    pub va: Va,
    /// Size in bytes; 0 = not known.
    pub size: Len,
    /// What it is.
    pub kind: FunctionKind,
    /// Its binding.
    pub binding: Binding,
    /// Where it was found.
    pub source: Source,
}

impl Function {
    /// The full demangled name as `c++filt` writes it, or Rust's path without the hash; `None` if
    /// it is not mangled.
    #[must_use]
    pub fn demangled(&self) -> Option<String> {
        demangle::full(&self.name)
    }

    /// The demangled name without parameters and return type, or the raw name: what one types and
    /// reads in tables.
    #[must_use]
    pub fn short_name(&self) -> Cow<'_, str> {
        match demangle::short(&self.name) {
            Some(name) => Cow::Owned(name),
            None => Cow::Borrowed(&self.name),
        }
    }

    /// The order in which names of one address are preferred: functions before indirect ones and
    /// cold parts, exported names first (a C library exports `calloc` weakly and its own
    /// `__libc_calloc` strongly: users know the first), without leading underscores before with,
    /// then the shorter, then the alphabet.
    pub(crate) fn rank(&self) -> (bool, bool, bool, usize, &str) {
        let local = self.binding == Binding::Local;
        (self.kind == FunctionKind::Cold, local, self.name.starts_with('_'), self.name.len(), &self.name)
    }
}

/// Groups the result of [`crate::Object::find`] by address: one group per code location, ascending,
/// and in each group the preferred name first (global, then shorter).
#[must_use]
pub fn by_address<'a>(found: &[&'a Function]) -> Vec<Vec<&'a Function>> {
    let mut sorted = found.to_vec();
    sorted.sort_by(|a, b| (a.va, a.rank()).cmp(&(b.va, b.rank())));
    let mut groups: Vec<Vec<&Function>> = Vec::new();
    for function in sorted {
        match groups.last_mut() {
            Some(group) if group[0].va == function.va => group.push(function),
            _ => groups.push(vec![function]),
        }
    }
    groups
}
