//! Runs programs in the interpreter, natively, and in the kernel, on the same buffer.
//!
//! The only test file with unsafe code: pages of machine code, and real addresses.
#![allow(unsafe_code, dead_code)]

pub mod a64;
pub mod kernel;

use std::ptr;

use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};
use sidestep_bpf::interp::{Machine, Stop, Vm};
use sidestep_bpf::native::x86_64::{self, Code, CompileError, Env, Shape};
use sidestep_bpf::verify::Facts;
use sidestep_bpf::{AtomicOp, Imm64, Insn, Program, Size, Width, alu};

/// What programs read and write: `map_fd_value(0, offset) ll`.
pub type Buffer = [u64; 32];

/// The program with its references to the buffer linked to this one.
pub fn linked(program: &Program, buffer: &mut Buffer) -> Program {
    let address = buffer.as_mut_ptr() as u64;
    let mut program = program.clone();
    program
        .link(|imm| match imm {
            Imm64::MapFdValue { map: 0, offset } => Some(Imm64::Value(address + u64::from(offset))),
            _ => None,
        })
        .unwrap();
    program
}

/// Depends on all arguments and on their order.
pub fn mix(args: [u64; 5]) -> u64 {
    args.iter().zip(1..).fold(7, |sum: u64, (&arg, n)| sum.rotate_left(9) ^ arg.wrapping_mul(2 * n + 1))
}

/// Number of [`mix`], as all of these one that the kernel has for something else.
pub const MIX: u32 = 11;

/// Number of the helper that calls the function `r2` with 0, 1, … and `r3`, `r1` times; the sum of
/// what it gives.
pub const LOOP: u32 = 9;

/// Memory of the interpreter: the buffer and its stack, by their real addresses.
struct Memory {
    regions: Vec<(u64, u64)>,
}

impl Memory {
    fn check(&self, address: u64, len: usize) -> Result<*mut u8, Stop> {
        let end = address.checked_add(len as u64).ok_or(Stop::Fault(address))?;
        let inside = self.regions.iter().any(|&(start, region_end)| start <= address && end <= region_end);
        if inside { Ok(address as *mut u8) } else { Err(Stop::Fault(address)) }
    }
}

impl Machine for Memory {
    fn load(&mut self, address: u64, size: Size) -> Result<u64, Stop> {
        let at = self.check(address, size.bytes())?;
        let mut bytes = [0; 8];
        // SAFETY: within a region, which outlives this.
        unsafe { ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), size.bytes()) };
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&mut self, address: u64, size: Size, value: u64) -> Result<(), Stop> {
        assert_eq!(alu::truncate(size, value), value, "the interpreter promises that");
        let at = self.check(address, size.bytes())?;
        // SAFETY: within a region, which outlives this.
        unsafe { ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), at, size.bytes()) };
        Ok(())
    }

    fn atomic(&mut self, address: u64, width: Width, op: AtomicOp, operand: u64, r0: u64) -> Result<u64, Stop> {
        let old = self.load(address, width.size())?;
        self.store(address, width.size(), alu::truncate(width.size(), alu::atomic(width, op, old, operand, r0)))?;
        Ok(old)
    }

    fn thread(&mut self, offset: u32) -> Result<u64, Stop> {
        Ok(self.regions[0].0 + u64::from(offset))
    }

    fn call(&mut self, vm: &mut Vm<'_>, helper: u32, args: [u64; 5]) -> Result<u64, Stop> {
        match helper {
            MIX => Ok(mix(args)),
            256 => Ok(sidestep_wire::Histogram::bucket(args[0]) as u64),
            LOOP => (0..args[0]).try_fold(0u64, |sum, i| {
                let result = vm.call(self, args[1], [i, args[2], 0, 0, 0])?;
                Ok(sum.wrapping_add(result))
            }),
            other => Err(Stop::Helper(other)),
        }
    }
}

/// Compiles a program of which nothing is known as a function.
pub fn function(program: &Program) -> Result<Code, CompileError> {
    x86_64::compile(program, &Facts::default(), &Env { cells: CELLS, ..Env::default() }, Shape::Function)
}

/// Interprets a linked program. The context is the buffer, and so is the thread's memory.
pub fn interpret(program: &Program, buffer: &mut Buffer, budget: u64) -> Result<u64, (usize, Stop)> {
    let start = buffer.as_mut_ptr() as u64;
    interpret_at(program, start, buffer, budget)
}

/// The same with another context, of 22 words.
pub fn interpret_at(program: &Program, context: u64, buffer: &mut Buffer, budget: u64) -> Result<u64, (usize, Stop)> {
    let mut stack = vec![0u64; 2 * 512];
    let (start, stack_start) = (buffer.as_mut_ptr() as u64, stack.as_mut_ptr() as u64);
    let (len, stack_len) = (size_of::<Buffer>() as u64, 8 * stack.len() as u64);
    let regions = vec![(start, start + len), (stack_start, stack_start + stack_len), (context, context + 22 * 8)];
    let mut memory = Memory { regions };
    let mut vm = Vm::new(&program.slots, stack_start + stack_len, stack_len, budget);
    vm.call(&mut memory, 0, [context, 0, 0, 0, 0]).map_err(|stop| (vm.pc(), stop))
}

extern "C" fn native_mix(a: u64, b: u64, c: u64, d: u64, e: u64, _table: *const Table) -> u64 {
    mix([a, b, c, d, e])
}

type Function = extern "C" fn(u64, u64, u64, u64, u64, *const Table) -> u64;

extern "C" fn native_loop(times: u64, function: u64, context: u64, _: u64, _: u64, table: *const Table) -> u64 {
    // SAFETY: the address of a function of the program, in code that is mapped.
    let function: Function = unsafe { std::mem::transmute(function as usize) };
    (0..times).fold(0, |sum, i| sum.wrapping_add(function(i, context, 0, 0, 0, table)))
}

// The `rsp` of whoever calls it, right before the call.
std::arch::global_asm!("sidestep_test_rsp: lea 8(%rsp), %rax", "ret", options(att_syntax));

unsafe extern "C" {
    #[link_name = "sidestep_test_rsp"]
    safe fn native_rsp(_: u64, _: u64, _: u64, _: u64, _: u64, table: *const Table) -> u64;
}

/// Helpers by number.
#[repr(C)]
pub struct Table {
    none: [usize; 9],
    repeat: Function,
    /// In native code only.
    rsp: Function,
    mix: Function,
    /// Address of the thread's memory.
    cells: u64,
    /// Where times are left.
    stamp: u64,
}

/// Offset of the address of the thread's memory in the table.
pub const CELLS: i32 = 96;

/// Offset of the word where times are left.
pub const STAMP: i32 = 104;
pub static TABLE: Table =
    Table { none: [0; 9], repeat: native_loop, rsp: native_rsp, mix: native_mix, cells: 0, stamp: 0 };

/// Executable pages.
pub struct Pages(*mut libc::c_void, usize);

impl Pages {
    fn new(code: &[u8]) -> Pages {
        let len = code.len().next_multiple_of(4096);
        // SAFETY: a new mapping of its own; written while it is writable, and never both.
        unsafe {
            let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(ptr::null_mut(), len, rw, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            ptr::copy_nonoverlapping(code.as_ptr(), at.cast(), code.len());
            assert_eq!(libc::mprotect(at, len, libc::PROT_READ | libc::PROT_EXEC), 0);
            Pages(at, len)
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing runs there any more.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// Native code of a linked program, as a function.
pub struct Native(Pages);

impl Native {
    pub fn new(code: &Code) -> Native {
        Native(Pages::new(&code.bytes))
    }

    /// The context is the buffer, and so is the thread's memory. Gives the result, and the time
    /// that the code left.
    pub fn run(&self, buffer: &mut Buffer) -> (u64, u64) {
        let address = buffer.as_mut_ptr() as u64;
        self.run_at(address, address)
    }

    /// The same with this memory of the thread.
    pub fn run_on(&self, context: &mut Buffer, cells: &mut [u64]) -> u64 {
        self.run_at(context.as_mut_ptr() as u64, cells.as_mut_ptr() as u64).0
    }

    fn run_at(&self, context: u64, cells: u64) -> (u64, u64) {
        let mut table = Table { cells, ..TABLE };
        // SAFETY: the code of a function with this signature.
        let function: Function = unsafe { std::mem::transmute(self.0.0) };
        let result = function(context, 0, 0, 0, 0, &raw mut table);
        (result, table.stamp)
    }
}

/// Runs native code of a linked program as a function. The context is the buffer.
pub fn call(code: &Code, buffer: &mut Buffer) -> u64 {
    Native::new(code).run(buffer).0
}

/// Loads all machine registers but `rsp` from an array, runs code that falls through, and stores
/// them.
pub fn run_inline(code: &[u8], registers: &mut [u64; 16]) {
    use sidestep_isa::Va;
    use sidestep_isa::x86::emit::{Asm, Reg};
    let all = [
        Reg::Rax,
        Reg::Rcx,
        Reg::Rdx,
        Reg::Rbx,
        Reg::Rbp,
        Reg::Rsi,
        Reg::R8,
        Reg::R9,
        Reg::R10,
        Reg::R11,
        Reg::R12,
        Reg::R13,
        Reg::R14,
        Reg::R15,
    ];
    let saved = [Reg::Rbx, Reg::Rbp, Reg::R12, Reg::R13, Reg::R14, Reg::R15];
    let mut asm = Asm::new(Va(0));
    for reg in saved {
        asm.push(reg);
    }
    // With the return address a multiple of 16.
    asm.push(Reg::Rdi);
    for reg in all {
        asm.load(reg, Reg::Rdi, 8 * reg as i32);
    }
    asm.load(Reg::Rdi, Reg::Rdi, 8 * Reg::Rdi as i32);
    asm.raw(code);
    asm.push(Reg::Rdi);
    asm.load(Reg::Rdi, Reg::Rsp, 8);
    for reg in all {
        asm.store(Reg::Rdi, 8 * reg as i32, reg);
    }
    asm.pop(Reg::Rax);
    asm.store(Reg::Rdi, 8 * Reg::Rdi as i32, Reg::Rax);
    asm.pop(Reg::Rdi);
    for reg in saved.into_iter().rev() {
        asm.pop(reg);
    }
    asm.ret();
    let pages = Pages::new(&asm.finish());
    // SAFETY: a function that saves what the ABI says; `code` is for such a place.
    let function: extern "C" fn(*mut u64) = unsafe { std::mem::transmute(pages.0) };
    function(registers.as_mut_ptr());
}

/// Interprets and runs a program; both must give the same result and buffer.
pub fn agree(program: &Program, buffer: &Buffer) -> (u64, Buffer) {
    let (mut here, mut there) = (*buffer, *buffer);
    let interpreted = interpret(&linked(program, &mut here), &mut here, 1 << 20);
    let code = function(&linked(program, &mut there)).unwrap();
    let native = call(&code, &mut there);
    assert_eq!(interpreted, Ok(native), "interpreted, native:\n{}", listing(program));
    assert_eq!(here, there, "interpreted, native:\n{}", listing(program));
    (native, there)
}

/// The program, to be read.
pub fn listing(program: &Program) -> String {
    program.iter().map(Result::unwrap).map(|(at, insn)| format!("{at:3}: {insn}\n")).collect()
}

/// Machine code, to be read.
pub fn disassemble(bytes: &[u8]) -> Vec<String> {
    let mut formatter = GasFormatter::new();
    let text = |insn| {
        let mut text = String::new();
        formatter.format(&insn, &mut text);
        text.trim().to_owned()
    };
    Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).into_iter().map(text).collect()
}

/// The steps with branches that count slots; here they count steps, so that none goes into the
/// middle of one.
pub fn in_slots(steps: &[Insn]) -> impl Iterator<Item = Insn> {
    let slots: Vec<usize> = steps.iter().map(Insn::slots).collect();
    steps.iter().enumerate().map(move |(i, step)| match *step {
        Insn::Branch { width, cond, dst, src, off } => {
            let over = slots[i + 1..].iter().take(off as usize).sum::<usize>() as i16;
            Insn::Branch { width, cond, dst, src, off: over }
        }
        other => other,
    })
}
