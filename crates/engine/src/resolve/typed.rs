//! Functions with the debug information of their objects.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;

use sidestep_isa::Va;
use sidestep_symbols::{DebugInfo, MappedObject, Object, TypeError, resolve_object};
use sidestep_sys::Process;

use crate::api::{Options, Pattern};
use crate::error::SessionError;
use crate::resolve;
use crate::resolve::objects::Objects;

/// The debug information of objects, each read once, when something of it is asked for.
pub struct Typed {
    pids: Vec<i32>,
    objects: Objects,
    read: HashMap<PathBuf, Result<Rc<DebugInfo>, TypeError>>,
}

/// What an object says of its types.
pub type DebugInfoOf = Result<Rc<DebugInfo>, TypeError>;

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

/// Whether a function knows its goroutine.
#[derive(Clone, Debug)]
pub struct Goroutine {
    /// Path of its object.
    pub object: PathBuf,
    /// Its name.
    pub name: String,
    /// Why it does not.
    pub known: Result<(), NoGoroutine>,
}

/// Why there is no number of a goroutine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoGoroutine {
    /// The object is no program of Go.
    NotGo,
    /// The function is C or assembly.
    NotGoCode,
    /// It is of a Go that is not known, and without debug information.
    Version,
}

impl Typed {
    /// Of what processes have mapped, or of files if there are none. Reads nothing yet.
    #[must_use]
    pub fn new(pids: &[i32], options: &Options) -> Typed {
        Typed { pids: pids.to_vec(), objects: Objects::new(options), read: HashMap::new() }
    }

    /// What a pattern means in any of the processes, each once.
    fn matches(&mut self, pattern: &Pattern) -> Result<Vec<resolve::Match>, SessionError> {
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
        found.retain(|m| seen.insert((m.object.path().to_owned(), m.va.unwrap_or(m.symbol_va), m.name.clone())));
        Ok(found)
    }

    /// The debug information of objects by their names; without any, of all that the processes have
    /// mapped.
    ///
    /// # Errors
    /// There is no such object or process.
    pub fn objects(&mut self, names: &[String]) -> Result<Vec<(PathBuf, DebugInfoOf)>, SessionError> {
        let (mut found, mut missing): (Vec<Rc<Object>>, _) = (Vec::new(), None);
        if self.pids.is_empty() {
            for name in names {
                found.push(self.objects.open_file(&resolve::file(name)?)?);
            }
        }
        for pid in &self.pids {
            let process = Process::open(*pid)?;
            let mapped = Objects::mapped(&process)?;
            let mut wanted: Vec<&MappedObject> = mapped.iter().collect();
            if !names.is_empty() {
                wanted.clear();
                for name in names {
                    let one = resolve_object(name, &mapped).first().copied();
                    match one {
                        Some(one) => wanted.push(one),
                        None => missing = missing.or_else(|| Some(resolve::no_object(name, *pid))),
                    }
                }
            }
            for one in wanted {
                // What is no object that can be read describes nothing.
                let Ok(loaded) = self.objects.load(&process, one) else { continue };
                if !found.iter().any(|known| known.path() == loaded.object.path()) {
                    found.push(loaded.object);
                }
            }
        }
        if let Some(missing) = missing.filter(|_| found.is_empty()) {
            return Err(missing);
        }
        let described = |object: Rc<Object>| (object.path().to_owned(), object.debug_info().map(Rc::new));
        Ok(found.into_iter().map(described).collect())
    }

    /// The bytes of what a symbol names in the objects that a pattern means; `None`: one does not
    /// have it.
    ///
    /// # Errors
    /// The pattern means nothing.
    pub fn symbol(&mut self, pattern: &Pattern, name: &str) -> Result<Vec<(PathBuf, Option<u64>)>, SessionError> {
        let mut found: Vec<(PathBuf, Option<u64>)> = Vec::new();
        for matched in self.matches(pattern)? {
            let path = matched.object.path();
            if !found.iter().any(|(known, _)| known == path) {
                found.push((path.to_owned(), matched.object.symbol(name).map(|(_, size)| size.0)));
            }
        }
        Ok(found)
    }

    /// Whether the functions that a pattern means know their goroutines.
    ///
    /// # Errors
    /// The pattern means nothing.
    pub fn goroutines(&mut self, pattern: &Pattern) -> Result<Vec<Goroutine>, SessionError> {
        let mut offsets: HashMap<PathBuf, bool> = HashMap::new();
        let mut one = |matched: resolve::Match| {
            let (object, name) = (matched.object.path().to_owned(), matched.name);
            let known = match matched.object.is_go_code(matched.va.unwrap_or(matched.symbol_va)) {
                false if matched.object.is_go() => Err(NoGoroutine::NotGoCode),
                false => Err(NoGoroutine::NotGo),
                true => {
                    match *offsets.entry(object.clone()).or_insert_with(|| matched.object.goid_offset().is_some()) {
                        true => Ok(()),
                        false => Err(NoGoroutine::Version),
                    }
                }
            };
            Goroutine { object, name, known }
        };
        Ok(self.matches(pattern)?.into_iter().map(&mut one).collect())
    }

    /// The functions that a pattern means, in any of the processes.
    ///
    /// # Errors
    /// There is none.
    pub fn functions(&mut self, pattern: &Pattern) -> Result<Vec<TypedFunction>, SessionError> {
        let found = self.matches(pattern)?;
        let typed = |m: resolve::Match| {
            let object = m.object.path().to_owned();
            let name = if m.raw.is_empty() { m.name } else { m.raw };
            // Without a process nobody knows which code an indirect function has; its symbol is the
            // resolver's.
            let info = match m.va {
                Ok(_) => self.read.entry(object.clone()).or_insert_with(|| m.object.debug_info().map(Rc::new)).clone(),
                Err(_) => Err(TypeError::Indirect { name: name.clone() }),
            };
            TypedFunction { name, va: m.va.unwrap_or(m.symbol_va), object, info }
        };
        Ok(found.into_iter().map(typed).collect())
    }
}
