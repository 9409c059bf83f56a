//! Which object a name means: a path or a short library name (`libc`, `c`, `libssl.so.3`), in a
//! process or in the file system.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sidestep_isa::FileOff;

use crate::maps::Mapping;
use crate::zip::{self, Part};

/// A file that a process executes code of, with all mappings of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedObject {
    /// Its path in the mount namespace of the process.
    pub path: PathBuf,
    /// The file is unlinked: the path may lead to another one. `/proc/PID/map_files/START-END` is
    /// still the right one.
    pub deleted: bool,
    /// Its mappings, ascending. More than one executable one is possible: code that was split by
    /// `mprotect`, or the same file loaded twice (`dlmopen`); then [`crate::Object::load_bias`]
    /// differs.
    pub mappings: Vec<Mapping>,
}

impl MappedObject {
    /// The executable mappings.
    pub fn executable(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter().filter(|m| m.execute)
    }

    /// The name of its file, without the folder.
    #[must_use]
    pub fn base_name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or("")
    }
}

/// The objects of a process: files with at least one executable mapping. The main program first
/// (`exe` is the target of `/proc/PID/exe`; without it, the lowest mapping), then by address.
#[must_use]
pub fn mapped_objects(mappings: &[Mapping], exe: Option<&Path>) -> Vec<MappedObject> {
    let mut objects: Vec<MappedObject> = Vec::new();
    let mut known = HashMap::new();
    for mapping in mappings {
        let Some(path) = mapping.path() else { continue };
        let at = *known.entry((mapping.dev, mapping.inode, path.clone())).or_insert(objects.len());
        if at == objects.len() {
            objects.push(MappedObject { path, deleted: mapping.deleted, mappings: Vec::new() });
        }
        objects[at].mappings.push(mapping.clone());
    }
    objects.retain(|object| object.executable().next().is_some());
    if let Some(main) = objects.iter().position(|o| exe.is_some_and(|exe| is_exe(o, exe))) {
        objects[..=main].rotate_right(1);
    }
    objects
}

/// The same with each archive that code is mapped from as the members that the code belongs to:
/// `/data/app.apk!/lib/libx.so`, whose mappings are counted from where the member begins.
/// `members` says which ones an archive has; it is asked for each file that is mapped from some
/// place behind its start alone.
#[must_use]
pub fn with_members(objects: Vec<MappedObject>, members: impl Fn(&MappedObject) -> zip::Members) -> Vec<MappedObject> {
    let mut found: Vec<MappedObject> = Vec::new();
    for object in objects {
        // A program or library is mapped from its header on.
        let is_image = object.deleted || object.mappings.iter().any(|mapping| mapping.offset.0 == 0);
        let members = if is_image { zip::Members::default() } else { members(&object) };
        if members.is_empty() {
            found.push(object);
            continue;
        }
        let first = found.len();
        for mapping in object.mappings {
            let Some((name, start)) = members.at(mapping.offset.0) else { continue };
            let path = zip::joined(&object.path, name);
            let mapping = Mapping { offset: FileOff(mapping.offset.0 - start), ..mapping };
            match found[first..].iter_mut().find(|known| known.path == path) {
                Some(known) => known.mappings.push(mapping),
                None => found.push(MappedObject { path, deleted: false, mappings: vec![mapping] }),
            }
        }
    }
    found.retain(|object| object.executable().next().is_some());
    found
}

/// `/proc/PID/exe` of an unlinked program ends in ` (deleted)`.
fn is_exe(object: &MappedObject, exe: &Path) -> bool {
    object.path == exe
        || object.deleted && exe.to_str().and_then(|e| e.strip_suffix(" (deleted)")) == object.path.to_str()
}

/// The mapped objects that `name` means, best first; empty if there is none. A name with a slash is
/// a path (as the process sees it, or as we see it: links are followed). Any other is compared with
/// the base names: equal ones first, then libraries by their short names (see [`is_library_name`]);
/// libc comes first, for `c:malloc` means libc also in a program that is called `c`; then
/// programs that are links in `PATH` (Debian's `redis-server` is a link to `redis-check-rdb`).
/// `objects` are those of [`mapped_objects`].
#[must_use]
pub fn resolve_object<'a>(name: &str, objects: &'a [MappedObject]) -> Vec<&'a MappedObject> {
    let all = |wanted: &dyn Fn(&MappedObject) -> bool| objects.iter().filter(|o| wanted(o)).collect::<Vec<_>>();
    if name.contains('/') {
        let exact = all(&|o| o.path == Path::new(name));
        let real = || zip::canonicalize(Path::new(name)).ok();
        let ways: [&dyn Fn() -> Option<PathBuf>; 2] = [&real, &|| zip::shown(Path::new(name))];
        let found = ways.iter().filter_map(|way| way()).map(|path| all(&|o| o.path == path));
        // Another name of the same file, a hard link.
        let linked = std::iter::once_with(|| match Path::new(name).metadata() {
            Ok(file) => all(&|o| is_file(o, &file)),
            Err(_) => Vec::new(),
        });
        return std::iter::once(exact).chain(found).chain(linked).find(|found| !found.is_empty()).unwrap_or_default();
    }
    let exact = all(&|o| o.base_name() == name);
    let library = all(&|o| o.base_name() != name && is_library_name(o.base_name(), name));
    if !exact.is_empty() {
        return if is_libc(name) { [library, exact].concat() } else { exact };
    }
    match find_program(name) {
        Some(program) if library.is_empty() => all(&|o| o.path == program),
        _ => library,
    }
}

/// Whether an object was mapped from this file. File systems of several layers have other device
/// numbers in `/proc/PID/maps`; there the file at the path of the object is asked.
fn is_file(object: &MappedObject, file: &Metadata) -> bool {
    let is_inode = |mapping: &Mapping| mapping.inode != 0 && mapping.inode == file.ino();
    let device = (major(file.dev()), minor(file.dev()));
    let is_there = || {
        let there = object.path.metadata();
        !object.deleted && there.is_ok_and(|there| (there.dev(), there.ino()) == (file.dev(), file.ino()))
    };
    object.mappings.first().is_some_and(|mapping| is_inode(mapping) && (mapping.dev == device || is_there()))
}

/// The major number of a device (makedev(3)).
fn major(device: u64) -> u32 {
    ((device >> 32 & 0xffff_f000) | (device >> 8 & 0xfff)) as u32
}

/// The minor number of a device.
fn minor(device: u64) -> u32 {
    ((device >> 12 & 0xffff_ff00) | (device & 0xff)) as u32
}

/// The mapped objects whose base names, or paths if there is a slash in it, a glob matches, in
/// their order. What the glob matches in the file system may also be a link to an object.
#[must_use]
pub fn matching_objects<'a>(glob: &str, objects: &'a [MappedObject]) -> Vec<&'a MappedObject> {
    let has_path = glob.contains('/');
    let name = |object: &'a MappedObject| {
        if has_path { object.path.to_str().unwrap_or_default() } else { object.base_name() }
    };
    let links = if has_path { links(glob) } else { Vec::new() };
    let is_linked =
        |object: &MappedObject| links.iter().any(|(path, file)| object.path == *path || is_file(object, file));
    let is_meant = |object: &&'a MappedObject| crate::matcher::glob(glob, name(object)) || is_linked(object);
    objects.iter().filter(is_meant).collect()
}

/// The files that a glob of absolute paths matches, links followed, and what they are.
fn links(glob: &str) -> Vec<(PathBuf, Metadata)> {
    let mut paths = vec![PathBuf::from("/")];
    for part in Path::new(glob).components().skip(1) {
        let Some(part) = part.as_os_str().to_str() else { return Vec::new() };
        paths = match part.contains(['*', '?', '[']) {
            true => paths.iter().flat_map(|dir| expand(&dir.join(part))).take(LINKS).collect(),
            false => paths.into_iter().map(|dir| dir.join(part)).collect(),
        };
    }
    let mut folders: HashMap<PathBuf, Option<PathBuf>> = HashMap::new();
    let file = |path: PathBuf| {
        let (folder, name) = (path.parent()?, path.file_name()?);
        let own = path.symlink_metadata().ok()?;
        if own.is_file() {
            // There may be thousands in a folder: one call of the system for each.
            if !folders.contains_key(folder) {
                folders.insert(folder.to_owned(), folder.canonicalize().ok());
            }
            return Some((folders.get(folder)?.as_ref()?.join(name), own));
        }
        let file = path.metadata().ok().filter(Metadata::is_file)?;
        Some((path.canonicalize().ok()?, file))
    };
    paths.into_iter().filter_map(file).collect()
}

/// Files that a glob matches at most.
const LINKS: usize = 1 << 16;

/// Whether the library file `file` can be called `short`: `libssl.so.3` is `libssl.so.3`,
/// `libssl.so`, `libssl` and `ssl`; `libc-2.31.so` is also `libc` and `c`; musl's
/// `ld-musl-x86_64.so.1` is `libc` and `c`.
#[must_use]
pub fn is_library_name(file: &str, short: &str) -> bool {
    if short.is_empty() {
        return false;
    }
    if file == short || short.contains(".so") && file.strip_prefix(short).is_some_and(|rest| rest.starts_with('.')) {
        return true;
    }
    let Some(stem) = library_stem(file) else {
        return false;
    };
    let is = |stem: &str| stem == short || stem.strip_prefix("lib") == Some(short);
    let unversioned = stem.rsplit_once('-').filter(|(_, v)| v.starts_with(|c: char| c.is_ascii_digit()));
    is(stem) || unversioned.is_some_and(|(stem, _)| is(stem)) || stem.starts_with("ld-musl-") && is_libc(short)
}

fn is_libc(short: &str) -> bool {
    short == "c" || short == "libc"
}

/// What is before `.so` at the end or before a version.
fn library_stem(file: &str) -> Option<&str> {
    let at = file.find(".so.").or_else(|| file.ends_with(".so").then(|| file.len() - 3))?;
    Some(&file[..at])
}

/// The file that `name` means without a process, links followed: a path; a library in the
/// directories of the dynamic linker (highest version); a program in `PATH`. `None` if there is
/// none.
#[must_use]
pub fn find_object(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return zip::canonicalize(Path::new(name)).ok();
    }
    // A name like `ls` or `c` may be both; libraries are what short names are for, except where a
    // program has exactly that name.
    find_program(name).or_else(|| find_library(name))
}

/// A library in the directories of the dynamic linker, by any of its names.
#[must_use]
pub fn find_library(name: &str) -> Option<PathBuf> {
    library_dirs().iter().find_map(|dir| {
        let mut fitting: Vec<(bool, Vec<u64>, PathBuf)> = std::fs::read_dir(dir)
            .ok()?
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let file = entry.file_name().into_string().ok()?;
                is_library_name(&file, name).then(|| (file == name, version(&file), entry.path()))
            })
            .collect();
        fitting.sort();
        // libc.so is a linker script, and other machines' libraries may lie about.
        fitting
            .into_iter()
            .rev()
            .find(|(.., path)| is_for_machine(path))
            .and_then(|(.., path)| path.canonicalize().ok())
    })
}

thread_local! {
    /// What [`search_in`] was given in this thread.
    static SEARCHED: RefCell<Option<Option<OsString>>> = const { RefCell::new(None) };
}

/// Lets this thread look for programs in this list of directories in place of `PATH`. For a process
/// that may not read its environment: in the fork of a process with threads, the lock of the
/// environment may never be free.
pub fn search_in(path: Option<OsString>) {
    SEARCHED.set(Some(path));
}

/// An executable ELF file in `PATH`, or where [`search_in`] says.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = SEARCHED.with_borrow(Clone::clone).unwrap_or_else(|| std::env::var_os("PATH"))?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| is_for_machine(file))?.canonicalize().ok()
}

/// `3.11` in `libpython3.11.so.1.0` does not count, `1.0` does.
fn version(file: &str) -> Vec<u64> {
    let numbers = file.split_once(".so.").map_or("", |(_, version)| version);
    numbers.split('.').map_while(|number| number.parse().ok()).collect()
}

/// Class and machine of the ELF files that are looked for by name, and where Debian has its
/// libraries.
const MACHINE: (u8, u8, [&str; 2]) = if cfg!(target_arch = "aarch64") {
    (2, 183, ["/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"])
} else if cfg!(target_arch = "arm") {
    (1, 40, ["/lib/arm-linux-gnueabihf", "/usr/lib/arm-linux-gnueabihf"])
} else {
    (2, 62, ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"])
};

fn is_for_machine(path: &Path) -> bool {
    let head = Part::open(path).ok().and_then(|file| file.read(&(0..20)).ok()).unwrap_or_default();
    let (class, machine, _) = MACHINE;
    head.starts_with(b"\x7fELF") && head[4] == class && head[18..] == [machine, 0]
}

/// Directories of the dynamic linker, in its order: those of /etc/ld.so.conf, then the built-in
/// ones (ld.so(8)).
fn library_dirs() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    read_conf(Path::new("/etc/ld.so.conf"), &mut dirs, 0);
    dirs.extend(MACHINE.2.into_iter().chain(["/lib64", "/usr/lib64", "/lib", "/usr/lib"]).map(PathBuf::from));
    dirs
}

/// One configuration file of ldconfig(8): a directory a line, `#` comments, `include PATTERN` with
/// globs in the file name.
fn read_conf(path: &Path, dirs: &mut Vec<PathBuf>, depth: usize) {
    let Ok(text) = std::fs::read_to_string(path) else {
        return;
    };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        match line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) {
            Some(pattern) if depth < 8 => {
                let pattern = path.parent().unwrap_or(Path::new("/")).join(pattern.trim());
                for file in expand(&pattern) {
                    read_conf(&file, dirs, depth + 1);
                }
            }
            None if line.starts_with('/') => dirs.push(line.into()),
            _ => {}
        }
    }
}

/// The files that a glob in the last part of a path matches, sorted as the shell does.
fn expand(pattern: &Path) -> Vec<PathBuf> {
    let (Some(dir), Some(glob)) = (pattern.parent(), pattern.file_name().and_then(|n| n.to_str())) else {
        return Vec::new();
    };
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| crate::matcher::glob(glob, n)))
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::parse_maps;

    #[test]
    fn short_names() {
        for (file, short) in [
            ("libc.so.6", "c"),
            ("libc.so.6", "libc"),
            ("libc.so.6", "libc.so"),
            ("libc.so.6", "libc.so.6"),
            ("libc-2.31.so", "c"),
            ("libc-2.31.so", "libc"),
            ("ld-musl-x86_64.so.1", "c"),
            ("libssl.so.3", "ssl"),
            ("libpython3.11.so.1.0", "libpython3.11"),
            ("libstdc++.so.6.0.30", "stdc++"),
            ("_json.cpython-311-x86_64-linux-gnu.so", "_json.cpython-311-x86_64-linux-gnu"),
        ] {
            assert!(is_library_name(file, short), "{file} {short}");
        }
        for (file, short) in [
            ("libcrypt.so.1", "c"),
            ("libc.so.6", "so"),
            ("libc.so.6", ""),
            ("libcap-ng.so.0", "cap"),
            ("libssl.so.3", "libssl.so.1"),
            ("redis-server", "redis"),
        ] {
            assert!(!is_library_name(file, short), "{file} {short}");
        }
    }

    #[test]
    fn the_main_program_comes_first() {
        let maps = parse_maps(
            "10000-11000 r-xp 00000000 08:01 7 /opt/libz.so.1\n\
             20000-21000 r--p 00000000 08:01 8 /opt/prog\n\
             21000-22000 r-xp 00001000 08:01 8 /opt/prog\n\
             30000-31000 r--p 00000000 08:01 9 /usr/share/locale\n\
             40000-41000 r-xp 00000000 08:01 7 /opt/libz.so.1\n",
        );
        let objects = mapped_objects(&maps, Some(Path::new("/opt/prog")));
        let paths: Vec<_> = objects.iter().map(|o| o.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/opt/prog", "/opt/libz.so.1"]);
        assert_eq!(objects[1].executable().count(), 2);
        assert_eq!(resolve_object("z", &objects), [&objects[1]]);
        assert_eq!(resolve_object("prog", &objects), [&objects[0]]);
        assert_eq!(resolve_object("/opt/prog", &objects), [&objects[0]]);
        assert!(resolve_object("/opt/other", &objects).is_empty());
        assert!(resolve_object("locale", &objects).is_empty());
        assert_eq!(matching_objects("*", &objects), [&objects[0], &objects[1]]);
        assert_eq!(matching_objects("lib*", &objects), [&objects[1]]);
        assert_eq!(matching_objects("/opt/p*", &objects), [&objects[0]]);
    }

    #[test]
    fn a_program_can_be_called_by_a_link_to_it() {
        // Debian's sh is a link to dash; the kernel shows the file that was run.
        let real = std::process::Command::new("sh").args(["-c", "readlink -f $(command -v sh)"]).output().unwrap();
        let real = String::from_utf8(real.stdout).unwrap();
        let maps = parse_maps(&format!("21000-22000 r-xp 00001000 08:01 8 {}\n", real.trim()));
        let objects = mapped_objects(&maps, None);
        assert_eq!(resolve_object("sh", &objects), [&objects[0]]);
        assert_eq!(resolve_object("/bin/sh", &objects), [&objects[0]]);
        assert!(resolve_object("bash", &objects).is_empty());
    }

    #[test]
    fn a_glob_and_a_hard_link_lead_to_the_file() {
        let dir = std::env::temp_dir().join(format!("sidestep-links-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let dir = dir.canonicalize().unwrap();
        let (real, soft, hard) = (dir.join("real-1"), dir.join("soft"), dir.join("hard"));
        std::fs::write(&real, "x").unwrap();
        std::os::unix::fs::symlink(&real, &soft).unwrap();
        std::fs::hard_link(&real, &hard).unwrap();
        let file = real.metadata().unwrap();
        let (major, minor, inode) = (major(file.dev()), minor(file.dev()), file.ino());
        let maps = parse_maps(&format!(
            "10000-11000 r-xp 00000000 {major:02x}:{minor:02x} {inode} {}\n\
             20000-21000 r-xp 00000000 {major:02x}:{minor:02x} {} /opt/other\n",
            real.display(),
            inode + 1,
        ));
        let objects = mapped_objects(&maps, None);
        let shown = |path: &Path| path.display().to_string();
        let (glob, other) = (shown(&dir.join("so*t")), shown(&dir.join("none*")));
        assert_eq!(matching_objects(&glob, &objects), [&objects[0]]);
        assert_eq!(matching_objects(&shown(&dir.join("h?rd")), &objects), [&objects[0]]);
        assert!(matching_objects(&other, &objects).is_empty());
        assert_eq!(resolve_object(&shown(&soft), &objects), [&objects[0]]);
        assert_eq!(resolve_object(&shown(&hard), &objects), [&objects[0]]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn libraries_and_programs_of_this_machine() {
        // The oracle is the loader's own cache.
        let cache = std::process::Command::new("/sbin/ldconfig").arg("-p").output().unwrap();
        let cache = String::from_utf8(cache.stdout).unwrap();
        let line = cache.lines().find(|l| l.trim().starts_with("libc.so.6 (libc6,x86-64")).unwrap();
        let wanted = std::fs::canonicalize(line.rsplit(' ').next().unwrap()).unwrap();
        for name in ["c", "libc", "libc.so", "libc.so.6"] {
            assert_eq!(find_library(name).as_ref(), Some(&wanted), "{name}");
        }
        assert_eq!(find_object("bash"), find_program("bash"));
        assert!(find_object("bash").unwrap().ends_with("bash"));
        assert_eq!(find_object("no-such-thing"), None);
        assert_eq!(find_object("/no/such/thing"), None);
    }
}
