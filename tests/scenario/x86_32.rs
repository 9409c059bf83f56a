//! 32-bit programs, under the i686 build of the tool on this 64-bit kernel: what other scenarios
//! say of 64-bit programs holds of them, too. And the two builds are not mixed up.

use std::process::Command;

use sidestep_tests::build::installed;
use sidestep_tests::process::{LIMIT, Program, eventually, kill, run};
use sidestep_tests::tool::{Tracing, during, path, sidestep, use_32_bit};
use sidestep_tests::{Snapshot, skip, target};

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
        sixty_four_threads, trace_loses_nothing_silently, trace_shows_integers_and_strings, threads_come_and_go,
        deep_recursion_with_return_probes, several_functions_by_glob_and_expression, trace_shows_return_values,
        floating_point_survives,
    }
    kernel_uprobes {
        the_kernel_comes_second, the_kernel_comes_first, the_kernel_stays, probes_are_switched_under_the_kernels,
        what_has_to_be_at_the_first_instruction, a_usdt_nop_of_both,
    }
    trap {
        own_handler_sees_all_of_its_own, handler_installed_while_probed, blocked_before_the_attach,
        blocked_and_no_jump_allowed, blocked_while_probed, unhandled_breakpoint_still_kills,
        a_handler_blocked_our_signal_by_the_mask_in_its_frame, a_handler_in_a_handler_blocked_our_signal_for_ever,
        a_child_of_vfork_made_its_parent_forget_what_is_blocked,
    }
    pauses {
        calls_that_wait_were_ended_by_a_pause,
    }
    listing {
        an_indirect_function_of_a_32_bit_program_was_not_found,
    }
    altstack {
        threads_that_share_a_stack_for_signals_overwrote_each_other,
        threads_that_shared_a_stack_for_signals_before_the_attach_overwrote_each_other,
    }
    returns {
        a_library_that_moves_stacks_came_after_the_attach, what_is_not_behind_a_call_was_replaced,
        calls_whose_return_address_was_replaced_had_no_name, data_that_looked_like_a_return_address_was_replaced,
        calls_are_remembered_whenever_a_signal_comes, a_call_that_began_unseen_had_the_time_of_an_earlier_one,
        calls_that_never_returned_ended_where_they_would_have_jumped_to,
        calls_that_were_left_slowed_down_those_of_another_function,
    }
    signals {
        both_count_and_either_may_end_first, either_may_be_killed, signals_of_the_program_stay_its_own,
        strings_are_read_by_both, children_are_followed_by_both, no_hit_is_lost_when_the_owner_ends,
        others_come_and_go_under_load, owners_end_while_threads_are_in_guards, either_ends_while_the_process_is_stopped,
        two_sessions_that_planned_at_the_same_time_left_no_guard,
    }
    unwind {
        longjmp_over_probed_frames, signals_at_a_kilohertz, signals_right_behind_returns, siglongjmp_out_of_handlers,
        coroutines_leave_in_the_middle, functions_that_return_structures,
    }
    faults {
        every_answer_is_the_same_with_and_without_probes, every_answer_of_a_static_program_is_the_same,
        strings_are_what_can_be_read, every_death_is_the_same, faults_go_on_while_probes_come_and_go,
        a_return_address_was_taken_for_the_mask_of_a_signal_that_was_over,
        a_push_at_the_end_of_a_stack_showed_an_address_in_the_detour,
    }
    ends {
        a_controller_that_was_just_killed_was_taken_for_one_at_work,
        signals_that_end_a_program_left_the_target_probed, what_a_killed_controller_has_left_is_removed,
        a_detach_that_was_given_up_kept_every_later_session_from_working,
    }
    detach {
        everything_is_counted_meanwhile, controller_killed_at_any_moment, controller_killed_while_it_detaches,
        controller_killed_between_its_steps, two_at_the_same_time, a_hundred_cycles_under_load,
        there_was_always_a_handler_that_had_interrupted_a_guard,
        a_stopped_process_stays_stopped,
    }
    stacks {
        gdb_sees_the_same_callers, every_instruction_has_the_same_callers, what_a_signal_interrupted_is_there,
        watched_returns_are_no_obstacle, threads_at_once_while_probes_come_and_go,
        inlined_functions_have_frames_and_lines,
    }
    records {
        declared_members_are_where_the_compiler_has_them, described_members_are_where_the_compiler_has_them,
    }
    specs {
        scripts_print_what_they_must,
    }
    tools {
        stacks_are_counted_and_folded, specifications_of_argdist, slow_calls_are_those_that_sleep,
        leaks_are_what_the_program_did_not_free, locks_in_two_orders,
        who_created_a_thread_that_was_there_before_is_not_known,
    }
    switch {
        unloaded_libraries_are_left_alone, libraries_that_are_loaded_again_stay_disabled, disabled_probes_count_nothing_and_leave_no_byte,
        those_that_are_meant_are_switched_and_no_others, optimization_is_switched_off_and_on,
        jumps_stay_where_traps_are_not_taken, nothing_is_stopped_where_traps_are_taken, what_means_no_probe_is_said,
        programs_know_that_nobody_listens_meanwhile, children_keep_what_they_were_forked_with,
        probes_of_a_command_are_switched,
    }
    switching {
        probes_are_switched_under_load, results_are_right_while_probes_come_and_go, many_switch_at_the_same_time,
        a_detach_at_the_same_time, killed_at_any_moment,
    }
    status {
        ways_to_end, list_shows_what_nm_shows,
    }
    events {
        values_are_printed_as_in_the_trace_file, returns_name_both_ends, filters_choose,
        filters_choose_calls_of_functions_too, what_cannot_be_read_is_a_fault, json_has_the_fields,
        errors_point_at_the_place,
    }
    follow {
        two_processes_add_up, each_process_ends_alone, one_that_cannot_be_probed_leaves_the_others_alone,
        forked_children_are_counted, thousands_of_children, what_children_execute_is_probed,
        what_the_target_executes_is_probed, commands_that_execute_the_program, children_of_vfork_had_their_parents_pid,
        a_library_that_was_loaded_again_had_no_probes,
    }
    hostile {
        another_process_answered_in_place_of_the_controller,
    }
    carried {
        a_probe_is_where_nm_says_and_counts_what_the_program_did, probes_of_one_place_are_in_order_of_registration,
        instructions_returns_and_usdt_probes_are_told_apart, json_says_the_same, a_killed_controllers_probes_are_listed,
        a_process_under_a_debugger_can_be_looked_at, what_carries_no_session_is_said,
        who_may_not_trace_a_process_may_not_look_at_its_probes,
    }
    post {
        under_load, what_has_nothing_behind_it_is_said,
    }
    usdt {
        arguments_are_where_the_notes_say, programs_know_that_somebody_listens,
        somebody_who_ceases_to_listen_is_no_matter, killed_controllers_listen_no_more_after_the_next,
        children_are_cleaned_up_by_who_attaches_to_them, commands_are_listened_to_from_their_start,
        what_a_command_does_not_have_is_said, what_is_no_probe_is_said, operands_of_every_form,
        only_what_is_asked_for_must_be_understood, memory_of_frames_and_below_the_stack_pointer,
    }
    provider {
        arguments_are_what_compilers_of_c_pass, arguments_are_what_rust_passes,
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
    promotion {
        a_site_is_a_jump_while_nothing_is_enabled_inside, all_that_are_inside_have_to_go,
        one_of_two_jumps_that_overlap_is_there, a_site_that_is_to_be_a_trap_stays_one, faults_are_seen_where_they_are,
        counts_are_exact_while_neighbours_come_and_go, those_who_switch_may_die,
    }
    protection {
        the_hottest_probe_was_kept_whatever_it_cost, an_entry_was_disabled_without_its_return,
        costly_probes_are_warned_of_once, children_kept_a_probe_that_was_disabled,
        a_probe_that_is_enabled_again_is_looked_at_again, hits_are_limited, calls_that_are_timed_end_together,
        memory_is_limited, time_is_limited, who_attaches_is_logged,
    }
    displaced {
        every_answer_is_the_same_with_and_without_probes, every_answer_of_a_static_program_is_the_same,
        a_retry_is_a_hit_where_the_probe_is, handlers_from_before_the_attach_and_from_meanwhile_stay,
        faults_go_on_while_probes_come_and_go, a_handler_sees_the_original_while_its_probe_is_switched,
        a_program_that_is_started_sees_its_own_addresses, every_death_is_told_of_the_original,
        without_guards_a_fault_shows_where_it_is,
    }
    emulated {
        every_answer_is_the_same_under_signals_in_threads_and_children,
        handlers_installed_meanwhile_and_stacks_of_their_own, each_instruction_is_counted_as_often_as_it_ran,
        the_kernel_counts_as_many, status_and_detach_know_them, explain_says_what_is_emulated,
    }
    registers {
        programs_see_true_registers_and_leave_them, programs_at_traps_see_true_registers_and_leave_them,
        interpreted_programs_see_true_registers_and_leave_them, children_keep_their_registers_and_write_no_map,
        a_child_does_not_return_as_its_parent_did, override_return_in_the_middle_of_a_function_is_refused,
        programs_change_registers_and_skip_instructions,
    }
    kernel_suites {
        uprobe_race, probes_of_all_kinds_at_one_place, uretprobe_regs_equal, regs_change, consumers_in_all_combinations,
        consumers_before_and_after, test_kprobe_missed, kprobe_insn_boundary, kprobe_opt_types, multiple_kprobes,
        multiple_kprobes_at_one_place, probepoint, kretprobe_maxactive, uretprobe_stack_and_get_func_ip,
    }
    typed {
        handlers_with_the_signature_of_the_function,
    }
    many {
        more_calls_returned_than_there_were,
        histograms_of_many_functions_needed_too_much_memory,
        histograms_of_the_functions_of_a_command_had_no_room,
        sites_are_written_while_the_threads_run, counts_are_exact, killed_in_the_middle_of_an_attach,
    }
    share {
        either_may_end_first, three_end_in_any_order, either_may_be_killed,
        calls_under_way_return_through_all_that_are_left, frames_that_do_not_return_are_left_by_both,
        stacks_go_through_frames_of_another_session, sessions_come_and_go_under_running_threads,
        switches_and_lists_show_both, what_cannot_be_shared_is_refused, children_and_signal_handlers_are_not_disturbed,
    }
    limits {
        a_main_thread_at_the_end_of_its_stack_was_a_reason_to_refuse,
        a_shadow_stack_that_cannot_grow_watches_what_it_can, an_attach_without_memory_is_refused_in_one_line,
        threads_that_cannot_be_told_apart_are_refused_or_noticed, a_process_with_little_address_space_could_not_be_probed,
        followed_processes_with_little_address_space_could_not_be_probed,
    }
    beside {
        a_process_on_the_same_memory_is_a_reason_to_refuse, a_process_on_the_same_memory_outlives_switches_and_the_detach,
    }
    sandbox {
        a_filter_that_kills_is_respected, hits_were_not_counted_where_a_filter_kills, a_filter_that_refuses_does_no_harm,
        system_calls_that_the_kernel_gives_back_killed_the_program,
    }
    spawn {
        exec_by_a_command, exec_by_the_target, fork, latency_of_vfork_does_no_harm, posix_spawn,
        the_functions_that_make_processes, vfork,
    }
    lent {
        children_of_vfork_counted_as_their_parents, children_of_static_programs_counted_as_their_parents,
        what_posix_spawn_does_in_the_child_counted_as_its_parents,
        the_functions_that_make_children_are_probed_all_the_same, threads_that_make_children_at_once,
        signal_handlers_that_hit_probes_before_the_child_is_made, signal_handlers_that_make_children,
        children_without_handlers_were_killed_by_traps,
    }
    debugger {
        a_breakpoint_at_a_probe_stops_with_all_callers, it_comes_and_goes_while_probes_are_hit,
        the_second_stop_of_a_fault_is_at_its_own_line,
    }
    regressions {
        a_frame_of_a_fault_that_was_long_over_kept_memory,
        a_frame_where_one_of_ours_had_been_was_taken_for_ours,
        a_trap_in_front_of_an_island_was_taken_for_a_jump_to_it, code_mapped_twice_left_no_room_for_any_detour,
        controller_killed_while_it_wrote_left_traps_without_guards,
        guard_of_a_system_call_ran_at_the_entry_of_its_function, no_stack_was_left_to_attach_with,
        spawned_child_took_the_parents_sigtrap_handler_away,
    }
    kernel_cases {
        kprobe_non_uniq_symbol, test_stacktrace_on_kretprobe_nested,
    }
}

/// Exact counts and latencies by jumps and by traps, attached and started; the program is as before
/// when we are gone.
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

/// A command for which there is another build was let go before it was killed, and had the time
/// between the two.
#[test]
fn a_refused_command_ran_until_it_was_killed() {
    let of_32_bit = |name: &'static str| {
        let build = move || {
            use_32_bit();
            (target(name).expect("a C compiler for 32-bit programs"), path().clone())
        };
        std::thread::spawn(build).join().expect("built")
    };
    let of_64_bit = |name: &str| (target(name).expect("a C compiler"), path().clone());
    let (long, (short, _)) = (of_64_bit("counts").0, of_32_bit("counts"));
    for (command, (late_kill, tool), width) in
        [(short, of_64_bit("liblate_kill.so"), "32-bit"), (long, of_32_bit("liblate_kill.so"), "64-bit")]
    {
        let mut tool = Command::new(tool);
        tool.env("LD_PRELOAD", late_kill).args(["funccount", "leaf", "--"]).arg(command).args(["work", "1"]);
        let output = run(&mut tool, LIMIT);
        errors::assert_refused(&output, &[&format!("is a {width} x86 program")]);
    }
}

/// What only 32-bit code has, or what is another instruction there, at each of them at once: by
/// jumps and traps all registers, flags and the stack are as without, and each has its count.
#[test]
fn instructions_that_only_32_bit_code_has() {
    use_32_bit();
    let path = target("emulated").expect("a C compiler for 32-bit programs");
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let alone = program.ask("old 30");
    let before = Snapshot::of(program.pid());
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [&["funccount"], flags, &["-p", &pid, "emulated:old_*+*"]].concat();
        let (report, answer) = during(&args, || program.ask("old 30"));
        assert_eq!(answer, alone, "{flags:?}: {}", report.0);
        let counts = report.counts();
        // Some are called by others.
        assert!(counts.len() > 120 && counts.values().all(|count| *count % 30 == 0), "{}", report.0);
        assert_eq!(report.count("old_far"), 30, "{}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    assert_eq!(program.ask("old 30"), alone);
    program.finish().ok();
}

/// A thread was in the vDSO, between the guard and the kernel, when the guard was put in. It opened
/// the signal, and was told for ever that the signal is blocked.
#[test]
fn a_call_under_way_was_made_past_its_guard() {
    if !installed("gdb") {
        return skip("no gdb");
    }
    use_32_bit();
    let path = target("trap").expect("a C compiler for 32-bit programs");
    // At each instruction in front of the one that enters the kernel: the thread itself is there
    // when the guard comes, as the process is suspended, or a handler of the thread runs.
    for (signal, offset) in ["SIGSTOP", "SIGUSR1"].into_iter().flat_map(|how| [0, 1, 2, 3, 5].map(|at| (how, at))) {
        let mut program = Program::start(&mut Command::new(&path));
        let pid = program.pid().to_string();
        assert_eq!(program.ask("opens 0"), 0);
        let place = format!("tbreak *((char *)__kernel_vsyscall + {offset}) if $eax == 175 && $ebx == 1");
        let queue = format!("queue-signal {signal}");
        let steps = ["set confirm off", &place, "continue", "set var is_caught = 1", &queue, "detach"];
        let mut gdb = Command::new("gdb");
        gdb.args(["-q", "-batch", "-nx", "-p", &pid]).args(steps.iter().flat_map(|step| ["-ex", step]));
        let said = run(&mut gdb, LIMIT);
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_suspended = || stat().rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'));
        if signal == "SIGSTOP" {
            assert!(eventually(LIMIT, is_suspended), "{said}");
        } else {
            assert!(eventually(LIMIT, || program.ask("caught 0") == 2), "{said}");
        }
        let tracing = Tracing::start(&["funccount", "--no-optimize", "-p", &pid, "leaf"]);
        kill(program.pid(), libc::SIGCONT);
        assert_eq!(program.ask("opened 0"), 1, "{signal} +{offset}: the program believes that the signal is blocked");
        tracing.stop();
        program.finish().ok();
    }
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

/// Functions that get their arguments in registers, as their compiler likes: `args` has them, or
/// says that it has not; results of 64 bits are in two registers.
#[test]
fn arguments_are_where_the_compiler_has_put_them() {
    use_32_bit();
    let path = target("local").expect("a C compiler for 32-bit programs");
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let script = "u:local:four { printf(\"%d %d %d %d\\n\", args.a, args.p->second, args.c, args.d) }
        u:local:wide { printf(\"%d\\n\", args.c) }
        u:local:outer { printf(\"%lld\\n\", args.a) } ur:local:outer { printf(\"%lld\\n\", retval) }";
    let (report, wrong) = during(&["-f", "json", "-p", &pid, "-e", script], || program.ask("run 2"));
    assert_eq!(wrong, 0, "{}", report.0);
    let expected = ["0 3 7 9", "99", "0", "5000000000", "1 3 7 9", "99", "1", "5000000001"];
    let text = |line: &'_ str| {
        Some(line.split_once("\"type\": \"printf\", \"data\": \"")?.1.strip_suffix("\\n\"}")?.to_owned())
    };
    assert_eq!(report.0.stdout.lines().filter_map(text).collect::<Vec<_>>(), expected, "{}", report.0);
    let output = run(&mut sidestep(&["-p", &pid, "-e", "u:local:wide { print(args.a) }"]), LIMIT);
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stderr.contains("only the compiler knows where the argument a"), "{output}");
    program.finish().ok();
}
