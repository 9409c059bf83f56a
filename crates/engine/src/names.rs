//! Names of run-time addresses.

use std::path::{Path, PathBuf};

use sidestep_isa::Va;
use sidestep_symbols::MappedObject;
use sidestep_sys::Process;

use crate::api::Options;
use crate::error::SessionError;
use crate::objects::{Loaded, Objects};

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
        let symbol = self.objects.load(process, mapped).ok().and_then(|loaded| function(&loaded, at));
        (Some(mapped.path.clone()), symbol)
    }
}

/// Names of addresses of a process, also after its end: what it has mapped is looked at while it is there. Of several
/// processes, an address that one has not mapped is looked up in the next.
pub struct Symbols {
    process: Process,
    objects: Objects,
    loaded: Vec<(MappedObject, Option<Loaded>)>,
    /// Of other processes.
    others: Vec<Symbols>,
}

impl Symbols {
    /// Of a process that is there.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn new(pid: i32, options: &Options) -> Result<Symbols, SessionError> {
        let mut symbols = Symbols {
            process: Process::look_at(pid)?,
            objects: Objects::new(options),
            loaded: Vec::new(),
            others: Vec::new(),
        };
        symbols.look()?;
        Ok(symbols)
    }

    /// Adds those of another process.
    pub(crate) fn also(&mut self, other: Symbols) {
        self.others.push(other);
    }

    /// Looks again at what is mapped.
    pub(crate) fn look(&mut self) -> Result<(), SessionError> {
        let mapped = Objects::mapped(&self.process)?;
        // What is no usable object has no names.
        let one = |mapped: MappedObject| {
            let loaded = self.objects.load(&self.process, &mapped).ok();
            (mapped, loaded)
        };
        self.loaded = mapped.into_iter().map(one).collect();
        Ok(())
    }

    /// The images that are usable objects.
    pub(crate) fn images(&self) -> impl Iterator<Item = (&Path, &Loaded)> {
        self.loaded.iter().filter_map(|(mapped, loaded)| Some((&*mapped.path, loaded.as_ref()?)))
    }

    fn find(&self, at: Va) -> Option<&(MappedObject, Option<Loaded>)> {
        self.loaded.iter().find(|(mapped, _)| mapped.mappings.iter().any(|m| m.contains(at)))
    }

    /// The object, and the function with the offset in it.
    pub fn of(&mut self, at: u64) -> (Option<PathBuf>, Option<(String, u64)>) {
        let at = Va(at);
        if self.find(at).is_none() && self.process.is_alive() {
            // A library that was loaded later, perhaps.
            let _ = self.look();
        }
        let Some((mapped, loaded)) = self.find(at) else {
            let found = self.others.iter_mut().map(|other| other.of(at.0)).find(|(object, _)| object.is_some());
            return found.unwrap_or_default();
        };
        (Some(mapped.path.clone()), loaded.as_ref().and_then(|loaded| function(loaded, at)))
    }
}

/// The function around a run-time address, and the offset in it.
fn function(loaded: &Loaded, at: Va) -> Option<(String, u64)> {
    let (function, offset) = loaded.object.function_at(at.offset(-loaded.bias))?;
    Some((function.short_name().into_owned(), offset))
}
