//! Sizes and offsets of the regions in the target, decided once per session.

use std::mem::size_of;

use sidestep_wire::private::SHADOW_FIRST;
use sidestep_wire::{
    Histogram, JournalEntry, LookupTable, MapEntry, Private, ProbeDesc, ShadowEntry, Slot, ThreadState,
};

const PAGE: u64 = 4096;
/// Upper bound of the shared region: it is sparse, but it counts as address space.
const SHARED_MAX: u64 = 4 << 30;
/// Most threads that get cells of their own.
const SLOTS_MAX: u64 = 4096;
/// Fewest.
const SLOTS_MIN: u64 = 128;

/// What a session needs room for.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Probes, ours included.
    pub probes: u64,
    /// Histograms.
    pub histograms: u64,
    /// Bytes of ring per thread, a power of two, or 0.
    pub ring_len: u64,
}

/// Where everything is. Shared offsets are from the start of the shared region, private ones from the private region's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub probes_max: u64,
    pub cells: u64,
    pub ring_len: u64,
    pub slots_max: u64,
    pub slot_stride: u64,
    pub cells_off: u64,
    pub ring_off: u64,
    pub missed_off: u64,
    pub journal_off: u64,
    pub journal_cap: u64,
    pub maps_off: u64,
    pub maps_cap: u64,
    pub slots_off: u64,
    pub shared_len: u64,
    pub descs_off: u64,
    pub states_off: u64,
    pub state_stride: u64,
    pub child_cells_off: u64,
    pub private_len: u64,
    pub lookup_len: u64,
}

/// Mapping list entries: slabs, and shadow stacks that the agent had to grow.
const MAPS_CAP: u64 = 16 * 1024;

impl Layout {
    /// Lays out the regions.
    pub fn new(needs: Needs) -> Layout {
        let cells = needs.probes * 2 + needs.histograms * Histogram::CELLS as u64;
        let cells_off = size_of::<Slot>() as u64;
        let ring_off = round(cells_off + cells * 8, 64);
        let slot_stride = round(ring_off + needs.ring_len, PAGE);
        let slots_max = (SHARED_MAX / slot_stride).clamp(SLOTS_MIN, SLOTS_MAX);

        let missed_off = PAGE;
        let journal_off = round(missed_off + needs.probes * 8, 64);
        let maps_off = round(journal_off + needs.probes * size_of::<JournalEntry>() as u64, 64);
        let slots_off = round(maps_off + MAPS_CAP * size_of::<MapEntry>() as u64, PAGE);

        let descs_off = round(size_of::<Private>() as u64, 64);
        let states_off = round(descs_off + needs.probes * size_of::<ProbeDesc>() as u64, PAGE);
        let state_stride = round((size_of::<ThreadState>() + SHADOW_FIRST * size_of::<ShadowEntry>()) as u64, PAGE);
        let child_cells_off = states_off + slots_max * state_stride;
        Layout {
            probes_max: needs.probes,
            cells,
            ring_len: needs.ring_len,
            slots_max,
            slot_stride,
            cells_off,
            ring_off,
            missed_off,
            journal_off,
            journal_cap: needs.probes,
            maps_off,
            maps_cap: MAPS_CAP,
            slots_off,
            shared_len: slots_off + slots_max * slot_stride,
            descs_off,
            states_off,
            state_stride,
            child_cells_off,
            private_len: round(child_cells_off + cells * 8, PAGE),
            lookup_len: round(size_of::<LookupTable>() as u64, PAGE),
        }
    }

    /// Offset of a slot in the shared region.
    pub fn slot(&self, index: u64) -> u64 {
        self.slots_off + index * self.slot_stride
    }
}

pub(crate) fn round(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_do_not_overlap_and_slots_fit() {
        for needs in [
            Needs { probes: 1, histograms: 0, ring_len: 0 },
            Needs { probes: 5000, histograms: 5000, ring_len: 0 },
            Needs { probes: 64, histograms: 1, ring_len: 256 * 1024 },
        ] {
            let l = Layout::new(needs);
            assert!(size_of::<sidestep_wire::Header>() as u64 <= l.missed_off);
            assert!(l.missed_off + 8 * needs.probes <= l.journal_off);
            assert!(l.cells_off + 8 * l.cells <= l.ring_off);
            assert!(l.ring_off + l.ring_len <= l.slot_stride);
            assert!(l.slot(l.slots_max) <= l.shared_len);
            assert!(l.states_off + l.slots_max * l.state_stride <= l.child_cells_off);
            assert!(l.slots_max >= SLOTS_MIN);
        }
    }
}
