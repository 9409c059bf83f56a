//! What is fixed for x86-64 and x86-32.

use super::context::{CONTEXT_32, CONTEXT_64};
use super::decode::ARITHMETIC_FLAGS;
use super::emit::TRAP_PATCH;
use crate::limits::Limits;

/// x86-64.
pub const LIMITS_64: Limits = Limits {
    bits: 64,
    jump: 5,
    alignment: 1,
    jump_text: ("e9 xx xx xx xx", "jmp    detour"),
    breakpoint: &TRAP_PATCH,
    traps_first: true,
    reach: Some(1 << 31),
    // With 4-level paging.
    address_end: 0x7fff_ffff_f000,
    registers: &[
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
    ],
    stack_pointer: 4,
    // System V psABI, "Register Usage".
    changed_by_calls: 0x0fc7,
    flags: ARITHMETIC_FLAGS,
    overlaps: true,
    // One byte of displacement, behind the longest instruction with one.
    short_branch: 136,
    // A distance counts from the end of the instruction, where an immediate may follow.
    operand_slack: 4,
    exclusive: false,
    // Linux has no such pages for programs.
    guards_targets: false,
    data_in_code: false,
    // `lock`, which glibc jumps over on one CPU.
    skipped_prefix: Some(0xf0),
    drops_arguments: false,
    words_name_code: true,
    go: true,
    context: &CONTEXT_64,
};

/// x86-32.
pub const LIMITS_32: Limits = Limits {
    bits: 32,
    // Every distance can be encoded: the sum of an address and a distance has 32 bits.
    traps_first: true,
    reach: None,
    // In processes of a 64-bit kernel (asm/page_64_types.h, `IA32_PAGE_OFFSET`).
    address_end: 0xffff_e000,
    registers: &["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"],
    changed_by_calls: 0x0007,
    // i386 psABI, "Functions Returning Structures".
    drops_arguments: true,
    words_name_code: false,
    go: false,
    context: &CONTEXT_32,
    ..LIMITS_64
};
