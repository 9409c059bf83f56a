//! Functions by their names.

use std::collections::BTreeSet;

use sidestep_isa::Va;

use super::Object;
use crate::debugfile::Outcome;
use crate::error::SymbolError;
use crate::function::Function;
use crate::matcher::{self, Matcher};
use crate::nearest::nearest;

impl Object {
    /// All functions that match, by address (several names of one address are all there: see
    /// [`crate::by_address`]).
    ///
    /// A plain name is compared with the raw names first; only if none is equal, with the demangled
    /// ones, with and without parameters. Several functions can have one name: statics, overloads,
    /// versions of a symbol.
    #[must_use]
    pub fn find(&self, matcher: &Matcher) -> Vec<&Function> {
        if matcher.is_glob() {
            // Go's names are not mangled, and those of generic functions have brackets:
            // `main.f[go.shape.int]`.
            let equal = self.equal_name(matcher.text());
            if !equal.is_empty() {
                return equal;
            }
        }
        if let Some(name) = matcher.exact() {
            let found = self.find_name(name);
            if matcher.is_name() || !found.is_empty() {
                return found;
            }
        }
        self.functions.iter().filter(|f| matcher.matches(f)).collect()
    }

    /// Like [`Object::find`]; an error that names the places and near names if nothing matches.
    pub fn find_some(&self, matcher: &Matcher) -> Result<Vec<&Function>, SymbolError> {
        let found = self.find(matcher);
        if found.is_empty() { Err(self.not_found(matcher.text())) } else { Ok(found) }
    }

    /// Functions with this raw name.
    fn equal_name(&self, name: &str) -> Vec<&Function> {
        let named = |at: &u32| &self.functions[*at as usize];
        let first = self.by_name.partition_point(|at| *named(at).name < *name);
        self.by_name[first..].iter().map(named).take_while(|f| *f.name == *name).collect()
    }

    fn find_name(&self, name: &str) -> Vec<&Function> {
        let equal = self.equal_name(name);
        if !equal.is_empty() {
            return equal;
        }
        let needle = matcher::needle(name).unwrap_or("");
        self.functions.iter().filter(|f| f.name.contains(needle) && matcher::is_demangled_name(f, name)).collect()
    }

    /// `symbol+0xOFF`: the address in every function of that name. `Err` if there is none, or if
    /// the offset is outside of it.
    pub fn find_offset(&self, name: &str, offset: u64) -> Result<Vec<(Va, &Function)>, SymbolError> {
        let found = self.find_some(&Matcher::name(name))?;
        let outside = |f: &&Function| match f.size.0 {
            0 => !self.elf.in_text(Va(f.va.0.wrapping_add(offset))),
            size => offset >= size,
        };
        match found.iter().find(|f| outside(f)) {
            Some(f) => Err(SymbolError::OutsideFunction { name: name.to_owned(), offset, size: f.size.0 }),
            None => Ok(found.into_iter().map(|f| (Va(f.va.0.wrapping_add(offset)), f)).collect()),
        }
    }

    /// The error for a name that matches nothing, with the places that were searched and at most
    /// three near names.
    #[must_use]
    pub fn not_found(&self, name: &str) -> SymbolError {
        let looked = self.places();
        let raw = self.functions.iter().map(|f| &*f.name);
        let short: Vec<_> = self.functions.iter().map(Function::short_name).collect();
        // The name itself in a module, a class or a package is meant before one like it.
        let inside = short.iter().filter(|known| is_in_path(known, name)).map(|known| known.to_string());
        let mut near: Vec<String> =
            inside.filter(|known| known != name).collect::<BTreeSet<String>>().into_iter().collect();
        near.sort_by_key(|known| (known.matches("::").count() + known.matches('<').count(), known.len()));
        near.truncate(3);
        if near.is_empty() {
            near = nearest(name, raw, 3);
        }
        if near.is_empty() {
            near = nearest(name, short.iter().map(AsRef::as_ref), 3);
        }
        SymbolError::NotFound { name: name.to_owned(), path: self.path.clone(), looked, nearest: near }
    }

    /// Where symbols were looked for, as a clause: `looked in .dynsym; no .symtab, …`. Of debug
    /// files that are not there, the first place stands for all.
    fn places(&self) -> String {
        let (mut looked, mut missing, mut absent_files) = (Vec::new(), Vec::new(), 0);
        for searched in &self.searched {
            match &searched.outcome {
                Outcome::Found(_) => looked.push(searched.place.clone()),
                Outcome::Absent if searched.is_file() => {
                    absent_files += 1;
                    if absent_files == 1 {
                        missing.push(searched.to_string());
                    }
                }
                _ => missing.push(searched.to_string()),
            }
        }
        let mut places = missing.join(", ");
        if absent_files > 1 {
            places += &format!(" nor in {} other places", absent_files - 1);
        }
        match (looked.is_empty(), places.is_empty()) {
            (true, _) => places,
            (false, true) => format!("looked in {}", looked.join(", ")),
            (false, false) => format!("looked in {}; {places}", looked.join(", ")),
        }
    }
}

/// Whether a name is another one behind a path: `ns::f` of C++ and Rust, `main.f` of Go. What GCC's
/// C++ library adds for its second ABI is no part of it.
fn is_in_path(known: &str, name: &str) -> bool {
    let known = known.find("[abi:").map_or(known, |at| &known[..at]);
    known == name && !name.is_empty()
        || known
            .strip_suffix(name)
            .is_some_and(|path| !name.is_empty() && (path.ends_with("::") || path.ends_with('.')))
}
