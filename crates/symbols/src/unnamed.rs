//! Functions that no symbol names: they are called after their addresses, as disassemblers do it.

use sidestep_isa::object::Extent;
use sidestep_isa::{Len, Va};

use crate::error::ObjectError;
use crate::function::{Binding, Function, FunctionKind, Source};
use crate::object::Object;

/// What the names begin with; the link-time address follows, in hexadecimal digits.
const PREFIX: &str = "sub_";

/// The name of the function that starts at a link-time address, where no symbol names it.
#[must_use]
pub fn unnamed(va: Va) -> String {
    format!("{PREFIX}{:x}", va.0)
}

/// The address in such a name; `None`: it is another one, or not written as [`unnamed`] does.
#[must_use]
pub fn address_of_unnamed(name: &str) -> Option<Va> {
    let va = Va(u64::from_str_radix(name.strip_prefix(PREFIX)?, 16).ok()?);
    (unnamed(va) == name).then_some(va)
}

/// Whether a pattern asks for them, and not for symbols alone.
#[must_use]
pub fn asks_for_unnamed(pattern: &str) -> bool {
    pattern.strip_prefix('^').unwrap_or(pattern).starts_with(PREFIX)
}

impl Object {
    /// The functions that no symbol names, by address, once [`Object::keep_unnamed`] was told of
    /// them.
    #[must_use]
    pub fn unnamed(&self) -> Option<&[Function]> {
        self.unnamed.get().map(Vec::as_slice)
    }

    /// Keeps and returns the functions that no symbol names, as an analysis of the code has found
    /// them: sorted by address.
    pub fn keep_unnamed(&self, found: impl FnOnce() -> Vec<Extent>) -> &[Function] {
        let function = |extent: Extent| Function {
            name: unnamed(extent.start).into(),
            va: extent.start,
            size: extent.len,
            kind: FunctionKind::Func,
            binding: Binding::Local,
            source: Source::Code,
        };
        self.unnamed.get_or_init(|| found().into_iter().map(function).collect())
    }

    /// Whether unwind information describes far more functions than symbols name, as in a program
    /// without its symbol table.
    #[must_use]
    pub fn is_mostly_nameless(&self) -> bool {
        /// Parts of functions have no names, either, so there are some in any object.
        const MANY: usize = 4;
        !self.is_go() && self.described().is_ok_and(|code| code.nameless.len() > MANY * self.functions().len())
    }

    /// The start of the function without a symbol around a link-time address: of those that unwind
    /// information describes, and of those that were found, if somebody has looked for them.
    ///
    /// # Errors
    /// The unwind information is corrupt.
    pub fn unnamed_around(&self, va: Va) -> Result<Option<Va>, ObjectError> {
        let holds = |start: Va, len: Len| start <= va && va.0 - start.0 < len.0;
        let found = self.unnamed().unwrap_or_default();
        let last = found[..found.partition_point(|f| f.va <= va)].last();
        if let Some(function) = last.filter(|f| holds(f.va, f.size)) {
            return Ok(Some(function.va));
        }
        let code = self.described()?;
        let nameless = |extent: &&Extent| code.nameless.binary_search(&extent.start).is_ok();
        let around = code.extents.iter().filter(|extent| holds(extent.start, extent.len)).filter(nameless);
        Ok(around.map(|extent| extent.start).max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        assert_eq!(unnamed(Va(0x1a2b)), "sub_1a2b");
        assert_eq!(address_of_unnamed("sub_1a2b"), Some(Va(0x1a2b)));
        for other in ["sub_", "sub_01", "sub_1A", "sub_x", "sub", "sub_11112222333344445"] {
            assert_eq!(address_of_unnamed(other), None, "{other}");
        }
        assert!(asks_for_unnamed("sub_*") && asks_for_unnamed("^sub_1") && !asks_for_unnamed("*sub_*"));
    }
}
