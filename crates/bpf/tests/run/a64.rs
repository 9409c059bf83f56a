//! Runs code for arm64 under qemu: many programs in one run.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use sidestep_bpf::native::{Code, CompileError, Env, a64};
use sidestep_bpf::verify::Facts;
use sidestep_bpf::{Imm64, Program};

use super::{Buffer, CELLS, interpret, linked, listing};

/// Where the buffer is.
const BUFFER: u64 = 0x5_0000_0000;
const CODE: u64 = 0x5_1000_0000;
/// Bytes of code at most.
const CODE_LEN: usize = 16 << 20;

/// What a program has left.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub result: u64,
    /// The time that it left.
    pub stamp: u64,
    pub buffer: Buffer,
}

/// Whether compiler and emulator are there. If not, that is a failure, unless
/// `SIDESTEP_ALLOW_SKIP=1` allows it.
pub fn has_tools() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_missing = |tool: &&str| !std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    let missing: Vec<_> = ["aarch64-linux-gnu-gcc", "qemu-aarch64"].into_iter().filter(is_missing).collect();
    if !missing.is_empty() {
        let allowed = std::env::var_os("SIDESTEP_ALLOW_SKIP").is_some_and(|v| v == "1");
        assert!(allowed, "no {missing:?}: run `cargo xtask setup`, or set SIDESTEP_ALLOW_SKIP=1 to go on without");
        eprintln!("SKIPPED, NOT TESTED: compiled programs of arm64, for want of {missing:?}");
    }
    missing.is_empty()
}

/// A directory that is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("sidestep-bpf-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The program with its references to the buffer linked to that of [`run`].
pub fn placed(program: &Program) -> Program {
    let mut program = program.clone();
    program
        .link(|imm| match imm {
            Imm64::MapFdValue { map: 0, offset } => Some(Imm64::Value(BUFFER + u64::from(offset))),
            _ => None,
        })
        .unwrap();
    program
}

/// Compiles a program of which nothing is known.
pub fn function(program: &Program) -> Result<Code, CompileError> {
    a64::compile(program, &Facts::default(), &Env { cells: CELLS, ..Env::default() })
}

/// Runs functions, each with the buffer as context and as the thread's memory. Registers that calls
/// keep must be kept.
pub fn run(cases: &[(Code, Buffer)]) -> Vec<Outcome> {
    let scratch = Scratch::new();
    let (source, program) = (scratch.0.join("target.c"), scratch.0.join("target"));
    std::fs::write(&source, include_str!("target.c")).expect("a source file");
    let defines = [("BUFFER", BUFFER), ("CODE", CODE), ("CODE_LEN", CODE_LEN as u64)];
    let status = Command::new("aarch64-linux-gnu-gcc")
        .args(["-O1", "-static", "-Wl,-z,noexecstack"])
        .args(defines.map(|(name, value)| format!("-D{name}={value:#x}ul")))
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status()
        .expect("the compiler runs");
    assert!(status.success());
    let mut input = Vec::new();
    for (code, buffer) in cases {
        assert!(code.bytes.len() <= CODE_LEN);
        input.extend((code.bytes.len() as u64).to_le_bytes());
        input.extend(&code.bytes);
        input.extend(buffer.iter().flat_map(|word| word.to_le_bytes()));
    }
    let mut child = Command::new("qemu-aarch64")
        .arg(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the emulator runs");
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let mut output = Vec::new();
    stdout.read_to_end(&mut output).expect("what it writes");
    let _ = writer.join();
    let status = child.wait().expect("an end");
    let words: Vec<u64> = output.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert!(status.success() && words.len() == 35 * cases.len(), "{status} after {} programs", words.len() / 35);
    let outcome = |words: &[u64]| {
        assert_eq!(words[2], 0, "a register that calls keep");
        Outcome { result: words[0], stamp: words[1], buffer: words[3..].try_into().unwrap() }
    };
    words.chunks_exact(35).map(outcome).collect()
}

/// Interprets programs and runs them; all must give the same results and buffers.
pub fn agree(cases: &[(Program, Buffer)]) -> Vec<(u64, Buffer)> {
    let compiled: Vec<(Code, Buffer)> =
        cases.iter().map(|(program, buffer)| (function(&placed(program)).unwrap(), *buffer)).collect();
    let outcomes = run(&compiled);
    for ((program, buffer), outcome) in cases.iter().zip(&outcomes) {
        let mut here = *buffer;
        let interpreted = interpret(&linked(program, &mut here), &mut here, 1 << 20);
        assert_eq!(interpreted, Ok(outcome.result), "interpreted, native:\n{}", listing(program));
        assert_eq!(here, outcome.buffer, "interpreted, native:\n{}", listing(program));
    }
    outcomes.into_iter().map(|outcome| (outcome.result, outcome.buffer)).collect()
}
