//! The maps that programs of the tests use, by index, and pieces that many begin with.

#![allow(dead_code)]

pub mod accepted;
pub mod meetings;
pub mod random;
pub mod refused;

use sidestep_bpf::map::{Map, MapKind};
use sidestep_bpf::verify::Rules;

fn map(name: &str, kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> Map {
    let (name, initial) = (name.to_owned(), Vec::new());
    Map { name, kind, key_size, value_size, max_entries, flags: 0, readonly: false, initial }
}

/// 0 a hash of 16-byte values, 1 an array, 2 a ring, 3 perf events, 4 stacks, 5 constants, 6
/// variables.
pub fn maps() -> Vec<Map> {
    let mut maps = vec![
        map("counts", MapKind::Hash, 8, 16, 64),
        map("slots", MapKind::Array, 4, 64, 8),
        map("ring", MapKind::Ringbuf, 0, 0, 4096),
        map("events", MapKind::PerfEventArray, 4, 4, 2),
        map("stacks", MapKind::StackTrace, 4, 1016, 64),
        map(".rodata", MapKind::Array, 4, 8, 1),
        map(".bss", MapKind::Array, 4, 32, 1),
    ];
    maps[5].readonly = true;
    maps[5].initial = b"redis\0ab".to_vec();
    maps
}

/// The rules with these maps.
pub fn rules(maps: &[Map]) -> Rules<'_> {
    Rules { maps, max_steps: 100_000, ..Rules::default() }
}

const LOOKUP: &str = "*(u64 *)(r10 - 8) = 0
    r1 = map(0) ll
    r2 = r10
    r2 += -8
    call 1";

const SLOT: &str = "*(u32 *)(r10 - 4) = 0
    r1 = map(1) ll
    r2 = r10
    r2 += -4
    call 1
    if r0 != 0 goto have
    exit
    have:";

const RESERVE: &str = "r1 = map(2) ll
    r2 = 16
    r3 = 0
    call 131
    if r0 != 0 goto reserved
    exit
    reserved:";

/// Two paths, of which `r6` decides, meet with 8 and 100 in `r8`, the harmless one first; a value
/// of 64 bytes in `r7`.
const MEET: &str = "r6 = *(u64 *)(r1 + 0)
    SLOT
    r7 = r0
    r8 = 8
    if r6 != 0 goto other
    r5 = 0
    r5 = 0
    r5 = 0
    goto meet
    other:
    r8 = 100
    meet:
    r5 = 0";

/// The same in a slot of the stack.
const SPILLED: &str = "MEET
    *(u64 *)(r10 - 16) = 8
    if r6 != 0 goto other2
    r5 = 0
    r5 = 0
    r5 = 0
    goto meet2
    other2:
    *(u64 *)(r10 - 16) = 100
    meet2:
    r5 = 0";

/// Another meeting, of paths that differ in nothing.
const TWICE: &str = "r9 = *(u64 *)(r7 + 0)
    r5 = 0
    if r9 == 0 goto meet3
    r5 = 0
    r5 = 0
    r5 = 0
    meet3:
    r5 = 0";

/// A program as the assembler reads it: `;` separates instructions, and names in capitals stand for
/// pieces.
pub fn lines(text: &str) -> String {
    let branches: String = (0..30).map(|i| format!("if r2 & {} goto b{i}\nr0 += 1\nb{i}:\n", 1 << i)).collect();
    let pieces = [
        ("SPILLED", SPILLED),
        ("TWICE", TWICE),
        ("MEET", MEET),
        ("LOOKUP", LOOKUP),
        ("SLOT", SLOT),
        ("RESERVE", RESERVE),
        ("BRANCHES", &branches),
    ];
    let text = pieces.iter().fold(text.to_owned(), |text, (name, piece)| text.replace(name, piece));
    text.replace(';', "\n").replace(": ", ":\n")
}
