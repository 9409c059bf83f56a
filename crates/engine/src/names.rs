//! Names of run-time addresses.

use std::path::PathBuf;

use sidestep_isa::Va;
use sidestep_symbols::MappedObject;
use sidestep_sys::Process;

use crate::api::Options;
use crate::error::SessionError;
use crate::objects::Objects;

/// Looks names up in what a process has mapped.
pub(crate) struct Names {
    objects: Objects,
    mapped: Vec<MappedObject>,
}

impl Names {
    pub fn new(process: &Process, options: &Options) -> Result<Names, SessionError> {
        Ok(Names { objects: Objects::new(options), mapped: Objects::mapped(process)? })
    }

    /// The object, and the function with the offset in it.
    pub fn of(&mut self, process: &Process, at: Va) -> (Option<PathBuf>, Option<(String, u64)>) {
        let Some(mapped) = self.mapped.iter().find(|o| o.mappings.iter().any(|m| m.contains(at))) else {
            return (None, None);
        };
        let symbol = self.objects.load(process, mapped).ok().and_then(|loaded| {
            let (function, offset) = loaded.object.function_at(at.offset(-loaded.bias))?;
            Some((function.short_name().into_owned(), offset))
        });
        (Some(mapped.path.clone()), symbol)
    }
}

/// Names of addresses of a process, also after its end: what it had mapped is read while it is there.
pub struct Symbols {
    process: Process,
    options: Options,
    names: Names,
}

impl Symbols {
    /// Of a process that is there.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn new(pid: i32, options: &Options) -> Result<Symbols, SessionError> {
        let process = Process::look_at(pid)?;
        let mut names = Names::new(&process, options)?;
        for mapped in &names.mapped {
            // Opened now: it is kept. What is no usable object has no names.
            let _ = names.objects.load(&process, mapped);
        }
        Ok(Symbols { process, options: options.clone(), names })
    }

    /// The object, and the function with the offset in it.
    pub fn of(&mut self, at: u64) -> (Option<PathBuf>, Option<(String, u64)>) {
        let found = self.names.of(&self.process, Va(at));
        if found.0.is_some() {
            return found;
        }
        // A library that was loaded later.
        match Names::new(&self.process, &self.options) {
            Ok(names) if !names.mapped.is_empty() => {
                self.names.mapped = names.mapped;
                self.names.of(&self.process, Va(at))
            }
            _ => found,
        }
    }
}
