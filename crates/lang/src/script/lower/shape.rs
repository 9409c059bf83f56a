//! The maps of a script as those of eBPF.

use sidestep_bpf::map::{Map, MapKind};

use super::super::checked::{self, PER_THREAD};
use super::super::types::{Content, Type};

pub(super) fn map(name: &str, kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> Map {
    let (name, initial) = (name.to_owned(), Vec::new());
    Map { name, kind, key_size, value_size, max_entries, flags: 0, readonly: false, initial }
}

/// A map of the script as one of eBPF. What is one value, set or not, has a word behind it that
/// tells; what is merged by more than addition needs keys, so that it can be forgotten.
pub(super) fn shape(of: &checked::Map, config: &checked::Config) -> Map {
    let value = of.content.stored();
    let per_thread = of.content.is_aggregate() && !of.shared;
    let (wanted, evicts) = of.declared.unwrap_or((config.max_map_keys, false));
    // Without keys there is one value.
    let wanted = if of.keys.is_empty() { 1 } else { wanted };
    let keys = match per_thread {
        true => wanted.min((PER_THREAD / (value + 8)) as u32).max(1),
        false => wanted,
    };
    let key = key_size(&of.keys) as u32;
    match (is_array(of), per_thread) {
        (true, true) => map(&of.name, MapKind::PercpuArray, 4, value as u32, 1),
        (true, false) => map(&of.name, MapKind::Array, 4, value as u32 + 8, 1),
        (false, true) if evicts => map(&of.name, MapKind::LruPercpuHash, key, value as u32, keys),
        (false, false) if evicts => map(&of.name, MapKind::LruHash, key, value as u32, keys),
        (false, true) => map(&of.name, MapKind::PercpuHash, key, value as u32, keys),
        (false, false) => map(&of.name, MapKind::Hash, key, value as u32, keys),
    }
}

/// Whether the map is one value at a place that is known.
#[must_use]
pub fn is_array(map: &checked::Map) -> bool {
    map.keys.is_empty() && !matches!(map.content, Content::Min { .. } | Content::Max { .. } | Content::Tseries { .. })
}

/// Bytes of a key; one that is not there is a word.
#[must_use]
pub fn key_size(keys: &[Type]) -> usize {
    keys.iter().map(Type::stored).sum::<usize>().max(8)
}
