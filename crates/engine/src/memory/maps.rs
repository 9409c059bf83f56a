//! Descriptions of maps, and what maps hold at the start.

use sidestep_bpf::map::{Map, MapKind};
use sidestep_wire::{MAPS_MAX, MapDesc};

use crate::memory::layout::Layout;
use crate::memory::raw::bytes_of;
use crate::memory::view::View;

/// What the controller knows of a map, whatever the target has written to the description in the
/// shared region: only entries and what counts them are taken from there.
pub(crate) fn placed(maps: &[Map], layout: &Layout, index: usize) -> Option<MapDesc> {
    let (map, place) = (maps.get(index)?, layout.maps.get(index)?);
    let mut desc = desc(map, index)?;
    (desc.data, desc.cells) = (place.data, place.cells);
    Some(desc)
}

/// The description of a map, without its place.
pub(crate) fn desc(map: &Map, index: usize) -> Option<MapDesc> {
    let entries = match map.kind {
        // Nothing is kept by entry; the kernel has one per CPU.
        MapKind::PerfEventArray => map.max_entries.max(1),
        _ => map.max_entries,
    };
    let index = u32::try_from(index).ok().filter(|index| *index < MAPS_MAX)?;
    MapDesc::new(map.kind.number(), map.key_size, map.value_size, entries, map.flags, index)
}

/// The descriptions of all maps: for the agent, whose own they are. `None`: there is no such map.
pub(crate) fn shapes(maps: &[Map], layout: &Layout) -> Option<Vec<u8>> {
    let one = |index| Some(bytes_of(&placed(maps, layout, index)?).to_vec());
    Some((0..maps.len()).map(one).collect::<Option<Vec<_>>>()?.concat())
}

/// Writes the descriptions of all maps and what they hold at the start.
pub(crate) fn init(shared: &View, layout: &Layout, maps: &[Map]) {
    for (index, map) in maps.iter().enumerate() {
        let Some(desc) = placed(maps, layout, index) else { continue };
        shared.write(layout.map_desc(index), bytes_of(&desc));
        if map.kind == MapKind::Array {
            shared.write(desc.data, &map.initial);
        }
    }
}
