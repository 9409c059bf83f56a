//! Copies: what their words are, and that they do what the instruction does, by qemu.

use std::collections::BTreeMap;

use sidestep_isa::a64::{self, Class, Unsupported, relocate};
use sidestep_isa::{Flow, Isa, RelocateError, Va, decode, relocated_len};

use crate::machine::{self, CODE_LEN, DATA, DATA_LEN, FAR, FROM, PC, Run, SP, State, TO};
use crate::oracle::{Rng, assemble, count, has_llvm};

/// The original; the copy at `TO`, where `next` is the address behind the original. Targets of both
/// are distances from the original.
const COPIES: &[(&str, &str)] = &[
    ("nop", "nop"),
    ("ret", "ret"),
    ("ret x3", "ret x3"),
    ("retaa", "retaa"),
    ("br x16", "br x16"),
    ("braa x1, x2", "braa x1, x2"),
    ("svc #0", "svc #0"),
    ("brk #7", "brk #7"),
    ("paciasp", "paciasp"),
    ("bti c", "bti c"),
    ("stp x29, x30, [sp, #-16]!", "stp x29, x30, [sp, #-16]!"),
    ("ldxr x0, [x1]", "ldxr x0, [x1]"),
    ("b T", "b T"),
    ("b.al T", "b T"),
    ("b.nv T", "b T"),
    ("b.eq T", "b.ne .+8; b T"),
    ("b.gt T", "b.le .+8; b T"),
    ("bc.hi T", "bc.ls .+8; b T"),
    ("cbz w3, T", "cbnz w3, .+8; b T"),
    ("cbnz x30, T", "cbz x30, .+8; b T"),
    ("tbz x5, #63, T", "tbnz x5, #63, .+8; b T"),
    ("tbnz w5, #0, T", "tbz w5, #0, .+8; b T"),
    ("bl T", "adrp x30, N; add x30, x30, #4; b T"),
    ("blr x0", "movz x30, #4; movk x30, #0x4010, lsl #16; movk x30, #0, lsl #32; br x0"),
    ("blraa x0, x1", "movz x30, #4; movk x30, #0x4010, lsl #16; movk x30, #0, lsl #32; braa x0, x1"),
    ("blrabz x7", "movz x30, #4; movk x30, #0x4010, lsl #16; movk x30, #0, lsl #32; brabz x7"),
    ("adr x7, T", "movz x7, #0x100; movk x7, #0x4010, lsl #16; movk x7, #0, lsl #32"),
    ("adrp x7, P", "movz x7, #0x3000; movk x7, #0x4010, lsl #16; movk x7, #0, lsl #32"),
    ("adr xzr, T", "nop"),
    ("prfm pldl1keep, T", "nop"),
    ("ldr w7, T", "movz x7, #0x100; movk x7, #0x4010, lsl #16; movk x7, #0, lsl #32; ldr w7, [x7]"),
    ("ldr x7, T", "movz x7, #0x100; movk x7, #0x4010, lsl #16; movk x7, #0, lsl #32; ldr x7, [x7]"),
    ("ldrsw x7, T", "movz x7, #0x100; movk x7, #0x4010, lsl #16; movk x7, #0, lsl #32; ldrsw x7, [x7]"),
    (
        "ldr q7, T",
        "str x16, [sp, #-16]!; movz x16, #0x100; movk x16, #0x4010, lsl #16; movk x16, #0, lsl #32; ldr q7, [x16]; ldr x16, [sp], #16",
    ),
    (
        "ldr s16, T",
        "str x16, [sp, #-16]!; movz x16, #0x100; movk x16, #0x4010, lsl #16; movk x16, #0, lsl #32; ldr s16, [x16]; ldr x16, [sp], #16",
    ),
];

/// Distances in place of the names of targets.
fn placed(source: &str, from: u64) -> String {
    // The assembler knows how many words are in front.
    let instructions = source.split(';').enumerate().map(|(i, text)| {
        let target = |to: u64| format!(".+({})", to.wrapping_sub(from + 4 * i as u64) as i64);
        let page = |to: u64| format!("#{}", (to & !0xfff).wrapping_sub((from + 4 * i as u64) & !0xfff) as i64);
        let text = text.replace(", T", &format!(", {}", target(FROM + 0x100)));
        let text = text.replace(" T", &format!(" {}", target(FROM + 0x100)));
        text.replace(", N", &format!(", {}", page(FROM + 4))).replace(", P", &format!(", {}", page(FROM + 0x3000)))
    });
    instructions.collect::<Vec<_>>().join("\n")
}

fn hex(bytes: &[u8]) -> String {
    bytes.chunks(4).map(|word| format!("{word:02x?} ")).collect()
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn copies_are_what_the_assembler_would_write_there() {
    if !has_llvm(COPIES.len()) {
        return;
    }
    for (original, copy) in COPIES {
        let words = assemble(&placed(original, FROM), FROM);
        let expected = bytes(&assemble(&placed(copy, TO), TO));
        let mut out = Vec::new();
        relocate(&bytes(&words), Va(FROM), Va(TO), &mut out).unwrap_or_else(|e| panic!("{original}: {e}"));
        assert_eq!(hex(&out), hex(&expected), "{original}");
        assert_eq!(relocated_len(Isa::A64, &bytes(&words), Va(FROM)), Ok(out.len()), "{original}");
    }
}

#[test]
fn what_has_no_copy_is_refused() {
    for (word, why) in [
        (0xd63f_03c0, Unsupported::LinkTarget), // blr x30
        (0xd73f_081e, Unsupported::LinkTarget), // blraa x0, x30
        (0xd73f_0bdf, Unsupported::LinkTarget), // blraa x30, sp
        (0xdac1_a3fe, Unsupported::OwnAddress), // paciasppc
        (0xdac1_83fe, Unsupported::OwnAddress), // pacnbiasppc
        (0xf380_001f, Unsupported::OwnAddress), // autiasppc
        (0x5500_001f, Unsupported::OwnAddress), // retaasppc
        (0xd503_24ff, Unsupported::OwnAddress), // pacm
        (0x1d01_0440, Unsupported::MemoryCopy), // cpyp
        (0x19c1_8440, Unsupported::MemoryCopy), // sete
        (0x5800_001f, Unsupported::NoRegister), // ldr xzr
        (0x9800_001f, Unsupported::NoRegister), // ldrsw xzr
    ] {
        let word: u32 = word;
        let mut out = vec![1, 2, 3];
        let error = relocate(&word.to_le_bytes(), Va(FROM), Va(TO), &mut out).expect_err("no copy");
        let expected = sidestep_isa::relocate::Unsupported::A64(why);
        assert_eq!(error, RelocateError::Unsupported { at: Va(FROM), why: expected }, "{word:08x}");
        assert_eq!(relocated_len(Isa::A64, &word.to_le_bytes(), Va(FROM)), Err(error));
        assert_eq!(out, [1, 2, 3]);
    }
}

#[test]
fn what_is_too_far_away_is_an_error() {
    let far = Va(FROM + (1 << 28));
    // b, bl, b.eq, cbz, tbz, cbgt
    for word in [0x1400_0040_u32, 0x9400_0040, 0x5400_0800, 0xb400_0800, 0x3600_0800, 0x7400_0800] {
        let mut out = Vec::new();
        let error = relocate(&word.to_le_bytes(), Va(FROM), far, &mut out).expect_err("too far");
        assert!(matches!(error, RelocateError::OutOfReach { target: Va(t), .. } if t == FROM + 0x100), "{error:?}");
        assert!(out.is_empty());
    }
    // adr, adrp and literals are reached from everywhere.
    for word in [0x1000_0807_u32, 0xb000_0007, 0x5800_0807, 0x1c00_0807, 0xd63f_0000] {
        let mut out = Vec::new();
        relocate(&word.to_le_bytes(), Va(FROM), Va(0x7fff_0000_0000), &mut out).expect("a copy");
    }
}

/// Compare and branch of `FEAT_CMPBR` cannot be run here, so its copies are read.
#[test]
fn copies_of_compare_and_branch_lead_to_both_targets() {
    let mut rng = Rng(17);
    let mut seen = 0;
    while seen < 10_000 {
        let word = rng.word() & 0x81ff_ffff | 0x7400_0000;
        let Ok(insn) = decode(Isa::A64, &word.to_le_bytes(), Va(FROM)) else { continue };
        let Flow::Branch(target) = insn.flow() else { continue };
        let mut out = Vec::new();
        relocate(&word.to_le_bytes(), Va(FROM), Va(TO), &mut out).expect("a copy");
        let flows = sidestep_isa::sweep(Isa::A64, &out, Va(TO)).map(|insn| insn.map(|insn| insn.flow()));
        let flows: Vec<_> = flows.map(|flow| flow.expect("an instruction")).collect();
        assert_eq!(flows, [Flow::Branch(Va(TO + 8)), Flow::Jump(Va(TO + 12)), Flow::Jump(target)]);
        // Nothing but the distance has changed.
        let copied = u32::from_le_bytes(out[..4].try_into().expect("4 bytes"));
        assert_eq!(copied & !0x3fe0, word & !0x3fe0);
        seen += 1;
    }
}

/// A random instruction that depends on where it is, or that calls.
pub fn pick(rng: &mut Rng) -> u32 {
    let word = rng.word();
    let registers = u32::from(rng.below(4) != 0) * (rng.below(31) as u32);
    // A word of the data, near or far.
    let mut literal = || {
        let base = if rng.below(2) == 0 { DATA } else { FAR };
        let at = base + 4 * rng.below(DATA_LEN as u64 / 4 - 4);
        ((at.wrapping_sub(FROM) >> 2) as u32 & 0x7_ffff) << 5
    };
    match word % 16 {
        0 => 0x1000_0000 | word & 0x60ff_ffff,
        1 => 0x9000_0000 | word & 0x60ff_ffff,
        2 => 0x1800_0000 | literal() | registers,
        3 => 0x5800_0000 | literal() | registers,
        4 => 0x9800_0000 | literal() | registers,
        5 => 0x1c00_0000 | literal() | registers,
        6 => 0x5c00_0000 | literal() | registers,
        7 => 0x9c00_0000 | literal() | registers,
        8 => 0x1400_0000 | word & 0x03ff_ffff,
        9 => 0x9400_0000 | word & 0x03ff_ffff,
        10 | 11 => 0x5400_0000 | word & 0x00ff_ffef,
        12 => 0x3400_0000 | word & 0x81ff_ffff,
        13 => 0x3600_0000 | word & 0x81ff_ffff,
        14 => 0xd63f_0000 | word & 0x3e0,
        _ => 0xd63f_0800 | word & 0x0100_07ff,
    }
}

/// Whether an address is one of code or data of the machine, where execution must not get to.
fn is_used(at: u64) -> bool {
    let ranges = [(FROM, 4), (TO, CODE_LEN as u64), (DATA, DATA_LEN as u64), (FAR, DATA_LEN as u64)];
    ranges.iter().any(|(start, len)| (*start..start + len).contains(&at))
}

/// A state in which an instruction leads nowhere where code is.
pub fn state(rng: &mut Rng, word: u32, nzcv: u64) -> Option<State> {
    let insn = a64::decode(&word.to_le_bytes(), Va(FROM)).ok()?;
    let mut state = State::random(rng, nzcv);
    match decode(Isa::A64, &word.to_le_bytes(), Va(FROM)).ok()?.flow() {
        Flow::Jump(target) | Flow::Branch(target) | Flow::Call(target) if is_used(target.0) => return None,
        Flow::JumpIndirect | Flow::CallIndirect | Flow::Return => {
            let register = (word >> 5 & 31) as usize;
            if register < 31 {
                // Zeros around the instruction, or no memory at all.
                let near = FROM + 0x1000 + 4 * rng.below(0x1000);
                state.regs[register] = if rng.below(2) == 0 { near } else { rng.next() >> 18 << 2 };
            }
        }
        _ => {}
    }
    // Registers that are compared with 0 are 0 at times.
    if matches!(insn.class(), Class::CompareZero) && rng.below(3) == 0 {
        let register = (word & 31) as usize;
        if register < 31 {
            state.regs[register] = if rng.below(2) == 0 { 0 } else { rng.next() << 32 };
        }
    }
    Some(state)
}

#[test]
fn copies_do_what_the_instruction_does() {
    let all = count("SIDESTEP_A64_RUNS", 20_000);
    let mut rng = Rng(77);
    let (mut cases, mut runs) = (Vec::new(), Vec::new());
    while cases.len() < all {
        let word = pick(&mut rng);
        let (mut copy, original) = (Vec::new(), word.to_le_bytes());
        let Some(state) = state(&mut rng, word, cases.len() as u64) else { continue };
        if relocate(&original, Va(FROM), Va(TO), &mut copy).is_err() {
            continue;
        }
        let mut there = state.clone();
        there.regs[PC] = TO;
        runs.push(Run { from: original.to_vec(), to: Vec::new(), state });
        runs.push(Run { from: Vec::new(), to: copy.clone(), state: there });
        cases.push((word, copy.len() as u64));
    }
    let Some(ends) = machine::run(&runs) else { return };
    let mut classes = BTreeMap::<String, (usize, u32, usize)>::new();
    for (i, (word, len)) in cases.iter().enumerate() {
        let insn = a64::decode(&word.to_le_bytes(), Va(FROM)).expect("an instruction");
        let name = format!("{word:08x} {insn}");
        let (here, mut there) = (ends[2 * i].clone(), ends[2 * i + 1].clone());
        let before = &runs[2 * i].state;
        if there.state.regs[PC] == TO + len {
            there.state.regs[PC] = FROM + 4;
        }
        if insn.class() == Class::LoadLiteralVector {
            // What lies below the stack pointer is nobody's.
            let at = before.regs[SP] - 16;
            let below = here.state.clone().memory(at, 16).expect("the stack").to_vec();
            there.state.memory(at, 16).expect("the stack").copy_from_slice(&below);
        }
        if insn.class() == Class::BranchLinkRegister && here.state.regs[PC] != FROM {
            // Which landing pads are allowed: those of calls here, those of all branches there.
            let kind = |state: &State| state.regs[machine::PSTATE] & machine::BTYPE;
            assert_eq!((kind(&here.state), kind(&there.state)), (2 << 10, 1 << 10), "{name}");
            there.state.regs[machine::PSTATE] ^= machine::BTYPE;
        }
        assert_eq!(here.state.regs, there.state.regs, "{name}: registers, from {:x?}", before.regs);
        assert!(here == there, "{name}: vectors or memory");
        let fallen = here.state.regs[PC] == FROM + 4;
        let entry = classes.entry(format!("{:?}", insn.class())).or_default();
        entry.0 += 1;
        entry.1 |= 1 << (before.regs[machine::PSTATE] >> 28);
        entry.2 += usize::from(fallen);
    }
    assert_eq!(classes.len(), 10, "{classes:?}");
    for (class, (count, flags, fallen)) in &classes {
        assert!(*count > all / 50 && *flags == 0xffff, "{class}: {count} with flags {flags:x}");
        let conditional = ["BranchCondition", "CompareZero", "TestBit"].contains(&class.as_str());
        assert!(
            !conditional || (count / 8..count * 7 / 8).contains(fallen),
            "{class}: {fallen} of {count} fell through"
        );
    }
    println!("{all} instructions: {classes:?}");
}
