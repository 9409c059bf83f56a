//! `sidestep -l`: attach points, ready to be pasted back.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::error::ErrorKind;
use sidestep_engine::{Listed, Options, Pattern, RefusalReason, SessionError, inside, pattern};
use sidestep_lang::script::ast::{Point, Provider};
use sidestep_lang::script::parser::{Given, KERNEL_KINDS, OWN_SIGNALS, parse_given};

use super::{attach, records, types, usdt};
use crate::cmd::paths::{self, few_of_many};
use crate::cmd::{list, usage};
use crate::flags::Format;
use crate::flags::script::Script;
use crate::input;
use crate::out::escape;
use crate::out::sink::{Sink, say};

/// Runs the command.
pub fn run(flags: &Script) -> anyhow::Result<ExitCode> {
    flags.target.are_there()?;
    let pid = flags.target.first();
    let (text, params) = match &flags.program {
        Some(_) => ("-e", &flags.words[..]),
        None => flags.words.split_first().map_or(("*", &[][..]), |(text, params)| (&**text, params)),
    };
    let options = flags.engine.options();
    if let Some(program) = &flags.program {
        return print_all(&Wanted { points: points(program, params)?, each: true }, text, flags);
    }
    if let Some(lines) = records::lines(text, params, pid, flags.output.detail.verbose, &options)? {
        let mut sink = Sink::open(flags.output.file.as_deref(), Format::Text, flags.output.detail.quiet)?;
        list::print(lines, &mut sink)?;
        return Ok(ExitCode::SUCCESS);
    }
    if is_like_a_file(text) {
        say(&format!(
            "WARNING: It appears that '{text}' is a filename but the file does not exist. Treating '{text}' as a search pattern."
        ));
    }
    print_all(&wanted(text, params)?, text, flags)
}

/// What a list of bpftrace has beside the probes of programs.
const KERNEL: &str = "; a list of kernel functions and tracepoints needs the kernel: not available in this tool";

/// Whether the user may have meant a file, which is not there.
fn is_like_a_file(text: &str) -> bool {
    text.contains(['.', '/']) && !text.contains([':', '*']) && !Path::new(text).exists()
}

/// Prints what attach points mean.
fn print_all(wanted: &Wanted, text: &str, flags: &Script) -> anyhow::Result<ExitCode> {
    let pid = flags.target.first();
    let options = flags.engine.options();
    let mut sink = Sink::open(flags.output.file.as_deref(), Format::Text, flags.output.detail.quiet)?;
    let (mut lines, mut missing, mut nameless) = (Vec::new(), Vec::new(), BTreeSet::new());
    for point in &wanted.points {
        if !point.provider.has_target() {
            lines.push(match (point.provider, &*point.fields) {
                // The unit; the number is up to the user.
                (Provider::Interval, [unit, _]) => format!("interval:{}:", unit.text),
                _ => point.text(),
            });
            continue;
        }
        let pattern = attach::pattern(point, false)?;
        if pid.is_none() && pattern.object.as_deref().is_none_or(|object| object == "*") {
            let kernel = if text.contains(':') { "" } else { KERNEL };
            let message = format!(
                "`{text}` does not say where to look: name an object, as in uprobe:libc:*, or add -p PID{kernel}"
            );
            usage(ErrorKind::MissingRequiredArgument, &message);
        }
        match paths::in_each(&pattern, pid, |pattern| sidestep_engine::list(pattern, pid, &options)) {
            Ok(found) => {
                if flags.output.detail.verbose {
                    note_refused(&pattern, pid, &options, &sink)?;
                }
                let arguments = match point.provider {
                    Provider::Uprobe | Provider::Uretprobe if flags.output.detail.verbose => {
                        types::arguments(&pattern, point.provider, pid, &options)?
                    }
                    Provider::Usdt if flags.output.detail.verbose => usdt::lines(&pattern, pid, &options),
                    _ => Default::default(),
                };
                let below = |listed: &Listed| arguments.get(&(listed.object.clone(), listed.name.clone()));
                let line = |listed: &Listed| line(point, listed) + below(listed).map_or("", String::as_str);
                lines.extend(found.iter().map(line));
                nameless.extend(few_of_many(found.iter().filter(|one| one.is_few).map(|one| &*one.object)));
            }
            Err(error @ SessionError::NoMatch(_)) => missing.push((point, error)),
            Err(error) => return Err(error.into()),
        }
    }
    match (lines.is_empty(), missing.is_empty()) {
        (true, false) => return Err(missing.swap_remove(0).1.into()),
        // What the user has named must be there; what a pattern could have meant, too, need not.
        (false, false) if wanted.each => {
            for (point, error) in &missing {
                say(&format!("WARNING: No matches for {}: {error}", point.text().replacen(':', " ", 1)));
            }
        }
        _ => {}
    }
    list::print(lines, &mut sink)?;
    nameless.iter().for_each(|note| sink.note(note));
    Ok(ExitCode::SUCCESS)
}

/// Attach points to list.
struct Wanted {
    points: Vec<Point>,
    /// Each of them was named.
    each: bool,
}

/// What a pattern, a script or a program means.
fn wanted(text: &str, params: &[String]) -> anyhow::Result<Wanted> {
    let several = |texts: [String; 2]| -> anyhow::Result<Wanted> {
        let points =
            texts.iter().map(|text| points(&format!("{text} {{}}"), &[])).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Wanted { points: points.concat(), each: false })
    };
    let provider = text.split_once(':').map(|(provider, _)| provider);
    if fs::metadata(text).is_ok_and(|meta| meta.is_file()) {
        if paths::is_object(Path::new(text)) {
            let path = sidestep_symbols::zip::canonicalize(Path::new(text))?.display().to_string();
            return several([format!("uprobe:{path}:*"), format!("usdt:{path}:*:*")]);
        }
        let bytes = input::read(Path::new(text), input::SCRIPT)?;
        let script = String::from_utf8(bytes).with_context(|| format!("{text} is neither a program nor a script"))?;
        return Ok(Wanted { points: points(&script, params).with_context(|| text.to_owned())?, each: true });
    }
    match provider {
        Some("interval" | "i") if text.ends_with(":*") => {
            // The units; the number is up to the user.
            let text = ["hz", "ms", "s", "us"].map(|unit| format!("interval:{unit}:1 {{}} ")).concat();
            Ok(Wanted { points: points(&text, &[])?, each: true })
        }
        // All probes of a kind.
        None if OWN_KINDS.contains(&text) => wanted(&format!("{text}:*"), params),
        None if !matches!(text, "BEGIN" | "begin" | "END" | "end") => {
            several([format!("uprobe:*:{text}"), format!("usdt:*:*:{text}")])
        }
        // All functions, or all static probes, of a process.
        Some("uprobe" | "u" | "uretprobe" | "ur") if text.ends_with(":*") && text.matches(':').count() == 1 => {
            Ok(Wanted { points: points(&format!("{text}:* {{}}"), &[])?, each: true })
        }
        Some("usdt" | "U") if text.ends_with(":*") && text.matches(':').count() == 1 => {
            Ok(Wanted { points: points(&format!("{text}:*:* {{}}"), &[])?, each: true })
        }
        Some("self") if text.ends_with(":*") => {
            let all = OWN_SIGNALS.map(|signal| format!("self:signal:{signal} {{}} ")).concat();
            Ok(Wanted { points: points(&all, &[])?, each: true })
        }
        Some(kinds) if kinds.len() > 1 && kinds.contains('*') && !kinds.contains('/') && !kinds.starts_with("lib") => {
            of_kinds(kinds, &text[kinds.len()..])
        }
        Some("*") => several([format!("uprobe{}", &text[1..]), format!("usdt{}", &text[1..])]),
        // Probes of the program at this path, or of this library, of any kind.
        Some(object) if object.contains('/') || object.starts_with("lib") => {
            several([format!("uprobe:{text}"), format!("usdt:{object}:*{}", &text[object.len()..])])
        }
        _ => Ok(Wanted { points: points(&format!("{text} {{}}"), &[])?, each: true }),
    }
}

/// The kinds of probes that are listed.
const OWN_KINDS: [&str; 5] = ["uprobe", "uretprobe", "usdt", "interval", "self"];

/// What a pattern means whose kind of probe has a wildcard: `u*probe:libc:f`.
fn of_kinds(kinds: &str, rest: &str) -> anyhow::Result<Wanted> {
    let is_meant = |kind: &&str| sidestep_symbols::glob(kinds, kind);
    let own: Vec<&str> = OWN_KINDS.into_iter().filter(is_meant).collect();
    if own.is_empty() {
        return Err(match KERNEL_KINDS.into_iter().find(is_meant) {
            Some(kind) => anyhow!("{kind} needs the kernel: not available in this tool"),
            None => anyhow!("Invalid probe type: {kinds}"),
        });
    }
    let all = own.iter().map(|kind| wanted(&format!("{kind}{rest}"), &[])).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Wanted { points: all.into_iter().flat_map(|wanted| wanted.points).collect(), each: false })
}

/// The attach points of a script that are in a program.
fn points(script: &str, params: &[String]) -> anyhow::Result<Vec<Point>> {
    // Where to look is a question of the list, which has the words for it.
    let given = Given { params: params.to_owned(), has_process: true, ..Given::default() };
    let script = parse_given(script, &given).map_err(|error| match error.hint {
        Some(hint) => anyhow!("{}; {hint}", error.message),
        None => anyhow!(error.message),
    })?;
    let all: Vec<Point> = script.blocks.into_iter().flat_map(|block| block.points).collect();
    let first = all.first().map(|point| point.provider.name()).unwrap_or_default();
    let is_listed = |point: &Point| !matches!(point.provider, Provider::Begin | Provider::End);
    let points: Vec<Point> = all.into_iter().filter(is_listed).collect();
    match points.is_empty() {
        true => Err(anyhow!("{first} probes are not listed: they are in no program")),
        false => Ok(points),
    }
}

/// As an attach point is written.
fn line(point: &Point, listed: &Listed) -> String {
    let written = attach::object(point);
    let object = sidestep_engine::written(written, &listed.object.display().to_string());
    let provider = point.provider.name();
    let line = match &listed.demangled {
        // The place of a line of a source file.
        _ if written != point.object() && inside(&listed.name).1 > 0 => {
            let (function, distance) = inside(&listed.name);
            format!("{provider}:{object}:{}+{distance}", pattern::quote(function))
        }
        _ if listed.is_usdt => format!("{provider}:{object}:{}", listed.name),
        Some(name) => {
            let language = if sidestep_symbols::is_rust(&listed.name) { "rust" } else { "cpp" };
            format!("{provider}:{object}:{language}:\"{name}\"")
        }
        // What ends an attach point, or is replaced in one.
        None if listed.name.contains([':', ',', '{', '}', ';', '$', '\'']) => {
            format!("{provider}:{object}:\"{}\"", listed.name)
        }
        None => format!("{provider}:{object}:{}", pattern::quote(&listed.name)),
    };
    escape::row(&line).into_owned()
}

/// How many of them cannot be probed, and why.
fn note_refused(pattern: &Pattern, pid: Option<i32>, options: &Options, sink: &Sink) -> anyhow::Result<()> {
    let sites = sidestep_engine::explain(pattern, pid, options)?;
    let mut reasons: Vec<(&RefusalReason, usize)> = Vec::new();
    for refusal in sites.iter().filter_map(|site| site.plan.as_ref().err()) {
        match reasons.iter_mut().find(|(reason, _)| **reason == refusal.reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((&refusal.reason, 1)),
        }
    }
    for (reason, count) in reasons {
        sink.note(&format!("{count} of {} at {} cannot be probed: {reason}", sites.len(), pattern.text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_engine::FuncPattern;
    use sidestep_isa::Va;

    fn texts(text: &str) -> Vec<String> {
        wanted(text, &[]).unwrap().points.iter().map(Point::text).collect()
    }

    #[test]
    fn patterns_without_a_provider_mean_all_of_them() {
        assert_eq!(texts("*sleep*"), ["uprobe:*:*sleep*", "usdt:*:*:*sleep*"]);
        assert_eq!(texts("*:libc:set*"), ["uprobe:libc:set*", "usdt:libc:set*"]);
        assert_eq!(texts("libc:*alloc"), ["uprobe:libc:*alloc", "usdt:libc:*:*alloc"]);
        assert_eq!(texts("ur:libc:malloc,usdt:libc:x"), ["uretprobe:libc:malloc", "usdt:libc:x"]);
        assert_eq!(texts("/bin/sh"), texts(fs::canonicalize("/bin/sh").unwrap().to_str().unwrap()));
        assert!(texts("/bin/sh")[0].ends_with(":*"));
    }

    #[test]
    fn what_is_in_no_program_is_not_listed() {
        let error = |text: &str| wanted(text, &[]).err().unwrap().to_string();
        assert_eq!(error("BEGIN"), "begin probes are not listed: they are in no program");
        assert!(error("kprobe:x").contains("needs the kernel"), "{}", error("kprobe:x"));
        assert!(error("nothing:x").contains("there are uprobe"), "{}", error("nothing:x"));
    }

    #[test]
    fn lines_are_read_back_as_names() {
        for (name, demangled) in [
            ("malloc", None),
            ("main.(*T).f", None),
            ("type:.eq.x", None),
            ("a$b", None),
            ("f+0x1", None),
            ("_ZN1A1fEv", Some("A::f(int, char*)")),
        ] {
            let listed = Listed {
                object: "/lib/a.so".into(),
                name: name.to_owned(),
                demangled: demangled.map(str::to_owned),
                va: Va(16),
                size: 3,
                is_usdt: false,
                is_few: false,
            };
            let all = points("uprobe:libc:* {}", &[]).unwrap();
            let text = line(&all[0], &listed);
            let points = points(&format!("{text} {{}}"), &[]).unwrap();
            let pattern = attach::pattern(&points[0], false).unwrap();
            assert_eq!(pattern.object.as_deref(), Some("/lib/a.so"), "{text}");
            assert_eq!(pattern.func, FuncPattern::Name(demangled.unwrap_or(name).to_owned()), "{text}");
        }
    }
}
