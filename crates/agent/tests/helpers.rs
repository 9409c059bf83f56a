//! Helpers of programs: what the kernel's give, with the kernel and libc as oracles.

mod world;

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use sidestep_wire::{Flow, Hit, ProbeDesc, Regs, ThreadState};
use world::{Setup, Thread, World, behind_call, flow, helper, map, program};

const TOO_BIG: i64 = -7;
const FAULT: i64 = -14;
const INVALID: i64 = -22;

fn at<T: ?Sized>(place: &T) -> u64 {
    ptr::from_ref(place).cast::<u8>() as u64
}

/// Of what will be written to.
fn place_of<T: ?Sized>(place: &mut T) -> u64 {
    ptr::from_mut(place).cast::<u8>() as u64
}

fn call(thread: &Thread, number: usize, args: [u64; 5]) -> i64 {
    // SAFETY: the tests pass what the helpers want.
    (unsafe { thread.helper(number, args) }) as i64
}

fn plain() -> (World, Thread) {
    let world = World::new(&Setup::default());
    (world, world.enter(0x1000).unwrap())
}

#[test]
fn numbers_without_a_helper_are_refused() {
    let (_, thread) = plain();
    for number in [0, 9, 10, 17, 116, 180, 211, 255] {
        assert_eq!(call(&thread, number, [1; 5]), INVALID, "{number}");
    }
}

#[test]
fn who_and_when() {
    std::thread::Builder::new()
        .name("fifteen-letters".into())
        .spawn(|| {
            let (_, thread) = plain();
            // SAFETY: no arguments.
            let (pid, tid, uid, gid) = unsafe { (libc::getpid(), libc::gettid(), libc::getuid(), libc::getgid()) };
            assert_eq!(call(&thread, 14, [0; 5]) as u64, (pid as u64) << 32 | tid as u64);
            assert_eq!(call(&thread, 15, [0; 5]) as u64, u64::from(gid) << 32 | u64::from(uid));
            for len in 1..20 {
                let mut name = [0xffu8; 20];
                assert_eq!(call(&thread, 16, [place_of(&mut name), len, 0, 0, 0]), 0);
                let mut expected = [0xffu8; 20];
                expected[..len as usize].fill(0);
                let kept = (len as usize - 1).min(15);
                expected[..kept].copy_from_slice(&b"fifteen-letters"[..kept]);
                assert_eq!(name, expected);
            }
            assert_eq!(call(&thread, 16, [0, 0, 0, 0, 0]), INVALID);
            assert_eq!(thread.state().stamp, 0);
            let stamp = call(&thread, 5, [0; 5]) as u64;
            assert_eq!(thread.state().stamp, stamp);
            assert!(call(&thread, 5, [0; 5]) as u64 > stamp);
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn a_new_name_is_seen_after_a_while() {
    std::thread::spawn(|| {
        let world = World::new(&Setup { tsc: false, ..Setup::default() });
        let thread = world.enter(0x1000).unwrap();
        // SAFETY: a NUL-terminated name.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"renamed".as_ptr()) };
        std::thread::sleep(std::time::Duration::from_millis(11));
        let mut name = [0u8; 16];
        call(&thread, 16, [place_of(&mut name), 16, 0, 0, 0]);
        assert_eq!(&name[..8], b"renamed\0");
    })
    .join()
    .unwrap();
}

#[test]
fn the_processor_is_the_one_that_the_thread_may_run_on() {
    std::thread::spawn(|| {
        let (_, thread) = plain();
        // SAFETY: the set is valid; an empty one is only a start.
        unsafe {
            let mut allowed: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed), 0);
            for cpu in (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &allowed)) {
                let mut one: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut one);
                assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &one), 0);
                assert_eq!(call(&thread, 8, [0; 5]), cpu as i64);
            }
        }
    })
    .join()
    .unwrap();
}

#[test]
fn random_numbers_are_spread() {
    let (_, thread) = plain();
    let mut ones = [0u32; 32];
    for _ in 0..4000 {
        let n = call(&thread, 7, [0; 5]);
        assert!(u32::try_from(n).is_ok());
        ones.iter_mut().enumerate().for_each(|(bit, ones)| *ones += (n >> bit & 1) as u32);
    }
    assert!(ones.iter().all(|n| (1700..2300).contains(n)), "{ones:?}");
}

/// Two pages, of which the second cannot be read in the way that is named.
fn before_a_hole(hole: i32) -> u64 {
    let page = map(8192, libc::MAP_PRIVATE);
    // SAFETY: the second page of the mapping.
    unsafe {
        let second = page.add(4096).cast();
        assert_eq!(if hole == 0 { libc::munmap(second, 4096) } else { libc::mprotect(second, 4096, hole - 1) }, 0);
        ptr::write_bytes(page.add(4096 - 10), b'x', 10);
    }
    page as u64 + 4096
}

#[test]
fn memory_is_read_or_the_buffer_is_cleared() {
    let (_, thread) = plain();
    let end = [before_a_hole(0), before_a_hole(1 + libc::PROT_NONE)];
    let fresh = map(8192, libc::MAP_PRIVATE) as u64;
    let text = *b"some bytes that are there";
    let read = |from: u64, len: u64| {
        let mut to = [0xeeu8; 32];
        let result = call(&thread, 112, [place_of(&mut to), len, from, 0, 0]);
        (result, to)
    };
    let (result, to) = read(at(&text), 25);
    assert_eq!((result, &to[..25], to[25]), (0, &text[..], 0xee));
    assert_eq!(read(end[0] - 10, 10).1[..11], *b"xxxxxxxxxx\xee");
    assert_eq!(
        read(fresh + 4090, 16),
        (0, {
            let mut to = [0xee; 32];
            to[..16].fill(0);
            to
        }),
        "never touched"
    );
    assert_eq!(read(8, 0).0, 0);
    for bad in [0, 8, end[0] - 10, end[1] - 10, end[0], end[1], 1 << 63, u64::MAX - 3] {
        let (result, to) = read(bad, 16);
        assert_eq!((result, &to[..16], to[16]), (FAULT, &[0; 16][..], 0xee), "{bad:#x}");
    }
}

#[test]
fn texts_are_read_with_their_nul() {
    let (_, thread) = plain();
    let read = |from: u64, len: u64| {
        let mut to = [0xeeu8; 32];
        let result = call(&thread, 114, [place_of(&mut to), len, from, 0, 0]);
        (result, to[..result.max(0) as usize].to_vec(), to)
    };
    assert_eq!(read(c"word".as_ptr() as u64, 32).1, b"word\0");
    assert_eq!(read(c"word".as_ptr() as u64, 5).1, b"word\0");
    assert_eq!(read(c"word".as_ptr() as u64, 4).1, b"wor\0");
    assert_eq!(read(c"".as_ptr() as u64, 1).1, b"\0");
    assert_eq!(read(8, 0).0, 0);
    assert_eq!(read(c"word".as_ptr() as u64, 5).2[5], 0xee);
    for hole in [0, 1 + libc::PROT_NONE] {
        let end = before_a_hole(hole);
        assert_eq!(read(end - 10, 10).1, b"xxxxxxxxx\0");
        for bad in [0, end - 10, end] {
            let (result, _, to) = read(bad, 20);
            assert_eq!((result, &to[..20], to[20]), (FAULT, &[0; 20][..], 0xee));
        }
    }
}

#[test]
fn texts_are_compared_like_the_c_library_does() {
    let (_, thread) = plain();
    for a in ["", "a", "ab", "abc", "b", "\u{e9}"] {
        for b in [c"", c"a", c"ab", c"abd", c"b"] {
            let mut padded = [0u8; 8];
            padded[..a.len()].copy_from_slice(a.as_bytes());
            for len in 1..8 {
                let ours = call(&thread, 182, [at(&padded), len, b.as_ptr() as u64, 0, 0]);
                // SAFETY: both end by a NUL.
                let theirs = unsafe { libc::strncmp(padded.as_ptr().cast(), b.as_ptr(), len as usize) };
                assert_eq!(ours.signum(), i64::from(theirs.signum()), "{a:?} {b:?} {len}");
            }
        }
    }
}

unsafe extern "C" fn until_seven(index: u64, sum: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    assert!(!state.is_null());
    // SAFETY: the test's sum.
    unsafe { *(sum as *mut u64) += index };
    u64::from(index == 7)
}

#[test]
fn a_loop_ends_when_it_is_told_to() {
    let (_, thread) = plain();
    let mut sum = 0u64;
    let callback = until_seven as *const () as u64;
    assert_eq!(call(&thread, 181, [3, callback, place_of(&mut sum), 0, 0]), 3);
    assert_eq!(sum, 3);
    assert_eq!(call(&thread, 181, [100, callback, place_of(&mut sum), 0, 0]), 8);
    assert_eq!(sum, 3 + 28);
    assert_eq!(call(&thread, 181, [0, callback, place_of(&mut sum), 0, 0]), 0);
    assert_eq!(call(&thread, 181, [1 << 23 | 1, callback, place_of(&mut sum), 0, 0]), TOO_BIG);
    assert_eq!(call(&thread, 181, [1, callback, place_of(&mut sum), 1, 0]), INVALID);
}

unsafe extern "C" fn look(regs: *mut Regs, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the context of a hit; `r15` is where the test wants the answers.
    unsafe {
        let context = regs as u64;
        let out = (*regs).r15 as *mut [u64; 20];
        (*out)[0] = helper(state, 173, [context, 0, 0, 0, 0]);
        (*out)[1] = helper(state, 174, [context, 0, 0, 0, 0]);
        (*out)[2] = helper(state, 185, [context, 0, 0, 0, 0]);
        (*out)[3] = helper(state, 184, [context, place_of(&mut (*out)[4]), 0, 0, 0]);
        for n in 0..9 {
            (*out)[5 + n as usize] = 99;
            if helper(state, 183, [context, n, place_of(&mut (*out)[5 + n as usize]), 0, 0]) != 0 {
                (*out)[5 + n as usize] = 77;
            }
        }
        (*out)[14] = helper(state, 183, [context, 64, place_of(&mut (*out)[15]), 0, 0]);
        (*out)[16] = (*regs).rip;
        // The cookie, counted up by each program.
        *regs.add(1).cast::<u64>() += 1;
        (*out)[17] = *regs.add(1).cast::<u64>();
        if (*regs).r14 == 1 {
            helper(state, 58, [context, 4242, 0, 0, 0]);
        }
        (*regs).r14 >> 1
    }
}

fn looked_at(entry: bool, exit: bool) -> World {
    let code = look as *const () as u64;
    let desc = ProbeDesc {
        asked: 0x1234_5678,
        cookie: 55,
        entry: if entry { code } else { 0 },
        exit: if exit { code } else { 0 },
        flags: 0,
        ..flow(Flow::Return)
    };
    World::new(&Setup { probes: vec![desc, ProbeDesc { flow: Flow::Entry as u32, ..desc }], ..Setup::default() })
}

#[test]
fn a_program_sees_its_call_and_its_return() {
    let world = looked_at(true, true);
    let thread = world.enter(0x1000).unwrap();
    let mut stack = [behind_call(1), 17, 18, 19];
    let mut out = [0u64; 20];
    let mut regs = Regs { rdi: 11, rsi: 12, rdx: 13, rcx: 14, r8: 15, r9: 16, rip: 9, ..Regs::default() };
    (regs.rsp, regs.r15) = (place_of(&mut stack), place_of(&mut out));
    thread.hit(&mut regs, 0);
    assert_eq!(out[..4], [0x1234_5678, 55, 6, -95i64 as u64]);
    assert_eq!(out[5..14], [11, 12, 13, 14, 15, 16, 17, 18, 19]);
    assert_eq!((out[14] as i64, out[15], out[16], out[17]), (INVALID, 0, 9, 1));
    assert_eq!(world.cell(0), 0, "counted at the return");

    let regs = Regs { rsp: place_of(&mut stack) + 8, rax: 321, r15: place_of(&mut out), ..Regs::default() };
    let mut hit = Hit { regs, ..Hit::default() };
    let place = ptr::from_mut(&mut hit).wrapping_byte_add(8).cast();
    // SAFETY: `place` points to the registers of a live hit. The state and the region are this
    // thread's.
    let real = unsafe { sidestep_agent::agent_return(place, thread.state, world.private) };
    assert_eq!((real, hit.regs.rip, hit.probe), (behind_call(1), behind_call(1), Hit::RETURNED));
    assert_eq!((out[0], out[3], out[4], out[16], out[17]), (0x1234_5678, 0, 321, behind_call(1), 2));
    assert_eq!((world.cell(0), thread.depth()), (1, 0));
}

#[test]
fn two_probes_of_a_frame_see_the_same_return() {
    let world = looked_at(false, true);
    let thread = world.enter(0x1000).unwrap();
    let (mut slot, mut out) = (0, [0u64; 20]);
    thread.call(&mut slot, behind_call(2), 0);
    thread.tail_call(&mut slot, 0);
    thread.tail_call(&mut slot, 0);
    let regs = Regs { rsp: place_of(&mut slot) + 8, r15: place_of(&mut out), ..Regs::default() };
    let mut hit = Hit { regs, ..Hit::default() };
    let place = ptr::from_mut(&mut hit).wrapping_byte_add(8).cast();
    // SAFETY: `place` points to the registers of a live hit. The state and the region are this
    // thread's.
    assert_eq!(unsafe { sidestep_agent::agent_return(place, thread.state, world.private) }, behind_call(2));
    assert_eq!((out[16], world.cell(0), thread.depth()), (behind_call(2), 3, 0));
}

#[test]
fn a_return_is_watched_if_the_program_says_so() {
    let world = looked_at(true, false);
    let thread = world.enter(0x1000).unwrap();
    let (mut slot, mut out) = (0x77u64, [0u64; 20]);
    for r14 in [2, 1] {
        // Not 0; overridden.
        let mut regs = Regs { rsp: place_of(&mut slot), r15: place_of(&mut out), r14, ..Regs::default() };
        thread.hit(&mut regs, 0);
        assert_eq!((slot, thread.depth()), (0x77, 0));
        assert_eq!(regs.rax, if r14 == 1 { 4242 } else { 0 });
    }
    // An entry probe has nothing to watch.
    thread.hit(&mut Regs { rsp: place_of(&mut slot), r15: place_of(&mut out), ..Regs::default() }, 1);
    assert_eq!((slot, world.cell(0)), (0x77, 1));
}

/// What the next two tests share with their programs.
static INNER: AtomicPtr<(Thread, u64)> = AtomicPtr::new(ptr::null_mut());
static RUNS: AtomicU64 = AtomicU64::new(0);

/// A program in whose middle the same probe is hit by a handler: below it, as `rdi` says, or not.
unsafe extern "C" fn nested(regs: *mut Regs, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    RUNS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the test has set `INNER`, and `regs` are the registers of a hit.
    if let (Some((thread, _)), 1) = unsafe { (INNER.load(Ordering::Relaxed).as_ref(), (*regs).rdi) } {
        assert_ne!(thread.state().busy, 0);
        thread.hit(&mut Regs::default(), 0);
    }
    0
}

#[test]
fn an_exclusive_program_is_not_entered_again_and_a_thread_is_not_stuck() {
    let alone = ProbeDesc { flags: ProbeDesc::EXCLUSIVE, ..program(Flow::Entry, nested) };
    let world = World::new(&Setup { probes: vec![alone], ..Setup::default() });
    let thread = world.enter(0x1000).unwrap();
    INNER.store(Box::into_raw(Box::new((thread, 0))), Ordering::Relaxed);
    let runs = |rdi| deeper(&thread, rdi);
    assert_eq!((runs(0), runs(1), world.missed(0), world.cell(0)), (1, 1, 1, 2));
    assert_eq!(thread.state().busy, 0);

    let set_busy = |at: u64| {
        // SAFETY: the state's field.
        unsafe { ptr::addr_of_mut!((*thread.state).busy).write_volatile(at) }
    };
    // Left by longjmp, deeper than the hits are now. There the stack is untouched: the zero of
    // probe 0.
    set_busy(below(200));
    assert_eq!((runs(0), world.missed(0)), (1, 1));
    // An interrupted one above: missed, until it is gone.
    let mut hit = Hit::default();
    set_busy(at(std::hint::black_box(&hit)));
    assert_eq!((runs(0), world.missed(0)), (0, 2));
    // Its memory is something else now, or not there any more.
    for gone in [Some(0x7fff_0000_1234), Some(7), None] {
        hit.probe = gone.unwrap_or(0);
        set_busy(if gone.is_some() { at(std::hint::black_box(&hit)) } else { 0x7000_0000_0000 });
        assert_eq!(runs(0), 1, "{gone:x?}");
    }
    assert_eq!(world.missed(0), 2);
}

/// A hit in a frame below the caller's; how many programs ran.
#[inline(never)]
fn deeper(thread: &Thread, rdi: u64) -> u64 {
    thread.hit(&mut Regs { rdi, ..Regs::default() }, 0);
    RUNS.swap(0, Ordering::Relaxed)
}

/// An address on this stack below all that the caller will use for a hit.
#[inline(never)]
fn below(kib: u64) -> u64 {
    let local = 0u8;
    at(&local) - (kib << 10)
}

static ON_OTHER_STACK: AtomicPtr<(Thread, u64)> = AtomicPtr::new(ptr::null_mut());
static ANSWERS: [AtomicU64; 2] = [const { AtomicU64::new(9) }; 2];

unsafe extern "C" fn nothing(_: *mut Regs, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    0
}

/// Runs on the alternate stack, right above a page that is not part of it.
extern "C" fn on_other_stack(_: i32) {
    // SAFETY: set before the signal, and leaked; fields of the thread's state.
    unsafe {
        let (thread, stack) = &*ON_OTHER_STACK.load(Ordering::Relaxed);
        for (answer, busy) in ANSWERS.iter().zip([stack - 4096, *stack]) {
            ptr::addr_of_mut!((*thread.state).busy).write_volatile(busy);
            let before = thread.world.cell(0);
            thread.hit(&mut Regs::default(), 0);
            answer.store(thread.world.cell(0) - before, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_handler_on_the_alternate_stack_cannot_tell_that_a_program_is_gone() {
    let alone = ProbeDesc { flags: ProbeDesc::EXCLUSIVE, ..program(Flow::Entry, nothing) };
    let world = World::new(&Setup { probes: vec![alone], ..Setup::default() });
    let thread = world.enter(0x1000).unwrap();
    let size = 1 << 18;
    // Zeros: the word of probe 0.
    let stack = map(4096 + size, libc::MAP_PRIVATE) as u64 + 4096;
    ON_OTHER_STACK.store(Box::into_raw(Box::new((thread, stack))), Ordering::Relaxed);
    // SAFETY: a stack and a handler that live as long as the process; the old stack is put back.
    unsafe {
        let new = libc::stack_t { ss_sp: stack as *mut _, ss_flags: 0, ss_size: size as usize };
        let mut old: libc::stack_t = std::mem::zeroed();
        assert_eq!(libc::sigaltstack(&new, &mut old), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_other_stack as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut()), 0);
        libc::raise(libc::SIGUSR1);
        assert_eq!(libc::sigaltstack(&old, ptr::null_mut()), 0);
    }
    let answers = [0, 1].map(|i: usize| ANSWERS[i].load(Ordering::Relaxed));
    assert_eq!((answers, world.missed(0)), ([0, 1], 1), "missed below the stack, gone within it");
}
