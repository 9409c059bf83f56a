//! Functions of a program that is compiled, and where their instructions lead to: the same for all
//! instruction sets.

use super::code::CompileError;
use crate::insn::{Imm64, Insn, Reg};
use crate::program;

/// An instruction to be compiled.
pub trait Step: Copy {
    /// Its slot.
    fn at(&self) -> usize;
    fn insn(&self) -> &Insn;
}

/// A function to be compiled.
pub trait Function {
    type Step: Step;
    /// Bytes that a call puts on the stack by itself.
    const CALL: usize;
    fn steps(&self) -> &[Self::Step];
    /// Bytes of its own stack.
    fn stack(&self) -> usize;
}

/// The function that starts at the slot that `insn` refers to.
pub fn callee<F: Function>(functions: &[F], at: usize, insn: &Insn) -> Result<usize, CompileError> {
    let target = program::target(at, insn).ok_or(CompileError::Target { at })?;
    functions.iter().position(|f| f.steps()[0].at() == target).ok_or(CompileError::Target { at })
}

/// The slot that a jump of a function goes to; `starts`: slots that are the start of an
/// instruction.
pub fn jump<F: Function>(function: &F, starts: &[bool], at: usize, insn: &Insn) -> Result<usize, CompileError> {
    let steps = function.steps();
    let bounds = steps[0].at()..=steps[steps.len() - 1].at();
    program::jump_target(at, insn).filter(|to| bounds.contains(to) && starts[*to]).ok_or(CompileError::Target { at })
}

/// Stack of a function with all that it calls or hands out.
pub fn stack<F: Function>(functions: &[F], function: usize, callers: &mut Vec<usize>) -> Result<usize, CompileError> {
    callers.push(function);
    let mut deepest = 0;
    for step in functions[function].steps() {
        let (at, insn) = (step.at(), step.insn());
        if matches!(insn, Insn::CallLocal(_) | Insn::LoadImm64 { imm: Imm64::Func(_), .. }) {
            let callee = callee(functions, at, insn)?;
            if callers.contains(&callee) || callers.len() >= crate::interp::MAX_DEPTH as usize {
                return Err(CompileError::Recursion { at });
            }
            deepest = deepest.max(F::CALL + stack(functions, callee, callers)?);
        }
    }
    callers.pop();
    Ok(functions[function].stack() + deepest)
}

/// Whether an instruction would change `r10`.
pub fn writes_frame_pointer(insn: &Insn) -> bool {
    matches!(
        insn,
        Insn::Alu { dst: Reg::R10, .. }
            | Insn::Neg { dst: Reg::R10, .. }
            | Insn::MovSx { dst: Reg::R10, .. }
            | Insn::Swap { dst: Reg::R10, .. }
            | Insn::Load { dst: Reg::R10, .. }
            | Insn::LoadImm64 { dst: Reg::R10, .. }
            | Insn::Atomic { src: Reg::R10, .. }
    )
}
