//! Return addresses: whatever the program does with its stacks, each return goes where its call
//! came from.

mod world;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use sidestep_wire::private::SHADOW_FIRST;
use sidestep_wire::{Flow, Histogram, MapKind, ProbeDesc, Regs};
use world::{Random, Setup, TRAMPOLINE, Thread, World, behind_call, flow, latency};

/// Probe 0: latency, hits in cell 0, histogram from cell 8. Probe 1: the same function again. 2, 3:
/// an exception. 4: latency of another function, hits in cell 0.
fn setup() -> Setup {
    let elsewhere = ProbeDesc { site: 0x2000, ..latency(0) };
    let probes = vec![latency(0), latency(1), flow(Flow::Unwind), flow(Flow::Caught), elsewhere];
    Setup { probes, cells: 8 + Histogram::CELLS as u64, ..Setup::default() }
}

fn latencies(world: &World) -> u64 {
    (0..Histogram::BUCKETS as u64).map(|b| world.cell(8 + b)).sum()
}

fn address(n: u64) -> u64 {
    behind_call(n)
}

/// A stack that grows down, and what a program without us would know about it.
struct Stack {
    words: Vec<u64>,
    frames: Vec<(usize, u64)>,
}

impl Stack {
    fn new(len: usize) -> Stack {
        Stack { words: vec![0; len], frames: Vec::new() }
    }

    fn call(&mut self, thread: &Thread, ret: u64, distance: usize, probe: u32) -> bool {
        let top = self.frames.last().map_or(self.words.len(), |f| f.0);
        let Some(at) = top.checked_sub(distance) else { return false };
        thread.call(&mut self.words[at], ret, probe);
        self.frames.push((at, ret));
        true
    }

    fn ret(&mut self, thread: &Thread) {
        let (at, ret) = self.frames.pop().unwrap();
        assert_eq!(thread.ret(&mut self.words[at]), ret);
    }
}

#[test]
fn calls_and_returns_at_random() {
    let world = World::new(&setup());
    let thread = world.enter(0x1000).unwrap();
    let mut stack = Stack::new(4000);
    let mut random = Random(1);
    let mut calls = 0;
    for n in 0..20_000 {
        if stack.frames.is_empty() || random.below(100) < 52 {
            calls += u64::from(stack.call(&thread, address(n), 1 + random.below(9) as usize, 0));
        } else {
            stack.ret(&thread);
        }
    }
    while !stack.frames.is_empty() {
        stack.ret(&thread);
    }
    assert_eq!((world.cell(0), latencies(&world)), (calls, calls));
    assert_eq!((thread.depth(), world.dropped()), (0, 0));
}

#[test]
fn the_sum_of_latencies_is_the_time_that_passed() {
    let world = World::new(&Setup { tsc: false, ..setup() });
    let thread = world.enter(0x1000).unwrap();
    let mut slot = 0;
    let start = std::time::Instant::now();
    thread.call(&mut slot, address(1), 0);
    let inner = std::time::Instant::now();
    std::thread::sleep(std::time::Duration::from_millis(3));
    let inner = inner.elapsed().as_nanos() as u64;
    assert_eq!(thread.ret(&mut slot), address(1));
    let outer = start.elapsed().as_nanos() as u64;
    let sum = world.cell(8 + Histogram::SUM as u64);
    assert!(inner <= sum && sum <= outer, "{inner} {sum} {outer}");
    assert_eq!(world.cell(8 + Histogram::bucket(sum) as u64), 1);
}

#[test]
fn longjmp_out_of_frames_leaves_nothing_behind() {
    let world = World::new(&setup());
    let thread = world.enter(0x1000).unwrap();
    let mut stack = Stack::new(64);
    stack.call(&thread, address(0), 1, 0);
    let rounds = 50_000;
    for n in 0..rounds {
        stack.call(&thread, address(2 * n), 3, 0);
        stack.call(&thread, address(2 * n + 1), 5, 0);
        stack.frames.truncate(1);
    }
    stack.ret(&thread);
    assert!(thread.state().shadow_cap == SHADOW_FIRST as u64, "dead entries made the stack grow");
    assert_eq!(latencies(&world), 1);
    assert_eq!(world.cell(0), 1 + 2 * rounds);
    assert_eq!(world.dropped() + thread.live(), 2 * rounds);
}

#[test]
fn longjmp_at_random() {
    let world = World::new(&setup());
    let thread = world.enter(0x1000).unwrap();
    let mut stack = Stack::new(3000);
    let mut random = Random(2);
    for n in 0..60_000 {
        let depth = stack.frames.len() as u64;
        match random.below(100) {
            0..53 => {
                stack.call(&thread, address(n), 1 + random.below(6) as usize, 0);
            }
            53..98 if depth != 0 => stack.ret(&thread),
            98.. if depth != 0 => stack.frames.truncate(random.below(depth) as usize),
            _ => {}
        }
    }
    while !stack.frames.is_empty() {
        stack.ret(&thread);
    }
}

#[test]
fn two_probes_of_one_frame_and_tail_calls() {
    let world = World::new(&setup());
    let thread = world.enter(0x1000).unwrap();
    let mut slots = [0; 2];
    thread.call(&mut slots[1], address(1), 0);
    // The second one has the last word at this hit, and the first one has replaced the address.
    assert!(thread.tail_call(&mut slots[1], 1));
    thread.call(&mut slots[0], address(2), 0);
    assert_eq!(thread.ret(&mut slots[0]), address(2));
    // A jump to a function elsewhere: whoever has called the first one knows already.
    assert!(!thread.tail_call(&mut slots[1], 4));
    assert_eq!(thread.depth(), 3);
    assert_eq!(thread.ret(&mut slots[1]), address(1));
    assert_eq!((world.cell(0), world.cell(1), latencies(&world), thread.depth()), (3, 1, 4, 0));
}

#[test]
fn deep_recursion_grows_the_shadow_stack() {
    let world = World::new(&setup());
    let thread = world.enter(0x1000).unwrap();
    let depth = 10_000;
    let mut stack = Stack::new(depth);
    for n in 0..depth as u64 {
        assert!(stack.call(&thread, address(n), 1, 0));
    }
    for _ in 0..depth {
        stack.ret(&thread);
    }
    assert_eq!((world.dropped(), latencies(&world)), (0, depth as u64));
    let maps = world.maps();
    assert_eq!(maps.len(), 6); // 160 doubled until it holds 10,000
    assert!((maps[5].addr..maps[5].addr + maps[5].len).contains(&thread.state().shadow));
    for entry in maps {
        assert_eq!(entry.kind, MapKind::Grown as u32);
        // SAFETY: an error shows when the range is not mapped.
        assert_eq!(unsafe { libc::msync(entry.addr as *mut _, entry.len as usize, libc::MS_ASYNC) }, 0);
    }
}

#[test]
fn a_full_mapping_list_only_costs_the_returns() {
    let world = World::new(&setup());
    let thread = world.enter(0x1000).unwrap();
    world.header().maps_len.store(world.layout().maps_cap, Ordering::Relaxed);
    let mut stack = vec![0; 1000];
    for (n, slot) in stack.iter_mut().enumerate() {
        *slot = address(n as u64);
        thread.hit(&mut Regs { rsp: std::ptr::from_mut(slot) as u64, ..Regs::default() }, 0);
    }
    assert_eq!(world.dropped(), 1000 - SHADOW_FIRST as u64);
    for (n, slot) in stack.iter_mut().enumerate().rev() {
        assert_eq!(thread.ret(slot), address(n as u64));
    }
    assert_eq!((world.cell(0), latencies(&world)), (1000, SHADOW_FIRST as u64));
}

#[test]
fn an_exception_passes_real_addresses() {
    let world = World::new(&setup());
    let thread = world.enter(0x1000).unwrap();
    let mut stack = [0u64; 16];
    let base = stack.as_ptr() as u64;
    for (n, at) in [15, 12, 9, 6, 3].into_iter().enumerate() {
        thread.call(&mut stack[at], address(n as u64), 0);
    }
    thread.tail_call(&mut stack[12], 1);
    thread.tail_call(&mut stack[3], 1);
    thread.hit(&mut Regs { rsp: base, ..Regs::default() }, 2);
    assert_eq!([15, 12, 9, 6, 3].map(|at| stack[at]), [0, 1, 2, 3, 4].map(address), "what the unwinder sees");

    // A destructor that runs while the stack is unwound.
    thread.call(&mut stack[1], address(7), 0);
    assert_eq!(thread.ret(&mut stack[1]), address(7));

    thread.hit(&mut Regs { rsp: base + 8 * 8, ..Regs::default() }, 3);
    assert_eq!([15, 12, 9].map(|at| stack[at]), [TRAMPOLINE; 3]);
    assert_eq!(world.dropped(), 3);
    for (n, at) in [(2, 9), (1, 12), (0, 15)] {
        assert_eq!(thread.ret(&mut stack[at]), address(n));
    }
    assert_eq!((thread.depth(), latencies(&world)), (0, 1 + 4));
}

#[test]
fn an_exception_that_nobody_catches_is_only_not_measured() {
    let world = World::new(&setup());
    let thread = world.enter(0x1000).unwrap();
    let mut stack = Stack::new(100);
    for round in 0..2000 {
        stack.call(&thread, address(round), 7, 0);
        stack.call(&thread, address(round + 1), 2, 0);
        thread.hit(&mut Regs { rsp: stack.words.as_ptr() as u64, ..Regs::default() }, 2);
        stack.ret(&thread);
        stack.ret(&thread);
    }
    assert_eq!(thread.state().shadow_cap, SHADOW_FIRST as u64);
    assert_eq!(latencies(&world), 0);
}

#[test]
fn a_coroutine_returns_on_another_thread() {
    let world = World::new(&setup());
    let mut slot = Box::new(0u64);
    let there = world;
    let (a, mut slot) = std::thread::spawn(move || {
        let a = there.enter(0x1000).unwrap();
        a.call(&mut slot, address(1), 0);
        (a, slot)
    })
    .join()
    .unwrap();
    let b = world.enter(0x2000).unwrap();
    assert_eq!(b.ret(&mut slot), address(1));
    assert_eq!(latencies(&world), 1);

    // Left on A by a longjmp; then called again on B and resumed on A.
    a.call(&mut slot, address(2), 0);
    b.call(&mut slot, address(3), 0);
    assert_eq!(a.ret(&mut slot), address(3));
}

#[test]
fn coroutines_at_random() {
    let world = World::new(&setup());
    let threads: Vec<Thread> =
        (0..3).map(|n| std::thread::spawn(move || world.enter(0x1000 * (n + 1)).unwrap()).join().unwrap()).collect();
    let mut coroutines: Vec<Stack> = (0..5).map(|_| Stack::new(500)).collect();
    let mut random = Random(3);
    for n in 0..40_000 {
        let thread = &threads[random.below(3) as usize];
        let stack = &mut coroutines[random.below(5) as usize];
        for k in 0..random.below(6) {
            if random.below(2) == 0 || stack.frames.is_empty() {
                stack.call(thread, address(n * 8 + k), 1 + random.below(4) as usize, 0);
            } else {
                stack.ret(thread);
            }
        }
    }
    for mut stack in coroutines {
        while !stack.frames.is_empty() {
            stack.ret(&threads[random.below(3) as usize]);
        }
    }
    assert_eq!(latencies(&world), world.cell(0));
}

/// A thread without room for a state of its own resumes a coroutine of another one.
#[test]
fn a_return_without_a_state() {
    let world = World::new(&Setup { slots: 1, ..setup() });
    let thread = world.enter(0x1000).unwrap();
    assert!(world.enter(0x2000).is_none());
    let mut slot = 0;
    thread.call(&mut slot, address(1), 0);
    let stateless = Thread { state: std::ptr::null_mut(), ..thread };
    assert_eq!(stateless.ret(&mut slot), address(1));
    assert_eq!((world.dropped(), latencies(&world)), (1, 0));
    slot = address(2);
    stateless.hit(&mut Regs { rsp: std::ptr::from_mut(&mut slot) as u64, ..Regs::default() }, 1);
    assert_eq!((slot, world.missed(1)), (address(2), 1));
}

static THREAD: AtomicPtr<Thread> = AtomicPtr::new(std::ptr::null_mut());
static WRONG: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);
static RETURNS: AtomicU64 = AtomicU64::new(0);

/// Calls and returns in the middle of whatever the thread was doing; every few times so deep that
/// room must be made.
extern "C" fn handler(_: i32) {
    let mut words = [0u64; 600];
    let thread = THREAD.load(Ordering::Acquire);
    // SAFETY: set before the first signal, and leaked.
    let Some(thread) = (unsafe { thread.as_ref() }) else { return };
    let round = SIGNALS.fetch_add(1, Ordering::Relaxed);
    let depth = [600, 3, 2, 550, 1, 3][round as usize % 6];
    CALLS.fetch_add(depth as u64, Ordering::Relaxed);
    for (n, slot) in words.iter_mut().enumerate().rev().take(depth) {
        thread.call(slot, address(n as u64), 0);
    }
    // The other rounds leave their frames behind, as longjmp within the handler does.
    if round % 4 != 1 {
        RETURNS.fetch_add(depth as u64, Ordering::Relaxed);
        let first = words.len() - depth;
        for (n, slot) in words.iter_mut().enumerate().skip(first) {
            if thread.ret(slot) != address(n as u64) {
                WRONG.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[test]
fn signal_handlers_interrupt_every_line() {
    // The handler must not interrupt the making of the addresses, which it needs.
    address(0);
    let world = World::new(&setup());
    let thread = world.enter(0x1000).unwrap();
    THREAD.store(Box::into_raw(Box::new(thread)), Ordering::Release);
    // SAFETY: installs a handler that lives as long as the process.
    unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
    // SAFETY: no arguments.
    let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
    let done = AtomicBool::new(false);
    let mut calls = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..10_000 {
                // SAFETY: a signal to the thread of this test, which outlives the scope.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGUSR1) };
                while SIGNALS.load(Ordering::Relaxed) <= n {
                    std::thread::yield_now();
                }
            }
            done.store(true, Ordering::Release);
        });
        let mut stack = Stack::new(700);
        let mut random = Random(4);
        let mut n = 0;
        while !done.load(Ordering::Acquire) {
            // As many addresses as there are.
            n = (n + 1) % (1 << 19);
            if stack.frames.is_empty() || random.below(100) < 51 {
                calls += u64::from(stack.call(&thread, address(n), 1 + random.below(3) as usize, 0));
            } else {
                stack.ret(&thread);
            }
        }
        while !stack.frames.is_empty() {
            stack.ret(&thread);
        }
    });
    assert_eq!(WRONG.load(Ordering::Relaxed), 0);
    let (calls, returns) = (calls + CALLS.load(Ordering::Relaxed), calls + RETURNS.load(Ordering::Relaxed));
    assert_eq!((world.cell(0), latencies(&world)), (calls, returns));
}
