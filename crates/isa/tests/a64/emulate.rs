//! Prepared operations do what qemu does, or leave the instruction to its displaced copy without
//! having changed a register.

use std::collections::BTreeMap;

use sidestep_isa::a64::emulate::{Memory, Next, Op, Registers, execute, prepare};
use sidestep_isa::a64::{self, Class};
use sidestep_isa::{Isa, Va, decode};

use crate::machine::{self, BTYPE, FROM, PC, PSTATE, Run, SP, STACK, STACK_LEN, State};
use crate::oracle::{Rng, count};
use crate::relocate::{pick, state};

/// The memory of a state. Around the instruction are zeros, which can be read.
struct Ram<'a>(&'a mut State);

impl Memory for Ram<'_> {
    fn load(&mut self, at: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.0.memory(at, 8)?.try_into().ok()?))
    }

    fn store(&mut self, at: u64, value: u64) -> Option<()> {
        self.0.memory(at, 8)?.copy_from_slice(&value.to_le_bytes());
        Some(())
    }

    fn load32(&mut self, at: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.0.memory(at, 4)?.try_into().ok()?))
    }

    fn store32(&mut self, at: u64, value: u32) -> Option<()> {
        self.0.memory(at, 4)?.copy_from_slice(&value.to_le_bytes());
        Some(())
    }
}

fn registers(state: &State) -> Registers {
    let mut x = [0; 31];
    x.copy_from_slice(&state.regs[..31]);
    Registers { x, sp: state.regs[SP], pc: state.regs[PC], pstate: state.regs[PSTATE] }
}

/// A random instruction of the kinds that may be emulated.
fn any(rng: &mut Rng) -> u32 {
    let word = rng.word();
    let on_stack = word & !0x3e0 | 31 << 5;
    match rng.below(16) {
        0..=4 => pick(rng),
        // ldp, stp, ldpsw with the stack pointer
        5..=7 => on_stack & 0xc1ff_ffff | 0x2800_0000,
        // ldr, str and their kinds, with a small offset and with units
        8 | 9 => on_stack & 0xc0ff_ffff | 0x3800_0000,
        10 | 11 => on_stack & 0xc0c3_ffff | 0x3900_0000,
        12 => word & 0xc07f_ffff | 0x1100_0000,
        13 => 0x2a00_03e0 | word & 0x801f_001f,
        14 => 0x1280_0000 | word & 0xe07f_ffff,
        _ => 0xd61f_0000 | word & 0x0040_03e0,
    }
}

#[test]
fn operations_do_what_the_instruction_does() {
    let all = count("SIDESTEP_A64_RUNS", 20_000);
    let mut rng = Rng(31);
    let (mut ops, mut runs) = (Vec::new(), Vec::new());
    while ops.len() < all {
        let word = any(&mut rng);
        let Some(op) = prepare(&word.to_le_bytes()) else { continue };
        assert_eq!(Op::from_words(op.to_words()), op);
        let Some(mut state) = state(&mut rng, word, ops.len() as u64) else { continue };
        if rng.below(16) == 0 {
            // At an end of the stack's memory, or without any.
            state.regs[SP] = [STACK, STACK + STACK_LEN as u64, 0x1000][rng.below(3) as usize];
        }
        runs.push(Run { from: word.to_le_bytes().to_vec(), to: Vec::new(), state });
        ops.push((word, op));
    }
    let Some(ends) = machine::run(&runs) else { return };
    let mut classes = BTreeMap::<String, [usize; 2]>::new();
    for (((word, op), run), end) in ops.iter().zip(&runs).zip(&ends) {
        let insn = a64::decode(&word.to_le_bytes(), Va(FROM)).expect("an instruction");
        let name = format!("{word:08x} {insn} from {:x?}", run.state.regs);
        let mut memory = run.state.clone();
        let (before, mut after) = (registers(&run.state), registers(&run.state));
        let next = execute(op, &mut after, &mut Ram(&mut memory));
        let tally = classes.entry(format!("{:?}", insn.class())).or_default();
        tally[usize::from(next == Next::Displaced)] += 1;
        if next == Next::Displaced {
            assert_eq!(after, before, "{name}");
            // Pages are larger than the memory of a state, and there are more zeros.
            let is_access = matches!(insn.class(), Class::Single | Class::Pair | Class::LoadLiteral);
            let edge = run.state.regs[SP];
            let at_edge = !(STACK + 256..STACK + 768).contains(&edge);
            assert!(is_access && (at_edge || insn.class() != Class::LoadLiteral), "{name}: left to the copy");
            continue;
        }
        let mut expected = registers(&end.state);
        expected.pstate &= !BTYPE;
        assert_eq!(after, expected, "{name}");
        let same = [(&memory.data, &end.state.data), (&memory.far, &end.state.far), (&memory.stack, &end.state.stack)];
        assert!(same.iter().all(|(ours, theirs)| ours == theirs), "{name}: memory");
    }
    assert_eq!(classes.len(), 16, "{classes:?}");
    for (class, [done, left]) in &classes {
        assert!(*done > all / 200 && *left < all / 20, "{class}: {done} done, {left} left");
    }
    println!("{all} operations: {classes:?}");
}

/// Compare and branch of `FEAT_CMPBR`, which qemu does not have, by its definition.
#[test]
fn compare_and_branch_is_what_it_says() {
    let mut rng = Rng(41);
    let mut taken = [0; 2];
    while taken.iter().sum::<usize>() < 50_000 {
        let word = rng.word() & 0x81ff_ffff | 0x7400_0000;
        let Some(op) = prepare(&word.to_le_bytes()) else { continue };
        let insn = decode(Isa::A64, &word.to_le_bytes(), Va(FROM)).expect("an instruction");
        let mut state = State::random(&mut rng, 0);
        // Near each other, and near 0.
        state.regs[..31].iter_mut().for_each(|register| *register = (*register as i64 >> 57) as u64);
        let mut after = registers(&state);
        assert_eq!(execute(&op, &mut after, &mut Ram(&mut state)), Next::Done);
        let of = |number: u32| if number == 31 { 0 } else { state.regs[number as usize] };
        let bits = match (word >> 31, word >> 24 & 1, word >> 14 & 3) {
            (0, 0, 2) => 8,
            (0, 0, 3) => 16,
            (1, ..) => 64,
            _ => 32,
        };
        let cut = |value: u64| value << (64 - bits);
        let (a, immediate) = (cut(of(word & 31)), word >> 24 & 1 == 1);
        let b = cut(if immediate { u64::from(word >> 15 & 63) } else { of(word >> 16 & 31) });
        let text = insn.to_string();
        let holds = match text.split(' ').next().map(|name| &name[name.len() - 2..]) {
            Some("gt") => a as i64 > b as i64,
            Some("ge") => a as i64 >= b as i64,
            Some("lt") => (a as i64) < b as i64,
            Some("hi") => a > b,
            Some("hs") => a >= b,
            Some("lo") => a < b,
            Some("eq") => a == b,
            Some("ne") => a != b,
            other => panic!("{text}: {other:?}"),
        };
        let target = match insn.flow() {
            sidestep_isa::Flow::Branch(target) => target.0,
            flow => panic!("{text}: {flow:?}"),
        };
        assert_eq!(after.pc, if holds { target } else { FROM + 4 }, "{text}");
        taken[usize::from(holds)] += 1;
    }
    assert!(taken.iter().all(|count| *count > 10_000), "{taken:?}");
}

#[test]
fn what_has_to_run_is_not_prepared() {
    for (word, name) in [
        (0xd503_233f_u32, "paciasp"),
        (0xd503_23bf, "autiasp"),
        (0xd503_203f, "yield"),
        (0xd65f_0bff, "retaa"),
        (0xd71f_0801, "braa x0, x1"),
        (0xd400_0001, "svc #0"),
        (0xd420_0000, "brk #0"),
        (0xa8c1_7bfe, "ldp x30, x30, [sp], #16"),
        (0xa940_0000, "ldp x0, x0, [x0]"),
        (0xf940_0020, "ldr x0, [x1]"),
        (0x1c00_0000, "ldr s0, literal"),
        (0xf2a0_0020, "movk x0, #1, lsl #16"),
        (0xb100_0400, "adds x0, x0, #1"),
        (0x5400_0050, "bc.eq"),
        (0xc85f_7fe0, "ldxr x0, [sp]"),
        (0xf800_0be0, "sttr x0, [sp]"),
    ] {
        assert_eq!(prepare(&word.to_le_bytes()), None, "{name}");
    }
}
