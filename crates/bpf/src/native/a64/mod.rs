//! Native code for arm64: words that run at any address that is a multiple of 4.
//!
//! Each function of a program is a function of the AAPCS64: `r1` to `r5` in `x0` to `x4`, the
//! *table* in `x5`, the result `r0` in `x0`. Helper `n` is called by the same ABI through the
//! pointer at `table + 8 * n`, with the table as its sixth argument. A helper that is given a
//! function of the program calls it in the same way. Nothing else is outside the code: jumps are
//! relative, and addresses of maps are those that linking put in:
//! [`crate::verify::Verified::link`], or [`Program::link`].
//!
//! The frame of a function that calls something:
//!
//! ```text
//!   high   saved registers     only those of x19 to x22 that stand for r6 to r9, and x23
//!          x29, x30            <- x29
//!   low    stack of the program, a multiple of 16   <- sp
//! ```
//!
//! `r10` is the end of that stack; no register is spent on it.
//!
//! A function that calls nothing saves nothing, and has `r6` to `r9` in `x8` to `x11`. There is no
//! red zone: its stack is subtracted from `sp` as well.
//!
//! No instruction needs more than ARMv8.0: atomic operations are loops of exclusive loads and
//! stores. A signal handler that comes in between makes the store fail, so they are whole for
//! signals, too. Vector registers are not touched, the flags are.
//!
//! Only for programs that were verified: the code checks neither addresses nor the number of
//! instructions.
//!
//! ```
//! use sidestep_bpf::native::{Env, a64::compile};
//!
//! let program = sidestep_bpf::assemble("r0 = *(u64 *)(r1 + 8)\n exit").unwrap();
//! let code = compile(&program, &Default::default(), &Env::default()).unwrap();
//! // ldr x7, [x0, #8]; mov x0, x7; ret
//! let words = [0xf940_0407_u32, 0xaa07_03e0, 0xd65f_03c0].map(u32::to_le_bytes);
//! assert_eq!(code.bytes, words.concat());
//! ```

mod allocate;
mod atomic;
mod emit;
mod intrinsic;
mod lower;

use super::{Code, CompileError, Env, functions};
use crate::insn::Insn;
use crate::program::Program;
use crate::verify::Facts;
use allocate::{Frame, Usage};

/// Compiles a program of which `facts` are known.
///
/// # Errors
/// If it was not verified or linked.
pub fn compile(program: &Program, facts: &Facts, env: &Env) -> Result<Code, CompileError> {
    let source = Source::new(program, facts, env)?;
    let stack = functions::stack(&source.functions, 0, &mut Vec::new())?;
    let lowered = lower::lower(&source)?;
    Ok(Code {
        bytes: lowered.bytes,
        clobbers: lowered.clobbers,
        flags: true,
        cells: source.functions.iter().any(|f| f.usage.cells),
        helpers: source.functions.iter().any(|f| f.usage.helpers),
        stack,
        map: lowered.map,
        go: Vec::new(),
    })
}

/// A program that was looked at once.
struct Source<'a> {
    env: &'a Env,
    functions: Vec<Function>,
    /// Slots that are the start of an instruction.
    starts: Vec<bool>,
}

/// A function of it.
struct Function {
    steps: Vec<Step>,
    usage: Usage,
    frame: Frame,
}

/// An instruction to be compiled.
#[derive(Clone, Copy)]
struct Step {
    /// Its slot.
    at: usize,
    insn: Insn,
    /// No other thread touches its memory.
    local: bool,
}

impl<'a> Source<'a> {
    fn new(program: &Program, facts: &Facts, env: &'a Env) -> Result<Source<'a>, CompileError> {
        if program.functions.first().map(|f| f.start) != Some(0) {
            return Err(CompileError::Target { at: 0 });
        }
        let mut starts = vec![false; program.slots.len()];
        let mut steps = Vec::new();
        for insn in program.iter() {
            let (at, insn) = insn?;
            starts[at] = true;
            let local = facts.accesses.get(&at).is_some_and(|memory| memory.is_local());
            steps.push(Step { at, insn, local });
        }
        let mut functions = Vec::new();
        let ends = program.functions.iter().skip(1).map(|f| f.start).chain([program.slots.len()]);
        for (function, end) in program.functions.iter().zip(ends) {
            let from = steps.partition_point(|s| s.at < function.start);
            let to = steps.partition_point(|s| s.at < end);
            let steps: Vec<Step> = steps.get(from..to).unwrap_or_default().to_vec();
            match steps.last() {
                Some(step) if !step.insn.falls_through() => {}
                Some(step) => return Err(CompileError::Target { at: step.at }),
                None => return Err(CompileError::Target { at: function.start }),
            }
            let usage = Usage::of(&steps, env);
            let frame = Frame::new(&usage, function.stack);
            functions.push(Function { steps, usage, frame });
        }
        Ok(Source { env, functions, starts })
    }
}

impl functions::Step for Step {
    fn at(&self) -> usize {
        self.at
    }

    fn insn(&self) -> &Insn {
        &self.insn
    }
}

impl functions::Function for Function {
    type Step = Step;
    /// The return address is in a register.
    const CALL: usize = 0;

    fn steps(&self) -> &[Step] {
        &self.steps
    }

    fn stack(&self) -> usize {
        self.frame.stack()
    }
}
