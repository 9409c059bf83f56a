//! Handlers behind a probed instruction: they see what the next instruction will see, whose own
//! probe is the judge.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, eventually, run};
use sidestep_tests::tool::{Tracing, during, sidestep};
use sidestep_tests::{Snapshot, callgrind, target};

use super::bpf::{Mode, variable};
use super::carried::{refused, status};
use super::kernel_suites::{offset, with_programs};
use super::ladder::functions;
use super::registers::{sum, words};

const FLAGS: [(Mode, &[&str]); 3] = [(Mode::User, &[]), (Mode::Trap, &[]), (Mode::User, &["--interpret"])];

fn start(name: &str) -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target(name)?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

/// Offsets and texts of instructions, as objdump has them.
fn instructions(file: &Path, which: &[String]) -> Vec<(u64, String)> {
    let text = run(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).args(which).arg(file), LIMIT).ok().stdout;
    let row = |line: &str| {
        let (at, insn) = line.trim().split_once(":\t")?;
        Some((u64::from_str_radix(at, 16).ok()?, insn.to_owned()))
    };
    let all: Vec<_> = text.lines().filter_map(row).collect();
    let first = all[0].0;
    all.into_iter().map(|(at, insn)| (at - first, insn)).collect()
}

fn of_function(file: &Path, function: &str) -> Vec<(u64, String)> {
    instructions(file, &[format!("--disassemble={function}")])
}

/// Whether it goes on at the next instruction, always.
fn is_straight(insn: &str) -> bool {
    let name = insn.split_whitespace().find(|word| !matches!(*word, "bnd" | "notrack" | "cs")).unwrap_or("");
    let branches = ["j", "loop", "call", "ret"].iter().any(|start| name.starts_with(start));
    !branches && !matches!(name, "hlt" | "ud2" | "int3" | "xbegin")
}

/// Of every straight instruction: what is seen behind it is what is seen before the next.
#[test]
fn behind_an_instruction_is_before_the_next() {
    let (Some(file), Some((mut program, _))) = (target("suites"), start("suites")) else { return };
    let before = Snapshot::of(program.pid());
    let all = of_function(&file, "straight");
    assert!(all.len() > 25, "{all:?}");
    for (mode, flags) in FLAGS {
        for pair in all.windows(2) {
            let places = [&pair[0], &pair[1]].map(|(offset, _)| format!("suites:straight+{offset:#x}"));
            let programs = [("before", &*places[1]), ("behind", &*places[0])];
            let found = with_programs(mode, flags, &programs, &mut program, |program| program.ask("straight 50"));
            let Some((report, wrong)) = found else { return };
            let what = format!("{mode:?} {flags:?} {pair:?}: {}", report.0);
            assert_eq!(wrong, 0, "{what}");
            assert_eq!((variable(&report, "before_hits"), variable(&report, "behind_hits")), (50, 50), "{what}");
            assert_eq!(words(&report, "behind_sum"), words(&report, "before_sum"), "{what}");
            let ip = words(&report, "behind_last")[16];
            assert_eq!(ip - variable(&report, "behind_func"), (pair[1].0 - pair[0].0) as i64, "{what}");
        }
    }
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// With registers, flags and a red zone that are known, and others at the same place.
#[test]
fn the_target_knows_what_is_seen() {
    let Some((mut program, _)) = start("registers") else { return };
    // The instruction before the one at +80.
    let place = "registers:at_middle+0x4b";
    for (mode, flags) in FLAGS {
        for others in [&[][..], &["before"], &["count_behind", "add_rax", "add_rip"]] {
            let places: Vec<_> = others.iter().chain(&["behind"]).map(|name| (*name, place)).collect();
            let found = with_programs(mode, flags, &places, &mut program, |program| {
                let wrong = program.ask("middle 300");
                let values = |name: &str| (0..21).map(|k| program.ask(&format!("{name} {k}"))).collect::<Vec<_>>();
                (wrong, values_of(values))
            });
            let Some((report, (wrong, (seen, sums)))) = found else { return };
            assert_eq!(wrong, 0, "{mode:?} {flags:?} {others:?}: {}", report.0);
            assert_eq!(words(&report, "behind_last"), seen, "{mode:?} {flags:?} {others:?}: {}", report.0);
            assert_eq!(words(&report, "behind_sum"), sums, "{mode:?} {flags:?} {others:?}: {}", report.0);
            if others.len() == 3 {
                assert_eq!((sum(&report, "behind_rax"), sum(&report, "behind_rip")), (sums[10], sums[16]));
                assert_eq!(variable(&report, "behind_hits"), 600);
            }
        }
    }
    program.finish().ok();
}

fn values_of(mut values: impl FnMut(&str) -> Vec<i64>) -> (Vec<i64>, Vec<i64>) {
    (values("word"), values("sum"))
}

/// What branches has no handler behind it, and everything else has.
#[test]
fn branches_are_refused() {
    for (build, functions) in
        [("counts", &["fib", "even", "text", "work", "threads"][..]), ("short", &["reads_rip", "counts_down"])]
    {
        let (Some(file), Some(object), Some((program, pid))) = (target(build), target("suites.bpf.o"), start(build))
        else {
            return;
        };
        let before = Snapshot::of(program.pid());
        let object = object.to_str().expect("UTF-8");
        for function in functions {
            for (offset, insn) in of_function(&file, function) {
                let attach = format!("count_behind={build}:{function}+{offset:#x}");
                let args = ["bpf", object, "-p", &pid, "-a", &attach];
                if is_straight(&insn) {
                    let tracing = Tracing::start(&args);
                    let (lines, _) = status(&pid, &[]);
                    assert_eq!(lines.iter().map(|line| &*line.kind).collect::<Vec<_>>(), ["b"], "{insn}");
                    tracing.stop();
                } else {
                    refused(&args, &["nothing runs behind a branch: probe the instruction that it leads to"]);
                }
            }
        }
        before.assert_same(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// Before, behind and at the return of one function: each call is counted by all, in the order of
/// what happens.
#[test]
fn all_kinds_at_one_place() {
    let (Some((mut program, pid)), Some(file)) = (start("suites"), target("suites")) else { return };
    let before = Snapshot::of(program.pid());
    let place = "suites:straight";
    for (mode, flags) in FLAGS {
        let places = ["on_entry", "on_return", "on_both", "before", "behind", "count_behind"].map(|name| (name, place));
        let found = with_programs(mode, flags, &places, &mut program, |program| {
            let wrong = program.ask("straight 70");
            (wrong, status(&pid, &[]).0)
        });
        let Some((report, (wrong, lines))) = found else { return };
        assert_eq!(wrong, 0, "{mode:?}: {}", report.0);
        assert!(lines.len() == 6 && lines.iter().all(|line| (line.hits, line.missed) == (70, 0)), "{lines:?}");
        let kinds: BTreeMap<&str, usize> = lines.iter().fold(BTreeMap::new(), |mut all, line| {
            *all.entry(&*line.kind).or_default() += 1;
            all
        });
        assert_eq!(kinds, BTreeMap::from([("b", 2), ("p", 2), ("r", 2)]));
        let counts = ["entered", "returned", "both", "before_hits", "behind_hits"].map(|name| variable(&report, name));
        assert_eq!(counts, [70, 70, 140, 70, 140], "{mode:?}: {}", report.0);
        // A push.
        let stack = [words(&report, "before_sum"), words(&report, "behind_sum")].map(|words| words[19]);
        assert_eq!(stack[0].wrapping_sub(stack[1]), 8 * 70);
    }
    let specs = [
        "p:straight \"before\"",
        "post:straight \"%ld\", %bx",
        "r:straight \"%ld\", retval",
        "post:straight+0xb \"%ld\", %bx",
    ];
    assert_eq!(of_function(&file, "straight")[3].0, 0xb);
    let args = [&["trace", "-p", &pid][..], &specs].concat();
    let (report, wrong) = during(&args, || program.ask("straight 3"));
    assert_eq!(wrong, 0);
    let tails: Vec<&str> = report.records().iter().map(|words| words[words.len() - 1]).collect();
    // What the load at +0xb gives is the number of the round.
    for (round, tails) in tails.chunks(4).enumerate() {
        assert_eq!(
            (tails[0], tails[2], tails[3]),
            ("before", &*round.to_string(), &*(2 * (round + 7)).to_string()),
            "{}",
            report.0
        );
    }
    assert_eq!(tails.len(), 12, "{}", report.0);
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// What a system call gave; and threads that wait in one are no obstacle.
#[test]
fn results_of_system_calls() {
    let Some((mut program, pid)) = start("suites") else { return };
    program.ask("enter 1");
    program.ask("leave 1");
    let before = Snapshot::of(program.pid());
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [&["trace", "-p", &pid][..], flags, &["post:plain_read+0x5 \"=%ld\", %ax"]].concat();
        let tracing = Tracing::start(&args);
        assert_eq!([3, 1, 99].map(|n| program.ask(&format!("piped {n}"))), [3, 1, 99]);
        assert_eq!(program.ask("enter 8"), 8);
        assert_eq!(program.ask("leave 8"), -72);
        assert_eq!(program.ask("enter 8"), 8);
        let report = tracing.stop();
        let tails: Vec<String> = report.records().iter().map(|words| words[words.len() - 1].to_owned()).collect();
        assert_eq!(tails[..3], ["=3", "=1", "=99"], "{flags:?}: {}", report.0);
        assert_eq!(tails[3..], vec!["=1"; 8], "{flags:?}: {}", report.0);
        assert_eq!(program.ask("leave 8"), -72);
        // They wait already when the probe comes: the kernel may make the call again, which is a
        // hit then.
        assert_eq!(program.ask("enter 8"), 8);
        let (report, sum) = during(&args, || program.ask("leave 8"));
        assert_eq!(sum, -72);
        assert!(report.records().iter().all(|words| words[words.len() - 1] == "=1"), "{flags:?}: {}", report.0);
    }
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// With permission, behind an instruction, too.
#[test]
fn results_are_changed_and_instructions_left_out() {
    let Some((mut program, _)) = start("suites") else { return };
    for (mode, flags) in
        [(Mode::User, &["--unsafe"][..]), (Mode::Trap, &["--unsafe"]), (Mode::User, &["--unsafe", "--interpret"])]
    {
        // 1000 more behind the load at +0xb.
        let places = [("change_rbx", "suites:straight+0xb")];
        let found = with_programs(mode, flags, &places, &mut program, |program| program.ask("straight 5"));
        let Some((report, wrong)) = found else { return };
        assert_eq!(wrong, 5, "{mode:?}: {}", report.0);
        // Behind `movq %rbx,%xmm1`, not the sum that comes next.
        let places = [("skip_four", "suites:straight+0x45")];
        let found = with_programs(mode, flags, &places, &mut program, |program| program.ask("straight 5"));
        let Some((report, wrong)) = found else { return };
        assert_eq!(wrong, 5, "{mode:?}: {}", report.0);
    }
    assert_eq!(program.ask("straight 5"), 0);
    program.finish().ok();
}

/// Behind all straight instructions of a real workload at once: callgrind counts the same.
#[test]
fn behind_all_instructions_of_a_real_workload() {
    let (Some(path), Some(object)) = (target("inflate"), target("suites.bpf.o")) else { return };
    let (library, object) = (Path::new("/lib/x86_64-linux-gnu/libz.so.1"), object.to_str().expect("UTF-8"));
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let answer = program.ask("rounds 2");
    let before = Snapshot::of(program.pid());
    let start = functions(library.to_str().expect("UTF-8"), true)["inflate"];
    let counted = callgrind::executions(Command::new(&path).args(["rounds", "2"]), |name| name == "inflate");
    let last = counted.last_key_value().expect("it runs").0 + 15;
    let range = [format!("--start-address={start:#x}"), format!("--stop-address={last:#x}")];
    let straight: BTreeSet<u64> =
        instructions(library, &range).into_iter().filter(|(_, insn)| is_straight(insn)).map(|(at, _)| at).collect();
    let of_straight = |(at, n): (&u64, &u64)| straight.contains(&(at - start)).then_some((at - start, *n));
    let expected: BTreeMap<u64, u64> = counted.iter().filter(|(_, n)| **n > 0).filter_map(of_straight).collect();
    assert!(expected.len() > 400, "{expected:?}");
    for flag in ["--user", "--no-optimize"] {
        let attach = "count_behind=libz:inflate+*";
        let tracing = Tracing::start(&["bpf", object, "-p", &pid, flag, "-a", attach]);
        assert_eq!(program.ask("rounds 2"), answer, "{flag}");
        let (lines, _) = status(&pid, &[]);
        let report = tracing.stop();
        let counts: BTreeMap<u64, u64> =
            lines.iter().filter(|line| line.hits > 0).map(|line| (offset(line), line.hits)).collect();
        assert_eq!(counts, expected, "{flag}");
        assert_eq!(variable(&report, "behind_hits") as u64, expected.values().sum::<u64>(), "{flag}");
    }
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// They come, are switched and go while threads run through them.
#[test]
pub fn under_load() {
    let (Some((mut program, pid)), Some(object)) = (start("load"), target("suites.bpf.o")) else { return };
    let object = object.to_str().expect("UTF-8");
    assert_eq!(program.ask("start 0"), 0);
    let before = Snapshot::of(program.pid());
    for round in 0..12 {
        let flag = if round % 2 == 0 { "--user" } else { "--no-optimize" };
        let functions = ["leaf", "mix", "tree", "real", "bytes"];
        let programs = ["count_behind", "behind", "add_rax"];
        let attach: Vec<String> =
            (0..5).map(|i| format!("{}=load:{}", programs[(i + round) % 3], functions[i])).collect();
        let flags = attach.iter().flat_map(|text| ["-a", text]);
        let args: Vec<&str> = ["bpf", object, "-p", &pid, flag].into_iter().chain(flags).collect();
        let tracing = Tracing::start(&args);
        for command in ["disable", "enable"] {
            run(&mut sidestep(&[command, "-p", &pid]), LIMIT).ok();
        }
        let rounds = program.ask("rounds 0");
        assert!(eventually(LIMIT, || program.ask("rounds 0") > rounds), "the threads stand still");
        match round % 5 {
            0 => tracing.kill(),
            _ => drop(tracing.stop()),
        }
    }
    Tracing::start(&["funccount", "-p", &pid, "leaf"]).stop();
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0, "wrong results");
    program.finish().ok();
}

/// Where nothing is known of an instruction's end, it is said.
#[test]
pub fn what_has_nothing_behind_it_is_said() {
    let (Some(object), Some((program, pid))) = (target("suites.bpf.o"), start("usdt")) else { return };
    let object = object.to_str().expect("UTF-8");
    refused(
        &["bpf", object, "-p", &pid, "-a", "behind=usdt:usdt:demo:fired"],
        &["program behind is for what comes later"],
    );
    refused(&["bpf", object, "-p", &pid, "--kernel", "-a", "behind=fired"], &["nothing behind an instruction"]);
    program.finish().ok();
}
