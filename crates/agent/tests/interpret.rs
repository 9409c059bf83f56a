//! Programs that are not compiled: through the entry that their stubs jump to.

mod world;

use std::ptr;

use sidestep_agent::agent_interpret;
use sidestep_bpf::assemble;
use sidestep_wire::map::HASH;
use sidestep_wire::{MapDesc, Regs};
use world::{Setup, Thread, World};

/// Runs a text with these registers; callees find room for `calls` frames.
fn run(thread: &Thread, text: &str, regs: &mut Regs, calls: usize) -> u64 {
    let bytes = assemble(text).unwrap().to_bytes();
    let slots: Vec<u64> = bytes.chunks(8).map(|slot| u64::from_le_bytes(slot.try_into().unwrap())).collect();
    let mut stack = vec![0u128; calls * 512 / 16];
    let end = stack.as_mut_ptr_range().end as u64;
    // SAFETY: the tests' programs keep to their memory; the stack has that length.
    unsafe { agent_interpret(regs, slots.as_ptr(), slots.len() as u64, end, calls as u64 * 512, thread.state) }
}

fn world() -> (World, Thread) {
    let maps = vec![MapDesc::new(HASH, 8, 8, 10, 0, 0).unwrap()];
    let world = World::new(&Setup { maps, ..Setup::default() });
    (world, world.enter(0x1000).unwrap())
}

#[test]
fn registers_memory_and_functions() {
    let (_, thread) = world();
    let text = "
            r6 = *(u64 *)(r1 + 112)
            *(u64 *)(r10 - 8) = r6
            *(u16 *)(r10 - 8) = 7
            *(u8 *)(r10 - 512) = 1
            r1 = *(u64 *)(r10 - 8)
            r0 = *(u32 *)(r6 + 0)
            r0 += r1
            exit
        ";
    let word = 0x1234_5678u32;
    let at = ptr::from_ref(&word) as u64;
    let mut regs = Regs { rdi: at, ..Regs::default() };
    assert_eq!(run(&thread, text, &mut regs, 1), u64::from(word) + (at & !0xffff | 7));

    let nested = "
            r1 = *(u64 *)(r1 + 104)
            call down
            exit
        down:
            r0 = 1
            if r1 == 0 goto out
            *(u64 *)(r10 - 8) = r1
            r1 += -1
            call down
            r1 = *(u64 *)(r10 - 8)
            r0 *= r1
        out:
            exit
        ";
    assert_eq!(run(&thread, nested, &mut Regs { rsi: 5, ..Regs::default() }, 8), 120);
    assert_eq!(run(&thread, nested, &mut Regs { rsi: 50, ..Regs::default() }, 8), 0, "stopped: no stack is left");
}

#[test]
fn atomics_are_what_they_say() {
    let (_, thread) = world();
    let text = "
            r6 = *(u64 *)(r1 + 112)
            r2 = 5
            lock *(u64 *)(r6 + 0) += r2
            lock *(u32 *)(r6 + 8) |= r2
            r0 = 0
            exit
        ";
    let mut words = [10u64, u64::MAX << 32 | 8];
    let at = words.as_mut_ptr() as u64;
    assert_eq!(run(&thread, text, &mut Regs { rdi: at, ..Regs::default() }, 1), 0);
    // SAFETY: the two words, which the program has changed.
    assert_eq!(unsafe { (at as *const [u64; 2]).read_volatile() }, [15, u64::MAX << 32 | 13]);
}

#[test]
fn helpers_get_their_arguments_and_loops_their_callbacks() {
    let (world, thread) = world();
    let map = world.shape(0);
    let text = format!(
        "
            r9 = {map} ll
            *(u64 *)(r10 - 8) = 77
            *(u64 *)(r10 - 16) = 0
            r1 = 20
            r2 = func(add) ll
            r3 = r10
            r3 += -16
            r4 = 0
            call 181
            r8 = r0
            r1 = r9
            r2 = r10
            r2 += -8
            r3 = r10
            r3 += -16
            r4 = 1
            call 2
            r1 = r9
            r2 = r10
            r2 += -8
            call 1
            r0 = *(u64 *)(r0 + 0)
            r8 <<= 32
            r0 |= r8
            exit
        add:
            r3 = *(u64 *)(r2 + 0)
            r3 += r1
            *(u64 *)(r2 + 0) = r3
            r0 = 0
            if r1 != 12 goto out
            r0 = 1
        out:
            exit
        "
    );
    assert_eq!(run(&thread, &text, &mut Regs::default(), 2), 13 << 32 | (0..=12).sum::<u64>());
    for (number, expected) in [(200, -22i64), (256, 975)] {
        let text = format!("r1 = -1\ncall {number}\nexit");
        assert_eq!(run(&thread, &text, &mut Regs::default(), 1) as i64, expected);
    }
    let beyond = format!("call {}\nr0 = 1\nexit", sidestep_wire::private::HELPERS);
    assert_eq!(run(&thread, &beyond, &mut Regs::default(), 1), 0, "no such entry");
}

/// The table ended in front of one: compiled code called what lies behind it.
#[test]
fn a_helper_that_the_verifier_knows_had_no_place_in_the_table() {
    let known = (0..1024).filter(|number| sidestep_bpf::verify::Helper::by_number(*number).is_some());
    let beyond: Vec<u32> = known.filter(|number| *number as usize >= sidestep_wire::HELPERS).collect();
    assert_eq!(beyond, []);
}
