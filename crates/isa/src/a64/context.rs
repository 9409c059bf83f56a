//! The context of a hit on A64.

use crate::context::{CallingConvention, Context};

/// Offset of x0, x1 and so on.
const fn x(number: u16) -> u16 {
    8 * number
}

/// x0 to x30 and the stack pointer.
const REGISTERS: [u16; 32] = {
    let (mut all, mut number) = ([0; 32], 0);
    while number < 32 {
        all[number as usize] = x(number);
        number += 1;
    }
    all
};

/// The order is that of `struct user_pt_regs` (arch/arm64/include/uapi/asm/ptrace.h).
pub static CONTEXT: Context = Context {
    names: &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",
        "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30", "sp", "pc",
        "pstate",
    ],
    registers: &REGISTERS,
    flags: x(33),
    aliases: &[("ip", "pc"), ("fp", "x29"), ("lr", "x30")],
    floats: &["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"],
    // Behind the cookie.
    floats_at: 280,
    // AAPCS64, 6.8.2.
    convention: CallingConvention::Aapcs64,
    arguments: &[x(0), x(1), x(2), x(3), x(4), x(5), x(6), x(7)],
    // "Go internal ABI specification", "arm64 architecture".
    go_arguments: &[
        x(0),
        x(1),
        x(2),
        x(3),
        x(4),
        x(5),
        x(6),
        x(7),
        x(8),
        x(9),
        x(10),
        x(11),
        x(12),
        x(13),
        x(14),
        x(15),
    ],
    result: x(0),
    second_result: x(1),
    // AAPCS64, 6.9.
    result_address: x(8),
    pc: x(32),
    stack_pointer: x(31),
    goroutine: x(28),
    link: Some(x(30)),
};
