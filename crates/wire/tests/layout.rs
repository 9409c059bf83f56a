//! The layouts are a contract between three parties: the controller, the agent, which other flags
//! compile, and the generated code, which contains offsets as numbers. These are the numbers.

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
    layout!(Header: 256, align 64, {
        magic: 0, version: 8, pad1: 12, controller_pid: 16, target_pid: 20, controller_start: 24, total_len: 32,
        shared_va: 40, private_va: 48, lookup_va: 56, agent_va: 64, agent_len: 72, trampoline_va: 80, layout: 88,
        journal_len: 216, maps_len: 220, signals: 224, detaching: 232, pad2: 236, batch_va: 240,
    });
    layout!(SharedLayout: 128, align 8, {
        slots_off: 0, slot_stride: 8, cells_off: 16, cells: 24, ring_off: 32, ring_len: 40, missed_off: 48,
        shares_off: 56, probes_max: 64, map_descs_off: 72, map_descs: 80, journal_off: 88, maps_off: 96,
        common_off: 104, slots_max: 112, journal_cap: 116, maps_cap: 120, pad: 124,
    });
    layout!(Common: 64, align 64, {
        slots_used: 0, slots_free: 4, returns_dropped: 8, lines_dropped: 16, bell: 24,
    });
    layout!(Bell: 24, align 8, { turn: 0, rung: 4, heard: 8, pid: 12, listens: 16, working: 20 });
    layout!(Asked: 32, align 8, { number: 0, answered: 4, question: 8, tid: 12, pid: 16, given_up: 20, path: 24 });
    layout!(SigAction: 32, align 8, { handler: 0, flags: 8, restorer: 16, mask: 24 });
    layout!(JournalEntry: 176, align 8, {
        site: 0, detour: 8, detour_len: 16, newest: 20, len: 24, insns_len: 25, own: 26, optimized: 27, disabled: 28,
        old: 32, new: 48, insns: 64, semaphore: 128, semaphore_state: 136, pad_semaphore: 140, inode: 144,
        file_offset: 152, gate: 160, blocked: 162, stays: 164, resume: 168,
    });
    layout!(MapEntry: 24, align 8, { addr: 0, len: 8, kind: 16, pad: 20 });
    layout!(Slot: 64, align 64, { fs_base: 0, tid: 8, owner: 12, head: 16, tail: 24, pad1: 32 });
    layout!(RecordHeader: 24, align 8, { state_len: 0, what: 8, time: 16 });
}

/// Hostile targets of the tests knew an older layout, attacked nothing, and the tests passed.
#[test]
fn the_layout_that_targets_in_c_know() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/targets/layout.h");
    let text = std::fs::read_to_string(file).expect("tests/targets/layout.h is there");
    let number = |name: &str| -> Option<usize> {
        let (_, rest) = text.split_once(&format!(" {name} = "))?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    for (name, expected) in [
        ("LAYOUT", header::VERSION as usize),
        ("COMMON", size_of::<Common>()),
        ("JOURNAL_ENTRY", size_of::<JournalEntry>()),
        ("LIST_ENTRY", size_of::<MapEntry>()),
        ("MAP_DESC", size_of::<MapDesc>()),
        ("ASKED", offset_of!(Private, asked)),
    ] {
        assert_eq!(number(name), Some(expected), "{name} in {file}");
    }
}

#[test]
fn private_region() {
    layout!(Private: 4976, align 8, {
        shared: 0, lookup: 8, trampoline: 16, probes: 24, states: 32, state_stride: 40, tsc_base: 48, traps: 56,
        trap_mask: 64, detours: 72, unwind: 80, copies: 88, tsc: 96, tsc_shift: 100, tsc_mult: 104, states_used: 112,
        child: 116, pid: 120, follow: 124, space: 128, silent: 132, owner: 136,
        after_fault: 144, signals: 152, goroutines: 4768, keeps_returns: 4800,
        layout: 4808, shapes: 4936, asked: 4944,
    });
    layout!(Signals: 4616, align 8, {
        ours: 0, in_force: 8, own: 16, readable: 24, shared_stack: 28, retained: 32, ending: 36, handler: 40,
        restorer: 48, sharers_len: 56, sharers: 64, old: 320, blocking: 480, closed: 520,
    });
    layout!(ClosedThread: 32, align 8, { fs_base: 0, blocked: 8 });
    layout!(Blocked: 24, align 8, { now: 0, after: 8, sp: 16 });
    layout!(ThreadState: 4704, align 8, {
        helpers: 0, private: 2128, busy: 2136, stamp: 2144, fs_base: 2152, slot: 2160, cells: 2168, counting: 2176,
        lent_at: 2184, guest: 2192, clearing: 2224, shadow: 2232, shadow_cap: 2240, shadow_len: 2248, tid: 2256,
        tid_word: 2260, comm_time: 2264, comm: 2272, blocked: 2288, mask_next: 2312, masks: 2320, mask_from: 2384,
        clone_args: 2416, stack: 2504, shadow_spare: 2512, unwound: 2520, callers: 4568, altstack: 4696,
    });
    layout!(ShadowHead: 24, align 8, { cap: 0, pinned: 8, given_up: 16 });
    layout!(ShadowEntry: 40, align 8, { slot: 0, ret: 8, time: 16, probe: 24, cookie: 32 });
    layout!(GoroutineCall: 24, align 8, { goroutine: 0, key: 8, cookie: 16 });
    layout!(Call: 32, align 32, { slot: 0, probe: 8, ret: 16, cookie: 24 });
    layout!(ProbeDesc: 120, align 8, {
        flow: 0, hits: 4, flags: 8, older: 12, site: 16, asked: 24, cookie: 32, entry: 40, exit: 48, maxactive: 56,
        places: 64, drops: 72, pair: 80, group: 84, switch: 88, stacked: 112,
    });
    layout!(HandlerSwitch: 24, align 8, { word: 0, on: 8, off: 16 });
    layout!(TrapEntry: 16, align 8, { site: 0, detour: 8 });
    layout!(TrapRecord: 24, align 8, { op: 0, newest: 16, pad: 20 });
    layout!(DetourTable: 8, align 4, { len: 0, copies: 4 });
    layout!(DetourEntry: 24, align 8, { detour: 0, site: 8, first: 16, count: 20 });
    layout!(CopyPair: 4, align 2, { original: 0, copy: 2 });
    layout!(UnwindTable: 8, align 4, { objects: 0, rules: 4 });
    layout!(UnwindObject: 32, align 8, { start: 0, end: 8, rows: 16, len: 24 });
    layout!(UnwindRule: 16, align 4, { kind: 0, base: 1, flags: 2, pad: 3, bp: 4, bx: 6, offset: 8, plus: 12 });
    assert_eq!(offset_of!(Regs, rbp), 8 * usize::from(UnwindRule::BP));
    assert_eq!(offset_of!(Regs, rbx), 8 * usize::from(UnwindRule::BX));
    assert_eq!(offset_of!(Regs, rsp), 8 * usize::from(UnwindRule::SP));
}

#[test]
fn generated_code() {
    layout!(Regs: 168, align 8, {
        r15: 0, r14: 8, r13: 16, r12: 24, rbp: 32, rbx: 40, r11: 48, r10: 56, r9: 64, r8: 72, rax: 80, rcx: 88, rdx: 96,
        rsi: 104, rdi: 112, orig_rax: 120, rip: 128, cs: 136, eflags: 144, rsp: 152, ss: 160,
    });
    layout!(Hit: 256, align 8, { probe: 0, regs: 8, cookie: 176, floats: 184, overridden: 248 });
    layout!(MapDesc: 128, align 64, {
        kind: 0, key_size: 4, value_size: 8, max_entries: 12, flags: 16, index: 20, data: 24, cells: 32, stride: 40,
        dropped: 48, count: 56, free: 64, hand: 72, buckets: 80, capacity: 84, fresh: 88, pad: 96,
    });
    layout!(LookupEntry: 32, align 32, { key: 0, cells: 8, state: 16, owner: 24 });
    assert_eq!(offset_of!(LookupTable, marker), 0);
    assert_eq!(offset_of!(LookupTable, buckets), 64);
    assert_eq!(size_of::<LookupTable>(), (64 + LOOKUP_BUCKETS * 32).next_multiple_of(4096));
}

/// Fields are written to other processes as bytes, so none of them may hide padding.
#[test]
fn no_implicit_padding() {
    assert_eq!(
        size_of::<Private>(),
        7 * 8
            + 5 * 8
            + 4
            + 4
            + 8
            + 6 * 4
            + 2 * 8
            + size_of::<Signals>()
            + 5 * 8
            + size_of::<SharedLayout>()
            + 8
            + size_of::<Asked>()
    );
    assert_eq!(size_of::<SharedLayout>(), 14 * 8 + 4 * 4);
    assert_eq!(
        size_of::<ThreadState>(),
        HELPERS * 8 + 16 * 8 + 4 + 4 + 8 + 16 + 3 * 8 + 8 + 23 * 8 + 2 * 8 + (256 + 16) * 8 + 8
    );
    assert_eq!(size_of::<Signals>(), 3 * 8 + 4 * 4 + 3 * 8 + 32 * 8 + 5 * 32 + 5 * 8 + 128 * 32);
    assert_eq!(size_of::<JournalEntry>(), 2 * 8 + 2 * 4 + 4 + 4 + 2 * 16 + 64 + 8 + 2 * 4 + 2 * 8 + 8 + 8);
    assert_eq!(size_of::<ProbeDesc>(), 4 * 4 + 8 * 8 + 2 * 4 + 3 * 8 + 8);
    assert_eq!(size_of::<MapDesc>(), 6 * 4 + 7 * 8 + 2 * 4 + 8 + 4 * 8);
}

#[test]
fn the_hash_is_one_multiplication() {
    assert!(i32::try_from(HASH_MULTIPLIER).is_ok(), "a positive immediate: sign extension changes nothing");
    for fs_base in [0, 0x7f12_3456_7740, 0x5555_5555_0000, u64::MAX] {
        let product = (u128::from(fs_base) * u128::from(HASH_MULTIPLIER)) as u64;
        assert_eq!(bucket(fs_base), (product >> HASH_SHIFT) as usize % LOOKUP_BUCKETS);
    }
}

/// Thread stacks lie at regular distances; most of a few thousand of them must find their own
/// bucket at once.
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

#[test]
fn addresses_and_stacks_go_with_a_number() {
    use sidestep_wire::private::{SPACES, split_symbol, stack_id, symbol};
    for space in [0, 1, SPACES - 1] {
        for address in [0, 0x1234, 0x7fff_ffff_f000] {
            assert_eq!(split_symbol(symbol(address, space)), (space, address));
        }
        assert_eq!(stack_id(77, space) as u32, 77);
        assert_eq!(stack_id(77, space) >> 32, u64::from(space));
    }
    // No address: as it is.
    assert_eq!(symbol(u64::MAX, 5), u64::MAX);
}
