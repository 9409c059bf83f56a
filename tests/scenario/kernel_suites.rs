//! What the kernel's own tests of kprobes and uprobes assert, each under the name that it has
//! there, as far as it means something for a process; where the kernel offers it, its uprobes say
//! what is right.
//!
//! Elsewhere: `red_zone` and `uprobe_regs_equal` in `registers`; `uprobe_race` under load in
//! `torture` and `switch`; `attach_probe`, `link_api` and `attach_api_pattern` in `bpf`; `usdt` in
//! `usdt`; `filter_fork` in `spawn`; `add_and_remove` in `detach`; `kprobe_args` and
//! `kprobe_syntax_errors` in `events` and the tests of `lang`; `profile` in `carried`; what the
//! module for instructions of arm does, in `isa/tests`; names of two functions, and stacks at
//! nested returns, in `kernel_cases`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use sidestep_tests::kernel::file_offset;
use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Report, Tracing, during, is_32_bit, sidestep};
use sidestep_tests::{Snapshot, target};

use super::bpf::{Mode, variable, with_object};
use super::carried::{Line, status};
use super::registers::{as_target, middle, words};

const MODES: [Mode; 3] = [Mode::User, Mode::Trap, Mode::Kernel];

fn start(name: &str) -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target(name)?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

/// Programs of `suites.bpf.o` at places, as flags.
fn at(places: &[(&str, &str)]) -> Vec<String> {
    places.iter().flat_map(|(program, place)| ["-a".to_owned(), format!("{program}={place}")]).collect()
}

/// Runs them meanwhile.
#[track_caller]
pub fn with_programs<T>(
    mode: Mode,
    flags: &[&str],
    places: &[(&str, &str)],
    program: &mut Program,
    work: impl FnOnce(&mut Program) -> T,
) -> Option<(Report, T)> {
    let places = at(places);
    let flags: Vec<&str> = flags.iter().copied().chain(places.iter().map(String::as_str)).collect();
    with_object(mode, "suites.bpf.o", &flags, program, work)
}

/// A return changes no register, and its program sees all of them.
#[test]
pub fn uretprobe_regs_equal() {
    let Some((mut program, _)) = start("registers") else { return };
    assert_eq!(program.ask("returned 500"), 0, "without a probe");
    for place in ["registers:returns_all", "registers:site_return"] {
        for mode in MODES {
            let work = |program: &mut Program| {
                let wrong = program.ask("returned 500");
                (wrong, (0..21).map(|k| program.ask(&format!("word {k}"))).collect::<Vec<_>>())
            };
            let found = with_programs(mode, &[], &[("words_back", place)], &mut program, work);
            let Some((report, (wrong, seen))) = found else { continue };
            assert_eq!(wrong, 0, "{mode:?} {place}: {}", report.0);
            if place.ends_with("returns_all") {
                let mut at_return = words(&report, "at_return");
                if mode == Mode::Kernel && is_32_bit() {
                    // What the kernel had in registers that the program has not.
                    [0, 1, 2, 3, 6, 7, 8, 9].into_iter().for_each(|i| at_return[i] = 0);
                }
                assert_eq!(at_return, seen, "{mode:?}: {}", report.0);
            }
        }
    }
    program.finish().ok();
}

/// What a program makes of registers is what the instruction finds.
#[test]
pub fn regs_change() {
    let Some((mut program, _)) = start("registers") else { return };
    for (place, command) in [("at_entry".to_owned(), "changed_entry 500"), (middle("at_middle"), "changed_middle 500")]
    {
        let place = format!("registers:{place}");
        assert_eq!(program.ask(command), 500, "without a probe: none is the complement");
        for (mode, flags) in
            [(Mode::User, &["--unsafe"][..]), (Mode::Trap, &["--unsafe"]), (Mode::User, &["--unsafe", "--interpret"])]
        {
            let programs = [("change_all", &*place)];
            let found = with_programs(mode, flags, &programs, &mut program, |program| program.ask(command));
            let Some((report, wrong)) = found else { return };
            assert_eq!(wrong, 0, "{mode:?} {flags:?} {place}: {}", report.0);
        }
    }
    program.finish().ok();
}

/// Consumers of a place, with the counter of each.
const CONSUMERS: [(&str, &str); 4] =
    [("on_entry", "entered"), ("on_return", "returned"), ("on_both", "both"), ("on_entry_only", "only_entered")];

fn consumers(set: usize) -> impl Iterator<Item = &'static str> {
    CONSUMERS.iter().enumerate().filter(move |(i, _)| set >> i & 1 == 1).map(|(_, (name, _))| *name)
}

/// Whether the kernel can run them: it has no sessions here.
fn has_sessions(set: usize) -> bool {
    set & 0b1100 != 0
}

#[track_caller]
fn assert_counts(report: &Report, set: usize, [entries, returns, pairs]: [i64; 3], what: &str) {
    let expected = [entries, returns, entries + pairs, entries];
    for (i, (_, counter)) in CONSUMERS.iter().enumerate() {
        let expected = if set >> i & 1 == 1 { expected[i] } else { 0 };
        assert_eq!(variable(report, counter), expected, "{what} {counter}: {}", report.0);
    }
}

/// All sets of consumers see all calls.
#[test]
pub fn consumers_in_all_combinations() {
    let Some((mut program, pid)) = start("suites") else { return };
    let before = Snapshot::of(program.pid());
    for set in 1..16 {
        for mode in MODES {
            if mode == Mode::Kernel && has_sessions(set) {
                continue;
            }
            let what = format!("{set:04b} {mode:?}");
            let places: Vec<_> = consumers(set).map(|name| (name, "suites:consumed")).collect();
            let found = with_programs(mode, &[], &places, &mut program, |program| {
                let answer = program.ask("calls 50");
                let lines = if mode == Mode::Kernel { Vec::new() } else { status(&pid, &[]).0 };
                (answer, lines)
            });
            let Some((report, (answer, lines))) = found else { continue };
            assert_eq!(answer, 49 * 50, "{what}");
            assert_counts(&report, set, [50; 3], &what);
            if mode != Mode::Kernel {
                assert_eq!(lines.len(), places.len(), "{what}: {lines:?}");
                assert!(lines.iter().all(|line| (line.hits, line.missed) == (50, 0)), "{what}: {lines:?}");
            }
        }
    }
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// Consumers that go while threads are inside are not told of the return; those that come meanwhile
/// neither.
#[test]
pub fn consumers_before_and_after() {
    const THREADS: i64 = 16;
    let Some((mut program, _)) = start("suites") else { return };
    // What the C library does for its first threads.
    program.ask("enter 1");
    program.ask("leave 1");
    let before = Snapshot::of(program.pid());
    let inside = |program: &mut Program, first: usize, then: usize| {
        let what = format!("{first:04b} {then:04b}");
        let places = |set| consumers(set).map(|name| (name, "suites:consumed")).collect::<Vec<_>>();
        let enter = format!("enter {THREADS}");
        if first == 0 {
            assert_eq!(program.ask(&enter), THREADS);
        } else {
            let found = with_programs(Mode::User, &[], &places(first), program, |program| program.ask(&enter));
            let Some((report, _)) = found else { return };
            assert_counts(&report, first, [THREADS, 0, 0], &what);
        }
        let leave = format!("leave {THREADS}");
        let sum = -THREADS * (THREADS + 1);
        if then == 0 {
            assert_eq!(program.ask(&leave), sum, "{what}");
        } else {
            let found = with_programs(Mode::User, &[], &places(then), program, |program| program.ask(&leave));
            let Some((report, answer)) = found else { return };
            assert_eq!(answer, sum, "{what}");
            // A return counts wherever its call began; what needs the entry is done only for calls
            // that were seen to begin. (The kernel counts none of these calls.)
            assert_counts(&report, then, [0, THREADS, 0], &what);
        }
    };
    for first in 0..16 {
        // At 32 bit, each alone and all: none of them sees what another one does.
        for then in (0..16).filter(|then| !is_32_bit() || [0, 1, 2, 4, 8, 15].contains(then)) {
            inside(&mut program, first, then);
        }
    }
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// Listeners come and go while the probe fires: nothing is computed otherwise, and in the end
/// nobody listens.
#[test]
pub fn uprobe_race() {
    let (Some((mut program, pid)), Some(object)) = (start("usdt"), target("usdt.bpf.o")) else { return };
    let object = object.to_str().expect("UTF-8");
    let before = Snapshot::of(program.pid());
    const ROUNDS: i64 = 30;
    const FIRES: i64 = 2_000_000;
    for round in 0..ROUNDS {
        program.send(&format!("fire {FIRES}"));
        for _ in 0..2 {
            let tracing = Tracing::start(&["bpf", object, "-p", &pid, "-a", "on_twice=usdt:usdt:demo:twice"]);
            match round % 3 {
                0 => tracing.kill(),
                _ => drop(tracing.stop()),
            }
        }
        assert_eq!(program.answer(), as_target(FIRES * (FIRES + 1) / 2 - 3 * FIRES), "round {round}");
    }
    Tracing::start(&["funccount", "-p", &pid, "fired"]).stop();
    assert_eq!(program.ask("listeners 0"), 0);
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// A hit that interrupts the handler of its own place: of each probe there, all calls are handled
/// or missed.
#[test]
pub fn test_kprobe_missed() {
    // In the order of the object's sections, which is that of registration.
    const PROGRAMS: [&str; 6] = ["on_entry", "alone_entry", "on_return", "alone_return", "on_both", "alone_both"];
    let Some((mut program, pid)) = start("probed") else { return };
    for mode in [Mode::User, Mode::Trap] {
        for set in [&PROGRAMS[1..2], &PROGRAMS[3..4], &PROGRAMS[5..], &PROGRAMS[..3], &PROGRAMS[2..5], &PROGRAMS] {
            let places: Vec<_> = set.iter().map(|name| (*name, "probed:ticked")).collect();
            let found = with_programs(mode, &[], &places, &mut program, |program| {
                let calls = program.ask("storm 300") as u64;
                (calls, status(&pid, &[]).0)
            });
            let Some((report, (calls, lines))) = found else { return };
            assert_eq!(lines.len(), set.len(), "{lines:?}");
            for (line, name) in lines.iter().zip(set) {
                assert_eq!(line.hits + line.missed, calls, "{mode:?} {name}: {lines:?}");
                assert!(name.starts_with("alone") || line.missed == 0, "{mode:?} {name}: {lines:?}");
            }
            let missed: u64 = lines.iter().map(|line| line.missed).sum();
            let total = report.0.stderr.lines().find_map(|line| line.strip_prefix("Total missed hit count: "));
            let total: u64 =
                total.map_or(0, |text| text.split(' ').next().and_then(|n| n.parse().ok()).expect("a count"));
            assert_eq!(total, missed, "{}", report.0);
        }
    }
    program.finish().ok();
}

/// An instruction, a return and a USDT probe at one place: counted apart, switched together.
#[test]
pub fn probes_of_all_kinds_at_one_place() {
    let Some((mut program, pid)) = start("usdt") else { return };
    let before = Snapshot::of(program.pid());
    let switch = |command: &str| run(&mut sidestep(&[command, "-p", &pid, "first"]), LIMIT).ok().stdout;
    let (p, r, u) = (("on_entry", "first"), ("on_return", "first"), ("on_usdt", "usdt:usdt:demo:first"));
    for mode in [Mode::User, Mode::Trap] {
        for (places, kinds) in [(&[p, r, u][..], "pru"), (&[r, u], "ru"), (&[p, u], "pu")] {
            let n = places.len();
            let found = with_programs(mode, &[], places, &mut program, |program| {
                assert_eq!(program.ask("listeners 0"), 1);
                assert_eq!(program.ask("first 10"), 65);
                assert_eq!(switch("disable"), format!("{n} probes disabled\n"));
                assert_eq!(program.ask("listeners 0"), 0);
                assert_eq!(program.ask("first 10"), 65);
                let (lines, _) = status(&pid, &[]);
                assert!(lines.iter().all(|line| line.state == "[DISABLED]" && line.hits == 10), "{lines:?}");
                assert_eq!(switch("enable"), format!("{n} probes enabled\n"));
                assert_eq!(program.ask("listeners 0"), 1);
                assert_eq!(program.ask("first 100"), 5150);
                status(&pid, &[])
            });
            let Some((report, (lines, summary))) = found else { return };
            assert_eq!(lines.iter().map(|line| &*line.kind).collect::<String>(), kinds, "{lines:?}");
            assert!(lines.iter().all(|line| (line.hits, line.missed) == (110, 0)), "{lines:?}");
            assert!(summary.starts_with(&format!("sidestep: {n} probes at ")), "{summary}");
            let counts = ["entered", "returned", "fired", "fired_sum"].map(|name| variable(&report, name));
            let expected = |kind, count| if kinds.contains(kind) { count } else { 0 };
            assert_eq!(counts, [expected('p', 110), expected('r', 110), 110, 55 + 5050], "{}", report.0);
            assert_eq!(program.ask("listeners 0"), 0);
        }
    }
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// Offsets of a function's instructions, as objdump has them, and its length.
fn boundaries(file: &Path, function: &str) -> (BTreeSet<u64>, u64) {
    let mut objdump = Command::new("objdump");
    objdump.args(["-d", "--no-show-raw-insn"]).arg(format!("--disassemble={function}")).arg(file);
    let text = run(&mut objdump, LIMIT).ok().stdout;
    let address = |line: &str| u64::from_str_radix(line.trim().split_once(":\t")?.0, 16).ok();
    let all: Vec<u64> = text.lines().filter_map(address).collect();
    let sizes = run(Command::new("nm").args(["-S", "--defined-only"]).arg(file), LIMIT).ok().stdout;
    let row = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        (words.len() == 4 && words[3] == function).then(|| u64::from_str_radix(words[1], 16).ok())?
    };
    let size = sizes.lines().find_map(row).unwrap_or_else(|| panic!("no {function} in {sizes}"));
    (all.iter().map(|at| at - all[0]).collect(), size)
}

/// Each byte of a function: what is the start of an instruction can be probed, what is not is
/// refused; then all at once.
#[test]
pub fn kprobe_insn_boundary() {
    let Some(file) = target("counts") else { return };
    for function in ["fib", "seven", "even", "text", "work", "threads"] {
        let (starts, size) = boundaries(&file, function);
        assert!(starts.len() > 3 && size > 8, "{function}: {starts:?}");
        for offset in 0..size {
            let place = format!("{}:{function}+{offset:#x}", file.display());
            let output = run(&mut sidestep(&["explain", &place]), LIMIT).ok();
            let refused = output.stdout.contains("technique   none: it is inside `");
            assert_eq!(refused, !starts.contains(&offset), "{output}");
        }
        let (mut program, pid) = start("counts").expect("just built");
        let work = |program: &mut Program| {
            ["fib 9", "seven 5", "even 6", "text 3", "work 7", "threads 2"].map(|command| program.ask(command))
        };
        let answers = work(&mut program);
        let before = Snapshot::of(program.pid());
        for flags in [&[][..], &["--no-optimize"]] {
            let all = format!("counts:{function}+*");
            let args = [&["funccount", "-p", &pid][..], flags, &[&*all]].concat();
            let (_, (again, lines)) = during(&args, || (work(&mut program), status(&pid, &[]).0));
            assert_eq!(again, answers, "{function} {flags:?}");
            // What is behind an `endbr64` is where the function begins, too.
            let found: BTreeSet<u64> = lines.iter().map(offset).collect();
            assert_eq!(found, starts, "{function} {flags:?}");
        }
        before.assert_same_but_data(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// Of a line of `status`: where in its function.
pub fn offset(line: &Line) -> u64 {
    let digits = line.symbol.split_once("+0x").map(|(_, digits)| digits);
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_else(|| panic!("{line:?}"))
}

/// `[OPTIMIZED]` is what explain calls anything but a trap, and with `--no-optimize` nothing is.
#[test]
pub fn kprobe_opt_types() {
    let (Some(file), Some((program, pid))) = (target("counts"), start("counts")) else { return };
    let mut optimized = 0;
    for offset in boundaries(&file, "fib").0 {
        let place = format!("counts:fib+{offset:#x}");
        let explained = run(&mut sidestep(&["explain", "-p", &pid, &place]), LIMIT).ok().stdout;
        let technique = explained.lines().find_map(|line| line.trim().strip_prefix("technique "));
        let jump = !technique.unwrap_or_else(|| panic!("{explained}")).trim().starts_with("trap");
        for (flags, expected) in [(&[][..], jump), (&["--no-optimize"], false)] {
            let args = [&["funccount", "-p", &pid][..], flags, &[&*place]].concat();
            let (_, lines) = during(&args, || status(&pid, &[]).0);
            let states: Vec<&str> = lines.iter().map(|line| &*line.state).collect();
            assert_eq!(states, [if expected { "[OPTIMIZED]" } else { "" }], "{place} {flags:?}: {explained}");
        }
        optimized += u32::from(jump);
    }
    assert!(optimized > 0);
    program.finish().ok();
}

/// 256 events: enabled, disabled, enabled.
#[test]
pub fn multiple_kprobes() {
    let (Some(file), Some((mut program, pid))) = (target("suites"), start("suites")) else { return };
    let before = Snapshot::of(program.pid());
    let names: Vec<String> = (0..256).map(|n| format!("many_{n:02x}")).collect();
    let argument = if is_32_bit() { "+4(%sp):s32" } else { "%di:s64" };
    let line = |name: &String| format!("p:many/{name} {}:{:#x} n={argument}", file.display(), file_offset(&file, name));
    let lines: Vec<String> = names.iter().map(line).collect();
    let args = ["trace", "-p", &pid].into_iter().chain(lines.iter().map(String::as_str)).collect::<Vec<_>>();
    let sum = |n: i64| 256 * n + 255 * 128;
    let switch = |command: &str| run(&mut sidestep(&[command, "-p", &pid]), LIMIT).ok().stdout;
    let tracing = Tracing::start(&args);
    assert_eq!(program.ask("many 1"), sum(1));
    assert_eq!(switch("disable"), "256 probes disabled\n");
    assert_eq!(program.ask("many 2"), sum(2));
    assert_eq!(switch("enable"), "256 probes enabled\n");
    assert_eq!(program.ask("many 3"), sum(3));
    assert!(status(&pid, &[]).0.iter().all(|line| line.hits == 2));
    let report = tracing.stop();
    let expected = [1, 3].map(|n| {
        names.iter().fold(String::new(), |mut all, name| {
            writeln!(all, "{name} n={n}").expect("memory");
            all
        })
    });
    let seen = report.0.stdout.lines().filter_map(|line| {
        let (name, rest) = line.split_once(": ")?.1.split_once(": (")?;
        Some(format!("{name} {}\n", rest.split_once(") ")?.1))
    });
    assert_eq!(seen.collect::<String>(), expected.concat(), "{}", report.0.stderr);
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// As many at one place: all of them see each hit, in order of registration.
#[test]
pub fn multiple_kprobes_at_one_place() {
    let (Some(file), Some((mut program, pid))) = (target("suites"), start("suites")) else { return };
    let before = Snapshot::of(program.pid());
    let place = format!("{}:{:#x}", file.display(), file_offset(&file, "consumed"));
    for flags in [&[][..], &["--no-optimize"]] {
        let line = |n: u32| format!("{}:one/n{n} {place}", if n % 4 == 3 { 'r' } else { 'p' });
        let lines: Vec<String> = (0..64).map(line).collect();
        let args = ["trace", "-p", &pid].into_iter().chain(flags.iter().copied());
        let args: Vec<&str> = args.chain(lines.iter().map(String::as_str)).collect();
        let tracing = Tracing::start(&args);
        assert_eq!(program.ask("calls 5"), 20);
        let (lines, summary) = status(&pid, &[]);
        let kinds: String = lines.iter().map(|line| line.kind.as_str()).collect();
        assert_eq!(kinds, "pppr".repeat(16));
        assert!(lines.iter().all(|line| (line.hits, line.missed) == (5, 0)), "{lines:?}");
        // The entry and two exits.
        assert!(summary.starts_with("sidestep: 64 probes at 3 sites, "), "{summary}");
        let report = tracing.stop();
        let seen = report.0.stdout.lines().filter_map(|line| line.split_once(": n")?.1.split_once(':'));
        let seen: Vec<u32> = seen.filter_map(|(n, _)| n.parse().ok()).collect();
        // The entries in order; at the return the newest comes first.
        let entries = (0..64).filter(|n| n % 4 != 3);
        let one: Vec<u32> = entries.chain((0..64).rev().filter(|n| n % 4 == 3)).collect();
        assert_eq!(seen, one.repeat(5), "{flags:?}: {}", report.0.stderr);
    }
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// The same place by its name, its offset, its address.
#[test]
pub fn probepoint() {
    let (Some(file), Some((mut program, pid))) = (target("suites"), start("suites")) else { return };
    let va = |name: &str| {
        let nm = run(Command::new("nm").arg(&file), LIMIT).ok().stdout;
        let row = |line: &str| line.strip_suffix(&format!(" T {name}")).and_then(|va| u64::from_str_radix(va, 16).ok());
        nm.lines().find_map(row).unwrap_or_else(|| panic!("no {name} in {nm}"))
    };
    let here = va("many_11");
    let ways = [
        "many_11".to_owned(),
        "many_11+0".to_owned(),
        "suites:many_11+0x0".to_owned(),
        format!("suites:{here:#x}"),
        format!("{}:many_11", file.display()),
    ];
    let mut places = BTreeSet::new();
    for way in &ways {
        let (_, lines) = during(&["funccount", "-p", &pid, way], || {
            program.ask("many 1");
            status(&pid, &[]).0
        });
        assert_eq!(lines.iter().map(|line| line.hits).collect::<Vec<_>>(), [1], "{way}");
        places.insert((lines[0].address, lines[0].symbol.clone()));
    }
    assert_eq!(places.len(), 1, "{places:?}");
    program.finish().ok();
}

/// The number behind `r`, as in `kprobe_events`: what is no limit is refused, and a limit is kept
/// in all threads together.
#[test]
pub fn kretprobe_maxactive() {
    let (Some(file), Some((mut program, pid))) = (target("suites"), start("suites")) else { return };
    let place = format!("{}:{:#x}", file.display(), file_offset(&file, "consumed"));
    for (text, message) in [
        ("r10fuzz:e", "Invalid maxactive number"),
        ("r1000000:e", "Maxactive is too big"),
        ("p10:e", "Maxactive is not for kprobe"),
        ("r4097:e", "Maxactive is too big"),
    ] {
        let output = run(&mut sidestep(&["trace", "-p", &pid, &format!("{text} {place}")]), LIMIT);
        assert_eq!(output.code(), 2, "{output}");
        assert!(output.stderr.contains(message), "{output}");
    }
    program.ask("enter 1");
    program.ask("leave 1");
    let before = Snapshot::of(program.pid());
    let counts = |pid: &str| status(pid, &[]).0.iter().map(|line| (line.hits, line.missed)).collect::<Vec<_>>();
    for flags in [&[][..], &["--no-optimize"]] {
        let limited = format!("r4:limited {place} $retval");
        let specs = [&*limited, "r10:consumed \"any %ld\", retval", "r:consumed", "p:consumed"];
        for specs in [&specs[..1], &specs[1..2], &specs] {
            let args = [&["trace", "-p", &pid][..], flags, specs].concat();
            let tracing = Tracing::start(&args);
            assert_eq!(program.ask("enter 16"), 16);
            assert_eq!(program.ask("leave 16"), -272);
            assert_eq!(program.ask("calls 100"), 99 * 100);
            let expected = |spec: &str| match spec.split(':').next() {
                Some("r4") => (104, 12),
                Some("r10") => (110, 6),
                _ => (116, 0),
            };
            let expected: Vec<(u64, u64)> = specs.iter().map(|spec| expected(spec)).collect();
            assert_eq!(counts(&pid), expected, "{flags:?} {specs:?}");
            let report = tracing.stop();
            let missed: u64 = expected.iter().map(|(_, missed)| missed).sum();
            assert!(report.0.stderr.contains(&format!("Total missed hit count: {missed}")), "{}", report.0);
        }
    }
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// Stacks and addresses that programs get are those of the kernel, at entries and at returns.
#[test]
pub fn uretprobe_stack_and_get_func_ip() {
    let Some((mut program, _)) = start("suites") else { return };
    let mut all = Vec::new();
    for mode in MODES {
        let places = [("entry_look", "suites:outer"), ("return_look", "suites:outer")];
        let found = with_programs(mode, &[], &places, &mut program, |program| program.ask("deep 3"));
        let Some((report, answer)) = found else { continue };
        assert_eq!(answer, 8);
        let stacks = ["entry_stack", "return_stack"].map(|name| words(&report, name));
        // The caller is there both times.
        assert_eq!(stacks[0][1..], stacks[1][..3], "{mode:?}: {}", report.0);
        assert!(stacks[1].iter().all(|address| *address != 0), "{mode:?}: {}", report.0);
        let ips = ["entry_ip", "return_ip", "entry_func", "return_func"].map(|name| variable(&report, name));
        assert_eq!([stacks[0][0], stacks[1][0]], [ips[0], ips[1]], "{mode:?}");
        all.push((mode, stacks, ips));
    }
    for (mode, stacks, ips) in &all[1..] {
        assert_eq!((stacks, ips), (&all[0].1, &all[0].2), "{mode:?} and {:?}", all[0].0);
    }
    // One program at both ends found no instruction pointer at the entry.
    for mode in [Mode::User, Mode::Trap] {
        let places = [("both_look", "suites:outer")];
        let found = with_programs(mode, &[], &places, &mut program, |program| program.ask("deep 3"));
        let Some((report, _)) = found else { return };
        let ips = words(&report, "both_ips");
        assert_eq!(ips, all[0].2[..2], "{mode:?}: {}", report.0);
        assert_eq!(report.0.stdout.matches(&format!("[{},", ips[0])).count(), 2, "{mode:?}: {}", report.0);
    }
    program.finish().ok();
    // The mark for indirect branches is where the function begins.
    let Some((mut program, _)) = start("counts-ibt") else { return };
    let mut functions = BTreeSet::new();
    for mode in MODES {
        let places = [("entry_look", "counts-ibt:leaf"), ("return_look", "counts-ibt:leaf")];
        let found = with_programs(mode, &[], &places, &mut program, |program| program.ask("work 3"));
        let Some((report, _)) = found else { continue };
        functions.extend(["entry_func", "return_func"].map(|name| variable(&report, name)));
    }
    assert_eq!(functions.len(), 1, "{functions:?}");
    program.finish().ok();
}
