//! Mapping memory in a stopped target, by its own system calls.

use std::rc::Rc;

use sidestep_isa::{Len, Va};
use sidestep_sys::{Batch, Call, CallError, Mapping, Process, Stopped, arch};

use crate::error::{SessionError, unreadable};
use crate::target::space::{Grows, Used};

/// The mappings of a process, ascending.
pub(crate) fn mappings(process: &Process) -> Result<Vec<Mapping>, SessionError> {
    process.maps().map_err(|source| unreadable(process, source))
}

/// Those of a process that stands still.
pub(crate) fn stopped_mappings(stopped: &Stopped) -> Result<Rc<Vec<Mapping>>, SessionError> {
    stopped.maps().map_err(|source| unreadable(stopped.process(), source))
}

/// The address space that mappings take.
pub(crate) fn used(mappings: &[Mapping]) -> Vec<Used> {
    let grows = |m: &Mapping| match m.name.to_str() {
        Some("[heap]") => Grows::Up,
        Some("[stack]") => Grows::Down,
        _ => Grows::No,
    };
    mappings.iter().map(|m| Used { start: m.start.0, end: m.end.0, grows: grows(m) }).collect()
}

/// Remote system calls with names.
pub(crate) struct Remote<'a>(pub &'a mut Stopped);

impl Remote<'_> {
    fn call(&mut self, number: libc::c_long, args: [u64; 6]) -> Result<u64, CallError> {
        self.0.call(number, args)
    }

    fn mmap(&mut self, at: u64, len: Len, prot: i32, flags: i32, fd: i32, from: u64) -> Result<Va, CallError> {
        let args = [at, len.0, prot as u64, flags as u64, fd as i64 as u64, from / arch::MMAP_UNIT];
        match self.call(arch::MMAP, args) {
            Err(CallError::Errno { pid, errno: libc::ENOMEM, .. }) => Err(CallError::NoMemory { pid, len }),
            result => result.map(Va),
        }
    }

    /// Zeroed read-write memory at exactly `at`, which must be free; costs nothing until it is
    /// touched.
    pub fn map_data(&mut self, at: Va, len: Len) -> Result<Va, CallError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        self.mmap(at.0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }

    /// Code, read-execute, at exactly `at`, which must be free.
    pub fn map_code(&mut self, at: Va, len: Len) -> Result<Va, CallError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        self.mmap(at.0, len, libc::PROT_READ | libc::PROT_EXEC, flags, -1, 0)
    }

    /// `memfd_create` with the name at `name`; closed on exec. Its length can be sealed.
    pub fn memfd(&mut self, name: Va) -> Result<i32, CallError> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = self.call(libc::SYS_memfd_create, [name.0, u64::from(flags), 0, 0, 0, 0])?;
        Ok(fd as i32)
    }

    /// Maps a whole memfd shared, at `at` if that is free.
    pub fn map_shared(&mut self, at: Option<Va>, fd: i32, len: Len) -> Result<Va, CallError> {
        let at = at.map_or(0, |at| at.0);
        self.mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE, fd, 0)
    }

    /// Maps a whole memfd privately, over the start of an earlier mapping: what is written there is
    /// the process's own.
    pub fn map_head(&mut self, at: Va, fd: i32, len: Len) -> Result<(), CallError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED;
        self.mmap(at.0, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0).map(drop)
    }

    /// `close`.
    pub fn close(&mut self, fd: i32) -> Result<(), CallError> {
        self.call(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]).map(drop)
    }

    /// A forked child finds zeros there.
    pub fn wipe_on_fork(&mut self, at: Va, len: Len) -> Result<(), CallError> {
        self.call(libc::SYS_madvise, [at.0, len.0, libc::MADV_WIPEONFORK as u64, 0, 0, 0]).map(drop)
    }

    /// Left out of core files: the kernel would fill every hole of a shared mapping to write it.
    pub fn dont_dump(&mut self, at: Va, len: Len) -> Result<(), CallError> {
        self.call(libc::SYS_madvise, [at.0, len.0, libc::MADV_DONTDUMP as u64, 0, 0, 0]).map(drop)
    }

    /// `munmap`.
    pub fn unmap(&mut self, at: Va, len: Len) -> Result<(), CallError> {
        self.call(libc::SYS_munmap, [at.0, len.0, 0, 0, 0, 0]).map(drop)
    }
}

/// `rt_sigaction`; `new` and `old` are addresses in the target, 0 = none.
pub(crate) fn sigaction(signal: i32, new: Va, old: Va) -> Call {
    (libc::SYS_rt_sigaction, [signal as u64, new.0, old.0, 8, 0, 0])
}

/// What several remote calls at one go need in the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub batch: Batch,
    /// For what they read and write.
    pub data: Va,
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use sidestep_sys::StopError;

    use super::*;

    /// It was "cannot read the mappings: No such file or directory".
    #[test]
    fn a_process_that_ended_meanwhile_is_said_to_have_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id() as i32).unwrap();
        assert!(mappings(&process).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        let error = mappings(&process).unwrap_err();
        assert!(matches!(error, SessionError::Stop(StopError::Exited { .. })), "{error}");
    }
}
