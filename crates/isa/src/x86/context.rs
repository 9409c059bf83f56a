//! The context of a hit on x86-64 and x86-32.

use crate::context::{CallingConvention, Context};

/// Words by the registers' names in 64-bit code.
mod at {
    pub const R15: u16 = 0;
    pub const R14: u16 = 8;
    pub const R13: u16 = 16;
    pub const R12: u16 = 24;
    pub const BP: u16 = 32;
    pub const BX: u16 = 40;
    pub const R11: u16 = 48;
    pub const R10: u16 = 56;
    pub const R9: u16 = 64;
    pub const R8: u16 = 72;
    pub const AX: u16 = 80;
    pub const CX: u16 = 88;
    pub const DX: u16 = 96;
    pub const SI: u16 = 104;
    pub const DI: u16 = 112;
    pub const IP: u16 = 128;
    pub const FLAGS: u16 = 144;
    pub const SP: u16 = 152;
}

/// Of 64-bit programs.
pub static CONTEXT_64: Context = Context {
    names: &[
        "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di", "orig_ax",
        "ip", "cs", "flags", "sp", "ss",
    ],
    // SDM volume 2, table 3-1.
    registers: &[
        at::AX,
        at::CX,
        at::DX,
        at::BX,
        at::SP,
        at::BP,
        at::SI,
        at::DI,
        at::R8,
        at::R9,
        at::R10,
        at::R11,
        at::R12,
        at::R13,
        at::R14,
        at::R15,
    ],
    flags: at::FLAGS,
    aliases: &[("pc", "ip")],
    floats: &["xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7"],
    // Behind the cookie.
    floats_at: 176,
    // System V psABI of x86-64, 3.2.3.
    convention: CallingConvention::SystemV,
    arguments: &[at::DI, at::SI, at::DX, at::CX, at::R8, at::R9],
    // "Go internal ABI specification", "amd64 architecture".
    go_arguments: &[at::AX, at::BX, at::CX, at::DI, at::SI, at::R8, at::R9, at::R10, at::R11],
    result: at::AX,
    second_result: at::DX,
    result_address: at::DI,
    pc: at::IP,
    stack_pointer: at::SP,
    goroutine: at::R14,
    link: None,
};

/// Of 32-bit programs, which have the same words. All arguments are on the stack.
pub static CONTEXT_32: Context =
    Context { convention: CallingConvention::I386, arguments: &[], go_arguments: &[], ..CONTEXT_64 };
