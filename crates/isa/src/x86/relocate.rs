//! Relocate: one instruction encoded for another address, with the effect that it had at its own.
//!
//! | instruction | copy | bytes |
//! |---|---|---|
//! | plain, `ret`, `lret`, `iret`, `jmp *reg`, `jmp *mem`, `int n`, `ud2` … | the same bytes | same |
//! | with a rip- or eip-relative operand | the same bytes, new displacement (SDM volume 2, section 2.2.1.6) | same |
//! | `jmp rel` | `jmp rel32` | 5 |
//! | `jcc rel` | `jcc rel32` | 6 |
//! | `loop`, `loope`, `loopne`, `jrcxz`, `jecxz` | the same over two jumps: `loop 1f; jmp 2f; 1: jmp rel32; 2:` | same + 7 |
//! | `call rel32` | `push 1f(%rip); jmp rel32; 1: .quad return address` | 19 |
//! | `call *reg`, `call *mem` | `push 1f(%rip); jmp *…; 1: .quad return address` | 14 + the jump |
//! | `call *%rsp`, and through the word that the push overwrites | `push …; pop -16(%rsp); push 1f(%rip); jmp *-8(%rsp); 1: .quad return address` | 22 + the push |
//! | `syscall` | the same bytes; `lea back(%rip),%rcx` | same + 7 |
//! | `xbegin rel` | `xbegin rel32` | 6 |
//!
//! In 32-bit code a return address is the immediate of a push, and each call takes 9 bytes less:
//!
//! | instruction | copy | bytes |
//! |---|---|---|
//! | `call rel32` | `push $return address; jmp rel32` | 10 |
//! | `call *reg`, `call *mem` | `push $return address; jmp *…` | 5 + the jump |
//! | `call *%esp`, and through the word that the push overwrites | `push …; pop -8(%esp); push $return address; jmp *-4(%esp)` | 13 + the push |
//!
//! So a call that is there to learn its own address (`__x86.get_pc_thunk.bx`,
//! `call 1f; 1: pop %ebx`) learns the original one. Every distance can be encoded, since the sum of
//! an address and a distance has 32 bits. `sysenter` and `syscall` come back in the vDSO.
//!
//! The length of a copy depends on the instruction only, never on the distance. That is why an
//! operand out of reach is an error and not another form: the long form would have to be the only
//! one. It is no loss, since a program reaches its operands by 32 bits as well, and detours lie
//! near its code.
//!
//! Calls push the *original* return address, so that unwinders, stack traces and code that looks at
//! its return address see no difference; one `push` of a literal, since two half-word stores would
//! show a signal handler half an address and defeat store forwarding of the `ret`. A copy of a call
//! or `loop` is more than one instruction: a thread between them is neither before nor behind the
//! original. A fault of `call *…` is taken after the push, [`push_of_call`] bytes into the copy,
//! instead of before it.
//!
//! The word that the push writes must not be what is loaded. That is known for operands relative to
//! rsp, and such calls take the target first, by way of the word below. What lies under the stack
//! pointer of a call is its callee's, to whom it means nothing yet.
//!
//! The abort of a transaction goes to the original address, and a jump out of the copy is no abort.
//!
//! What a copy cannot hide: the address of the last x87 instruction, which `fnstenv`, `fsave` and
//! `xsave` store.
//!
//! Refused: branches that CPUs disagree about, and what pushes its own address in a way that
//! nothing else does. Each reason is in [`Unsupported`].

use iced_x86::{Code, ConstantOffsets, OpKind, Register};

use super::decode::{Insn, decode_with_offsets};
use crate::insn::Flow;
use crate::relocate::{self, RelocateError};
use crate::{Isa, Va};

/// Bytes of the push at the start of a copy of a call. A fault of `call *…` comes from behind it,
/// unless the copy takes the target first.
#[must_use]
pub const fn push_of_call(isa: Isa) -> usize {
    match isa {
        Isa::X86 => 5,
        _ => 6,
    }
}

/// Instructions that have no equivalent elsewhere. No compiler writes any of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsupported {
    /// It pushes its code segment and 2, 4 or (in 64-bit code, Intel alone) 8 bytes of its address
    /// (SDM volume 2, "CALL").
    #[error("a far call pushes its own address and segment")]
    FarCall,
    /// Intel ignores the prefix, AMD shortens the displacement and what is pushed to 16 bits, and
    /// truncates rip (SDM volume 2, "CALL"; AMD APM volume 3, "CALL (Near)"). With REX.W, as in
    /// calls of `__tls_get_addr`, the operand has 64 bits everywhere. In 32-bit code all of them
    /// truncate eip, and no program has code in the first 64 KiB.
    #[error("branches with an operand-size prefix go to 16-bit addresses, or CPUs disagree about them")]
    Branch16,
}

/// How an instruction is copied. Lengths follow from this alone.
enum Form {
    Same {
        len: usize,
    },
    Relative {
        len: usize,
        operand: Relative,
    },
    Jump {
        target: u64,
    },
    Branch {
        condition: u8,
        target: u64,
    },
    /// `head`: all but the displacement of a branch that exists with 8 bits of it only.
    Short {
        head: Bytes,
        target: u64,
    },
    Call {
        target: u64,
        back: u64,
    },
    /// `syscall` leaves the address behind it in rcx (SDM volume 2, "SYSCALL"). The kernel restarts
    /// an interrupted call at rip - 2, so the copy begins with the instruction itself.
    Syscall {
        len: usize,
        back: u64,
    },
    Transaction {
        abort: u64,
    },
    /// `jump`: the bytes of the jump. `operand`: a relative operand in it.
    CallIndirect {
        jump: Bytes,
        operand: Option<Relative>,
        back: u64,
    },
    /// `push`: the bytes of a push of the target.
    CallParked {
        push: Bytes,
        back: u64,
    },
}

/// A memory operand relative to the end of its instruction.
struct Relative {
    /// Where in the instruction its displacement is.
    disp_at: usize,
    /// What it means.
    target: u64,
    /// The sum has 32 bits (address-size prefix), so that every distance can be encoded.
    wraps: bool,
}

impl Relative {
    fn of(insn: &Insn, offsets: &ConstantOffsets) -> Option<Relative> {
        let wraps = insn.iced.memory_base() == Register::EIP;
        Some(Relative { disp_at: offsets.displacement_offset(), target: insn.pc_target()?.0, wraps })
    }

    /// Writes the displacement for an instruction that is the end of `out`, and starts at `start`
    /// there. `end` is its address.
    fn encode(&self, out: &mut [u8], start: usize, end: u64, to: Va) -> Result<(), RelocateError> {
        let disp = match self.wraps {
            true => (self.target as u32).wrapping_sub(end as u32).to_le_bytes(),
            false => distance(Isa::X64, self.target, end, to)?.to_le_bytes(),
        };
        out[start + self.disp_at..start + self.disp_at + 4].copy_from_slice(&disp);
        Ok(())
    }
}

/// A short encoded instruction.
struct Bytes {
    bytes: [u8; 20],
    len: usize,
}

impl Bytes {
    fn new(parts: &[&[u8]]) -> Bytes {
        let mut all = Bytes { bytes: [0; 20], len: 0 };
        for byte in parts.iter().flat_map(|part| part.iter()).take(20) {
            all.bytes[all.len] = *byte;
            all.len += 1;
        }
        all
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Appends to `out` the copy of the instruction at the start of `bytes` that does at `to` what the
/// original does at `from`. Both are run-time addresses; `to` is where the first appended byte will
/// lie. On an error `out` is unchanged.
///
/// ```
/// use sidestep_isa::{Isa, RelocateError, Va, x86};
/// let mut copy = Vec::new();
/// x86::relocate(Isa::X64, &[0x74, 0x10], Va(0x1000), Va(0x5000), &mut copy)?; // je 0x1012
/// assert_eq!(copy, [0x0f, 0x84, 0x0c, 0xc0, 0xff, 0xff]);
/// # Ok::<(), RelocateError>(())
/// ```
pub fn relocate(isa: Isa, bytes: &[u8], from: Va, to: Va, out: &mut Vec<u8>) -> Result<(), RelocateError> {
    let form = form(isa, bytes, from)?;
    let start = out.len();
    let done = encode(isa, &form, bytes, to, out);
    if done.is_err() {
        out.truncate(start);
    }
    done
}

/// The length of the copy that [`relocate()`] makes, wherever it goes. `from` may be a link-time or
/// run-time address.
pub fn relocated_len(isa: Isa, bytes: &[u8], from: Va) -> Result<usize, RelocateError> {
    Ok(match form(isa, bytes, from)? {
        Form::Same { len } | Form::Relative { len, .. } => len,
        Form::Jump { .. } => 5,
        Form::Branch { .. } | Form::Transaction { .. } => 6,
        Form::Short { head, .. } => head.len + 1 + 2 + 5,
        Form::Call { .. } => push_of_call(isa) + 5 + literal(isa),
        Form::Syscall { len, .. } => len + 7,
        Form::CallIndirect { jump, .. } => push_of_call(isa) + jump.len + literal(isa),
        Form::CallParked { push, .. } => push.len + 4 + push_of_call(isa) + 4 + literal(isa),
    })
}

/// Bytes of the return address behind the copy of a call.
fn literal(isa: Isa) -> usize {
    match isa {
        Isa::X86 => 0,
        _ => 8,
    }
}

/// The push of a return address, which in 64-bit code is a literal behind `rest` more bytes: the
/// end of the copy.
fn push_back(isa: Isa, back: u64, rest: usize, out: &mut Vec<u8>) {
    match isa {
        Isa::X86 => {
            out.push(0x68);
            out.extend_from_slice(&(back as u32).to_le_bytes());
        }
        _ => out.extend_from_slice(&[0xff, 0x35, rest as u8, 0, 0, 0]),
    }
}

fn end_call(isa: Isa, back: u64, out: &mut Vec<u8>) {
    if isa == Isa::X64 {
        out.extend_from_slice(&back.to_le_bytes());
    }
}

fn encode(isa: Isa, form: &Form, bytes: &[u8], to: Va, out: &mut Vec<u8>) -> Result<(), RelocateError> {
    let start = out.len();
    // Appends a displacement to `target`, relative to its own end.
    let rel32 = |out: &mut Vec<u8>, target: u64| -> Result<(), RelocateError> {
        let end = to.0.wrapping_add((out.len() - start) as u64 + 4);
        out.extend_from_slice(&distance(isa, target, end, to)?.to_le_bytes());
        Ok(())
    };
    match *form {
        Form::Same { len } => out.extend_from_slice(&bytes[..len]),
        Form::Relative { len, ref operand } => {
            out.extend_from_slice(&bytes[..len]);
            operand.encode(out, start, to.0.wrapping_add(len as u64), to)?;
        }
        Form::Jump { target } => {
            out.push(0xe9);
            rel32(out, target)?;
        }
        Form::Branch { condition, target } => {
            out.extend_from_slice(&[0x0f, 0x80 | condition]);
            rel32(out, target)?;
        }
        Form::Short { ref head, target } => {
            out.extend_from_slice(head.as_slice());
            out.extend_from_slice(&[0x02, 0xeb, 0x05, 0xe9]);
            rel32(out, target)?;
        }
        Form::Call { target, back } => {
            push_back(isa, back, 5, out);
            out.push(0xe9);
            rel32(out, target)?;
            end_call(isa, back, out);
        }
        Form::Syscall { len, back } => {
            out.extend_from_slice(&bytes[..len]);
            out.extend_from_slice(&[0x48, 0x8d, 0x0d]); // lea back(%rip),%rcx
            rel32(out, back)?;
        }
        Form::Transaction { abort } => {
            out.extend_from_slice(&[0xc7, 0xf8]);
            rel32(out, abort)?;
        }
        Form::CallIndirect { ref jump, ref operand, back } => {
            push_back(isa, back, jump.len, out);
            let jump_at = out.len();
            out.extend_from_slice(jump.as_slice());
            if let Some(operand) = operand {
                let end = to.0.wrapping_add((out.len() - start) as u64);
                operand.encode(out, jump_at, end, to)?;
            }
            end_call(isa, back, out);
        }
        Form::CallParked { ref push, back } => {
            out.extend_from_slice(push.as_slice());
            let word = isa.word() as u8;
            // pop -2 words(%rsp): counted from where rsp is then; behind the push: jmp *-1
            // word(%rsp).
            out.extend_from_slice(&[0x8f, 0x44, 0x24, (2 * word).wrapping_neg()]);
            push_back(isa, back, 4, out);
            out.extend_from_slice(&[0xff, 0x64, 0x24, word.wrapping_neg()]);
            end_call(isa, back, out);
        }
    }
    Ok(())
}

fn distance(isa: Isa, target: u64, end: u64, to: Va) -> Result<i32, RelocateError> {
    if isa == Isa::X86 {
        return Ok(target.wrapping_sub(end) as i32);
    }
    i32::try_from(target.wrapping_sub(end) as i64).map_err(|_| RelocateError::OutOfReach { target: Va(target), to })
}

fn form(isa: Isa, bytes: &[u8], from: Va) -> Result<Form, RelocateError> {
    let (insn, offsets) = decode_with_offsets(isa, bytes, from)?;
    let bytes = &bytes[..insn.len()];
    let refuse = |why| Err(RelocateError::Unsupported { at: from, why: relocate::Unsupported::X86(why) });
    let prefixes = Prefixes::of(isa, bytes);
    let opcode = bytes.get(prefixes.opcode_at).copied().unwrap_or(0);
    let back = insn.next().0;
    Ok(match insn.flow() {
        Flow::Call(_) | Flow::CallIndirect | Flow::Jump(_) | Flow::Branch(_) if prefixes.disputed => {
            return refuse(Unsupported::Branch16);
        }
        Flow::Branch(target) if matches!(opcode, 0xe0..=0xe3) => {
            // With all prefixes: `repne loope` is something else than `loope` on AMD's CPUs.
            Form::Short { head: Bytes::new(&[&bytes[..=prefixes.opcode_at]]), target: target.0 }
        }
        Flow::Jump(target) => Form::Jump { target: target.0 },
        Flow::Branch(target) => {
            // 7x rel8 and 0f 8x rel32 have the condition in the low half of their last opcode byte.
            let last = if opcode == 0x0f { bytes.get(prefixes.opcode_at + 1).copied().unwrap_or(0) } else { opcode };
            Form::Branch { condition: last & 0xf, target: target.0 }
        }
        Flow::Call(target) => Form::Call { target: target.0, back },
        Flow::CallIndirect => call_indirect(&insn, &offsets, bytes, &prefixes),
        Flow::Transaction(abort) => Form::Transaction { abort: abort.0 },
        Flow::Syscall if isa == Isa::X64 && insn.iced.code() == Code::Syscall => {
            Form::Syscall { len: insn.len(), back }
        }
        Flow::Far if insn.iced.is_call_far() || insn.iced.is_call_far_indirect() => {
            return refuse(Unsupported::FarCall);
        }
        // What a trap or a stop shows of its address is made up for where the signal arrives.
        // `sysenter` tells the kernel no address. A write to ss holds traps back for one
        // instruction; the copy does the same.
        _ => match Relative::of(&insn, &offsets) {
            Some(operand) => Form::Relative { len: insn.len(), operand },
            None => Form::Same { len: insn.len() },
        },
    })
}

/// `call *x` (ff /2) as `jmp *x` (ff /4) that runs after a word was pushed, or as `push x` (ff /6)
/// that runs before. Prefixes (`notrack`, segments, REX) stay.
fn call_indirect(insn: &Insn, offsets: &ConstantOffsets, bytes: &[u8], prefixes: &Prefixes) -> Form {
    let (head, rest) = bytes.split_at((prefixes.opcode_at + 1).min(bytes.len() - 1));
    let modrm = |digit: u8| rest[0] & !0x38 | digit << 3;
    let parked = || Form::CallParked { push: Bytes::new(&[head, &[modrm(6)], &rest[1..]]), back: insn.next().0 };
    let jump = |jump, operand| Form::CallIndirect { jump, operand, back: insn.next().0 };
    let iced = &insn.iced;
    if iced.op0_kind() == OpKind::Register {
        return match iced.op0_register() {
            Register::RSP | Register::ESP => parked(),
            _ => jump(Bytes::new(&[head, &[modrm(4)]]), None),
        };
    }
    if !matches!(iced.memory_base(), Register::RSP | Register::ESP) {
        return jump(Bytes::new(&[head, &[modrm(4)], &rest[1..]]), Relative::of(insn, offsets));
    }
    let disp = iced.memory_displacement64() as i32;
    let word = insn.isa().word() as i32;
    let overwritten = iced.memory_index() == Register::None && (1 - 2 * word..0).contains(&disp);
    let moved = match iced.memory_base() {
        Register::ESP => Some(disp.wrapping_add(word)),
        _ => disp.checked_add(word),
    };
    match moved {
        Some(disp) if !overwritten => {
            // Always with a 32-bit displacement (mod = 2), so that the length does not depend on
            // its value.
            let modrm = modrm(4) & 0x3f | 0x80;
            let sib = rest.get(1).copied().unwrap_or(0);
            jump(Bytes::new(&[head, &[modrm, sib], &disp.to_le_bytes()]), None)
        }
        _ => parked(),
    }
}

/// Legacy prefixes and REX of an instruction (SDM volume 2, section 2.1.1).
pub(super) struct Prefixes {
    /// An operand-size prefix without REX.W, which a CPU may or may not apply to near branches.
    pub(super) disputed: bool,
    pub(super) address_size: bool,
    /// Where the opcode starts.
    pub(super) opcode_at: usize,
}

impl Prefixes {
    pub(super) fn of(isa: Isa, bytes: &[u8]) -> Prefixes {
        // In 32-bit code, what REX is here are `inc` and `dec`.
        let is_rex = |b: &u8| isa == Isa::X64 && matches!(b, 0x40..=0x4f);
        let is_prefix = |b: &u8| is_rex(b) || matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
        let opcode_at = bytes.iter().position(|b| !is_prefix(b)).unwrap_or(bytes.len());
        let prefixes = &bytes[..opcode_at];
        // REX counts only right before the opcode.
        let wide = prefixes.last().is_some_and(|b| matches!(b, 0x48..=0x4f));
        let disputed = prefixes.contains(&0x66) && !wide;
        Prefixes { disputed, address_size: prefixes.contains(&0x67), opcode_at }
    }
}
