//! Mapping memory in a stopped target, by its own system calls.

use sidestep_isa::{Len, Va};
use sidestep_sys::{CallError, Stopped};

/// Remote system calls with names.
pub(crate) struct Remote<'a>(pub &'a mut Stopped);

impl Remote<'_> {
    fn call(&mut self, number: i64, args: [u64; 6]) -> Result<u64, CallError> {
        self.0.call(number, args)
    }

    fn mmap(&mut self, at: u64, len: Len, prot: i32, flags: i32, fd: i32) -> Result<Va, CallError> {
        let args = [at, len.0, prot as u64, flags as u64, fd as i64 as u64, 0];
        self.call(libc::SYS_mmap, args).map(Va)
    }

    /// Zeroed read-write memory; costs nothing until it is touched.
    pub fn map_data(&mut self, len: Len) -> Result<Va, CallError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.mmap(0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// The same, below 2 GiB.
    pub fn map_low(&mut self, len: Len) -> Result<Va, CallError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_32BIT;
        self.mmap(0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// Code: read-execute, at exactly `at` (which must be free), or anywhere.
    pub fn map_code(&mut self, at: Option<Va>, len: Len) -> Result<Va, CallError> {
        let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if at.is_some() {
            flags |= libc::MAP_FIXED_NOREPLACE;
        }
        self.mmap(at.map_or(0, |a| a.0), len, libc::PROT_READ | libc::PROT_EXEC, flags, -1)
    }

    /// `memfd_create` with the name at `name`; closed on exec.
    pub fn memfd(&mut self, name: Va) -> Result<i32, CallError> {
        let fd = self.call(libc::SYS_memfd_create, [name.0, u64::from(libc::MFD_CLOEXEC), 0, 0, 0, 0])?;
        Ok(fd as i32)
    }

    /// `ftruncate`.
    pub fn resize(&mut self, fd: i32, len: Len) -> Result<(), CallError> {
        self.call(libc::SYS_ftruncate, [fd as u64, len.0, 0, 0, 0, 0]).map(drop)
    }

    /// Maps a whole memfd shared.
    pub fn map_shared(&mut self, fd: i32, len: Len) -> Result<Va, CallError> {
        self.mmap(0, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE, fd)
    }

    /// `close`.
    pub fn close(&mut self, fd: i32) -> Result<(), CallError> {
        self.call(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]).map(drop)
    }

    /// A forked child finds zeros there.
    pub fn wipe_on_fork(&mut self, at: Va, len: Len) -> Result<(), CallError> {
        self.call(libc::SYS_madvise, [at.0, len.0, libc::MADV_WIPEONFORK as u64, 0, 0, 0]).map(drop)
    }

    /// `munmap`.
    pub fn unmap(&mut self, at: Va, len: Len) -> Result<(), CallError> {
        self.call(libc::SYS_munmap, [at.0, len.0, 0, 0, 0, 0]).map(drop)
    }

    /// `rt_sigaction`; `new` and `old` are addresses in the target, 0 = none.
    pub fn sigaction(&mut self, signal: i32, new: Va, old: Va) -> Result<(), CallError> {
        self.call(libc::SYS_rt_sigaction, [signal as u64, new.0, old.0, 8, 0, 0]).map(drop)
    }
}
