//! Call stacks of a chain of frames that the test knows to the last address.
#![cfg(target_arch = "x86_64")]

mod world;

use std::arch::global_asm;
use std::ptr;
use std::sync::atomic::Ordering;

use sidestep_wire::map::STACK_TRACE;
use sidestep_wire::stacks::{FAST_COMPARE, REUSE};
use sidestep_wire::{Flow, Hit, MapDesc, ProbeDesc, Regs, Stacks};
use world::{Setup, TRAMPOLINE, Thread, World, flow};

// As compiled with -fno-omit-frame-pointer: `stacks_start(depth, callback, argument)` calls itself
// `depth` times, then a leaf that calls
// `callback(its frame pointer, its stack pointer at the entry, argument)`. The outermost frame ends
// the chain.
global_asm!(
    ".globl stacks_start, stacks_outer, stacks_chain, stacks_leaf",
    "stacks_start: push rbp",
    "xor ebp, ebp",
    "call 2f",
    "stacks_outer: pop rbp",
    "ret",
    "2: push rbp",
    "mov rbp, rsp",
    "test rdi, rdi",
    "jz 3f",
    "dec rdi",
    "call 2b",
    "stacks_chain: pop rbp",
    "ret",
    "3: call 4f",
    "stacks_leaf: pop rbp",
    "ret",
    "4: mov rax, rsi",
    "mov rdi, rbp",
    "mov rsi, rsp",
    "push rbx",
    "mov rbx, rsp",
    "and rsp, -16",
    "call rax",
    "mov rsp, rbx",
    "pop rbx",
    "ret",
);

unsafe extern "C" {
    fn stacks_start(depth: u64, callback: extern "C" fn(u64, u64, *mut u8), argument: *mut u8);
    fn stacks_outer();
    fn stacks_chain();
    fn stacks_leaf();
}

const HERE: u64 = 0x1111_2222;
const USER: u64 = 1 << 8;

/// What is asked in the leaf, and the answer.
struct Test<'a> {
    thread: Thread,
    probe: u64,
    ask: &'a mut dyn FnMut(&Thread, u64),
}

extern "C" fn in_leaf(rbp: u64, rsp: u64, test: *mut u8) {
    // SAFETY: `at_depth` passes the address of its `Test`, which lives until the call is over.
    let test = unsafe { &mut *test.cast::<Test>() };
    let hit = Hit { probe: test.probe, regs: Regs { rip: HERE, rbp, rsp, ..Regs::default() }, ..Hit::default() };
    (test.ask)(&test.thread, ptr::from_ref(&hit.regs) as u64);
}

fn at_depth(thread: &Thread, depth: u64, probe: u64, ask: &mut dyn FnMut(&Thread, u64)) {
    let mut test = Test { thread: *thread, probe, ask };
    // SAFETY: the assembly code calls `in_leaf` once, with `test` as the argument, while `test` is
    // alive.
    unsafe { stacks_start(depth, in_leaf, ptr::from_mut(&mut test).cast()) }
}

/// Probe 0: at a function's entry. 1: inside. 2: watches returns. Map 0: stacks of up to 8
/// addresses.
fn world() -> (World, Thread) {
    let entry = ProbeDesc { flags: ProbeDesc::FUNCTION, ..flow(Flow::Entry) };
    let probes = vec![entry, flow(Flow::Entry), flow(Flow::Return)];
    let maps = vec![MapDesc::new(STACK_TRACE, 4, 64, 1000, 0, 0).unwrap()];
    let world = World::new(&Setup { probes, maps, ..Setup::default() });
    (world, world.enter(0x1000).unwrap())
}

/// Innermost first.
fn expected(depth: usize, has_leaf: bool) -> Vec<u64> {
    let mut all = vec![HERE];
    if has_leaf {
        all.push(stacks_leaf as *const () as u64);
    }
    all.extend(vec![stacks_chain as *const () as u64; depth]);
    all.push(stacks_outer as *const () as u64);
    all
}

fn get_stack(thread: &Thread, context: u64, room: usize, flags: u64) -> Result<Vec<u64>, i64> {
    let mut out = vec![u64::MAX; room + 1];
    // SAFETY: a context and a buffer.
    let len = unsafe { thread.helper(67, [context, out.as_mut_ptr() as u64, room as u64 * 8, flags, 0]) } as i64;
    assert_eq!(out.pop(), Some(u64::MAX));
    let used = usize::try_from(len).unwrap_or(0) / 8;
    assert!(out[used..].iter().all(|word| *word == 0), "the rest is cleared");
    out.truncate(used);
    if len < 0 { Err(len) } else { Ok(out) }
}

#[test]
fn every_frame_is_there_in_its_order() {
    let (_, thread) = world();
    for depth in [0, 1, 5, 60] {
        for (probe, has_leaf) in [(0, true), (1, false), (2, true), (2 | Hit::RETURNED, false)] {
            at_depth(&thread, depth, probe, &mut |thread, context| {
                let all = expected(depth as usize, has_leaf);
                assert_eq!(get_stack(thread, context, 100, USER), Ok(all.clone()));
                assert_eq!(get_stack(thread, context, 2, USER), Ok(all[..2].to_vec()));
                assert_eq!(get_stack(thread, context, 100, USER | 1), Ok(all[1..].to_vec()));
                assert_eq!(get_stack(thread, context, 100, USER | all.len() as u64), Ok(vec![]));
                assert_eq!(get_stack(thread, context, 100, USER | (all.len() as u64 + 1)), Err(-14));
            });
        }
    }
}

#[test]
fn replaced_return_addresses_show_as_the_real_ones() {
    let (_, thread) = world();
    at_depth(&thread, 3, 0, &mut |thread, context| {
        // SAFETY: the registers of the leaf.
        let (regs, all) = (unsafe { &*(context as *const Regs) }, expected(3, true));
        // The leaf's own return address, twice, and its caller's.
        for slot in [regs.rbp + 8, regs.rsp, regs.rsp] {
            thread.hit(&mut Regs { rsp: slot, ..Regs::default() }, 2);
            // SAFETY: the slot is a word of the stack of the functions that run.
            assert_eq!(unsafe { *(slot as *const u64) }, TRAMPOLINE);
        }
        assert_eq!(get_stack(thread, context, 100, USER), Ok(all.clone()));
        for (slot, real) in [(regs.rsp, all[1]), (regs.rbp + 8, all[2])] {
            // SAFETY: the slot is a word of the stack of the functions that run. This does what the
            // returns would do.
            unsafe {
                assert_eq!(thread.ret(&mut *(slot as *mut u64)), real);
                *(slot as *mut u64) = real;
            }
        }
    });
}

#[test]
fn a_broken_chain_ends_the_stack() {
    let (_, thread) = world();
    let frame = [0u64, 77];
    let up = [frame.as_ptr() as u64, 66];
    for (rbp, rest) in [(0, vec![]), (8, vec![]), (12345, vec![]), (1 << 63, vec![]), (u64::MAX, vec![])] {
        let hit = Hit { probe: 1, regs: Regs { rip: HERE, rbp, ..Regs::default() }, ..Hit::default() };
        let all = [vec![HERE], rest].concat();
        assert_eq!(get_stack(&thread, ptr::from_ref(&hit.regs) as u64, 9, USER), Ok(all));
    }
    // A frame that leads to itself or down is the last.
    let mut own = [0u64, 88];
    own[0] = own.as_ptr() as u64;
    for frame in [&own, &up] {
        let regs = Regs { rip: HERE, rbp: frame.as_ptr() as u64, ..Regs::default() };
        let hit = Hit { probe: 1, regs, ..Hit::default() };
        let mut all = vec![HERE, frame[1]];
        if frame[0] > frame.as_ptr() as u64 {
            all.push(77);
        }
        assert_eq!(get_stack(&thread, ptr::from_ref(&hit.regs) as u64, 9, USER), Ok(all));
    }
}

fn id(thread: &Thread, context: u64, flags: u64) -> i64 {
    let map = thread.world.shape(0);
    // SAFETY: a context and a map.
    (unsafe { thread.helper(27, [context, map, flags, 0, 0]) }) as i64
}

fn stored(world: &World, id: i64) -> Option<Vec<u64>> {
    let mut all = Vec::new();
    Stacks::new(world.map(0), world.data(0)).read(id as u64, |address| all.push(address)).then_some(all)
}

#[test]
fn what_addresses_mean_goes_along_with_a_stack() {
    let (world, thread) = world();
    at_depth(&thread, 2, 0, &mut |thread, context| {
        let first = id(thread, context, USER);
        world.head().space.store(3, Ordering::Relaxed);
        let third = id(thread, context, USER);
        world.head().space.store(0, Ordering::Relaxed);
        assert_eq!((first >> 32, third), (0, first | 3 << 32));
        let map = world.shape(0);
        // SAFETY: a map and a number.
        let len = |id: i64| unsafe { thread.helper(259, [map, id as u64, 0, 0, 0]) };
        assert_eq!((len(first), len(third)), (expected(2, true).len() as u64, len(first)));
    });
    world.head().space.store(5, Ordering::Relaxed);
    // SAFETY: a number.
    let symbol = unsafe { thread.helper(263, [0x1234, 0, 0, 0, 0]) };
    assert_eq!(symbol, 0x1234 | 5 << 48);
}

#[test]
fn equal_stacks_have_one_number() {
    let (world, thread) = world();
    let mut ids = Vec::new();
    for depth in [0, 2, 4, 0, 2, 4] {
        at_depth(&thread, depth, 0, &mut |thread, context| {
            let number = id(thread, context, USER);
            assert_eq!(stored(&world, number), Some(expected(depth as usize, true)));
            assert_eq!(id(thread, context, USER | FAST_COMPARE), number);
            ids.push(number);
        });
    }
    assert_eq!(ids[..3], ids[3..]);
    assert!(ids[0] != ids[1] && ids[1] != ids[2]);
    // No more than there is room for.
    at_depth(&thread, 50, 0, &mut |thread, context| {
        assert_eq!(stored(&world, id(thread, context, USER)), Some(expected(50, true)[..8].to_vec()));
        assert_eq!(stored(&world, id(thread, context, USER | 50)), Some(expected(50, true)[50..].to_vec()));
        assert_eq!((id(thread, context, 0), id(thread, context, USER | 200)), (-14, -14));
        assert_eq!(id(thread, context, USER | 1 << 11), -22);
    });
    let map = world.shape(0);
    let key = ids[0] as u32;
    // SAFETY: a map and a key.
    let delete = || unsafe { thread.helper(3, [map, ptr::from_ref(&key) as u64, 0, 0, 0]) } as i64;
    assert_eq!((delete(), delete(), stored(&world, ids[0])), (0, -2, None));
}

#[test]
fn another_stack_in_the_bucket_is_an_error_or_makes_room() {
    let maps = vec![MapDesc::new(STACK_TRACE, 4, 64, 1, 0, 0).unwrap()];
    let world = World::new(&Setup { probes: vec![flow(Flow::Entry)], maps, ..Setup::default() });
    let thread = world.enter(0x1000).unwrap();
    let ask = |depth: usize, flags: u64| {
        let mut result = 0;
        at_depth(&thread, depth as u64, 0, &mut |thread, context| result = id(thread, context, USER | flags));
        result
    };
    assert_eq!((ask(1, 0), ask(2, 0), ask(2, FAST_COMPARE), ask(1, 0)), (0, -17, -17, 0));
    assert_eq!(world.map(0).dropped.load(Ordering::Relaxed), 2);
    assert_eq!((ask(2, REUSE), stored(&world, 0)), (0, Some(expected(2, false))));
    // One that is being written by somebody who was interrupted: nobody waits, nobody takes it.
    let state = &world.data(0)[0];
    let complete = state.load(Ordering::Relaxed);
    state.store(complete & !3 | 1, Ordering::Relaxed);
    assert_eq!((ask(2, 0), ask(1, 0), ask(1, REUSE), stored(&world, 0)), (0, -17, -17, None));
}

/// Of 20 stacks in 64 buckets, two meet nearly always.
#[test]
fn stacks_that_meet_have_a_bucket_each() {
    let maps = vec![MapDesc::new(STACK_TRACE, 4, 64 * 8, 64, 0, 0).unwrap()];
    let world = World::new(&Setup { probes: vec![flow(Flow::Entry)], maps, ..Setup::default() });
    let thread = world.enter(0x1000).unwrap();
    let numbers = |round: u64| {
        let of = |depth: u64| {
            let mut number = 0;
            at_depth(&thread, depth, 0, &mut |thread, context| number = id(thread, context, USER));
            assert_eq!(stored(&world, number), Some(expected(depth as usize, false)), "{round}");
            number
        };
        (0..20).map(of).collect::<Vec<_>>()
    };
    let first = numbers(0);
    assert_eq!(first.iter().collect::<std::collections::BTreeSet<_>>().len(), 20);
    assert_eq!(numbers(1), first);
    assert_eq!(world.map(0).dropped.load(Ordering::Relaxed), 0);
}

#[test]
fn threads_that_store_stacks_at_once_never_mix_them() {
    let maps = vec![MapDesc::new(STACK_TRACE, 4, 64, 2, 0, 0).unwrap()];
    let world = World::new(&Setup { probes: vec![flow(Flow::Entry)], maps, ..Setup::default() });
    std::thread::scope(|scope| {
        for n in 1..4u64 {
            scope.spawn(move || {
                let thread = world.enter(0x1000 * n).unwrap();
                for round in 0..20_000 {
                    at_depth(&thread, (round + n) % 6, 0, &mut |thread, context| {
                        let number = id(thread, context, USER | REUSE);
                        if let Some(stack) = stored(&world, number) {
                            assert_eq!(stack, expected(stack.len() - 2, false));
                        }
                    });
                }
            });
        }
    });
}
