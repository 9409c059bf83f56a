//! Prepared operations do what qemu does, or leave the instruction to its displaced copy without
//! having changed a register.

use std::collections::BTreeMap;

use sidestep_isa::a32::emulate::{Memory, Next, Op, Registers, execute, prepare};
use sidestep_isa::a32::{self, Class};
use sidestep_isa::{Isa, Va};

use crate::machine::{self, CPSR, DATA, DATA_LEN, FROM, NZCV, PC, Run, SP, STACK, STACK_LEN, State, THUMB};
use crate::oracle::{Rng, count, encode};
use crate::relocate::{is_used, state};

/// The memory of a state.
struct Ram<'a>(&'a mut State);

impl Ram<'_> {
    fn at(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        let State { data, stack, .. } = &mut *self.0;
        let (start, bytes) = if at < STACK { (DATA, data) } else { (STACK, stack) };
        let offset = usize::try_from(at.checked_sub(start)?).ok()?;
        bytes.get_mut(offset..offset.checked_add(len)?)
    }
}

impl Memory for Ram<'_> {
    fn load(&mut self, at: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.at(at, 8)?.try_into().ok()?))
    }

    fn store(&mut self, at: u64, value: u64) -> Option<()> {
        self.at(at, 8)?.copy_from_slice(&value.to_le_bytes());
        Some(())
    }

    fn load32(&mut self, at: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.at(at, 4)?.try_into().ok()?))
    }

    fn store32(&mut self, at: u64, value: u32) -> Option<()> {
        self.at(at, 4)?.copy_from_slice(&value.to_le_bytes());
        Some(())
    }
}

fn registers(state: &State) -> Registers {
    let mut r = [0; 16];
    r.copy_from_slice(&state.regs[..16]);
    Registers { r, cpsr: state.regs[CPSR] & (NZCV | THUMB) }
}

/// A random instruction of A32 of the kinds that may be emulated.
fn a32_code(rng: &mut Rng) -> Vec<u8> {
    let word = rng.word();
    let condition = if word >> 28 == 15 || rng.below(2) == 0 { 0xe000_0000 } else { word & 0xf000_0000 };
    let near = (DATA - FROM - 8) as u32 + 4 * rng.below(100) as u32;
    let small = word & 0xff;
    let rest = match rng.below(18) {
        0 => 0x0a00_0000 | word & 0x00ff_ffff,
        1 => 0x0b00_0000 | word & 0x00ff_ffff,
        2 => return (0xfa00_0000 | word & 0x01ff_ffff).to_le_bytes().to_vec(),
        3 => 0x012f_ff10 | word & 0x2f,
        // add, sub, mov, mvn of an immediate; adr
        4 => 0x0200_0000 | [0x0080_0000, 0x0040_0000][rng.below(2) as usize] | word & 0x000f_ffff,
        5 => 0x0280_0000 | 0x000d_0000 | word & 0x0040_ffff ^ 0x0040_0000,
        6 => [0x03a0_0000, 0x03e0_0000][rng.below(2) as usize] | word & 0xffff,
        7 => [0x028f_0000, 0x024f_0000][rng.below(2) as usize] | word & 0xffff,
        8 => 0x0300_0000 | word & 0x004f_ffff,
        9 => 0x01a0_0000 | word & 0xf00f,
        // ldr and str by the stack pointer, and of a literal
        10 | 11 => 0x040d_0000 | word & 0x01b0_f000 | small,
        12 => 0x059f_0000 | word & 0xf000 | near,
        // ldrd, strd
        13 | 14 => 0x004d_00d0 | word & 0x01a0_e02f | (small & 0x30) << 4,
        // ldm, stm
        15 => 0x080d_0000 | word & 0x01b0_ffff,
        16 => [0x08bd_0000, 0x092d_0000][rng.below(2) as usize] | word & rng.word() & 0xdfff,
        _ => 0x0320_f000,
    };
    (condition | rest).to_le_bytes().to_vec()
}

/// A random instruction of T32 of the same kinds.
fn t32_code(rng: &mut Rng) -> Vec<u8> {
    let word = rng.word();
    let half = |half: u32| (half as u16).to_le_bytes().to_vec();
    let wide = |word: u32| encode(Isa::T32, word).to_vec();
    let near = (DATA - FROM - 4) as u32 + 4 * rng.below(100) as u32;
    let small = word & 0xff;
    match rng.below(27) {
        0 => half(0xe000 | word & 0x7ff),
        1 => half(0xd000 | (word % 14) << 8 | word >> 8 & 0xff),
        2 => half(0xb100 | word & 0x0aff),
        3 => wide(0xf000_9000 | word & 0x07ff_2fff),
        4 => wide(0xf000_8000 | word & 0x043f_2fff | (word % 14) << 22),
        5 => wide(0xf000_d000 | word & 0x07ff_2fff),
        6 => wide(0xf000_c000 | word & 0x07ff_2ffe),
        7 => half(0x4700 | word & 0xf8),
        // add, sub, cmp, mov of an immediate
        8 | 9 => half(0x2000 | word & 0x1fff),
        10 => half(0x1c00 | word & 0x03ff),
        11 => half(0x4600 | word & 0xff),
        12 => half(0xa000 | word & 0x0fff),
        13 => half(0xb000 | word & 0xff),
        14 => half(0x4800 | word & 0x0700 | near >> 2),
        15 => half(0x9000 | word & 0x0fff),
        16 => half(0xb400 | word & 0x01ff),
        17 => half(0xbc00 | word & 0x01ff & rng.word()),
        // ldr, str
        18 => wide(0xf84d_0800 | word & 0x0010_f700 | small),
        19 => wide(0xf8cd_0000 | word & 0x0010_f000 | small),
        20 => wide(0xf8df_0000 | word & 0xf000 | near),
        // ldrd, strd
        21 => wide(0xe84d_0000 | word & 0x01b0_ff00 | small >> 3),
        // ldm, stm
        22 => wide(
            [0xe8ad_0000, 0xe8bd_0000, 0xe92d_0000, 0xe93d_0000][rng.below(4) as usize] | word & rng.word() & 0xdfff,
        ),
        // movw, movt, add, sub
        23 => wide(0xf240_0000 | word & 0x048f_7fff),
        24 => wide([0xf200_0000, 0xf2a0_0000][rng.below(2) as usize] | word & 0x040f_7fff),
        25 => half(0xbf00),
        _ => wide([0xf100_0000, 0xf1a0_0000, 0xf04f_0000][rng.below(3) as usize] | word & 0x040f_7fff),
    }
}

fn compare(isa: Isa, all: usize, seed: u64) {
    let mut rng = Rng(seed);
    let (mut ops, mut runs) = (Vec::new(), Vec::new());
    while ops.len() < all {
        let code = if isa == Isa::T32 { t32_code(&mut rng) } else { a32_code(&mut rng) };
        let Some(op) = prepare(isa, &code) else { continue };
        assert_eq!(Op::from_words(op.to_words()), op);
        let Ok(insn) = a32::decode(isa, &code, Va(FROM)) else { panic!("{code:02x?}") };
        // What is behind it is code of its own instruction set.
        if code == [0x78, 0x47] {
            continue;
        }
        // A short branch forward leads to something undefined behind it.
        let near = insn.single().is_some_and(|op| op.class == Class::CompareZero);
        let plain = a32::decode(isa, &[0x00, 0xbf], Va(FROM)).unwrap_or(insn);
        let from = if near { &plain } else { &insn };
        let Some(mut state) = state(&mut rng, from, ops.len() as u32) else { continue };
        match rng.below(16) {
            // At an end of the stack's memory, without any, or not aligned.
            0 => state.regs[SP] = [STACK, STACK + STACK_LEN as u64, 0x1000][rng.below(3) as usize] as u32,
            1 => state.regs[SP] += rng.below(4) as u32,
            _ => {}
        }
        runs.push(Run { isa, from: code, to: Vec::new(), state });
        ops.push((insn, op));
    }
    let Some(ends) = machine::run(&runs) else { return };
    let mut classes = BTreeMap::<String, [usize; 2]>::new();
    for (((insn, op), run), end) in ops.iter().zip(&runs).zip(&ends) {
        let name = format!("{insn} ({:02x?}) from {:x?}", run.from, run.state.regs);
        let mut memory = run.state.clone();
        let (before, mut after) = (registers(&run.state), registers(&run.state));
        let next = execute(op, &mut after, &mut Ram(&mut memory));
        let class = insn.single().expect("no block").class;
        let tally = classes.entry(format!("{class:?}")).or_default();
        tally[usize::from(next == Next::Displaced)] += 1;
        if next == Next::Displaced {
            assert_eq!(after, before, "{name}");
            // Where no code can be, and where the memory of a state ends or is not aligned.
            let leads = matches!(class, Class::BranchRegister | Class::BranchLinkRegister | Class::Compute);
            let to = insn.single().and_then(|op| (op.reads.count_ones() == 1).then(|| op.reads.trailing_zeros()));
            let nowhere = leads && to.is_some_and(|register| run.state.regs[register as usize] & 3 == 2);
            let memory = matches!(class, Class::Load | Class::Store | Class::LoadMultiple | Class::StoreMultiple);
            assert!(nowhere || memory, "{name}: left to the copy");
            continue;
        }
        let mut expected = registers(&end.state);
        let at = u64::from(after.r[PC]);
        let at_stack_of_qemu = (0x3f00_0000..0x4000_0000).contains(&at);
        let leads = class != Class::CompareZero && at != insn.next().0;
        if leads && (is_used(at) || at_stack_of_qemu) {
            // Something else ran then.
            continue;
        }
        // The second half of what is undefined leads to a first half.
        if after.cpsr & THUMB != 0 && at % 4 == 2 && expected.r[PC] == after.r[PC].wrapping_sub(26) {
            expected.r[PC] += 26;
        }
        assert_eq!(after, expected, "{name}");
        assert!(memory.data == end.state.data && memory.stack == end.state.stack, "{name}: memory");
    }
    let known = if isa == Isa::T32 { 15 } else { 14 };
    assert_eq!(classes.len(), known, "{classes:?}");
    for (class, [done, left]) in &classes {
        assert!(*done > all / 200 && *left < all / 10, "{class}: {done} done, {left} left");
    }
    println!("{isa:?}: {all} operations: {classes:?}");
}

#[test]
fn operations_of_a32_do_what_the_instruction_does() {
    compare(Isa::A32, count("SIDESTEP_A32_RUNS", 10_000), 41);
}

#[test]
fn operations_of_t32_do_what_the_instruction_does() {
    compare(Isa::T32, count("SIDESTEP_A32_RUNS", 10_000), 42);
}

#[test]
fn what_has_to_run_is_not_prepared() {
    for (isa, word, name) in [
        (Isa::A32, 0xef00_0000, "svc #0"),
        (Isa::A32, 0xe7f0_01f0, "udf #16"),
        (Isa::A32, 0xe12f_ff21, "bxj r1"),
        (Isa::A32, 0xe320_f001, "yield"),
        (Isa::A32, 0xe290_0001, "adds r0, r0, #1"),
        (Isa::A32, 0xe3b0_0102, "movs r0, #0x80000000"),
        (Isa::A32, 0xe591_0000, "ldr r0, [r1]"),
        (Isa::A32, 0xe5dd_0000, "ldrb r0, [sp]"),
        (Isa::A32, 0xe4bd_0004, "ldrt r0, [sp], #4"),
        (Isa::A32, 0xe58d_f000, "str pc, [sp]"),
        (Isa::A32, 0xe28f_f004, "add pc, pc, #4"),
        (Isa::A32, 0xe92d_a000, "push {sp, pc}"),
        (Isa::A32, 0xe8bd_6000, "ldm sp!, {sp, lr}"),
        (Isa::A32, 0xe19d_0f9f, "ldrex r0, [sp]"),
        (Isa::T32, 0xbf08_2001, "it eq; moveq r0, #1"),
        (Isa::T32, 0x46f7_bf00, "mov pc, lr"),
        (Isa::T32, 0xdf00_bf00, "svc #0"),
        (Isa::T32, 0xde01_bf00, "udf #1"),
        (Isa::T32, 0xf85d_0e04, "ldrt r0, [sp, #4]"),
        (Isa::T32, 0x4411_bf00, "add r1, r2"),
        (Isa::T32, 0xe8df_f001, "tbb [pc, r1]"),
        (Isa::T32, 0xf110_0001, "adds.w r0, r0, #1"),
    ] {
        assert_eq!(prepare(isa, &encode(isa, word)), None, "{name}");
    }
}

#[test]
fn nothing_is_done_in_the_other_instruction_set_or_in_a_block() {
    let mut state = State::random(&mut Rng(5), Isa::T32, 0);
    let op = prepare(Isa::T32, &[0x01, 0x20]).expect("movs r0, #1");
    let start = registers(&state);
    for (cpsr, next) in [
        (start.cpsr, Next::Done),
        (start.cpsr & !THUMB, Next::Displaced),
        (start.cpsr | 1 << 26, Next::Displaced),
        (start.cpsr | 1 << 11, Next::Displaced),
    ] {
        let mut after = Registers { cpsr, ..start };
        assert_eq!(execute(&op, &mut after, &mut Ram(&mut state)), next, "{cpsr:x}");
        assert_eq!(after.r[0], if next == Next::Done { 1 } else { start.r[0] });
    }
    assert_eq!(DATA_LEN, state.data.len());
}
