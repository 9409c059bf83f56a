//! Relocate: one instruction encoded for another address, with the effect that it had at its own.
//!
//! | instruction | copy | words |
//! |---|---|---|
//! | all that do not use their own address, `ret`, `br`, `svc`, `brk` … | the same word | 1 |
//! | `b`, `b.al` | `b` | 1 |
//! | `b.cond`, `bc.cond`, `cbz`, `cbnz`, `tbz`, `tbnz` | the opposite one over a jump: `b.!cond +8; b target` | 2 |
//! | `cbgt` and its like | `cbgt +8; b +8; b target` | 3 |
//! | `bl` | `adrp x30, next; add x30, x30, #next; b target` | 3 |
//! | `blr Xn`, `blraa Xn, Xm` and so on | `mov x30, #next` in three moves; `br Xn`, `braa Xn, Xm` | 4 |
//! | `adr`, `adrp` | `mov Xd, #address` in three moves | 3 |
//! | `ldr Xt`, `ldr Wt`, `ldrsw Xt` of a literal | `mov Xt, #address` in three moves; `ldr Xt, [Xt]` | 4 |
//! | `ldr` of a literal to a vector register | `str x16, [sp, #-16]!`; the address to x16; `ldr Qt, [x16]; ldr x16, [sp], #16` | 6 |
//! | `prfm` of a literal, `adr` and `adrp` of the zero register | `nop` | 1 |
//!
//! The length of a copy depends on the word only. Addresses are absolute, so copies reach them from
//! everywhere. Only branches have to be within ±128 MiB of their targets, since no register is free
//! for a longer way. Detours lie as near to their code, for the sake of the jump at the site.
//!
//! Calls set the link register to the *original* return address, so that unwinders, stack traces
//! and code that looks at its return address see no difference. A processor's own stack of return
//! addresses (`FEAT_GCS`) does not get it.
//!
//! `br` in place of `blr` asks for another landing pad where pages are guarded: outside of guarded
//! pages `br` sets `PSTATE.BTYPE` to 1, which `bti c`, `bti j` and `paciasp` let pass (section
//! C6.2, "BR" and "BTI"). So copies have to lie in pages without `PROT_BTI`.
//!
//! No register changes that the program can see. A load of a literal takes its own destination for
//! the address. One to a vector register has none, so x16 is put on the stack meanwhile. AAPCS64
//! has no red zone below the stack pointer (6.4.5), and the kernel has none either: it puts the
//! frames of signals there. The stack pointer has to be a multiple of 16 (section D1.3.8.2), as it
//! is wherever code uses the stack. A thread between the words of such a copy has another stack
//! pointer, [`SPILL`] bytes lower.
//!
//! A copy of several words has states that the original has not: a thread between them is neither
//! before nor behind the original.
//!
//! Refused: what has no copy with the same effect. Each reason is in [`Unsupported`].

use super::class::Class;
use super::decode::{Insn, decode};
use super::emit::{self, Address, EncodeError, Reg, Size, invert, mov_address, nop};
use super::{LINK, WORD};
use crate::relocate::{self, RelocateError};
use crate::{Len, Va};

/// Bytes by which the stack pointer is lower inside the copy of a load of a vector register.
pub const SPILL: u64 = 16;

/// Instructions that have no equivalent elsewhere. Compilers write none of them by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsupported {
    /// `blr x30` and `blraa Xn, x30`: the address has to be in the link register, and so has the
    /// return address.
    #[error("the call takes its target from the link register, which gets the return address")]
    LinkTarget,
    /// `paciasppc`, `autiasppc`, `retaasppc` and so on, and `pacm`, which makes the next `paciasp`
    /// one of them (`FEAT_PAuth_LR`).
    #[error("it signs or authenticates with its own address")]
    OwnAddress,
    /// `cpyp`, `cpym`, `cpye` and their like: a thread that moves to another kind of processor goes
    /// back to the first of the three, which the kernel looks for in front of the others
    /// (arch/arm64/include/asm/traps.h, `arm64_mops_reset_regs`).
    #[error("it is a part of a copy of memory, which the kernel may start again")]
    MemoryCopy,
    /// A load of a literal to the zero register.
    #[error("a load to the zero register leaves no register for the address")]
    NoRegister,
}

/// How an instruction is copied. The length follows from this alone.
enum Form {
    Same,
    Nop,
    Jump {
        target: Va,
    },
    /// A conditional branch that exists with the opposite condition.
    Branch {
        inverted: u32,
        target: Va,
    },
    /// A conditional branch that does not: the same to two words behind it.
    BranchOver {
        over: u32,
        target: Va,
    },
    Call {
        target: Va,
    },
    /// The word of a jump through a register.
    CallRegister {
        jump: u32,
    },
    Address {
        register: Reg,
        target: Va,
    },
    /// A load through its own destination.
    Load {
        word: u32,
        register: Reg,
        target: Va,
    },
    /// A load through x16.
    LoadVector {
        word: u32,
        target: Va,
    },
}

impl Form {
    fn words(&self) -> usize {
        match self {
            Form::Same | Form::Nop | Form::Jump { .. } => 1,
            Form::Branch { .. } => 2,
            Form::BranchOver { .. } | Form::Call { .. } | Form::Address { .. } => 3,
            Form::CallRegister { .. } | Form::Load { .. } => 4,
            Form::LoadVector { .. } => 6,
        }
    }
}

/// The length of the copy that [`relocate()`] makes.
///
/// # Errors
/// There is no such copy.
pub fn relocated_len(bytes: &[u8], from: Va) -> Result<usize, RelocateError> {
    Ok(form(&decode(bytes, from)?)?.words() * WORD)
}

/// Appends the copy of the instruction at the start of `bytes`, which lies at `from`, for the
/// address `to`. Nothing is appended if that fails.
///
/// ```
/// use sidestep_isa::{RelocateError, Va, a64};
/// let mut copy = Vec::new();
/// // cbz x1, 0x1010
/// a64::relocate(&[0x81, 0x00, 0x00, 0xb4], Va(0x1000), Va(0x5000), &mut copy)?;
/// // cbnz x1, 0x5008; b 0x1010
/// assert_eq!(copy, [0x41, 0x00, 0x00, 0xb5, 0x03, 0xf0, 0xff, 0x17]);
/// # Ok::<(), RelocateError>(())
/// ```
///
/// # Errors
/// There is no such copy.
pub fn relocate(bytes: &[u8], from: Va, to: Va, out: &mut Vec<u8>) -> Result<(), RelocateError> {
    let insn = decode(bytes, from)?;
    let form = form(&insn)?;
    let words = copy(&form, &insn, to).map_err(|error| error.of_copy(target(&form), to))?;
    debug_assert_eq!(words.len(), form.words(), "{insn}");
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    Ok(())
}

fn form(insn: &Insn) -> Result<Form, RelocateError> {
    let refuse = |why| {
        let why = relocate::Unsupported::A64(why);
        Err(RelocateError::Unsupported { at: insn.va(), why })
    };
    let word = insn.word();
    let register = Reg::of(insn.rd());
    if let Some(target) = insn.branch_target() {
        return Ok(match insn.class() {
            Class::Branch => Form::Jump { target },
            Class::BranchLink => Form::Call { target },
            _ if insn.is_always() => Form::Jump { target },
            _ => match invert(word, 2) {
                Some(inverted) => Form::Branch { inverted, target },
                // The distance has 9 bits, above the register.
                None => Form::BranchOver { over: word & !0x3fe0 | 2 << 5, target },
            },
        });
    }
    let Some(target) = insn.pc_target() else {
        return match insn.class() {
            Class::BranchLinkRegister => {
                let has_modifier = insn.bits(24, 24) == 1;
                if insn.rn() == LINK || has_modifier && insn.rd() == LINK {
                    return refuse(Unsupported::LinkTarget);
                }
                // `blr` and `br` differ in bit 21.
                Ok(Form::CallRegister { jump: word & !(1 << 21) })
            }
            Class::MemoryCopy => refuse(Unsupported::MemoryCopy),
            // pacm
            Class::Hint if insn.hint() == Some(39) => refuse(Unsupported::OwnAddress),
            _ => Ok(Form::Same),
        };
    };
    match insn.class() {
        Class::Adr | Class::Adrp if register == Reg::ZERO => Ok(Form::Nop),
        Class::Adr | Class::Adrp => Ok(Form::Address { register, target }),
        Class::PrefetchLiteral => Ok(Form::Nop),
        Class::LoadLiteral if register == Reg::ZERO => refuse(Unsupported::NoRegister),
        Class::LoadLiteral => {
            // ldr Wt, ldr Xt, ldrsw Xt, with the destination as base.
            let head = [0xb940_0000, 0xf940_0000, 0xb980_0000][insn.bits(31, 30) as usize % 3];
            let number = u32::from(insn.rd());
            Ok(Form::Load { word: head | number << 5 | number, register, target })
        }
        Class::LoadLiteralVector => {
            // ldr St, ldr Dt, ldr Qt, with x16 as base.
            let head = [0xbd40_0000, 0xfd40_0000, 0x3dc0_0000][insn.bits(31, 30) as usize % 3];
            Ok(Form::LoadVector { word: head | 16 << 5 | u32::from(insn.rd()), target })
        }
        _ => refuse(Unsupported::OwnAddress),
    }
}

/// What a copy refers to, for messages.
fn target(form: &Form) -> Va {
    match *form {
        Form::Jump { target }
        | Form::Branch { target, .. }
        | Form::BranchOver { target, .. }
        | Form::Call { target }
        | Form::Address { target, .. }
        | Form::Load { target, .. }
        | Form::LoadVector { target, .. } => target,
        Form::Same | Form::Nop | Form::CallRegister { .. } => Va(0),
    }
}

fn copy(form: &Form, insn: &Insn, to: Va) -> Result<Vec<u32>, EncodeError> {
    let place = |word: usize| to.plus(Len((word * WORD) as u64));
    Ok(match *form {
        Form::Same => vec![insn.word()],
        Form::Nop => vec![nop()],
        Form::Jump { target } => vec![emit::b(to, target)?],
        Form::Branch { inverted, target } => vec![inverted, emit::b(place(1), target)?],
        Form::BranchOver { over, target } => vec![over, emit::b(place(1), place(3))?, emit::b(place(2), target)?],
        Form::Call { target } => {
            let next = insn.next();
            vec![
                emit::adrp(Reg::LINK, to, next)?,
                emit::add_imm(Reg::LINK, Reg::LINK, (next.0 & 0xfff) as i64)?,
                emit::b(place(2), target)?,
            ]
        }
        Form::CallRegister { jump } => [&mov_address(Reg::LINK, insn.next().0)?[..], &[jump]].concat(),
        Form::Address { register, target } => mov_address(register, target.0)?.to_vec(),
        Form::Load { word, register, target } => [&mov_address(register, target.0)?[..], &[word]].concat(),
        Form::LoadVector { word, target } => {
            let scratch = Reg::of(16);
            let spill = SPILL as i64;
            let save = emit::str(Size::Double, scratch, Address::before(Reg::SP, -spill))?;
            let restore = emit::ldr(Size::Double, scratch, Address::after(Reg::SP, spill))?;
            [&[save][..], &mov_address(scratch, target.0)?, &[word, restore]].concat()
        }
    })
}
