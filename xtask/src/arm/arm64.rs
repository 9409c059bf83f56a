//! The scenario tests on arm64.

use super::{Architecture, LeftOut};
use crate::{guest, setup};
use sidestep_tests::build;

pub static ARM64: Architecture = Architecture {
    name: "arm64",
    guest: &guest::ARM64,
    memory: 3072,
    target: setup::TARGET_ARM64,
    programs: &build::ARM64,
    emulator: "qemu-aarch64",
    tool: "SIDESTEP_BIN_ARM64",
    tested: TESTED,
    left_out: LEFT_OUT,
};

/// Modules and tests that `cargo xtask test` runs: they are all right on arm64, and take three
/// minutes together. What else is not left out is for `cargo xtask arm64`;
/// `docs/internals/arm64.md` says what is not right yet.
const TESTED: &[&str] = &[
    "bcc_trace::",
    "carried::",
    "counts::",
    "errors::",
    "events::",
    "faults::every_",
    "imports::",
    "info::",
    "limits::",
    "listing::",
    "members::",
    "printed::",
    "records::",
    "spawn::",
    "trap::",
    "typed::",
    "usdt::",
];

/// What does not run besides, and why.
const LEFT_OUT: LeftOut = &[
    (
        "of 32-bit programs",
        &[
            "x86_32::",
            "blocked::a_detach_leaves_calls_of_32_bit_code",
            "blocked::calls_of_32_bit_code_with_a_signal_set_failed_with_efault_after_a_detach",
        ],
    ),
    (
        "calls that a patch displaces: on arm64 it is one word, and a thread that waits is behind it",
        &[
            "blocked::a_detach_leaves_calls_that_were_guarded_to_write_sites_live",
            "blocked::a_detach_never_ended_while_a_thread_waited_in_io_uring_enter",
        ],
    ),
    (
        "instructions that change while threads run, which few may on arm64",
        &["switch::nothing_is_stopped_where_traps_are_taken"],
    ),
    (
        "a guard at the end of signal handlers, which return through the vDSO",
        &[
            "trap::a_handler_blocked_our_signal_by_the_mask_in_its_frame",
            "trap::a_handler_in_a_handler_blocked_our_signal_for_ever",
        ],
    ),
    (
        "a library that is loaded at the same place again: those of arm64 are aligned to 64 KiB, so others fit there",
        &["switch::unloaded_libraries_are_left_alone"],
    ),
    (
        "the C library of arm64 has no table for calls of its own that are resolved at run time",
        &["returns_real::two_names_of_one_implementation_lost_their_returns"],
    ),
];
