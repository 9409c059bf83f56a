//! The head of the shared region: header, journal and list of mappings of one process. In the
//! target it is private memory. So a forked child that is under attack changes its own copy, and
//! not what its parent is detached by.

use sidestep_isa::Va;
use sidestep_sys::Process;

use crate::error::SessionError;
use crate::memory::raw::Plain;
use crate::target::discovery;

/// The head of a process, by offsets of [`crate::memory::layout::Layout`].
#[derive(Clone)]
pub(crate) struct Head {
    /// The process that it is of.
    pub process: Process,
    /// Where it is there.
    pub at: Va,
}

impl Head {
    pub fn u32(&self, off: u64) -> Result<u32, SessionError> {
        Ok(self.process.read_pod(Va(self.at.0 + off))?)
    }

    pub fn u64(&self, off: u64) -> Result<u64, SessionError> {
        Ok(self.process.read_pod(Va(self.at.0 + off))?)
    }

    pub fn set_u32(&self, off: u64, value: u32) -> Result<(), SessionError> {
        self.write(off, &value.to_ne_bytes())
    }

    pub fn set_u64(&self, off: u64, value: u64) -> Result<(), SessionError> {
        self.write(off, &value.to_ne_bytes())
    }

    pub fn write(&self, off: u64, bytes: &[u8]) -> Result<(), SessionError> {
        Ok(self.process.write(Va(self.at.0 + off), bytes)?)
    }

    /// `n` structs in a row.
    pub fn read_array<T: Plain>(&self, off: u64, n: u64) -> Result<Vec<T>, SessionError> {
        discovery::read_array(&self.process, Va(self.at.0 + off), n)
    }
}
