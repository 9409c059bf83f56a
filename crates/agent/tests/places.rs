//! Probes that watch only so many calls at a time: how many they watch, whatever becomes of the
//! calls.

mod world;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sidestep_wire::{Flow, ProbeDesc, Regs, ThreadState};
use world::{Random, Setup, TRAMPOLINE, Thread, World, behind_call, flow, program};

/// Probe 0 watches `limit` calls, and counts in cell 0 when they return.
fn watching(limit: u64, desc: ProbeDesc) -> World {
    let places = Box::leak(vec![0u64; limit as usize + 1].into_boxed_slice()).as_ptr() as u64;
    World::new(&Setup { probes: vec![ProbeDesc { maxactive: limit, places, ..desc }], ..Setup::default() })
}

/// A call; true if it is watched.
fn call(thread: &Thread, slot: &mut u64) -> bool {
    *slot = behind_call(4);
    let watched = thread.hit(&mut Regs { rsp: std::ptr::from_mut(slot) as u64, ..Regs::default() }, 0);
    assert_eq!(*slot == TRAMPOLINE, watched);
    watched
}

fn at_return() -> ProbeDesc {
    ProbeDesc { flags: 0, ..flow(Flow::Return) }
}

#[test]
fn so_many_and_no_more() {
    let world = watching(3, at_return());
    let thread = world.enter(0x1000).unwrap();
    let mut slots = [0; 5];
    for round in 1..=4 {
        let watched: Vec<bool> = slots.iter_mut().map(|slot| call(&thread, slot)).collect();
        assert_eq!(watched, [true, true, true, false, false]);
        for slot in slots.iter_mut().rev() {
            assert_eq!(thread.ret(slot), behind_call(4));
        }
        assert_eq!((world.cell(0), world.missed(0)), (3 * round, 2 * round));
    }
    assert_eq!((thread.depth(), world.dropped()), (0, 0));
}

#[test]
fn calls_that_never_return_keep_no_place() {
    let world = watching(2, at_return());
    let thread = world.enter(0x1000).unwrap();
    let mut slots = [0; 4];
    assert!(call(&thread, &mut slots[0]) && call(&thread, &mut slots[1]));
    assert!(!call(&thread, &mut slots[2]));
    // Left by a longjmp, and the stack is used again.
    (slots[0], slots[1]) = (1, 2);
    assert!(call(&thread, &mut slots[2]) && call(&thread, &mut slots[3]));
    assert_eq!((thread.ret(&mut slots[3]), thread.ret(&mut slots[2])), (behind_call(4), behind_call(4)));
    // Left, and the same call comes again.
    for _ in 0..10 {
        assert!(call(&thread, &mut slots[0]) && call(&thread, &mut slots[1]));
    }
    assert_eq!((world.cell(0), world.missed(0)), (2, 1));
}

#[test]
fn stacks_that_are_gone_keep_no_place() {
    let world = watching(1, at_return());
    let (thread, other) = (world.enter(0x1000).unwrap(), world.enter(0x2000).unwrap());
    let stack = world::map(4096, libc::MAP_PRIVATE);
    // SAFETY: a word of the new mapping.
    assert!(call(&thread, unsafe { &mut *stack.cast() }));
    let mut slot = 0;
    assert!(!call(&other, &mut slot));
    // SAFETY: nobody refers to it but the places and the shadow stack.
    unsafe { libc::munmap(stack.cast(), 4096) };
    assert!(call(&other, &mut slot));
    assert_eq!(other.ret(&mut slot), behind_call(4));
    assert_eq!((world.cell(0), world.missed(0)), (1, 1));
}

unsafe extern "C" fn declines(regs: *mut Regs, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    // SAFETY: the context of a hit.
    unsafe { (*regs).rdi }
}

#[test]
fn who_does_not_want_the_return_takes_no_place() {
    let world = watching(1, program(Flow::Return, declines));
    let thread = world.enter(0x1000).unwrap();
    let mut slots = [behind_call(4); 3];
    let mut hit = |n: usize, rdi| {
        thread.hit(&mut Regs { rsp: std::ptr::from_mut(&mut slots[n]) as u64, rdi, ..Regs::default() }, 0)
    };
    assert!(!hit(0, 1) && hit(1, 0) && !hit(2, 1));
    // The last one was missed: its program did not run.
    assert_eq!((world.cell(0), world.missed(0)), (2, 1));
}

static INSIDE: AtomicU64 = AtomicU64::new(0);
static TOO_MANY: AtomicBool = AtomicBool::new(false);
const LIMIT: u64 = 3;

unsafe extern "C" fn enters(_: *mut Regs, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    if INSIDE.fetch_add(1, Ordering::AcqRel) >= LIMIT {
        TOO_MANY.store(true, Ordering::Release);
    }
    0
}

/// Threads call and return at random: there are never more than allowed, and each call is handled
/// or missed.
#[test]
fn threads_share_the_places() {
    let world = watching(LIMIT, program(Flow::Return, enters));
    std::thread::scope(|scope| {
        for n in 0..4u64 {
            let thread = world.enter(0x1000 * (n + 1)).unwrap();
            scope.spawn(move || {
                let thread = { thread };
                let (mut slots, mut depth, mut random) = (vec![0; 8], 0, Random(n));
                for left in (0..100_000).rev() {
                    if left >= slots.len() && depth < slots.len() && (depth == 0 || random.below(2) == 0) {
                        call(&thread, &mut slots[depth]);
                        depth += 1;
                    } else if depth > 0 {
                        depth -= 1;
                        // Before the place is free for others.
                        if slots[depth] == TRAMPOLINE {
                            INSIDE.fetch_sub(1, Ordering::AcqRel);
                        }
                        assert_eq!(thread.ret(&mut slots[depth]), behind_call(4));
                    }
                }
            });
        }
    });
    assert!(!TOO_MANY.load(Ordering::Acquire));
    assert_eq!(INSIDE.load(Ordering::Acquire), 0);
    assert!(world.cell(0) > 0 && world.missed(0) > 0);
}
