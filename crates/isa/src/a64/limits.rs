//! What is fixed for A64.

use super::context::CONTEXT;
use super::usage::NZCV;
use super::{SP, WORD, patch};
use crate::limits::Limits;

/// A64.
pub const LIMITS: Limits = Limits {
    bits: 64,
    alignment: WORD as u64,
    jump: WORD,
    jump_text: ("xx xx xx xx", "b detour"),
    breakpoint: &patch::BREAKPOINT,
    traps_first: false,
    reach: Some(1 << 27),
    // `TASK_SIZE` with addresses of 48 bits (arch/arm64/include/asm/processor.h).
    address_end: 1 << 48,
    registers: &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",
        "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30", "sp",
    ],
    stack_pointer: SP,
    // AAPCS64, 6.1.1: x0 to x18, and the link register.
    changed_by_calls: 0x4007_ffff,
    flags: NZCV,
    overlaps: false,
    short_branch: 0,
    // `adrp` names a page.
    operand_slack: 4095,
    exclusive: true,
    guards_targets: true,
    data_in_code: false,
    skipped_prefix: None,
    drops_arguments: false,
    words_name_code: true,
    // Nothing tells whether x28 is the goroutine where the function does not look at it.
    go: false,
    context: &CONTEXT,
};
