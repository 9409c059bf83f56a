//! Programs that only add numbers to words of the thread: `@ = count()` is one.

use crate::insn::{AluOp, AtomicOp, Imm64, Insn, Operand, Reg, Width};
use crate::verify::Verified;

/// Most additions of a program: more are not worth their code.
const MAX_ADDITIONS: usize = 4;
/// What fits into a signed byte of an instruction. Larger numbers are not worth their code.
const MAX_VALUE: u64 = 0x7f;
/// Bytes of such a word.
const WORD: u32 = 8;

/// A number that is added to a word of 64 bits that each thread has of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Addition {
    /// Offset of the word in the memory of the thread, a multiple of 8 ([`Imm64::Thread`]).
    pub offset: u64,
    /// The number, at most 127: larger ones are not worth their code.
    pub value: u8,
}

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Unknown,
    Number(u64),
    /// An address: an offset in the memory of the thread.
    Thread(u32),
}

/// All that a linked program does, if that is a few additions of constants to words of the thread,
/// whatever it is given: instruction sets without compiled programs have these as parts of their
/// detours. `None`: it does something else, or may do.
#[must_use]
pub fn additions(verified: &Verified) -> Option<Vec<Addition>> {
    let mut registers = [Value::Unknown; Reg::COUNT];
    let mut found = Vec::new();
    for insn in verified.program.iter() {
        match insn.ok()?.1 {
            Insn::Exit => return Some(found),
            Insn::LoadImm64 { dst, imm } => {
                registers[dst.index()] = match imm {
                    Imm64::Value(number) => Value::Number(number),
                    Imm64::Thread(offset) => Value::Thread(offset),
                    _ => return None,
                };
            }
            Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src } => {
                registers[dst.index()] = match src {
                    Operand::Reg(src) => registers[src.index()],
                    Operand::Imm(number) => Value::Number(i64::from(number) as u64),
                };
            }
            Insn::Alu { width: Width::W32, op: AluOp::Mov, dst, src: Operand::Imm(number) } => {
                registers[dst.index()] = Value::Number(u64::from(number as u32));
            }
            Insn::Atomic { width: Width::W64, op: AtomicOp::Add { fetch: false }, base, off, src } => {
                let (Value::Thread(at), Value::Number(number)) = (registers[base.index()], registers[src.index()])
                else {
                    return None;
                };
                let offset = at.checked_add_signed(off.into()).filter(|offset| offset % WORD == 0)?;
                found.push(Addition {
                    offset: offset.into(),
                    value: u8::try_from(number).ok().filter(|_| number <= MAX_VALUE)?,
                });
                if found.len() > MAX_ADDITIONS {
                    return None;
                }
            }
            _ => return None,
        }
    }
    None
}
