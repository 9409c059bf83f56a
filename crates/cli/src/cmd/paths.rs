//! Objects in the file system that globs of paths mean.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use sidestep_engine::{Pattern, SessionError};
use sidestep_symbols::{Executable, Matcher, zip};

use crate::input;

/// Whether an object is a glob that is compared with paths.
fn is_glob(object: &str) -> bool {
    object.contains('/') && !Matcher::glob(object).is_name()
}

/// What is found for each object that a pattern means, in the file system or in a process. Objects
/// without it, and damaged ones, do not matter if another one has it.
pub fn in_each<T>(
    pattern: &Pattern,
    pid: Option<i32>,
    mut find: impl FnMut(&Pattern) -> Result<Vec<T>, SessionError>,
) -> Result<Vec<T>, SessionError> {
    let (mut found, mut error) = (Vec::new(), None);
    for pattern in files(pattern, pid) {
        match find(&pattern) {
            Ok(more) => found.extend(more),
            Err(missing) => error = Some(missing),
        }
    }
    error.filter(|_| found.is_empty()).map_or(Ok(found), Err)
}

/// What to say of objects of whose functions a pattern has found only the few that have symbols.
pub fn few_of_many<'o>(objects: impl Iterator<Item = &'o Path>) -> BTreeSet<String> {
    let note = |object: &Path| {
        let object = object.display();
        format!("most functions of {object} have no symbols: the pattern '{object}:sub_*' matches them")
    };
    objects.map(note).collect()
}

/// A pattern for each object in the file system that a glob means; in a process, the mapped objects
/// are compared with it instead.
fn files(pattern: &Pattern, pid: Option<i32>) -> Vec<Pattern> {
    let glob = pattern.object.as_deref().filter(|object| pid.is_none() && is_glob(object));
    let found = glob.map(|glob| objects(Path::new(glob))).unwrap_or_default();
    if found.is_empty() {
        return vec![pattern.clone()];
    }
    found.into_iter().map(|path| Pattern { object: Some(path.display().to_string()), ..pattern.clone() }).collect()
}

/// Programs and libraries by a glob, in order. A `*` stays within a name.
fn objects(glob: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for part in glob.components() {
        let matcher = match part {
            Component::Normal(name) => Matcher::glob(&name.to_string_lossy()),
            part => {
                found.iter_mut().for_each(|path| path.push(part));
                continue;
            }
        };
        let below = |folder: PathBuf| -> Vec<PathBuf> {
            if matcher.is_name() {
                return vec![folder.join(part)];
            }
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.retain(|name| matcher.finds(&name.to_string_lossy()));
            names.sort();
            names.into_iter().map(|name| folder.join(name)).collect()
        };
        found = found.into_iter().flat_map(below).collect();
    }
    found.retain(|path| is_object(path));
    found
}

/// Whether a file is an ELF file.
pub fn is_object(path: &Path) -> bool {
    if zip::split(path).is_some() && !path.exists() {
        return Executable::read(path).is_ok();
    }
    let mut head = [0; 4];
    let is_file = fs::metadata(path).is_ok_and(|meta| meta.is_file());
    is_file && input::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == *b"\x7fELF"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_mean_programs_and_libraries() {
        let program = std::env::current_exe().unwrap();
        let folder = program.parent().unwrap().display().to_string();
        let found = objects(Path::new(&format!("{folder}/sidestep-*")));
        assert!(found.contains(&program), "{found:?}");
        assert!(found.iter().all(|path| is_object(path)), "{found:?}");
        assert!(objects(Path::new("/nonexistent/*")).is_empty());
        assert!(objects(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/*.rs"))).is_empty());
    }
}
