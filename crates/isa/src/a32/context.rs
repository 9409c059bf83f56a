//! The context of a hit on A32 and T32.

use crate::context::{CallingConvention, Context};

/// Offset of r0, r1 and so on.
const fn r(number: u16) -> u16 {
    8 * number
}

/// The order is that of `struct pt_regs` (arch/arm/include/asm/ptrace.h).
pub static CONTEXT: Context = Context {
    names: &[
        "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "fp", "ip", "sp", "lr", "pc", "cpsr",
        "ORIG_r0",
    ],
    registers: &[r(0), r(1), r(2), r(3), r(4), r(5), r(6), r(7), r(8), r(9), r(10), r(11), r(12), r(13), r(14)],
    flags: r(16),
    aliases: &[("r11", "fp"), ("r12", "ip"), ("r13", "sp"), ("r14", "lr"), ("r15", "pc")],
    // AAPCS32, 7.1.2: the VFP variant, which Debian's armhf has.
    floats: &["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"],
    // Behind the cookie.
    floats_at: 152,
    convention: CallingConvention::Aapcs32,
    arguments: &[r(0), r(1), r(2), r(3)],
    // "Go internal ABI specification": no registers.
    go_arguments: &[],
    result: r(0),
    second_result: r(1),
    result_address: r(0),
    pc: r(15),
    stack_pointer: r(13),
    goroutine: r(10),
    link: Some(r(14)),
};
