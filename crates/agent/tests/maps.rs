//! Maps through the helpers: kinds, errors, values per thread, and signal handlers that use the
//! same map.

mod world;

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use sidestep_wire::map::{ARRAY, HASH, LRU_PERCPU_HASH, PERCPU_ARRAY, PERCPU_HASH};
use sidestep_wire::{MapDesc, Table};
use world::{Setup, Thread, World};

const EXISTS: i64 = -17;
const MISSING: i64 = -2;
const FULL: i64 = -7;
const INVALID: i64 = -22;

fn at<T: ?Sized>(place: &T) -> u64 {
    ptr::from_ref(place).cast::<u8>() as u64
}

fn call(thread: &Thread, number: usize, args: [u64; 5]) -> i64 {
    // SAFETY: the tests pass what the helpers want.
    (unsafe { thread.helper(number, args) }) as i64
}

fn shapes(kinds: &[(u32, u32, u32, u32)]) -> World {
    let maps = kinds.iter().map(|(kind, key, value, most)| MapDesc::new(*kind, *key, *value, *most, 0, 0).unwrap());
    World::new(&Setup { maps: maps.collect(), slots: 32, ..Setup::default() })
}

fn lookup(thread: &Thread, map: u64, key: u32) -> Option<&'static AtomicU64> {
    let value = call(thread, 1, [thread.world.shape(map), at(&key), 0, 0, 0]);
    // SAFETY: 0, or the address of a value of at least 8 bytes.
    unsafe { (value as *const AtomicU64).as_ref() }
}

fn update(thread: &Thread, map: u64, key: u32, value: &[u64], flags: u64) -> i64 {
    call(thread, 2, [thread.world.shape(map), at(&key), at(value), flags, 0])
}

fn delete(thread: &Thread, map: u64, key: u32) -> i64 {
    call(thread, 3, [thread.world.shape(map), at(&key), 0, 0, 0])
}

#[test]
fn arrays_have_all_their_elements() {
    let world = shapes(&[(ARRAY, 4, 12, 3), (PERCPU_ARRAY, 4, 8, 3)]);
    let (a, b) = (world.enter(0x1000).unwrap(), world.enter(0x2000).unwrap());
    for map in [0, 1] {
        for key in 0..3 {
            assert_eq!(lookup(&a, map, key).unwrap().load(Ordering::Relaxed), 0);
            assert_eq!(update(&a, map, key, &[u64::from(key) + 10, 1], 0), 0);
            assert_eq!(update(&a, map, key, &[u64::from(key) + 20, 1], 2), 0);
            assert_eq!(update(&a, map, key, &[0, 0], 1), EXISTS);
        }
        assert_eq!(update(&a, map, 3, &[0, 0], 0), FULL);
        assert_eq!((update(&a, map, 0, &[0, 0], 3), delete(&a, map, 0)), (INVALID, INVALID));
        assert!(lookup(&a, map, 3).is_none());
        let of =
            |thread| (0..3).map(|key| lookup(thread, map, key).unwrap().load(Ordering::Relaxed)).collect::<Vec<_>>();
        assert_eq!(of(&a), [20, 21, 22]);
        assert_eq!(of(&b), if map == 0 { [20, 21, 22] } else { [0, 0, 0] });
    }
    assert_eq!(a.cells + world.map(1).cells + 8, at(lookup(&a, 1, 1).unwrap()));
}

#[test]
fn hashes_have_the_kernels_errors() {
    let world = shapes(&[(HASH, 4, 16, 2), (PERCPU_HASH, 4, 16, 2)]);
    let thread = world.enter(0x1000).unwrap();
    for map in [0, 1] {
        assert_eq!((update(&thread, map, 1, &[5, 6], 2), delete(&thread, map, 1)), (MISSING, MISSING));
        assert_eq!((update(&thread, map, 1, &[5, 6], 1), update(&thread, map, 1, &[7, 8], 1)), (0, EXISTS));
        assert_eq!((update(&thread, map, 1, &[7, 8], 4), lookup(&thread, map, 2).is_none()), (INVALID, true));
        assert_eq!((update(&thread, map, 1, &[9, 8], 2), update(&thread, map, 2, &[1, 1], 0)), (0, 0));
        assert_eq!(update(&thread, map, 3, &[1, 1], 0), FULL);
        assert_eq!(lookup(&thread, map, 1).unwrap().load(Ordering::Relaxed), 9);
        assert_eq!((delete(&thread, map, 1), delete(&thread, map, 1)), (0, MISSING));
        assert_eq!(update(&thread, map, 3, &[1, 1], 0), 0);
        assert_eq!(world.map(map).dropped.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn values_per_thread_begin_as_zero_for_every_key() {
    for kind in [PERCPU_HASH, LRU_PERCPU_HASH] {
        let world = shapes(&[(kind, 4, 24, 4)]);
        let threads = [0x1000, 0x2000, 0x3000].map(|fs| world.enter(fs).unwrap());
        for key in 0..2000 {
            assert!(lookup(&threads[0], 0, key).is_none());
            assert_eq!(update(&threads[key as usize % 3], 0, key, &[7, 7, 7], 1), 0);
            for (n, thread) in threads.iter().enumerate() {
                let value = lookup(thread, 0, key).unwrap() as *const AtomicU64 as *mut u64;
                // SAFETY: a value of three words.
                let words = unsafe { std::slice::from_raw_parts_mut(value, 3) };
                assert_eq!(words, if key as usize % 3 == n { [7; 3] } else { [0; 3] });
                words.fill(0xdead);
            }
            assert_eq!(delete(&threads[0], 0, key), 0);
        }
    }
}

/// Threads add to values of their own while keys come and go; the sums over the threads are exact.
#[test]
fn sums_over_threads_are_exact() {
    const KEYS: u32 = 30;
    let world = shapes(&[(PERCPU_HASH, 4, 8, 64)]);
    std::thread::scope(|scope| {
        for n in 0..4u32 {
            scope.spawn(move || {
                let thread = world.enter(0x1000 * (u64::from(n) + 1)).unwrap();
                for i in 0..60_000u32 {
                    let key = i % KEYS;
                    if lookup(&thread, 0, key).is_none() {
                        update(&thread, 0, key, &[0], 1);
                    }
                    lookup(&thread, 0, key).unwrap().fetch_add(1, Ordering::Relaxed);
                    // Others reuse entries meanwhile.
                    let other = 1000 + n;
                    update(&thread, 0, other, &[5], 0);
                    delete(&thread, 0, other);
                }
            });
        }
    });
    // As the controller reads: an entry's generation says whose value a thread has.
    let desc = world.map(0);
    let table = Table::new(desc, world.data(0));
    for key in 0..KEYS {
        let found = table.lookup(&key.to_le_bytes().as_slice()).unwrap();
        let values = (0..4).map(|slot| {
            let cells = at(world.slot(slot)) + world.layout().cells_off + desc.cells + found.index * desc.stride;
            let value = world.word(cells + 8).load(Ordering::Relaxed);
            if world.word(cells).load(Ordering::Relaxed) == found.generation { value } else { 0 }
        });
        assert_eq!(values.sum::<u64>(), 8000, "{key}");
    }
    assert_eq!(desc.count.load(Ordering::Relaxed), KEYS.into());
}

static THREAD: AtomicPtr<Thread> = AtomicPtr::new(ptr::null_mut());
static SIGNALS: AtomicU64 = AtomicU64::new(0);
/// Keys that are inserted and deleted all the time, and what that comes to.
const CHANGING: u32 = 8;
static LEFT: [AtomicU64; CHANGING as usize] = [const { AtomicU64::new(0) }; CHANGING as usize];
/// Keys that stay, in each map, and what was added to their values.
const STAYING: u32 = 100;
static ADDED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn use_maps(thread: &Thread, n: u32) {
    let key = n % CHANGING;
    let map = u64::from(n / 7 % 2);
    if n % 3 == 0 {
        if update(thread, 0, key, &[9], 1) == 0 {
            LEFT[key as usize].fetch_add(1, Ordering::Relaxed);
        }
    } else if n % 3 == 1 {
        if delete(thread, 0, key) == 0 {
            LEFT[key as usize].fetch_sub(1, Ordering::Relaxed);
        }
    } else {
        // Uses entries of the other map again and again.
        update(thread, 1, key, &[9], 0);
        delete(thread, 1, key);
    }
    let key = STAYING + n % 5;
    update(thread, map, key, &[0], 1);
    lookup(thread, map, key).unwrap().fetch_add(1, Ordering::Relaxed);
    ADDED[map as usize].fetch_add(1, Ordering::Relaxed);
}

extern "C" fn handler(_: i32) {
    // SAFETY: set before the first signal, and leaked.
    let Some(thread) = (unsafe { THREAD.load(Ordering::Acquire).as_ref() }) else { return };
    let n = SIGNALS.load(Ordering::Relaxed) as u32;
    (0..20).for_each(|i| use_maps(thread, n + i));
    SIGNALS.fetch_add(1, Ordering::Release);
}

#[test]
fn handlers_use_a_map_in_the_middle_of_its_use() {
    let world = shapes(&[(HASH, 4, 8, 16), (PERCPU_HASH, 4, 8, 16)]);
    let thread = world.enter(0x1000).unwrap();
    THREAD.store(Box::into_raw(Box::new(thread)), Ordering::Release);
    // SAFETY: installs a handler that lives as long as the process.
    unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
    // SAFETY: no arguments.
    let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..2_000 {
                // SAFETY: a signal to the thread of this test, which outlives the scope.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGUSR1) };
                while SIGNALS.load(Ordering::Acquire) <= n {
                    std::thread::yield_now();
                }
            }
            done.store(true, Ordering::Release);
        });
        let mut n = 0;
        while !done.load(Ordering::Acquire) {
            use_maps(&thread, n);
            n = n.wrapping_add(1);
        }
    });
    for key in 0..CHANGING {
        let there = lookup(&thread, 0, key).is_some();
        assert_eq!(LEFT[key as usize].load(Ordering::Relaxed), u64::from(there), "{key}");
    }
    let changing = (0..CHANGING).filter(|key| lookup(&thread, 0, *key).is_some()).count() as u64;
    assert_eq!(world.map(0).count.load(Ordering::Relaxed), changing + 5);
    for map in [0, 1] {
        let values = (0..5).map(|key| lookup(&thread, map, STAYING + key).unwrap().load(Ordering::Relaxed));
        assert_eq!(values.sum::<u64>(), ADDED[map as usize].load(Ordering::Relaxed));
        assert_eq!(world.map(map).dropped.load(Ordering::Relaxed), 0);
    }
}

static PARKED: AtomicU64 = AtomicU64::new(0);

/// Stops a thread for ever, wherever it is.
extern "C" fn park(_: i32) {
    PARKED.fetch_add(1, Ordering::Release);
    loop {
        // SAFETY: waits for a signal, which nobody sends.
        unsafe { libc::pause() };
    }
}

#[test]
fn threads_that_are_stopped_for_ever_stop_nobody_else() {
    const VICTIMS: u64 = 24;
    const KEYS: u32 = 40;
    let world = shapes(&[(HASH, 4, 32, 32)]);
    // SAFETY: installs a handler that lives as long as the process.
    unsafe { libc::signal(libc::SIGUSR2, park as *const () as libc::sighandler_t) };
    let churn = move |thread: &Thread, n: u32| {
        update(thread, 0, n % KEYS, &[n.into(); 4], 0);
        delete(thread, 0, (n + 5) % KEYS);
    };
    for victim in 0..VICTIMS {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let thread = world.enter(0x1000 * (victim + 1)).unwrap();
            // SAFETY: no arguments.
            tell.send(unsafe { libc::gettid() }).unwrap();
            let mut n = 0u32;
            loop {
                churn(&thread, n);
                n = n.wrapping_add(1);
            }
        });
        let tid = told.recv().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(200));
        // SAFETY: a signal to that thread, which never ends.
        assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR2) }, 0);
        while PARKED.load(Ordering::Acquire) <= victim {
            std::thread::yield_now();
        }
    }
    let thread = world.enter(0xabc000).unwrap();
    (0..100_000).for_each(|n| churn(&thread, n));
    // What they hold is out of use, nothing else; no key is there twice.
    let desc = world.map(0);
    let table = Table::new(desc, world.data(0));
    for key in 0..KEYS {
        delete(&thread, 0, key);
        assert!(lookup(&thread, 0, key).is_none());
    }
    assert!(desc.count.load(Ordering::Relaxed) <= VICTIMS);
    let fits = (0..32).filter(|key| update(&thread, 0, *key, &[1; 4], 1) == 0).count() as u64;
    assert!(fits >= 32 - VICTIMS && fits + desc.count.load(Ordering::Relaxed) >= 32, "{fits}");
    table.clear();
    assert!((0..32).all(|key| lookup(&thread, 0, key).is_none()));
}
