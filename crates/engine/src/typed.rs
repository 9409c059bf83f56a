//! Functions with the debug information of their objects.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;

use sidestep_isa::Va;
use sidestep_symbols::{DebugInfo, TypeError};
use sidestep_sys::Process;

use crate::api::{Options, Pattern};
use crate::error::SessionError;
use crate::objects::Objects;
use crate::resolve;

/// The debug information of objects, each read once, when something of it is asked for.
pub struct Typed {
    pids: Vec<i32>,
    objects: Objects,
    read: HashMap<PathBuf, Result<Rc<DebugInfo>, TypeError>>,
}

/// A function and where its types are described.
#[derive(Clone)]
pub struct TypedFunction {
    /// Its symbol.
    pub name: String,
    /// Its link-time address.
    pub va: Va,
    /// Path of its object.
    pub object: PathBuf,
    /// What describes its types.
    pub info: Result<Rc<DebugInfo>, TypeError>,
}

impl Typed {
    /// Of what processes have mapped, or of files if there are none. Reads nothing yet.
    #[must_use]
    pub fn new(pids: &[i32], options: &Options) -> Typed {
        Typed { pids: pids.to_vec(), objects: Objects::new(options), read: HashMap::new() }
    }

    /// The functions that a pattern means, in any of the processes.
    ///
    /// # Errors
    /// There is none.
    pub fn functions(&mut self, pattern: &Pattern) -> Result<Vec<TypedFunction>, SessionError> {
        let (mut found, mut error) = (Vec::new(), None);
        if self.pids.is_empty() {
            found = resolve::in_files(pattern, &mut self.objects)?;
        }
        for pid in &self.pids {
            let process = Process::open(*pid).map_err(SessionError::from);
            match process.and_then(|process| resolve::in_process(pattern, &process, &mut self.objects)) {
                Ok(more) => found.extend(more),
                Err(missing) => error = error.or(Some(missing)),
            }
        }
        if let Some(error) = error.filter(|_| found.is_empty()) {
            return Err(error);
        }
        let mut seen = HashSet::new();
        let place = |m: &resolve::Match| (m.object.path().to_owned(), m.va.unwrap_or(m.symbol_va), m.name.clone());
        let found = found.into_iter().filter(|m| seen.insert(place(m)));
        let typed = |m: resolve::Match| {
            let object = m.object.path().to_owned();
            let info = self.read.entry(object.clone()).or_insert_with(|| m.object.debug_info().map(Rc::new)).clone();
            let name = if m.raw.is_empty() { m.name } else { m.raw };
            TypedFunction { name, va: m.va.unwrap_or(m.symbol_va), object, info }
        };
        Ok(found.map(typed).collect())
    }
}
