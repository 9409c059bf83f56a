//! A run of a script, from its flags to its exit status.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use sidestep_engine::{
    Bundle, Cookie, Local, Maps, Missing, NoMatch, Pattern, Request, Session, SessionError, Target, inside,
};
use sidestep_lang::script::ast::{Point, Provider};
use sidestep_lang::script::checked::{Checked, MissingProbes};
use sidestep_lang::script::diagnostic::Diagnostic;
use sidestep_lang::script::lower::{Compiled, Probe};

use super::command::{Command, PERIOD};
use super::nowhere::Nowhere;
use super::run::Script;
use super::{Source, Tool as ScriptTool, attach, selftest};
use crate::cmd::explain;
use crate::cmd::losses::Losses;
use crate::cmd::paths;
use crate::cmd::watch::{self, Job, Pace, Tool};
use crate::flags::Timing;
use crate::flags::script::{Buffering, Script as Flags};
use crate::out::outlet;
use crate::out::sink::{Sink, say_lines};
use crate::signals::Signals;

/// Runs a script that is right.
pub fn run(
    flags: &Flags,
    source: Source,
    checked: Checked,
    compiled: Compiled,
    tool: Option<ScriptTool>,
) -> anyhow::Result<ExitCode> {
    let regexp = tool.as_ref().is_some_and(|tool| tool.regexp);
    let nowhere = Nowhere { compiled: &compiled, regexp, source: tool.is_none().then(|| source.clone()) };
    let needs_target = compiled.probes.iter().any(|probe| probe.point.provider.has_target());
    let has_target = flags.target.is_given();
    if flags.dry_run {
        flags.target.are_there()?;
        return dry_run(flags, &checked, &nowhere).or_else(|error| nowhere.said(error));
    }
    if !needs_target {
        // Whoever probes one says so itself.
        flags.target.are_there()?;
    }
    if let Some(most) = checked.config.max_probes.filter(|most| !needs_target && compiled.probes.len() as u64 > *most) {
        return Ok(too_many(compiled.probes.len() as u64, most));
    }
    // `begin` may have effects, so mistakes are found before.
    let begins = compiled.probes.iter().any(|probe| probe.point.provider == Provider::Begin);
    let must_be_there = checked.config.missing_probes == MissingProbes::Error;
    if needs_target && (begins && must_be_there || !has_target) {
        if let Some(error) = nothing_there(flags, &compiled, regexp) {
            return nowhere.said(error);
        }
    }
    // In a process there may be another file of this name.
    if !must_be_there && tool.is_none() && flags.target.pid.is_empty() {
        if let Some(missing) = never_there(flags, &compiled) {
            if checked.config.missing_probes == MissingProbes::Warn {
                missing.iter().for_each(|missing| nowhere.skipped(missing));
            }
            say_lines("ERROR: Attachment failed for all probes.");
            return Ok(ExitCode::FAILURE);
        }
    }
    if needs_target && !has_target {
        super::super::usage(
            ErrorKind::MissingRequiredArgument,
            "the script probes a process: add -p PID, -c CMD or -- CMD",
        );
    }
    let own_maps = attach::maps(&compiled);
    let local = Local::new(&own_maps)?;
    if let Some(names) = compiled.processes {
        let own = sidestep_engine::process_names(std::process::id() as i32);
        own.iter().for_each(|entry| local.maps().insert(names, entry));
    }
    let mut losses = Losses::local(&own_maps);
    let mut script = Script::new(source, checked, &compiled, tool.map(|tool| tool.layout))?;
    script.no_warnings = flags.more.no_warnings;
    let mut sink = Sink::of(&flags.output)?;
    if flags.more.buffering == Some(Buffering::Full) {
        sink.hold_back();
    }
    if flags.more.test {
        return selftest::test(&mut script, local.maps(), &mut sink);
    }
    if flags.more.bench {
        return selftest::bench(&mut script, local.maps(), &mut sink);
    }
    if !needs_target {
        if !flags.target.pid.is_empty() {
            sink.note("the script probes nothing: the target is left alone");
        }
        return alone(flags, &mut script, local.maps(), losses, &mut sink, &compiled);
    }
    let (mut bundle, requests, probes) = attach::bundle(&compiled, regexp)?;
    script.begin(local.maps(), &mut sink)?;
    losses.look_local(local.maps(), &mut sink)?;
    sink.flush()?;
    if script.exit.is_some() {
        script.finish(local.maps(), &mut sink)?;
        sink.flush()?;
        script.say_faults(local.maps(), &mut sink)?;
        losses.look_local(local.maps(), &mut sink)?;
        sink.end()?;
        return Ok(script.status(ExitCode::SUCCESS));
    }
    for (map, shape) in bundle.maps.iter().enumerate() {
        if shape.map.readonly {
            continue;
        }
        let set = |entry: &sidestep_engine::Entry| match &entry.value {
            sidestep_engine::Value::One(bytes) => bytes.iter().any(|byte| *byte != 0) || shape.map.key_size != 4,
            sidestep_engine::Value::PerThread(_) => true,
        };
        bundle.entries.extend(local.maps().entries(map).into_iter().filter(set).map(|entry| (map, entry)));
    }
    drop(local);
    bundle.processes = compiled.processes;
    if matches!(flags.target.target(), Target::Command(_)) {
        bundle.pid = Some(compiled.command);
    }
    let timing = timing(flags);
    let job = Job { timing: Some(&timing), ..job(flags, &bundle, &requests) };
    let mut running = Running {
        script,
        probes,
        named_by_number: requests.iter().map(|request| request.action.cookie == Cookie::Named).collect(),
        points: compiled.probes.iter().map(|probe| probe.point.provider).collect(),
        attach_points: compiled.probes.iter().map(|probe| probe.point.clone()).collect(),
        needs_symbols: needs_symbols(&compiled),
        flags,
        is_command: matches!(flags.target.target(), Target::Command(_)),
        ended_by_a_hit: false,
        pace: Pace::default(),
        named: 0,
    };
    match watch::run_with(&job, &mut running, sink) {
        Ok(code) => Ok(running.script.status(code)),
        Err(error) => match (error.downcast_ref(), running.script.checked.config.max_probes) {
            (Some(SessionError::TooManyProbes { found, .. }), Some(most)) => {
                Ok(too_many((running.own() + found) as u64, most))
            }
            _ => nowhere.said(error),
        },
    }
}

/// Says that `max_probes` allows fewer attach points.
fn too_many(found: u64, most: u64) -> ExitCode {
    say_lines(&format!(
        "ERROR: Can't attach to {found} probes because it exceeds the current limit of {most} probes.\n\
         HINT: the setting max_probes, or the variable BPFTRACE_MAX_PROBES, is the limit"
    ));
    ExitCode::FAILURE
}

/// Why nothing is at an attach point, as far as this can be known before the session begins: in the
/// processes that are there already, or in a file that is named by its path. In processes, which
/// may have mapped many objects, only names are looked up, and no patterns; nor are patterns that
/// may mean nothing, since their block has other attach points.
fn nothing_there(flags: &Flags, compiled: &Compiled, regexp: bool) -> Option<anyhow::Error> {
    let pids: Vec<Option<i32>> = flags.target.pid.iter().map(|pid| Some(*pid)).collect();
    let options = flags.engine.options();
    let is_placed =
        |pattern: &Pattern| !pids.is_empty() || pattern.object.as_ref().is_some_and(|object| object.contains('/'));
    let probes = compiled.probes.iter().filter(|probe| probe.point.provider.has_target());
    let is_alone = |probe: &Probe| probes.clone().filter(|other| other.block == probe.block).count() == 1;
    let patterns = probes.clone().filter_map(|probe| {
        let pattern = attach::pattern(&probe.point, regexp).ok().filter(is_placed)?;
        (!pattern.func.is_many() || pids.is_empty() && is_alone(probe)).then_some(pattern)
    });
    let list = |pattern: &_, pid| paths::in_each(pattern, pid, |file| sidestep_engine::list(file, pid, &options));
    let mut errors = patterns.filter_map(|pattern| {
        let pids = if pids.is_empty() { &[None][..] } else { &pids };
        let found: Vec<_> = pids.iter().map(|pid| list(&pattern, *pid)).collect();
        if found.iter().any(Result::is_ok) { None } else { found.into_iter().find_map(Result::err) }
    });
    let may_come = |error: &SessionError| error.may_come() && flags.target.follow;
    errors.find(|error| matches!(error, SessionError::NoMatch(_)) && !may_come(error)).map(Into::into)
}

/// Why a script has nothing to do, now or later: all its probes are of files that are named by
/// their paths, which lack what is probed. `None`: it has.
fn never_there(flags: &Flags, compiled: &Compiled) -> Option<Vec<NoMatch>> {
    let options = flags.engine.options();
    let missing = compiled.probes.iter().map(|probe| {
        let pattern = Some(&probe.point).filter(|point| point.provider.has_target())?;
        let pattern = attach::pattern(pattern, false).ok()?;
        pattern.object.as_ref().filter(|object| object.contains('/') && !object.contains(['*', '?', '[']))?;
        match paths::in_each(&pattern, None, |file| sidestep_engine::list(file, None, &options)) {
            Err(SessionError::NoMatch(missing)) if !missing.may_come => Some(*missing),
            _ => None,
        }
    });
    missing.collect::<Option<Vec<_>>>().filter(|missing| !missing.is_empty())
}

/// Attach points as bpftrace counts them: a static probe is one, wherever it is.
fn counted(session: &Session, is_static: impl Fn(usize) -> bool) -> usize {
    let mut known = HashSet::new();
    session
        .probes()
        .iter()
        .filter(|probe| !is_static(probe.request) || known.insert((probe.request, &probe.object, &probe.name)))
        .count()
}

/// What would be written where.
fn dry_run(flags: &Flags, checked: &Checked, nowhere: &Nowhere<'_>) -> anyhow::Result<ExitCode> {
    let (bundle, requests, _) = attach::bundle(nowhere.compiled, nowhere.regexp)?;
    let skips = |error: &SessionError| {
        let SessionError::NoMatch(missing) = error else { return false };
        match checked.config.missing_probes {
            MissingProbes::Error => false,
            MissingProbes::Warn => {
                nowhere.skipped(missing);
                true
            }
            MissingProbes::Ignore => true,
        }
    };
    explain::dry_run_without(&job(flags, &bundle, &requests), skips)
}

/// The session's part of the flags.
fn job<'a>(flags: &'a Flags, bundle: &'a Bundle, requests: &'a [Request]) -> Job<'a> {
    let Flags { target, output, engine, .. } = flags;
    Job { target, timing: None, output, engine, bundle, requests }
}

/// A script prints what it is told to.
fn timing(flags: &Flags) -> Timing {
    Timing { interval: None, duration: flags.more.duration, timestamp: false }
}

fn needs_symbols(compiled: &Compiled) -> bool {
    !compiled.stack_of.is_empty() || compiled.uses_symbols
}

/// A script without a target.
fn alone(
    flags: &Flags,
    script: &mut Script,
    maps: Maps<'_>,
    mut losses: Losses,
    sink: &mut Sink,
    compiled: &Compiled,
) -> anyhow::Result<ExitCode> {
    // Not what is behind `--`: these are the script's parameters, as it probes nothing.
    let words = flags.target.cmd.as_ref().map(|words| words.0.iter().map(OsString::from).collect::<Vec<_>>());
    let signals = Signals::install(words.is_some())?;
    outlet::start()?;
    script.started(compiled.probes.len(), false, sink)?;
    script.begin(maps, sink)?;
    let mut signal = None;
    let mut command = None;
    if let (Some(words), None) = (words, script.exit) {
        // What `begin` has printed comes before what the command prints.
        sink.flush()?;
        let is_written = outlet::drain(&signals);
        signal = signals.wait(Duration::ZERO).or((!is_written).then_some(libc::SIGINT));
        if signal.is_none() {
            command = Some(Command::start(&words)?);
        }
    }
    if let Some(command) = &command {
        command.tell(compiled.command, maps);
    }
    script.start_intervals();
    let end = flags.more.duration.map(|duration| Instant::now() + duration);
    let left = || end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
    while signal.is_none() {
        let goes_on = match &mut command {
            Some(command) => script.exit.is_none() && !command.has_ended()?,
            // A script of `begin` and `end` alone has nothing to wait for.
            None => script.waits(),
        };
        if !goes_on || left() == Duration::ZERO {
            break;
        }
        losses.look_local(maps, sink)?;
        sink.flush()?;
        let longest = if command.is_some() { PERIOD } else { Duration::from_secs(3600) };
        let wait = script.until_interval().unwrap_or(longest).min(longest).min(left());
        let is_read = !outlet::is_full();
        signal = signals.wait(if is_read { wait } else { watch::UNREAD_PERIOD });
        if signal.is_some() {
            break;
        }
        match is_read {
            true => script.tick(maps, sink)?,
            false => script.tick_unread(maps)?,
        }
    }
    let ends = script.exit.is_some();
    script.finish(maps, sink)?;
    sink.flush()?;
    script.say_faults(maps, sink)?;
    losses.look_local(maps, sink)?;
    losses.total(sink);
    sink.end()?;
    let hurry = !outlet::drain(&signals);
    sink.end()?;
    let ended = command.map(|command| command.status(ends, signal, hurry, &signals)).transpose()?;
    Ok(script.status(ended.unwrap_or(ExitCode::SUCCESS)))
}

/// A script with a target.
struct Running<'a> {
    script: Script,
    /// Which of the script's probes each request is.
    probes: Vec<usize>,
    /// Whether the cookies of each request's probes are numbers of their names.
    named_by_number: Vec<bool>,
    points: Vec<Provider>,
    attach_points: Vec<Point>,
    needs_symbols: bool,
    flags: &'a Flags,
    is_command: bool,
    ended_by_a_hit: bool,
    pace: Pace,
    /// Probes whose names are known to the script.
    named: usize,
}

impl Running<'_> {
    /// Attach points that are in no program: `begin`, intervals.
    fn own(&self) -> usize {
        self.points.iter().filter(|provider| !provider.has_target()).count()
    }

    /// Probes may come later: in other processes, in libraries.
    fn name_probes(&mut self, session: &Session) {
        for probe in session.probes()[self.named..].iter().filter(|probe| self.named_by_number[probe.request]) {
            let label = attach::label(&self.attach_points[self.probes[probe.request]]);
            self.script.names.probes.insert(probe.cookie & u64::from(u32::MAX), label.of(&probe.object, &probe.name));
            let (function, _) = inside(&probe.name);
            self.script.names.functions.insert(probe.cookie >> 32, function.to_owned());
        }
        self.named = session.probes().len();
    }
}

impl Running<'_> {
    /// Says that an attach point means nothing, where it stands in the script.
    fn say_missing(&self, name: &str, reason: &str, sink: &Sink) {
        let is_it = |point: &&Point| attach::pattern(point, false).is_ok_and(|pattern| pattern.text == name);
        let points = self.attach_points.iter().filter(|point| point.provider.has_target());
        match points.clone().find(is_it).filter(|_| self.script.layout.is_none()) {
            Some(point) => {
                let what = point.text().replacen(':', " ", 1);
                let warning = Diagnostic::warning(point.span, format!("No matches for {what}. Skipping."));
                self.script.say(&[warning.hint(reason)]);
            }
            None => sink.warn(&format!("WARNING: No matches for {name}: {reason}")),
        }
    }
}

impl Tool for Running<'_> {
    fn heading(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.name_probes(session);
        let own = self.own();
        if self.script.checked.config.missing_probes == MissingProbes::Warn && !self.flags.output.detail.verbose {
            // A probe that was found and refused has an object.
            for missing in session.refused().iter().filter(|refused| refused.object.as_os_str().is_empty()) {
                self.say_missing(&missing.name, &missing.reason.to_string(), sink);
            }
        }
        let heading = if self.script.layout.is_some() { 0 } else { own };
        let is_static = |request: usize| {
            self.probes.get(request).is_some_and(|probe| self.points.get(*probe) == Some(&Provider::Usdt))
        };
        let probes = counted(session, is_static);
        let more_may_come = !session.awaited().is_empty();
        self.script.started(probes + heading, more_may_come, sink)?;
        self.script.start_intervals();
        Ok(())
    }

    fn period(&self) -> Duration {
        self.script.until_interval().map_or(self.pace.period(), |wait| wait.min(self.pace.period()))
    }

    fn poll(&mut self, session: &mut Session, sink: &mut Sink) -> io::Result<bool> {
        self.script.names.symbols.append(session.take_symbols());
        self.name_probes(session);
        let records = session.records();
        self.pace.saw(records.len());
        if let Some(maps) = session.maps() {
            if self.script.exit.is_none() {
                self.script.records(&records, maps, sink)?;
                self.ended_by_a_hit = self.script.exit.is_some();
                self.script.tick(maps, sink)?;
            }
        }
        Ok(self.script.exit.is_some())
    }

    fn unread(&mut self, session: &mut Session) -> io::Result<bool> {
        if let Some(maps) = session.maps() {
            self.script.tick_unread(maps)?;
        }
        Ok(self.script.exit.is_some())
    }

    fn end(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        if let Some(maps) = session.maps() {
            self.script.finish(maps, sink)?;
            sink.flush()?;
            self.script.say_faults(maps, sink)?;
        }
        Ok(())
    }

    fn missing(&self) -> Missing {
        match self.script.checked.config.missing_probes {
            MissingProbes::Error => Missing::Error,
            // A tool has something to probe.
            MissingProbes::Warn | MissingProbes::Ignore if self.script.layout.is_some() => Missing::Noted,
            MissingProbes::Warn | MissingProbes::Ignore => Missing::Allowed,
        }
    }

    fn most_probes(&self) -> Option<usize> {
        let most = self.script.checked.config.max_probes?;
        Some(usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(self.own()))
    }

    fn wants_symbols(&self) -> bool {
        self.needs_symbols
    }

    fn ends_at_a_hit(&self) -> bool {
        self.ended_by_a_hit
    }

    fn ends_command(&self) -> bool {
        self.is_command && self.script.exit.is_some() && self.script.layout.is_none()
    }
}
