//! Where the headers of the system are.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sidestep_lang::script::c::{Found, Wanted};

use crate::input;

/// As compilers look for them: those of the administrator, of this machine with the C library of
/// GNU, and the others.
fn folders() -> &'static [PathBuf] {
    static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FOLDERS.get_or_init(|| {
        let machine = Path::new("/usr/include").read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        let arch = std::env::consts::ARCH;
        let is_own = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let (own, rest) = name.split_once('-').unwrap_or_default();
            rest.starts_with("linux-gnu")
                && (own == arch || arch == "x86" && own.starts_with('i') && own.ends_with("86"))
        };
        let own = machine.filter(is_own);
        [PathBuf::from("/usr/local/include")].into_iter().chain(own).chain([PathBuf::from("/usr/include")]).collect()
    })
}

/// Opens a header of the system.
pub fn find(wanted: &Wanted) -> Option<Found> {
    find_in(&[], wanted)
}

/// Opens a header: of some folders, or of the system.
pub fn find_in(own: &[PathBuf], wanted: &Wanted) -> Option<Found> {
    let beside = wanted.beside.and_then(|path| Path::new(path).parent()).map(Path::to_owned);
    let behind = wanted.behind.and_then(|path| folders().iter().position(|folder| Path::new(path).starts_with(folder)));
    let system = &folders()[behind.map_or(0, |at| at + 1)..];
    // What comes next behind one of ours is one of the system.
    let own = if wanted.behind.is_some() { &[] } else { own };
    let path =
        beside.iter().chain(own).chain(system).map(|folder| folder.join(wanted.name)).find(|path| path.is_file())?;
    let text = String::from_utf8_lossy(&input::read(&path, input::SCRIPT).ok()?).into_owned();
    Some(Found { path: path.display().to_string(), text })
}
