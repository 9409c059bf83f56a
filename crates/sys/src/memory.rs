//! The memory of a target: reading and writing it from outside.
#![allow(unsafe_code, reason = "views of plain data as bytes")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use sidestep_isa::{Len, Va};

/// Why the memory of a target could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The process has exited or has executed another program since it was opened.
    #[error("the memory of process {pid} is gone: it has exited or executed another program; attach again")]
    Gone {
        /// Process id.
        pid: i32,
    },
    /// The address range is not mapped, or not readable.
    #[error("cannot {what} {len:?} bytes at {at} of process {pid}: {source}; check that the address is mapped")]
    Access {
        /// `read` or `write`.
        what: &'static str,
        /// Process id.
        pid: i32,
        /// Start of the range.
        at: Va,
        /// Its length.
        len: Len,
        /// What the kernel said.
        source: io::Error,
    },
    /// Other bytes than those written were read back.
    #[error("a write at {at} of process {pid} did not take effect: is the mapping shared with another writer?")]
    Verify {
        /// Process id.
        pid: i32,
        /// Start of the range.
        at: Va,
    },
}

/// Plain data: every bit pattern is a value, and there is no padding.
///
/// # Safety
/// Both must hold for the type.
pub unsafe trait Pod: Copy + 'static {}

// SAFETY: integers, and arrays of integers.
unsafe impl Pod for u8 {}
// SAFETY: as above.
unsafe impl Pod for u16 {}
// SAFETY: as above.
unsafe impl Pod for u32 {}
// SAFETY: as above.
unsafe impl Pod for u64 {}
// SAFETY: as above.
unsafe impl Pod for i32 {}
// SAFETY: as above.
unsafe impl Pod for i64 {}
// SAFETY: an array has no padding of its own.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}

/// The address space of a process, held open. It stays bound to the program that was opened: after an `execve` all
/// accesses fail with [`MemoryError::Gone`], they never reach the new program.
#[derive(Debug)]
pub struct Memory {
    pid: i32,
    mem: File,
}

impl Memory {
    /// Opens `/proc/PID/mem`; this is the kernel's check of the permission to trace.
    pub fn open(pid: i32) -> io::Result<Memory> {
        let mem = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(Memory { pid, mem })
    }

    /// Fills `buf` from address `at`, or fails as a whole.
    pub fn read(&self, at: Va, buf: &mut [u8]) -> Result<(), MemoryError> {
        match self.mem.read_exact_at(buf, at.0) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(MemoryError::Gone { pid: self.pid }),
            Err(e) => Err(self.error("read", at, buf.len(), e)),
        }
    }

    /// Reads one value of plain data.
    pub fn read_pod<T: Pod>(&self, at: Va) -> Result<T, MemoryError> {
        let mut value = std::mem::MaybeUninit::<T>::zeroed();
        // SAFETY: the zeroed value is `size_of::<T>()` initialised bytes, borrowed only here.
        let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
        self.read(at, bytes)?;
        // SAFETY: `T: Pod`, so any bytes are a value.
        Ok(unsafe { value.assume_init() })
    }

    /// Writes `bytes` at `at`, into text, too, whatever the protection of the page (a private page is copied), and
    /// reads them back.
    pub fn write(&self, at: Va, bytes: &[u8]) -> Result<(), MemoryError> {
        match self.mem.write_all_at(bytes, at.0) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WriteZero => {
                return Err(MemoryError::Gone { pid: self.pid });
            }
            Err(e) => return Err(self.error("write", at, bytes.len(), e)),
        }
        let mut back = vec![0; bytes.len()];
        self.read(at, &mut back)?;
        if back == bytes { Ok(()) } else { Err(MemoryError::Verify { pid: self.pid, at }) }
    }

    /// Does the opened address space still exist? `probe` is an address that is mapped in it.
    pub fn is_there(&self, probe: Va) -> bool {
        !matches!(self.mem.read_at(&mut [0], probe.0), Ok(0))
    }

    fn error(&self, what: &'static str, at: Va, len: usize, source: io::Error) -> MemoryError {
        MemoryError::Access { what, pid: self.pid, at, len: Len(len as u64), source }
    }
}
