//! The seam where a handler enters the detour: code, and the context it needs.

use sidestep_isa::x86::emit::{Asm, Reg};

/// What a handler finds ready when its code runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// One register points at the cells of the thread; the code may change that register and the flags, nothing else.
    Cells,
    /// All registers of the site are saved in a frame, and the agent's hit function gets it.
    Frame,
}

/// What happens at a hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handler {
    /// Adds 1 to a cell of the thread, inline.
    Count {
        /// The cell.
        cell: u32,
        /// Number of the probe, for misses.
        probe: u32,
    },
    /// Calls the agent's hit function.
    Agent {
        /// Number of the probe.
        probe: u32,
    },
    /// As [`Handler::Agent`], at a place of its own: behind the first displaced instructions (`plan::syscalls`). The red zone
    /// may be in use there, even if the site is a function entry.
    Guard {
        /// Number of the probe.
        probe: u32,
        /// How many displaced instructions run before it.
        before: usize,
    },
}

impl Handler {
    /// The context that the code needs.
    #[must_use]
    pub fn context(self) -> Context {
        match self {
            Handler::Count { .. } => Context::Cells,
            Handler::Agent { .. } | Handler::Guard { .. } => Context::Frame,
        }
    }

    /// Emits inline code for [`Context::Cells`].
    pub(crate) fn emit_cells(self, asm: &mut Asm, cells: Reg) {
        if let Handler::Count { cell, .. } = self {
            asm.add_one(cells, cell as i32 * 8, false);
        }
    }
}
