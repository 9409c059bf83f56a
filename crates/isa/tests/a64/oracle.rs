//! LLVM as an independent assembler and disassembler.

use std::process::Command;

#[path = "../llvm/mod.rs"]
mod llvm;
#[path = "../random/mod.rs"]
mod random;
#[path = "../scratch/mod.rs"]
mod scratch;
use llvm::tool;
pub use llvm::{count, has, has_llvm, skip};
pub use random::Rng;
pub use scratch::{Scratch, run};

/// The text of each of some words that lie at `at`; none: the disassembler knows no such
/// instruction. Operands relative to the program counter are addresses.
pub fn disassemble(words: &[u32], at: u64) -> Vec<Option<String>> {
    let dir = Scratch::new();
    let (raw, object) = (dir.path("raw"), dir.path("o"));
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&raw, bytes).expect("a file");
    run(Command::new(tool("llvm-objcopy"))
        .args(["-I", "binary", "-O", "elf64-littleaarch64", "--rename-section", ".data=.text,alloc,readonly,code"])
        .args([&raw, &object]));
    let listing = run(Command::new(tool("llvm-objdump"))
        .args(["-d", "--no-show-raw-insn", "--no-leading-addr", "--no-print-imm-hex", "--mattr=+all", "-z"])
        .arg(format!("--adjust-vma={at:#x}"))
        .arg(&object));
    let lines = listing.lines().filter_map(|line| line.strip_prefix(['\t', ' ']));
    let found: Vec<Option<String>> = lines
        .map(|line| {
            let text = line.split_whitespace().collect::<Vec<_>>().join(" ");
            (text != "<unknown>").then_some(text)
        })
        .collect();
    assert_eq!(found.len(), words.len(), "one line for each word");
    found
}

/// The words of assembly that lies at `at`.
pub fn assemble(source: &str, at: u64) -> Vec<u32> {
    let dir = Scratch::new();
    let (text, object, raw) = (dir.path("s"), dir.path("o"), dir.path("raw"));
    // Targets are numbers: they are meant relative to the start of the section.
    std::fs::write(&text, format!(".set start, {at:#x}\n{source}\n")).expect("a file");
    run(Command::new(tool("llvm-mc"))
        .args(["-triple=aarch64-linux-gnu", "-mattr=+all", "-filetype=obj", "-o"])
        .args([&object, &text]));
    run(Command::new(tool("llvm-objcopy")).args(["-O", "binary", "--only-section=.text"]).args([&object, &raw]));
    let bytes = std::fs::read(&raw).expect("the code");
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes"))).collect()
}
