//! What is fixed for A32 and T32.

use super::context::CONTEXT;
use super::usage::NZCV;
use super::{SP, patch};
use crate::limits::Limits;

/// A32.
pub const LIMITS_A32: Limits = Limits {
    bits: 32,
    alignment: 4,
    jump: 4,
    jump_text: ("xx xx xx xx", "b detour"),
    breakpoint: &patch::BREAKPOINT_A32,
    traps_first: false,
    reach: Some(1 << 25),
    // `TASK_SIZE` of a 32-bit kernel with the usual split (arch/arm/include/asm/memory.h).
    address_end: 0xbf00_0000,
    registers: &["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "sp", "lr"],
    stack_pointer: SP,
    // AAPCS32, 6.1.1: r0 to r3, r12, and the link register.
    changed_by_calls: 0x500f,
    flags: NZCV as u32,
    overlaps: false,
    short_branch: 0,
    operand_slack: 0,
    exclusive: true,
    guards_targets: false,
    data_in_code: true,
    skipped_prefix: None,
    drops_arguments: false,
    words_name_code: true,
    go: false,
    context: &CONTEXT,
};

/// T32.
pub const LIMITS_T32: Limits = Limits {
    alignment: 2,
    jump_text: ("xx xx xx xx", "b.w detour"),
    breakpoint: &patch::BREAKPOINT_T32,
    reach: Some(1 << 24),
    ..LIMITS_A32
};
