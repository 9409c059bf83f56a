//! What a probe is called: for the user, and for programs that ask. Paths of objects as they are
//! typed, and as they are found.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use sidestep_symbols::Matcher;

/// What the probes of a request are called.
#[derive(Clone, Debug, Default)]
pub struct Label {
    /// The kind of probe, which stands in front: `uprobe`.
    pub kind: String,
    /// The object as the user has written it; empty: any.
    pub object: String,
    /// What all of them are called instead.
    pub name: Option<String>,
}

impl Label {
    /// What a probe is called that is in this object and has this name there.
    ///
    /// ```
    /// use std::path::Path;
    /// use sidestep_engine::Label;
    /// let label = Label { kind: "uprobe".into(), object: "./a".into(), name: None };
    /// assert_eq!(label.of(Path::new("/tmp/a"), "main+0x4"), "uprobe:./a:main+4");
    /// ```
    #[must_use]
    pub fn of(&self, object: &Path, name: &str) -> String {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let place = match inside(name) {
            (function, 0) => function.to_owned(),
            (function, distance) => format!("{function}+{distance}"),
        };
        format!("{}:{}:{place}", self.kind, written(&self.object, &object.display().to_string()))
    }
}

/// A function and the distance from it, of the name of a probe.
#[must_use]
pub fn inside(name: &str) -> (&str, u64) {
    let distance = |(function, distance)| Some((function, u64::from_str_radix(distance, 16).ok()?));
    name.rsplit_once("+0x").and_then(distance).unwrap_or((name, 0))
}

/// An object that was found, by the path that was typed for it: a relative path stays relative.
#[must_use]
pub fn written(typed: &str, found: &str) -> String {
    if !typed.contains('/') {
        return found.to_owned();
    }
    if Matcher::glob(typed).is_name() {
        return typed.to_owned();
    }
    let (folder, _) = split_glob(typed);
    let rest = fs::canonicalize(if folder.is_empty() { "." } else { folder })
        .ok()
        .and_then(|whole| Path::new(found).strip_prefix(whole).ok());
    rest.map_or_else(|| found.to_owned(), |rest| format!("{folder}{}", rest.display()))
}

/// A glob of paths as it is compared with the paths of what a process has mapped, which are
/// absolute. All other objects as they are.
pub(crate) fn absolute(object: &str) -> Cow<'_, str> {
    if !object.contains('/') || object.starts_with('/') || Matcher::glob(object).is_name() {
        return Cow::Borrowed(object);
    }
    let (folder, rest) = split_glob(object);
    let here = if folder.is_empty() { "." } else { folder };
    let folder = fs::canonicalize(here).unwrap_or_else(|_| PathBuf::from(folder));
    Cow::Owned(folder.join(rest).display().to_string())
}

/// The folder in front of the first part with a glob, with its `/`, and the rest.
fn split_glob(glob: &str) -> (&str, &str) {
    let mut at = 0;
    for part in glob.split_inclusive('/') {
        if !Matcher::glob(part).is_name() {
            break;
        }
        at += part.len();
    }
    glob.split_at(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_stays_relative() {
        let here = std::env::current_dir().unwrap().display().to_string();
        assert_eq!(written("./src/*.so", &format!("{here}/src/a.so")), "./src/a.so");
        assert_eq!(written("./src/a", &format!("{here}/src/a")), "./src/a");
        assert_eq!(written("/usr/l*", "/usr/lib/a.so"), "/usr/lib/a.so");
        assert_eq!(written("libc", "/usr/lib/libc.so.6"), "/usr/lib/libc.so.6");
    }

    #[test]
    fn a_relative_glob_is_compared_with_absolute_paths() {
        let here = std::env::current_dir().unwrap().display().to_string();
        assert_eq!(absolute("./src/*.so"), format!("{here}/src/*.so"));
        assert_eq!(absolute("src/../*"), format!("{here}/*"));
        assert_eq!(absolute("*/a"), format!("{here}/*/a"));
        assert_eq!(absolute("./a"), "./a");
        assert_eq!(absolute("lib*"), "lib*");
    }

    #[test]
    fn a_distance_is_written_in_decimals() {
        assert_eq!((inside("f+0x10"), inside("f"), inside("a+0xg")), (("f", 16), ("f", 0), ("a+0xg", 0)));
    }
}
