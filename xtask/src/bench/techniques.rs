//! What a hit costs by the technique of its site, with jumps and without; and traps that emulate
//! their instruction beside traps that do not.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use sidestep_tests::kernel::At;
use sidestep_tests::target;

use super::handlers;
use super::program::{Bench, PAUSE, ROUNDS, number};
use super::width::both_widths;

/// Functions of `techniques.h`, and what a probe at the entry must become.
const FUNCTIONS: [(&str, &str); 7] = [
    ("t_nop_site", "nop site"),
    ("t_jump", "jump"),
    ("t_several", "jump over several"),
    ("t_pun", "pun"),
    ("t_guarded", "guarded jump"),
    ("t_short", "short jump"),
    ("t_trap", "trap"),
];

/// A handler: the head of its column, the script, and how much that counts at a hit. `F` stands for
/// the function.
const HANDLERS: [(&str, &str, u64); 4] = [
    ("entry", "u:F { @ = count() }", 1),
    ("typed", "u:F /args.cell != 0/ { @ = count() }", 1),
    ("return", "ur:F { @ = count() }", 1),
    ("entry + return", "u:F { @ = count() } ur:F { @ = count() }", 2),
];

/// What a round of two signals at each call is long enough with.
const STEPS: u64 = 10_000;

/// Measures all, for programs of both widths.
pub fn techniques() -> Result<String> {
    let mut text = String::from(
        "Nanoseconds above the unprobed call, by the technique of the site. A count at the entry, behind the first instruction \
         (`post`), at the entry if a typed argument is not 0, at the return, and at both. Below `off` the same with \
         `--no-optimize`: traps everywhere. The handler behind an instruction is an eBPF program, the others are scripts. A \
         kernel uprobe and uretprobe stand beside. All counts are exact.\n\n",
    );
    text += &both_widths(|| {
        let mut bench = Bench::start()?;
        Ok([ladder(&mut bench)?, push(&mut bench)?, bench.finish()?].join("\n"))
    })?;
    Ok(text)
}

fn ladder(bench: &mut Bench) -> Result<String> {
    let object = target("bench.bpf.o").context("no clang")?;
    let object = object.to_str().context("a path in UTF-8")?;
    let mut heads: Vec<&str> = HANDLERS.iter().map(|(head, ..)| *head).collect();
    heads.insert(1, "post");
    let off: Vec<String> = heads.iter().map(|head| format!("{head}, off")).collect();
    let mut text = format!("| technique | {} | {} | kernel uprobe | uretprobe |\n", heads.join(" | "), off.join(" | "));
    writeln!(text, "|---|{}", "---:|".repeat(2 * heads.len() + 2))?;
    for (function, technique) in FUNCTIONS {
        let base = bench.time(function);
        let mut cells = Vec::new();
        for flags in [&["-v"][..], &["-v", "--no-optimize"]] {
            let expected = if flags.len() == 1 { technique } else { "trap" };
            for (head, script, per_hit) in HANDLERS {
                let script = script.replace(":F ", &format!(":{}:{function} ", bench.path()));
                let (time, report) = bench.scripted(&script, flags, per_hit, |bench| bench.time(function))?;
                if head == "entry" {
                    let note = super::scripts::note(&report);
                    ensure!(note.contains(&format!("1 by {expected};")), "{function} is no {expected}: {note}");
                }
                cells.push(time - base);
                if head == "entry" {
                    let place = format!("behind={function}");
                    let args = [&["bpf", object, "-a", &place], flags].concat();
                    let (time, _) = bench.traced(&args, 1, handlers::sum, |bench| bench.time(function))?;
                    cells.push(time - base);
                }
            }
        }
        let mut cells: Vec<String> = cells.into_iter().map(number).collect();
        for at in [At::Entry, At::Return] {
            cells.push(kernel(bench, function, at, base));
        }
        let line = format!("| {technique} | {} |", cells.join(" | "));
        eprintln!("{line}");
        writeln!(text, "{line}")?;
    }
    Ok(text)
}

/// What a kernel's probe costs, or a dash and a line on stderr.
fn kernel(bench: &mut Bench, function: &'static str, at: At, base: f64) -> String {
    match bench.under_kernel(function, 0, at, |bench| bench.time(function)) {
        Ok(time) => number(time - base),
        Err(error) => {
            eprintln!("kernel probe at {function} not measured: {error:#}");
            String::from("–")
        }
    }
}

/// A push by one trap and by two.
fn push(bench: &mut Bench) -> Result<String> {
    let mut text = String::from("| trap at a push, ns per hit | traps | entry | return |\n|---|---:|---:|---:|\n");
    let off = ["--no-optimize"];
    for (name, function) in [("emulated", "f_push"), ("run in its copy", "f_push_memory")] {
        let base = bench.time(function);
        write!(text, "| sidestep: {name} (`{function}`) | 1")?;
        for kind in ["u", "ur"] {
            let script = format!("{kind}:{}:{function} {{ @ = count() }}", bench.path());
            let (time, _) = bench.scripted(&script, &off, 1, |bench| bench.time(function))?;
            write!(text, " | {}", number(time - base))?;
        }
        writeln!(text, " |")?;
    }
    for (name, function, traps) in [("emulated", "f_push", 1), ("single-stepped", "f_push_memory", 2)] {
        let base = bench.time(function);
        let [entry, exit] = [At::Entry, At::Return].map(|at| kernel(bench, function, at, base));
        writeln!(text, "| kernel: {name} (`{function}`) | {traps} | {entry} | {exit} |")?;
    }
    for (name, command, traps) in [("a signal handler", "trap", 1), ("a signal handler that single-steps", "step", 2)] {
        let time = bench.median(command, STEPS, ROUNDS, PAUSE);
        writeln!(text, "| bare `int3` with {name} | {traps} | {} | |", number(time))?;
    }
    writeln!(
        text,
        "\n`f_push` begins with a `push` of a register, `f_push_memory` with one from memory, which neither Sidestep nor the kernel \
         emulates. Sidestep's probe of a return is at the exit, the kernel's begins at the entry."
    )?;
    Ok(text)
}
