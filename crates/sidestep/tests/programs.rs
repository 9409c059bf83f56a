//! Programs in C that do nothing but probe, themselves or others.

mod c;

use sidestep_tests::process::run;

use c::{LIMIT, program};

/// Two batches of what is taken back at once, and more.
const ROUNDS: usize = 800;

/// The two numbers behind a label.
#[track_caller]
fn pair(printed: &str, label: &str) -> [u64; 2] {
    let line = printed.lines().find_map(|line| line.strip_prefix(label));
    let mut numbers = line.unwrap_or_else(|| panic!("{printed}")).split(' ').map(|number| number.parse().unwrap());
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

/// A program that registers and unregisters all the time does not grow: detours, numbers, entries
/// and tables are taken back.
#[test]
fn memory_stays_the_same() {
    let mut rounds = program("tests/c/rounds.c", &["-D_GNU_SOURCE", "-pthread"]);
    let printed = run(rounds.arg(ROUNDS.to_string()), LIMIT).ok().stdout;
    let (counted, calls) = printed.split_once(" calls").unwrap().0.split_once(" of ").unwrap();
    assert_eq!(counted, calls);
    // A registration that is kept takes two pages, in two mappings.
    let [[mappings, more], [kib, more_kib]] = [pair(&printed, "mappings: "), pair(&printed, "KiB: ")];
    assert!(more < mappings + 100 && more_kib < kib + 500, "{printed}");
}

/// Runs `killed.c`. `SIDESTEP_STEP=1` does it at every call of `ptrace`, which takes minutes.
#[track_caller]
fn killed(who: &str, step: &str) {
    let step = std::env::var("SIDESTEP_STEP").unwrap_or_else(|_| step.to_owned());
    let mut killed = program("tests/c/killed.c", &["-D_GNU_SOURCE", "-pthread"]);
    let printed = run(killed.args([who, "1", &step]), LIMIT * 10).ok().stdout;
    let (sessions, calls) = printed.trim_end().trim_end_matches(" calls").split_once(" sessions of ").unwrap();
    let (sessions, calls): (u64, u64) = (sessions.parse().unwrap(), calls.parse().unwrap());
    assert!(sessions >= 10 && calls >= 200, "{printed}");
}

/// A program whose controller is killed in the middle of anything goes on as before, and its next
/// session cleans up.
#[test]
fn controllers_of_oneself_are_killed_at_any_moment() {
    killed("controller", "89");
}

/// A program that is killed, exits, or executes another one in the middle of anything ends as it
/// would have, and so does its controller.
#[test]
fn a_program_ends_while_it_is_probed() {
    killed("program", "83");
}

/// Another process, from its first instruction, and one that runs already.
#[test]
fn others_of_the_same_width_are_probed() {
    let printed = run(&mut program("tests/c/other.c", &["-D_GNU_SOURCE"]), LIMIT).ok().stdout;
    assert_eq!(printed, "started: 1000 of 1000, status 3\nattached: 700 of 1000, status 3\n");
}
