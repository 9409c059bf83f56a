//! The memory of a target: reading and writing it from outside.
#![allow(unsafe_code, reason = "views of plain data as bytes, process_vm_readv")]

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

// SAFETY: an integer: any bits are a value.
unsafe impl Pod for u8 {}
// SAFETY: an integer: any bits are a value.
unsafe impl Pod for u16 {}
// SAFETY: an integer: any bits are a value.
unsafe impl Pod for u32 {}
// SAFETY: an integer: any bits are a value.
unsafe impl Pod for u64 {}
// SAFETY: an integer: any bits are a value.
unsafe impl Pod for i32 {}
// SAFETY: an integer: any bits are a value.
unsafe impl Pod for i64 {}
// SAFETY: an array has no padding of its own.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}

/// The address space of a process, held open. It stays bound to the program that was opened: after
/// an `execve` all accesses fail with [`MemoryError::Gone`], they never reach the new program.
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

    /// The bytes at several places (address and length), each up to some pages long; `None`: they
    /// cannot be read. One system call, as long as all can be: so it is for a process that stands
    /// still, and cannot execute another program meanwhile.
    pub fn read_many(&self, places: &[(Va, usize)]) -> Vec<Option<Vec<u8>>> {
        /// `IOV_MAX`
        const MOST: usize = 1024;
        let mut all = Vec::with_capacity(places.len());
        for places in places.chunks(MOST) {
            let mut bytes = vec![0u8; places.iter().map(|(_, len)| len).sum()];
            if self.read_at_once(places, &mut bytes) {
                let mut rest = &bytes[..];
                for (_, len) in places {
                    let (here, behind) = rest.split_at(*len);
                    all.push(Some(here.to_vec()));
                    rest = behind;
                }
                continue;
            }
            // Not all can be, or not in this way, which does not read what the process itself may
            // not.
            all.extend(places.iter().map(|(at, len)| {
                let mut bytes = vec![0; *len];
                self.read(*at, &mut bytes).is_ok().then_some(bytes)
            }));
        }
        all
    }

    fn read_at_once(&self, places: &[(Va, usize)], bytes: &mut [u8]) -> bool {
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let remote: Vec<libc::iovec> =
            places.iter().map(|(at, len)| libc::iovec { iov_base: at.0 as *mut libc::c_void, iov_len: *len }).collect();
        // SAFETY: writes to `bytes` alone, no more than it is long.
        let read = unsafe {
            libc::process_vm_readv(self.pid, &raw const local, 1, remote.as_ptr(), remote.len() as libc::c_ulong, 0)
        };
        read == bytes.len() as isize
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

    /// Writes `bytes` at `at`, into text, too, whatever the protection of the page (a private page
    /// is copied), and reads them back.
    pub fn write(&self, at: Va, bytes: &[u8]) -> Result<(), MemoryError> {
        self.put(at, bytes)?;
        let mut back = vec![0; bytes.len()];
        self.read(at, &mut back)?;
        if back == bytes { Ok(()) } else { Err(MemoryError::Verify { pid: self.pid, at }) }
    }

    /// The same at several places of a process that stands still, in this order; they are read back
    /// when all are written.
    pub fn write_many(&self, places: &[(Va, &[u8])]) -> Result<(), MemoryError> {
        places.iter().try_for_each(|(at, bytes)| self.put(*at, bytes))?;
        let read: Vec<(Va, usize)> = places.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        for ((at, bytes), back) in places.iter().zip(self.read_many(&read)) {
            if back.as_deref() != Some(*bytes) {
                return Err(MemoryError::Verify { pid: self.pid, at: *at });
            }
        }
        Ok(())
    }

    /// The same at several places, in this order, each with its own outcome: all are read back when
    /// all are written, by one call.
    pub fn write_each(&self, places: &[(Va, &[u8])]) -> Vec<Result<(), MemoryError>> {
        let mut outcomes: Vec<Result<(), MemoryError>> =
            places.iter().map(|(at, bytes)| self.put(*at, bytes)).collect();
        let read: Vec<(Va, usize)> = places.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        for ((outcome, (at, bytes)), back) in outcomes.iter_mut().zip(places).zip(self.read_many(&read)) {
            if outcome.is_ok() && back.as_deref() != Some(*bytes) {
                *outcome = Err(MemoryError::Verify { pid: self.pid, at: *at });
            }
        }
        outcomes
    }

    fn put(&self, at: Va, bytes: &[u8]) -> Result<(), MemoryError> {
        match self.mem.write_all_at(bytes, at.0) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WriteZero => Err(MemoryError::Gone { pid: self.pid }),
            Err(e) => Err(self.error("write", at, bytes.len(), e)),
        }
    }

    /// Does the opened address space still exist? `probe` is an address that is mapped in it.
    pub fn is_there(&self, probe: Va) -> bool {
        !matches!(self.mem.read_at(&mut [0], probe.0), Ok(0))
    }

    fn error(&self, what: &'static str, at: Va, len: usize, source: io::Error) -> MemoryError {
        MemoryError::Access { what, pid: self.pid, at, len: Len(len as u64), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_places_are_read_and_written_whether_all_are_there_or_not() {
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let place = |bytes: &[u8]| (Va(bytes.as_ptr() as u64), bytes.len());
        let (first, second, behind) = (vec![1u8; 3], vec![2u8; 5000], vec![3u8; 2]);
        let places = [place(&first), place(&second), place(&behind)];
        let there = |bytes: &[u8]| Some(bytes.to_vec());
        assert_eq!(memory.read_many(&places), [there(&first), there(&second), there(&behind)]);
        let nowhere = (Va(16), 4);
        assert_eq!(memory.read_many(&[places[0], nowhere, places[2]]), [there(&first), None, there(&behind)]);
        assert_eq!(memory.read_many(&[]), []);

        memory.write_many(&[(places[0].0, &[7, 8]), (places[2].0, &[9])]).unwrap();
        let now = memory.read_many(&places);
        assert_eq!((now[0].as_deref(), now[2].as_deref()), (Some(&[7, 8, 1][..]), Some(&[9, 3][..])));
        let error = memory.write_many(&[(nowhere.0, &[1])]).unwrap_err();
        assert!(matches!(error, MemoryError::Access { what: "write", .. }), "{error}");
    }
}
