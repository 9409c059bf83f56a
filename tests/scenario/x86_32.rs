//! 32-bit programs, under the i686 build of the tool on this 64-bit kernel: what other scenarios say of 64-bit programs holds of
//! them, too. And the two builds are not mixed up.

use std::process::Command;

use sidestep_tests::process::LIMIT;
use sidestep_tests::process::{Program, run};
use sidestep_tests::target;
use sidestep_tests::tool::{Tracing, sidestep, use_32_bit};

use crate::errors;

/// Tests of other scenarios, once more.
macro_rules! again {
    ($($module:ident { $($test:ident,)* })*) => {
        $(mod $module {
            $(#[test] fn $test() {
                sidestep_tests::tool::use_32_bit();
                crate::$module::$test();
            })*
        })*
    };
}
again! {
    counts {
        threads_come_and_go, deep_recursion_with_return_probes, several_functions_by_glob_and_expression,
        trace_shows_return_values, floating_point_survives,
    }
    trap {
        own_handler_sees_all_of_its_own, handler_installed_while_probed, blocked_before_the_attach,
        blocked_and_no_jump_allowed, blocked_while_probed, unhandled_breakpoint_still_kills,
    }
    unwind {
        longjmp_over_probed_frames, signals_at_a_kilohertz, signals_right_behind_returns, siglongjmp_out_of_handlers,
        coroutines_leave_in_the_middle, functions_that_return_structures,
    }
    faults {
        every_death_is_the_same,
    }
    detach {
        everything_is_counted_meanwhile, controller_killed_at_any_moment, controller_killed_while_it_detaches,
        two_at_the_same_time,
    }
    stacks {
        gdb_sees_the_same_callers, every_instruction_has_the_same_callers, what_a_signal_interrupted_is_there,
        watched_returns_are_no_obstacle, inlined_functions_have_frames_and_lines,
    }
    records {
        declared_members_are_where_the_compiler_has_them, described_members_are_where_the_compiler_has_them,
    }
    specs {
        scripts_print_what_they_must,
    }
    short {
        one_at_a_time, all_at_once, a_thread_is_in_the_callee, explain_gives_the_reason,
    }
    ladder {
        each_instruction_of_hard_functions_alone, all_instructions_of_hard_functions_at_once,
        all_instructions_of_inflate_at_once, what_a_killed_controller_leaves_works_and_goes,
        explain_shows_what_is_written,
    }
    torture {
        everything_at_once,
    }
}

/// Exact counts and latencies by jumps and by traps, attached and started; the program is as before when we are gone.
macro_rules! builds {
    ($($name:ident = $build:literal,)*) => {
        mod attach {
            $(#[test] fn $name() { sidestep_tests::tool::use_32_bit(); crate::counts::attached($build) })*
        }
        mod command {
            $(#[test] fn $name() { sidestep_tests::tool::use_32_bit(); crate::counts::spawned($build) })*
        }
    };
}
builds! {
    dynamic = "counts", unoptimized = "counts-O0", no_pie = "counts-no-pie", static_glibc = "counts-static",
    static_pie = "counts-static-pie",
}

/// Each build says of the other's programs which one to use.
#[test]
fn the_builds_are_not_mixed_up() {
    let long = target("counts").expect("a C compiler");
    let long = Program::start(&mut Command::new(long));
    let short = std::thread::spawn(|| {
        use_32_bit();
        target("counts").expect("a C compiler for 32-bit programs")
    });
    let short_path = short.join().expect("built");
    let short = Program::start(&mut Command::new(&short_path));
    let (long_pid, short_pid) = (long.pid().to_string(), short.pid().to_string());

    let words = [&short_pid[..], "is a 32-bit x86 program", "use the 32-bit x86 build of sidestep"];
    errors::refused(&["funccount", "-p", &short_pid, "leaf"], &words);
    errors::refused(&["funccount", "leaf", "--", short_path.to_str().expect("UTF-8"), "work", "1"], &words[1..]);
    use_32_bit();
    let words = [&long_pid[..], "is a 64-bit x86 program", "use the 64-bit x86 build of sidestep"];
    errors::refused(&["funccount", "-p", &long_pid, "leaf"], &words);
    long.finish().ok();
    short.finish().ok();
}

/// A process that is probed can be asked, its probes switched, and it says how its programs run.
#[test]
fn what_a_process_carries() {
    use_32_bit();
    let path = target("counts").expect("a C compiler for 32-bit programs");
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["funccount", "-v", "-p", &pid, "leaf"]);
    program.ask("work 10");
    let said = |args: &[&str]| run(&mut sidestep(args), LIMIT).ok().stdout;
    let status = said(&["status", "-p", &pid]);
    let line = status.lines().find(|line| line.contains("leaf")).unwrap_or_else(|| panic!("{status}"));
    assert!(line.contains("[OPTIMIZED]") && line.contains(" 10"), "{status}");
    said(&["disable", "-p", &pid, "leaf"]);
    program.ask("work 100");
    said(&["enable", "-p", &pid, "leaf"]);
    program.ask("work 1000");
    let report = tracing.stop();
    report.assert_count("leaf", 1010);
    assert!(report.0.stderr.contains("handlers are interpreted"), "{}", report.0);
    program.finish().ok();
}
