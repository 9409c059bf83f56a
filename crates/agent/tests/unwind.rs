//! Stacks by a table of rules: frames that the test lays out, of code that is not there.
#![cfg(target_arch = "x86_64")]

mod world;

use std::ptr;
use std::sync::atomic::Ordering;

use sidestep_wire::{Flow, Hit, PlainRule, ProbeDesc, Regs, UnwindKind, UnwindObject, UnwindRule, UnwindTable};
use world::{Setup, TRAMPOLINE, Thread, World, flow};

/// Where the code would be: 16 bytes for each rule, from rule 1 on.
const CODE: u64 = 0x10_0000;

/// An address in the code of a rule, behind a call.
const fn pc(rule: u64) -> u64 {
    CODE + 16 * (rule - 1) + 8
}

fn by(base: u8, offset: i32) -> UnwindRule {
    UnwindRule { kind: UnwindKind::Register as u8, base, offset, ..UnwindRule::default() }
}

fn other(kind: UnwindKind) -> UnwindRule {
    UnwindRule { kind: kind as u8, ..UnwindRule::default() }
}

/// Rules 1 to 8.
fn rules() -> Vec<UnwindRule> {
    vec![
        other(UnwindKind::Unknown),
        by(UnwindRule::SP, 16),
        UnwindRule { bp: -2, ..by(UnwindRule::SP, 24) },
        UnwindRule { bp: -2, bx: -3, ..by(UnwindRule::BP, 16) },
        other(UnwindKind::Outermost),
        // As a function with a rounded stack pointer: the word below the frame pointer is the CFA.
        UnwindRule { kind: UnwindKind::Memory as u8, flags: UnwindRule::BP_BY_BP, offset: -8, ..by(UnwindRule::BP, 0) },
        other(UnwindKind::Signal),
        other(UnwindKind::Strange),
        by(7, 8), // r10
    ]
}

/// A session with a table, and a thread. Probe 0 is at a function's entry, probe 1 inside.
fn world() -> (World, Thread) {
    let entry = ProbeDesc { flags: ProbeDesc::FUNCTION, ..flow(Flow::Entry) };
    let world = World::new(&Setup { probes: vec![entry, flow(Flow::Entry), flow(Flow::Return)], ..Setup::default() });
    let (rules, rows) = (rules(), 9u64);
    let mut bytes: Vec<u8> = Vec::new();
    let object_at = UnwindTable::OBJECTS as usize;
    bytes.extend([1u32.to_ne_bytes(), (rules.len() as u32).to_ne_bytes()].concat());
    bytes.resize(object_at + size_of::<UnwindObject>(), 0);
    for rule in &rules {
        bytes.extend([rule.kind, rule.base, rule.flags, 0]);
        bytes.extend([rule.bp.to_ne_bytes(), rule.bx.to_ne_bytes()].concat());
        bytes.extend([rule.offset.to_ne_bytes(), rule.plus.to_ne_bytes()].concat());
    }
    let rows_at = bytes.len();
    bytes.extend((0..rows).flat_map(|row| (16 * row as u32).to_ne_bytes()));
    // As the engine does it: most rules are in their numbers.
    let number = |rule: u64| PlainRule::of(&rules[rule as usize], 8).map_or(rule as u16, PlainRule::number);
    bytes.extend((1..rows).chain([0]).flat_map(|rule| number(rule).to_ne_bytes()));
    // As long as the session: words, for their alignment.
    let words: Vec<u64> = bytes
        .chunks(8)
        .map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_ne_bytes(word)
        })
        .collect();
    let table = words.leak();
    let at = table.as_ptr() as u64;
    let object = [CODE, CODE + 16 * (rows - 1), at + rows_at as u64, rows];
    table[object_at / 8..][..4].copy_from_slice(&object);
    world.head().unwind.store(at, Ordering::Relaxed);
    (world, world.enter(0x1000).unwrap())
}

fn stack(thread: &Thread, probe: u64, regs: Regs) -> Vec<u64> {
    let hit = Hit { probe, regs, ..Hit::default() };
    let mut out = vec![0u64; 64];
    // SAFETY: a context and a buffer.
    let len = unsafe { thread.helper(67, [ptr::from_ref(&hit.regs) as u64, out.as_mut_ptr() as u64, 512, 1 << 8, 0]) };
    out.truncate(usize::try_from(len as i64).unwrap() / 8);
    out
}

/// Address of a word.
fn at(words: &[u64], index: usize) -> u64 {
    ptr::from_ref(&words[index]) as u64
}

#[test]
fn frames_are_found_by_stack_pointer_and_saved_registers() {
    let (_, thread) = world();
    let mut words = vec![0u64; 32];
    // Rule 1: one word and the return address. Rule 2 has saved the frame pointer. Rule 3 is found
    // by it.
    words[1] = pc(2);
    words[3] = at(&words, 10);
    words[4] = pc(3);
    words[10] = 77;
    words[11] = pc(4);
    for _ in 0..2 {
        // The second time by what is remembered.
        let regs = Regs { rip: CODE, rsp: at(&words, 0), rbp: 5, ..Regs::default() };
        assert_eq!(stack(&thread, 1, regs), [CODE, pc(2), pc(3), pc(4)]);
    }
    // At an entry, no rule is asked for the first frame.
    let regs = Regs { rip: 0x77, rsp: at(&words, 1), rbp: 5, ..Regs::default() };
    assert_eq!(stack(&thread, 0, regs), [0x77, pc(2), pc(3), pc(4)]);
}

#[test]
fn a_frame_is_found_by_a_word_in_memory() {
    let (_, thread) = world();
    let mut words = vec![0u64; 32];
    // The frame pointer is at 4, what it was before is there, and below is the CFA.
    words[3] = at(&words, 9);
    words[4] = at(&words, 20);
    words[8] = pc(3);
    words[20] = 1;
    words[21] = pc(4);
    let regs = Regs { rip: pc(5), rsp: at(&words, 0), rbp: at(&words, 4), ..Regs::default() };
    assert_eq!(stack(&thread, 1, regs), [pc(5), pc(3), pc(4)]);
}

#[test]
fn all_registers_are_known_in_the_innermost_frame_alone() {
    let (_, thread) = world();
    let mut words = vec![0u64; 32];
    words[5] = pc(8);
    words[6] = pc(4);
    let regs = Regs { rip: pc(8), rsp: at(&words, 0), r10: at(&words, 5), ..Regs::default() };
    assert_eq!(stack(&thread, 1, regs), [pc(8), pc(8)]);
}

#[test]
fn what_a_signal_has_interrupted_is_exact() {
    let (_, thread) = world();
    let mut words = vec![0u64; 64];
    words[1] = pc(6);
    // `struct ucontext` at 2: rbp, rbx, rsp, rip.
    let context = 2;
    (words[context + 15], words[context + 16], words[context + 20], words[context + 21]) =
        (at(&words, 50), 9, at(&words, 40), pc(3) - 8);
    (words[50], words[51]) = (3, pc(4));
    let regs = Regs { rip: pc(1), rsp: at(&words, 0), ..Regs::default() };
    // The first instruction of rule 3's code, not the last of rule 2's.
    assert_eq!(stack(&thread, 1, regs), [pc(1), pc(6), pc(3) - 8, pc(4)]);
}

#[test]
fn replaced_return_addresses_are_real_ones() {
    let (_, thread) = world();
    // The code has to be there: return addresses are replaced only behind calls.
    // SAFETY: a new page where nothing is.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let at = libc::mmap(CODE as *mut _, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_eq!(at as u64, CODE);
        at.cast::<u8>().write_bytes(0xe8, 4096);
    }
    let mut words = vec![0u64; 32];
    (words[1], words[3]) = (pc(1), pc(4));
    let slot = at(&words, 1);
    thread.hit(&mut Regs { rsp: slot, ..Regs::default() }, 2);
    // SAFETY: a word of the test's stack, which the hit has changed.
    assert_eq!(unsafe { ptr::read_volatile(slot as *const u64) }, TRAMPOLINE);
    let regs = Regs { rip: pc(1), rsp: at(&words, 0), ..Regs::default() };
    assert_eq!(stack(&thread, 1, regs), [pc(1), pc(1), pc(4)]);
}

#[test]
fn what_cannot_be_ends_the_stack() {
    let (_, thread) = world();
    let mut words = vec![0u64; 32];
    words[1] = pc(2);
    let here = at(&words, 0);
    let walk = |rip: u64, rsp: u64, rbp: u64| stack(&thread, 1, Regs { rip, rsp, rbp, ..Regs::default() });
    // Nothing to read, no aligned address, a frame below the one before, no caller, a rule that
    // nobody follows.
    assert_eq!(walk(pc(1), 8, 0), [pc(1)]);
    assert_eq!(walk(pc(1), here + 4, 0), [pc(1)]);
    assert_eq!(walk(pc(3), here + 64, here), [pc(3)]);
    assert_eq!(walk(pc(3), here, 1 << 62), [pc(3)]);
    assert_eq!(walk(pc(4), here, 0), [pc(4)]);
    assert_eq!(walk(pc(7), here, 0), [pc(7)]);
    // Where no rule is, frame pointers lead on, if what they lead to is behind a call.
    let mut code = [0x90u8; 16];
    code[3..8].copy_from_slice(&[0xe8, 0, 0, 0, 0]);
    let frame = [0, code.as_ptr() as u64 + 8];
    assert_eq!(walk(99, ptr::from_ref(&frame) as u64, ptr::from_ref(&frame) as u64), [99, frame[1]]);
    // SAFETY: nobody else uses the array, whose address is in the frame.
    unsafe { ptr::from_mut(&mut code[3]).write_volatile(0x90) };
    assert_eq!(walk(99, ptr::from_ref(&frame) as u64, ptr::from_ref(&frame) as u64), [99]);
}
