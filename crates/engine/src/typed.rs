//! Functions with the debug information of their objects.

use std::collections::HashMap;
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
    pid: Option<i32>,
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
    /// Of what a process has mapped, or of files. Reads nothing yet.
    #[must_use]
    pub fn new(pid: Option<i32>, options: &Options) -> Typed {
        Typed { pid, objects: Objects::new(options), read: HashMap::new() }
    }

    /// The functions that a pattern means.
    ///
    /// # Errors
    /// There is none.
    pub fn functions(&mut self, pattern: &Pattern) -> Result<Vec<TypedFunction>, SessionError> {
        let found = match self.pid {
            Some(pid) => resolve::in_process(pattern, &Process::open(pid)?, &mut self.objects)?,
            None => resolve::in_files(pattern, &mut self.objects)?,
        };
        let typed = |m: resolve::Match| {
            let object = m.object.path().to_owned();
            let name = if m.raw.is_empty() { m.name } else { m.raw };
            // Without a process nobody knows which code an indirect function has; its symbol is the resolver's.
            let info = match m.va {
                Ok(_) => self.read.entry(object.clone()).or_insert_with(|| m.object.debug_info().map(Rc::new)).clone(),
                Err(_) => Err(TypeError::Indirect { name: name.clone() }),
            };
            TypedFunction { name, va: m.va.unwrap_or(m.symbol_va), object, info }
        };
        Ok(found.into_iter().map(typed).collect())
    }
}
