//! Where the kernel puts its own probes for a pattern: files and offsets instead of addresses.

use std::path::PathBuf;
use std::rc::Rc;

use sidestep_isa::FileOff;
use sidestep_symbols::usdt::Probe;
use sidestep_sys::Process;

use crate::api::{Options, Pattern};
use crate::error::SessionError;
use crate::resolve::in_process;
use crate::resolve::objects::Objects;

/// A process that the kernel is to probe.
pub struct Files {
    process: Process,
    objects: Objects,
}

/// A place of a file that is mapped in a process.
#[derive(Clone, Debug)]
pub struct Place {
    /// Symbol name, demangled.
    pub name: String,
    /// The file as we see it.
    pub file: PathBuf,
    /// Where in the file.
    pub offset: FileOff,
    /// Where in the file the semaphore of a USDT site is.
    pub semaphore: Option<FileOff>,
    /// The USDT probe that it is a site of.
    pub usdt: Option<Rc<Probe>>,
}

impl Files {
    /// Opens a process.
    ///
    /// # Errors
    /// If there is none, or it is not ours to probe.
    pub fn open(pid: i32, options: &Options) -> Result<Files, SessionError> {
        Ok(Files { process: Process::open(pid)?, objects: Objects::new(options) })
    }

    /// The places that a pattern means; instead of one, a clause for the user why it has none.
    ///
    /// # Errors
    /// If nothing matches.
    pub fn places(&mut self, pattern: &Pattern) -> Result<Vec<Result<Place, String>>, SessionError> {
        let mapped = Objects::mapped(&self.process)?;
        let found = in_process(pattern, &self.process, &mut self.objects)?;
        let place = |m: crate::resolve::Match| {
            let file = mapped.iter().find(|object| object.path == m.object.path());
            let file = file.map(|object| Objects::file(&self.process, object)).ok_or("its file is not mapped any more");
            let offset = m.va.and_then(|va| m.object.offset_of(va).ok_or("it is not in the file"));
            let refused = |reason| format!("{}: {reason}", m.name);
            Ok(Place {
                offset: offset.map_err(refused)?,
                file: file.map_err(refused)?,
                semaphore: m.usdt.as_ref().and_then(|probe| m.object.offset_of(probe.semaphore?)),
                usdt: m.usdt,
                name: m.name,
            })
        };
        Ok(found.into_iter().map(place).collect())
    }

    /// Is the process still there?
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }
}
