//! Programs, instruction by instruction (`Documentation/bpf/standardization/instruction-set.rst`).

use std::io::Write;

use sidestep_sys::bpf::{Map, Program, ProgramKind, ProgramSpec, resolve_maps};

/// `r0 = 0; exit`
pub const NOTHING: [u64; 2] = [insn(0xb7, 0, 0, 0, 0), insn(0x95, 0, 0, 0, 0)];

pub const fn insn(opcode: u8, dst: u64, src: u64, off: i16, imm: i32) -> u64 {
    opcode as u64 | dst << 8 | src << 12 | (off as u16 as u64) << 16 | (imm as u32 as u64) << 32
}

/// `dst = map(index) ll`
pub const fn map(dst: u64, index: i32) -> [u64; 2] {
    [insn(0x18, dst, 5, 0, index), 0]
}

/// `dst = map_value(index, offset) ll`
pub const fn value(dst: u64, index: i32, offset: i32) -> [u64; 2] {
    [insn(0x18, dst, 6, 0, index), insn(0, 0, 0, 0, offset)]
}

/// Counts the hits in the first 8 bytes of the first map's only value.
pub fn count() -> Vec<u64> {
    let add = [insn(0xb7, 2, 0, 0, 1), insn(0xdb, 1, 2, 0, 0)];
    [&value(1, 0, 0)[..], &add, &NOTHING].concat()
}

/// Stores what helper `number` gives for the context into the first 8 bytes of the first map's only
/// value.
pub fn store_result(number: i32) -> Vec<u64> {
    let call = [insn(0x85, 0, 0, 0, number)];
    let store = [insn(0x7b, 1, 0, 0, 0)];
    [&call, &value(1, 0, 0)[..], &store, &NOTHING].concat()
}

/// Puts 8 bytes of `struct pt_regs` from `offset` on into the ring that is the first map.
pub fn ring_output(offset: i16) -> Vec<u64> {
    let record = [
        insn(0x79, 6, 1, offset, 0),
        insn(0x7b, 10, 6, -8, 0),
        insn(0xbf, 2, 10, 0, 0),
        insn(0x07, 2, 0, 0, -8),
        insn(0xb7, 3, 0, 0, 8),
        insn(0xb7, 4, 0, 0, 0),
        insn(0x85, 0, 0, 0, 130),
    ];
    [&record[..1], &map(1, 0)[..], &record[1..], &NOTHING].concat()
}

/// Puts 8 bytes of `struct pt_regs` from `offset` on into the first map, with
/// `bpf_perf_event_output`.
pub fn perf_output(offset: i16) -> Vec<u64> {
    let before = [insn(0x79, 6, 1, offset, 0), insn(0x7b, 10, 6, -8, 0)];
    // BPF_F_CURRENT_CPU
    let this_cpu = [insn(0x18, 3, 0, 0, -1), 0];
    let after = [insn(0xbf, 4, 10, 0, 0), insn(0x07, 4, 0, 0, -8), insn(0xb7, 5, 0, 0, 8), insn(0x85, 0, 0, 0, 25)];
    [&before[..], &map(2, 0), &this_cpu, &after, &NOTHING].concat()
}

/// Reserves 16 bytes of the ring that is the first map and gives them back.
pub fn ring_discard() -> Vec<u64> {
    let reserve = [insn(0xb7, 2, 0, 0, 16), insn(0xb7, 3, 0, 0, 0), insn(0x85, 0, 0, 0, 131)];
    let discard = [insn(0x15, 0, 0, 3, 0), insn(0xbf, 1, 0, 0, 0), insn(0xb7, 2, 0, 0, 0), insn(0x85, 0, 0, 0, 133)];
    [&map(1, 0)[..], &reserve, &discard, &NOTHING].concat()
}

pub fn load(kind: ProgramKind, mut code: Vec<u64>, maps: &[&Map]) -> Program {
    resolve_maps(&mut code, maps).unwrap();
    let spec = ProgramSpec { name: "test", kind, code: &code, license: "GPL" };
    Program::load(&spec).unwrap_or_else(|e| panic!("{e}"))
}

/// Writes to the real standard error, which is seen although the test passes: only the macros are
/// captured.
pub fn say(line: &str) {
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
