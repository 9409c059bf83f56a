//! What a session shares, through atomics, by offset.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use sidestep_sys::{SharedError, SharedMap};
use sidestep_wire::MapDesc;

/// What all processes of a session share. Offsets come from [`crate::memory::layout::Layout`], so
/// they lie inside.
#[derive(Clone)]
pub(crate) struct View(Arc<SharedMap>);

impl View {
    pub fn from_target_fd(pid: i32, fd: i32, len: u64) -> Result<View, SharedError> {
        Ok(View(Arc::new(SharedMap::from_target_fd(pid, fd, len as usize)?)))
    }

    /// Memory of the controller alone.
    pub fn private(len: u64) -> Result<View, SharedError> {
        Ok(View(Arc::new(SharedMap::private(len as usize)?)))
    }

    /// The memory itself.
    pub fn map(&self) -> &Arc<SharedMap> {
        &self.0
    }

    /// The file that it is a view of; none, of memory of the controller alone.
    pub fn file(&self) -> Option<&File> {
        self.0.file()
    }

    /// The word at an offset that nobody has checked.
    pub fn word(&self, off: u64) -> Option<&AtomicU64> {
        self.0.get(off as usize)
    }

    pub fn u32(&self, off: u64) -> &AtomicU32 {
        self.0.get(off as usize).expect("the offset lies inside the region")
    }

    pub fn u64(&self, off: u64) -> &AtomicU64 {
        self.0.get(off as usize).expect("the offset lies inside the region")
    }

    /// The description of a map, with what changes in it.
    #[allow(unsafe_code, reason = "a struct of the shared region as it is, not a copy")]
    pub fn map_desc(&self, off: u64) -> &MapDesc {
        // SAFETY: all bit patterns are values; what changes after the maps were made are atomics.
        let descs = unsafe { self.0.view(off as usize, 1) };
        descs.and_then(<[MapDesc]>::first).expect("the offset lies inside the region")
    }

    /// `n` words in a row.
    pub fn words(&self, off: u64, n: u64) -> &[AtomicU64] {
        self.0.slice(off as usize, n as usize).expect("the range lies inside the region")
    }

    pub fn write(&self, off: u64, bytes: &[u8]) {
        let to: &[AtomicU8] = self.0.slice(off as usize, bytes.len()).expect("the range lies inside the region");
        for (to, from) in to.iter().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
    }
}
