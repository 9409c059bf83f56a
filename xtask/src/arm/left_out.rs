//! Which scenario tests do not run on an architecture.

use anyhow::{Result, ensure};

use super::Architecture;

/// Reasons, with modules (`name::`) and single tests.
pub type LeftOut = &'static [(&'static str, &'static [&'static str])];

/// On both architectures.
const ON_BOTH: LeftOut = &[
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
            "signals::killed_while_it_shares_them",
            "signals::signals_were_taken_without_guards_when_their_owner_had_just_ended",
            "signals::two_sessions_that_planned_at_the_same_time_left_no_guard",
            "torture::",
        ],
    ),
    ("a system call that no guard fits in front of", &["switch::jumps_stay_where_traps_are_not_taken"]),
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
];

impl Architecture {
    /// Does a test not run?
    pub fn leaves_out(&self, test: &str) -> bool {
        self.all_left_out().any(|name| means(name, test))
    }

    /// All that is left out is there.
    pub fn check_left_out(&self, tests: &[String]) -> Result<()> {
        for name in self.all_left_out() {
            ensure!(
                tests.iter().any(|test| means(name, test)),
                "there is no test {name}, which is left out on {}",
                self.name
            );
        }
        Ok(())
    }

    fn all_left_out(&self) -> impl Iterator<Item = &'static str> {
        ON_BOTH.iter().chain(self.left_out).flat_map(|(_, names)| *names).copied()
    }
}

/// A name is that of a module or of a single test.
fn means(name: &str, test: &str) -> bool {
    test == name || (name.ends_with("::") && test.starts_with(name))
}
