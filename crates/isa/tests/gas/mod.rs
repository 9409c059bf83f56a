//! The GNU assembler, linker and disassembler as oracles.

use std::process::Command;

use object::{Object, ObjectSection};
use sidestep_isa::Isa;

#[path = "../scratch/mod.rs"]
mod scratch;
pub use scratch::{Scratch, run};

/// The bytes of assembly that is linked to run at `at`. The symbol `t` is 0x402000, `d` 0x20001000.
#[allow(dead_code)]
pub fn assemble(source: &str, at: u64) -> Vec<u8> {
    assemble_for(Isa::X64, source, at)
}

/// As [`assemble`].
#[allow(dead_code)]
pub fn assemble_for(isa: Isa, source: &str, at: u64) -> Vec<u8> {
    let (bits, emulation) = match isa {
        Isa::X86 => ("--32", "elf_i386"),
        _ => ("--64", "elf_x86_64"),
    };
    let dir = Scratch::new();
    let (text, unlinked, linked) = (dir.path("a.s"), dir.path("a.o"), dir.path("a"));
    std::fs::write(&text, format!(".globl _start\n_start:\n{source}\n")).expect("a source file");
    run(Command::new("as").arg(bits).arg(&text).arg("-o").arg(&unlinked));
    run(Command::new("ld")
        .args(["-m", emulation, "-nostdlib"])
        .args(["--defsym=t=0x402000", "--defsym=d=0x20001000", &format!("-Ttext={at:#x}")])
        .arg(&unlinked)
        .arg("-o")
        .arg(&linked));
    let data = std::fs::read(&linked).expect("the output");
    let file = object::File::parse(&*data).expect("an ELF file");
    file.section_by_name(".text").and_then(|s| s.data().ok()).unwrap_or_default().to_vec()
}

/// Disassembles raw bytes at an address: one line per instruction, without addresses and bytes.
#[allow(dead_code)]
pub fn disassemble(bytes: &[u8], at: u64) -> Vec<String> {
    let dir = Scratch::new();
    let raw = dir.path("raw");
    std::fs::write(&raw, bytes).expect("a file");
    let text = run(Command::new("objdump")
        .args(["-D", "-b", "binary", "-m", "i386:x86-64", "--no-show-raw-insn"])
        .arg(format!("--adjust-vma={at:#x}"))
        .arg(&raw));
    let insns = text.lines().filter_map(|line| line.split_once(":\t"));
    insns.map(|(_, insn)| insn.trim().to_owned()).collect()
}

/// The contents of `.text` of a program or library, and its address.
#[allow(dead_code)]
pub fn text_of(path: &str) -> (u64, Vec<u8>) {
    let data = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let file = object::File::parse(&*data).expect("an ELF file");
    let text = file.section_by_name(".text").expect(".text");
    (text.address(), text.data().expect("its contents").to_vec())
}
