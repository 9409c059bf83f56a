//! The objects of a process (or of the file system), opened once and kept.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use sidestep_isa::object::Bytes;
use sidestep_isa::{Isa, Va};
use sidestep_plan::thunk::SyscallEntry;
use sidestep_symbols::{
    DebugSearch, Executable, MappedObject, Mapping, Object, ObjectError, mapped_objects, parse_maps, with_members,
    zip::{self, Members},
};
use sidestep_sys::{Process, arch};

use crate::api::Options;
use crate::error::{SessionError, unreadable};
use crate::resolve::analyses;
use crate::resolve::compiled::Compiled;

/// An object in a process.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub object: Rc<Object>,
    /// Run-time minus link-time address.
    pub bias: i64,
    /// Run-time range of its image.
    pub range: Range<u64>,
    /// The file that it was mapped from: inode number, 0 = none.
    pub inode: u64,
    /// Parts of the file that the process has mapped a second time, apart from the image, to
    /// execute them there (V8 does).
    copied: Vec<Range<u64>>,
}

impl Loaded {
    /// Does the process execute this code somewhere else, too, where a probe in the image would not
    /// be hit?
    pub fn is_copied(&self, va: Va) -> bool {
        !self.copied.is_empty()
            && self.object.offset_of(va).is_some_and(|at| self.copied.iter().any(|part| part.contains(&at.0)))
    }
}

/// The run-time range of an object with this distance of run-time and link-time addresses.
pub(crate) fn image(object: &Object, bias: i64) -> Range<u64> {
    let segments = object.segments();
    let end = segments.iter().map(|s| s.va.plus(s.size).offset(bias).0).max();
    segments.iter().map(|s| s.va.offset(bias).0).min().unwrap_or(0)..end.unwrap_or(0)
}

/// The code that the kernel maps into each process. It is no file: what is there is what it says.
pub(crate) fn vdso(process: &Process) -> Option<Loaded> {
    let maps = process.maps().ok()?;
    let mapping = maps.iter().find(|mapping| mapping.name == *"[vdso]")?;
    let mut bytes = vec![0; (mapping.end.0 - mapping.start.0) as usize];
    process.read(mapping.start, &mut bytes).ok()?;
    let nowhere = DebugSearch { roots: Vec::new(), dirs: Vec::new() };
    let object = Object::from_bytes(Path::new("[vdso]"), bytes, &nowhere).ok()?;
    let bias = mapping.start.0 as i64;
    let range = image(&object, bias);
    Some(Loaded { object: Rc::new(object), bias, range, inode: 0, copied: Vec::new() })
}

/// How the process enters the kernel, where signal handlers return through the vDSO: it has what
/// the CPU and the kernel are good for. A vDSO that somebody has changed is not relied on.
pub(crate) fn syscall_entry(process: &Process) -> SyscallEntry {
    let code = || {
        let vdso = vdso(process)?;
        let (va, _) = vdso.object.symbol("__kernel_vsyscall")?;
        let mut code = [0; 16];
        process.read(va.offset(vdso.bias), &mut code).ok()?;
        Some(code)
    };
    let code = if arch::RETURNS_IN_VDSO { code() } else { None };
    code.map_or(SyscallEntry::default(), |code| SyscallEntry::of(&code))
}

/// Opens objects, each file once.
pub(crate) struct Objects {
    /// [`Options::filter`]
    pub filter: Option<String>,
    debug_dirs: Vec<PathBuf>,
    open: HashMap<(PathBuf, Version), Rc<Object>>,
    /// Files in whose code something that was looked for is not.
    without: HashSet<(PathBuf, Version)>,
    /// Their indices.
    pub analyses: analyses::Shared,
    /// Names that processes have written: by process id and start time.
    compiled: HashMap<(i32, u64), Rc<RefCell<Compiled>>>,
}

/// Which file it is, as somebody has written it: device, inode, bytes, time of the last write in
/// seconds and nanoseconds.
type Version = (u64, u64, u64, i64, i64);

/// Of a member of an archive, that of the archive.
fn metadata(file: &Path) -> std::io::Result<std::fs::Metadata> {
    match zip::split(file) {
        Some((archive, _)) => archive.metadata(),
        None => file.metadata(),
    }
}

fn version(file: &Path) -> Version {
    metadata(file).map_or(Version::default(), |m| (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()))
}

impl Objects {
    pub fn new(options: &Options) -> Objects {
        Objects {
            filter: options.filter.clone(),
            debug_dirs: options.debug_dirs.clone(),
            open: HashMap::new(),
            without: HashSet::new(),
            analyses: analyses::Shared::default(),
            compiled: HashMap::new(),
        }
    }

    /// The names of the code that a process has compiled at run time.
    pub fn compiled(&mut self, process: &Process) -> Rc<RefCell<Compiled>> {
        let key = (process.pid(), process.start_time());
        let names = self.compiled.entry(key).or_insert_with(|| Rc::new(RefCell::new(Compiled::new(process))));
        Rc::clone(names)
    }

    /// An object in the file system.
    pub fn open_file(&mut self, path: &Path) -> Result<Rc<Object>, SessionError> {
        self.open_at(path, path, &self.search(None))
    }

    /// A file as a process sees it, if that has it, else as we do.
    pub fn open_in(&mut self, process: &Process, path: &Path) -> Result<Rc<Object>, SessionError> {
        let theirs = path.strip_prefix("/").map(|path| process.root().join(path)).unwrap_or_default();
        let file = if metadata(&theirs).is_ok() { &theirs } else { path };
        self.open_at(path, file, &self.search(Some(process.root())))
    }

    /// The mapped files of a process, main program first. Files that are no usable objects are left
    /// out.
    pub fn mapped(process: &Process) -> Result<Vec<MappedObject>, SessionError> {
        let text = process.maps_text().map_err(|source| unreadable(process, source))?;
        let mappings = parse_maps(&String::from_utf8_lossy(&text));
        let objects = mapped_objects(&mappings, process.exe().ok().as_deref());
        Ok(with_members(objects, |object| Members::of(&Objects::file(process, object))))
    }

    /// Opens a mapped object, in the mount namespace of the process.
    pub fn load(&mut self, process: &Process, mapped: &MappedObject) -> Result<Loaded, SessionError> {
        let inode = first(mapped).map_or(0, |m| m.inode);
        let file = Objects::file(process, mapped);
        let object = self.open_at(&mapped.path, &file, &self.search(Some(process.root())))?;
        // An emulator maps the programs that it runs.
        if !arch::ISAS.contains(&object.isa()) {
            let what = "of another instruction set than the process".to_owned();
            return Err(ObjectError::Unsupported { path: mapped.path.clone(), what }.into());
        }
        // An image is there from its start on, also if there are two (`dlmopen`).
        let is_image = |bias: i64| mapped.mappings.iter().any(|m| m.contains(Va(image(&object, bias).start)));
        let biases = || mapped.executable().filter_map(|m| object.load_bias(m));
        let bias = biases().find(|bias| is_image(*bias)).or_else(|| biases().next()).unwrap_or(0);
        let range = image(&object, bias);
        let apart = |m: &&Mapping| object.load_bias(m).is_some_and(|b| b != bias && !is_image(b));
        let part = |m: &Mapping| m.offset.0..m.offset.0 + m.end.since(m.start) as u64;
        let copied = mapped.executable().filter(apart).map(part).collect();
        Ok(Loaded { object, bias, range, inode, copied })
    }

    /// As [`Objects::load`], unless the code of the file, which costs little to read, has not what
    /// is looked for: always the same.
    pub fn load_if(
        &mut self,
        process: &Process,
        mapped: &MappedObject,
        has: impl FnOnce(Isa, &[Bytes<'_>]) -> bool,
    ) -> Option<Loaded> {
        let file = Objects::file(process, mapped);
        let key = (mapped.path.clone(), version(&file));
        if self.without.contains(&key) {
            return None;
        }
        if !self.open.contains_key(&key) && Executable::read(&file).is_ok_and(|code| !has(code.isa(), &code.bytes())) {
            self.without.insert(key);
            return None;
        }
        self.load(process, mapped).ok()
    }

    /// The file of a mapped object, as we see it.
    pub fn file(process: &Process, mapped: &MappedObject) -> PathBuf {
        let inode = first(mapped).map_or(0, |m| m.inode);
        let is_it = |file: &Path| metadata(file).is_ok_and(|m| m.ino() == inode);
        let theirs = process.root().join(mapped.path.strip_prefix("/").unwrap_or(&mapped.path));
        match (mapped.deleted, first(mapped)) {
            (true, Some(m)) => map_file(process.pid(), m),
            // The kernel names files as seen by whoever asks: after a chroot without a mount
            // namespace that is us.
            _ if !is_it(&theirs) && is_it(&mapped.path) => mapped.path.clone(),
            _ => theirs,
        }
    }

    fn search(&self, root: Option<PathBuf>) -> DebugSearch {
        let mut search = DebugSearch::default();
        if let Some(root) = root {
            search.roots.insert(0, root);
        }
        search.dirs.splice(0..0, self.debug_dirs.iter().cloned());
        search
    }

    fn open_at(&mut self, path: &Path, file: &Path, search: &DebugSearch) -> Result<Rc<Object>, SessionError> {
        let key = (path.to_owned(), version(file));
        if let Some(object) = self.open.get(&key) {
            return Ok(Rc::clone(object));
        }
        let object = Rc::new(Object::open_at(path, file, search)?);
        self.open.insert(key, Rc::clone(&object));
        Ok(object)
    }
}

/// A mapping that tells which file it is.
fn first(mapped: &MappedObject) -> Option<&Mapping> {
    mapped.executable().next().or(mapped.mappings.first())
}

fn map_file(pid: i32, m: &Mapping) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", m.start.0, m.end.0))
}
