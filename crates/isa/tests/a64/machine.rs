//! qemu as the processor: runs one instruction or its copy from a given state, and tells the state
//! behind it.
//!
//! A small program reads states from its input. It puts each one into the frame of a signal and
//! returns from the signal there. The code runs until it gets to words of zeros or to an address
//! without memory. That is the next signal, whose frame is written to the output.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::oracle::{Rng, Scratch, assemble, has};

/// Where the instruction is: in the middle of zeros that reach 1 MiB in both directions.
pub const FROM: u64 = 0x4010_0000;
/// Where its copy is.
pub const TO: u64 = 0x4400_0000;
/// Data behind the instruction.
pub const DATA: u64 = FROM + 0x400;
/// Data in front of it.
pub const FAR: u64 = FROM - 0xf_0000;
/// The stack. Stack pointers are in the middle.
pub const STACK: u64 = 0x5000_0000;

/// Bytes of code.
pub const CODE_LEN: usize = 64;
/// Bytes of each piece of data.
pub const DATA_LEN: usize = 256;
/// Bytes of the stack.
pub const STACK_LEN: usize = 1024;

const DRIVER: u64 = 0x6000_0000;
/// Bytes of the driver and its stack.
const DRIVER_LEN: u64 = 0x2_0000;
/// Bytes of the zeros around the instruction.
const ZEROS: u64 = 0x20_0000;
/// Seconds until the emulator is given up: a copy that leads to itself would run forever.
const PATIENCE: u64 = 300;
/// x0 to x30, the stack pointer, the program counter, `PSTATE`.
const REGS: usize = 34;
/// `FPSR`, `FPCR` and the vector registers.
const VECTORS: usize = 8 + 32 * 16;

/// Where the program counter is among the registers.
pub const PC: usize = 32;
/// The stack pointer.
pub const SP: usize = 31;
/// `PSTATE`.
pub const PSTATE: usize = 33;

/// N, Z, C and V in `PSTATE`.
pub const NZCV: u64 = 15 << 28;
/// What kind of branch was the last instruction, in `PSTATE`.
pub const BTYPE: u64 = 3 << 10;

/// Registers and memory.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    pub regs: [u64; REGS],
    pub vectors: Vec<u8>,
    pub data: Vec<u8>,
    pub far: Vec<u8>,
    pub stack: Vec<u8>,
}

/// How a run has ended: the state, and the signal.
#[derive(Clone, PartialEq, Debug)]
pub struct End {
    pub state: State,
    pub signal: u64,
}

/// What is run: code at both places, and the state in front of it.
pub struct Run {
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub state: State,
}

impl State {
    /// Anything, with the stack pointer in the stack, and these flags.
    pub fn random(rng: &mut Rng, nzcv: u64) -> State {
        let mut bytes = |len: usize| -> Vec<u8> { (0..len).map(|_| rng.next() as u8).collect() };
        let (mut vectors, data, far, stack) = (bytes(VECTORS), bytes(DATA_LEN), bytes(DATA_LEN), bytes(STACK_LEN));
        // As at the start of a program: no exceptions of floating point.
        vectors[..8].fill(0);
        let mut regs = [0; REGS];
        regs.iter_mut().for_each(|register| *register = rng.next());
        regs[SP] = STACK + 256 + 16 * rng.below(32);
        regs[PC] = FROM;
        regs[PSTATE] = (nzcv & 15) << 28;
        State { regs, vectors, data, far, stack }
    }

    /// The memory at an address, if it is some.
    pub fn memory(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        let pieces = [(DATA, &mut self.data), (FAR, &mut self.far), (STACK, &mut self.stack)];
        pieces.into_iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(at.checked_sub(start)?).ok()?;
            bytes.get_mut(offset..offset.checked_add(len)?)
        })
    }
}

/// What runs A64 code here, if anything does; otherwise so many cases are skipped.
fn emulator(cases: usize) -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["qemu-aarch64", "qemu-aarch64-static"];
    let found = names.into_iter().find(|name| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()));
    if found.is_none() {
        has(&names[..1], cases);
    }
    found
}

/// Runs everything, one after the other; none: the tools are missing.
pub fn run(runs: &[Run]) -> Option<Vec<End>> {
    let emulator = emulator(runs.len()).filter(|_| crate::oracle::has_llvm(runs.len()))?;
    let dir = Scratch::new();
    let (program, input, output) = (dir.path("program"), dir.path("in"), dir.path("out"));
    std::fs::write(&program, elf()).expect("the program");
    make_executable(&program);
    std::fs::write(&input, runs.iter().flat_map(words).collect::<Vec<u8>>()).expect("the input");
    let file = |path| std::fs::File::open(path).expect("the input");
    let mut child = Command::new(emulator)
        .args(["-cpu", "max"])
        .arg(&program)
        .stdin(Stdio::from(file(&input)))
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
            panic!("{emulator} does not come to an end");
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
const OUTPUT: usize = REGS * 8 + VECTORS + 2 * DATA_LEN + STACK_LEN + 8;

fn words(run: &Run) -> Vec<u8> {
    let code = |bytes: &[u8]| {
        let mut code = bytes.to_vec();
        assert!(code.len() < CODE_LEN, "zeros behind it");
        code.resize(CODE_LEN, 0);
        code
    };
    let State { regs, vectors, data, far, stack } = &run.state;
    let regs = regs.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    [&regs, vectors, &code(&run.from), &code(&run.to), data, far, stack].into_iter().flatten().copied().collect()
}

fn end(bytes: &[u8]) -> End {
    assert_eq!(bytes.len(), OUTPUT, "a whole end");
    let mut rest = bytes;
    let mut take = |len: usize| {
        let (taken, others) = rest.split_at(len);
        rest = others;
        taken.to_vec()
    };
    let regs = take(REGS * 8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let mut numbers = [0; REGS];
    numbers.iter_mut().zip(regs.chunks(8)).for_each(|(number, bytes)| *number = word(bytes));
    let state = State {
        regs: numbers,
        vectors: take(VECTORS),
        data: take(DATA_LEN),
        far: take(DATA_LEN),
        stack: take(STACK_LEN),
    };
    End { state, signal: word(&take(8)) }
}

/// The program. `struct sigcontext` is 176 bytes into the `ucontext` (asm/sigcontext.h): the fault
/// address, the registers, and 288 bytes into it `struct fpsimd_context`.
fn driver() -> Vec<u8> {
    let data = 2 * DATA_LEN + STACK_LEN;
    assert!(data < 4096);
    let source = format!(
        "
        .set REGS, {}
        .set VECTORS, {VECTORS}
        adr x0, stack
        mov x1, #0
        mov x8, #132 // sigaltstack
        svc #0
        mov x19, #1
    1:  add x19, x19, #1
        mov x0, x19
        adr x1, action
        adr x2, handler
        str x2, [x1]
        mov x2, #0
        mov x3, #8
        mov x8, #134 // rt_sigaction
        svc #0
        cmp x19, #11
        b.ne 1b
        adr x20, signal
        brk #0

    handler:
        adr x9, signal
        ldr x10, [x9]
        str x0, [x9]
        mov x21, x2
        add x11, x2, #184
        add x12, x2, #472
        adr x13, output
        adr x14, input
        str x11, [x13]
        str x12, [x13, #16]
        str x11, [x14]
        str x12, [x14, #16]
        cbz x10, 2f
        mov x0, #1
        mov x1, x13
        mov x2, #6
        mov x8, #66 // writev
        svc #0
    2:  mov x0, #0
        adr x1, input
        mov x2, #7
        mov x8, #65 // readv
        svc #0
        cmp x0, #0
        b.le 3f
        ldr x0, ={FROM:#x}
        ldr x1, ={TO:#x}
        dc cvau, x0
        dc cvau, x1
        dsb ish
        ic ivau, x0
        ic ivau, x1
        dsb ish
        isb
        mov x8, #139 // rt_sigreturn
        svc #0
    3:  cset x0, ne
        mov x8, #94 // exit_group
        svc #0

        .p2align 4
    stack:
        .quad {:#x}, 0, 0x10000
    action:
        .quad 0, 0x48000004, 0, 0 // SA_ONSTACK, SA_NODEFER, SA_SIGINFO
    signal:
        .quad 0
    output:
        .quad 0, REGS, 0, VECTORS, {DATA:#x}, {DATA_LEN}, {FAR:#x}, {DATA_LEN}, {STACK:#x}, {STACK_LEN}
        .quad {DRIVER:#x} + (signal - begin), 8
    input:
        .quad 0, REGS, 0, VECTORS, {FROM:#x}, {CODE_LEN}, {TO:#x}, {CODE_LEN}
        .quad {DATA:#x}, {DATA_LEN}, {FAR:#x}, {DATA_LEN}, {STACK:#x}, {STACK_LEN}
        ",
        REGS * 8,
        DRIVER + 0x10000,
    );
    assemble(&format!("begin:\n{source}"), DRIVER).iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A program without a linker: the driver, and memory that anything may be done with.
fn elf() -> Vec<u8> {
    let driver = driver();
    let zeros = 0x1000 + DRIVER_LEN;
    let segments = [
        (DRIVER, 0x1000, DRIVER_LEN),
        // The same zeros for all: each gets its own copy when it is written to.
        (FROM - 0x10_0000, zeros, ZEROS),
        (TO, zeros, 0x1000),
        (STACK, zeros, 0x1000),
    ];
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
    let quad = |file: &mut Vec<u8>, value: u64| file.extend(value.to_le_bytes());
    half(&mut file, 2); // ET_EXEC
    half(&mut file, 183); // EM_AARCH64
    word(&mut file, 1);
    quad(&mut file, DRIVER);
    quad(&mut file, 64);
    quad(&mut file, 0);
    word(&mut file, 0);
    for value in [64, 56, segments.len() as u16, 0, 0, 0] {
        half(&mut file, value);
    }
    for (va, at, len) in segments {
        word(&mut file, 1); // PT_LOAD
        word(&mut file, 7);
        for value in [at, va, va, len, len, 0x1000] {
            quad(&mut file, value);
        }
    }
    file.resize(0x1000, 0);
    file.extend(driver);
    file.resize((zeros + ZEROS) as usize, 0);
    file
}
