//! The layouts are a contract between three parties: the controller, the agent, which other flags compile, and the
//! generated code, which contains offsets as numbers. These are the numbers.

use std::mem::{align_of, offset_of, size_of};

use sidestep_wire::lookup::{HASH_MULTIPLIER, HASH_SHIFT, LOOKUP_BUCKETS, bucket};
use sidestep_wire::*;

macro_rules! layout {
    ($name:ident: $size:expr, align $align:expr, { $($field:ident: $at:expr),* $(,)? }) => {
        assert_eq!(size_of::<$name>(), $size, stringify!($name));
        assert_eq!(align_of::<$name>(), $align, stringify!($name));
        $(assert_eq!(offset_of!($name, $field), $at, concat!(stringify!($name), ".", stringify!($field)));)*
    };
}

#[test]
fn shared_region() {
    layout!(Header: 768, align 64, {
        magic: 0, version: 8, pad1: 12, controller_pid: 16, target_pid: 20, controller_start: 24, total_len: 32,
        shared_va: 40, private_va: 48, lookup_va: 56, agent_va: 64, agent_len: 72, trampoline_va: 80, slots_off: 88,
        slot_stride: 96, slots_max: 104, slots_used: 108, cells_off: 112, cells: 120, ring_off: 128, ring_len: 136,
        missed_off: 144, probes_max: 152, journal_off: 160, journal_cap: 168, journal_len: 172, maps_off: 176,
        maps_cap: 184, maps_len: 188, returns_dropped: 192, sigtrap_installed: 200, old_sigtrap: 208,
        opened_actions: 240, opened_threads: 248,
    });
    layout!(SigAction: 32, align 8, { handler: 0, flags: 8, restorer: 16, mask: 24 });
    layout!(JournalEntry: 96, align 8, {
        site: 0, detour: 8, detour_len: 16, pad1: 20, len: 24, insns_len: 25, own: 26, pad: 27, old: 32, new: 48, insns: 64,
    });
    layout!(MapEntry: 24, align 8, { addr: 0, len: 8, kind: 16, pad: 20 });
    layout!(Slot: 64, align 64, { fs_base: 0, tid: 8, head: 16, tail: 24, pad1: 32 });
    layout!(RecordHeader: 40, align 8, { state_len: 0, probe_tid: 8, time: 16, comm: 24 });
}

#[test]
fn private_region() {
    layout!(Private: 264, align 8, {
        shared: 0, lookup: 8, trampoline: 16, probes: 24, states: 32, state_stride: 40, child_cells: 48, traps: 56,
        trap_mask: 64, old_sigtrap: 72, tsc: 104, tsc_shift: 108, tsc_mult: 112, states_used: 120, child: 124, pid: 128,
        scratch: 136,
    });
    layout!(ThreadState: 160, align 8, {
        fs_base: 0, slot: 8, cells: 16, shadow: 24, shadow_cap: 32, shadow_len: 40, tid: 48, tid_word: 52,
        comm_time: 56, comm: 64, sigtrap_blocked: 80, mask_next: 84, masks: 88, shadow_spare: 152,
    });
    layout!(ShadowEntry: 32, align 8, { slot: 0, ret: 8, time: 16, probe: 24 });
    layout!(ProbeDesc: 72, align 4, { flow: 0, record: 4, hits: 8, lost: 12, hist: 16, nargs: 20, args: 24 });
    layout!(TrapEntry: 16, align 8, { site: 0, detour: 8 });
}

#[test]
fn generated_code() {
    layout!(Frame: 80, align 8, {
        r11: 0, r10: 8, r9: 16, r8: 24, rdi: 32, rsi: 40, rdx: 48, rcx: 56, rax: 64, rsp: 72,
    });
    layout!(LookupEntry: 32, align 32, { key: 0, cells: 8, state: 16, owner: 24 });
    assert_eq!(offset_of!(LookupTable, marker), 0);
    assert_eq!(offset_of!(LookupTable, buckets), 64);
    assert_eq!(size_of::<LookupTable>(), (64 + LOOKUP_BUCKETS * 32).next_multiple_of(4096));
}

/// Fields are written to other processes as bytes, so none of them may hide padding.
#[test]
fn no_implicit_padding() {
    assert_eq!(size_of::<Private>(), 7 * 8 + 2 * 8 + 32 + 4 + 4 + 8 + 4 + 4 + 4 + 4 + 128);
    assert_eq!(size_of::<ThreadState>(), 6 * 8 + 4 + 4 + 8 + 16 + 4 + 4 + 8 * 8 + 8);
    assert_eq!(size_of::<JournalEntry>(), 2 * 8 + 2 * 4 + 3 + 5 + 2 * 16 + 32);
    assert_eq!(size_of::<ProbeDesc>(), 6 * 4 + 6 * 8);
}

#[test]
fn the_hash_is_one_multiplication() {
    assert!(i32::try_from(HASH_MULTIPLIER).is_ok(), "a positive immediate: sign extension changes nothing");
    for fs_base in [0, 0x7f12_3456_7740, 0x5555_5555_0000, u64::MAX] {
        let product = (u128::from(fs_base) * u128::from(HASH_MULTIPLIER)) as u64;
        assert_eq!(bucket(fs_base), (product >> HASH_SHIFT) as usize % LOOKUP_BUCKETS);
    }
}

/// Thread stacks lie at regular distances; most of a few thousand of them must find their own bucket at once.
#[test]
fn regular_stacks_spread_over_the_table() {
    for distance in [0x80_1000u64, 0x21000, 0x20000, 0x4000] {
        let mut taken = vec![0u32; LOOKUP_BUCKETS];
        (0..1024).for_each(|i| taken[bucket(0x7f12_3456_7740 - i * distance)] += 1);
        let first: usize = taken.iter().filter(|n| **n != 0).count();
        assert!(first > 820, "{distance:#x}: {first} of 1024");
    }
}

/// Against a search through the boundaries.
#[test]
fn histogram_buckets_are_where_their_boundaries_say() {
    let naive = |value: u64| (0..Histogram::BUCKETS).rev().find(|b| Histogram::low(*b) <= value).unwrap();
    let mut value = 0x9e37_79b9_7f4a_7c15u64;
    for shift in (0..64).chain(0..64) {
        value = value.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        for v in [value >> shift, 1 << shift, (1 << shift) - 1, (1u64 << shift).wrapping_add(1)] {
            assert_eq!(Histogram::bucket(v), naive(v), "{v}");
        }
    }
    assert_eq!(Histogram::bucket(u64::MAX), Histogram::BUCKETS - 1);
    for b in 1..Histogram::BUCKETS {
        let (low, high) = (Histogram::low(b), Histogram::low(b + 1));
        assert!(low < high);
        assert!(b < Histogram::SUB || high - low <= low / 15, "a bucket is at most 1/16 of its values wide");
    }
}
