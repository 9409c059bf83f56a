//! Whole programs.

use std::collections::BTreeSet;

use crate::codec::{DecodeError, DecodeProblem};
use crate::insn::{Imm64, Insn, Slot};

/// Stack of a function, in bytes, where nobody has computed what it needs: the kernel's
/// `MAX_BPF_STACK`.
pub const MAX_STACK: u16 = 512;

/// Code, and the functions in it. The first function starts at slot 0 and gets the context in `r1`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// The code.
    pub slots: Vec<Slot>,
    /// Its functions by rising start; the first is the entry. A function ends where the next
    /// starts.
    pub functions: Vec<Function>,
}

/// A function of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its first slot.
    pub start: usize,
    /// Bytes of stack that it uses below `r10`, at most [`MAX_STACK`]. What the verifier found;
    /// [`MAX_STACK`] before.
    pub stack: u16,
}

impl Program {
    /// The program with this code. Functions are what calls and references to functions point to.
    ///
    /// # Errors
    /// If something in it is no instruction. Targets outside the code are left to the verifier.
    pub fn new(slots: Vec<Slot>) -> Result<Program, DecodeError> {
        let mut starts = BTreeSet::from([0]);
        let mut program = Program { slots, functions: Vec::new() };
        for insn in program.iter() {
            let (pc, insn) = insn?;
            if let Some(target) = target(pc, &insn) {
                if target < program.slots.len() {
                    starts.insert(target);
                }
            }
        }
        program.functions = starts.into_iter().map(|start| Function { start, stack: MAX_STACK }).collect();
        Ok(program)
    }

    /// The program of these instructions.
    ///
    /// # Errors
    /// As [`Program::new`].
    pub fn from_insns(insns: &[Insn]) -> Result<Program, DecodeError> {
        Program::new(encode(insns))
    }

    /// The program with this little-endian code.
    ///
    /// # Errors
    /// As [`Program::new`]; [`DecodeProblem::Truncated`] if bytes are left over.
    pub fn from_bytes(bytes: &[u8]) -> Result<Program, DecodeError> {
        if let [opcode, ..] = *bytes.chunks_exact(8).remainder() {
            return Err(DecodeError { at: bytes.len() / 8, opcode, problem: DecodeProblem::Truncated });
        }
        let slot = |b: &[u8]| Slot::from_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        Program::new(bytes.chunks_exact(8).map(slot).collect())
    }

    /// The code as it is stored, little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.slots.iter().flat_map(|slot| slot.to_bytes()).collect()
    }

    /// The instruction that starts at a slot.
    ///
    /// # Errors
    /// If there is none; `at` is the slot.
    pub fn insn(&self, pc: usize) -> Result<Insn, DecodeError> {
        Insn::decode(self.slots.get(pc..).unwrap_or_default()).map_err(|e| DecodeError { at: pc, ..e })
    }

    /// All instructions with their slots, in order; ends after the first error.
    pub fn iter(&self) -> impl Iterator<Item = Result<(usize, Insn), DecodeError>> + '_ {
        let mut pc = 0;
        std::iter::from_fn(move || {
            if pc >= self.slots.len() {
                return None;
            }
            let at = pc;
            let insn = self.insn(at);
            pc = insn.as_ref().map_or(usize::MAX, |insn| at + insn.slots());
            Some(insn.map(|insn| (at, insn)))
        })
    }

    /// Replaces all references to maps and variables by what `address` says: [`Imm64::Value`] or
    /// [`Imm64::Thread`]. Interpreter and native code need that; functions stay.
    ///
    /// # Errors
    /// The first reference that `address` does not know, with its slot; the program is then half
    /// linked.
    pub fn link(&mut self, mut address: impl FnMut(Imm64) -> Option<Imm64>) -> Result<(), LinkError> {
        let insns: Vec<_> = self.iter().collect::<Result<_, _>>().map_err(LinkError::Decode)?;
        for (at, insn) in insns {
            let Insn::LoadImm64 { dst, imm } = insn else { continue };
            if matches!(imm, Imm64::Value(_) | Imm64::Func(_) | Imm64::Thread(_)) {
                continue;
            }
            let imm = address(imm).ok_or(LinkError::Unknown { at, imm })?;
            let (first, second) = Insn::LoadImm64 { dst, imm }.encode();
            self.slots[at] = first;
            self.slots[at + 1] = second.unwrap_or_default();
        }
        Ok(())
    }

    /// The function that a slot belongs to.
    #[must_use]
    pub fn function_of(&self, pc: usize) -> Option<&Function> {
        self.functions.iter().rev().find(|f| f.start <= pc)
    }
}

/// Why a program could not be linked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkError {
    /// Something in it is no instruction.
    #[error(transparent)]
    Decode(DecodeError),
    /// It refers to something that does not exist.
    #[error("insn {at}: {imm} refers to nothing; create the map or remove the reference")]
    Unknown {
        /// The slot.
        at: usize,
        /// The reference.
        imm: Imm64,
    },
}

/// The code of these instructions.
#[must_use]
pub fn encode(insns: &[Insn]) -> Vec<Slot> {
    let mut slots = Vec::with_capacity(insns.len());
    for insn in insns {
        let (first, second) = insn.encode();
        slots.push(first);
        slots.extend(second);
    }
    slots
}

/// The slot of the function that the instruction at `pc` calls or takes the address of, as far as
/// it is not negative.
#[must_use]
pub fn target(pc: usize, insn: &Insn) -> Option<usize> {
    let (Insn::CallLocal(off) | Insn::LoadImm64 { imm: Imm64::Func(off), .. }) = *insn else { return None };
    (pc as i64 + 1).checked_add(off.into()).and_then(|at| usize::try_from(at).ok())
}

/// The slot that the instruction at `pc` may jump to, as far as it is not negative.
#[must_use]
pub fn jump_target(pc: usize, insn: &Insn) -> Option<usize> {
    insn.jump().and_then(|off| usize::try_from(pc as i64 + 1 + i64::from(off)).ok())
}
