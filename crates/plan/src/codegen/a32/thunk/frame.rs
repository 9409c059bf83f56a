//! The frame of a hit: all general registers and the flags, saved and restored around compiled
//! code, which may change what the C ABI lets a callee change.
//!
//! ```text
//!   high   stack pointer of the site
//!          up to 8 bytes                    so that the rest is aligned to 8
//!          wire::Hit                        registers as in struct pt_regs
//!          flags
//!          the thunk's return               link register between detour and thunk
//!          up to 8 bytes, r0 meanwhile                          <- r4
//!   low    r12 and link register of the site, for the detour    <- r6
//!          vector registers that the agent uses, and FPSCR      <- sp, over the call
//! ```
//!
//! The detour makes all of the frame by lowering the stack pointer; its first store is at the
//! lowest address. So where the stack has no room, that store faults, and nothing has changed yet
//! but the stack pointer.
//!
//! AAPCS32 has no red zone (6.2.1.2), and lets the stack pointer be a multiple of 4 inside of
//! functions. Calls need one of 8.

use std::mem::offset_of;

use sidestep_isa::a32::emit::{Asm, list};
use sidestep_isa::a32::{LINK, SP};
use sidestep_isa::{Isa, Va};
use sidestep_wire::arch::a32::{Hit, Regs};

use crate::codegen::thunk::Env;

/// Bytes from the start of the frame to the stack pointer of the site.
pub(in crate::codegen::a32) const FRAME: u32 = 256;

/// From r4: the thunk's return.
const RETURN: u32 = 8;
/// From r4: the flags.
const FLAGS: u32 = 12;
/// From r4: the hit.
const HIT: u32 = 16;
/// From r4: the context.
pub(super) const REGS: u32 = HIT + offset_of!(Hit, regs) as u32;
/// From r4: the address of the instruction.
pub(super) const PC: u32 = register(15);
/// From r4: whether the program returns from the function.
pub(super) const OVERRIDDEN: u32 = HIT + offset_of!(Hit, overridden) as u32;

// r4 is at most 8 above the start of the frame.
const _: () = assert!(8 + HIT + size_of::<Hit>() as u32 <= FRAME && HIT % 8 == 0);

/// The frame, behind [`save`].
pub(super) const BASE: u8 = 4;
/// The number of the probe, behind [`save`].
pub(super) const PROBE: u8 = 5;
/// The start of the frame, behind [`save`].
const START: u8 = 6;
/// `FPSCR`, while vector registers are saved.
const STATUS: u8 = 7;
/// The register between caller and callee, which the detour keeps for the thunk.
pub(in crate::codegen::a32) const IP: u8 = 12;

/// From the start of the frame: where r0 is while r4 is found.
const MEANWHILE: u32 = 8;
/// Bits of `CPSR` of a program: user mode (section B1.3.1).
const USER: u8 = 0x10;
/// How far to the left bit 0 of an address is in `CPSR`, as `T`.
const TO_STATE: u32 = 5;

/// From r4: a register.
pub(super) const fn register(number: u32) -> u32 {
    REGS + offset_of!(Regs, r) as u32 + 8 * number
}

/// Emits the way into a frame: in front of the call of a thunk, whose number of the probe goes into
/// r12 next.
pub(in crate::codegen::a32) fn enter(asm: &mut Asm) {
    asm.sub_imm(SP, SP, FRAME);
    asm.stm(SP, list(&[IP, LINK]));
}

/// Emits the way out of it.
pub(in crate::codegen::a32) fn leave(asm: &mut Asm) {
    asm.ldm(SP, list(&[IP, LINK]));
    asm.add_imm(SP, SP, FRAME);
}

/// Saves registers as drawn above, behind [`enter`]. r12 has the number of the probe, the link
/// register leads back to the detour and says by bit 0 whether that is T32.
pub(super) fn save(asm: &mut Asm, env: &Env) {
    // r0 = the first multiple of 8 behind the start.
    asm.str(0, SP, MEANWHILE);
    asm.bic_imm(0, SP, 7);
    asm.add_imm(0, 0, 8);
    asm.str(LINK, 0, RETURN);
    for number in 1..12 {
        asm.str(number, 0, register(number.into()));
    }
    asm.mov(BASE, 0);
    asm.mov(PROBE, IP);
    asm.mov(START, SP);
    // The words of the context have 64 bits.
    asm.constant(0, 0);
    for word in 0..size_of::<Regs>() as u32 / 8 {
        asm.str(0, BASE, REGS + 8 * word + 4);
    }
    asm.str(0, BASE, PC);
    for at in [OVERRIDDEN, OVERRIDDEN + 4] {
        asm.str(0, BASE, at);
    }
    for (from, to) in [(MEANWHILE, 0), (0, IP), (4, LINK)] {
        asm.ldr(0, START, from);
        asm.str(0, BASE, register(to.into()));
    }
    asm.add_imm(0, START, FRAME);
    asm.str(0, BASE, register(SP.into()));
    asm.mrs(0);
    asm.str(0, BASE, FLAGS);
    // Where it is not about flags, `mrs` reads nothing that is defined (section B1.3.3).
    asm.ubfx(1, 0, 27, 5);
    asm.ubfx(0, 0, 16, 4);
    asm.constant(2, 0);
    asm.orr(0, 2, 0, 16);
    asm.orr(0, 0, 1, 27);
    asm.and_imm(1, LINK, 1);
    asm.orr(0, 0, 1, TO_STATE);
    asm.orr_imm(0, 0, USER);
    asm.str(0, BASE, REGS + offset_of!(Regs, cpsr) as u32);
    asm.constant(0, u32::MAX);
    asm.str(0, BASE, REGS + offset_of!(Regs, orig_r0) as u32);
    for (number, at) in (0..8).zip((Hit::FLOATS..).step_by(8)).filter(|(_, at)| env.context.has(*at)) {
        asm.vstr(number, BASE, REGS + at as u32);
    }
    asm.bic_imm(SP, SP, 7);
    let vectors = numbers(env.agent_vectors);
    if !vectors.is_empty() {
        asm.vmrs(STATUS);
        asm.sub_imm(SP, SP, 8 * vectors.len() as u32);
        for (i, number) in (0..).zip(&vectors) {
            asm.vstr(*number, SP, 8 * i);
        }
    }
}

/// Undoes [`save`]. What the called code has changed of the registers is in them then; the detour
/// takes r12 and the link register from the frame, r12 as it is at `ip` from r4. Here, the link
/// register is the return into the detour.
///
/// If r12 becomes the address of an instruction, it is one of the site's instruction set, unless
/// bit 0 says T32.
pub(super) fn restore(asm: &mut Asm, env: &Env, ip: u32) {
    let vectors = numbers(env.agent_vectors);
    if !vectors.is_empty() {
        for (i, number) in (0..).zip(&vectors) {
            asm.vldr(*number, SP, 8 * i);
        }
        asm.vmsr(STATUS);
    }
    asm.mov(SP, START);
    asm.ldr(LINK, BASE, RETURN);
    asm.ldr(0, BASE, ip);
    if ip == PC {
        asm.and_imm(1, LINK, 1);
        asm.orr(0, 0, 1, 0);
    }
    asm.ldr(1, BASE, register(LINK.into()));
    asm.str(0, SP, 0);
    asm.str(1, SP, 4);
    asm.ldr(0, BASE, FLAGS);
    asm.msr(0);
    for number in (0..12).filter(|number| *number != BASE) {
        asm.ldr(number, BASE, register(number.into()));
    }
    asm.ldr(BASE, BASE, register(BASE.into()));
}

/// d0 to d31, a bit each.
fn numbers(vectors: u32) -> Vec<u8> {
    (0..32).filter(|i| vectors >> i & 1 == 1).collect()
}

/// Whether the context that programs read, or change, has the address of the instruction.
pub(super) fn has_pc(env: &Env) -> bool {
    env.context.has_ip(Isa::A32) || env.changes.has_ip(Isa::A32)
}

/// A run-time address as code has it: those of 32-bit programs have no upper half.
pub(super) fn address(va: Va) -> u32 {
    va.0 as u32
}
