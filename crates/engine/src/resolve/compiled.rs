//! Names of code that a process has compiled at run time, from its `/tmp/perf-PID.map`.
//!
//! The file belongs to the target, or to whoever may write there: only a regular file of the
//! target's user or of root is read, as perf does it, and only so much of it.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sidestep_isa::Va;
use sidestep_symbols::CompiledNames;
use sidestep_sys::Process;

/// At most so much of a file is read.
const BYTES_MAX: u64 = 256 << 20;
/// A file is read anew from its beginning at most this often.
const PERIOD: Duration = Duration::from_millis(500);
/// So many bytes in front of what comes next say whether the file has only grown.
const TAIL: usize = 256;

/// The names that one process has written.
pub(crate) struct Compiled {
    process: Process,
    /// Its id in its own PID namespace: programs name the file after it.
    own_id: i32,
    /// Its `/tmp` is ours.
    is_shared: bool,
    user: u32,
    names: CompiledNames,
    read: Option<Known>,
    /// When it was read from its beginning.
    begun: Option<Instant>,
}

/// What is known of a file.
struct Known {
    path: PathBuf,
    version: Version,
    /// Bytes that were looked at: whole lines.
    end: u64,
    /// The last of them.
    tail: Vec<u8>,
}

/// Device, inode, bytes, time of the last write.
type Version = (u64, u64, u64, i64, i64);

fn version(data: &Metadata) -> Version {
    (data.dev(), data.ino(), data.size(), data.mtime(), data.mtime_nsec())
}

impl Compiled {
    /// Of a process that is there. Nothing is read yet.
    pub fn new(process: &Process) -> Compiled {
        let place = |path: &Path| path.metadata().ok().map(|data| (data.dev(), data.ino()));
        let ours = place(Path::new("/tmp"));
        Compiled {
            process: process.clone(),
            own_id: process.own_id(),
            is_shared: ours.is_some() && place(&process.root().join("tmp")) == ours,
            user: process.uid().unwrap_or(0),
            names: CompiledNames::default(),
            read: None,
            begun: None,
        }
    }

    /// The function around a run-time address and the offset in it, as the file has it now.
    pub fn find(&mut self, at: Va) -> Option<(String, u64)> {
        self.refresh();
        self.names.find(at)
    }

    /// The path of the file that was read, as the process sees it.
    pub fn path(&self) -> Option<PathBuf> {
        Some(Path::new("/tmp").join(self.read.as_ref()?.path.file_name()?))
    }

    /// Reads what is new.
    fn refresh(&mut self) {
        let is_alive = self.process.is_alive();
        // The file stays when the process has ended.
        let root = match is_alive {
            true => self.process.root(),
            false if self.is_shared => PathBuf::from("/"),
            false => return,
        };
        let mut numbers = vec![self.own_id, self.process.pid()];
        numbers.dedup();
        for number in numbers {
            let path = root.join(format!("tmp/perf-{number}.map"));
            let Some(data) = path.symlink_metadata().ok().filter(Metadata::is_file) else { continue };
            if self.read.as_ref().is_some_and(|known| known.version == version(&data)) {
                return;
            }
            if let Some(user) = self.process.uid().ok().filter(|_| is_alive) {
                self.user = user;
            }
            if self.is_trusted(&data) {
                // A file that cannot be read has no names.
                let _ = self.read_on(path);
                return;
            }
        }
    }

    /// Whether it is a regular file of somebody who may say what the target's code is called.
    fn is_trusted(&self, data: &Metadata) -> bool {
        data.is_file() && [0, self.user].contains(&data.uid())
    }

    fn read_on(&mut self, path: PathBuf) -> std::io::Result<()> {
        // What was a file may be a FIFO by now, or a link to something else.
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_CLOEXEC;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
        let data = file.metadata()?;
        if !self.is_trusted(&data) {
            return Ok(());
        }
        let version = version(&data);
        // A line that never ends is read again and again.
        let is_stuck = self.read.as_ref().is_some_and(|known| known.end == 0);
        if is_stuck && self.begun.is_some_and(|begun| begun.elapsed() < PERIOD) {
            return Ok(());
        }
        let known = self.read.take().filter(|known| is_longer(known, version, &mut file).unwrap_or(false));
        let mut known = match known {
            Some(known) => Known { path, version, ..known },
            None if self.begun.is_some_and(|begun| begun.elapsed() < PERIOD) => return Ok(()),
            None => {
                (self.names, self.begun) = (CompiledNames::default(), Some(Instant::now()));
                Known { path, version, end: 0, tail: Vec::new() }
            }
        };
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(known.end))?;
        file.take(BYTES_MAX.saturating_sub(known.end)).read_to_end(&mut text)?;
        // The target may be writing the last line.
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
        self.names.add(&text);
        known.end += text.len() as u64;
        known.tail.extend_from_slice(&text[text.len().saturating_sub(TAIL)..]);
        known.tail.drain(..known.tail.len().saturating_sub(TAIL));
        self.read = Some(known);
        Ok(())
    }
}

/// Whether a file has more behind what is known of it, and that is still the same.
fn is_longer(known: &Known, version: Version, file: &mut File) -> std::io::Result<bool> {
    let (dev, ino, size, ..) = known.version;
    if (dev, ino) != (version.0, version.1) || version.2 <= size {
        return Ok(false);
    }
    let mut tail = vec![0; known.tail.len()];
    file.seek(SeekFrom::Start(known.end - tail.len() as u64))?;
    file.read_exact(&mut tail)?;
    Ok(tail == known.tail)
}
