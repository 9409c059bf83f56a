//! Names of data.

use object::elf;
use sidestep_isa::{Len, Va};

use crate::demangle;
use crate::elf::Elf;
use crate::object::Object;
use crate::symtab::{self, Symbol};

/// The variables of an object, by address; of those at one address the preferred one last.
pub(crate) type Variables = Vec<Variable>;

/// Data that a symbol names.
#[derive(Debug)]
pub(crate) struct Variable {
    va: Va,
    size: Len,
    name: Box<str>,
}

impl Object {
    /// The variable around a link-time address as its source calls it, and the offset in it.
    /// Nothing of each thread.
    #[must_use]
    pub fn variable_at(&self, va: Va) -> Option<(&str, u64)> {
        let is_data = |at: Va| {
            let mut segments = self.segments().iter().filter(|segment| !segment.execute);
            segments.any(|s| at.0.checked_sub(s.va.0).is_some_and(|offset| offset < s.size.0))
        };
        if !is_data(va) {
            return None;
        }
        let all = self.variables.get_or_init(|| read(self));
        let last = &all[all.partition_point(|variable| variable.va <= va).checked_sub(1)?];
        let offset = va.0 - last.va.0;
        (offset < last.size.0).then_some((&*last.name, offset))
    }
}

fn read(object: &Object) -> Variables {
    let mut found = Vec::new();
    let debug = match symtab::entries(object.elf(), elf::SHT_SYMTAB) {
        Ok(Some(_)) => None,
        _ => object.debug_symbols(),
    };
    let files = [Some(object.elf()), debug.as_ref().map(|file| file.elf())];
    for elf in files.into_iter().flatten() {
        for table in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
            add(elf, table, &mut found);
        }
    }
    found.sort_by(|(a, a_local), (b, b_local)| (a.va, b_local, a.size).cmp(&(b.va, a_local, b.size)));
    found.into_iter().map(|(variable, _)| variable).collect()
}

/// Adds those of a table, and whether they are local.
fn add(elf: &Elf, table: u32, found: &mut Vec<(Variable, bool)>) {
    let Ok(Some((symbols, strings))) = symtab::entries(elf, table) else { return };
    let is_variable = |symbol: &Symbol| {
        let defined = !matches!(symbol.section, elf::SHN_UNDEF | elf::SHN_ABS | elf::SHN_COMMON);
        defined && symbol.kind() == elf::STT_OBJECT && symbol.size.0 != 0
    };
    for symbol in symbols.into_iter().filter(is_variable) {
        let Some(name) = symtab::name(strings, &symbol) else { continue };
        let name = String::from_utf8_lossy(name);
        let name = demangle::short(&name).unwrap_or_else(|| name.into_owned()).into();
        found.push((Variable { va: symbol.va, size: symbol.size, name }, symbol.is_local()));
    }
}
