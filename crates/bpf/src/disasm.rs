//! Instructions as text, as LLVM writes them (`llvm-objdump -d --mcpu=v4`).
//!
//! Where LLVM's text says less than the instruction, it is made complete: `call helper#14` calls a
//! helper and `call pc+3` a function of the program; what two slots load is named
//! (`r1 = map(0) ll`). [`crate::asm`] reads it.

use core::fmt;

use crate::insn::{AluOp, AtomicOp, Cond, Imm64, Insn, Operand, Reg, Size, Swap, Width};

/// A register as an operand of this width: `r1` or `w1`.
struct Sized(Width, Reg);

impl fmt::Display for Sized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = if self.0 == Width::W64 { 'r' } else { 'w' };
        write!(f, "{letter}{}", self.1.number())
    }
}

/// A second operand of this width.
struct Source(Width, Operand);

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Operand::Reg(reg) => Sized(self.0, reg).fmt(f),
            Operand::Imm(imm) => imm.fmt(f),
        }
    }
}

/// `r1 + 8`
struct Address(Reg, i16);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.0, if self.1 < 0 { '-' } else { '+' }, self.1.unsigned_abs())
    }
}

/// The registers of a memory operand: only 8 bytes need the whole register.
fn width_of(size: Size) -> Width {
    if size == Size::Dw { Width::W64 } else { Width::W32 }
}

impl AluOp {
    /// The operation before `=`; empty for a move.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            AluOp::Add => "+",
            AluOp::Sub => "-",
            AluOp::Mul => "*",
            AluOp::Div => "/",
            AluOp::Sdiv => "s/",
            AluOp::Or => "|",
            AluOp::And => "&",
            AluOp::Lsh => "<<",
            AluOp::Rsh => ">>",
            AluOp::Arsh => "s>>",
            AluOp::Mod => "%",
            AluOp::Smod => "s%",
            AluOp::Xor => "^",
            AluOp::Mov => "",
        }
    }
}

impl Cond {
    /// The condition between its operands.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Cond::Eq => "==",
            Cond::Ne => "!=",
            Cond::Gt => ">",
            Cond::Ge => ">=",
            Cond::Lt => "<",
            Cond::Le => "<=",
            Cond::Sgt => "s>",
            Cond::Sge => "s>=",
            Cond::Slt => "s<",
            Cond::Sle => "s<=",
            Cond::Set => "&",
        }
    }
}

impl fmt::Display for Imm64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Imm64::Value(value) => write!(f, "{} ll", value as i64),
            Imm64::MapFd(fd) => write!(f, "map_fd({fd}) ll"),
            Imm64::MapFdValue { map, offset } => write!(f, "map_fd_value({map}, {offset}) ll"),
            Imm64::BtfId { id, module } => write!(f, "btf_id({id}, {module}) ll"),
            Imm64::Func(off) => write!(f, "func(pc{off:+}) ll"),
            Imm64::Map(index) => write!(f, "map({index}) ll"),
            Imm64::MapValue { map, offset } => write!(f, "map_value({map}, {offset}) ll"),
            Imm64::Thread(offset) => write!(f, "thread({offset}) ll"),
        }
    }
}

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Insn::Alu { width, op, dst, src } => {
                write!(f, "{} {}= {}", Sized(width, dst), op.symbol(), Source(width, src))
            }
            Insn::Neg { width, dst } => write!(f, "{0} = -{0}", Sized(width, dst)),
            Insn::MovSx { width, dst, src, from } => {
                write!(f, "{} = (s{}){}", Sized(width, dst), from.bits(), Sized(width, src))
            }
            Insn::Swap { order, size, dst } => {
                let name = match order {
                    Swap::Le => "le",
                    Swap::Be => "be",
                    Swap::Always => "bswap",
                };
                write!(f, "{dst} = {name}{} {dst}", size.bits())
            }
            Insn::Load { size, signed, dst, base, off } => {
                let (kind, width) = if signed { ('s', Width::W64) } else { ('u', width_of(size)) };
                write!(f, "{} = *({kind}{} *)({})", Sized(width, dst), size.bits(), Address(base, off))
            }
            Insn::Store { size, base, off, src } => {
                write!(f, "*(u{} *)({}) = {}", size.bits(), Address(base, off), Source(width_of(size), src))
            }
            Insn::Atomic { width, op, base, off, src } => atomic(f, width, op, &Address(base, off), src),
            Insn::LoadImm64 { dst, imm } => write!(f, "{dst} = {imm}"),
            Insn::Goto { off, long } => write!(f, "goto{} {off:+}", if long { "l" } else { "" }),
            Insn::Branch { width, cond, dst, src, off } => {
                write!(f, "if {} {} {} goto {off:+}", Sized(width, dst), cond.symbol(), Source(width, src))
            }
            Insn::CallHelper(number) => write!(f, "call helper#{number}"),
            Insn::CallLocal(off) => write!(f, "call pc{off:+}"),
            Insn::Exit => f.write_str("exit"),
        }
    }
}

fn atomic(f: &mut fmt::Formatter<'_>, width: Width, op: AtomicOp, at: &Address, src: Reg) -> fmt::Result {
    let (bits, reg) = (width.bits(), Sized(width, src));
    let (symbol, name, fetch) = match op {
        AtomicOp::Add { fetch } => ('+', "add", fetch),
        AtomicOp::Or { fetch } => ('|', "or", fetch),
        AtomicOp::And { fetch } => ('&', "and", fetch),
        AtomicOp::Xor { fetch } => ('^', "xor", fetch),
        AtomicOp::Xchg => return write!(f, "{reg} = xchg{}({at}, {reg})", exchange(width)),
        AtomicOp::Cmpxchg => {
            let r0 = Sized(width, Reg::R0);
            return write!(f, "{r0} = cmpxchg{}({at}, {r0}, {reg})", exchange(width));
        }
    };
    if fetch {
        write!(f, "{reg} = atomic_fetch_{name}((u{bits} *)({at}), {reg})")
    } else {
        write!(f, "lock *(u{bits} *)({at}) {symbol}= {reg}")
    }
}

/// What LLVM appends to the names of exchanges.
fn exchange(width: Width) -> &'static str {
    if width == Width::W64 { "_64" } else { "32_32" }
}
