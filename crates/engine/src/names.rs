//! Names of run-time addresses.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use sidestep_isa::Va;
use sidestep_symbols::MappedObject;
use sidestep_symbols::inlined::{Lines, Place};
use sidestep_sys::Process;

use crate::api::Options;
use crate::error::SessionError;
use crate::objects::{Loaded, Objects};

/// Names of the code to which signal handlers return: glibc's and musl's, the vDSO's, Go's.
const RESTORERS: [&str; 5] =
    ["__restore_rt", "__restore", "__kernel_rt_sigreturn", "__kernel_sigreturn", "runtime.sigreturn__sigaction"];

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
    /// Of objects that were asked for.
    lines: HashMap<PathBuf, Option<Lines>>,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Path of the object that the code is in.
    pub object: Option<PathBuf>,
    /// The function, and the offset in it; 0 if it is inlined.
    pub symbol: Option<(String, u64)>,
    /// The source file and the line, from 1.
    pub line: Option<(String, u32)>,
    /// The function is a part of the next one.
    pub inlined: bool,
    /// A signal handler returns here: the address of the next frame is not behind a call.
    pub interrupted: bool,
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
            lines: HashMap::new(),
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

    /// What is at an address of a stack, innermost first: functions that were inlined come before the one that is there.
    /// `called`: it is a return address, so that the call in front of it is meant. `lines`: as DWARF knows it, which
    /// may have to be read first; without it there is one frame.
    pub fn frames(&mut self, at: u64, called: bool, lines: bool) -> Vec<Frame> {
        let (object, symbol) = self.of(at);
        if let Some((name, 0)) = &symbol {
            if RESTORERS.contains(&&**name) {
                return vec![Frame { object, symbol, line: None, inlined: false, interrupted: true }];
            }
        }
        let (object, symbol) = if called { self.of(at - 1) } else { (object, symbol) };
        let symbol = symbol.map(|(name, offset)| (name, offset + u64::from(called)));
        let mut places = if lines { self.places(Va(at - u64::from(called))) } else { Vec::new() };
        let line = places.pop().and_then(|place| place.line);
        let inlined = |place: Place| Frame {
            object: object.clone(),
            symbol: Some((place.function.unwrap_or_else(|| "??".into()), 0)),
            line: place.line,
            inlined: true,
            interrupted: false,
        };
        let mut frames: Vec<Frame> = places.into_iter().map(inlined).collect();
        frames.push(Frame { object, symbol, line, inlined: false, interrupted: false });
        frames
    }

    fn places(&mut self, at: Va) -> Vec<Place> {
        let Some((mapped, Some(loaded))) = self.find(at) else { return Vec::new() };
        let va = at.offset(-loaded.bias);
        if !self.lines.contains_key(&mapped.path) {
            let file = Objects::file(&self.process, mapped);
            // What a process that has ended had mapped is looked for where everybody sees it.
            let files = [&*file, &*mapped.path].into_iter().chain(loaded.object.debug_files());
            let (path, lines) = (mapped.path.clone(), files.into_iter().find_map(Lines::open));
            self.lines.insert(path, lines);
        }
        let Some((mapped, _)) = self.find(at) else { return Vec::new() };
        self.lines.get(&mapped.path).and_then(Option::as_ref).map_or_else(Vec::new, |lines| lines.at(va))
    }

    /// The build id of the object at an address, in hexadecimal digits, and the offset in its file. `None`: it has none.
    pub fn build_id(&mut self, at: u64) -> Option<(String, u64)> {
        let va = Va(at);
        if self.find(va).is_none() && self.process.is_alive() {
            let _ = self.look();
        }
        match self.find(va) {
            Some((mapped, loaded)) => {
                let mapping = mapped.mappings.iter().find(|mapping| mapping.contains(va))?;
                let id = loaded.as_ref()?.object.build_id()?;
                let digits = id.iter().map(|byte| format!("{byte:02x}")).collect();
                Some((digits, va.since(mapping.start) as u64 + mapping.offset.0))
            }
            None => self.others.iter_mut().find_map(|other| other.build_id(at)),
        }
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
