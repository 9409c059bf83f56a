//! Arguments of a static probe: the note of its site says where each lies, so a program that asks
//! for them is completed for that site before it is compiled. What was a call becomes a load of a
//! register, a constant, or a read of memory: a checked one, unless the memory is there for
//! certain.

use super::body::{Body, New, Node};
use super::known::{self, Base};
use super::simplify;
use crate::insn::Imm64;
use crate::insn::{AluOp, Insn, Operand, Reg, Size, Width};
use crate::verify::{Memory, Verified};

/// Number of the helper `static_argument`: the context, the number of the argument (a constant),
/// and a word of the program's stack that may be overwritten.
pub const STATIC_ARGUMENT: u32 = 264;

/// `probe_read_user`
const READ_USER: u32 = 112;

/// An argument: where it is, and how it becomes a number of 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Argument {
    /// How many bytes it has.
    pub size: Size,
    /// It is extended by its highest bit, not by zeros.
    pub signed: bool,
    /// Where its first byte is.
    pub source: Source,
}

/// Where an argument is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// It is this number.
    Constant(u64),
    /// At this offset in the context.
    Context(u16),
    /// In memory that may not be there: then the argument is 0.
    Memory(Address),
    /// In memory that is mapped whenever the site is executed.
    Mapped(Address),
}

/// The sum of all that is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// Offset in the context of a register.
    pub base: Option<u16>,
    /// Another one, and by how many bits it is shifted to the left.
    pub index: Option<(u16, u8)>,
    /// A constant.
    pub displacement: u64,
    /// Addresses have 32 bits, and so have the registers.
    pub short: bool,
}

/// Numbers of the arguments that a program asks for, ascending. An empty list: it is complete as it
/// is.
///
/// # Errors
/// The number of an instruction that asks for an argument which is not always the same.
pub fn asked(verified: &Verified) -> Result<Vec<u64>, usize> {
    if !verified.facts.helpers.contains(&STATIC_ARGUMENT) {
        return Ok(Vec::new());
    }
    let body = Body::new(&verified.program, &verified.facts, &verified.origin).ok_or(0_usize)?;
    let mut numbers = Vec::new();
    for (at, (node, state)) in body.nodes.iter().zip(known::before(&body)).enumerate() {
        if let (Insn::CallHelper(STATIC_ARGUMENT), Some(state)) = (node.insn, state) {
            numbers.push(state.reg(Reg::R2).number().ok_or(at)?);
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// The linked program for sites whose arguments are where `find` says; those that it does not have
/// are 0. `None` if [`asked`] fails.
#[must_use]
pub fn complete(verified: &Verified, find: impl Fn(u64) -> Option<Argument>) -> Option<Verified> {
    let mut body = Body::new(&verified.program, &verified.facts, &verified.origin)?;
    let states = known::before(&body);
    let mut whole = true;
    body.replace(|at, node| {
        if node.insn != Insn::CallHelper(STATIC_ARGUMENT) {
            return None;
        }
        let new = match &states[at] {
            // No path leads here.
            None => Some(constant(node, 0)),
            Some(state) => state.reg(Reg::R2).number().and_then(|number| {
                let word = state.reg(Reg::R3).offset_from(Base::Frame).and_then(|at| i16::try_from(at).ok())?;
                Some(find(number).map_or_else(|| constant(node, 0), |argument| value(node, argument, word)))
            }),
        };
        whole &= new.is_some();
        new
    });
    if !whole {
        return None;
    }
    simplify::run(&mut body);
    body.finish(verified)
}

fn constant(node: &Node, value: u64) -> Vec<New> {
    vec![node.with(Insn::LoadImm64 { dst: Reg::R0, imm: Imm64::Value(value) }).into()]
}

/// Leaves the argument in `r0`. `r1` is the context; `word` is free, relative to `r10`.
fn value(node: &Node, argument: Argument, word: i16) -> Vec<New> {
    let Argument { size, signed, source } = argument;
    let load = |size, signed, dst, base, off, memory| {
        let unaligned = off % size_of(size) != 0;
        let node = Node { memory: Some(memory), unaligned, ..node.with(Insn::Load { size, signed, dst, base, off }) };
        New::from(node)
    };
    match source {
        Source::Constant(value) => constant(node, extended(value, size, signed)),
        Source::Context(at) => {
            vec![load(size, is_extended(size, signed), Reg::R0, Reg::R1, at as i16, Memory::Context)]
        }
        Source::Memory(address) | Source::Mapped(address) => {
            let alu = |op, dst, src| New::from(node.with(Insn::Alu { width: Width::W64, op, dst, src }));
            // A register of 32-bit code has no upper half in the context.
            let register = |dst, at: u16| load(Size::Dw, false, dst, Reg::R1, at as i16, Memory::Context);
            let mut list = vec![match address.base {
                Some(at) => register(Reg::R3, at),
                None => alu(AluOp::Mov, Reg::R3, Operand::Imm(0)),
            }];
            if let Some((at, shift)) = address.index {
                list.push(register(Reg::R2, at));
                list.push(alu(AluOp::Lsh, Reg::R2, Operand::Imm(shift.into())));
                list.push(alu(AluOp::Add, Reg::R3, Operand::Reg(Reg::R2)));
            }
            list.push(node.with(Insn::LoadImm64 { dst: Reg::R2, imm: Imm64::Value(address.displacement) }).into());
            list.push(alu(AluOp::Add, Reg::R3, Operand::Reg(Reg::R2)));
            if address.short {
                let half = Insn::Alu { width: Width::W32, op: AluOp::Mov, dst: Reg::R3, src: Operand::Reg(Reg::R3) };
                list.push(node.with(half).into());
            }
            if matches!(source, Source::Mapped(_)) {
                list.push(load(size, is_extended(size, signed), Reg::R0, Reg::R3, 0, Memory::Target));
                return list;
            }
            // What cannot be read is 0.
            let clear = Insn::Store { size: Size::Dw, base: Reg::R10, off: word, src: Operand::Imm(0) };
            list.push(Node { memory: Some(Memory::Stack), ..node.with(clear) }.into());
            list.push(alu(AluOp::Mov, Reg::R1, Operand::Reg(Reg::R10)));
            list.push(alu(AluOp::Add, Reg::R1, Operand::Imm(word.into())));
            list.push(alu(AluOp::Mov, Reg::R2, Operand::Imm(size.bytes() as i32)));
            list.push(node.with(Insn::CallHelper(READ_USER)).into());
            list.push(load(size, is_extended(size, signed), Reg::R0, Reg::R10, word, Memory::Stack));
            list
        }
    }
}

fn size_of(size: Size) -> i16 {
    size.bytes() as i16
}

/// Loads of eight bytes have no sign to extend.
fn is_extended(size: Size, signed: bool) -> bool {
    signed && size != Size::Dw
}

fn extended(value: u64, size: Size, signed: bool) -> u64 {
    let unused = 64 - size.bits();
    match signed {
        true => ((value << unused) as i64 >> unused) as u64,
        false => value << unused >> unused,
    }
}
