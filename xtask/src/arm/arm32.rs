//! The scenario tests on arm32.

use super::{Architecture, LeftOut};
use crate::{guest, setup};
use sidestep_tests::build;

pub static ARM32: Architecture = Architecture {
    name: "arm32",
    guest: &guest::ARM32,
    memory: 2048,
    target: setup::TARGET_ARM32,
    programs: &build::ARM32,
    emulator: "qemu-arm",
    tool: "SIDESTEP_BIN_ARM32",
    tested: &[],
    left_out: LEFT_OUT,
};

/// What does not run besides, and why.
const LEFT_OUT: LeftOut = &[
    (
        "of 32-bit programs for x86",
        &[
            "x86_32::",
            "blocked::a_detach_leaves_calls_of_32_bit_code",
            "blocked::calls_of_32_bit_code_with_a_signal_set_failed_with_efault_after_a_detach",
        ],
    ),
    (
        "changes of code while threads run: all of them stand on arm32",
        &["switch::nothing_is_stopped_where_traps_are_taken"],
    ),
    (
        "a library that is loaded at the same place again: those of arm32 are aligned to 64 KiB, so others fit there",
        &["switch::unloaded_libraries_are_left_alone"],
    ),
];
