//! Programs from text: the assembler's statements and labels.
//!
//! A line holds at most one instruction, in the text of [`crate::disasm`]; spaces do not matter,
//! `//` and `;` begin a comment. Loads and stores of less than 8 bytes name their register `r1` or
//! `w1`, as LLVM and the kernel do. Before an instruction, or alone, there may be a label (`out:`,
//! also a number as in listings), and jumps and calls take a label or an offset:
//! `if r0 == 0 goto out`, `goto +3`, `call helper#14` (or `call 14`), `call pc+3`, `call sub`.
//!
//! ```
//! let program = sidestep_bpf::assemble("
//!     r0 = *(u64 *)(r1 + 8)
//!     if r0 s> 10 goto out
//!     r0 += 1
//! out:
//!     exit
//! ").unwrap();
//! assert_eq!(program.insn(1).unwrap().to_string(), "if r0 s> 10 goto +1");
//! ```

mod cursor;
mod statement;

use std::collections::HashMap;

use crate::insn::{Imm64, Insn};
use crate::program::{Program, encode};
use cursor::Cursor;
use statement::{Statement, Target};

/// Why a text is no program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct AsmError {
    /// From 1.
    pub line: usize,
    /// From 1, in bytes.
    pub column: usize,
    /// What is wrong there.
    pub problem: AsmProblem,
}

/// What is wrong with a line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AsmProblem {
    /// Something else was expected.
    #[error("expected {0}")]
    Expected(&'static str),
    /// A number does not fit where it stands.
    #[error("{value} is out of range; use {min} to {max}")]
    Range {
        /// The number.
        value: i128,
        /// Smallest that fits.
        min: i128,
        /// Largest that fits.
        max: i128,
    },
    /// Operands of one operation are of two widths.
    #[error("w and r registers are mixed; use one width for all operands")]
    Widths,
    /// Two labels of one name.
    #[error("the label {0} is defined twice; rename one")]
    Twice(String),
    /// A label that is nowhere defined.
    #[error("there is no label {0}; define it or use an offset such as +3")]
    NoLabel(String),
}

/// The program that a text means.
///
/// # Errors
/// The first thing in the text that is wrong.
pub fn assemble(text: &str) -> Result<Program, AsmError> {
    let mut statements = Vec::new();
    let mut labels = HashMap::new();
    let mut pc = 0;
    for (index, line) in text.lines().enumerate() {
        let mut cursor = Cursor::new(line);
        let fail = |(at, problem)| AsmError { line: index + 1, column: at + 1, problem };
        while let Some((at, name)) = cursor.label() {
            if labels.insert(name, pc).is_some() {
                return Err(fail((at, AsmProblem::Twice(name.to_owned()))));
            }
        }
        if cursor.at_end() {
            continue;
        }
        let statement = statement::parse(&mut cursor).map_err(fail)?;
        if !cursor.at_end() {
            return Err(fail((cursor.position(), AsmProblem::Expected("the end of the line"))));
        }
        statements.push((index + 1, pc, statement));
        pc += statement.insn.slots();
    }
    let mut insns = Vec::with_capacity(statements.len());
    for (line, pc, statement) in statements {
        let fail = |(at, problem)| AsmError { line, column: at + 1, problem };
        insns.push(resolve(pc, statement, &labels).map_err(fail)?);
    }
    // Every statement is an instruction that exists, so this does not fail; if it did, the
    // assembler would be wrong.
    Ok(Program::new(encode(&insns)).unwrap_or_else(|e| unreachable!("assembled what is no instruction: {e}")))
}

/// Puts the distance to a label into an instruction.
fn resolve(pc: usize, s: Statement<'_>, labels: &HashMap<&str, usize>) -> Result<Insn, (usize, AsmProblem)> {
    let Some((at, target)) = s.target else { return Ok(s.insn) };
    let distance = match target {
        Target::Offset(offset) => offset,
        Target::Label(name) => {
            let label = *labels.get(name).ok_or_else(|| (at, AsmProblem::NoLabel(name.to_owned())))?;
            label as i128 - (pc as i128 + 1)
        }
    };
    let (min, max) = match s.insn {
        Insn::Goto { long: false, .. } | Insn::Branch { .. } => (i128::from(i16::MIN), i128::from(i16::MAX)),
        _ => (i128::from(i32::MIN), i128::from(i32::MAX)),
    };
    if distance < min || distance > max {
        return Err((at, AsmProblem::Range { value: distance, min, max }));
    }
    let to = distance as i32;
    Ok(match s.insn {
        Insn::Goto { long, .. } => Insn::Goto { off: to, long },
        Insn::Branch { width, cond, dst, src, .. } => Insn::Branch { width, cond, dst, src, off: to as i16 },
        Insn::CallLocal(_) => Insn::CallLocal(to),
        Insn::LoadImm64 { dst, .. } => Insn::LoadImm64 { dst, imm: Imm64::Func(to) },
        other => other,
    })
}
