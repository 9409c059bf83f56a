//! Reads of memory that may not be there: directly with the real signals, and by the kernel.
#![cfg(target_arch = "x86_64")]

mod world;

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use sidestep_agent::{agent_signal, reads};
use sidestep_wire::signals::{SIGBUS, SIGSEGV, set_of};
use world::{Random, Setup, World, map};

const PAGE: u64 = 4096;

fn direct() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let world = World::new(&Setup::default());
        let signals = &world.head().signals;
        signals.ours.store(set_of(SIGSEGV) | set_of(SIGBUS), Ordering::Relaxed);
        signals.readable.store(1, Ordering::Relaxed);
        for signal in [SIGSEGV, SIGBUS] {
            // SAFETY: a handler that lives as long as the process.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = stub as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
                assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
            }
        }
        world
    })
}

extern "C" fn stub(signal: i32, info: *mut u8, context: *mut u8) {
    // A fault of the test itself: the agent restores the default, and it happens again.
    // SAFETY: the world was there before the handler; the rest is the kernel's.
    assert_eq!(unsafe { agent_signal(direct().private, signal, info, context, std::ptr::null_mut()) }, 0);
}

/// Both ways must give the same.
fn worlds() -> [World; 2] {
    [*direct(), World::new(&Setup::default())]
}

/// What was copied, and that nothing was written behind the room that was given.
fn copy(world: &World, from: u64, len: usize) -> Vec<u8> {
    let mut to = vec![0xee; len + 8];
    // SAFETY: the buffer is longer.
    let got = unsafe { reads::copy(world.private, from, to.as_mut_ptr(), len as u64) } as usize;
    assert!(to[len..].iter().all(|b| *b == 0xee));
    to[..got].to_vec()
}

fn string(world: &World, from: u64, max: usize) -> Option<Vec<u8>> {
    let mut to = vec![0xee; max + 8];
    // SAFETY: the buffer is longer.
    let got = unsafe { reads::copy_str(world.private, from, to.as_mut_ptr(), max as u64) }?;
    let got = got as usize;
    let whole = got < max && to[got] == 0;
    assert!(to[if whole { got + 1 } else { max }..].iter().all(|b| *b == 0xee), "{to:x?}");
    to.truncate(got);
    Some(to)
}

fn word(world: &World, at: u64) -> Option<u64> {
    // SAFETY: a filled private region.
    unsafe { reads::word(world.private, at) }
}

fn protect(at: u64, len: u64, protection: i32) {
    // SAFETY: a mapping of the test.
    assert_eq!(unsafe { libc::mprotect(at as *mut _, len as usize, protection) }, 0);
}

/// A page of bytes that are never 0, and behind it one that cannot be read.
fn page_and_gap() -> u64 {
    let at = map(2 * PAGE, libc::MAP_PRIVATE) as u64;
    // SAFETY: a fresh mapping.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, PAGE as usize) }
        .iter_mut()
        .enumerate()
        .for_each(|(i, byte)| *byte = (i % 251) as u8 + 1);
    protect(at + PAGE, PAGE, libc::PROT_NONE);
    at
}

fn unreadable(world: &World, at: u64) {
    assert_eq!(copy(world, at, 40), [], "{at:#x}");
    assert_eq!(string(world, at, 40), None, "{at:#x}");
    assert_eq!(word(world, at), None, "{at:#x}");
}

#[test]
fn bad_addresses_are_errors() {
    // Nothing is ever mapped there: programs are placed higher, and so is what they map without a
    // wish.
    let gone = 0x11000;
    let forbidden = page_and_gap() + PAGE;
    for world in worlds() {
        for at in [0, 8, 4095, 4096, gone, forbidden, forbidden + 8, 1 << 47, 1 << 63, u64::MAX - 4096, u64::MAX - 3] {
            unreadable(&world, at);
        }
        for at in [1, u64::MAX] {
            assert_eq!(copy(&world, at, 1), []);
        }
    }
}

#[test]
fn what_lies_before_a_gap_is_read() {
    let at = page_and_gap();
    // SAFETY: the first page.
    let page = unsafe { std::slice::from_raw_parts(at as *const u8, PAGE as usize) };
    for world in worlds() {
        for before in 0..40usize {
            let start = PAGE as usize - before;
            for len in [0, 1, 7, 8, 9, 16, 33, 64] {
                assert_eq!(copy(&world, at + start as u64, len), page[start..start + len.min(before)]);
                let expected = (len == 0 || before != 0).then(|| page[start..start + len.min(before)].to_vec());
                assert_eq!(string(&world, at + start as u64, len), expected, "{before} {len}");
            }
            let whole = before >= 8;
            let expected = whole.then(|| u64::from_le_bytes(page[start..start + 8].try_into().unwrap()));
            assert_eq!(word(&world, at + start as u64), expected);
        }
    }
}

#[test]
fn strings_of_all_lengths_at_all_alignments() {
    let at = map(3 * PAGE, libc::MAP_PRIVATE) as u64;
    // SAFETY: a fresh mapping.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, 3 * PAGE as usize) };
    let mut random = Random(7);
    for world in worlds() {
        // Bytes that make a sloppy search for zeros stumble, too.
        bytes.iter_mut().for_each(|b| *b = [1, 0x80, 0x81, 0xff, 0x7f, 2][random.below(6) as usize]);
        for base in [64u64, PAGE - 20] {
            for align in 0..16 {
                // Also of more than is asked of the kernel at once.
                for len in (0..40usize).chain([126, 127, 128, 129, 200]) {
                    let start = (base + align) as usize;
                    let (nul, kept) = (start + len, bytes[start + len]);
                    bytes[nul] = 0;
                    for max in [len, len + 1, len + 9, 256, len / 2] {
                        let expected = bytes[start..start + len.min(max)].to_vec();
                        assert_eq!(string(&world, at + start as u64, max), Some(expected), "{start} {len} {max}");
                    }
                    bytes[nul] = kept;
                }
            }
        }
    }
}

/// A map had two rows for one text: what a string had behind it was in the key, where the kernel
/// was asked for it.
#[test]
fn bytes_behind_the_end_of_a_text_got_into_keys() {
    let at = map(PAGE, libc::MAP_PRIVATE) as u64;
    // SAFETY: a fresh mapping.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, PAGE as usize) };
    let mut random = Random(11);
    for round in 0..500 {
        let (start, len) = (random.below(64) as usize, random.below(150) as usize);
        bytes.iter_mut().for_each(|byte| *byte = random.below(255) as u8 + 1);
        bytes[start + len] = 0;
        let keys: Vec<[u8; 256]> = worlds()
            .iter()
            .map(|world| {
                let mut key = [0; 256];
                // SAFETY: the buffer is that long.
                let got = unsafe { reads::copy_str(world.private, at + start as u64, key.as_mut_ptr(), 256) };
                assert_eq!(got, Some(len as u64), "{round}");
                key
            })
            .collect();
        assert_eq!(&keys[0][..len], &bytes[start..start + len]);
        assert!(keys[0][len..].iter().all(|byte| *byte == 0) && keys[0] == keys[1], "{round}: {keys:x?}");
    }
}

#[test]
fn pages_that_were_never_touched_are_zeros() {
    for world in worlds() {
        let at = map(4 * PAGE, libc::MAP_PRIVATE) as u64;
        assert_eq!(copy(&world, at + 8, 16), [0; 16]);
        assert_eq!(string(&world, at + PAGE, 16), Some(vec![]));
        assert_eq!(word(&world, at + 2 * PAGE + 3), Some(0));
        assert_eq!(copy(&world, at + 3 * PAGE - 4, 8), [0; 8]);
    }
}

#[test]
fn file_that_became_shorter_is_an_error() {
    let path = std::env::temp_dir().join(format!("sidestep-reads-{}", std::process::id()));
    let file = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(2 * PAGE).unwrap();
    // SAFETY: a new mapping.
    let at = unsafe {
        libc::mmap(ptr::null_mut(), 2 * PAGE as usize, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    } as u64;
    assert_ne!(at, u64::MAX);
    file.set_len(PAGE).unwrap();
    for world in worlds() {
        unreadable(&world, at + PAGE);
        assert_eq!(copy(&world, at + PAGE - 12, 40), [0; 12]);
        assert_eq!(word(&world, at + PAGE - 8), Some(0));
        assert_eq!(word(&world, at + PAGE - 7), None);
    }
}

/// Readers of pages that come and go under them.
#[test]
fn pages_that_change_meanwhile() {
    let world = *direct();
    let at = page_and_gap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = [false; 2];
                    // At least once, however late it starts.
                    loop {
                        let got = copy(&world, at + PAGE - 32, 64);
                        // The page may go away in the middle.
                        assert!((32..=64).contains(&got.len()), "{}", got.len());
                        seen[usize::from(got.len() == 64)] = true;
                        if stop.load(Ordering::Relaxed) {
                            return seen;
                        }
                    }
                })
            })
            .collect();
        for i in 0..4000 {
            protect(at + PAGE, PAGE, if i % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE });
        }
        // Both states at least once, whatever the scheduler did.
        protect(at + PAGE, PAGE, libc::PROT_READ);
        assert_eq!(copy(&world, at + PAGE - 32, 64).len(), 64);
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|r| assert_ne!(r.join().unwrap(), [false; 2]));
    });
}
