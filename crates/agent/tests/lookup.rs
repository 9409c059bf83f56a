//! Threads and their entries: collisions, races, ended threads, forked children.

mod world;

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use sidestep_wire::lookup::{LOOKUP_BUCKETS, bucket};
use sidestep_wire::{Flow, Histogram, LookupEntry, LookupTable, Regs};
use world::{Setup, World, behind_call, flow, latency};

fn setup(slots: u32) -> Setup {
    Setup {
        slots,
        probes: vec![flow(Flow::Entry), latency(0)],
        cells: 8 + Histogram::CELLS as u64,
        ring_len: 0,
        ..Setup::default()
    }
}

/// Made-up `fs` bases that all begin in one bucket.
fn colliding(with: usize, count: usize) -> Vec<u64> {
    (1..).map(|n| n * 0x1000).filter(|fs| bucket(*fs) == with).take(count).collect()
}

fn entry(world: &World, index: usize) -> LookupEntry {
    let table = world.head().lookup as *const LookupTable;
    // SAFETY: the table is leaked.
    unsafe { ptr::addr_of!((*table).buckets[index]).read_volatile() }
}

/// The thread pointer of this thread: glibc keeps it in its own first word.
fn own_fs_base() -> u64 {
    let fs_base;
    // SAFETY: reads the first word of the thread control block.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) fs_base, options(nostack, readonly)) };
    fs_base
}

#[test]
fn colliding_threads_have_entries_of_their_own() {
    let world = World::new(&setup(64));
    let all = colliding(77, 40);
    let found: Vec<_> = all.iter().map(|fs| world.enter(*fs).unwrap()).collect();
    assert_eq!(found.iter().map(|t| t.cells).collect::<HashSet<_>>().len(), 40);
    assert_eq!(found.iter().map(|t| t.state).collect::<HashSet<_>>().len(), 40);
    for (fs, first) in all.iter().zip(&found) {
        let again = world.enter(*fs).unwrap();
        assert_eq!((again.cells, again.state), (first.cells, first.state));
    }
    assert_eq!(entry(&world, 77).key, all[0]);
    assert_eq!(world.common().slots_used.load(Ordering::Relaxed), 40);
}

#[test]
fn the_first_bucket_is_for_threads_without_tls() {
    let world = World::new(&setup(8));
    let other = colliding(0, 1)[0];
    let with = world.enter(other).unwrap();
    assert_eq!(entry(&world, 0), LookupEntry::default());
    let without = world.enter(0).unwrap();
    assert_eq!((entry(&world, 0).cells, entry(&world, 0).key), (without.cells, 0));
    assert_ne!(with.state, without.state);
    // A search goes round at the end of the table and steps over the first bucket there, too.
    for fs in colliding(LOOKUP_BUCKETS - 1, 3) {
        world.enter(fs).unwrap();
    }
    assert_eq!(entry(&world, 0).cells, without.cells);
}

#[test]
fn sixty_four_threads_at_once() {
    let world = World::new(&setup(128));
    let bases: Vec<u64> = colliding(5, 32).into_iter().chain((1..=32).map(|n| n * 0x80_1000)).collect();
    assert_eq!(bases.iter().collect::<HashSet<_>>().len(), 64);
    let barrier = std::sync::Barrier::new(64);
    std::thread::scope(|scope| {
        for fs in &bases {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..1000 {
                    world.enter(*fs).unwrap().hit(&mut Regs::default(), 0);
                }
            });
        }
    });
    assert_eq!(world.cell(0), 64_000);
    assert_eq!(world.common().slots_used.load(Ordering::Relaxed), 64);
    let users: HashSet<u64> = (0..64).map(|i| world.slot(i).fs_base.load(Ordering::Relaxed)).collect();
    assert_eq!(users, bases.into_iter().collect());
}

#[test]
fn a_thread_is_known_by_its_id_and_name() {
    std::thread::Builder::new()
        .name("somebody".into())
        .spawn(|| {
            let world = World::new(&setup(8));
            let thread = world.enter(own_fs_base()).unwrap();
            let mut comm = [b'?'; 16];
            // SAFETY: a buffer and its length.
            assert_eq!(unsafe { thread.helper(16, [comm.as_mut_ptr() as u64, 16, 0, 0, 0]) }, 0);
            let state = thread.state();
            // SAFETY: no arguments.
            let tid = unsafe { libc::gettid() } as u32;
            assert_eq!((state.tid, world.slot(0).tid.load(Ordering::Relaxed)), (tid, tid));
            assert_eq!(&comm[..9], b"somebody\0");
            // The C library's word: the oracle is glibc itself, which changes it with the thread.
            // SAFETY: within the thread control block.
            assert_eq!(unsafe { ((own_fs_base() + u64::from(state.tid_word)) as *const u32).read() }, tid);
            assert_ne!(state.tid_word, 0);
            assert_eq!(world.enter(0x1000).unwrap().state().tid_word, 0);
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn the_slot_of_an_ended_thread_is_used_again_and_that_of_a_living_one_is_not() {
    let world = World::new(&setup(1));
    let (entered, was_entered) = channel();
    let (end, may_end) = channel();
    // More than glibc keeps for other threads: those of the tests beside this one come and go.
    const STACK: usize = 64 << 20;
    let first = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let thread = world.enter(own_fs_base()).unwrap();
        thread.hit(&mut Regs::default(), 0);
        entered.send(own_fs_base()).unwrap();
        may_end.recv().unwrap();
    });
    let gone: u64 = was_entered.recv().unwrap();
    for _ in 0..20 {
        assert!(world.enter(own_fs_base()).is_none());
    }
    end.send(()).unwrap();
    first.unwrap().join().unwrap();
    // The kernel clears the id after `join` may have seen the end of the thread's function.
    let thread = (0..1_000_000).find_map(|_| world.enter(own_fs_base())).unwrap();
    thread.hit(&mut Regs::default(), 0);
    assert_eq!(world.cell(0), 2, "what the ended thread counted stays");
    assert_eq!(world.slot(0).fs_base.load(Ordering::Relaxed), own_fs_base());
    // Should its stack be used for a new thread, that one starts afresh.
    assert!(world.enter(gone).is_none());
}

#[test]
fn more_threads_than_a_search_looks_at() {
    let world = World::new(&setup(300));
    let bases = colliding(9, 129);
    assert!(bases[..128].iter().all(|fs| world.enter(*fs).is_some()));
    assert!(world.enter(bases[128]).is_none());
    assert_eq!(world.common().slots_used.load(Ordering::Relaxed), 128);
}

/// The shared region as the controller sees it.
fn shared(world: &World) -> Vec<u8> {
    let layout = world.layout();
    let len = layout.slots_off + u64::from(layout.slots_max) * layout.slot_stride;
    // SAFETY: the whole region, which nobody writes at the moment.
    unsafe { std::slice::from_raw_parts(world.head().shared as *const u8, len as usize) }.to_vec()
}

#[test]
fn a_forked_child_returns_and_writes_nothing_shared() {
    let world = World::new(&setup(4));
    let fs = own_fs_base();
    let thread = world.enter(fs).unwrap();
    let mut stack = [0u64; 3000];
    thread.call(&mut stack[2999], behind_call(3), 1);
    let before = shared(&world);
    in_child(|| {
        assert_eq!(entry(&world, bucket(fs)).key, 0, "the table was wiped");
        let thread = world.enter(fs).unwrap();
        assert_eq!(world.head().child.load(Ordering::Relaxed), 1);
        assert_eq!((thread.cells, thread.state().slot), (0, 0));
        // The frame that was entered before the fork.
        assert_eq!(thread.ret(&mut stack[2999]), behind_call(3));
        // No program runs there, so nothing is watched; nor in a new thread.
        stack[0] = 0x222;
        thread.hit(&mut Regs { rsp: stack.as_ptr() as u64, ..Regs::default() }, 1);
        assert_eq!((stack[0], thread.depth()), (0x222, 0));
        world.enter(0x5000).unwrap().hit(&mut Regs::default(), 0);
    });
    assert!(shared(&world) == before, "a child wrote to the shared region");
    assert_eq!(thread.ret(&mut stack[2999]), behind_call(3));
}

/// Runs something in a forked child, which must end well.
fn in_child(work: impl FnOnce()) -> u32 {
    // SAFETY: the child calls the agent only, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let good = std::panic::catch_unwind(AssertUnwindSafe(work));
        // SAFETY: ends the child.
        unsafe { libc::_exit(if good.is_ok() { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child of this test.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    pid as u32
}

#[test]
fn a_child_that_is_followed_counts_in_a_slot_of_its_own() {
    let world = World::new(&setup(4));
    world.follow();
    let fs = own_fs_base();
    let hit = |world: &World| world.enter(fs).unwrap().hit(&mut Regs::default(), 0);
    assert!(!hit(&world));
    let child = in_child(|| (0..2).for_each(|_| assert!(!hit(&world))));
    assert_eq!((world.cell(0), world.common().slots_used.load(Ordering::Relaxed)), (3, 2));
    assert_eq!(world.slot(0).owner.load(Ordering::Relaxed), std::process::id());
    assert_eq!(world.slot(1).owner.load(Ordering::Relaxed), child);
    // What the controller does when it has ended: the next one gets the slot, with what was counted
    // there.
    world.slot(1).owner.store(0, Ordering::Relaxed);
    world.common().slots_free.store(1, Ordering::Relaxed);
    let next = in_child(|| (0..5).for_each(|_| assert!(!hit(&world))));
    assert_eq!((world.cell(0), world.common().slots_used.load(Ordering::Relaxed)), (8, 2));
    assert_eq!(world.slot(1).owner.load(Ordering::Relaxed), next);
    assert!(!hit(&world));
    assert_eq!(world.cell(0), 9);
}
