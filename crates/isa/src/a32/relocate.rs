//! Relocate: one instruction encoded for another address, with the effect that it had at its own.
//!
//! | instruction | copy |
//! |---|---|
//! | all that neither read the program counter nor are direct branches | the same |
//! | `b`, `bx pc`, `add pc, pc, #imm` | `ldr pc, =target` |
//! | `bl`, `blx` of a label | `movw lr, #next; movt lr, #next; ldr pc, =target` |
//! | `blx Rm` | `movw lr, #next; movt lr, #next; bx Rm` |
//! | `blx lr` | `push {lr}; movw lr, #next; movt lr, #next; pop {pc}` |
//! | `cbz`, `cbnz` | the opposite one over `ldr pc, =target` |
//! | `adr`, `mov Rd, pc` | `movw Rd, #value; movt Rd, #value` |
//! | `ldr Rt` and its like of a literal | `movw Rt, #address; movt Rt, #address; ldr Rt, [Rt]` |
//! | `pld` of a literal | `nop` |
//! | others that read the program counter | a register is put on the stack, and has it meanwhile |
//! | the same, to the program counter | the result is put on the stack, and popped |
//! | `tbb`, `tbh` | two registers are saved on the stack; the table is read; the target is popped |
//!
//! A condition becomes a branch over all that with the opposite one. In a block of `it`, each
//! instruction then gets an `it` of its own or such a branch; a block none of whose instructions
//! has to change stays as it is.
//!
//! `ldr pc, =target` has its address behind itself, so copies reach everything from everywhere. The
//! length depends on the instruction only: in T32 two more bytes are there for the alignment.
//!
//! Calls set the link register to the *original* return address. Bit 0 of addresses that are jumped
//! to says T32; `mov pc` and `add pc` of T32 do not look at it (`BranchWritePC`, section A2.3.1),
//! so what is popped in their place gets it.
//!
//! What a register is put on the stack for faults with a stack pointer that is up to [`SPILL`]
//! bytes lower. AAPCS32 has no red zone (6.2.1.2).

use super::class::{Class, Op};
use super::decode::{Insn, decode, wrap};
use super::emit::{Code, it};
use super::{LINK, PC};
use crate::relocate::{self, RelocateError};
use crate::{Isa, Len, Va};

/// Bytes by which the stack pointer is lower inside some copies, at most.
pub const SPILL: u64 = 12;

/// Instructions that have no equivalent elsewhere. Compilers write none of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsupported {
    /// `push {…, pc}`.
    #[error("it stores its own address among other registers")]
    StoresAddress,
    /// The stack pointer is an operand, so nothing can be put on the stack.
    #[error("it takes its own address and the stack pointer, so that no register can be saved")]
    NoRegister,
}

/// How an instruction is copied. The length follows from this alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Same,
    Nop,
    /// Bit 0 says T32.
    Jump {
        to: u32,
    },
    Call {
        to: u32,
    },
    CallRegister {
        register: u8,
    },
    CompareZero {
        to: u32,
    },
    Constant {
        register: u8,
        value: u32,
    },
    /// The word has this register for the program counter.
    Own {
        register: u8,
        value: u32,
        word: u32,
    },
    /// The same with a register that is saved.
    Spill {
        register: u8,
        value: u32,
        word: u32,
    },
    /// The same, and the register has the target.
    SpillAndGo {
        register: u8,
        value: u32,
        word: u32,
    },
    Table {
        registers: [u8; 2],
        pc: u32,
    },
}

/// The length of the copy that [`relocate()`] makes.
///
/// # Errors
/// There is no such copy.
pub fn relocated_len(isa: Isa, bytes: &[u8], from: Va) -> Result<usize, RelocateError> {
    Ok(copy(&decode(isa, bytes, from)?, Va(0), bytes)?.len())
}

/// Appends the copy of the instruction at the start of `bytes`, which lies at `from`, for the
/// address `to`. Nothing is appended if that fails.
///
/// ```
/// use sidestep_isa::{Isa, RelocateError, Va, a32};
/// let mut copy = Vec::new();
/// // ldr r0, [pc, #8]
/// a32::relocate(Isa::A32, &[0x08, 0x00, 0x9f, 0xe5], Va(0x1000), Va(0x5000), &mut copy)?;
/// // movw r0, #0x1010; movt r0, #0; ldr r0, [r0]
/// assert_eq!(copy, [0x10, 0x00, 0x01, 0xe3, 0x00, 0x00, 0x40, 0xe3, 0x00, 0x00, 0x90, 0xe5]);
/// # Ok::<(), RelocateError>(())
/// ```
///
/// # Errors
/// There is no such copy.
pub fn relocate(isa: Isa, bytes: &[u8], from: Va, to: Va, out: &mut Vec<u8>) -> Result<(), RelocateError> {
    let insn = decode(isa, bytes, from)?;
    out.extend(copy(&insn, to, bytes)?);
    Ok(())
}

/// A return that loads the program counter, among other registers maybe, in two parts: this is the
/// load, with the link register in place of the program counter. Behind it, `bx lr` returns.
/// `None`: it is no such return, or has a condition.
#[must_use]
pub fn load_of_return(isa: Isa, bytes: &[u8]) -> Option<Vec<u8>> {
    let insn = decode(isa, bytes, Va(0)).ok().filter(Insn::loads_return_address)?;
    let op = insn.single().filter(|op| op.is_always())?;
    let mut code = Code::new(Va(0), op.thumb);
    let list = op.writes & !(1 << PC) & !op.base.map_or(0, |base| 1 << base) | 1 << LINK;
    match (op.class, op.len) {
        (Class::LoadMultiple, 2) if list.count_ones() > 1 => code.word(0xe8bd_0000 | u32::from(list)),
        // pop {pc}
        (Class::LoadMultiple, 2) => code.word(0xf85d_0b04 | u32::from(LINK) << 12),
        (Class::LoadMultiple, _) => code.word(op.word & !(1 << PC) | 1 << LINK),
        _ => code.word(op.word & !(15 << 12) | u32::from(LINK) << 12),
    }
    Some(code.bytes)
}

fn copy(insn: &Insn, to: Va, bytes: &[u8]) -> Result<Vec<u8>, RelocateError> {
    let refuse = |why| RelocateError::Unsupported { at: insn.va(), why: relocate::Unsupported::A32(why) };
    let mut forms = Vec::new();
    for (va, op) in insn.places() {
        forms.push((va, op, form(va, &op).map_err(refuse)?));
    }
    if forms.iter().all(|(_, _, form)| *form == Form::Same) {
        return Ok(bytes.get(..insn.len()).unwrap_or_default().to_vec());
    }
    let thumb = insn.isa() == Isa::T32;
    let mut code = Code::new(to, thumb);
    for (va, op, form) in &forms {
        if *form == Form::Same {
            code.half(it(op.condition));
            match op.len {
                2 => code.half(op.word),
                _ => code.word(op.word),
            }
            continue;
        }
        let skip = if op.is_always() { 0 } else { Code::skip_len(thumb) };
        let mut body = Code::new(code.here().plus(Len(skip as u64)), thumb);
        write(&mut body, *va, op, *form);
        if skip > 0 {
            code.skip_unless(op.condition, body.bytes.len());
        }
        code.bytes.extend(body.bytes);
    }
    Ok(code.bytes)
}

/// An address as a jump takes it.
fn state(va: Va, thumb: bool) -> u32 {
    va.0 as u32 | u32::from(thumb)
}

/// The first register that is none of these, and neither the stack pointer nor what calls change.
fn free(used: u16) -> u8 {
    (used | 0xe000).trailing_ones() as u8
}

fn form(va: Va, op: &Op) -> Result<Form, Unsupported> {
    let pc = op.pc(va).0 as u32;
    let to = |thumb| state(op.target(va).unwrap_or(va), thumb);
    match op.class {
        Class::Branch => return Ok(Form::Jump { to: to(op.thumb) }),
        Class::Address if op.writes_pc() => return Ok(Form::Jump { to: to(op.thumb) }),
        Class::BranchLink => return Ok(Form::Call { to: to(op.thumb) }),
        Class::BranchExchange => return Ok(Form::Call { to: to(!op.thumb) }),
        Class::CompareZero => return Ok(Form::CompareZero { to: to(true) }),
        Class::BranchLinkRegister => {
            return Ok(Form::CallRegister { register: op.reads.trailing_zeros() as u8 });
        }
        _ if !op.reads_pc() => {
            return match op.class {
                // The table is somewhere, but distances are from here.
                Class::TableBranch => table(op, pc),
                _ => Ok(Form::Same),
            };
        }
        // To A32.
        Class::BranchRegister => return Ok(Form::Jump { to: pc & !3 }),
        Class::TableBranch => return table(op, pc),
        Class::Address => {
            let register = op.writes.trailing_zeros() as u8;
            return Ok(Form::Constant { register, value: op.operand(va).unwrap_or(va).0 as u32 });
        }
        Class::Preload => return Ok(Form::Nop),
        Class::StoreMultiple => return Err(Unsupported::StoresAddress),
        _ => {}
    }
    // `mov Rd, pc`
    let copied = op.copied().filter(|(from, to)| *from == PC && *to != PC);
    if let Some((_, register)) = copied {
        return Ok(Form::Constant { register, value: pc });
    }
    let used = op.reads | op.writes;
    // The first of two that are loaded.
    let own = op.writes.trailing_zeros() as u8;
    let is_own = own <= LINK && own != super::SP && op.reads & 1 << own == 0;
    if is_own && matches!(op.class, Class::Load | Class::Compute) {
        return Ok(Form::Own { register: own, value: value(va, op), word: replaced(op, own) });
    }
    if op.uses_stack_pointer() {
        return Err(Unsupported::NoRegister);
    }
    let register = free(used);
    let (value, word) = (value(va, op), replaced(op, register));
    Ok(if op.writes_pc() { Form::SpillAndGo { register, value, word } } else { Form::Spill { register, value, word } })
}

/// What the register has in place of the program counter: of literals, their address.
fn value(va: Va, op: &Op) -> u32 {
    match op.base {
        Some(PC) if op.offset().is_some() => op.operand(va).unwrap_or(va).0 as u32,
        _ => op.pc(va).0 as u32,
    }
}

fn table(op: &Op, pc: u32) -> Result<Form, Unsupported> {
    if op.uses_stack_pointer() {
        return Err(Unsupported::NoRegister);
    }
    let used = op.reads;
    let first = free(used);
    Ok(Form::Table { registers: [first, free(used | 1 << first)], pc })
}

/// The word with another register for the program counter wherever that is read or, where nothing
/// else is, written; and without the offset of a literal, which is in the register.
fn replaced(op: &Op, register: u8) -> u32 {
    let (word, r) = (op.word, u32::from(register));
    let field = |word: u32, at: u32| if word >> at & 15 == 15 { word & !(15 << at) | r << at } else { word };
    let literal = op.base == Some(PC) && op.offset().is_some();
    match (op.class, op.thumb, op.len) {
        // ldr Rt, [pc, #imm] of 16 bits: the register is the destination.
        (Class::Load, true, 2) => 0xf8d0_0000 | r << 16 | (word >> 8 & 7) << 12,
        // ldrd; others of T32 have bit 23 for an offset of 12 bits.
        (Class::Load, true, _) if word >> 25 == 0x74 => field(word & !0xff, 16),
        (Class::Load, true, _) => field(field(word & 0xff7f_f000 | 1 << 23, 16), 12),
        // add Rd, pc: the sum of Rd, which may be the program counter, and a register.
        (Class::Compute, true, _) => {
            let d = word >> 4 & 8 | word & 7;
            let m = word >> 3 & 15;
            match d {
                15 => 0xeb00_0000 | r << 16 | r << 8 | m,
                _ => 0xeb00_0000 | d << 16 | d << 8 | r,
            }
        }
        (Class::VectorLoad | Class::VectorStore, ..) => field(if literal { word & !0xff } else { word }, 16),
        // Of A32.
        (Class::Load | Class::Store, ..) => {
            // Words and bytes have 12 bits, others twice 4, where bits 7 and 4 are set.
            let short = word >> 25 & 7 == 0;
            let word = match literal {
                true if short => word & !0xf0f,
                true => word & !0xfff,
                false => word,
            };
            field(field(word, 16), 12)
        }
        _ => {
            let immediate = word >> 25 & 1 == 1;
            // mov and mvn have no first operand.
            let word = if word >> 21 & 13 == 13 { word } else { field(word, 16) };
            let word = if immediate { word } else { field(word, 0) };
            // Comparisons have no destination.
            if word >> 23 & 3 == 2 { word } else { field(word, 12) }
        }
    }
}

fn write(code: &mut Code, va: Va, op: &Op, form: Form) {
    let next = state(wrap(va.plus(Len(op.len.into()))), op.thumb);
    // The condition is that of the branch in front.
    let always = |word: u32| if op.thumb { word } else { word & 0x0fff_ffff | 14 << 28 };
    match form {
        Form::Same => {}
        Form::Nop => code.nop(),
        Form::Jump { to } => code.jump(to),
        Form::Call { to } => {
            code.constant(LINK, next);
            code.jump(to);
        }
        Form::CallRegister { register: LINK } => {
            code.push_link();
            code.constant(LINK, next);
            code.pop_pc();
        }
        Form::CallRegister { register } => {
            code.constant(LINK, next);
            code.branch_register(register);
        }
        Form::CompareZero { to } => {
            // The opposite one, over 10 bytes.
            code.half(op.word & !0x02f8 ^ 0x0800 | 8 >> 1 << 3);
            code.jump(to);
        }
        Form::Constant { register, value } => code.constant(register, value),
        Form::Own { register, value, word } => {
            code.constant(register, value);
            code.word(always(word));
        }
        Form::Spill { register, value, word } => {
            code.spill(register);
            code.constant(register, value);
            code.word(always(word));
            code.unspill(register);
        }
        Form::SpillAndGo { register, value, word } => {
            code.spill(register);
            code.constant(register, value);
            code.word(always(word));
            if op.thumb && op.class == Class::Compute {
                let r = u32::from(register);
                code.word(0xf040_0001 | r << 16 | r << 8);
            }
            code.unspill_and_go(register);
        }
        Form::Table { registers, pc } => write_table(code, op, registers, pc),
    }
}

/// `tbb` and `tbh` (section A8.8.237).
fn write_table(code: &mut Code, op: &Op, registers: [u8; 2], pc: u32) {
    let [a, b] = registers.map(u32::from);
    let list = 1 << a | 1 << b;
    let (n, m) = (op.word >> 16 & 15, op.word & 15);
    let load = if op.bit(4) { 0xf830_0010 } else { 0xf810_0000 };
    code.half(0xb500 | list);
    if n == u32::from(PC) {
        code.constant(a as u8, pc);
        code.word(load | a << 16 | b << 12 | m);
    } else {
        code.word(load | n << 16 | b << 12 | m);
        code.constant(a as u8, pc);
    }
    // add.w a, a, b, lsl #1; addw a, a, #1
    code.word(0xeb00_0040 | a << 16 | a << 8 | b);
    code.word(0xf200_0001 | a << 16 | a << 8);
    code.half(0x9002 | a << 8);
    code.half(0xbd00 | list);
}
