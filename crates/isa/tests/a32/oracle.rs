//! LLVM as an independent assembler and disassembler, and random words.

use std::collections::BTreeMap;
use std::process::Command;

use sidestep_isa::Isa;

#[path = "../scratch/mod.rs"]
mod scratch;
pub use scratch::{Scratch, run};

/// The version of LLVM: the extensions that it knows are part of the tests.
const VERSION: &str = "19";
/// What processors of ARMv8 have.
const FEATURES: &str = "+neon,+crypto,+crc,+fp-armv8,+hwdiv,+hwdiv-arm,+mp,+virtualization,+trustzone";

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
        skip(&format!("{cases} cases of A32 and T32, for want of {}", missing.join(" and ")));
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
