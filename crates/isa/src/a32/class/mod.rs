//! What an instruction is and which registers it uses, from its bits.
//!
//! What the manual calls UNDEFINED or UNPREDICTABLE is no instruction, and neither is what only the
//! kernel may do. Advanced SIMD and floating-point data processing are taken as a whole: their
//! words name no general-purpose register, so a word of them that no processor has faults wherever
//! it lies.
//!
//! Refused although they have a meaning: coprocessors other than 10, 11, 14 and 15, `mcr2` and its
//! like, half-precision arithmetic, and vector instructions after ARMv8.0.

mod arm;
mod coprocessor;
mod thumb;
mod wide;

pub(super) use arm::arm;
pub(super) use thumb::thumb;
pub(super) use wide::wide;

use super::usage::{C, N, NZCV, V, Z, condition_flags};
use super::{PC, SP};

/// What kind of instruction it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// Computes with general-purpose registers.
    Compute,
    /// `add` or `sub` of the program counter and an immediate, also `adr`.
    Address,
    /// `movw`, `mov` and `mvn` of an immediate.
    Constant,
    /// `movt`.
    MoveTop,
    /// Loads one or two registers.
    Load,
    /// Stores one or two registers.
    Store,
    /// `ldm`, `pop`.
    LoadMultiple,
    /// `stm`, `push`.
    StoreMultiple,
    /// `ldrex` and its like.
    LoadExclusive,
    /// `strex` and its like.
    StoreExclusive,
    /// `clrex`.
    ClearExclusive,
    /// `swp`, `swpb`.
    Swap,
    /// `pld`, `pldw`, `pli`.
    Preload,
    /// `b`, also with a condition.
    Branch,
    /// `bl`.
    BranchLink,
    /// `blx` of a label: a call of the other instruction set.
    BranchExchange,
    /// `bx`, `bxj`.
    BranchRegister,
    /// `blx` of a register.
    BranchLinkRegister,
    /// `cbz`, `cbnz`.
    CompareZero,
    /// `tbb`, `tbh`.
    TableBranch,
    /// `svc`.
    SupervisorCall,
    /// `bkpt`.
    Breakpoint,
    /// `udf`.
    Udf,
    /// `nop` and other hints.
    Hint,
    /// `dmb`, `dsb`, `isb`.
    Barrier,
    /// `mrs`.
    ReadStatus,
    /// `msr`.
    WriteStatus,
    /// `mrc`, `mcr`, `mrrc`, `mcrr`, `ldc`, `stc`.
    Coprocessor,
    /// `vmov`, `vmrs`, `vmsr`, `vdup` between general-purpose and other registers.
    VectorMove,
    /// Advanced SIMD and floating-point data processing.
    Vector,
    /// `vldr`, `vldm`, `vld1` and their like.
    VectorLoad,
    /// `vstr`, `vstm`, `vst1` and their like.
    VectorStore,
    /// A literal: data between instructions, which some instruction in front of it loads.
    Data,
}

/// The condition that always holds.
pub(super) const ALWAYS: u8 = 14;

/// One instruction without its address, and without the `it` in front of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// What kind of instruction it is.
    pub class: Class,
    /// Of T32 with 32 bits, the first halfword is the upper one.
    pub word: u32,
    /// Bytes.
    pub len: u8,
    /// The condition under which it does anything; 14: always.
    pub condition: u8,
    /// Registers that are read, or may be.
    pub reads: u16,
    /// Registers that are written.
    pub writes: u16,
    /// Flags that are read, without those of the condition.
    pub(super) flags_read: u8,
    /// Flags that may be written.
    pub(super) flags_set: u8,
    /// Flags that are written for certain, if the condition holds.
    pub(super) flags_killed: u8,
    /// The register that an address is made of.
    pub(super) base: Option<u8>,
    /// The base is written back.
    pub(super) write_back: bool,
    /// The immediate that is added to the base or to the program counter, the distance of a branch,
    /// or a constant.
    pub(super) number: i32,
    /// There is one.
    pub(super) has_number: bool,
    /// The offset is added before the access.
    pub(super) before: bool,
    /// Of T32.
    pub(super) thumb: bool,
}

impl Op {
    pub(super) const fn new(class: Class, word: u32, len: u8, thumb: bool) -> Op {
        Op {
            class,
            word,
            len,
            condition: ALWAYS,
            reads: 0,
            writes: 0,
            flags_read: 0,
            flags_set: 0,
            flags_killed: 0,
            base: None,
            write_back: false,
            number: 0,
            has_number: false,
            before: true,
            thumb,
        }
    }

    /// Reads a register, also the program counter.
    fn r(mut self, register: u8) -> Op {
        self.reads |= 1 << (register & 15);
        self
    }

    /// Writes a register, also the program counter.
    fn w(mut self, register: u8) -> Op {
        self.writes |= 1 << (register & 15);
        self
    }

    fn rw(self, register: u8) -> Op {
        self.r(register).w(register)
    }

    fn reads(mut self, registers: u32) -> Op {
        self.reads |= registers as u16;
        self
    }

    fn writes(mut self, registers: u32) -> Op {
        self.writes |= registers as u16;
        self
    }

    /// Accesses memory at a register.
    fn at(mut self, base: u8) -> Op {
        self.base = Some(base);
        self.r(base)
    }

    /// Adds an immediate to the base or to the program counter.
    fn plus(mut self, offset: i32) -> Op {
        (self.number, self.has_number) = (offset, true);
        self
    }

    /// Writes the base back, if so. What the program counter as base would mean then is not
    /// defined.
    fn back(mut self, yes: bool) -> Option<Op> {
        let base = self.base.filter(|_| yes);
        self.write_back = yes;
        match base {
            Some(PC) => None,
            Some(base) => Some(self.w(base)),
            None => Some(self),
        }
    }

    /// Sets all four flags, if so.
    fn sets(mut self, yes: bool) -> Op {
        if yes {
            (self.flags_set, self.flags_killed) = (NZCV, NZCV);
        }
        self
    }

    /// Sets the flags of a logic operation, if so: the carry is that of the shifter, which may
    /// leave it as it was.
    fn sets_logic(mut self, yes: bool) -> Op {
        if yes {
            (self.flags_set, self.flags_killed) = (N | Z | C, N | Z);
        }
        self
    }

    fn uses_carry(mut self, yes: bool) -> Op {
        if yes {
            self.flags_read |= C;
        }
        self
    }

    fn uses_flags(mut self, flags: u8) -> Op {
        self.flags_read |= flags;
        self
    }

    /// Nothing if one of these registers is the program counter.
    fn without_pc<const COUNT: usize>(self, registers: [u8; COUNT]) -> Option<Op> {
        (!registers.contains(&PC)).then_some(self)
    }

    /// The immediate that is added to the base or to the program counter, the distance of a branch,
    /// or a constant.
    pub(super) fn offset(&self) -> Option<i32> {
        self.has_number.then_some(self.number)
    }

    /// All flags that it reads, also for its condition.
    pub(super) fn all_flags_read(&self) -> u8 {
        self.flags_read | condition_flags(self.condition)
    }

    /// Whether it always does something.
    pub(super) fn is_always(&self) -> bool {
        self.condition == ALWAYS
    }

    /// Whether it reads the program counter, other than to go on behind itself.
    #[must_use]
    pub fn reads_pc(&self) -> bool {
        self.reads & 1 << PC != 0
    }

    /// Whether it goes elsewhere.
    #[must_use]
    pub fn writes_pc(&self) -> bool {
        self.writes & 1 << PC != 0
    }

    /// Whether it reads or writes the stack pointer.
    pub(super) fn uses_stack_pointer(&self) -> bool {
        (self.reads | self.writes) & 1 << SP != 0
    }
}

/// The sixteen operations of data processing, by the numbers that A32 has for them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Logic,
    Sum,
    Carry,
    Test,
    Compare,
    Move,
}

const OPERATIONS: [Operation; 16] = {
    use Operation::{Carry, Compare, Logic, Move, Sum, Test};
    [Logic, Logic, Sum, Sum, Sum, Carry, Carry, Carry, Test, Test, Compare, Compare, Logic, Move, Logic, Move]
};

impl Op {
    /// Registers and flags of data processing, but for the second operand.
    fn data(self, operation: Operation, s: bool, d: u8, n: u8) -> Op {
        use Operation::{Carry, Compare, Logic, Move, Sum, Test};
        let op = match operation {
            Move => self.w(d),
            Test | Compare => self.r(n),
            Logic | Sum | Carry => self.r(n).w(d),
        };
        match operation {
            Sum => op.sets(s),
            Compare => op.sets(true),
            Carry => op.sets(s).uses_carry(true),
            Test => op.sets_logic(true),
            Logic | Move => op.sets_logic(s),
        }
    }
}

/// All flags that `vmrs` and `mrc` write.
const ALL_FLAGS: u8 = N | Z | C | V;
