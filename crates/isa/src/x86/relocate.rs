//! Relocate: one instruction encoded for another address, with the effect that it had at its own.
//!
//! | instruction | copy | bytes |
//! |---|---|---|
//! | plain, `ret`, `jmp *reg`, `jmp *mem`, traps, `ud2` | the same bytes | same |
//! | with a rip-relative operand | the same bytes, new displacement (SDM volume 2, section 2.2.1.6) | same |
//! | `jmp rel` | `jmp rel32` | 5 |
//! | `jcc rel` | `jcc rel32` | 6 |
//! | `loop`, `loope`, `loopne`, `jrcxz`, `jecxz` | the same over two jumps: `loop 1f; jmp 2f; 1: jmp rel32; 2:` | 9 or 10 |
//! | `call rel32` | `push 1f(%rip); jmp rel32; 1: .quad return address` | 19 |
//! | `call *reg`, `call *mem` | `push 1f(%rip); jmp *…; 1: .quad return address` | 14 + the jump |
//!
//! The length of a copy depends on the instruction only, never on the distance. Calls push the *original* return
//! address, so that unwinders, stack traces and code that looks at its return address see no difference; one `push`
//! of a literal, since two half-word stores would show a signal handler half an address and defeat store forwarding of
//! the `ret`. A copy of a call or `loop` is more than one instruction: a thread between them is neither before nor behind the
//! original. A fault of `call *…` is taken after the push, [`PUSH_OF_CALL`] bytes into the copy, instead of before it.
//! A fault or trap of a copy has the copy's address: who knows where copies are makes up for that.
//!
//! Refused: what records or needs its own address and cannot be made up for. Each reason is in [`Unsupported`].

use iced_x86::{ConstantOffsets, OpKind, Register};

use super::decode::{DecodeError, Flow, Insn, decode_with_offsets};
use crate::Va;

/// Why an instruction cannot be relocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RelocateError {
    /// It is no instruction.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The copy would lie more than 2 GiB from what the instruction refers to.
    #[error("{target} cannot be reached from a copy at {to}: it is more than 2 GiB away")]
    OutOfReach {
        /// What the instruction refers to.
        target: Va,
        /// Where the copy would lie.
        to: Va,
    },
    /// No copy of it would do the same.
    #[error("the instruction at {at} cannot be moved: {why}")]
    Unsupported {
        /// The instruction.
        at: Va,
        /// Why not.
        why: Unsupported,
    },
}

/// Bytes of the push at the start of a copy of a call.
pub const PUSH_OF_CALL: usize = 6;

/// Instructions that have no equivalent elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsupported {
    /// The abort address and the whole transaction depend on where it stands, and a jump out of a transaction does not
    /// end it (SDM volume 1, chapter 16).
    #[error("`xbegin` starts a transaction that a detour would abort")]
    Transaction,
    /// `sysenter` comes back to an address that the kernel keeps.
    #[error("`sysenter` comes back to an address that the kernel keeps")]
    Sysenter,
    /// Segment-changing branches do not occur in 64-bit programs.
    #[error("far branches are not supported")]
    Far,
    /// Intel ignores the prefix, AMD truncates rip to 16 bits (SDM volume 2, "CALL", and AMD APM volume 3, "CALL").
    #[error("CPUs disagree about branches with an operand-size prefix")]
    Branch16,
    /// An operand relative to eip (address-size prefix) is truncated to 32 bits.
    #[error("its operand is relative to the 32-bit eip")]
    EipRelative,
    /// The target is read after the push of the return address, which moves rsp.
    #[error("it calls through the stack pointer")]
    CallThroughRsp,
}

/// How an instruction is copied. Lengths follow from this alone.
enum Form {
    Same {
        len: usize,
    },
    RipRelative {
        len: usize,
        disp_at: usize,
        target: u64,
    },
    Jump {
        target: u64,
    },
    Branch {
        condition: u8,
        target: u64,
    },
    Counted {
        address_size: bool,
        opcode: u8,
        target: u64,
    },
    Call {
        target: u64,
        back: u64,
    },
    /// `syscall` leaves the address behind it in rcx (SDM volume 2, "SYSCALL"). The kernel restarts an interrupted call
    /// at rip - 2, so the copy begins with the instruction itself.
    Syscall {
        back: u64,
    },
    /// `jump`: the bytes of the jump. `rip`: place and meaning of a rip-relative displacement in it.
    CallIndirect {
        jump: Bytes,
        rip: Option<(usize, u64)>,
        back: u64,
    },
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

/// Appends to `out` the copy of the instruction at the start of `bytes` that does at `to` what the original does at
/// `from`. Both are run-time addresses; `to` is where the first appended byte will lie. On an error `out` is unchanged.
///
/// ```
/// use sidestep_isa::{Va, x86};
/// let mut copy = Vec::new();
/// x86::relocate(&[0x74, 0x10], Va(0x1000), Va(0x5000), &mut copy)?; // je 0x1012
/// assert_eq!(copy, [0x0f, 0x84, 0x0c, 0xc0, 0xff, 0xff]);
/// # Ok::<(), x86::RelocateError>(())
/// ```
pub fn relocate(bytes: &[u8], from: Va, to: Va, out: &mut Vec<u8>) -> Result<(), RelocateError> {
    let form = form(bytes, from)?;
    let start = out.len();
    let done = encode(&form, bytes, to, out);
    if done.is_err() {
        out.truncate(start);
    }
    done
}

/// The length of the copy that [`relocate`] makes, wherever it goes. `from` may be a link-time or run-time address.
pub fn relocated_len(bytes: &[u8], from: Va) -> Result<usize, RelocateError> {
    Ok(match form(bytes, from)? {
        Form::Same { len } | Form::RipRelative { len, .. } => len,
        Form::Jump { .. } => 5,
        Form::Branch { .. } => 6,
        Form::Counted { address_size, .. } => 9 + usize::from(address_size),
        Form::Call { .. } => PUSH_OF_CALL + 5 + 8,
        Form::Syscall { .. } => 2 + 7,
        Form::CallIndirect { jump, .. } => PUSH_OF_CALL + jump.len + 8,
    })
}

fn encode(form: &Form, bytes: &[u8], to: Va, out: &mut Vec<u8>) -> Result<(), RelocateError> {
    let start = out.len();
    // Appends a displacement to `target`, relative to its own end.
    let rel32 = |out: &mut Vec<u8>, target: u64| -> Result<(), RelocateError> {
        let end = to.0.wrapping_add((out.len() - start) as u64 + 4);
        out.extend_from_slice(&distance(target, end, to)?.to_le_bytes());
        Ok(())
    };
    match *form {
        Form::Same { len } => out.extend_from_slice(&bytes[..len]),
        Form::RipRelative { len, disp_at, target } => {
            let disp = distance(target, to.0.wrapping_add(len as u64), to)?;
            out.extend_from_slice(&bytes[..len]);
            out[start + disp_at..start + disp_at + 4].copy_from_slice(&disp.to_le_bytes());
        }
        Form::Jump { target } => {
            out.push(0xe9);
            rel32(out, target)?;
        }
        Form::Branch { condition, target } => {
            out.extend_from_slice(&[0x0f, 0x80 | condition]);
            rel32(out, target)?;
        }
        Form::Counted { address_size, opcode, target } => {
            if address_size {
                out.push(0x67);
            }
            out.extend_from_slice(&[opcode, 0x02, 0xeb, 0x05, 0xe9]);
            rel32(out, target)?;
        }
        Form::Call { target, back } => {
            out.extend_from_slice(&[0xff, 0x35, 0x05, 0, 0, 0, 0xe9]); // push 5(%rip); jmp
            rel32(out, target)?;
            out.extend_from_slice(&back.to_le_bytes());
        }
        Form::Syscall { back } => {
            out.extend_from_slice(&[0x0f, 0x05, 0x48, 0x8d, 0x0d]); // syscall; lea back(%rip),%rcx
            rel32(out, back)?;
        }
        Form::CallIndirect { ref jump, rip, back } => {
            out.extend_from_slice(&[0xff, 0x35, jump.len as u8, 0, 0, 0]); // push the literal behind the jump
            let jump_at = out.len();
            out.extend_from_slice(jump.as_slice());
            if let Some((disp_at, target)) = rip {
                let end = to.0.wrapping_add((out.len() - start) as u64);
                let disp = distance(target, end, to)?;
                out[jump_at + disp_at..jump_at + disp_at + 4].copy_from_slice(&disp.to_le_bytes());
            }
            out.extend_from_slice(&back.to_le_bytes());
        }
    }
    Ok(())
}

fn distance(target: u64, end: u64, to: Va) -> Result<i32, RelocateError> {
    i32::try_from(target.wrapping_sub(end) as i64).map_err(|_| RelocateError::OutOfReach { target: Va(target), to })
}

fn form(bytes: &[u8], from: Va) -> Result<Form, RelocateError> {
    let (insn, offsets) = decode_with_offsets(bytes, from)?;
    let bytes = &bytes[..insn.len()];
    let refuse = |why| Err(RelocateError::Unsupported { at: from, why });
    let prefixes = Prefixes::of(bytes);
    let flow = insn.flow();
    if prefixes.operand_size && !matches!(flow, Flow::Next | Flow::Interrupt | Flow::Stop) {
        return refuse(Unsupported::Branch16);
    }
    if insn.iced.memory_base() == Register::EIP {
        return refuse(Unsupported::EipRelative);
    }
    let opcode = bytes.get(prefixes.opcode_at).copied().unwrap_or(0);
    let back = insn.next().0;
    Ok(match flow {
        // A write to ss holds traps back for one instruction; the copy does the same.
        // The kernel restarts a call by `int $0x80`, two bytes, at rip - 2.
        Flow::Next | Flow::Return | Flow::JumpIndirect | Flow::Interrupt | Flow::Stop => match insn.rip_target() {
            Some(target) => {
                Form::RipRelative { len: insn.len(), disp_at: offsets.displacement_offset(), target: target.0 }
            }
            None => Form::Same { len: insn.len() },
        },
        Flow::Jump(target) => Form::Jump { target: target.0 },
        Flow::Branch(target) if matches!(opcode, 0xe0..=0xe3) => {
            Form::Counted { address_size: prefixes.address_size, opcode, target: target.0 }
        }
        Flow::Branch(target) => {
            // 7x rel8 and 0f 8x rel32 have the condition in the low half of their last opcode byte.
            let last = if opcode == 0x0f { bytes.get(prefixes.opcode_at + 1).copied().unwrap_or(0) } else { opcode };
            Form::Branch { condition: last & 0xf, target: target.0 }
        }
        Flow::Call(target) => Form::Call { target: target.0, back },
        Flow::CallIndirect => match jump_of_call(&insn, &offsets, bytes, &prefixes) {
            Ok((jump, rip)) => Form::CallIndirect { jump, rip, back },
            Err(why) => return refuse(why),
        },
        Flow::Transaction(_) => return refuse(Unsupported::Transaction),
        Flow::Syscall if bytes == [0x0f, 0x05] => Form::Syscall { back },
        Flow::Syscall => return refuse(Unsupported::Sysenter),
        Flow::Far => return refuse(Unsupported::Far),
    })
}

/// `call *x` (ff /2) as `jmp *x` (ff /4) that runs after 8 bytes were pushed. Prefixes (`notrack`, segments, REX) stay.
fn jump_of_call(
    insn: &Insn,
    offsets: &ConstantOffsets,
    bytes: &[u8],
    prefixes: &Prefixes,
) -> Result<(Bytes, Option<(usize, u64)>), Unsupported> {
    let modrm_at = prefixes.opcode_at + 1;
    let (head, rest) = bytes.split_at(modrm_at.min(bytes.len() - 1));
    let modrm = rest[0] & !0x38 | 4 << 3;
    let iced = &insn.iced;
    if iced.op0_kind() == OpKind::Register {
        if iced.op0_register() == Register::RSP {
            return Err(Unsupported::CallThroughRsp);
        }
        return Ok((Bytes::new(&[head, &[modrm]]), None));
    }
    match iced.memory_base() {
        Register::RSP => {
            let disp = iced.memory_displacement64() as i64 + 8;
            let disp = i32::try_from(disp).map_err(|_| Unsupported::CallThroughRsp)?;
            // Always with a 32-bit displacement (mod = 2), so that the length does not depend on its value.
            let modrm = modrm & 0x3f | 0x80;
            let sib = rest.get(1).copied().unwrap_or(0);
            Ok((Bytes::new(&[head, &[modrm, sib], &disp.to_le_bytes()]), None))
        }
        Register::ESP => Err(Unsupported::CallThroughRsp),
        _ => {
            let rip = insn.rip_target().map(|target| (offsets.displacement_offset(), target.0));
            Ok((Bytes::new(&[head, &[modrm], &rest[1..]]), rip))
        }
    }
}

/// Legacy prefixes and REX of an instruction (SDM volume 2, section 2.1.1).
struct Prefixes {
    operand_size: bool,
    address_size: bool,
    /// Where the opcode starts.
    opcode_at: usize,
}

impl Prefixes {
    fn of(bytes: &[u8]) -> Prefixes {
        let is_prefix =
            |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
        let opcode_at = bytes.iter().position(|b| !is_prefix(b)).unwrap_or(bytes.len());
        let prefixes = &bytes[..opcode_at];
        Prefixes { operand_size: prefixes.contains(&0x66), address_size: prefixes.contains(&0x67), opcode_at }
    }
}
