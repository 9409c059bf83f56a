//! Addresses to which no branch leads: labels of jump tables in other parts, computed ones, and
//! where faults go on. Each instruction is probed in a run of its own, since many probes at once
//! hide what one jump over several instructions does.

use std::path::Path;
use std::process::Command;

use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::target;
use sidestep_tests::tool::with_command;

/// The instructions of some functions, by objdump.
fn instructions(file: &Path, functions: &[&str]) -> Vec<u64> {
    let code = run(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(file), LIMIT).ok().stdout;
    let (mut all, mut inside) = (Vec::new(), false);
    for line in code.lines() {
        if let Some(name) = line.split_once('<').and_then(|(_, rest)| rest.strip_suffix(">:")) {
            inside = functions.contains(&name);
        } else if let (true, Some((va, insn))) = (inside, line.split_once(":\t")) {
            let is_padding = ["nop", "cs ", "data16", "xchg"].iter().any(|start| insn.starts_with(start));
            all.extend(u64::from_str_radix(va.trim(), 16).ok().filter(|_| !is_padding));
        }
    }
    all
}

/// The program computes the same with a probe at each instruction, one at a time and all at once.
/// Returns how many there are.
#[track_caller]
fn same_with_each_probe(program: &Path, args: &[&str], functions: &[&str]) -> usize {
    let file = program.to_str().expect("UTF-8");
    let command = [&[file], args].concat();
    let plain = run(Command::new(file).args(args), LIMIT).ok().stdout;
    let sites = instructions(program, functions);
    let probe = |site: &u64| format!("u:{file}:{site:#x} {{ @ = count() }}\n");
    let scripts = sites.iter().map(probe).chain([sites.iter().map(probe).collect()]);
    for script in scripts {
        let (output, report) = with_command(&["-v", "-e", &script], &command);
        assert_eq!((output.code(), &output.stdout), (0, &plain), "{script}{}", report.0);
        // Not every instruction is executed; some of them are.
        let hit = report.0.stdout.contains("@: ");
        assert!(hit || script.lines().count() == 1, "{script}{}", report.0);
    }
    sites.len()
}

#[track_caller]
fn labels(kind: &str, functions: &[&str]) {
    for name in ["labels", "labels-thunks"] {
        let Some(program) = target(name) else { return };
        let sites = same_with_each_probe(&program, &[kind, "300"], functions);
        assert!(sites > 20, "{name} {kind}: {sites}");
    }
}

#[test]
pub fn a_label_that_only_the_table_of_another_part_leads_to_was_jumped_over() {
    labels("in_cold", &["in_cold", "in_cold.cold"]);
}

#[test]
pub fn a_table_of_one_jump_was_taken_for_that_of_another() {
    labels("distances", &["distances"]);
}

#[test]
pub fn labels_of_a_table_that_the_program_makes_were_not_known() {
    labels("made", &["made"]);
}

#[test]
pub fn a_start_plus_a_distance_and_a_return_to_a_pushed_address_were_no_jumps() {
    labels("sled", &["sled", "into", "back"]);
}

#[test]
pub fn a_part_that_only_a_table_leads_to_lost_its_red_zone() {
    let Some(program) = target("zone") else { return };
    assert!(same_with_each_probe(&program, &["300"], &["leaf", "leaf_part"]) > 10);
}

#[test]
pub fn what_a_landing_pad_reads_was_dead_at_a_load() {
    let Some(program) = target("thrown-load") else { return };
    assert!(same_with_each_probe(&program, &["300"], &["_Z3getPKll"]) > 5);
}
