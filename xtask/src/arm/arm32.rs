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

/// What does not run, and why.
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
        "return addresses that are replaced",
        &[
            "returns_real::unwinders_that_come_later_find_real_return_addresses",
            "share::returns_of_programs_with_exceptions_are_watched_by_one",
            "switch::a_place_that_keeps_the_process_safe_stays",
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
