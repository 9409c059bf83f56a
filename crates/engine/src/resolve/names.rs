//! Names of run-time addresses.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use sidestep_isa::Va;
use sidestep_symbols::inlined::{Lines, Place};
use sidestep_symbols::{MappedObject, Mapping};
use sidestep_sys::Process;

use crate::api::Options;
use crate::error::SessionError;
use crate::resolve::compiled::Compiled;
use crate::resolve::objects::{Loaded, Objects};
use crate::resolve::unnamed::function_at;

/// Names of the code to which signal handlers return: glibc's and musl's, the vDSO's, Go's.
const RESTORERS: [&str; 5] =
    ["__restore_rt", "__restore", "__kernel_rt_sigreturn", "__kernel_sigreturn", "runtime.sigreturn__sigaction"];

/// What is mapped is looked at again only so long afterwards for code with a name.
const RECENTLY: Duration = Duration::from_millis(500);

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
        let loaded = self.objects.load(process, mapped).ok();
        let symbol = loaded.and_then(|loaded| function(&loaded, at, &self.objects));
        (Some(mapped.path.clone()), symbol)
    }
}

/// Names of addresses in the processes of a session, also after their end. An address goes with the
/// number that tells what it means (`results::address_spaces`).
#[derive(Default)]
pub struct Symbols(Vec<(u32, Images)>, HashSet<PathBuf>);

/// What a process has mapped, looked at while it is there.
#[derive(Clone)]
pub(crate) struct Images {
    process: Process,
    objects: Rc<RefCell<Objects>>,
    loaded: Vec<(MappedObject, Option<Loaded>)>,
    /// Of objects that were asked for.
    lines: HashMap<PathBuf, Option<Rc<Lines>>>,
    /// When it was looked at.
    looked: Instant,
    /// Names of code that is in no object.
    compiled: Rc<RefCell<Compiled>>,
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
    /// Nothing is known?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what is known besides. Of two that mean the same the newer one is asked first.
    pub fn append(&mut self, mut more: Symbols) {
        more.0.append(&mut self.0);
        *self = more;
    }

    pub(crate) fn add(&mut self, number: u32, images: Images) {
        self.append(Symbols(vec![(number, images)], HashSet::new()));
    }

    /// The ones that have something there; they look again at what is mapped if nobody has.
    fn at(&mut self, number: u32, at: Va) -> Option<&mut Images> {
        let has = |(of, images): &(u32, Images)| *of == number && images.find(at).is_some();
        // What is mapped is not read for each address that the process has a name for.
        let is_compiled = |(of, images): &(u32, Images)| {
            *of == number && images.looked.elapsed() < RECENTLY && images.compiled.borrow_mut().find(at).is_some()
        };
        if !self.0.iter().any(|known| has(known) || is_compiled(known)) {
            // A library that was loaded later, perhaps.
            for (_, images) in self.0.iter_mut().filter(|(of, images)| *of == number && images.process.is_alive()) {
                let _ = images.look();
            }
        }
        self.0.iter_mut().find(|known| has(known)).map(|(_, images)| images)
    }

    /// What is at an address of a stack, innermost first: functions that were inlined come before
    /// the one that is there. `called`: it is a return address, so that the call in front of it is
    /// meant. `lines`: as DWARF knows it, which may have to be read first; without it there is one
    /// frame.
    pub fn frames(&mut self, number: u32, at: u64, called: bool, lines: bool) -> Vec<Frame> {
        let frames = match self.at(number, Va(at)) {
            Some(images) => images.frames(at, called, lines),
            None if called => self.at(number, Va(at - 1)).map_or_else(Vec::new, |i| i.frames(at, called, lines)),
            None => Vec::new(),
        };
        if frames.iter().any(|frame| frame.symbol.is_some()) {
            return frames;
        }
        let (back, object) = (u64::from(called), frames.first().and_then(|frame| frame.object.clone()));
        match self.compiled(number, Va(at - back)) {
            Some((path, (name, offset))) => vec![Frame {
                object: object.or(path),
                symbol: Some((name, offset + back)),
                line: None,
                inlined: false,
                interrupted: false,
            }],
            None => frames,
        }
    }

    /// What the process itself says of an address: the file that says it, the function and the
    /// offset in it.
    fn compiled(&self, number: u32, at: Va) -> Option<(Option<PathBuf>, (String, u64))> {
        self.0.iter().filter(|(of, _)| *of == number).find_map(|(_, images)| {
            let mut compiled = images.compiled.borrow_mut();
            let symbol = compiled.find(at)?;
            Some((compiled.path(), symbol))
        })
    }

    /// What was not found of the objects that frames are in, each file once: clauses.
    pub fn missing(&mut self) -> Vec<String> {
        let known = &mut self.1;
        let all = self.0.iter().flat_map(|(_, images)| &images.lines);
        let clause = |(path, lines): (&PathBuf, &Option<Rc<Lines>>)| {
            let missing = lines.as_ref()?.missing()?;
            let is_new = known.insert(path.clone());
            is_new.then(|| format!("the debug information of {} is split, and {missing}", path.display()))
        };
        all.filter_map(clause).collect()
    }

    /// The build id of the object at an address, in hexadecimal digits, and the offset in its file.
    /// `None`: it has none.
    pub fn build_id(&mut self, number: u32, at: u64) -> Option<(String, u64)> {
        self.at(number, Va(at))?.build_id(at)
    }

    /// The object, and the function with the offset in it.
    pub fn of(&mut self, number: u32, at: u64) -> (Option<PathBuf>, Option<(String, u64)>) {
        let (object, symbol) = self.at(number, Va(at)).map(|images| images.of(at)).unwrap_or_default();
        let compiled = if symbol.is_none() { self.compiled(number, Va(at)) } else { None };
        match compiled {
            Some((path, symbol)) => (object.or(path), Some(symbol)),
            None => (object, symbol),
        }
    }

    /// The variable around an address, and the offset in it.
    #[must_use]
    pub fn variable(&self, number: u32, at: u64) -> Option<(String, u64)> {
        self.0.iter().filter(|(of, _)| *of == number).find_map(|(_, images)| images.variable(at))
    }
}

impl Images {
    /// Of a process that is there.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn new(pid: i32, objects: &Rc<RefCell<Objects>>) -> Result<Images, SessionError> {
        let (process, objects) = (Process::look_at(pid)?, objects.clone());
        let compiled = objects.borrow_mut().compiled(&process);
        let (loaded, lines, looked) = (Vec::new(), HashMap::new(), Instant::now());
        let mut images = Images { process, objects, loaded, lines, looked, compiled };
        images.look()?;
        Ok(images)
    }

    /// Looks again at what is mapped. What was there before is still known, unless something else
    /// has its place.
    pub fn look(&mut self) -> Result<(), SessionError> {
        self.looked = Instant::now();
        let mapped = Objects::mapped(&self.process)?;
        let mut objects = self.objects.borrow_mut();
        // What is no usable object has no names.
        let one = |mapped: MappedObject| {
            let loaded = objects.load(&self.process, &mapped).ok();
            (mapped, loaded)
        };
        let before = std::mem::replace(&mut self.loaded, mapped.into_iter().map(one).collect());
        let now = |m: &Mapping| {
            self.loaded.iter().flat_map(|(now, _)| &now.mappings).any(|n| n.start < m.end && m.start < n.end)
        };
        let gone: Vec<_> = before.into_iter().filter(|(mapped, _)| !mapped.mappings.iter().any(now)).collect();
        self.loaded.extend(gone);
        Ok(())
    }

    /// Those that are usable objects.
    pub fn images(&self) -> impl Iterator<Item = (&Path, &Loaded)> {
        self.loaded.iter().filter_map(|(mapped, loaded)| Some((&*mapped.path, loaded.as_ref()?)))
    }

    fn find(&self, at: Va) -> Option<&(MappedObject, Option<Loaded>)> {
        self.loaded.iter().find(|(mapped, _)| mapped.mappings.iter().any(|m| m.contains(at)))
    }

    fn frames(&mut self, at: u64, called: bool, lines: bool) -> Vec<Frame> {
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
            let (path, lines) = (mapped.path.clone(), loaded.object.lines().map(Rc::new));
            self.lines.insert(path, lines);
        }
        let Some((mapped, _)) = self.find(at) else { return Vec::new() };
        self.lines.get(&mapped.path).and_then(Option::as_ref).map_or_else(Vec::new, |lines| lines.at(va))
    }

    fn build_id(&self, at: u64) -> Option<(String, u64)> {
        let (mapped, loaded) = self.find(Va(at))?;
        let mapping = mapped.mappings.iter().find(|mapping| mapping.contains(Va(at)))?;
        let id = loaded.as_ref()?.object.build_id()?;
        let digits = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Some((digits, Va(at).since(mapping.start) as u64 + mapping.offset.0))
    }

    /// Where an object's variables lie is no mapping of its file, if they are zero at first.
    fn variable(&self, at: u64) -> Option<(String, u64)> {
        self.images().find_map(|(_, loaded)| {
            let (name, offset) = loaded.object.variable_at(Va(at).offset(-loaded.bias))?;
            Some((name.to_owned(), offset))
        })
    }

    fn of(&self, at: u64) -> (Option<PathBuf>, Option<(String, u64)>) {
        let Some((mapped, loaded)) = self.find(Va(at)) else { return (None, None) };
        let symbol = loaded.as_ref().and_then(|loaded| function(loaded, Va(at), &self.objects.borrow()));
        (Some(mapped.path.clone()), symbol)
    }
}

/// The function around a run-time address, and the offset in it.
fn function(loaded: &Loaded, at: Va, objects: &Objects) -> Option<(String, u64)> {
    function_at(&loaded.object, at.offset(-loaded.bias), &mut objects.analyses.borrow_mut())
}
