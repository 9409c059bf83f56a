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
    tested: TESTED,
    left_out: LEFT_OUT,
};

/// Modules and tests that `cargo xtask test` runs: they are all right on arm32, and take three
/// minutes together. `docs/internals/arm32.md` says what is not right yet.
const TESTED: &[&str] = &[
    "counts::attach::dynamic",
    "counts::command::static_glibc",
    "counts::deep_recursion",
    "counts::several_functions",
    "detach::a_stopped_process",
    "ends::a_command_went_on",
    "ends::what_a_killed_controller",
    "errors::process_",
    "listing::names_",
    "spawn::posix_spawn",
    "spawn::vfork",
    "trap::blocked_",
    "trap::own_handler",
    "trap::unhandled",
];

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
        "more than ten minutes, as each attach takes some ten seconds",
        &["detach::a_target_that_died_during_a_detach_was_an_error", "detach::controller_killed_while_it_detaches"],
    ),
    ("sums of 64 bits, which the program computes with 32", &["counts::sixty_four_threads"]),
    (
        "changes of code while threads run: all of them stand on arm32",
        &["switch::nothing_is_stopped_where_traps_are_taken"],
    ),
    (
        "a library that is loaded at the same place again: those of arm32 are aligned to 64 KiB, so others fit there",
        &["switch::unloaded_libraries_are_left_alone"],
    ),
];
