//! LLVM as an independent assembler and disassembler, and random words.

use std::process::Command;

#[path = "../scratch/mod.rs"]
mod scratch;
pub use scratch::{Scratch, run};

/// The version of LLVM: the extensions that it knows are part of the tests.
const VERSION: &str = "19";

/// Says loudly what is not tested. That is a failure, unless `SIDESTEP_ALLOW_SKIP=1` allows it.
pub fn skip(what: &str) {
    let allowed = std::env::var_os("SIDESTEP_ALLOW_SKIP").is_some_and(|v| v == "1");
    assert!(allowed, "{what}: run `cargo xtask setup`, or set SIDESTEP_ALLOW_SKIP=1 to go on without");
    eprintln!("SKIPPED, NOT TESTED: {what}");
}

/// Whether all of some programs are there. If not, the test is skipped, loudly.
pub fn has(programs: &[&str], cases: usize) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing: Vec<&str> = programs
        .iter()
        .filter(|program| !std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
        .copied()
        .collect();
    if !missing.is_empty() {
        skip(&format!("{cases} cases of A64, for want of {}", missing.join(" and ")));
    }
    missing.is_empty()
}

fn tool(name: &str) -> String {
    format!("{name}-{VERSION}")
}

/// Whether LLVM is there; otherwise so many cases are skipped.
pub fn has_llvm(cases: usize) -> bool {
    let tools = ["llvm-mc", "llvm-objcopy", "llvm-objdump"].map(tool);
    has(&tools.each_ref().map(String::as_str), cases)
}

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

/// Random numbers (xorshift64*).
pub struct Rng(pub u64);

impl Rng {
    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A word.
    pub fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// Less than `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }
}

/// The number that an environment variable says, or another one.
pub fn count(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}
