//! Memory shared with the target.
#![allow(unsafe_code, reason = "mmap and munmap, pidfd_getfd, seals")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::{self, NonNull};

/// Why the shared memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The descriptor could not be opened.
    #[error("cannot open descriptor {fd} of process {pid}: {source}; attach again")]
    Open {
        /// Process id.
        pid: i32,
        /// The target's descriptor.
        fd: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file could not be mapped.
    #[error("cannot map {len} bytes shared with process {pid}: {source}; check the memory limit (ulimit -v)")]
    Map {
        /// Process id.
        pid: i32,
        /// Bytes.
        len: usize,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A file of the target (a memfd) mapped readable and writable into the controller. The target may
/// write at any time and has to be expected to: look at it through atomics only. It stays valid
/// after the end of the target.
#[derive(Debug)]
pub struct SharedMap {
    base: NonNull<u8>,
    len: usize,
    file: Option<File>,
}

/// A copy of a descriptor of another process, with the rights that it has there: to open the same
/// file anew would be done with ours. Linux before 5.6 has nothing else.
fn descriptor(pid: i32, fd: i32) -> io::Result<File> {
    // SAFETY: takes integers only; what the kernel gives us is nobody else's.
    let copied = unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32;
        if pidfd < 0 {
            Err(io::Error::last_os_error())
        } else {
            let pidfd = OwnedFd::from_raw_fd(pidfd);
            match libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) as i32 {
                -1 => Err(io::Error::last_os_error()),
                copy => Ok(File::from_raw_fd(copy)),
            }
        }
    };
    match copied {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(format!("/proc/{pid}/fd/{fd}"))
        }
        copied => copied,
    }
}

impl SharedMap {
    /// Maps the file that the target has open as `fd`, which is given a length for good: were it
    /// shorter later, the controller would get SIGBUS. The target may close it afterwards.
    pub fn from_target_fd(pid: i32, fd: i32, len: usize) -> Result<SharedMap, SharedError> {
        let open = |source| SharedError::Open { pid, fd, source };
        let file = descriptor(pid, fd).map_err(open)?;
        let fix = |source| SharedError::Map { pid, len, source };
        // Another process with this table of descriptors may have put any file there, which must
        // not be cut. Only memory that was made to be sealed has seals, and none of them yet.
        // SAFETY: takes integers only.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) } != 0 {
            return Err(open(io::ErrorKind::InvalidData.into()));
        }
        file.set_len(len as u64).map_err(fix)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: takes integers only.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(fix(io::Error::last_os_error()));
        }
        // Another process with this descriptor may have been faster.
        if file.metadata().map_err(fix)?.len() != len as u64 {
            return Err(fix(io::ErrorKind::InvalidData.into()));
        }
        // SAFETY: a new mapping at an address of the kernel's choice; nothing of ours is replaced.
        let base = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(SharedMap { base, len, file: Some(file) }),
            _ => Err(SharedError::Map { pid, len, source: io::Error::last_os_error() }),
        }
    }

    /// Memory of our own, all zeros; pages that are never touched take no room.
    pub fn private(len: usize) -> Result<SharedMap, SharedError> {
        // SAFETY: a new mapping at an address of the kernel's choice; nothing of ours is replaced.
        let base = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0)
        };
        let pid = std::process::id() as i32;
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(SharedMap { base, len, file: None }),
            _ => Err(SharedError::Map { pid, len, source: io::Error::last_os_error() }),
        }
    }

    /// The file; none, of memory of our own.
    #[must_use]
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Start of the mapping, page-aligned. Valid for [`SharedMap::len`] bytes as long as `self`.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is the file empty?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value at byte offset `at`; `None` if it does not lie inside or is not aligned.
    #[must_use]
    pub fn get<T: SharedData>(&self, at: usize) -> Option<&T> {
        self.slice(at, 1)?.first()
    }

    /// `n` values in a row from byte offset `at`; `None` if they do not lie inside or are not
    /// aligned.
    #[must_use]
    pub fn slice<T: SharedData>(&self, at: usize, n: usize) -> Option<&[T]> {
        // SAFETY: `T: SharedData` allows what `view` asks for.
        unsafe { self.view(at, n) }
    }

    /// Like [`SharedMap::slice`] for any type.
    ///
    /// # Safety
    /// All bit patterns are values of `T`, and `T` consists of atomics and of fields that the
    /// target does not change while they are read, as for [`SharedData`].
    #[must_use]
    pub unsafe fn view<T>(&self, at: usize, n: usize) -> Option<&[T]> {
        let end = size_of::<T>().checked_mul(n)?.checked_add(at)?;
        let start = self.base.as_ptr() as usize + at.min(self.len);
        if end > self.len || start % align_of::<T>() != 0 {
            return None;
        }
        // SAFETY: in bounds and aligned, mapped as long as `self` is borrowed. The caller
        // promises that all bit patterns are values of `T`, and that plain fields do not change
        // meanwhile.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at).cast::<T>(), n) })
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no borrow of it can be alive.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

// SAFETY: access is through atomics; the mapping belongs to no thread.
unsafe impl Send for SharedMap {}
// SAFETY: two threads at once use atomics only.
unsafe impl Sync for SharedMap {}

/// Types that may be looked at while another process writes them.
///
/// # Safety
/// All bit patterns are values, and the type consists of atomics and of fields that the target does
/// not change while they are read.
pub unsafe trait SharedData {}

// SAFETY: atomics of plain integers.
unsafe impl SharedData for std::sync::atomic::AtomicU8 {}
// SAFETY: atomics of plain integers.
unsafe impl SharedData for std::sync::atomic::AtomicU32 {}
// SAFETY: atomics of plain integers.
unsafe impl SharedData for std::sync::atomic::AtomicU64 {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_file_is_seen_and_written_through_the_map_within_its_bounds() {
        let file = memfd();
        let map = SharedMap::from_target_fd(std::process::id() as i32, file.as_raw_fd(), 8192).unwrap();
        assert_eq!(map.len(), 8192);
        map.get::<AtomicU64>(4096).unwrap().store(7, Ordering::Relaxed);
        let mut back = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut back, 4096).unwrap();
        assert_eq!(u64::from_ne_bytes(back), 7);
        assert!(map.get::<AtomicU64>(8185).is_none());
        assert!(map.get::<AtomicU64>(4).is_none());
        assert!(map.get::<AtomicU64>(usize::MAX - 7).is_none());
        assert!(map.slice::<AtomicU64>(8, usize::MAX / 2).is_none());
        assert_eq!(map.slice::<AtomicU64>(0, 1024).unwrap().len(), 1024);
    }

    #[test]
    fn a_target_that_made_the_file_shorter_killed_the_controller() {
        let file = memfd();
        let map = SharedMap::from_target_fd(std::process::id() as i32, file.as_raw_fd(), 8192).unwrap();
        for len in [0, 4096, 12288] {
            assert!(file.set_len(len).is_err(), "{len}");
        }
        assert_eq!(map.get::<AtomicU64>(8184).unwrap().load(Ordering::Relaxed), 0);
    }

    fn memfd() -> File {
        // SAFETY: a name that ends with a zero; the descriptor is new and nobody else's.
        unsafe {
            let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            File::from_raw_fd(fd)
        }
    }

    #[test]
    fn a_descriptor_that_is_not_there_is_an_error_of_one_line() {
        let e = SharedMap::from_target_fd(std::process::id() as i32, 9999, 4096).unwrap_err();
        assert!(e.to_string().starts_with("cannot open descriptor 9999 of process"), "{e}");
    }
}
