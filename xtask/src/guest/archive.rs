//! Initial file systems as the kernel unpacks them: cpio archives of the format newc.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// An archive that is being written. All its files belong to root.
pub struct Archive {
    out: BufWriter<File>,
    /// The next inode number; 0 is not used.
    inode: u32,
    /// The folders that are in it.
    folders: BTreeSet<PathBuf>,
}

impl Archive {
    pub fn create(path: &Path) -> Result<Archive> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let mut archive = Archive { out: BufWriter::new(file), inode: 1, folders: BTreeSet::new() };
        for name in ["bin", "sbin", "lib"] {
            archive.entry(Path::new(name), LINK | 0o777, 0, format!("usr/{name}").as_bytes())?;
        }
        Ok(archive)
    }

    /// A folder, and those that it is in.
    pub fn folder(&mut self, path: &str) -> Result<()> {
        let path = inside(Path::new(path))?;
        self.folders_of(&path.join("x"))
    }

    /// A file with this text.
    pub fn text(&mut self, path: &str, mode: u32, text: &str) -> Result<()> {
        let path = inside(Path::new(path))?;
        self.folders_of(&path)?;
        self.entry(&path, FILE | mode, 0, text.as_bytes())
    }

    /// A file of this machine, or a folder with everything in it. Links inside a folder stay links;
    /// sockets and devices are left out.
    pub fn add(&mut self, from: &Path, to: &Path) -> Result<()> {
        // The link that a path itself may be is followed.
        let from = fs::canonicalize(from).with_context(|| from.display().to_string())?;
        self.copy(&from, &inside(to)?).with_context(|| from.display().to_string())
    }

    /// The end. Without it, the kernel refuses the archive.
    pub fn finish(mut self) -> Result<()> {
        self.entry(Path::new("TRAILER!!!"), 0, 0, &[])?;
        self.out.flush().context("the initial file system")
    }

    fn copy(&mut self, from: &Path, to: &Path) -> Result<()> {
        let metadata = fs::symlink_metadata(from)?;
        // A time behind 2106 does not fit.
        let time = u32::try_from(metadata.mtime()).unwrap_or(0);
        let mode = metadata.permissions().mode() & 0o7777;
        if metadata.is_dir() {
            self.folders_of(&to.join("x"))?;
            let mut entries = fs::read_dir(from)?.collect::<Result<Vec<_>, _>>()?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                self.copy(&entry.path(), &merged(&to.join(entry.file_name())))?;
            }
        } else if metadata.is_symlink() {
            self.folders_of(to)?;
            self.entry(to, LINK | 0o777, time, fs::read_link(from)?.as_os_str().as_bytes())?;
        } else if metadata.is_file() {
            self.folders_of(to)?;
            self.entry(to, FILE | mode, time, &fs::read(from)?)?;
        }
        Ok(())
    }

    /// The folders that a path is in, where they are not there yet.
    fn folders_of(&mut self, path: &Path) -> Result<()> {
        let mut missing: Vec<&Path> = path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).collect();
        missing.retain(|folder| !self.folders.contains(*folder));
        for folder in missing.into_iter().rev() {
            self.entry(folder, FOLDER | 0o755, 0, &[])?;
            self.folders.insert(folder.to_owned());
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, mode: u32, time: u32, content: &[u8]) -> Result<()> {
        let name = path.as_os_str().as_bytes();
        let size = u32::try_from(content.len()).context("a file of 4 GiB or more")?;
        let name_size = u32::try_from(name.len() + 1)?;
        // inode, mode, user, group, links, time, size, device, device of a special file, name, sum.
        let fields = [self.inode, mode, 0, 0, 1, time, size, 0, 0, 0, 0, name_size, 0];
        let mut head = b"070701".to_vec();
        for field in fields {
            write!(head, "{field:08x}")?;
        }
        head.extend_from_slice(name);
        head.push(0);
        head.resize(head.len().next_multiple_of(4), 0);
        self.inode += 1;
        self.out.write_all(&head)?;
        self.out.write_all(content)?;
        self.out.write_all(&[0; 3][..content.len().next_multiple_of(4) - content.len()])?;
        Ok(())
    }
}

/// A path of the guest as the archive has it.
fn inside(path: &Path) -> Result<PathBuf> {
    let mut inside = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => inside.push(name),
            Component::RootDir | Component::CurDir => {}
            _ => bail!("{}: not a path of the guest", path.display()),
        }
    }
    ensure!(!inside.as_os_str().is_empty(), "{}: nothing can take the place of the root", path.display());
    Ok(merged(&inside))
}

/// `/bin`, `/sbin` and `/lib` are links to folders of `/usr`, as Debian has them. An archive must
/// not name a path by a link: the kernel would put a folder in place of the link.
fn merged(path: &Path) -> PathBuf {
    let is_link = ["bin", "sbin", "lib"].iter().any(|name| path.starts_with(name));
    if is_link { Path::new("usr").join(path) } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::inside;

    #[test]
    fn paths_of_the_guest_are_those_of_a_merged_usr() {
        let path = |text: &str| inside(Path::new(text)).ok().map(|path| path.display().to_string());
        assert_eq!(path("/lib/x.so").as_deref(), Some("usr/lib/x.so"));
        assert_eq!(path("lib64").as_deref(), Some("lib64"));
        assert_eq!(path("./root/a").as_deref(), Some("root/a"));
        assert_eq!(path("/root/../a"), None);
        assert_eq!(path("/"), None);
    }
}
