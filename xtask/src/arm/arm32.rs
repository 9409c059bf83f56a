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

/// Modules and tests that `cargo xtask test` runs: they are all right on arm32, and take six
/// minutes together. `docs/internals/arm32.md` says what is not right yet.
const TESTED: &[&str] = &[
    "blocked::calls_with_a_signal_set",
    "counts::attach::dynamic",
    "counts::command::static_glibc",
    "counts::deep_recursion",
    "counts::several_functions",
    "detach::a_stopped_process",
    "ends::a_command_went_on",
    "ends::what_a_killed_controller",
    "errors::",
    "info::",
    "listing::",
    "masks::a_new_thread",
    "masks::another_program",
    "masks::handlers_that_outlive",
    "masks::what_a_call_that_waits",
    "members::",
    "regressions::code_mapped_twice",
    "regressions::guard_of_a_system_call",
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
    (
        "calls that a patch displaces: a trap is one instruction, and a thread that waits is behind it",
        &[
            "blocked::a_detach_leaves_calls_that_were_guarded_to_write_sites_live",
            "blocked::a_detach_never_ended_while_a_thread_waited_in_io_uring_enter",
        ],
    ),
    ("sums of 64 bits, which the program computes with 32", &["counts::sixty_four_threads"]),
    (
        "a guard at the end of signal handlers",
        &[
            "trap::a_handler_blocked_our_signal_by_the_mask_in_its_frame",
            "trap::a_handler_in_a_handler_blocked_our_signal_for_ever",
        ],
    ),
    (
        "types of arguments, of which nobody has written where they are",
        &["listing::an_indirect_function_does_not_have_the_types_of_its_resolver"],
    ),
    (
        "functions of the other instruction set: the start files of the C library have some",
        &["listing::every_object_is_meant_by_a_star"],
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
