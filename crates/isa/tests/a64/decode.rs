//! Every class of words: which are instructions, where they lead, what they write.

use std::collections::{BTreeMap, BTreeSet};

use sidestep_isa::a64::{Class, Insn, decode};
use sidestep_isa::{Flow, Va};

use crate::oracle::{Rng, count, disassemble, has_llvm};

const AT: u64 = 0x4000_0000;

/// Classes of which words are taken that LLVM 19 does not know. Three are taken as a whole; two are
/// of `FEAT_CMPBR`, which is younger.
const NEWER: [Class; 5] = [Class::Sve, Class::Sme, Class::Vector, Class::CompareRegisters, Class::CompareImmediate];

/// Whether a word is refused that LLVM takes.
fn is_refused(word: u32, text: &str) -> bool {
    let name = text.split(' ').next().unwrap_or_default();
    match name {
        // As `class/mod.rs` says.
        "tstart" | "tcommit" | "tcancel" | "ttest" | "gcsstr" | "gcssttr" => true,
        // Atomics of translation tables.
        _ if name.starts_with("rcw") => true,
        // Bits that should be zero.
        "addg" | "subg" => word >> 14 & 3 != 0,
        "sb" => word >> 8 & 15 != 0,
        // System registers have an op0 of 2 or 3 (section C5.1.2).
        "mrs" | "msr" | "mrrs" | "msrr" => word >> 20 & 1 == 0,
        // A number of bytes in the zero register is undefined.
        _ if name.starts_with("cpy") || name.starts_with("set") => text.contains("xzr!"),
        _ => false,
    }
}

/// Words of one kind of top-level class each, in turn, so that the small ones are not lost.
fn words(count: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng(seed);
    let mut kinds = (0..16).cycle();
    (0..count)
        .map(|_| {
            let word = rng.word();
            match rng.below(4) {
                0 => word,
                // System instructions and branches through registers have many fixed bits.
                1 if word & 3 == 0 => 0xd500_0000 | word >> 6 & 0x003f_ffff | word << 22 & 0x0040_0000,
                1 if word & 3 == 1 => 0xd61f_0000 | word & 0x01e0_ffff,
                1 => 0xd503_2000 | word >> 8 & 0x1fff,
                2 => word & 0x3fff_ffff & 0xff | 0xd400_0000 | word >> 7 & 0x00ff_ff00,
                _ => word & !(15 << 25) | kinds.next().unwrap_or(0) << 25,
            }
        })
        .collect()
}

fn decoded(word: u32) -> Option<Insn> {
    decode(&word.to_le_bytes(), Va(AT)).ok()
}

/// The words of an environment variable, in pieces that fit into memory.
fn pieces() -> impl Iterator<Item = Vec<u32>> {
    let all = count("SIDESTEP_A64_WORDS", 2_000_000);
    (0..all.div_ceil(500_000)).map(move |piece| words(500_000.min(all - piece * 500_000), 0x1234_5678 + piece as u64))
}

#[test]
fn instructions_are_those_that_llvm_knows() {
    let all = count("SIDESTEP_A64_WORDS", 2_000_000);
    if !has_llvm(all) {
        return;
    }
    let mut kinds = BTreeMap::<String, usize>::new();
    let mut refused = BTreeMap::<String, Vec<String>>::new();
    let mut believed = BTreeMap::<String, Vec<String>>::new();
    for words in pieces() {
        for (word, text) in words.iter().zip(disassemble(&words, 0)) {
            match (decoded(*word), text) {
                (Some(insn), None) => {
                    let why = believed.entry(format!("{:?}", insn.class())).or_default();
                    why.push(format!("{word:08x}"));
                }
                (None, Some(text)) if is_refused(*word, &text) => {}
                (None, Some(text)) => {
                    let name = text.split(' ').next().unwrap_or_default().to_owned();
                    refused.entry(name).or_default().push(format!("{word:08x} {text}"));
                }
                (Some(insn), Some(_)) => *kinds.entry(format!("{:?}", insn.class())).or_default() += 1,
                (None, None) => {}
            }
        }
    }
    for class in NEWER {
        believed.remove(&format!("{class:?}"));
    }
    let some = |found: &BTreeMap<String, Vec<String>>| {
        let some = found.iter().map(|(name, all)| format!("{name}: {} {:?}", all.len(), &all[..all.len().min(6)]));
        some.collect::<Vec<_>>().join("\n")
    };
    assert!(believed.is_empty(), "no instructions for LLVM:\n{}", some(&believed));
    assert!(refused.is_empty(), "instructions for LLVM:\n{}", some(&refused));
    let rare: Vec<_> = kinds.iter().filter(|(_, count)| **count < 5).collect();
    assert!(all < 2_000_000 || kinds.len() > 75, "only {} classes: {kinds:?}", kinds.len());
    println!("{all} words, {} classes, rare: {rare:?}", kinds.len());
}

/// The address that an instruction's text ends with.
fn address(text: &str) -> Option<u64> {
    let operand = text.split(['<']).next()?.trim().rsplit([' ', ',']).next()?;
    u64::from_str_radix(operand.strip_prefix("0x")?, 16).ok()
}

#[test]
fn targets_are_those_that_llvm_prints() {
    if !has_llvm(400_000) {
        return;
    }
    let words: Vec<u32> = words(400_000, 99);
    let mut found = BTreeMap::<String, usize>::new();
    for (i, (word, text)) in words.iter().zip(disassemble(&words, AT)).enumerate() {
        let at = AT + 4 * i as u64;
        let (Ok(insn), Some(text)) = (decode(&word.to_le_bytes(), Va(at)), text) else { continue };
        let target = match insn.flow() {
            Flow::Jump(target) | Flow::Branch(target) | Flow::Call(target) => Some(target),
            _ => insn.pc_target(),
        };
        // SVE has an `adr` of its own, without the program counter.
        if insn.class() == Class::Sve {
            continue;
        }
        // What signs with its own address prints no operand.
        let Some(Va(target)) = target.filter(|_| insn.class() != Class::SignHere) else {
            let relative = ["adr", "adrp", "b", "bl", "cbz", "cbnz", "tbz", "tbnz"];
            assert!(!relative.contains(&text.split(' ').next().unwrap_or_default()), "{word:08x} {text}");
            continue;
        };
        assert_eq!(address(&text), Some(target), "{word:08x} {text} at {at:#x}");
        *found.entry(format!("{:?}", insn.class())).or_default() += 1;
    }
    let classes: Vec<&str> = found.keys().map(String::as_str).collect();
    assert!(found.values().all(|count| *count > 2), "{found:?}");
    for class in ["Adr", "Adrp", "Branch", "BranchCondition", "BranchLink", "CompareZero", "LoadLiteral", "TestBit"] {
        assert!(classes.contains(&class), "{class} is missing: {found:?}");
    }
}

/// A general-purpose register of an operand, by its number.
fn register(operand: &str) -> Option<u8> {
    match operand {
        "sp" | "wsp" => Some(31),
        "lr" => Some(30),
        _ => operand.strip_prefix(['x', 'w'])?.parse().ok().filter(|number| *number < 31),
    }
}

/// Mnemonics whose first operand is read, if it is a general-purpose register.
fn reads_first(name: &str) -> bool {
    let starts = [
        "st", "cmp", "cmn", "tst", "ccm", "cb", "tb", "br", "blr", "ret", "msr", "sys", "prfm", "rprfm", "rmif",
        "setf", "ctermeq", "ctermne", "mova", "wfet", "wfit", "at", "dc", "ic", "tlbi", "cfp", "dvp", "cpp", "cosp",
        "brb", "gcs", "trcit", "tb",
    ];
    starts.iter().any(|start| name.starts_with(start)) && !name.starts_with("sttr0")
}

/// What the text of an instruction says about registers, and what the answers say.
#[test]
fn registers_are_those_that_llvm_prints() {
    if !has_llvm(400_000) {
        return;
    }
    let words = words(400_000, 7);
    let (mut compared, mut names) = (0, BTreeSet::new());
    let mut wrong = BTreeMap::<String, String>::new();
    // A few, since they are rare.
    let mut words = words;
    words.extend((0..512).map(|i| 0x0420_5000 | (i & 3) << 22 | (i >> 2 & 1) << 11 | (i >> 3) << 5 | 31));
    let mut lengths = 0;
    for (word, text) in words.iter().zip(disassemble(&words, 0)) {
        let (Some(insn), Some(text)) = (decoded(*word), text) else { continue };
        if insn.class() == Class::Sve {
            // All others are taken to write everything but the stack pointer.
            let writes = insn.usage().writes >> 31 & 1 == 1;
            let adds_length = text.starts_with("add") && text.contains("l sp, ");
            assert_eq!(writes, adds_length, "{word:08x} {text}");
            lengths += usize::from(adds_length);
        }
        if matches!(insn.class(), Class::Sve | Class::Sme | Class::System | Class::SystemResult) {
            continue;
        }
        let (name, operands) = text.split_once(' ').unwrap_or((&text, ""));
        let usage = insn.usage();
        // Each general-purpose register that the text has is used.
        let pieces = operands.split(|c: char| !c.is_ascii_alphanumeric());
        let mentioned = pieces.filter_map(register).fold(0, |all, number| all | 1_u32 << number);
        let used = usage.reads | usage.writes;
        let mut check = |holds: bool, what: &str| {
            if !holds {
                wrong.entry(format!("{name}: {what}")).or_insert_with(|| format!("{word:08x} {text}: {usage:x?}"));
            }
        };
        check(mentioned & !used == 0, "a register is not used");
        // Nothing else is, but for what the architecture says.
        let implied = match insn.class() {
            // x30, x17, x16, x15, the stack pointer.
            Class::Hint | Class::AuthenticateLink | Class::AuthenticateHere | Class::SignHere => 0xc003_8000,
            Class::ReturnAuthenticated | Class::ReturnHere | Class::Return => 0xc000_0000,
            Class::BranchLink | Class::BranchLinkRegister => 1 << 30,
            Class::SupervisorCall => u32::MAX,
            // The second register of a pair, seven of eight.
            Class::CompareSwapPair | Class::MoveToSystem | Class::MoveFromSystem => u32::MAX,
            Class::Load64Bytes | Class::Store64Bytes => u32::MAX,
            // Words that are no instruction in LLVM's eyes have other operands.
            Class::Vector => u32::MAX,
            _ => 0,
        };
        check(used & !mentioned & !implied == 0, "a register is used");
        // Writes of the base: `[x0]!` and `[x0], #8`. The index of an element is no base.
        let after = operands.rsplit_once("], ").is_some_and(|(_, rest)| rest.starts_with(['#', 'x']));
        let back = operands.contains("]!") && insn.memory_base().is_some() || after;
        let first = operands.split([',', ' ']).next().and_then(register);
        // A call writes x30, whatever its operand is.
        if let Some(first) = first.filter(|first| !(*first == 30 && name.starts_with("blr"))) {
            let writes = usage.writes >> first & 1 == 1;
            let also_base = back;
            // The first one is what is added.
            let adds = insn.class() == Class::Atomic;
            if !also_base && !adds {
                let status = ["stx", "stlx", "st64bv"].iter().any(|start| name.starts_with(start));
                check(writes == (!reads_first(name) || status), "the first register");
            }
            compared += 1;
            names.insert(name.to_owned());
        }
        if let Some(base) = insn.memory_base().filter(|_| back) {
            check(usage.writes >> base & 1 == 1, "the base");
        }
        check(usage.kills & (usage.reads | !usage.writes) == 0, "kills");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(lengths >= 100, "{lengths}");
    assert!(compared > 40_000 && names.len() > 250, "{compared} instructions of {} names", names.len());
}

#[test]
fn addresses_that_are_no_multiple_of_4_have_no_instructions() {
    let nop = 0xd503_201f_u32.to_le_bytes();
    assert!(decode(&nop, Va(AT)).is_ok() && decode(&nop[..3], Va(AT)).is_err());
    for at in [1, 2, 3] {
        assert!(decode(&nop, Va(AT + at)).is_err());
    }
}
