//! Pages that the kernel writes to and we read: rings.
#![allow(unsafe_code, reason = "mmap and munmap")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

/// May we write?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
}

/// Pages of a descriptor, mapped as long as this lives.
#[derive(Debug)]
pub struct Pages {
    base: NonNull<u8>,
    len: usize,
}

/// Integers that the kernel may change while we look.
///
/// # Safety
/// Atomics of plain integers.
pub unsafe trait Shared {}
// SAFETY: it is one.
unsafe impl Shared for AtomicU32 {}
// SAFETY: it is one.
unsafe impl Shared for AtomicU64 {}
// SAFETY: it is one.
unsafe impl Shared for AtomicUsize {}

impl Pages {
    /// Maps `len` bytes of a descriptor from byte `offset` on.
    pub fn map(fd: BorrowedFd<'_>, offset: usize, len: usize, access: Access) -> io::Result<Pages> {
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        let (fd, offset) = (fd.as_raw_fd(), offset as libc::off_t);
        // SAFETY: a new mapping at an address of the kernel's choice; nothing of ours is replaced.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, offset) };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Pages { base, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The integer at a byte; `None` if it is not inside or not aligned. What is mapped for reading
    /// only may be loaded with [`std::sync::atomic::Ordering::Relaxed`] only, and must not be
    /// stored to.
    pub fn at<T: Shared>(&self, byte: usize) -> Option<&T> {
        let end = byte.checked_add(size_of::<T>())?;
        if end > self.len || byte % align_of::<T>() != 0 {
            return None;
        }
        // SAFETY: inside, and aligned, as the base is aligned to a page; an atomic, so the kernel
        // may write it.
        Some(unsafe { &*self.base.as_ptr().add(byte).cast::<T>() })
    }

    /// Appends `len` bytes from byte `start` on. False, and nothing is done, if they are not
    /// inside.
    pub fn copy(&self, start: usize, len: usize, to: &mut Vec<u8>) -> bool {
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return false;
        }
        to.reserve(len);
        // SAFETY: inside the mapping and inside the room just reserved. The kernel writes no record
        // between handing it over (its position or header was read before) and our giving it back.
        unsafe {
            ptr::copy_nonoverlapping(self.base.as_ptr().add(start), to.as_mut_ptr().add(to.len()), len);
            to.set_len(to.len() + len);
        }
        true
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no borrow of it can be alive.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the mapping belongs to no thread; access is through atomics, or to what the kernel has
// handed over.
unsafe impl Send for Pages {}
// SAFETY: two threads at once use atomics only, or what the kernel has handed over.
unsafe impl Sync for Pages {}

/// Bytes of a page.
pub fn page_size() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
