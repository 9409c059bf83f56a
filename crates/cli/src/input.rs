//! Files that users name and somebody else may have made: scripts, objects, what `cat` prints. They
//! are opened without waiting for anybody, and read up to a limit.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, bail};

/// A script is shorter.
pub const SCRIPT: u64 = 16 << 20;
/// An object for `sidestep bpf` is shorter.
pub const OBJECT: u64 = 256 << 20;

/// Opens a file to read it. Neither the opening nor a read waits: of a pipe that is empty, the read
/// fails with [`ErrorKind::WouldBlock`].
///
/// # Errors
/// What the kernel says.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// All of a file, if it has `limit` bytes at most. A pipe is waited for only if somebody has it
/// open to write, such as the command of a shell's `<(…)`.
///
/// # Errors
/// It cannot be read, is longer, or is a pipe that nobody writes to.
pub fn read(path: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", path.display());
    let mut file = open(path).with_context(cannot)?;
    let is_pipe = file.metadata().with_context(cannot)?.file_type().is_fifo();
    let mut bytes = Vec::new();
    loop {
        match (&mut file).take(limit + 1 - bytes.len() as u64).read_to_end(&mut bytes) {
            // What was read until then is kept.
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(&file).with_context(cannot)?,
            Err(error) => return Err(error).with_context(cannot),
            Ok(_) if bytes.is_empty() && is_pipe => bail!("{} is a pipe that nobody writes to", path.display()),
            Ok(_) if bytes.len() as u64 > limit => {
                bail!("{} is longer than {} MiB", path.display(), limit >> 20)
            }
            Ok(_) => return Ok(bytes),
        }
    }
}

/// Until there is something to read, or nobody is left to write it.
#[allow(unsafe_code, reason = "poll has no safe interface in std")]
fn wait(file: &File) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one pollfd, whose descriptor is open as long as `file`.
    match unsafe { libc::poll(&mut poll, 1, -1) } {
        -1 if io::Error::last_os_error().kind() != ErrorKind::Interrupted => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_has_no_end_is_refused() {
        let error = read(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string();
        assert_eq!(error, "/dev/zero is longer than 1 MiB");
        let path = std::env::temp_dir().join(format!("sidestep-input.{}", std::process::id()));
        let file = File::create(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        assert!(read(&path, 1 << 20).unwrap_err().to_string().ends_with("is longer than 1 MiB"));
        file.set_len(1 << 20).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap(), vec![0; 1 << 20]);
        fs::remove_file(&path).unwrap();
    }
}
