//! One instruction from text.

use super::AsmProblem;
use super::cursor::{Cursor, Failure};
use crate::insn::{AluOp, AtomicOp, Cond, Imm64, Insn, Operand, Reg, Size, Swap, Width};

/// An instruction whose distance to a label is not known yet.
#[derive(Clone, Copy)]
pub struct Statement<'a> {
    pub insn: Insn,
    /// Where a jump, call or function reference goes, and where in the line that stands.
    pub target: Option<(usize, Target<'a>)>,
}

#[derive(Clone, Copy)]
pub enum Target<'a> {
    Offset(i128),
    Label(&'a str),
}

impl From<Insn> for Statement<'_> {
    fn from(insn: Insn) -> Self {
        Statement { insn, target: None }
    }
}

const I32: (i128, i128) = (i32::MIN as i128, i32::MAX as i128);
const U32_MAX: i128 = u32::MAX as i128;

/// Longer signs before their beginnings.
const ALU: &[(&str, AluOp)] = &[
    ("s>>=", AluOp::Arsh),
    ("s/=", AluOp::Sdiv),
    ("s%=", AluOp::Smod),
    ("<<=", AluOp::Lsh),
    (">>=", AluOp::Rsh),
    ("+=", AluOp::Add),
    ("-=", AluOp::Sub),
    ("*=", AluOp::Mul),
    ("/=", AluOp::Div),
    ("|=", AluOp::Or),
    ("&=", AluOp::And),
    ("%=", AluOp::Mod),
    ("^=", AluOp::Xor),
];

const CONDITIONS: &[(&str, Cond)] = &[
    ("s>=", Cond::Sge),
    ("s<=", Cond::Sle),
    ("s>", Cond::Sgt),
    ("s<", Cond::Slt),
    ("==", Cond::Eq),
    ("!=", Cond::Ne),
    (">=", Cond::Ge),
    ("<=", Cond::Le),
    (">", Cond::Gt),
    ("<", Cond::Lt),
    ("&", Cond::Set),
];

/// Type name, length, and whether it is signed.
const TYPES: &[(&str, (Size, bool))] = &[
    ("u8", (Size::B, false)),
    ("u16", (Size::H, false)),
    ("u32", (Size::W, false)),
    ("u64", (Size::Dw, false)),
    ("s8", (Size::B, true)),
    ("s16", (Size::H, true)),
    ("s32", (Size::W, true)),
];

const SWAPS: &[(&str, (Swap, Size))] = &[
    ("le16", (Swap::Le, Size::H)),
    ("le32", (Swap::Le, Size::W)),
    ("le64", (Swap::Le, Size::Dw)),
    ("be16", (Swap::Be, Size::H)),
    ("be32", (Swap::Be, Size::W)),
    ("be64", (Swap::Be, Size::Dw)),
    ("bswap16", (Swap::Always, Size::H)),
    ("bswap32", (Swap::Always, Size::W)),
    ("bswap64", (Swap::Always, Size::Dw)),
];

const FETCHES: &[(&str, AtomicOp)] = &[
    ("atomic_fetch_add", AtomicOp::Add { fetch: true }),
    ("atomic_fetch_or", AtomicOp::Or { fetch: true }),
    ("atomic_fetch_and", AtomicOp::And { fetch: true }),
    ("atomic_fetch_xor", AtomicOp::Xor { fetch: true }),
];

const EXCHANGES: &[(&str, (Width, AtomicOp))] = &[
    ("xchg_64", (Width::W64, AtomicOp::Xchg)),
    ("xchg32_32", (Width::W32, AtomicOp::Xchg)),
    ("cmpxchg_64", (Width::W64, AtomicOp::Cmpxchg)),
    ("cmpxchg32_32", (Width::W32, AtomicOp::Cmpxchg)),
];

/// The instruction at the cursor.
pub fn parse<'a>(c: &mut Cursor<'a>) -> Result<Statement<'a>, Failure> {
    if let Some((width, dst)) = c.try_reg() {
        return if c.eat("=") {
            assign(c, width, dst)
        } else if let Some(op) = c.one_of(ALU) {
            Ok(Insn::Alu { width, op, dst, src: operand(c, width)? }.into())
        } else {
            c.expected("= or an operation such as +=")
        };
    }
    if c.eat("*") {
        return store(c).map(Into::into);
    }
    let start = c.position();
    match c.word() {
        "exit" => Ok(Insn::Exit.into()),
        "goto" => jump(c, Insn::Goto { off: 0, long: false }),
        "gotol" => jump(c, Insn::Goto { off: 0, long: true }),
        "if" => {
            let (width, dst) = c.reg()?;
            let Some(cond) = c.one_of(CONDITIONS) else { return c.expected("a condition such as == or s>") };
            let src = operand(c, width)?;
            if !c.eat_word("goto") {
                return c.expected("goto");
            }
            jump(c, Insn::Branch { width, cond, dst, src, off: 0 })
        }
        "call" => call(c),
        "lock" => lock(c).map(Into::into),
        _ => Err((start, AsmProblem::Expected("an instruction"))),
    }
}

/// What follows `dst =`.
fn assign<'a>(c: &mut Cursor<'a>, width: Width, dst: Reg) -> Result<Statement<'a>, Failure> {
    let start = c.position();
    if let Some((found, src)) = c.try_reg() {
        if found != width {
            return Err((start, AsmProblem::Widths));
        }
        return Ok(Insn::Alu { width, op: AluOp::Mov, dst, src: Operand::Reg(src) }.into());
    }
    if c.eat("*") {
        let (size, signed) = pointer(c)?;
        if width == Width::W32 && (signed || size == Size::Dw) {
            return Err((start, AsmProblem::Widths));
        }
        let (base, off) = address(c)?;
        return Ok(Insn::Load { size, signed, dst, base, off }.into());
    }
    if c.eat("(") {
        return extend(c, width, dst).map(Into::into);
    }
    for (name, (order, size)) in SWAPS {
        if c.eat_word(name) {
            same(c, dst)?;
            return Ok(Insn::Swap { order: *order, size: *size, dst }.into());
        }
    }
    for (name, op) in FETCHES {
        if c.eat_word(name) {
            c.need("(")?;
            let of = access(c)?;
            let (base, off) = address(c)?;
            c.need(",")?;
            let src = exchanged(c, of, width, dst)?;
            return Ok(Insn::Atomic { width, op: *op, base, off, src }.into());
        }
    }
    for (name, (of, op)) in EXCHANGES {
        if c.eat_word(name) {
            c.need("(")?;
            let (base, off) = offset(c)?;
            c.need(",")?;
            if *op == AtomicOp::Cmpxchg {
                if dst != Reg::R0 || c.reg_of(*of)? != Reg::R0 {
                    return Err((start, AsmProblem::Expected("r0 as result and second operand of cmpxchg")));
                }
                c.need(",")?;
                if width != *of {
                    return Err((start, AsmProblem::Widths));
                }
                let src = c.reg_of(width)?;
                c.need(")")?;
                return Ok(Insn::Atomic { width, op: *op, base, off, src }.into());
            }
            let src = exchanged(c, *of, width, dst)?;
            return Ok(Insn::Atomic { width, op: *op, base, off, src }.into());
        }
    }
    if let Some(statement) = reference(c, width, dst)? {
        return Ok(statement);
    }
    value(c, width, dst).map(Into::into)
}

/// `(s8)src`, behind the parenthesis.
fn extend(c: &mut Cursor<'_>, width: Width, dst: Reg) -> Result<Insn, Failure> {
    let at = c.position();
    let from = match type_name(c)? {
        (size, true) if size.bits() < width.bits() => size,
        _ => return Err((at, AsmProblem::Expected("a signed type that is shorter than the register"))),
    };
    c.need(")")?;
    Ok(Insn::MovSx { width, dst, src: c.reg_of(width)?, from })
}

/// `-dst`, a number, or a number of 64 bits.
fn value(c: &mut Cursor<'_>, width: Width, dst: Reg) -> Result<Insn, Failure> {
    let at = c.position();
    let mut negated = c.clone();
    if negated.eat("-") && negated.try_reg().is_some() {
        c.eat("-");
        if c.reg_of(width)? != dst {
            return Err((at, AsmProblem::Expected("the same register on both sides")));
        }
        return Ok(Insn::Neg { width, dst });
    }
    let value = c.number(i64::MIN.into(), u64::MAX.into())?;
    if c.eat_word("ll") {
        if width != Width::W64 {
            return Err((at, AsmProblem::Widths));
        }
        return Ok(Insn::LoadImm64 { dst, imm: Imm64::Value(value as u64) });
    }
    let (min, max) = immediates(width);
    if value < min || value > max {
        return Err((at, AsmProblem::Range { value, min, max }));
    }
    Ok(Insn::Alu { width, op: AluOp::Mov, dst, src: Operand::Imm(value as i32) })
}

/// `map(0) ll` and the like.
fn reference<'a>(c: &mut Cursor<'a>, width: Width, dst: Reg) -> Result<Option<Statement<'a>>, Failure> {
    let start = c.position();
    let mut target = None;
    let imm = if c.eat_word("func") {
        c.need("(")?;
        target = Some((c.position(), self::target(c, "pc")?));
        Imm64::Func(0)
    } else if c.eat_word("map_fd") {
        Imm64::MapFd(first(c)?)
    } else if c.eat_word("map_fd_value") {
        Imm64::MapFdValue { map: first(c)?, offset: second(c)? }
    } else if c.eat_word("btf_id") {
        Imm64::BtfId { id: first(c)?, module: second(c)? }
    } else if c.eat_word("map") {
        Imm64::Map(first(c)?)
    } else if c.eat_word("map_value") {
        Imm64::MapValue { map: first(c)?, offset: second(c)? }
    } else if c.eat_word("thread") {
        Imm64::Thread(first(c)?)
    } else {
        return Ok(None);
    };
    c.need(")")?;
    if !c.eat_word("ll") {
        return c.expected("ll");
    }
    if width != Width::W64 {
        return Err((start, AsmProblem::Widths));
    }
    Ok(Some(Statement { insn: Insn::LoadImm64 { dst, imm }, target }))
}

fn first(c: &mut Cursor<'_>) -> Result<u32, Failure> {
    c.need("(")?;
    c.number(0, U32_MAX).map(|n| n as u32)
}

fn second(c: &mut Cursor<'_>) -> Result<u32, Failure> {
    c.need(",")?;
    c.number(0, U32_MAX).map(|n| n as u32)
}

/// `*(u64 *)(r1 + 8) = src`, behind the star.
fn store(c: &mut Cursor<'_>) -> Result<Insn, Failure> {
    let at = c.position();
    let (size, signed) = pointer(c)?;
    if signed {
        return Err((at, AsmProblem::Expected("an unsigned type: stores have no sign")));
    }
    let (base, off) = address(c)?;
    c.need("=")?;
    let at = c.position();
    let src = match c.try_reg() {
        Some((Width::W32, _)) if size == Size::Dw => return Err((at, AsmProblem::Widths)),
        Some((_, reg)) => Operand::Reg(reg),
        None => {
            let (min, max) = immediates(if size == Size::Dw { Width::W64 } else { Width::W32 });
            Operand::Imm(c.number(min, max)? as i32)
        }
    };
    Ok(Insn::Store { size, base, off, src })
}

/// `lock *(u64 *)(r1 + 0) += src`
fn lock(c: &mut Cursor<'_>) -> Result<Insn, Failure> {
    c.need("*")?;
    let width = access(c)?;
    let (base, off) = address(c)?;
    let op = match c.one_of(ALU) {
        Some(AluOp::Add) => AtomicOp::Add { fetch: false },
        Some(AluOp::Or) => AtomicOp::Or { fetch: false },
        Some(AluOp::And) => AtomicOp::And { fetch: false },
        Some(AluOp::Xor) => AtomicOp::Xor { fetch: false },
        _ => return c.expected("+=, |=, &= or ^="),
    };
    // LLVM before 16 writes whole registers for 4 bytes, too.
    let at = c.position();
    match c.reg()? {
        (Width::W32, _) if width == Width::W64 => Err((at, AsmProblem::Widths)),
        (_, src) => Ok(Insn::Atomic { width, op, base, off, src }),
    }
}

fn call<'a>(c: &mut Cursor<'a>) -> Result<Statement<'a>, Failure> {
    let mut number = c.clone();
    if number.number(0, U32_MAX).is_ok() || c.eat_word("helper") {
        c.eat("#");
        return Ok(Insn::CallHelper(c.number(0, U32_MAX)? as u32).into());
    }
    let at = c.position();
    let target = target(c, "pc")?;
    Ok(Statement { insn: Insn::CallLocal(0), target: Some((at, target)) })
}

fn jump<'a>(c: &mut Cursor<'a>, insn: Insn) -> Result<Statement<'a>, Failure> {
    let at = c.position();
    let target = target(c, "")?;
    Ok(Statement { insn, target: Some((at, target)) })
}

/// A label, or an offset with its sign behind `prefix`.
fn target<'a>(c: &mut Cursor<'a>, prefix: &str) -> Result<Target<'a>, Failure> {
    let mut offset = c.clone();
    if (prefix.is_empty() || offset.eat_word(prefix)) && (offset.peek("+") || offset.peek("-")) {
        c.eat(prefix);
        return c.number(i32::MIN.into(), i32::MAX.into()).map(Target::Offset);
    }
    match c.word() {
        "" => c.expected("a label or an offset such as +3"),
        name => Ok(Target::Label(name)),
    }
}

/// The second operand of arithmetic and branches.
fn operand(c: &mut Cursor<'_>, width: Width) -> Result<Operand, Failure> {
    let at = c.position();
    match c.try_reg() {
        Some((found, reg)) if found == width => Ok(Operand::Reg(reg)),
        Some(_) => Err((at, AsmProblem::Widths)),
        None => {
            let (min, max) = immediates(width);
            Ok(Operand::Imm(c.number(min, max)? as i32))
        }
    }
}

/// The immediates of an operation: with 32 bits also those that are meant unsigned.
fn immediates(width: Width) -> (i128, i128) {
    if width == Width::W64 { I32 } else { (I32.0, U32_MAX) }
}

/// The same register again, whatever its width.
fn same(c: &mut Cursor<'_>, dst: Reg) -> Result<(), Failure> {
    let at = c.position();
    if c.reg()?.1 == dst { Ok(()) } else { Err((at, AsmProblem::Expected("the same register on both sides"))) }
}

/// The last operand of an exchange of width `of`, which is also its result, and the parenthesis.
fn exchanged(c: &mut Cursor<'_>, of: Width, width: Width, dst: Reg) -> Result<Reg, Failure> {
    let at = c.position();
    if of != width {
        return Err((at, AsmProblem::Widths));
    }
    let src = c.reg_of(width)?;
    if src != dst {
        return Err((at, AsmProblem::Expected("the same register on both sides")));
    }
    c.need(")")?;
    Ok(src)
}

/// `(u32 *)` or `(u64 *)`.
fn access(c: &mut Cursor<'_>) -> Result<Width, Failure> {
    let at = c.position();
    match pointer(c)? {
        (Size::W, false) => Ok(Width::W32),
        (Size::Dw, false) => Ok(Width::W64),
        _ => Err((at, AsmProblem::Expected("u32 or u64: atomics have 4 or 8 bytes"))),
    }
}

/// `(u64 *)`
fn pointer(c: &mut Cursor<'_>) -> Result<(Size, bool), Failure> {
    c.need("(")?;
    let of = type_name(c)?;
    c.need("*")?;
    c.need(")")?;
    Ok(of)
}

fn type_name(c: &mut Cursor<'_>) -> Result<(Size, bool), Failure> {
    match TYPES.iter().find(|(name, _)| c.eat_word(name)) {
        Some(&(_, of)) => Ok(of),
        None => c.expected("a type: u8, u16, u32, u64, s8, s16 or s32"),
    }
}

/// `(r1 + 8)`
fn address(c: &mut Cursor<'_>) -> Result<(Reg, i16), Failure> {
    c.need("(")?;
    let address = offset(c)?;
    c.need(")")?;
    Ok(address)
}

/// `r1 + 8`, also without the offset.
fn offset(c: &mut Cursor<'_>) -> Result<(Reg, i16), Failure> {
    let base = c.reg_of(Width::W64)?;
    if !c.peek("+") && !c.peek("-") {
        return Ok((base, 0));
    }
    Ok((base, c.number(i16::MIN.into(), i16::MAX.into())? as i16))
}
