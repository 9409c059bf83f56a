//! Words and pairs of halfwords: which are instructions, how long they are, where they lead, which
//! registers they use.

use std::collections::BTreeMap;

use sidestep_isa::a32::{Class, Insn, decode};
use sidestep_isa::{Isa, Va};

use crate::oracle::{Rng, STRIDE, count, disassemble, encode, has_llvm};

const AT: u64 = 0x4000_0000;
const PC: u16 = 1 << 15;

/// Random words, most of them near to some instruction.
fn words(isa: Isa, count: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng(seed);
    (0..count).map(|i| if isa == Isa::T32 { pair(&mut rng, i) } else { word(&mut rng, i) }).collect()
}

fn word(rng: &mut Rng, i: usize) -> u32 {
    let word = rng.word();
    match i % 8 {
        0 => word,
        // Without a condition, and in turn all kinds, those with many fixed bits more often.
        1 => word | 0xf000_0000,
        2 => word & 0x0fff_ffff | 0xe000_0000,
        3 => word & 0x00ff_fff0 & 0x007f_ff0f | 0xe100_0000 | 0x000f_0f00 & word << 3,
        4 => word & 0x0000_f00f | 0xe120_0f10 | 0x000f_f000 | word & 0x0040_0030,
        5 => word & 0x01ff_f00f | 0xe600_0f10 | word & 0x0f0 | 0x0600_0000,
        6 => word & 0x00ff_ffff & !0x60 | 0xe100_0090,
        _ => word & 0xf1ff_ffff | (i as u32 >> 3 & 7) << 25,
    }
}

fn pair(rng: &mut Rng, i: usize) -> u32 {
    let word = rng.word();
    let nop = |first: u32| {
        // `it` is tested on its own.
        let is_it = first & 0xff00 == 0xbf00 && first & 15 != 0;
        (if is_it { 0xbf00 } else { first }) << 16 | 0xbf00
    };
    let wide = 0xe800_0000 | word & 0x1fff_ffff;
    let found = match i % 8 {
        0 | 1 => return nop((i as u32 / 8).wrapping_mul(0x9e37) & 0xffff).min(0xe7ff_bf00),
        2 => wide,
        3 => wide & !0x1000_0000 | 0x0800_0000 | 0xf0,
        4 => 0xf800_0000 | word & 0x01ff_ffff,
        5 => 0xfa80_f080 | word & 0x007f_0f7f,
        6 => 0xf3a0_8000 | word & 0x005f_0fff,
        _ => 0xe840_0f00 | word & 0x00ff_f0ff,
    };
    // Not the bytes of an `it` in the second half, for the sake of the disassembler.
    if found & 0xff00 == 0xbf00 { found ^ 0x4000 } else { found }
}

fn decoded(isa: Isa, word: u32, at: u64) -> Option<Insn> {
    decode(isa, &encode(isa, word), Va(at)).ok()
}

/// Classes of which words are taken that LLVM does not know: those that are taken as a whole, and
/// `swp`, which ARMv8 does not have.
const WHOLE: [Class; 5] = [Class::Vector, Class::VectorMove, Class::VectorLoad, Class::VectorStore, Class::Swap];

/// Whether a word may be refused that LLVM takes: for the kernel, for other coprocessors, or not
/// predictable.
fn is_refused(text: &str) -> bool {
    let name = text.split(' ').next().unwrap_or_default();
    let kernel = ["cps", "srs", "rfe", "eret", "hvc", "smc", "smi", "hlt", "setend", "dcps", "dbg", "sb", "esb", "tsb"];
    let coprocessor = ["cdp", "mcr", "mrc", "ldc", "stc"];
    let starts = |all: &[&str]| all.iter().any(|start| name.starts_with(start));
    starts(&kernel) || starts(&coprocessor) || name.starts_with('v') || name == "sha" || name.starts_with("aes")
        || text.contains("spsr") || text.contains("_usr") || text.contains("_irq") || text.contains("_fiq")
        || text.contains("_svc") || text.contains("_abt") || text.contains("_und") || text.contains("_mon")
        || text.contains("_hyp")
        // Registers of the user, seen by the kernel.
        || text.ends_with('^')
}

const NAMES: [&str; 16] =
    ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "sp", "lr", "pc"];

/// General-purpose registers that a text has.
fn mentioned(text: &str) -> u16 {
    let operands = text.split_once(' ').map_or("", |(_, rest)| rest).split('@').next().unwrap_or_default();
    let pieces = operands.split(|c: char| !c.is_ascii_alphanumeric());
    pieces.filter_map(|piece| NAMES.iter().position(|name| *name == piece)).fold(0, |all, number| all | 1 << number)
}

/// Registers that an instruction uses without naming them.
fn implied(insn: &Insn, text: &str) -> u16 {
    let op = insn.ops().next().expect("one");
    let name = text.split(' ').next().unwrap_or_default();
    match op.class {
        Class::Branch | Class::BranchRegister | Class::CompareZero | Class::TableBranch | Class::Address => PC,
        Class::BranchLink | Class::BranchExchange | Class::BranchLinkRegister => PC | 1 << 14,
        Class::SupervisorCall => u16::MAX,
        // ldrd and strd of A32 have a second register that is not written out by some.
        Class::LoadMultiple | Class::StoreMultiple if name.starts_with("push") || name.starts_with("pop") => 1 << 13,
        Class::VectorLoad | Class::VectorStore if name.starts_with("vpush") || name.starts_with("vpop") => 1 << 13,
        _ => 0,
    }
}

/// The address that an instruction's text has: of branches an operand. Literals are in the comment,
/// as if the code were at 0.
fn address(text: &str) -> Option<u64> {
    let number = |text: &str| {
        let word = text.split('<').next()?.trim().rsplit([' ', ',']).next()?;
        u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
    };
    let (operands, comment) = text.split_once('@').unwrap_or((text, ""));
    let literal = || number(comment).map(|address| AT.wrapping_add(address) & 0xffff_ffff);
    number(operands).or_else(literal)
}

#[derive(Default)]
struct Found(BTreeMap<String, Vec<String>>);

impl Found {
    fn add(&mut self, what: &str, word: u32, text: &str) {
        self.0.entry(what.to_owned()).or_default().push(format!("{word:08x} {text}"));
    }

    fn some(&self) -> String {
        let some = self.0.iter().map(|(name, all)| format!("{name}: {} {:?}", all.len(), &all[..all.len().min(5)]));
        some.collect::<Vec<_>>().join("\n")
    }
}

/// Compares some words, in pieces that fit into memory.
fn compare(isa: Isa, all: usize) {
    if !has_llvm(all) {
        return;
    }
    let (mut kinds, mut wrong, mut refused) = (BTreeMap::<String, usize>::new(), Found::default(), Found::default());
    let (mut known, mut targets, mut undefined) = (0, 0, 0);
    for piece in 0..all.div_ceil(250_000) {
        let words = words(isa, 250_000.min(all - piece * 250_000), 0x1234_5678 + piece as u64);
        for (i, (word, text)) in words.iter().zip(disassemble(isa, &words, AT)).enumerate() {
            let at = AT + STRIDE * i as u64;
            let insn = decoded(isa, *word, at);
            let (insn, text) = match (insn, text) {
                (Some(insn), Some(text)) => (insn, text),
                (Some(insn), None) => {
                    let class = insn.ops().next().expect("one").class;
                    if !WHOLE.contains(&class) {
                        wrong.add(&format!("{class:?} is none for LLVM"), *word, "");
                    }
                    continue;
                }
                (None, Some(text)) => {
                    if !is_refused(&text) && mentioned(&text) & PC == 0 {
                        refused.add(text.split(' ').next().unwrap_or_default(), *word, &text);
                    }
                    continue;
                }
                (None, None) => {
                    undefined += 1;
                    continue;
                }
            };
            known += 1;
            let op = insn.ops().next().expect("one");
            *kinds.entry(format!("{:?}", op.class)).or_default() += 1;
            let name = text.split(' ').next().unwrap_or_default();
            let used = op.reads | op.writes;
            let (mentioned, implied) = (mentioned(&text), implied(&insn, &text));
            let mut check = |holds: bool, what: &str| {
                if !holds {
                    wrong.add(&format!("{:?} {name}: {what}", op.class), *word, &format!("{text}: {op:x?}"));
                }
            };
            check(mentioned & PC & !used == 0, "the program counter is used");
            check(used & PC & !mentioned & !implied == 0, "the program counter is not used");
            check(mentioned & !used == 0, "a register is used");
            check(used & !mentioned & !implied == 0, "a register is not used");
            let target = match insn.flow() {
                sidestep_isa::Flow::Jump(to) | sidestep_isa::Flow::Branch(to) | sidestep_isa::Flow::Call(to) => {
                    Some(to)
                }
                _ => insn.pc_target(),
            };
            if let (Some(Va(target)), Some(address)) = (target, address(&text)) {
                check(target == address, "the target");
                targets += 1;
            }
        }
    }
    let unpredictable: usize = refused.0.values().map(Vec::len).sum();
    println!(
        "{isa:?}: {all} words, {known} instructions of both, {undefined} of none, {targets} targets, {unpredictable} refused, {kinds:?}"
    );
    if std::env::var_os("SIDESTEP_A32_REFUSED").is_some() {
        println!("refused:\n{}", refused.some());
    }
    assert!(wrong.0.is_empty(), "{}", wrong.some());
}

#[test]
fn words_of_a32_are_what_llvm_reads() {
    compare(Isa::A32, count("SIDESTEP_A32_WORDS", 300_000));
}

#[test]
fn halfwords_of_t32_are_what_llvm_reads() {
    compare(Isa::T32, count("SIDESTEP_A32_WORDS", 300_000));
}
