//! Native code for x86-64: bytes that run at any address.
//!
//! Each function of a program is a function of the System V ABI: `r1` to `r5` in `rdi`, `rsi`, `rdx`, `rcx`, `r8`, the
//! *table* in `r9`, the result `r0` in `rax`. Helper `n` is called by the same ABI through the pointer at `table + 8 * n`,
//! with the table as its sixth argument. So the table can also hold, after the pointers, what the helpers need, and a helper
//! that is given a function of the program calls it in the same way. Nothing else is outside the code: jumps are
//! relative, and addresses of maps are those that [`Program::link`] put in.
//!
//! The frame of a function, when it calls something:
//!
//! ```text
//!   return address
//!   saved registers          only those of rbx, rbp, r12 to r15 that stand for r6 to r9
//!   padding                  so that rsp is a multiple of 16
//!   stack of the program     r10 is its end: no register is spent on it
//!   table                    <- rsp
//! ```
//!
//! One that calls nothing keeps up to 128 bytes of stack below `rsp`, and `r6` to `r9` where nothing must be saved.
//!
//! Only for programs that were verified: the code checks neither addresses nor the number of instructions.

mod allocate;
mod atomic;
mod division;
mod emit;
mod lower;

use sidestep_isa::x86::emit::Reg as Machine;

use crate::codec::DecodeError;
use crate::insn::{Imm64, Insn};
use crate::program::{self, Program};
use allocate::Frame;
use lower::{Branches, Lowered};

/// How the code ends, and what it may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A function: saves what the ABI says, and returns.
    Function,
    /// A part of a detour: falls through at its end, saves nothing ([`Code::clobbers`] is what it changes).
    ///
    /// The context is expected in [`Code::context`]; the table, if it calls helpers, in `r9`, with `rsp` a multiple of 16.
    /// 128 bytes below `rsp` are free.
    Inline {
        /// Registers to use before others: those that are dead there, one bit each by their number.
        prefer: u16,
        /// Whether anyone looks at `r0` in the end.
        result: bool,
    },
}

/// Native code of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    /// The code; its first byte is the entry.
    pub bytes: Vec<u8>,
    /// Machine registers that it changes, one bit each by their number.
    pub clobbers: u16,
    /// Whether it changes the arithmetic flags.
    pub flags: bool,
    /// Where it expects the context (`r1`), if it uses it.
    pub context: Option<Machine>,
    /// Where it leaves `r0`, if anyone looks at it.
    pub result: Option<Machine>,
    /// Whether it calls helpers, and so needs the table.
    pub helpers: bool,
    /// Bytes of stack below the `rsp` that it is entered with, without the helpers' own.
    pub stack: usize,
    /// Where the code of each instruction starts: offset in `bytes`, and slot. Rising.
    pub map: Vec<(usize, usize)>,
}

impl Code {
    /// The instruction that an offset in the code belongs to; none in what saves and restores registers.
    #[must_use]
    pub fn slot_at(&self, offset: usize) -> Option<usize> {
        let after = self.map.partition_point(|&(start, _)| start <= offset);
        after.checked_sub(1).map(|i| self.map[i].1)
    }
}

/// Why there is no native code for a program. None of this is left in one that was verified and linked, except
/// [`CompileError::Inline`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CompileError {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("insn {at}: {imm} has no address yet; link the program first")]
    Unlinked { at: usize, imm: Imm64 },
    #[error("insn {at}: goes to no instruction of its function; verify the program first")]
    Target { at: usize },
    #[error("insn {at}: r10 can only be read, copied, compared and added to; verify the program first")]
    FramePointer { at: usize },
    #[error("insn {at}: there is no helper {number}; use one that is listed")]
    Helper { at: usize, number: u32 },
    #[error("insn {at}: calls itself, or too deep; use a loop")]
    Recursion { at: usize },
    #[error("insn {at}: functions cannot be called from inlined code; compile the program as a function")]
    Inline { at: usize },
}

/// Helpers are numbered below this: a table of one page of pointers holds them.
pub const MAX_HELPERS: u32 = 512;

/// Compiles a program.
///
/// # Errors
/// If it was not verified or linked, or cannot be inlined.
pub fn compile(program: &Program, shape: Shape) -> Result<Code, CompileError> {
    let source = Source::new(program, shape)?;
    let mut branches = Branches::all_long(program.slots.len());
    let mut lowered = lower::lower(&source, &branches)?;
    // Code only shrinks, so what fits once fits later. Two or three rounds find nearly all.
    for _ in 0..8 {
        if !lowered.shorten(&source, &mut branches) {
            break;
        }
        lowered = lower::lower(&source, &branches)?;
    }
    let stack = source.stack(0, &mut Vec::new())?;
    let Lowered { bytes, clobbers, flags, map, .. } = lowered;
    let entry = &source.functions[0];
    let used = |reg: crate::Reg| entry.usage.uses(reg).then(|| entry.frame.registers.of(reg));
    Ok(Code {
        bytes,
        clobbers,
        flags,
        context: used(crate::Reg::R1),
        result: (shape.result() && entry.usage.uses(crate::Reg::R0)).then_some(Machine::Rax),
        helpers: source.functions.iter().any(|f| f.usage.helpers),
        stack,
        map,
    })
}

impl Shape {
    fn result(self) -> bool {
        !matches!(self, Shape::Inline { result: false, .. })
    }
}

/// A program that was looked at once.
struct Source {
    shape: Shape,
    functions: Vec<Function>,
    /// Slots that are the start of an instruction.
    starts: Vec<bool>,
}

/// A function of it.
struct Function {
    insns: Vec<(usize, Insn)>,
    usage: allocate::Usage,
    frame: Frame,
}

impl Source {
    fn new(program: &Program, shape: Shape) -> Result<Source, CompileError> {
        if program.functions.first().map(|f| f.start) != Some(0) {
            return Err(CompileError::Target { at: 0 });
        }
        let mut starts = vec![false; program.slots.len()];
        let mut bodies = vec![Vec::new(); program.functions.len()];
        for insn in program.iter() {
            let (at, insn) = insn?;
            starts[at] = true;
            let function = program.functions.partition_point(|f| f.start <= at) - 1;
            bodies[function].push((at, insn));
        }
        let mut functions = Vec::new();
        for (mut insns, function) in bodies.into_iter().zip(&program.functions) {
            match insns.last() {
                Some((_, insn)) if !insn.falls_through() => {}
                Some(&(at, _)) => return Err(CompileError::Target { at }),
                None => return Err(CompileError::Target { at: function.start }),
            }
            if !shape.result() {
                allocate::drop_result(&mut insns);
            }
            let usage = allocate::Usage::of(&insns, shape);
            let frame = Frame::new(&usage, function.stack, shape);
            functions.push(Function { insns, usage, frame });
        }
        Ok(Source { shape, functions, starts })
    }

    /// The function that starts at the slot that `insn` refers to.
    fn callee(&self, at: usize, insn: &Insn) -> Result<usize, CompileError> {
        let target = program::target(at, insn).ok_or(CompileError::Target { at })?;
        self.functions.iter().position(|f| f.insns[0].0 == target).ok_or(CompileError::Target { at })
    }

    /// The slot that a jump of a function goes to.
    fn jump(&self, function: &Function, at: usize, insn: &Insn) -> Result<usize, CompileError> {
        let bounds = function.insns[0].0..=function.insns[function.insns.len() - 1].0;
        program::jump_target(at, insn)
            .filter(|to| bounds.contains(to) && self.starts[*to])
            .ok_or(CompileError::Target { at })
    }

    /// Stack of a function with all that it calls or hands out.
    fn stack(&self, function: usize, callers: &mut Vec<usize>) -> Result<usize, CompileError> {
        callers.push(function);
        let mut deepest = 0;
        for (at, insn) in &self.functions[function].insns {
            let called = matches!(insn, Insn::CallLocal(_) | Insn::LoadImm64 { imm: Imm64::Func(_), .. });
            if called {
                let callee = self.callee(*at, insn)?;
                if callers.contains(&callee) || callers.len() >= crate::interp::MAX_DEPTH as usize {
                    return Err(CompileError::Recursion { at: *at });
                }
                deepest = deepest.max(8 + self.stack(callee, callers)?);
            }
        }
        callers.pop();
        Ok(self.functions[function].frame.stack() + deepest)
    }
}
