//! Probes at every instruction: right results, and counts that callgrind agrees with.

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Report, Tracing, during, is_32_bit, sidestep};
use sidestep_tests::{Snapshot, callgrind, target};

use super::short::ONCE as HARD;

/// What a report says of `FUNC+0xOFF`, by link-time address.
pub fn by_address(report: &Report, start: impl Fn(&str) -> Option<u64>) -> BTreeMap<u64, u64> {
    let address = |name: &str| match name.split_once("+0x") {
        Some((function, offset)) => Some(start(function)? + u64::from_str_radix(offset, 16).ok()?),
        None => start(name),
    };
    report.counts().into_iter().filter_map(|(name, count)| Some((address(&name)?, count))).collect()
}

/// Link-time addresses of an object's functions.
pub fn functions(object: &str, dynamic: bool) -> BTreeMap<String, u64> {
    let flags: &[&str] = if dynamic { &["-D"] } else { &[] };
    let listing = run(Command::new("nm").args(flags).args(["--defined-only", object]), LIMIT).ok().stdout;
    let row = |line: &str| {
        let mut words = line.split(' ');
        let va = u64::from_str_radix(words.next()?, 16).ok()?;
        let name = words.nth(1)?;
        Some((name.split('@').next().unwrap_or(name).to_owned(), va))
    };
    listing.lines().filter_map(row).collect()
}

pub fn ran(executions: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    executions.iter().filter(|(_, n)| **n > 0).map(|(a, n)| (*a, *n)).collect()
}

#[test]
pub fn each_instruction_of_hard_functions_alone() {
    let Some(path) = target("short") else { return };
    let expected = ran(&callgrind::executions(Command::new(&path).args(["check", "50"]), |name| HARD.contains(&name)));
    let names = functions(path.to_str().expect("UTF-8"), false);
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let before = Snapshot::of(program.pid());
    assert!(expected.len() > 40, "{expected:?}");
    for (address, count) in &expected {
        let (report, wrong) = during(&["funccount", "-p", &pid, &format!("{address:#x}")], || program.ask("check 50"));
        assert_eq!(wrong, 0, "{address:#x}: {}", report.0);
        let found = by_address(&report, |name| names.get(name).copied());
        assert_eq!(found, [(*address, *count)].into(), "{}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
}

#[test]
pub fn all_instructions_of_hard_functions_at_once() {
    let Some(path) = target("short") else { return };
    let expected = ran(&callgrind::executions(Command::new(&path).args(["check", "50"]), |name| HARD.contains(&name)));
    let names = functions(path.to_str().expect("UTF-8"), false);
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let before = Snapshot::of(program.pid());
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [&["funccount"], flags, &["-p", &pid, "short:*_*+*"]].concat();
        let (report, wrong) = during(&args, || program.ask("check 50"));
        assert_eq!(wrong, 0, "{}", report.0);
        let found = by_address(&report, |name| names.get(name).filter(|_| HARD.contains(&name)).copied());
        assert_eq!(found, expected, "{}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
}

/// Where functions are, as unwind information has it.
fn extents(object: &str) -> Vec<Range<u64>> {
    let dump = run(Command::new("readelf").args(["--debug-dump=frames", object]), LIMIT).ok().stdout;
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let row = |line: &str| {
        let (start, end) = line.split_once(" FDE ")?.1.split_once("pc=")?.1.split_once("..")?;
        Some(number(start)?..number(end.split(' ').next()?)?)
    };
    dump.lines().filter_map(row).collect()
}

/// Probes all instructions of a function of a library; `name`: if it has none, it is the one that
/// executes most of them.
fn all_instructions_of(program: &str, library: &str, name: Option<&str>) {
    let Some(path) = target(program) else { return };
    let command = |rounds: &str| {
        let mut command = Command::new(&path);
        command.args(["rounds", rounds]);
        command
    };
    let [once, thrice] = ["1", "3"].map(|rounds| ran(&callgrind::executions_in(&command(rounds), library)));
    let file = format!("{}/{library}", if is_32_bit() { "/usr/lib32" } else { "/lib/x86_64-linux-gnu" });
    let executed = |extent: &Range<u64>| once.range(extent.clone()).map(|(_, count)| count).sum::<u64>();
    let names = functions(&file, true);
    let mut extents = extents(&file).into_iter();
    let function = match name {
        Some(name) => extents.find(|extent| extent.start == names[name]),
        None => extents.max_by_key(executed),
    };
    let function = function.expect("unwind information");
    let short = library.split_once(".so").expect("a library").0;
    let place = format!("{short}:{}+*", name.map_or_else(|| format!("{:#x}", function.start), str::to_owned));
    let start = |name: &str| {
        let unnamed = name.strip_prefix("sub_").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        names.get(name).copied().or(unnamed)
    };

    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let sums = ["rounds 1", "rounds 3"].map(|command| program.ask(command));
    let before = Snapshot::of(program.pid());
    for (flags, rounds, sum, all) in
        [(&[][..], 1, sums[0], &once), (&[], 3, sums[1], &thrice), (&["--no-optimize"], 1, sums[0], &once)]
    {
        let args = [&["funccount", "-p", &pid][..], flags, &[&*place]].concat();
        let (report, found) = during(&args, || program.ask(&format!("rounds {rounds}")));
        assert_eq!(found, sum, "{}", report.0);
        let expected: BTreeMap<u64, u64> = all.range(function.clone()).map(|(at, count)| (*at, *count)).collect();
        assert!(expected.len() > 300, "{}", expected.len());
        assert_eq!(by_address(&report, start), expected, "{place} {flags:?}: {}", report.0);
        before.assert_same_but_data(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
}

#[test]
pub fn all_instructions_of_inflate_at_once() {
    all_instructions_of("inflate", "libz.so.1", Some("inflate"));
}

#[test]
pub fn all_instructions_of_sqlites_bytecode_engine_at_once() {
    all_instructions_of("queries", "libsqlite3.so.0", Some("sqlite3VdbeExec"));
}

/// The matcher is a static function: it has no name.
#[test]
pub fn all_instructions_of_a_regex_engine_at_once() {
    all_instructions_of("matches", "libpcre2-8.so.0", None);
}

/// A controller that is killed leaves stubs, islands and guarded jumps, and the program does not
/// mind; the next one removes them.
#[test]
pub fn what_a_killed_controller_leaves_works_and_goes() {
    let Some(path) = target("short") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let before = Snapshot::of(program.pid());
    for function in HARD {
        let tracing = Tracing::start(&["funccount", "-p", &pid, &format!("short:{function}+*")]);
        tracing.kill();
        assert_eq!(program.ask("check 200"), 0, "{function}");
    }
    Tracing::start(&["funccount", "-p", &pid, "reads_rip"]).stop();
    assert_eq!(program.ask("check 200"), 0);
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

#[test]
pub fn explain_shows_what_is_written() {
    let Some(path) = target("short") else { return };
    let explain =
        |place: &str| run(&mut sidestep(&["explain", &format!("{}:{place}", path.display())]), LIMIT).ok().stdout;
    let text = explain("loop_at_2");
    assert!(text.contains("technique   pun") && text.contains("e9 "), "{text}");
    assert!(text.contains("jumps back to"), "{text}");
    let all = explain("loop_at_2+*");
    assert!(all.matches("technique").count() == 5 && all.contains("there is another probe at"), "{all}");
}
