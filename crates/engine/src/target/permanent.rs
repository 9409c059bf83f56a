//! Which libraries stay where they are for as long as the process lives: those that the program
//! needs, and what they need. No `dlclose` takes them away (glibc: `l_type` is `lt_library`,
//! elf/dl-close.c; musl never unloads anything). Others may be unloaded at any moment.

use std::collections::{BTreeSet, HashMap};

use sidestep_sys::Process;

use crate::error::SessionError;
use crate::resolve::objects::{Loaded, Objects};

/// Run-time addresses of their images.
pub(crate) fn libraries(process: &Process, objects: &mut Objects) -> Result<BTreeSet<u64>, SessionError> {
    let mapped = Objects::mapped(process)?;
    let all: Vec<Loaded> = mapped.iter().filter_map(|mapped| objects.load(process, mapped).ok()).collect();
    let Some((program, libraries)) = all.split_first() else { return Ok(BTreeSet::new()) };
    let mut by_name: HashMap<String, Vec<&Loaded>> = HashMap::new();
    for library in libraries {
        for name in names(library) {
            by_name.entry(name).or_default().push(library);
        }
    }
    let mut wanted = program.object.needed();
    wanted.extend(program.object.interpreter().and_then(file_name));
    let mut found = BTreeSet::new();
    while let Some(name) = wanted.pop() {
        // Of two with one name (`dlmopen`), it is not known which.
        let Some([library]) = by_name.get(&name).map(|known| &known[..]) else { continue };
        if found.insert(library.range.start) {
            wanted.extend(library.object.needed());
        }
    }
    Ok(found)
}

/// What others call a library.
fn names(library: &Loaded) -> BTreeSet<String> {
    let path = library.object.path().to_string_lossy();
    library.object.soname().into_iter().chain(file_name(&path)).collect()
}

/// The last part of a path.
fn file_name(path: &str) -> Option<String> {
    path.rsplit('/').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Options;

    #[test]
    fn the_c_library_stays() {
        let process = Process::look_at(std::process::id() as i32).unwrap();
        let mut objects = Objects::new(&Options::default());
        let stay = libraries(&process, &mut objects).unwrap();
        let mapped = Objects::mapped(&process).unwrap();
        let mut at = |part: &str| {
            let library = mapped.iter().find(|mapped| mapped.path.to_string_lossy().contains(part)).unwrap();
            objects.load(&process, library).unwrap().range.start
        };
        assert!([at("/libc"), at("/ld-")].iter().all(|start| stay.contains(start)), "{stay:x?}");
    }
}
