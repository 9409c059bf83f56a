//! qemu as the processor: runs one instruction or its copy from a given state, and tells the state
//! behind it.
//!
//! A small program reads states from its input. It puts each one into the frame of a signal and
//! returns from the signal there. The code runs until it gets to something undefined or to an
//! address without memory. That is the next signal, whose frame is written to the output.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sidestep_isa::Isa;

use crate::oracle::{Rng, Scratch, assemble, has, has_llvm};

/// Where the instruction is: in the middle of what is undefined, 1 MiB in both directions.
pub const FROM: u64 = 0x4010_0000;
/// Where its copy is.
pub const TO: u64 = 0x4400_0000;
/// Data behind the instruction.
pub const DATA: u64 = FROM + 0x100;
/// The stack. Stack pointers are in the middle.
pub const STACK: u64 = 0x5000_0000;

/// Bytes of code.
pub const CODE_LEN: usize = 192;
/// Bytes of the data.
pub const DATA_LEN: usize = 512;
/// Bytes of the stack.
pub const STACK_LEN: usize = 512;

const DRIVER: u64 = 0x6000_0000;
/// Bytes of the driver and its stack.
const DRIVER_LEN: u64 = 0x2_0000;
/// Bytes of what is undefined around the instruction.
const AROUND: u64 = 0x20_0000;
/// A word that is undefined as A32 and, in its first half, as T32. The second half branches to such
/// a first half, 24 bytes in front.
const UNDEFINED: u32 = 0xe7f1_def0;
/// Seconds until the emulator is given up: a copy that leads to itself would run forever.
const PATIENCE: u64 = 20;
/// r0 to r15 and `CPSR`.
pub const REGS: usize = 17;
/// The vector registers and `FPSCR`.
const VECTORS: usize = 32 * 8 + 4;

/// The stack pointer.
pub const SP: usize = 13;
/// The program counter.
pub const PC: usize = 15;
/// `CPSR`.
pub const CPSR: usize = 16;
/// N, Z, C and V in `CPSR`.
pub const NZCV: u32 = 15 << 28;
/// T32, in `CPSR`.
pub const THUMB: u32 = 1 << 5;

/// Registers and memory.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    pub regs: [u32; REGS],
    pub vectors: Vec<u8>,
    pub data: Vec<u8>,
    pub stack: Vec<u8>,
}

/// How a run has ended: the state, and the signal.
#[derive(Clone, PartialEq, Debug)]
pub struct End {
    pub state: State,
    pub signal: u32,
}

/// What is run: code at both places, and the state in front of it.
pub struct Run {
    pub isa: Isa,
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub state: State,
}

impl State {
    /// Anything, with the stack pointer in the stack, and these flags.
    pub fn random(rng: &mut Rng, isa: Isa, nzcv: u32) -> State {
        let mut bytes = |len: usize| -> Vec<u8> { (0..len).map(|_| rng.next() as u8).collect() };
        let (mut vectors, data, stack) = (bytes(VECTORS), bytes(DATA_LEN), bytes(STACK_LEN));
        // As at the start of a program: no exceptions of floating point.
        vectors[VECTORS - 4..].fill(0);
        let mut regs = [0; REGS];
        regs.iter_mut().for_each(|register| *register = rng.word());
        regs[SP] = (STACK + 192 + 8 * rng.below(16)) as u32;
        regs[PC] = FROM as u32;
        // User mode.
        regs[CPSR] = (nzcv & 15) << 28 | 0x10 | if isa == Isa::T32 { THUMB } else { 0 };
        State { regs, vectors, data, stack }
    }
}

/// What runs A32 code here, if anything does; otherwise so many cases are skipped.
fn emulator(cases: usize) -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["qemu-arm", "qemu-arm-static"];
    let found = names.into_iter().find(|name| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()));
    if found.is_none() {
        has(&names[..1], cases);
    }
    found
}

/// Runs everything, one after the other; none: the tools are missing.
pub fn run(runs: &[Run]) -> Option<Vec<End>> {
    let emulator = emulator(runs.len()).filter(|_| has_llvm(runs.len()))?;
    let dir = Scratch::new();
    let (program, input, output) = (dir.path("program"), dir.path("in"), dir.path("out"));
    std::fs::write(&program, elf()).expect("the program");
    make_executable(&program);
    std::fs::write(&input, runs.iter().flat_map(words).collect::<Vec<u8>>()).expect("the input");
    let mut child = Command::new(emulator)
        .args(["-cpu", "max"])
        .arg(&program)
        .stdin(Stdio::from(std::fs::File::open(&input).expect("the input")))
        .stdout(Stdio::from(std::fs::File::create(&output).expect("the output")))
        .spawn()
        .expect("qemu");
    let end_of_patience = Instant::now() + Duration::from_secs(PATIENCE);
    let status = loop {
        if let Some(status) = child.try_wait().expect("the state of qemu") {
            break status;
        }
        if Instant::now() > end_of_patience {
            child.kill().expect("an end");
            let done = std::fs::read(&output).expect("the output").len() / OUTPUT;
            panic!(
                "{emulator} does not come to an end: run {done} of {}: {:x?}",
                runs.len(),
                runs.get(done).map(|run| (&run.from, &run.to, run.state.regs))
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{emulator}: {status}");
    let output = std::fs::read(&output).expect("the output");
    let ends: Vec<End> = output.chunks(OUTPUT).map(end).collect();
    assert_eq!(ends.len(), runs.len(), "one end of each run");
    Some(ends)
}

fn make_executable(program: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o700)).expect("permissions");
}

/// Bytes that the program writes for one run.
const OUTPUT: usize = REGS * 4 + VECTORS + DATA_LEN + STACK_LEN + 4;

fn words(run: &Run) -> Vec<u8> {
    let code = |bytes: &[u8]| {
        let mut code = bytes.to_vec();
        assert!(code.len() < CODE_LEN - 8, "something undefined behind it");
        while code.len() < CODE_LEN {
            match run.isa {
                Isa::T32 => code.extend(0xde00_u16.to_le_bytes()),
                _ => code.extend(0xe7f0_00f0_u32.to_le_bytes()),
            }
        }
        code
    };
    let State { regs, vectors, data, stack } = &run.state;
    let regs = regs.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    [&regs, vectors, &code(&run.from), &code(&run.to), data, stack].into_iter().flatten().copied().collect()
}

fn end(bytes: &[u8]) -> End {
    assert_eq!(bytes.len(), OUTPUT, "a whole end");
    let mut rest = bytes;
    let mut take = |len: usize| {
        let (taken, others) = rest.split_at(len);
        rest = others;
        taken.to_vec()
    };
    let regs = take(REGS * 4);
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
    let mut numbers = [0; REGS];
    numbers.iter_mut().zip(regs.chunks(4)).for_each(|(number, bytes)| *number = word(bytes));
    let state = State { regs: numbers, vectors: take(VECTORS), data: take(DATA_LEN), stack: take(STACK_LEN) };
    End { state, signal: word(&take(4)) }
}

/// The program. `struct sigcontext` is 20 bytes into the `ucontext` (asm/sigcontext.h), with r0 at
/// 12; 232 bytes into it, behind two words, are the vector registers (asm/ucontext.h).
fn driver() -> Vec<u8> {
    let source = format!(
        "
        .arm
        .set REGS, {}
        .set VECTORS, {VECTORS}
    begin:
        adr r0, stack
        mov r1, #0
        mov r7, #186 @ sigaltstack
        svc #0
        mov r4, #3
    1:  add r4, r4, #1
        mov r0, r4
        adr r1, action
        adr r2, handler
        str r2, [r1]
        mov r2, #0
        mov r3, #8
        mov r7, #174 @ rt_sigaction
        svc #0
        cmp r4, #11
        bne 1b
        udf #0

    handler:
        adr r9, signal
        ldr r10, [r9]
        str r0, [r9]
        add r4, r2, #32
        add r5, r2, #240
        adr r6, output
        adr r8, input
        str r4, [r6]
        str r5, [r6, #8]
        str r4, [r8]
        str r5, [r8, #8]
        cmp r10, #0
        beq 2f
        mov r0, #1
        mov r1, r6
        mov r2, #5
        mov r7, #146 @ writev
        svc #0
    2:  mov r0, #0
        mov r1, r8
        mov r2, #6
        mov r7, #145 @ readv
        svc #0
        cmp r0, #0
        ble 3f
        movw r0, #{}
        movt r0, #{}
        add r1, r0, #{CODE_LEN}
        mov r2, #0
        movw r7, #2
        movt r7, #15 @ cacheflush
        svc #0
        movw r0, #{}
        movt r0, #{}
        add r1, r0, #{CODE_LEN}
        mov r2, #0
        movw r7, #2
        movt r7, #15 @ cacheflush
        svc #0
        mov r7, #173 @ rt_sigreturn
        svc #0
    3:  movne r0, #1
        mov r7, #248 @ exit_group
        svc #0

        .p2align 3
    stack:
        .word {:#x}, 0, 0x10000
    action:
        .word 0, 0x48000004, 0, 0, 0 @ SA_ONSTACK, SA_NODEFER, SA_SIGINFO
    signal:
        .word 0
    output:
        .word 0, REGS, 0, VECTORS, {DATA:#x}, {DATA_LEN}, {STACK:#x}, {STACK_LEN}
        .word {DRIVER:#x} + (signal - begin), 4
    input:
        .word 0, REGS, 0, VECTORS, {FROM:#x}, {CODE_LEN}, {TO:#x}, {CODE_LEN}
        .word {DATA:#x}, {DATA_LEN}, {STACK:#x}, {STACK_LEN}
        ",
        REGS * 4,
        FROM & 0xffff,
        FROM >> 16,
        TO & 0xffff,
        TO >> 16,
        DRIVER + 0x10000,
    );
    assemble(Isa::A32, &source, DRIVER)
}

/// A program without a linker: the driver, and memory that anything may be done with.
fn elf() -> Vec<u8> {
    let driver = driver();
    let around = 0x1000 + DRIVER_LEN;
    let segments = [
        (DRIVER, 0x1000, DRIVER_LEN),
        // The same bytes for all: each gets its own copy when it is written to.
        (FROM - AROUND / 2, around, AROUND),
        (TO, around, 0x1000),
        (STACK, around, 0x1000),
    ];
    let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
    half(&mut file, 2); // ET_EXEC
    half(&mut file, 40); // EM_ARM
    word(&mut file, 1);
    for value in [DRIVER as u32, 52, 0, 0x0500_0400] {
        word(&mut file, value);
    }
    for value in [52, 32, 1 + segments.len() as u16, 0, 0, 0] {
        half(&mut file, value);
    }
    for (va, at, len) in segments {
        for value in [1, at, va, va, len, len, 7, 0x1000] {
            word(&mut file, value as u32);
        }
    }
    // PT_GNU_STACK: what the emulator takes for a stack is no code.
    for value in [0x6474_e551, 0, 0, 0, 0, 0, 6, 16] {
        word(&mut file, value);
    }
    file.resize(0x1000, 0);
    file.extend(driver);
    file.resize(around as usize, 0);
    file.extend(UNDEFINED.to_le_bytes().repeat(AROUND as usize / 4));
    file
}
