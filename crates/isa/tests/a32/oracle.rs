//! LLVM as an independent assembler and disassembler.

use std::collections::BTreeMap;
use std::process::Command;

use sidestep_isa::Isa;

#[path = "../llvm/mod.rs"]
mod llvm;
#[path = "../random/mod.rs"]
mod random;
#[path = "../scratch/mod.rs"]
mod scratch;
use llvm::tool;
pub use llvm::{count, has, has_llvm};
pub use random::Rng;
pub use scratch::{Scratch, run};

/// What processors of ARMv8 have.
const FEATURES: &str = "+neon,+crypto,+crc,+fp-armv8,+hwdiv,+hwdiv-arm,+mp,+virtualization,+trustzone";

fn triple(isa: Isa) -> &'static str {
    if isa == Isa::T32 { "thumbv8a-linux-gnueabihf" } else { "armv8a-linux-gnueabihf" }
}

/// The lines of the disassembler for some bytes at `at`: text by address.
pub fn listing(isa: Isa, bytes: &[u8], at: u64) -> BTreeMap<u64, String> {
    let dir = Scratch::new();
    let (raw, object) = (dir.path("raw"), dir.path("o"));
    std::fs::write(&raw, bytes).expect("a file");
    run(Command::new(tool("llvm-objcopy"))
        .args(["-I", "binary", "-O", "elf32-littlearm", "--rename-section", ".data=.text,alloc,readonly,code"])
        .args([&raw, &object]));
    let listing = run(Command::new(tool("llvm-objdump"))
        .args(["-d", "--no-show-raw-insn", "--no-print-imm-hex", "-z"])
        .arg(format!("--triple={}", triple(isa)))
        .arg(format!("--mattr={FEATURES}"))
        .arg(format!("--adjust-vma={at:#x}"))
        .arg(&object));
    let line = |line: &str| {
        let (address, text) = line.trim_start().split_once(':')?;
        let address = u64::from_str_radix(address, 16).ok()?;
        Some((address, text.split_whitespace().collect::<Vec<_>>().join(" ")))
    };
    listing.lines().filter_map(line).collect()
}

/// The text of each of some words of A32, or of each of some pairs of halfwords of T32, the first
/// one above; none: the disassembler knows no such instruction. They lie at `at`, [`STRIDE`] bytes
/// apart.
pub fn disassemble(isa: Isa, words: &[u32], at: u64) -> Vec<Option<String>> {
    let mut bytes = Vec::new();
    for word in words {
        bytes.extend(encode(isa, *word));
        // Nops, so that a pair that is none does not reach into the next one.
        bytes.extend(if isa == Isa::T32 { [0, 0xbf, 0, 0xbf] } else { [0, 0xf0, 0x20, 0xe3] });
    }
    let found = listing(isa, &bytes, at);
    let text = |i: usize| found.get(&(at + STRIDE * i as u64)).filter(|text| !text.contains("<unknown>"));
    (0..words.len()).map(|i| text(i).cloned()).collect()
}

/// Bytes from one word to the next.
pub const STRIDE: u64 = 8;

/// The bytes of a word.
pub fn encode(isa: Isa, word: u32) -> [u8; 4] {
    if isa == Isa::T32 { word.rotate_left(16) } else { word }.to_le_bytes()
}

/// The bytes of assembly that lies at `at`.
pub fn assemble(isa: Isa, source: &str, at: u64) -> Vec<u8> {
    let dir = Scratch::new();
    let (text, object, raw) = (dir.path("s"), dir.path("o"), dir.path("raw"));
    std::fs::write(&text, format!(".syntax unified\n.set start, {at:#x}\n{source}\n")).expect("a file");
    run(Command::new(tool("llvm-mc"))
        .args(["-filetype=obj", "-o"])
        .args([&object, &text])
        .arg(format!("-triple={}", triple(isa)))
        .arg(format!("-mattr={FEATURES}")));
    run(Command::new(tool("llvm-objcopy")).args(["-O", "binary", "--only-section=.text"]).args([&object, &raw]));
    std::fs::read(&raw).expect("the code")
}
