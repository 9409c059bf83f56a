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

/// What does not run, and why.
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
        "x86 code, and what becomes of it",
        &["displaced::", "emulated::", "labels::", "ladder::", "promotion::", "registers::", "short::"],
    ),
    (
        "too long for an emulated machine",
        &[
            "command_line::hits_after_the_end_were_lost_events",
            "detach::a_hundred_cycles_under_load",
            "detach::an_attach_to_two_processes_that_is_killed_leaves_nothing",
            "detach::controller_killed_at_any_moment",
            "detach::controller_killed_between_its_steps",
            "many::killed_in_the_middle_of_an_attach",
            "races::a_million_keys_for_a_small_map",
            "races::a_reader_against_writers_for_a_minute",
            "rack::",
            "random::",
            "realworld::",
            "redis::",
            "release::killed_while_it_takes_them",
            "release::signals_were_taken_without_guards_when_their_owner_had_just_ended",
            "release::two_sessions_that_planned_at_the_same_time_left_no_guard",
            "torture::",
        ],
    ),
    ("of objects, where nothing runs: the host does the same", &["coverage::", "rules::"]),
    ("the kernel's uprobes as the oracle", &["kernel_cases::", "kernel_suites::", "kernel_uprobes::"]),
    (
        "programs that the guest does not have",
        &["bpftrace::", "debugger::", "provider::", "returns_real::greenlets_in_threads_of_python"],
    ),
    (
        "calls that a patch displaces: on arm64 it is one word, and a thread that waits is behind it",
        &[
            "blocked::a_detach_leaves_calls_that_were_guarded_to_write_sites_live",
            "blocked::a_detach_never_ended_while_a_thread_waited_in_io_uring_enter",
        ],
    ),
    (
        "return addresses that are replaced",
        &[
            "returns_real::unwinders_that_come_later_find_real_return_addresses",
            "share::returns_of_programs_with_exceptions_are_watched_by_one",
            "switch::a_place_that_keeps_the_process_safe_stays",
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
