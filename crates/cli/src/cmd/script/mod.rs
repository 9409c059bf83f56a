//! A script of the bpftrace language: read, checked, run.

mod attach;
mod command;
mod fmt;
mod list;
mod nowhere;
mod records;
mod run;
mod selftest;
mod source;
mod start;
mod system;
mod types;
mod usdt;

use std::io::Write;
use std::process::ExitCode;

use anyhow::anyhow;
use sidestep_engine::Target;
use sidestep_lang::script::ast::{Declared, Point, Provider, Script as Parsed};
use sidestep_lang::script::check::check_with;
use sidestep_lang::script::checked::Config;
use sidestep_lang::script::config::{NoSetting, outdated};
use sidestep_lang::script::lower::{Compiled, lower};
use sidestep_lang::script::near::near;
use sidestep_lang::script::parser::{Given, parse_given};
use sidestep_lang::script::tree;

use crate::flags::script::{Mode, Script, script_option};
use crate::out::script::Layout;
use crate::out::sink::{say, say_lines};
use crate::out::time;

pub use source::Source;

/// Runs the command. A script that is wrong ends with status 1.
pub fn run(flags: &Script) -> anyhow::Result<ExitCode> {
    if flags.list {
        return list::run(flags);
    }
    match Source::read(flags)? {
        Some(source) if flags.more.fmt => fmt::run(flags, &source),
        Some(source) => start(flags, source, None),
        None => Ok(ExitCode::FAILURE),
    }
}

/// A tool that is a script.
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// How it shows what it has found.
    pub layout: Box<dyn Layout>,
    /// Functions in its attach points are regular expressions.
    pub regexp: bool,
}

/// Runs the script of a tool.
pub fn run_tool(flags: &Script, tool: Tool) -> anyhow::Result<ExitCode> {
    let (name, text) = (tool.name.to_owned(), flags.program.clone().unwrap_or_default());
    start(flags, Source::of(name, text), Some(tool))
}

fn start(flags: &Script, mut source: Source, tool: Option<Tool>) -> anyhow::Result<ExitCode> {
    let environment = environment(std::env::vars())?;
    if !flags.more.no_warnings {
        environment
            .iter()
            .filter_map(|(name, _)| outdated(name))
            .for_each(|warning| say(&format!("WARNING: {warning}")));
    }
    let mut given = Given {
        params: source.params.clone(),
        options: flags.more.options.clone(),
        environment,
        count_reads: flags.more.faults > 0,
        allow_unsafe: flags.allow_unsafe,
        parts: source.parts(),
        headers: source.headers(),
        included: source.included(),
        has_process: flags.target.is_given(),
        ..Given::default()
    };
    let mut parsed = parse_given(&source.text, &given);
    let runs_command = |script: &Parsed| script.blocks.iter().flat_map(|block| &block.points).any(is_in_a_program);
    if !flags.target.command.is_empty() && !parsed.as_ref().is_ok_and(runs_command) {
        // Nothing is started: what stands behind `--` is the script's, in any order.
        let words = flags.target.command.iter().map(|word| word.to_string_lossy().into_owned());
        for word in words {
            match script_option(&word) {
                Some(option) => given.options.push(option),
                None => given.params.push(word),
            }
        }
        source.params.clone_from(&given.params);
        parsed = parse_given(&source.text, &given);
    }
    let mut script = match parsed {
        Ok(script) => script,
        Err(error) => {
            source.say(&[error]);
            return Ok(ExitCode::FAILURE);
        }
    };
    only_wanted(&mut script, flags);
    if let Some(filter) = &flags.engine.probe_filter {
        keep_matching(&mut script, filter)?;
        if script.blocks.is_empty() {
            crate::out::sink::say("No probes to attach");
            return Ok(ExitCode::FAILURE);
        }
    }
    if script.blocks.is_empty() {
        return Err(match (flags.more.test, flags.more.bench) {
            (true, _) => anyhow!("the script has no test probes: test:NAME {{ … }}"),
            (_, true) => anyhow!("the script has no bench probes: bench:NAME {{ … }}"),
            _ => anyhow!("no probes to attach; --test runs test probes, --bench benchmarks"),
        });
    }
    if let Some(lines) = options_refused(&given.options, &script.options) {
        say_lines(lines.trim_end());
        return Ok(ExitCode::FAILURE);
    }
    if flags.prints_tree() {
        tree::lines(&script).iter().try_for_each(|line| writeln!(std::io::stdout(), "{line}"))?;
    }
    let points = script.blocks.iter().flat_map(|block| block.points.clone()).collect();
    let mut programs = types::Programs::new(points, &flags.target.pid, &flags.engine.options());
    if let Target::Command(words) = flags.target.target() {
        programs.command = words.first().map(|word| word.to_string_lossy().into_owned());
    }
    let is_command = programs.command.is_some();
    let mut checked = match check_with(&script, &source.params, &mut programs) {
        Ok((checked, warnings)) => {
            if !flags.more.no_warnings {
                source.say(&warnings);
                if !is_command && !checked.asks_for_cpid {
                    source.say(&checked.cpid);
                }
            }
            checked
        }
        Err(errors) => {
            source.say(&errors);
            return Ok(ExitCode::FAILURE);
        }
    };
    if !flags.allow_unsafe && !checked.unsafe_calls.is_empty() {
        source.say(&checked.unsafe_calls);
        return Ok(ExitCode::FAILURE);
    }
    checked.several = flags.target.are_several();
    checked.processors = processors();
    checked.nodes = nodes();
    let start = time::monotonic();
    let compiled = lower(&checked, time::clock_of_scripts(start))?;
    if flags.more.mode == Some(Mode::Codegen) && flags.debug.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if !flags.debug.is_empty() {
        if flags.prints_programs() {
            print_programs(&compiled)?;
        }
        if flags.target.is_given() && source.params.first().is_some_and(|word| word.parse::<f64>().is_ok()) {
            // What the tools' -d is.
            say(
                "sidestep: -d prints the script, and nothing was probed; interval:s:5 { exit() } ends one after 5 seconds",
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    start::run(flags, source, checked, compiled, tool)
}

fn is_in_a_program(point: &Point) -> bool {
    point.provider.has_target()
}

/// Leaves what the command line asks for: tests, benchmarks, or all else.
fn only_wanted(script: &mut Parsed, flags: &Script) {
    let mode = match (flags.more.test, flags.more.bench) {
        (true, _) => Some(Provider::Test),
        (_, true) => Some(Provider::Bench),
        _ => None,
    };
    let is_wanted = |provider: Provider| match mode {
        Some(mode) => provider == mode,
        None => !matches!(provider, Provider::Test | Provider::Bench),
    };
    for block in &mut script.blocks {
        block.points.retain(|point| is_wanted(point.provider));
    }
    script.blocks.retain(|block| !block.points.is_empty());
}

/// Leaves the blocks of intervals, tests and benchmarks whose attach points a regular expression
/// finds. The engine does the same for functions and static probes, whose names it knows.
fn keep_matching(script: &mut Parsed, filter: &str) -> anyhow::Result<()> {
    let regex = regex_lite::Regex::new(filter)
        .map_err(|error| anyhow!("ERROR: Invalid --probe-filter regex '{filter}': {error}"))?;
    let is_filtered = |provider: Provider| matches!(provider, Provider::Interval | Provider::Test | Provider::Bench);
    for block in &mut script.blocks {
        block.points.retain(|point| !is_filtered(point.provider) || regex.is_match(&point.text()));
    }
    script.blocks.retain(|block| !block.points.is_empty());
    Ok(())
}

/// What to say of a word that is neither a command nor a file. `next`: the word behind it.
fn no_command(word: &str, next: Option<&str>) -> String {
    let names: Vec<String> = <crate::flags::Cli as clap::CommandFactory>::command()
        .get_subcommands()
        .map(|c| c.get_name().to_owned())
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // `latency` of `funclatency`, as well as what is misspelt.
    let meant = |word: &str| {
        let part = || names.iter().copied().find(|name| word.len() > 3 && name.contains(word));
        near(word, &names).or_else(part).map_or(String::new(), |near| format!("; did you mean {near}?"))
    };
    if word == "help" {
        let wrong = next.map(|next| format!("\"{next}\" is no command{}\n", meant(next))).unwrap_or_default();
        return format!("{wrong}help is for one of the commands: {}", names.join(", "));
    }
    format!("\"{word}\" is neither a command nor the file of a script{}", meant(word))
}

/// Processors that the machine may have, also those that are off now: what bpftrace's `ncpus` and
/// the kernel's tables count.
fn processors() -> u64 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    // `0-3`, or `0,2-3` where some numbers are not used.
    let last = text.trim().rsplit([',', '-']).next().and_then(|number| number.parse::<u64>().ok());
    last.map_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u64), |last| last + 1)
}

/// The memory node of each processor, by its number.
fn nodes() -> Vec<u8> {
    let mut nodes = Vec::new();
    for node in 0..=u8::MAX {
        let Ok(text) = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")) else {
            continue;
        };
        // `0-3,8`
        for range in text.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) else { continue };
            nodes.resize(nodes.len().max(usize::from(last) + 1), 0);
            nodes[usize::from(first)..=usize::from(last)].fill(node);
        }
    }
    nodes
}

/// Settings of bpftrace's environment variables. Those that mean nothing here are left alone.
fn environment(variables: impl Iterator<Item = (String, String)>) -> anyhow::Result<Vec<(String, String)>> {
    let mut settings = Vec::new();
    for (name, value) in variables.filter(|(name, _)| name.starts_with("BPFTRACE_")) {
        match Config::default().set(&name, &value) {
            Err(NoSetting::Value(values)) => return Err(anyhow!("{name} is \"{value}\"; expected {values}")),
            Ok(()) => settings.push((name, value)),
            Err(NoSetting::Unknown | NoSetting::Environment) => {}
        }
    }
    Ok(settings)
}

/// What is said about the options of the command line, if the script does not run: one is not the
/// script's, a value is wrong, or `-- --help` asks for the list.
fn options_refused(given: &[(String, Option<String>)], known: &[Declared]) -> Option<String> {
    let is_known = |name: &str| known.iter().any(|option| option.name == name);
    let unknown: Vec<String> =
        given.iter().filter(|(name, _)| !is_known(name)).map(|(name, _)| format!("--{name}")).collect();
    if unknown.iter().any(|name| name == "--help") {
        let line = |option: &Declared| match &*option.description {
            "" => format!("--{}\n", option.name),
            text => format!("--{}: {text}\n", option.name),
        };
        return Some(match known {
            [] => "HINT: no custom program options defined.".to_owned(),
            _ => format!("HINT: expected program options:\n{}", known.iter().map(line).collect::<String>()),
        });
    }
    if !unknown.is_empty() {
        let names: Vec<String> = known.iter().map(|option| format!("--{}", option.name)).collect();
        let hint = match &*names {
            [] => "no custom program options defined.".to_owned(),
            names => format!("expected program options: {}", names.join(", ")),
        };
        return Some(format!("ERROR: unexpected program command line options: {}\nHINT: {hint}", unknown.join(", ")));
    }
    known.iter().find_map(|option| option.wrong.as_ref()).map(|wrong| format!("ERROR: {wrong}"))
}

/// The maps and programs of a script as text.
fn print_programs(compiled: &Compiled) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for (number, map) in compiled.maps.iter().enumerate() {
        let (kind, name, keys, values) = (map.kind, &map.name, map.key_size, map.value_size);
        writeln!(out, "\nmap {number}: {name}, {kind}, {keys} bytes → {values} bytes, {} entries", map.max_entries)?;
    }
    for probe in &compiled.probes {
        let entry = probe.entry.map(|entry| (entry, " (at the entry of the call)"));
        for (program, what) in entry.into_iter().chain([(probe.program, "")]) {
            writeln!(out, "\n{}{what}: program {program}", probe.point.text())?;
            for (slot, insn) in compiled.programs[program].iter().flatten() {
                writeln!(out, "{slot:5}: {insn}")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_environment() {
        let read = |name: &str, value: &str| environment([(name.to_owned(), value.to_owned())].into_iter());
        assert_eq!(read("BPFTRACE_MAX_STRLEN", "99").unwrap(), [("BPFTRACE_MAX_STRLEN".to_owned(), "99".to_owned())]);
        assert_eq!(read("BPFTRACE_KERNEL_SOURCE", "/usr/src").unwrap(), []);
        assert_eq!(read("MAX_STRLEN", "x").unwrap(), []);
        let error = read("BPFTRACE_MAX_STRLEN", "x").unwrap_err().to_string();
        assert!(error.starts_with("BPFTRACE_MAX_STRLEN is \"x\"; expected 1 to 16384"), "{error}");
    }
}
