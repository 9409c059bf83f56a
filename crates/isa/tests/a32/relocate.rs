//! Copies: what their instructions are, and that they do what the instruction does, by qemu.

use std::collections::BTreeMap;

use sidestep_isa::a32::{self, Class, Insn, Unsupported};
use sidestep_isa::{Isa, RelocateError, Va, relocate, relocated_len};

use crate::machine::{self, CODE_LEN, CPSR, DATA, DATA_LEN, FROM, NZCV, PC, Run, SP, STACK, State, THUMB, TO};
use crate::oracle::{Rng, assemble, count, encode, has_llvm};

/// The instruction set, the original at `FROM`, and the copy at `TO`.
const COPIES: &[(Isa, &str, &str)] = &[
    (Isa::A32, "mov r0, r1", "mov r0, r1"),
    (Isa::A32, "push {r4, lr}", "push {r4, lr}"),
    (Isa::A32, "pop {r4, pc}", "pop {r4, pc}"),
    (Isa::A32, "bxeq lr", "bxeq lr"),
    (Isa::A32, "b .+0x100", "ldr pc, [pc, #-4]; .word 0x40100100"),
    (Isa::A32, "bne .+0x100", "beq .+12; ldr pc, [pc, #-4]; .word 0x40100100"),
    (Isa::A32, "bl .+0x100", "movw lr, #4; movt lr, #0x4010; ldr pc, [pc, #-4]; .word 0x40100100"),
    (Isa::A32, "blx .+0x100", "movw lr, #4; movt lr, #0x4010; ldr pc, [pc, #-4]; .word 0x40100101"),
    (Isa::A32, "blx r3", "movw lr, #4; movt lr, #0x4010; bx r3"),
    (Isa::A32, "blx lr", "push {lr}; movw lr, #4; movt lr, #0x4010; pop {pc}"),
    (Isa::A32, "add r1, pc, #16", "movw r1, #0x18; movt r1, #0x4010"),
    (Isa::A32, "mov lr, pc", "movw lr, #8; movt lr, #0x4010"),
    (Isa::A32, "ldr r1, [pc, #16]", "movw r1, #0x18; movt r1, #0x4010; ldr r1, [r1]"),
    (Isa::A32, "ldrhls r1, [pc, #16]", "bhi .+16; movw r1, #0x18; movt r1, #0x4010; ldrh r1, [r1]"),
    (Isa::A32, "add r1, pc, r1", "str r0, [sp, #-8]!; movw r0, #8; movt r0, #0x4010; add r1, r0, r1; ldr r0, [sp], #8"),
    (
        Isa::A32,
        "ldrls pc, [pc, r1, lsl #2]",
        "bhi .+28; str r0, [sp, #-8]!; movw r0, #8; movt r0, #0x4010; ldr r0, [r0, r1, lsl #2]; str r0, [sp, #4]; pop {r0, pc}",
    ),
    (Isa::T32, "movs r0, r1", "movs r0, r1"),
    (Isa::T32, "pop {r4, pc}", "pop {r4, pc}"),
    (Isa::T32, "b.n .+0x100", "ldr.w pc, [pc]; .word 0x40100101; .short 0xbf00"),
    (Isa::T32, ".short 0xd03e", ".short 0xd104; ldr.w pc, [pc, #4]; .short 0xbf00; .word 0x40100081"),
    (Isa::T32, ".short 0xb1f1", ".short 0xb921; ldr.w pc, [pc, #4]; .short 0xbf00; .word 0x40100041"),
    (Isa::T32, "bl .+0x100", "movw lr, #5; movt lr, #0x4010; ldr.w pc, [pc]; .word 0x40100101; .short 0xbf00"),
    (Isa::T32, "blx .+0x100", "movw lr, #5; movt lr, #0x4010; ldr.w pc, [pc]; .word 0x40100100; .short 0xbf00"),
    (Isa::T32, "blx r3", "movw lr, #3; movt lr, #0x4010; bx r3"),
    (Isa::T32, "adr r1, .+20", "movw r1, #20; movt r1, #0x4010"),
    (Isa::T32, "ldr r1, [pc, #16]", "movw r1, #20; movt r1, #0x4010; ldr.w r1, [r1]"),
    (Isa::T32, "add r1, pc", "str r0, [sp, #-8]!; movw r0, #4; movt r0, #0x4010; add.w r1, r1, r0; ldr r0, [sp], #8"),
    (
        Isa::T32,
        "tbb [pc, r1]",
        "push {r0, r2, lr}; movw r0, #4; movt r0, #0x4010; ldrb.w r2, [r0, r1]; add.w r0, r0, r2, lsl #1; addw r0, r0, #1; str r0, [sp, #8]; pop {r0, r2, pc}",
    ),
    (Isa::T32, "ite eq; moveq r0, r1; movne r0, r2", "ite eq; moveq r0, r1; movne r0, r2"),
    (Isa::T32, "itt eq; moveq r0, r1; bxeq lr", "itt eq; moveq r0, r1; bxeq lr"),
    (
        Isa::T32,
        "itt eq; addeq r0, r0, r1; .short 0xe03e",
        "it eq; addeq r0, r0, r1; .short 0xd104; ldr.w pc, [pc, #4]; .short 0xbf00; .word 0x40100085",
    ),
];

fn hex(bytes: &[u8]) -> String {
    bytes.chunks(2).map(|word| format!("{word:02x?} ")).collect()
}

#[test]
fn copies_are_what_the_assembler_would_write_there() {
    if !has_llvm(COPIES.len()) {
        return;
    }
    for (isa, original, copy) in COPIES {
        let source = |text: &str| text.replace("; ", "\n");
        let original_bytes = assemble(*isa, &source(original), FROM);
        let expected = assemble(*isa, &source(copy), TO);
        let mut out = Vec::new();
        relocate(*isa, &original_bytes, Va(FROM), Va(TO), &mut out).unwrap_or_else(|e| panic!("{original}: {e}"));
        assert_eq!(hex(&out), hex(&expected), "{original}");
        assert_eq!(relocated_len(*isa, &original_bytes, Va(FROM)), Ok(out.len()), "{original}");
    }
}

#[test]
fn returns_from_the_stack_have_two_parts() {
    let cases = [
        (Isa::A32, "pop {r4, pc}", Some("pop {r4, lr}")),
        (Isa::A32, "pop {pc}", Some("pop {lr}")),
        (Isa::A32, "ldm r11, {r4, r11, sp, pc}", Some("ldm r11, {r4, r11, sp, lr}")),
        (Isa::A32, "popne {r4, pc}", None),
        (Isa::A32, "pop {lr, pc}", None),
        (Isa::A32, "bx lr", None),
        (Isa::A32, "pop {r4, lr}", None),
        (Isa::T32, "pop {r4, r5, pc}", Some("pop.w {r4, r5, lr}")),
        (Isa::T32, "pop {pc}", Some("ldr.w lr, [sp], #4")),
        (Isa::T32, "pop.w {r4, r8, pc}", Some("pop.w {r4, r8, lr}")),
        (Isa::T32, "ldr.w pc, [sp], #12", Some("ldr.w lr, [sp], #12")),
        (Isa::T32, "bx lr", None),
    ];
    if !has_llvm(cases.len()) {
        return;
    }
    for (isa, original, load) in cases {
        let expected = load.map(|load| hex(&assemble(isa, load, TO)));
        let found = a32::relocate::load_of_return(isa, &assemble(isa, original, FROM));
        assert_eq!(found.map(|load| hex(&load)), expected, "{original}");
    }
}

#[test]
fn what_has_no_copy_is_refused() {
    for (isa, word, why) in [
        (Isa::A32, 0xe92d_d800, Unsupported::StoresAddress), // push {r11, r12, lr, pc}
        (Isa::A32, 0xe58d_f000, Unsupported::NoRegister),    // str pc, [sp]
        (Isa::A32, 0xe08f_d00d, Unsupported::NoRegister),    // add sp, pc, sp
        (Isa::T32, 0x44fd_bf00, Unsupported::NoRegister),    // add sp, pc
    ] {
        let bytes = encode(isa, word);
        let mut out = vec![1, 2, 3];
        let error = relocate(isa, &bytes, Va(FROM), Va(TO), &mut out).expect_err("no copy");
        let expected = sidestep_isa::relocate::Unsupported::A32(why);
        assert_eq!(error, RelocateError::Unsupported { at: Va(FROM), why: expected }, "{word:08x}");
        assert_eq!(relocated_len(isa, &bytes, Va(FROM)), Err(error));
        assert_eq!(out, [1, 2, 3]);
    }
}

/// A random instruction of A32 that depends on where it is, or that calls.
fn a32_word(rng: &mut Rng, i: usize) -> u32 {
    let word = rng.word();
    // Most conditions, and often none.
    let condition = if word >> 28 == 15 || rng.below(3) == 0 { 0xe000_0000 } else { word & 0xf000_0000 };
    let (d, m) = (rng.below(15) as u32, rng.below(13) as u32);
    // 8 bytes ahead.
    let near = (DATA - FROM - 8) as u32 + 4 * rng.below(100) as u32;
    let twice = (near & 0xf0) << 4 | near & 0xf;
    let rest = match i % 18 {
        0 => 0x0a00_0000 | word & 0x00ff_ffff,
        1 => 0x0b00_0000 | word & 0x00ff_ffff,
        2 => return 0xfa00_0000 | word & 0x01ff_ffff,
        3 => 0x012f_ff30 | m,
        4 => 0x012f_ff10 | [m, 14, 15][i / 18 % 3],
        5 => 0x059f_0000 | d << 12 | near & 0xfff,
        6 => 0x05df_0000 | m << 12 | near & 0xfff,
        7 => 0x01df_00b0 | m << 12 | twice | (word & 3) << 5,
        8 => 0x01cf_00d0 | (m & 14) << 12 | twice,
        9 => 0x059f_f000 | near & 0xfff,
        // ldr of a register's distance, also to the program counter.
        10 => 0x079f_0000 | [d, 15][i / 18 % 2] << 12 | m,
        11 => 0x028f_0000 | d << 12 | word & 0xfff,
        12 => 0x024f_0000 | d << 12 | word & 0xfff,
        // Data processing with the program counter as the first operand, the second, and both.
        13 => word & 0x01e0_0fe0 | 0x000f_0000 | d << 12 | m,
        14 => word & 0x01e0_0fe0 | m << 16 | d << 12 | 15,
        15 => word & 0x01ef_0fef | d << 12 | [0x000f_0000, 15][i / 18 % 2],
        // add pc, pc, rm and mov pc, rm
        16 => [0x008f_f100 | m, 0x01a0_f000 | m][i / 18 % 2],
        _ => [0x0d9f_0a00, 0x0d9f_0b00, 0x058f_0000][i / 18 % 3] | m << 12 | near >> 2 & 0xff,
    };
    condition | rest
}

/// Code of T32 that depends on where it is, or that calls.
fn t32_code(rng: &mut Rng, i: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let single = |rng: &mut Rng, i: usize| -> Vec<u8> {
        let word = rng.word();
        let (d, m, low) = (rng.below(13) as u32, rng.below(13) as u32, rng.below(8) as u32);
        let near = (DATA - FROM - 4) as u32 + 4 * rng.below(100) as u32;
        let half = |half: u32| (half as u16).to_le_bytes().to_vec();
        let wide = |word: u32| encode(Isa::T32, word).to_vec();
        match i % 19 {
            0 => half(0xe000 | word & 0x7ff),
            1 => half(0xd000 | (word % 14) << 8 | word >> 8 & 0xff),
            2 => half(0xb100 | word & 0x0aff),
            3 => wide(0xf000_9000 | word & 0x07ff_2fff),
            4 => wide(0xf000_8000 | word & 0x043f_2fff | (word % 14) << 22),
            5 => wide(0xf000_d000 | word & 0x07ff_2fff),
            6 => wide(0xf000_c000 | word & 0x07ff_2ffe),
            7 => half(0x4780 | m << 3),
            8 => half(0x4700 | [m, 14, 15][i / 19 % 3] << 3),
            9 => half(0x4800 | low << 8 | near >> 2),
            10 => wide(0xf8df_0000 | [d, 15][i / 19 % 2] << 12 | near),
            11 => wide([0xf89f_0000, 0xf8bf_0000, 0xf99f_0000, 0xf9bf_0000][i / 19 % 4] | d << 12 | near),
            12 => half(0xa000 | low << 8 | word & 255),
            13 => wide([0xf20f_0000, 0xf2af_0000][i / 19 % 2] | word & 0x0400_70ff | d << 8),
            14 => half(0x4478 | low | (word & 1) << 7),
            15 => half([0x4487, 0x4687][i / 19 % 2] | m << 3),
            16 => half(0x4678 | low | (word & 1) << 7),
            17 => wide([0xe8df_f000, 0xe8df_f010][i / 19 % 2] | m),
            _ => wide(
                [0xe9df_0000 | d << 12 | (d ^ 1) << 8, 0xed9f_0a00, 0xed9f_0b00][i / 19 % 3]
                    | m << 12 & 0x6000
                    | near >> 2,
            ),
        }
    };
    if i % 3 != 0 {
        return single(rng, i / 3);
    }
    // A block: plain instructions, and one of the above.
    let len = 1 + rng.below(4) as usize;
    let mask = (rng.word() & 15) >> (5 - len).min(4) << (5 - len) | 1 << (4 - len);
    bytes.extend((0xbf00 | (rng.below(14) as u32) << 4 | mask & 15).to_le_bytes()[..2].to_vec());
    for at in 0..len {
        let plain = [0x1840_u16, 0x4291, 0x1c49, 0x4072, 0x2307, 0x46a1];
        match at + 1 == len || rng.below(4) == 0 {
            true => bytes.extend(single(rng, i / 3 + at * 7)),
            false => bytes.extend(plain[rng.below(6) as usize].to_le_bytes()),
        }
    }
    bytes
}

/// Whether an address is one of code or data of the machine, where execution must not get to.
pub fn is_used(at: u64) -> bool {
    let ranges = [(FROM, CODE_LEN as u64), (TO, 0x1000), (DATA, DATA_LEN as u64), (STACK, 0x1000)];
    ranges.iter().any(|(start, len)| (*start..start + len + 64).contains(&at))
}

/// A state in which an instruction leads nowhere where code is; none: there is none.
pub fn state(rng: &mut Rng, insn: &Insn, nzcv: u32) -> Option<State> {
    let mut state = State::random(rng, insn.isa(), nzcv);
    for (register, value) in state.regs.iter_mut().enumerate().take(SP) {
        // Distances to the data, places in what is undefined, and anything; 0 at times.
        *value = match rng.below(6) {
            0 => 0,
            1 => (FROM as u32 + 0x1000 + 4 * rng.below(0x1000) as u32) | (register as u32 & 1),
            2 | 3 => (DATA - FROM - 8) as u32 + 4 * rng.below(64) as u32,
            4 => rng.below(64) as u32,
            _ => *value,
        };
    }
    state.regs[14] = (FROM as u32 + 0x2000 + 4 * rng.below(0x1000) as u32) | rng.below(2) as u32;
    match insn.flow() {
        sidestep_isa::Flow::Jump(Va(to)) | sidestep_isa::Flow::Branch(Va(to)) | sidestep_isa::Flow::Call(Va(to)) => {
            (!is_used(to)).then_some(state)
        }
        _ => Some(state),
    }
}

fn differential(isa: Isa, all: usize, seed: u64) {
    let mut rng = Rng(seed);
    let (mut cases, mut runs) = (Vec::new(), Vec::new());
    for i in 0.. {
        if cases.len() == all {
            break;
        }
        let original = match isa {
            Isa::T32 => t32_code(&mut rng, i),
            _ => a32_word(&mut rng, i).to_le_bytes().to_vec(),
        };
        let Ok(insn) = a32::decode(isa, &original, Va(FROM)) else { continue };
        let Some(state) = state(&mut rng, &insn, cases.len() as u32) else { continue };
        // Odd places of T32, too.
        let to = TO + if isa == Isa::T32 { 2 * (i as u64 % 2) } else { 0 };
        let mut copy = vec![0; (to - TO) as usize];
        if relocate(isa, &original, Va(FROM), Va(to), &mut copy).is_err() {
            continue;
        }
        let len = copy.len() as u64;
        let mut there = state.clone();
        there.regs[PC] = to as u32;
        let original = original[..insn.len()].to_vec();
        runs.push(Run { isa, from: original, to: Vec::new(), state });
        runs.push(Run { isa, from: Vec::new(), to: copy, state: there });
        cases.push((insn, TO + len));
    }
    let Some(ends) = machine::run(&runs) else { return };
    let mut classes = BTreeMap::<String, (usize, u32)>::new();
    let (mut faults, mut inside) = (0, 0);
    for (i, (insn, end)) in cases.iter().enumerate() {
        let name = format!("{insn} ({:02x?}; {:02x?})", runs[2 * i].from, runs[2 * i + 1].to);
        let (here, mut there) = (ends[2 * i].clone(), ends[2 * i + 1].clone());
        let before = &runs[2 * i].state;
        if there.state.regs[PC] as u64 == *end {
            there.state.regs[PC] = insn.next().0 as u32;
        }
        let at = u64::from(here.state.regs[PC]);
        if (FROM..FROM + insn.len() as u64).contains(&at) {
            // It faults. So does the copy, with the same signal.
            let there_at = u64::from(there.state.regs[PC]);
            assert!((TO..*end).contains(&there_at) && here.signal == there.signal, "{name}: {here:x?} {there:x?}");
            faults += 1;
            continue;
        }
        if is_used(at) && at != insn.next().0 {
            // Something else ran then.
            inside += 1;
            continue;
        }
        // What lies below the stack pointer is nobody's.
        let below = (before.regs[SP] as u64 - STACK) as usize;
        let kept = here.state.stack[below - 16..below].to_vec();
        there.state.stack[below - 16..below].copy_from_slice(&kept);
        let keep = NZCV | THUMB;
        let regs = |state: &State| {
            let mut regs = state.regs;
            regs[CPSR] &= keep;
            regs
        };
        assert_eq!(regs(&here.state), regs(&there.state), "{name}: registers, from {:x?}", before.regs);
        assert!(here.state.stack == there.state.stack && here.state.data == there.state.data, "{name}: memory");
        assert!(here.state.vectors == there.state.vectors, "{name}: vectors");
        assert_eq!(here.signal, there.signal, "{name}");
        let class: Class = insn.ops().last().expect("one").class;
        let block = if insn.it().is_some() { "it " } else { "" };
        let entry = classes.entry(format!("{block}{class:?}")).or_default();
        entry.0 += 1;
        entry.1 |= 1 << (before.regs[CPSR] >> 28);
    }
    println!("{isa:?}: {all} instructions, {faults} faults, {inside} left out: {classes:?}");
    let compared: usize = classes.values().map(|(count, _)| count).sum();
    assert!(compared > all * 2 / 3, "{compared}");
    assert!(classes.len() >= if isa == Isa::T32 { 20 } else { 9 }, "{classes:?}");
    let common = classes.values().filter(|(count, _)| *count > all / 50);
    assert!(common.clone().all(|(_, flags)| *flags == 0xffff), "all flags");
}

#[test]
fn copies_of_a32_do_what_the_instruction_does() {
    differential(Isa::A32, count("SIDESTEP_A32_RUNS", 8_000), 77);
}

#[test]
fn copies_of_t32_do_what_the_instruction_does() {
    differential(Isa::T32, count("SIDESTEP_A32_RUNS", 8_000), 78);
}
