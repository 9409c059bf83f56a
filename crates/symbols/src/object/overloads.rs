//! Functions of C++ that have one name, and differ in their parameters.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::Object;
use crate::demangle;
use crate::function::Function;

/// So many names are looked for one by one. For more, those of all functions are read at once.
const FEW: usize = 16;

/// Which names without parameters several functions have.
#[derive(Debug, Default)]
pub(super) struct Overloads {
    /// Those that were asked for.
    few: Mutex<HashMap<String, bool>>,
    all: OnceLock<HashSet<String>>,
}

impl Object {
    /// The name of one of its functions, as users read it: [`Function::short_name`], with
    /// parameters where another function of the object has the same short name.
    #[must_use]
    pub fn shown_name<'f>(&self, function: &'f Function) -> Cow<'f, str> {
        let short = function.short_name();
        let is_cpp = demangle::is_mangled(&function.name) && !demangle::is_rust(&function.name);
        if !is_cpp || !self.is_overloaded(&function.name, &short) {
            return short;
        }
        function.demangled().map_or(short, Cow::Owned)
    }

    fn is_overloaded(&self, raw: &str, short: &str) -> bool {
        let overloads = &self.overloads;
        let mut few = overloads.few.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = few.get(short) {
            return *known;
        }
        if few.len() >= FEW {
            return overloads.all.get_or_init(|| self.all_overloads()).contains(short);
        }
        // The mangled names of all of them have the same name in front of their parameters.
        let needle = needle(short).filter(|needle| raw.contains(needle)).unwrap_or_default();
        let same = |f: &&Function| f.name.contains(&needle) && demangle::short(&f.name).as_deref() == Some(short);
        let names: HashSet<_> = self.functions.iter().filter(same).map(Function::demangled).collect();
        few.insert(short.to_owned(), names.len() > 1);
        names.len() > 1
    }

    fn all_overloads(&self) -> HashSet<String> {
        let (mut first, mut overloaded) = (HashMap::new(), HashSet::new());
        for function in &self.functions {
            if demangle::is_rust(&function.name) {
                continue;
            }
            let Some(short) = demangle::short(&function.name) else { continue };
            let known: &Function = first.entry(short.clone()).or_insert(function);
            if known.name != function.name && known.demangled() != function.demangled() {
                overloaded.insert(short);
            }
        }
        overloaded
    }
}

/// The first name in a path, as it is mangled; `None`: it may be mangled in another way.
fn needle(short: &str) -> Option<String> {
    let path = &short[..short.find(['<', '(', '[']).unwrap_or(short.len())];
    let name = path.rsplit("::").find(|name| !name.is_empty())?;
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_plain.then(|| format!("{}{name}", name.len()))
}
