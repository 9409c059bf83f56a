//! Sizes and offsets of the regions in the target, decided once per session.

use std::mem::size_of;

use sidestep_bpf::map::Map;
use sidestep_sys::arch::ADDRESS_END;
use sidestep_wire::private::STATE_LEN;
use sidestep_wire::{Common, JournalEntry, LookupTable, MapDesc, MapEntry, Private, ProbeDesc, SharedLayout, Slot};

use crate::memory::maps;

/// Bytes of a page of memory: the unit of mappings.
pub(crate) const PAGE: u64 = 4096;
/// Is there little address space, in the target and in the controller?
const SMALL: bool = ADDRESS_END <= 1 << 32;
/// Upper bound of the shared region: it is sparse, but it counts as address space.
pub(crate) const SHARED_MAX: u64 = if SMALL { 256 << 20 } else { 4 << 30 };
/// Most threads that get cells of their own.
pub(crate) const SLOTS_MAX: u64 = if SMALL { 1024 } else { 4096 };
/// Fewest.
const SLOTS_MIN: u64 = if SMALL { 64 } else { 128 };
/// Fewest where the memory is limited, by the user or by the process.
const SLOTS_LEAST: u64 = 16;
/// What the agent, programs and detours take at least, where the memory is limited. Each mapping is
/// compared with the limit again when it is made.
const CODE_LEAST: u64 = 256 << 10;
/// A session takes one part in so many of what a process may still map, if that is enough for
/// [`SLOTS_LEAST`].
const OURS_OF_ROOM: u64 = 4;

/// What a session needs room for.
#[derive(Clone, Debug)]
pub struct Needs {
    /// Probes, ours included.
    pub probes: u64,
    /// Maps, with their final numbers of entries.
    pub maps: Vec<Map>,
    /// Bytes of ring per thread, a power of two, or 0.
    pub ring_len: u64,
}

/// Where the memory of a map is, and how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapPlace {
    /// Offset in the shared region.
    pub data: u64,
    /// Offset from a thread's cells, in bytes.
    pub cells: u64,
}

/// Where everything is. Shared offsets are from the start of the shared region, private ones from
/// the private region's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub probes_max: u64,
    pub cells: u64,
    pub ring_len: u64,
    pub slots_max: u64,
    pub slot_stride: u64,
    pub cells_off: u64,
    pub ring_off: u64,
    /// Where the part begins that all processes of a session share.
    pub common_off: u64,
    pub missed_off: u64,
    pub shares_off: u64,
    pub journal_off: u64,
    pub journal_cap: u64,
    pub maps_off: u64,
    pub maps_cap: u64,
    pub map_descs_off: u64,
    pub maps: Vec<MapPlace>,
    pub slots_off: u64,
    pub shared_len: u64,
    pub descs_off: u64,
    pub shapes_off: u64,
    pub states_off: u64,
    pub state_stride: u64,
    pub private_len: u64,
    pub lookup_len: u64,
    /// Bytes that all mappings of the session may have in one process.
    pub max_memory: u64,
}

/// Journal entries of a probe: its site, and an island that leads to its detour.
const JOURNAL: u64 = 2;
/// Room for remote calls, from the start of the private region: a list of calls, and what they read
/// and write. (No frames: who returns through one that a dead controller has left must find it
/// there.)
pub(crate) const CALLS_OFF: u64 = (size_of::<Private>() as u64).next_multiple_of(PAGE);
const CALLS_LEN: u64 = LIST_LEN + DATA_LEN;
/// Of the list; and of what its calls read and write.
pub(crate) const LIST_LEN: u64 = 8 * 1024;
const DATA_LEN: u64 = 8 * 1024;
/// Mapping list entries: slabs, pages of stubs, and shadow stacks that the agent had to grow.
pub(crate) const MAPS_CAP: u64 = 16 * 1024;

impl Layout {
    /// Lays out the regions. `None`: it would be more than [`SHARED_MAX`].
    pub fn new(needs: &Needs) -> Option<Layout> {
        // First the hit counts, then what maps keep per thread.
        let mut cells = needs.probes * 8;
        let descs: Vec<MapDesc> =
            needs.maps.iter().enumerate().map(|(i, m)| maps::desc(m, i)).collect::<Option<_>>()?;
        let mut place = |desc: &MapDesc| {
            let at = cells;
            cells = round(cells.checked_add(desc.cells_len())?, 8);
            Some(at)
        };
        let cells_of: Vec<u64> = descs.iter().map(&mut place).collect::<Option<_>>()?;
        let cells_off = size_of::<Slot>() as u64;
        let ring_off = round(cells_off.checked_add(cells)?, 64);
        let slot_stride = round(ring_off + needs.ring_len, PAGE);

        let journal_off = PAGE;
        let maps_off = round(journal_off + JOURNAL * needs.probes * size_of::<JournalEntry>() as u64, 64);
        let common_off = round(maps_off + MAPS_CAP * size_of::<MapEntry>() as u64, PAGE);
        let missed_off = round(common_off + size_of::<Common>() as u64, 64);
        // Hits that were missed, and returns that were never seen.
        let shares_off = round(missed_off + 2 * needs.probes * 8, 64);
        let map_descs_off = round(shares_off + needs.probes * 8, 64);
        let mut end = map_descs_off + (needs.maps.len() * size_of::<MapDesc>()) as u64;
        let mut maps = Vec::new();
        for (desc, cells) in descs.iter().zip(cells_of) {
            // On pages of its own, so that what is large and never touched takes no memory.
            end = round(end, PAGE);
            maps.push(MapPlace { data: end, cells });
            end = end.checked_add(desc.data_len())?;
        }
        let slots_off = round(end, PAGE);
        let left = SHARED_MAX.checked_sub(slots_off)?;
        let slots_max = (left / slot_stride).min(SLOTS_MAX);
        if slots_max < SLOTS_MIN {
            return None;
        }

        let descs_off = CALLS_OFF + CALLS_LEN;
        let shapes_off = round(descs_off + needs.probes * size_of::<ProbeDesc>() as u64, 64);
        let states_off = round(shapes_off + (needs.maps.len() * size_of::<MapDesc>()) as u64, PAGE);
        let state_stride = round(STATE_LEN as u64, PAGE);
        Some(Layout {
            probes_max: needs.probes,
            cells: cells / 8,
            ring_len: needs.ring_len,
            slots_max,
            slot_stride,
            cells_off,
            ring_off,
            common_off,
            missed_off,
            shares_off,
            journal_off,
            journal_cap: JOURNAL * needs.probes,
            maps_off,
            maps_cap: MAPS_CAP,
            map_descs_off,
            maps,
            slots_off,
            shared_len: slots_off + slots_max * slot_stride,
            descs_off,
            shapes_off,
            states_off,
            state_stride,
            private_len: round(states_off + slots_max * state_stride, PAGE),
            lookup_len: round(size_of::<LookupTable>() as u64, PAGE),
            max_memory: u64::MAX,
        })
    }

    /// The same with room for so few threads that all mappings have `max` bytes at most.
    ///
    /// # Errors
    /// That is too little: how many bytes would do.
    pub fn within(self, max: u64) -> Result<Layout, u64> {
        let slots = self.slots_within(max);
        let least = SLOTS_LEAST.min(self.slots_max);
        match slots < least {
            true => Err(self.fixed() + least * self.per_thread()),
            false => Ok(Layout { max_memory: max, ..self.with_slots(slots) }),
        }
    }

    /// What a process maps of this that may map only `room` more bytes, if there is a limit: slots
    /// for fewer threads. The process needs most of that room itself.
    ///
    /// # Errors
    /// Even the fewest slots take more than half of the room: how many bytes they take.
    pub fn in_process(self, room: Option<u64>) -> Result<Layout, u64> {
        let Some(room) = room else { return Ok(self) };
        let least = SLOTS_LEAST.min(self.slots_max);
        let needed = self.fixed() + least * self.per_thread();
        if needed > room / 2 {
            return Err(needed);
        }
        let slots = self.slots_within(room / OURS_OF_ROOM).max(least);
        Ok(self.with_slots(slots))
    }

    /// For how many threads there is room in so many bytes.
    fn slots_within(&self, bytes: u64) -> u64 {
        (bytes.saturating_sub(self.fixed()) / self.per_thread()).min(self.slots_max)
    }

    /// Bytes that do not depend on the number of threads.
    fn fixed(&self) -> u64 {
        self.slots_off + self.states_off + self.lookup_len + CODE_LEAST
    }

    /// Bytes of a thread.
    fn per_thread(&self) -> u64 {
        self.slot_stride + self.state_stride
    }

    fn with_slots(self, slots: u64) -> Layout {
        Layout {
            slots_max: slots,
            shared_len: self.slots_off + slots * self.slot_stride,
            private_len: round(self.states_off + slots * self.state_stride, PAGE),
            ..self
        }
    }

    /// The offsets in the shared region, as the agent reads them.
    pub fn shared(&self) -> SharedLayout {
        SharedLayout {
            slots_off: self.slots_off,
            slot_stride: self.slot_stride,
            cells_off: self.cells_off,
            cells: self.cells,
            ring_off: self.ring_off,
            ring_len: self.ring_len,
            missed_off: self.missed_off,
            shares_off: self.shares_off,
            probes_max: self.probes_max,
            map_descs_off: self.map_descs_off,
            map_descs: self.maps.len() as u64,
            journal_off: self.journal_off,
            maps_off: self.maps_off,
            common_off: self.common_off,
            slots_max: self.slots_max as u32,
            journal_cap: self.journal_cap as u32,
            maps_cap: self.maps_cap as u32,
            pad: 0,
        }
    }

    /// Offset of the description of a map in the shared region.
    pub fn map_desc(&self, index: usize) -> u64 {
        self.map_descs_off + (index * size_of::<MapDesc>()) as u64
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
    use sidestep_bpf::map::MapKind;

    use super::*;

    fn map(kind: MapKind, value_size: u32, max_entries: u32) -> Map {
        let (name, initial) = (String::new(), Vec::new());
        Map { name, kind, key_size: 4, value_size, max_entries, flags: 0, readonly: false, initial }
    }

    #[test]
    fn regions_do_not_overlap_and_slots_fit() {
        let maps = vec![map(MapKind::Array, 12, 100), map(MapKind::PercpuArray, 8000, 3), map(MapKind::Hash, 8, 10240)];
        for needs in [
            Needs { probes: 1, maps: Vec::new(), ring_len: 0 },
            Needs { probes: 5000, maps: maps.clone(), ring_len: 0 },
            Needs { probes: 64, maps, ring_len: 256 * 1024 },
        ] {
            let l = Layout::new(&needs).unwrap();
            assert!(size_of::<sidestep_wire::Header>() as u64 <= l.journal_off);
            assert!(l.maps_off + l.maps_cap * size_of::<MapEntry>() as u64 <= l.common_off);
            assert_eq!(l.common_off % PAGE, 0);
            assert!(l.common_off + size_of::<Common>() as u64 <= l.missed_off);
            assert_eq!(l.shared().dropped_off(), l.missed_off + 8 * needs.probes);
            assert!(l.shared().dropped_off() + 8 * needs.probes <= l.shares_off);
            assert!(l.shares_off + 8 * needs.probes <= l.map_descs_off);
            assert!(l.cells_off + 8 * l.cells <= l.ring_off);
            assert!(l.ring_off + l.ring_len <= l.slot_stride);
            assert!(l.slot(l.slots_max) <= l.shared_len);
            assert!(l.states_off + l.slots_max * l.state_stride <= l.private_len);
            assert!(l.slots_max >= SLOTS_MIN);
            let mut last = l.map_descs_off + (needs.maps.len() * size_of::<MapDesc>()) as u64;
            let mut cells = needs.probes * 8;
            for (i, (place, map)) in l.maps.iter().zip(&needs.maps).enumerate() {
                let desc = maps::desc(map, i).unwrap();
                assert!(place.data >= last && place.cells >= cells);
                (last, cells) = (place.data + desc.data_len(), place.cells + desc.cells_len());
            }
            assert!(last <= l.slots_off && cells <= 8 * l.cells);
        }
    }

    #[test]
    fn a_limit_leaves_room_for_fewer_threads() {
        let layout = Layout::new(&Needs { probes: 5, maps: Vec::new(), ring_len: 4096 }).unwrap();
        let all = |l: &Layout| l.shared_len + l.private_len + l.lookup_len;
        let needed = layout.clone().within(1 << 20).unwrap_err();
        let least = layout.clone().within(needed).unwrap();
        assert!(all(&least) <= needed && least.slots_max == SLOTS_LEAST);
        assert_eq!(layout.clone().within(needed - 1), Err(needed));
        let more = layout.clone().within(2 * needed).unwrap();
        assert!(all(&more) <= 2 * needed && more.slots_max > SLOTS_LEAST);
        let none = layout.clone().within(1 << 40).unwrap();
        assert_eq!((none.slots_max, none.shared_len), (layout.slots_max, layout.shared_len));
    }

    #[test]
    fn a_process_with_little_room_maps_slots_for_fewer_threads() {
        let layout = Layout::new(&Needs { probes: 5, maps: Vec::new(), ring_len: 4096 }).unwrap();
        let all = |l: &Layout| l.shared_len + l.private_len + l.lookup_len;
        assert_eq!(layout.clone().in_process(None).unwrap(), layout);
        assert_eq!(layout.clone().in_process(Some(1 << 40)).unwrap(), layout);
        let part = layout.clone().in_process(Some(256 << 20)).unwrap();
        assert!(all(&part) <= 64 << 20 && part.slots_max > SLOTS_LEAST && part.slots_max < layout.slots_max);
        // The rest is where other processes of the session have it.
        let slots_max = layout.slots_max;
        assert_eq!(
            Layout { shared_len: layout.shared_len, private_len: layout.private_len, slots_max, ..part },
            layout
        );
        let needed = layout.clone().in_process(Some(0)).unwrap_err();
        assert_eq!(layout.clone().in_process(Some(2 * needed)).unwrap().slots_max, SLOTS_LEAST);
        assert_eq!(layout.in_process(Some(2 * needed - 2)), Err(needed));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let huge = map(MapKind::PercpuArray, 1 << 20, 1 << 10);
        assert_eq!(Layout::new(&Needs { probes: 1, maps: vec![huge], ring_len: 0 }), None);
    }
}
