//! eBPF instructions, version 4 of the set, as the kernel documents it in
//! `Documentation/bpf/standardization/instruction-set.rst`.
//!
//! [`Slot`] is what is stored: 8 bytes. [`Insn`] is what is meant: [`Insn::decode`] accepts exactly
//! the encodings whose reserved fields are zero, so each `Insn` has one encoding, and who matches
//! on it has seen all there is.

use core::fmt;

/// A register, `r0` to `r10`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reg(u8);

impl Reg {
    /// Results of calls, and of the program.
    pub const R0: Reg = Reg(0);
    /// First argument; the context at the entry of a program.
    pub const R1: Reg = Reg(1);
    /// Second argument.
    pub const R2: Reg = Reg(2);
    /// Third argument.
    pub const R3: Reg = Reg(3);
    /// Fourth argument.
    pub const R4: Reg = Reg(4);
    /// Fifth argument.
    pub const R5: Reg = Reg(5);
    /// First of the registers that calls preserve.
    pub const R6: Reg = Reg(6);
    /// Preserved by calls.
    pub const R7: Reg = Reg(7);
    /// Preserved by calls.
    pub const R8: Reg = Reg(8);
    /// Preserved by calls.
    pub const R9: Reg = Reg(9);
    /// The frame pointer: the end of the function's stack. Read-only.
    pub const R10: Reg = Reg(10);
    /// How many there are.
    pub const COUNT: usize = 11;

    /// The register of this number, if there is one.
    #[must_use]
    pub const fn new(number: u8) -> Option<Reg> {
        if number < Self::COUNT as u8 { Some(Reg(number)) } else { None }
    }

    /// All of them, in order.
    pub fn all() -> impl DoubleEndedIterator<Item = Reg> {
        (0..Self::COUNT as u8).map(Reg)
    }

    /// Its number, below [`Reg::COUNT`].
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// Whether an operation works on the whole register or on its lower half.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// 32 bits. Results are zero-extended.
    W32,
    /// 64 bits. Immediates are sign-extended.
    W64,
}

impl Width {
    /// 32 or 64.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Width::W32 => 32,
            Width::W64 => 64,
        }
    }

    /// The memory operand of this width.
    #[must_use]
    pub const fn size(self) -> Size {
        match self {
            Width::W32 => Size::W,
            Width::W64 => Size::Dw,
        }
    }
}

/// Length of a memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Size {
    /// 1 byte.
    B,
    /// 2 bytes.
    H,
    /// 4 bytes.
    W,
    /// 8 bytes.
    Dw,
}

impl Size {
    /// 1, 2, 4 or 8.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
            Size::Dw => 8,
        }
    }

    /// 8, 16, 32 or 64.
    #[must_use]
    pub const fn bits(self) -> u32 {
        8 * self.bytes() as u32
    }
}

/// Second operand of arithmetic, jumps and stores.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// An immediate, sign-extended to the width of the operation.
    Imm(i32),
}

/// Arithmetic with two operands: `dst = dst op src`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AluOp {
    /// `+=`
    Add,
    /// `-=`
    Sub,
    /// `*=`
    Mul,
    /// `/=`, unsigned. Division by zero gives 0.
    Div,
    /// `s/=`, signed, rounds towards 0. By zero: 0. `MIN / -1`: `MIN`.
    Sdiv,
    /// `|=`
    Or,
    /// `&=`
    And,
    /// `<<=`. The count is taken modulo the width, as in the other shifts.
    Lsh,
    /// `>>=`, logical.
    Rsh,
    /// `s>>=`, arithmetic.
    Arsh,
    /// `%=`, unsigned. Modulo zero leaves `dst` (its lower half, zero-extended, with 32 bits).
    Mod,
    /// `s%=`, signed; the sign of the dividend. Modulo zero as in [`AluOp::Mod`]. `MIN % -1`: 0.
    Smod,
    /// `^=`
    Xor,
    /// `=`
    Mov,
}

/// Which bytes [`Insn::Swap`] exchanges.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Swap {
    /// Make little-endian (on a little-endian machine: zero-extend).
    Le,
    /// Make big-endian.
    Be,
    /// Reverse on any machine.
    Always,
}

/// Condition of a jump: `dst cond src`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cond {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `>`, unsigned.
    Gt,
    /// `>=`, unsigned.
    Ge,
    /// `<`, unsigned.
    Lt,
    /// `<=`, unsigned.
    Le,
    /// `s>`, signed.
    Sgt,
    /// `s>=`, signed.
    Sge,
    /// `s<`, signed.
    Slt,
    /// `s<=`, signed.
    Sle,
    /// `&`: a common bit is set.
    Set,
}

impl Cond {
    /// Whether it compares signed numbers.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self, Cond::Sgt | Cond::Sge | Cond::Slt | Cond::Sle)
    }
}

/// What an atomic operation does to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    /// `+=`; with `fetch`, the old value goes to `src`.
    Add {
        /// Give the old value.
        fetch: bool,
    },
    /// `|=`
    Or {
        /// Give the old value.
        fetch: bool,
    },
    /// `&=`
    And {
        /// Give the old value.
        fetch: bool,
    },
    /// `^=`
    Xor {
        /// Give the old value.
        fetch: bool,
    },
    /// Exchange memory with `src`.
    Xchg,
    /// If memory equals `r0`, store `src`. The old value goes to `r0`.
    Cmpxchg,
}

impl AtomicOp {
    /// Where the old value goes, given the operand.
    #[must_use]
    pub const fn result(self, src: Reg) -> Option<Reg> {
        match self {
            AtomicOp::Cmpxchg => Some(Reg::R0),
            AtomicOp::Xchg
            | AtomicOp::Add { fetch: true }
            | AtomicOp::Or { fetch: true }
            | AtomicOp::And { fetch: true }
            | AtomicOp::Xor { fetch: true } => Some(src),
            _ => None,
        }
    }
}

/// What [`Insn::LoadImm64`] loads: the `src` field says how to read the two immediates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Imm64 {
    /// 0: the value itself.
    Value(u64),
    /// 1: the map with this descriptor.
    MapFd(u32),
    /// 2: an address in the value of the only entry of the map with this descriptor.
    MapFdValue {
        /// The descriptor.
        map: u32,
        /// Offset in the value.
        offset: u32,
    },
    /// 3: a kernel variable, by its BTF number.
    BtfId {
        /// Number of the variable.
        id: u32,
        /// Descriptor of its module's BTF.
        module: u32,
    },
    /// 4: a function of the program, relative to the next slot but counted as in calls: slot of
    /// this instruction + 1 + this.
    Func(i32),
    /// 5: the map with this index in the program's list.
    Map(u32),
    /// 6: an address in a value of the array with this index.
    MapValue {
        /// The index.
        map: u32,
        /// Offset in the map's values, which lie one behind the other, each rounded up to 8 bytes.
        offset: u32,
    },
    /// 15, none of the kernel's: an address in the memory that each thread has for itself (its
    /// *cells*). What linking makes of references to values of maps that have one per thread.
    Thread(u32),
}

/// An instruction. Offsets of jumps and calls count slots, from the end of the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Insn {
    /// `dst = dst op src`
    Alu {
        /// Of both operands.
        width: Width,
        /// Which arithmetic.
        op: AluOp,
        /// First operand and result.
        dst: Reg,
        /// Second operand.
        src: Operand,
    },
    /// `dst = -dst`
    Neg {
        /// Of the operand.
        width: Width,
        /// Operand and result.
        dst: Reg,
    },
    /// `dst = (s8)src`: sign-extends the lower `from` bits to `width`, then zero-extends.
    MovSx {
        /// Of the result.
        width: Width,
        /// Result.
        dst: Reg,
        /// Operand.
        src: Reg,
        /// Its length, shorter than `width`.
        from: Size,
    },
    /// `dst = be16 dst`: reverses the lower `size` bytes, zero-extends.
    Swap {
        /// Which order.
        order: Swap,
        /// 2, 4 or 8 bytes.
        size: Size,
        /// Operand and result.
        dst: Reg,
    },
    /// `dst = *(size *)(base + off)`, zero- or sign-extended.
    Load {
        /// Length.
        size: Size,
        /// Sign-extend. Never with [`Size::Dw`].
        signed: bool,
        /// Result.
        dst: Reg,
        /// Address.
        base: Reg,
        /// Added to the address.
        off: i16,
    },
    /// `*(size *)(base + off) = src`
    Store {
        /// Length.
        size: Size,
        /// Address.
        base: Reg,
        /// Added to the address.
        off: i16,
        /// What to store: its lower part.
        src: Operand,
    },
    /// `lock *(width *)(base + off) op= src`
    Atomic {
        /// Of memory and operands.
        width: Width,
        /// What is done.
        op: AtomicOp,
        /// Address.
        base: Reg,
        /// Added to the address.
        off: i16,
        /// Operand, and result of those that fetch.
        src: Reg,
    },
    /// `dst = imm ll`: two slots.
    LoadImm64 {
        /// Result.
        dst: Reg,
        /// What it loads.
        imm: Imm64,
    },
    /// `goto off`
    Goto {
        /// In slots, from the next instruction.
        off: i32,
        /// `gotol`: the encoding with 32 bits, for any `off`; else `off` fits in 16.
        long: bool,
    },
    /// `if dst cond src goto off`
    Branch {
        /// Of both operands.
        width: Width,
        /// When to jump.
        cond: Cond,
        /// First operand.
        dst: Reg,
        /// Second operand.
        src: Operand,
        /// In slots, from the next instruction.
        off: i16,
    },
    /// Calls a helper: arguments `r1` to `r5`, result `r0`, which `r1` to `r5` do not survive.
    CallHelper(u32),
    /// Calls a function of the program, in slots from the next instruction; it gets a stack of its
    /// own.
    CallLocal(i32),
    /// Returns `r0`.
    Exit,
}

impl Insn {
    /// Slots it takes: 2 for [`Insn::LoadImm64`], else 1.
    #[must_use]
    pub const fn slots(&self) -> usize {
        match self {
            Insn::LoadImm64 { .. } => 2,
            _ => 1,
        }
    }

    /// Where it may continue other than at the next instruction: the offset of a jump, not of a
    /// call.
    #[must_use]
    pub fn jump(&self) -> Option<i32> {
        match *self {
            Insn::Goto { off, .. } => Some(off),
            Insn::Branch { off, .. } => Some(i32::from(off)),
            _ => None,
        }
    }

    /// Whether the next instruction can follow it.
    #[must_use]
    pub fn falls_through(&self) -> bool {
        !matches!(self, Insn::Goto { .. } | Insn::Exit)
    }
}

/// An instruction as it is stored; a long immediate has two. In memory: little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct Slot {
    /// Class and operation.
    pub opcode: u8,
    /// `dst` in the lower four bits, `src` in the upper.
    pub regs: u8,
    /// Offset.
    pub off: i16,
    /// Immediate.
    pub imm: i32,
}

impl Slot {
    /// From 8 bytes as stored in little-endian objects.
    #[must_use]
    pub const fn from_bytes(b: [u8; 8]) -> Slot {
        Slot {
            opcode: b[0],
            regs: b[1],
            off: i16::from_le_bytes([b[2], b[3]]),
            imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }

    /// To 8 bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 8] {
        let (off, imm) = (self.off.to_le_bytes(), self.imm.to_le_bytes());
        [self.opcode, self.regs, off[0], off[1], imm[0], imm[1], imm[2], imm[3]]
    }

    /// The field `dst`, which may name no register.
    #[must_use]
    pub const fn dst(self) -> u8 {
        self.regs & 15
    }

    /// The field `src`, which may name no register or be a subtype.
    #[must_use]
    pub const fn src(self) -> u8 {
        self.regs >> 4
    }
}
