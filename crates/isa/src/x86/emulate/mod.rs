//! Emulate: instructions that a trap handler finishes by itself, without the way through the
//! displaced copy.
//!
//! They are what functions begin and end with, and what goes elsewhere: nops of all lengths,
//! `endbr64`, `push` and `pop` of registers, `leave`, `mov` between registers and of immediates,
//! `lea`, `add` and `sub` of immediates, direct jumps, branches and calls, `loop` and `jrcxz`,
//! jumps and calls through registers, `ret`; in 32-bit code the same of 4 bytes. [`prepare`] does
//! the decoding, at registration; [`execute`] is all that is left at a hit.

pub mod op;

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

pub use op::{Memory, Next, Op, Registers, execute};

use super::decode::{Insn, decode};
use super::relocate::Prefixes;
use crate::{Isa, Va};

/// The number of no register, which reads as 0.
const NONE: u8 = 16;

/// The instruction at the start of `bytes` as an operation; `None` = it has to run as a displaced
/// copy.
///
/// ```
/// use sidestep_isa::Isa;
/// use sidestep_isa::x86::emulate::{Memory, Next, Registers, execute, prepare};
/// struct Nothing;
/// impl Memory for Nothing {
///     fn load(&mut self, _: u64) -> Option<u64> { None }
///     fn store(&mut self, _: u64, _: u64) -> Option<()> { None }
/// }
/// let op = prepare(Isa::X64, &[0x48, 0x89, 0xe5]).expect("mov %rsp,%rbp is one of them");
/// let mut registers = Registers { rip: 0x1000, ..Registers::default() };
/// registers.gpr[4] = 0x7000;
/// assert_eq!(execute(&op, &mut registers, &mut Nothing), Next::Done);
/// assert_eq!((registers.gpr[5], registers.rip), (0x7000, 0x1003));
/// ```
#[must_use]
pub fn prepare(isa: Isa, bytes: &[u8]) -> Option<Op> {
    // At address 0, every target is a distance.
    let insn = decode(isa, bytes, Va(0)).ok()?;
    let iced = &insn.iced;
    let prefixes = Prefixes::of(isa, bytes.get(..insn.len())?);
    let op = Op {
        kind: op::NOP,
        len: insn.len() as u8,
        reg: 0,
        base: NONE,
        index: NONE,
        shift: 0,
        narrow: 0,
        short: u8::from(isa == Isa::X86),
        value: 0,
    };
    if insn.is_nop() || insn.is_target_mark() {
        return Some(op);
    }
    match iced.code() {
        Code::Push_r64 | Code::Push_rm64 | Code::Push_r32 | Code::Push_rm32 if on_register(iced) => {
            Some(Op { kind: op::PUSH, reg: reg(iced, 0), ..op })
        }
        Code::Pushq_imm8 | Code::Pushq_imm32 | Code::Pushd_imm8 | Code::Pushd_imm32 => {
            Some(Op { kind: op::PUSH_VALUE, value: iced.immediate(0), ..op })
        }
        Code::Pop_r64 | Code::Pop_rm64 | Code::Pop_r32 | Code::Pop_rm32 if on_register(iced) => {
            Some(Op { kind: op::POP, reg: reg(iced, 0), ..op })
        }
        Code::Leaveq | Code::Leaved => Some(Op { kind: op::LEAVE, ..op }),
        _ if iced.mnemonic() == Mnemonic::Mov => moved(iced, op),
        Code::Lea_r64_m | Code::Lea_r32_m => address(&insn, op),
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 | Code::Add_RAX_imm32 if on_register(iced) => {
            Some(Op { kind: op::ADD, reg: reg(iced, 0), value: iced.immediate(1), ..op })
        }
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 | Code::Sub_RAX_imm32 if on_register(iced) => {
            Some(Op { kind: op::SUB, reg: reg(iced, 0), value: iced.immediate(1), ..op })
        }
        Code::Add_rm32_imm8 | Code::Add_rm32_imm32 | Code::Add_EAX_imm32 if isa == Isa::X86 && on_register(iced) => {
            Some(Op { kind: op::ADD, reg: reg(iced, 0), value: iced.immediate(1), ..op })
        }
        Code::Sub_rm32_imm8 | Code::Sub_rm32_imm32 | Code::Sub_EAX_imm32 if isa == Isa::X86 && on_register(iced) => {
            Some(Op { kind: op::SUB, reg: reg(iced, 0), value: iced.immediate(1), ..op })
        }
        _ if prefixes.disputed => None,
        _ => branch(isa, iced, op, &prefixes, bytes),
    }
}

/// `mov` to a register, from one or of an immediate, of 32 or 64 bits.
fn moved(iced: &Instruction, op: Op) -> Option<Op> {
    let narrow = match iced.op0_register() {
        register if register.is_gpr64() => 0,
        register if register.is_gpr32() => 1,
        _ => return None,
    };
    let op = Op { kind: op::SUM, reg: reg(iced, 0), narrow, ..op };
    match iced.op1_kind() {
        OpKind::Register if iced.op1_register().is_gpr() => Some(Op { base: reg(iced, 1), ..op }),
        OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 => {
            Some(Op { value: iced.immediate(1), ..op })
        }
        _ => None,
    }
}

/// `lea`. A 32-bit address or destination both cut the sum; one relative to eip depends on where it
/// is. Sums of 16 bits are left.
fn address(insn: &Insn, op: Op) -> Option<Op> {
    let iced = &insn.iced;
    let term = |register: Register| if register == Register::None { NONE } else { register.number() as u8 };
    let tiny = |register: Register| register.is_gpr16();
    if tiny(iced.memory_base()) || tiny(iced.memory_index()) || iced.memory_displ_size() == 2 {
        return None;
    }
    let short_address = iced.memory_base().is_gpr32()
        || iced.memory_index().is_gpr32()
        || iced.memory_displ_size() == 4
            && iced.memory_base() == Register::None
            && iced.memory_index() == Register::None;
    let (base, value) = match iced.memory_base() {
        Register::EIP => return None,
        Register::RIP => (op::RIP, insn.pc_target()?.0),
        base => (term(base), iced.memory_displacement64()),
    };
    Some(Op {
        kind: op::SUM,
        reg: reg(iced, 0),
        base,
        index: term(iced.memory_index()),
        shift: iced.memory_index_scale().trailing_zeros() as u8,
        narrow: u8::from(short_address || iced.op0_register().is_gpr32()),
        value,
        ..op
    })
}

fn branch(isa: Isa, iced: &Instruction, op: Op, prefixes: &Prefixes, bytes: &[u8]) -> Option<Op> {
    let opcode = *bytes.get(prefixes.opcode_at)?;
    let op = Op { value: iced.near_branch_target(), ..op };
    match iced.code() {
        _ if iced.is_jcc_short_or_near() => {
            let last = if opcode == 0x0f { *bytes.get(prefixes.opcode_at + 1)? } else { opcode };
            Some(Op { kind: op::BRANCH, reg: last & 0xf, ..op })
        }
        _ if iced.is_jmp_short_or_near() => Some(Op { kind: op::JUMP, ..op }),
        _ if iced.is_call_near() => Some(Op { kind: op::CALL, ..op }),
        // AMD's CPUs run `repne loope` as something else.
        _ if matches!(opcode, 0xe0..=0xe3) && !bytes[..prefixes.opcode_at].iter().any(|b| matches!(b, 0xf2 | 0xf3)) => {
            match (isa, prefixes.address_size) {
                // Counts in cx.
                (Isa::X86, true) => None,
                (_, short) => {
                    Some(Op { kind: op::LOOP, reg: opcode & 3, narrow: u8::from(short || isa == Isa::X86), ..op })
                }
            }
        }
        Code::Jmp_rm64 | Code::Jmp_rm32 if on_register(iced) => {
            Some(Op { kind: op::JUMP_REGISTER, reg: reg(iced, 0), ..op })
        }
        Code::Call_rm64 | Code::Call_rm32 if on_register(iced) => {
            Some(Op { kind: op::CALL_REGISTER, reg: reg(iced, 0), ..op })
        }
        Code::Retnq | Code::Retnd => Some(Op { kind: op::RETURN, value: 0, ..op }),
        Code::Retnq_imm16 | Code::Retnd_imm16 => Some(Op { kind: op::RETURN, value: iced.immediate(0), ..op }),
        _ => None,
    }
}

fn on_register(iced: &Instruction) -> bool {
    iced.op0_kind() == OpKind::Register
}

fn reg(iced: &Instruction, operand: u32) -> u8 {
    iced.op_register(operand).number() as u8
}
