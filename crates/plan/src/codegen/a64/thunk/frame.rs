//! The frame of a hit: all general registers and the flags, saved and restored around compiled
//! code, which may change what the C ABI lets a callee change.
//!
//! ```text
//!   high   128 bytes             below the stack pointer of the site: not touched
//!          wire::Hit             registers as in struct user_pt_regs
//!          the thunk's return    x30 of the site, between detour and thunk
//!   low    flags                 x16 of the site, until then    <- x20, sp
//!          vector registers that the agent uses, and FPSR         <- sp, over the call
//! ```
//!
//! The detour makes all of the frame by its first store, which is at the lowest address. So where
//! the stack has no room, that store faults, and nothing has changed yet.
//!
//! AAPCS64 has no red zone (6.4.5). Go keeps a frame pointer in the word below the stack pointer.
//!
//! A store to the lower half of a vector register clears its upper part where there is SVE. So
//! vector registers stay as they are unless the agent's code uses them.

use std::mem::offset_of;

use sidestep_isa::Isa;
use sidestep_isa::a64::emit::{
    Address, Asm, Reg, Size, add_imm, ldp, ldr, ldr_vector, mov, mrs, msr, stp, str, str_half_vector, str_vector,
    sub_imm, system,
};
use sidestep_wire::arch::a64::{Hit, Regs};

use super::x;
use crate::codegen::thunk::Env;

/// Bytes from the frame to the stack pointer of the site.
pub(in crate::codegen::a64) const FRAME: i64 = 512;
/// Bytes below the stack pointer of the site that nothing is stored to.
pub(in crate::codegen::a64) const SKIPPED: i64 = 128;

/// From the frame: the flags.
const FLAGS: i64 = 0;
/// From the frame: the hit.
const HIT: i64 = 16;
/// From the frame: the context.
pub(super) const REGS: i64 = HIT + offset_of!(Hit, regs) as i64;
/// From the frame: the address of the instruction.
pub(super) const PC: i64 = REGS + offset_of!(Regs, pc) as i64;
/// From the frame: whether the program returns from the function.
pub(super) const OVERRIDDEN: i64 = HIT + offset_of!(Hit, overridden) as i64;

const _: () = assert!(HIT + size_of::<Hit>() as i64 + SKIPPED <= FRAME);

/// The frame, behind [`save`].
pub(super) const BASE: Reg = x(20);
/// The number of the probe, behind [`save`].
pub(super) const PROBE: Reg = x(19);
/// `FPSR`, while vector registers are saved.
const STATUS: Reg = x(21);

/// From the frame: a register.
pub(super) const fn register(number: u8) -> i64 {
    REGS + offset_of!(Regs, x) as i64 + 8 * number as i64
}

/// Emits the way into a frame: in front of the call of a thunk, whose number of the probe goes into
/// x16 next.
pub(in crate::codegen::a64) fn enter(asm: &mut Asm) {
    asm.push(stp(x(16), Reg::LINK, Address::before(Reg::SP, -FRAME)));
}

/// Emits the way out of it.
pub(in crate::codegen::a64) fn leave(asm: &mut Asm) {
    asm.push(ldp(x(16), Reg::LINK, Address::at(Reg::SP)));
    asm.push(add_imm(Reg::SP, Reg::SP, FRAME));
}

/// Saves registers as drawn above, behind [`enter`]. x16 has the number of the probe.
pub(super) fn save(asm: &mut Asm, env: &Env) {
    let slot = |at| Address::with(Reg::SP, at);
    for first in (0..30).step_by(2).filter(|first| *first != 16) {
        asm.push(stp(x(first), x(first + 1), slot(register(first))));
    }
    asm.push(str(Size::Double, x(17), slot(register(17))));
    asm.push(mov(PROBE, x(16)));
    asm.push(mov(BASE, Reg::SP));
    asm.push(ldp(x(0), x(1), slot(0)));
    asm.push(str(Size::Double, x(0), slot(register(16))));
    asm.push(add_imm(x(0), Reg::SP, FRAME));
    asm.push(stp(x(1), x(0), slot(register(30))));
    asm.push(mrs(x(0), system::NZCV));
    asm.push(str(Size::Double, x(0), slot(REGS + offset_of!(Regs, pstate) as i64)));
    asm.push(stp(x(0), Reg::LINK, slot(FLAGS)));
    asm.push(str(Size::Double, Reg::ZERO, slot(OVERRIDDEN)));
    for (number, at) in (0..8).zip((Hit::FLOATS..).step_by(8)).filter(|(_, at)| env.context.has(*at)) {
        asm.push(str_half_vector(number, slot(REGS + at as i64)));
    }
    let vectors = numbers(env.agent_vectors);
    if !vectors.is_empty() {
        asm.push(mrs(STATUS, system::FPSR));
        asm.push(sub_imm(Reg::SP, Reg::SP, 16 * vectors.len() as i64));
        for (i, number) in (0..).zip(&vectors) {
            asm.push(str_vector(*number, slot(16 * i)));
        }
    }
}

const _: () = assert!(offset_of!(Regs, sp) == offset_of!(Regs, x) + 31 * 8);

/// Undoes [`save`]. What the called code has changed of the registers is in them then; the detour
/// takes x16 and x30 from the frame. Here, x30 is the return into the detour.
pub(super) fn restore(asm: &mut Asm, env: &Env) {
    let slot = |at| Address::with(Reg::SP, at);
    let vectors = numbers(env.agent_vectors);
    if !vectors.is_empty() {
        for (i, number) in (0..).zip(&vectors) {
            asm.push(ldr_vector(*number, slot(16 * i)));
        }
        asm.push(msr(system::FPSR, STATUS));
        asm.push(mov(Reg::SP, BASE));
    }
    asm.push(ldp(x(0), Reg::LINK, slot(FLAGS)));
    asm.push(msr(system::NZCV, x(0)));
    asm.push(ldr(Size::Double, x(0), slot(register(16))));
    asm.push(ldr(Size::Double, x(1), slot(register(30))));
    asm.push(stp(x(0), x(1), slot(0)));
    for first in (0..30).step_by(2).filter(|first| *first != 16) {
        asm.push(ldp(x(first), x(first + 1), slot(register(first))));
    }
    asm.push(ldr(Size::Double, x(17), slot(register(17))));
}

fn numbers(vectors: u32) -> Vec<u8> {
    (0..32).filter(|i| vectors >> i & 1 == 1).collect()
}

/// Whether the context that programs read, or change, has the address of the instruction.
pub(super) fn has_pc(env: &Env) -> bool {
    env.context.has_ip(Isa::A64) || env.changes.has_ip(Isa::A64)
}
