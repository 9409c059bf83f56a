//! Hash tables under threads that insert, replace, delete and read at once.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sidestep_wire::hash::{Found, Step, Table};
use sidestep_wire::map::{ANY, EXIST, HASH, LRU_HASH, NO_EXIST, PERCPU_HASH};
use sidestep_wire::{MapDesc, MapError};

/// A map with its memory.
struct Map {
    desc: MapDesc,
    words: Vec<AtomicU64>,
}

impl Map {
    fn new(kind: u32, key_size: u32, value_size: u32, max_entries: u32) -> Map {
        let desc = MapDesc::new(kind, key_size, value_size, max_entries, 0, 0).unwrap();
        let words = (0..desc.data_len() / 8).map(|_| AtomicU64::new(0)).collect();
        Map { desc, words }
    }

    fn table(&self) -> Table<'_> {
        Table::new(&self.desc, &self.words)
    }

    fn set(&self, key: &[u8], value: &[u8], flags: u64) -> Result<Found, MapError> {
        self.table().update(&key, &value, flags)
    }

    fn value(&self, key: &[u8]) -> Option<Vec<u64>> {
        let table = self.table();
        loop {
            let found = table.lookup(&key)?;
            let words = (0..table.sizes().1).map(|w| table.value_word(&found, w).unwrap().load(Ordering::Relaxed));
            let words: Vec<u64> = words.collect();
            if table.is_current(&found) {
                return Some(words);
            }
        }
    }

    /// Keys and values of a bucket, all of which were there at one moment each.
    fn bucket(&self, bucket: u32) -> Vec<(Vec<u64>, Vec<u64>)> {
        let table = self.table();
        'again: loop {
            let (mut all, mut left) = (Vec::new(), u64::MAX);
            let mut cursor = table.bucket(bucket).unwrap();
            loop {
                match table.walk(cursor, &mut left) {
                    Step::Entry(found, next) => {
                        let key = (0..table.sizes().0).map(|w| table.key_word(&found, w)).collect();
                        let value = (0..table.sizes().1)
                            .map(|w| table.value_word(&found, w).unwrap().load(Ordering::Relaxed))
                            .collect();
                        if !table.is_current(&found) {
                            continue 'again;
                        }
                        all.push((key, value));
                        cursor = next;
                    }
                    Step::Changed => continue 'again,
                    Step::End => return all,
                }
            }
        }
    }

    fn all(&self) -> Vec<(Vec<u64>, Vec<u64>)> {
        (0..self.desc.buckets).flat_map(|bucket| self.bucket(bucket)).collect()
    }

    fn count(&self) -> u64 {
        self.desc.count.load(Ordering::Relaxed)
    }

    fn dropped(&self) -> u64 {
        self.desc.dropped.load(Ordering::Relaxed)
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

/// Against the standard library's table.
#[test]
fn one_thread_at_random() {
    for (key_size, value_size) in [(4, 8), (8, 8), (13, 24), (16, 3)] {
        let map = Map::new(HASH, key_size as u32, value_size as u32, 100);
        let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let (mut state, mut dropped) = (key_size as u64, 0);
        for _ in 0..100_000 {
            let mut key = vec![9; key_size];
            key[..4].copy_from_slice(&(random(&mut state) as u32 % 150).to_le_bytes());
            let value: Vec<u8> = (0..value_size).map(|_| random(&mut state) as u8).collect();
            match random(&mut state) % 8 {
                0..3 => {
                    let gone = model.remove(&key).is_some();
                    let result = map.table().delete(&key.as_slice());
                    assert_eq!(result, if gone { Ok(()) } else { Err(MapError::Missing) });
                }
                flags @ 3..7 => {
                    let flags = flags % 3;
                    let expected = match model.contains_key(&key) {
                        true if flags == NO_EXIST => Err(MapError::Exists),
                        false if flags == EXIST => Err(MapError::Missing),
                        false if model.len() == 100 => Err(MapError::Full),
                        _ => Ok(()),
                    };
                    dropped += u64::from(expected == Err(MapError::Full));
                    assert_eq!(map.set(&key, &value, flags).map(|_| ()), expected);
                    if expected.is_ok() {
                        model.insert(key.clone(), value);
                    }
                }
                _ => assert_eq!(map.set(&key, &value, 3), Err(MapError::Invalid)),
            }
            let expected = model.get(&key).map(|value| words(value));
            assert_eq!(map.value(&key), expected);
        }
        let listed: HashMap<Vec<u64>, Vec<u64>> = map.all().into_iter().collect();
        let expected: HashMap<Vec<u64>, Vec<u64>> = model.iter().map(|(k, v)| (words(k), words(v))).collect();
        assert_eq!(listed, expected);
        assert_eq!((map.count(), map.dropped()), (model.len() as u64, dropped));
        map.table().clear();
        assert_eq!((map.count(), map.all().len()), (0, 0));
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    bytes.chunks(8).map(word).collect()
}

#[test]
fn a_million_keys_in_a_small_map_are_there_or_counted() {
    let map = Map::new(HASH, 8, 8, 1000);
    let inserted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (map, inserted) = (&map, &inserted);
            scope.spawn(move || {
                for n in 0..250_000u64 {
                    let key = (thread << 32 | n).to_le_bytes();
                    match map.set(&key, &n.to_le_bytes(), NO_EXIST) {
                        Ok(_) => drop(inserted.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => assert_eq!(error, MapError::Full),
                    }
                }
            });
        }
    });
    let inserted = inserted.load(Ordering::Relaxed);
    assert_eq!((inserted, inserted + map.dropped(), map.count()), (1000, 1_000_000, 1000));
    let all = map.all();
    assert_eq!(all.iter().map(|(key, _)| key[0]).collect::<HashSet<_>>().len(), 1000);
    assert!(all.iter().all(|(key, value)| value[0] == key[0] & 0xffff_ffff));
}

/// Whoever puts a key there adds 1, whoever takes it away 1 to another: in the end the difference
/// is what is left.
#[test]
fn threads_that_insert_and_delete_the_same_keys_agree() {
    const KEYS: u64 = 24;
    let map = Map::new(HASH, 8, 16, 16);
    let inserted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let deleted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (map, inserted, deleted) = (&map, &inserted, &deleted);
            scope.spawn(move || {
                let mut state = thread;
                for n in 0..300_000u64 {
                    let key = random(&mut state) % KEYS;
                    let value = [key.to_le_bytes(), (!key).to_le_bytes()].concat();
                    let bytes = key.to_le_bytes();
                    match random(&mut state) % 4 {
                        0 | 1 => match map.set(&bytes, &value, NO_EXIST) {
                            Ok(_) => drop(inserted[key as usize].fetch_add(1, Ordering::Relaxed)),
                            Err(error) => assert_ne!(error, MapError::Missing),
                        },
                        2 => match map.table().delete(&bytes.as_slice()) {
                            Ok(()) => drop(deleted[key as usize].fetch_add(1, Ordering::Relaxed)),
                            Err(error) => assert_eq!(error, MapError::Missing),
                        },
                        _ => match map.set(&bytes, &value, EXIST) {
                            Ok(_) => {}
                            Err(error) => assert_eq!(error, MapError::Missing),
                        },
                    }
                    if n % 64 == 0 {
                        if let Some(value) = map.value(&bytes) {
                            assert_eq!(value, [key, !key]);
                        }
                    }
                }
            });
        }
    });
    let mut left = HashSet::new();
    for key in 0..KEYS {
        let there = inserted[key as usize].load(Ordering::Relaxed) - deleted[key as usize].load(Ordering::Relaxed);
        assert!(there <= 1, "key {key} is there {there} times");
        if there == 1 {
            left.insert(key);
        }
    }
    assert_eq!(map.all().iter().map(|(key, _)| key[0]).collect::<HashSet<_>>(), left);
    assert_eq!((map.count(), map.all().len()), (left.len() as u64, left.len()));
    // Every entry can be used: none was lost on the way.
    map.table().clear();
    assert!((0..16u64).all(|key| map.set(&key.to_le_bytes(), &[], NO_EXIST).is_ok()));
    assert_eq!(map.set(&99u64.to_le_bytes(), &[], ANY), Err(MapError::Full));
}

#[test]
fn counts_of_atomic_additions_are_exact() {
    let map = Map::new(HASH, 4, 8, 64);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let map = &map;
            scope.spawn(move || {
                let (table, mut state) = (map.table(), thread);
                for _ in 0..200_000 {
                    let key = (random(&mut state) as u32 % 50).to_le_bytes();
                    let found = table.lookup(&key.as_slice()).unwrap_or_else(|| {
                        let _ = table.update(&key.as_slice(), &(), NO_EXIST);
                        table.lookup(&key.as_slice()).unwrap()
                    });
                    table.value_word(&found, 0).unwrap().fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(map.all().iter().map(|(_, value)| value[0]).sum::<u64>(), 800_000);
    assert_eq!(map.all().len(), 50);
}

#[test]
fn readers_see_whole_values_and_all_keys() {
    const KEYS: u64 = 40;
    let map = Map::new(HASH, 8, 64, 64);
    let value = |key: u64, n: u64| {
        let mut words = [key, n, 3, 4, 5, 6, 7, 0];
        words[7] = words.iter().fold(0, |sum, word| sum ^ word.wrapping_mul(31));
        words.map(u64::to_le_bytes).concat()
    };
    assert!((0..KEYS).all(|key| map.set(&key.to_le_bytes(), &value(key, 0), NO_EXIST).is_ok()));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (map, value, done) = (&map, &value, &done);
            scope.spawn(move || {
                let mut state = thread;
                for n in 0..150_000 {
                    // The first half of the keys is only replaced, so it is always there.
                    let key = random(&mut state) % KEYS;
                    if key >= KEYS / 2 && n % 3 == 0 {
                        let _ = map.table().delete(&key.to_le_bytes().as_slice());
                    }
                    map.set(&key.to_le_bytes(), &value(key, n), ANY).unwrap();
                }
                done.store(true, Ordering::Release);
            });
        }
        while !done.load(Ordering::Acquire) {
            let all = map.all();
            for (key, words) in &all {
                let sum = words[..7].iter().fold(0, |sum, word| sum ^ word.wrapping_mul(31));
                assert_eq!((words[0], words[7]), (key[0], sum), "a torn value");
            }
            let keys: HashSet<u64> = all.iter().map(|(key, _)| key[0]).collect();
            assert_eq!(keys.len(), all.len(), "a key twice");
            assert!((0..KEYS / 2).all(|key| keys.contains(&key)), "a key was not seen");
        }
    });
    assert_eq!(map.dropped(), 0);
}

#[test]
fn a_deleted_entry_is_used_again_in_another_generation() {
    let map = Map::new(PERCPU_HASH, 8, 8, 1);
    let mut seen = HashSet::new();
    for n in 0..1000u64 {
        let key = n.to_le_bytes();
        let found = map.set(&key, &[], NO_EXIST).unwrap();
        assert_eq!(map.table().lookup(&key.as_slice()), Some(found));
        assert!(seen.insert((found.index, found.generation)));
        assert!(map.table().is_current(&found));
        assert_eq!(map.set(&(n + 1).to_le_bytes(), &[], ANY), Err(MapError::Full));
        map.table().delete(&key.as_slice()).unwrap();
        assert!(!map.table().is_current(&found));
    }
    assert_eq!(map.desc.fresh.load(Ordering::Relaxed), 1, "one entry was enough");
    assert_eq!(map.desc.cells_len(), 129 * 16);
}

/// Two hundred hot keys among a hundred thousand others.
#[test]
fn what_is_looked_up_often_stays() {
    let map = Map::new(LRU_HASH, 8, 8, 1000);
    let mut lost = 0;
    for n in 0..100_000u64 {
        let hot = n % 200;
        if map.table().lookup(&hot.to_le_bytes().as_slice()).is_none() {
            lost += 1;
            map.set(&hot.to_le_bytes(), &[], ANY).unwrap();
        }
        map.set(&(1000 + n).to_le_bytes(), &n.to_le_bytes(), ANY).unwrap();
    }
    assert_eq!((lost, map.count(), map.dropped()), (200, 1000, 0));
    assert_eq!(map.all().len(), 1000);
}

#[test]
fn threads_share_a_map_that_drops_what_is_old() {
    let map = Map::new(LRU_HASH, 8, 8, 64);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let map = &map;
            scope.spawn(move || {
                let mut state = thread;
                for _ in 0..200_000 {
                    let key = random(&mut state) % 500;
                    if map.table().lookup(&key.to_le_bytes().as_slice()).is_none() {
                        let _ = map.set(&key.to_le_bytes(), &key.to_le_bytes(), ANY);
                    }
                }
            });
        }
    });
    let all = map.all();
    assert_eq!(map.count(), all.len() as u64);
    assert!(all.len() <= 64 && all.iter().all(|(key, value)| key == value));
    assert_eq!(all.iter().map(|(key, _)| key[0]).collect::<HashSet<_>>().len(), all.len());
}

/// Memory that the target has written over must not keep anybody in a loop.
#[test]
fn a_scribbled_table_ends_every_search() {
    let map = Map::new(LRU_HASH, 8, 8, 16);
    let mut state = 1;
    for round in 0..2000u64 {
        for word in &map.words {
            let value = random(&mut state) << 33 ^ random(&mut state);
            word.store(if round % 2 == 0 { value } else { value % 64 }, Ordering::Relaxed);
        }
        map.desc.free.store(random(&mut state) % 64, Ordering::Relaxed);
        map.desc.count.store(random(&mut state) % 20, Ordering::Relaxed);
        for key in 0..20u64 {
            let _ = map.set(&key.to_le_bytes(), &[], ANY);
            let _ = map.table().lookup(&key.to_le_bytes().as_slice());
            let _ = map.table().delete(&key.to_le_bytes().as_slice());
        }
        map.table().clear();
        for bucket in 0..map.desc.buckets {
            let mut cursor = map.table().bucket(bucket).unwrap();
            // Without a limit of the test's own: a chain that leads back to itself has an end.
            let mut left = map.table().steps();
            while let Step::Entry(_, next) = map.table().walk(cursor, &mut left) {
                cursor = next;
            }
            let _ = map.table().after(u64::from(bucket) << 32, &(), |_| ());
        }
    }
}

/// Walks a map, and does something at each key.
fn walk(map: &Map, mut at: impl FnMut(u64)) {
    let (mut cursor, mut key) = (0, [0; 8]);
    let table = map.table();
    loop {
        let mut found = 0;
        let next = table.after(cursor, &&key[..], |entry| found = table.key_word(entry, 0));
        let Some(next) = next else { return };
        (cursor, key) = (next, found.to_ne_bytes());
        at(found);
    }
}

#[test]
fn a_walk_comes_to_each_key_once_whatever_becomes_of_it() {
    let map = Map::new(HASH, 8, 8, 500);
    for key in 0..500_u64 {
        map.set(&key.to_ne_bytes(), &key.to_ne_bytes(), ANY).unwrap();
    }
    let all: Vec<u64> = (0..500).collect();
    let sorted = |mut keys: Vec<u64>| {
        keys.sort_unstable();
        keys
    };
    let mut seen = Vec::new();
    walk(&map, |key| {
        seen.push(key);
        // In the place of the entry there is another one now.
        map.set(&key.to_ne_bytes(), &[1; 8], EXIST).unwrap();
    });
    assert_eq!(sorted(seen), all);
    let mut seen = Vec::new();
    walk(&map, |key| {
        seen.push(key);
        map.table().delete(&&key.to_ne_bytes()[..]).unwrap();
    });
    assert_eq!(sorted(seen), all);
    walk(&map, |key| panic!("{key} is there"));
}

/// What another process may have written: an update ends, whatever it finds.
#[test]
fn an_update_took_the_entry_that_it_replaced_for_ever() {
    for kind in [HASH, LRU_HASH, PERCPU_HASH] {
        let map = Map::new(kind, 8, 8, 16);
        let key = |n: u64| n.to_le_bytes();
        let first = map.set(&key(1), &[1; 8], ANY).unwrap();
        // The free entry is the one that is in the table.
        map.desc.free.store((first.index + 1) << 1, Ordering::Relaxed);
        for n in 1..5 {
            let _ = map.set(&key(n), &[2; 8], ANY);
            let _ = map.table().lookup(&key(n).as_slice());
            let _ = map.table().delete(&key(n).as_slice());
        }
    }
}

/// With words of 32 bits, such an index came back to the start of the table.
#[test]
fn an_entry_that_is_not_there_was_found() {
    for kind in [HASH, PERCPU_HASH] {
        let map = Map::new(kind, 8, 8, 16);
        let key = 7u64.to_le_bytes();
        let found = map.set(&key, &[1; 8], ANY).unwrap();
        let head = map.words.iter().position(|word| word.load(Ordering::Relaxed) != 0).unwrap();
        let words: Vec<u64> = map.words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        for index in [u64::from(map.desc.capacity), 0x5555_5555, 0x3fff_ffff, 0x7fff_fffe] {
            map.words[head].store((index + 1) << 1, Ordering::Relaxed);
            assert_eq!(map.table().lookup(&key.as_slice()), None, "{index:#x}");
            assert!(map.table().delete(&key.as_slice()).is_err());
            map.desc.free.store((index + 1) << 1, Ordering::Relaxed);
            assert!(map.set(&key, &[2; 8], ANY).is_err());
            map.desc.free.store(0, Ordering::Relaxed);
            assert_eq!(map.table().value_offset(&Found { index, ..found }), 0);
            map.words.iter().zip(&words).for_each(|(word, old)| word.store(*old, Ordering::Relaxed));
        }
        assert_eq!(map.table().lookup(&key.as_slice()).map(|found| found.index), Some(found.index));
    }
}
