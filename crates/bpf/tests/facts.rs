//! What the verifier learns of programs, besides that they are safe.

mod cases;

use cases::{lines, maps, rules};
use sidestep_bpf::assemble;
use sidestep_bpf::map::{Map, MapKind};
use sidestep_bpf::verify::{Facts, Lookup, Memory, Rules, Verified, verify};

/// 7 and 8: values per thread, by index and by key.
fn with_thread_maps() -> Vec<Map> {
    let mut maps = maps();
    for (name, kind) in [("mine", MapKind::PercpuArray), ("keyed", MapKind::PercpuHash)] {
        maps.push(Map { name: name.to_owned(), kind, key_size: 4, value_size: 12, max_entries: 5, ..maps[0].clone() });
    }
    maps
}

fn verified(text: &str) -> Verified {
    let maps = with_thread_maps();
    let rules = Rules { context_writable: 168..176, ..rules(&maps) };
    verify(&assemble(&lines(text)).unwrap(), &rules).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn facts(text: &str) -> Facts {
    verified(text).facts
}

#[test]
fn words_of_the_context_that_are_read() {
    let found = facts("r0 = *(u64 *)(r1 + 112); w2 = *(u8 *)(r1 + 3); r6 = r1; r3 = *(u32 *)(r6 + 172); exit");
    assert_eq!(found.context, 1 << 14 | 1 | 1 << 21);
    assert!(!found.context_escapes && found.context_written == 0 && found.reentrant);
    assert_eq!(facts("r3 = r1; r0 = 5; *(u64 *)(r1 + 168) = r0; exit").context_written, 1 << 21);
}

#[test]
fn a_context_that_is_handed_on_escapes() {
    for text in [
        "call 173; exit",
        "call sub; exit; sub: r0 = 0; exit",
        "r6 = map_value(6, 0) ll; *(u64 *)(r6 + 0) = r1; r0 = 0; exit",
    ] {
        assert!(facts(text).context_escapes, "{text}");
    }
    for text in ["*(u64 *)(r10 - 8) = r1; r0 = 0; exit", "call 5; exit"] {
        assert!(!facts(text).context_escapes, "{text}");
    }
}

#[test]
fn helpers_that_may_be_called() {
    let found = facts("r1 = 3; if r1 == 3 goto over; call 7; over: call 5; exit").helpers;
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [5, 7]);
}

#[test]
fn memory_that_is_the_same_on_all_paths() {
    let found = facts(
        "r6 = map_value(7, 16) ll; r7 = map_value(6, 8) ll; *(u64 *)(r10 - 8) = 1; w3 = *(u8 *)(r6 + 3);
         r4 = *(u64 *)(r1 + 8); r5 = 1; lock *(u64 *)(r7 + 0) += r5; if r4 == 0 goto +1; r7 = r10; *(u8 *)(r7 - 8) = 1;
         r0 = 0; exit",
    );
    let memory: Vec<Memory> = found.accesses.values().copied().collect();
    use Memory::{Context, Map, Mixed, Stack, ThreadMap};
    assert_eq!(memory, [Stack, ThreadMap(7), Context, Map(6), Mixed]);
    assert!(!found.reentrant);
    let found = facts("RESERVE; *(u64 *)(r0 + 0) = 1; r1 = r0; r2 = 0; call 132; r0 = 0; exit");
    assert!(found.accesses.values().any(|m| *m == Memory::Record) && found.reentrant);
}

#[test]
fn accesses_that_may_not_be_aligned() {
    let of = |text: &str| facts(text).unaligned.into_iter().collect::<Vec<_>>();
    assert_eq!(of("r6 = map_value(7, 16) ll; r0 = *(u64 *)(r6 + 1); r0 = *(u64 *)(r6 + 0); exit"), [2]);
    assert_eq!(
        of("r2 = *(u64 *)(r1 + 0); r2 &= 7; r6 = map_value(6, 8) ll; r6 += r2; r0 = *(u16 *)(r6 + 0); exit"),
        [5]
    );
}

#[test]
fn keys_of_lookups() {
    let of = |text: &str| facts(text).lookups.into_values().collect::<Vec<_>>();
    assert_eq!(of("SLOT; r0 = 0; exit"), [Lookup { map: Some(1), key: Some(0) }]);
    let text = "r7 = *(u64 *)(r1 + 0); r6 = KEY; *(u32 *)(r10 - 4) = r6; r1 = map(7) ll; r2 = r10; r2 += -4; call 1; r0 = 0; exit";
    let key = |key: &str| of(&text.replace("KEY", key))[0].key;
    assert_eq!((key("3"), key("r7"), key("-1")), (Some(3), None, Some(0xffff_ffff)));
    // The same by two ways, and not.
    let ways = |a: i32, b: i32| {
        let text = format!(
            "r7 = *(u64 *)(r1 + 0); if r7 == 0 goto other; *(u64 *)(r10 - 8) = {a}; r1 = map(0) ll; goto both;
             other: *(u64 *)(r10 - 8) = {b}; r1 = map({}) ll; both: r2 = r10; r2 += -8; call 1; r0 = 0; exit",
            if a == b { 0 } else { 8 }
        );
        of(&text)[0]
    };
    assert_eq!(ways(9, 9), Lookup { map: Some(0), key: Some(9) });
    assert_eq!(ways(9, 8), Lookup { map: None, key: None });
}

/// Paths that were not walked, since others had shown that they are safe, count, too: nothing
/// depends on the number.
#[test]
fn a_key_that_differs_on_a_spared_path_is_not_constant() {
    let found = facts(
        "r6 = *(u64 *)(r1 + 0); r8 = 1; if r6 != 0 goto meet; r8 = 2; r5 = 0; r5 = 0; r5 = 0; r5 = 0;
         meet: r5 = 0; r5 = 0; *(u64 *)(r10 - 8) = r8; r1 = map(0) ll; r2 = r10; r2 += -8; call 1; r0 = 0; exit",
    );
    assert_eq!(found.lookups.into_values().map(|l| l.key).collect::<Vec<_>>(), [None]);
}

#[test]
fn programs_that_may_be_interrupted_by_themselves() {
    let value = "r1 = map_value(7, 0) ll;";
    for (text, want) in [
        ("r2 = 1; lock *(u64 *)(r1 + 0) += r2; r0 = 0; exit", true),
        ("r2 = 1; r2 = atomic_fetch_add((u64 *)(r1 + 0), r2); r0 = r2; exit", true),
        ("r2 = *(u64 *)(r1 + 0); r2 += 1; *(u64 *)(r1 + 0) = r2; r0 = 0; exit", false),
        ("*(u64 *)(r10 - 8) = 1; r0 = 0; exit", true),
        ("*(u64 *)(r10 - 8) = 1; r1 = map(0) ll; r2 = r10; r2 += -8; call 3; r0 = 0; exit", false),
        ("r2 = 8; call 16; exit", false),
    ] {
        assert_eq!(facts(&format!("{value} {text}")).reentrant, want, "{text}");
    }
}

#[test]
fn buckets_of_histograms_are_bounded() {
    let maps = maps();
    let buckets = |value_size: u32| {
        let map = Map { value_size, max_entries: 1, ..maps[1].clone() };
        let text = "r1 = *(u64 *)(r1 + 0); call 256; r0 <<= 3; r1 = map_value(0, 0) ll; r1 += r0; r2 = 1;
            lock *(u64 *)(r1 + 0) += r2; r0 = 0; exit";
        verify(&assemble(&lines(text)).unwrap(), &rules(&[map])).is_ok()
    };
    let all = 8 * sidestep_wire::Histogram::BUCKETS as u32;
    assert!(buckets(all) && !buckets(all - 8));
}
