//! Programs and maps as the kernel takes them, through sidestep-sys.
#![allow(dead_code)]

use std::io::Write;

use sidestep_bpf::Program;
use sidestep_bpf::map::Map;
use sidestep_sys::bpf::{self, MapError, MapSpec};

/// Creates a map in the kernel.
pub fn create(map: &Map) -> Result<bpf::Map, MapError> {
    bpf::Map::create(&MapSpec {
        name: &map.name,
        kind: map.kind.number(),
        key_size: map.key_size,
        value_size: map.value_size,
        max_entries: map.max_entries,
        flags: map.flags,
        initial: &map.initial,
        readonly: map.readonly,
    })
}

/// The code, a number per slot.
pub fn code(program: &Program) -> Vec<u64> {
    program.slots.iter().map(|slot| u64::from_le_bytes(slot.to_bytes())).collect()
}

/// Says something that is seen although the test passes: only the macros are captured.
pub fn say(line: &str) {
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
