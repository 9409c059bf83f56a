//! Uprobes of the kernel on functions that are probed, too: whoever comes first or goes first, both
//! see each call, and the program computes what it does without them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use sidestep_tests::kernel::{At, Uprobe, offset_of};
use sidestep_tests::process::{LIMIT, Program, eventually, run};
use sidestep_tests::tool::{Report, Tracing, during, is_32_bit, sidestep};
use sidestep_tests::{Snapshot, skip, target};

/// A program, its file, and its process id as text.
struct Target {
    program: Program,
    path: PathBuf,
    pid: String,
}

fn start(name: &str) -> Option<Target> {
    let path = target(name)?;
    let program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    Some(Target { program, path, pid })
}

/// The functions of `leads_asm.S` that a probe can be behind the first instruction of.
fn leads() -> Vec<&'static str> {
    let mut all = vec![
        "lead_push",
        "lead_sub",
        "lead_mov",
        "lead_nop",
        "lead_nop5",
        "lead_endbr",
        "lead_xor",
        "lead_test",
        "lead_long",
    ];
    if !is_32_bit() {
        all.push("lead_push2");
    }
    all
}

/// Uprobes at functions of a process. `None` where the kernel does not offer them.
fn uprobes(program: &Program, path: &Path, functions: &[&str], at: At) -> Option<Vec<Uprobe>> {
    let all: std::io::Result<Vec<Uprobe>> =
        functions.iter().map(|function| Uprobe::attach(program.pid(), path, function, at)).collect();
    all.map_err(|error| skip(&format!("the kernel gives no uprobes here: {error}"))).ok()
}

#[track_caller]
fn assert_hits(uprobes: &mut [Uprobe], functions: &[&str], expected: u64) {
    for (uprobe, function) in uprobes.iter_mut().zip(functions) {
        assert_eq!(uprobe.hits().expect("a counter"), expected, "{function}");
    }
}

#[track_caller]
fn assert_counts(report: &Report, functions: &[&str], expected: u64) {
    let counts = report.counts();
    let want: BTreeMap<String, u64> = functions.iter().map(|function| ((*function).to_owned(), expected)).collect();
    for (function, count) in want {
        assert_eq!(counts.get(&function).copied().unwrap_or(0), count, "{function}: {}", report.0);
    }
}

/// What is done at each hit, as arguments of the tool.
const WAYS: [&[&str]; 3] = [&["funccount"], &["funccount", "--no-optimize"], &["funclatency"]];

/// What a tool that measures returns counts, else entries.
fn counts(way: &[&str], report: &Report, functions: &[&str], expected: u64) {
    match way[0] {
        "funclatency" => assert_eq!(report.histogram_sum(), expected * functions.len() as u64, "{}", report.0),
        _ => assert_counts(report, functions, expected),
    }
}

/// Asserts that the code is what it was, once the kernel has taken its breakpoints out: that is
/// when the last descriptor of a probe is closed, of which a child that another test forks has a
/// copy until it executes a program.
#[track_caller]
fn assert_original(pid: i32, before: &Snapshot) {
    eventually(LIMIT, || Snapshot::of(pid).code().eq(before.code()));
    Snapshot::of(pid).assert_same_code(before);
}

#[test]
pub fn the_kernel_comes_second() {
    let functions = leads();
    for way in WAYS {
        for at in [At::Entry, At::Return] {
            let Some(Target { mut program, path, pid }) = start("leads") else { return };
            let before = Snapshot::of(program.pid());
            let tracing = Tracing::start(&[way, &["-p", &pid, "lead_*"]].concat());
            assert_eq!(program.ask("all 7"), 0);
            // Comes, goes, and comes again.
            for _ in 0..2 {
                let Some(mut kernel) = uprobes(&program, &path, &functions, at) else { return };
                assert_eq!(program.ask("all 100"), 0, "{way:?}");
                assert_hits(&mut kernel, &functions, 100);
                drop(kernel);
                assert_eq!(program.ask("all 20"), 0, "{way:?}");
            }
            counts(way, &tracing.stop(), &functions, 247);
            assert_eq!(program.ask("all 10"), 0);
            assert_original(program.pid(), &before);
            program.finish().ok();
        }
    }
}

#[test]
pub fn the_kernel_comes_first() {
    let functions = leads();
    for way in WAYS {
        for at in [At::Entry, At::Return] {
            let Some(Target { mut program, path, pid }) = start("leads") else { return };
            let Some(mut kernel) = uprobes(&program, &path, &functions, at) else { return };
            assert_eq!(program.ask("all 7"), 0);
            let (report, wrong) = during(&[way, &["-p", &pid, "lead_*"]].concat(), || program.ask("all 100"));
            assert_eq!(wrong, 0, "{way:?}");
            counts(way, &report, &functions, 100);
            assert_eq!(program.ask("all 10"), 0);
            assert_hits(&mut kernel, &functions, 117);
            // The kernel goes first.
            let tracing = Tracing::start(&[way, &["-p", &pid, "lead_*"]].concat());
            assert_eq!(program.ask("all 3"), 0);
            assert_hits(&mut kernel, &functions, 120);
            drop(kernel);
            assert_eq!(program.ask("all 4"), 0);
            counts(way, &tracing.stop(), &functions, 7);
            assert_eq!(program.ask("all 10"), 0);
            program.finish().ok();
        }
    }
}

/// The kernel's probe comes while ours is there, and stays when ours goes.
#[test]
pub fn the_kernel_stays() {
    let functions = leads();
    for way in WAYS {
        let Some(Target { mut program, path, pid }) = start("leads") else { return };
        let before = Snapshot::of(program.pid());
        let tracing = Tracing::start(&[way, &["-p", &pid, "lead_*"]].concat());
        let Some(mut kernel) = uprobes(&program, &path, &functions, At::Entry) else { return };
        assert_eq!(program.ask("all 5"), 0);
        counts(way, &tracing.stop(), &functions, 5);
        assert_eq!(program.ask("all 6"), 0);
        assert_hits(&mut kernel, &functions, 11);
        drop(kernel);
        assert_eq!(program.ask("all 7"), 0);
        assert_original(program.pid(), &before);
        program.finish().ok();
    }
}

/// Switched off, on, to traps and to jumps under a uprobe that was there before, or came since.
#[test]
pub fn probes_are_switched_under_the_kernels() {
    let functions = leads();
    for kernel_first in [false, true] {
        let Some(Target { mut program, path, pid }) = start("leads") else { return };
        let kernel = || uprobes(&program, &path, &functions, At::Entry);
        let mut early = if kernel_first { kernel() } else { None };
        let tracing = Tracing::start(&["funccount", "-p", &pid, "lead_*"]);
        let Some(mut kernel) = early.take().or_else(kernel) else { return };
        let steps: [(&[&str], u64); 6] = [
            (&["disable"], 1),
            (&["enable"], 10),
            (&["optimize", "off"], 100),
            (&["disable"], 1000),
            (&["enable"], 5),
            (&["optimize", "on"], 20),
        ];
        for (command, calls) in steps {
            run(&mut sidestep(&[command, &["-p", &pid]].concat()), LIMIT).ok();
            assert_eq!(program.ask(&format!("all {calls}")), 0, "{command:?}");
        }
        assert_counts(&tracing.stop(), &functions, 135);
        assert_hits(&mut kernel, &functions, 1136);
        assert_eq!(program.ask("all 1"), 0);
        program.finish().ok();
    }
}

/// Handlers run behind the first instruction, and see the state in front of it: registers, the
/// stack, the caller.
#[test]
pub fn handlers_see_the_state_in_front_of_the_first_instruction() {
    let functions = leads();
    // `call_with` is inlined in 64-bit code: all calls come from `all`.
    let script = "u:leads:lead_* { @n[func] = count(); @sum = sum(arg0);
            @callers[usym(*(uint64 *)reg(\"sp\"))] = count();
            if (reg(\"ip\") - (uint64)uaddr(\"lead_push\") < 4096) { @near = count(); }
            @stack[ustack(2)] = count(); @bx = max(reg(\"bx\")); }
        ur:leads:lead_* { @ret = sum(retval); }
        interval:ms:50 { printf(\"Tracing on\\n\"); }";
    if is_32_bit() {
        return;
    }
    for kernel_too in [false, true] {
        let Some(Target { mut program, path, pid }) = start("leads") else { return };
        let mut kernel = None;
        if kernel_too {
            kernel = uprobes(&program, &path, &functions, At::Entry);
        }
        let (report, wrong) = during(&["-p", &pid, "-e", script], || program.ask("all 50"));
        assert_eq!(wrong, 0);
        let text = &report.0.stdout;
        let calls = 50 * functions.len();
        let sum = 49 * 50 / 2 * functions.len();
        for line in [format!("@sum: {sum}"), format!("@ret: {}", sum + calls), format!("@near: {calls}")] {
            assert!(text.lines().any(|l| l.trim() == line), "no {line}: {}", report.0);
        }
        // Each call is one of the only caller's, by the stack and by what is on top of it.
        assert_eq!(text.matches("    all+").count(), text.matches("@stack[").count(), "{}", report.0);
        assert_eq!(text.matches("@callers[all").count(), text.matches("@callers[").count(), "{}", report.0);
        if let Some(mut kernel) = kernel {
            assert_hits(&mut kernel, &functions, 50);
        }
        program.finish().ok();
    }
}

/// Where a probe has to be at the first instruction, `explain` says what a uprobe would do there;
/// one that was there first is left alone, and one that came is left alone by the detach.
#[test]
pub fn what_has_to_be_at_the_first_instruction() {
    let functions = ["pinned_load", "pinned_loop"];
    let Some(Target { mut program, path, pid }) = start("leads") else { return };
    let explained = |function: &str| {
        let function = format!("{}:{function}", path.display());
        run(&mut sidestep(&["explain", &function]), LIMIT).ok().stdout
    };
    assert!(
        explained("pinned_load").contains("uprobes     of the kernel that come to this address would break the jump")
    );
    assert!(explained("lead_push").contains("uprobes     of the kernel at this address may come and go"));
    // The kernel first: refused, and nothing happens.
    let original = Snapshot::of(program.pid());
    let Some(mut kernel) = uprobes(&program, &path, &functions, At::Entry) else { return };
    let before = Snapshot::of(program.pid());
    let output = run(&mut sidestep(&["funccount", "-p", &pid, "pinned_*"]), LIMIT);
    assert!(output.stderr.contains("there is a breakpoint of somebody else (a kernel uprobe?)"), "{output}");
    Snapshot::of(program.pid()).assert_same_code(&before);
    assert_eq!(program.ask("pinned 10"), 0);
    assert_hits(&mut kernel, &functions, 10);
    drop(kernel);
    assert_original(program.pid(), &original);
    // The kernel second: what it has left, and what it still has, when we go.
    for stays in [false, true] {
        let tracing = Tracing::start(&["funccount", "-p", &pid, "pinned_*"]);
        assert_eq!(program.ask("pinned 10"), 0);
        let Some(kernel) = uprobes(&program, &path, &functions, At::Entry) else { return };
        let mut kernel = Some(kernel).filter(|_| stays);
        assert_counts(&tracing.stop(), &functions, 10);
        assert_eq!(program.ask("pinned 10"), 0);
        if let Some(kernel) = &mut kernel {
            assert_hits(kernel, &functions, 10);
        }
        drop(kernel);
        assert_original(program.pid(), &original);
    }
    program.finish().ok();
}

/// A USDT probe that the kernel has, too, at the same nop.
#[test]
pub fn a_usdt_nop_of_both() {
    for kernel_first in [false, true] {
        let Some(Target { mut program, path, pid }) = start("usdt") else { return };
        let explained = run(&mut sidestep(&["explain", &format!("usdt:{}:demo:first", path.display())]), LIMIT).ok();
        let address = explained.stdout.lines().find_map(|line| line.trim().strip_prefix("address"));
        let address = address.and_then(|text| text.trim().split(',').next()).expect("an address");
        let va = u64::from_str_radix(address.trim_start_matches("0x"), 16).expect("hexadecimal");
        let attach = || match Uprobe::attach_at(program.pid(), &path, offset_of(&path, va), At::Entry) {
            Ok(uprobe) => Some(uprobe),
            Err(error) => {
                skip(&format!("the kernel gives no uprobes here: {error}"));
                None
            }
        };
        let mut early = if kernel_first { attach() } else { None };
        let tracing = Tracing::start(&["funccount", "-p", &pid, "usdt:usdt:demo:first"]);
        let Some(mut kernel) = early.take().or_else(attach) else { return };
        let answer = program.ask("first 100");
        assert_eq!(kernel.hits().expect("a counter"), 100);
        drop(kernel);
        assert_eq!(program.ask("first 100"), answer);
        let report = tracing.stop();
        assert_eq!(report.counts().values().sum::<u64>(), 200, "{}", report.0);
        assert_eq!(program.ask("first 100"), answer);
        program.finish().ok();
    }
}
