//! A script at work: its blocks in the controller, and what its programs ask for.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use sidestep_bpf::verify::{Rules, Verified, verify};
use sidestep_engine::{Maps, Record};
use sidestep_lang::script::ast::{Point, Provider};
use sidestep_lang::script::checked::{Action, Checked, Failure, Memory};
use sidestep_lang::script::diagnostic::{Diagnostic, Severity, Span};
use sidestep_lang::script::lower::{Compiled, JOINED};
use sidestep_lang::script::parser::period;
use sidestep_lang::script::printf::Format;
use sidestep_lang::script::types::Type;

use super::Source;
use super::attach;
use crate::cmd::funccount::attached;
use crate::input;
use crate::out::script::{Layout, Names, Print, Printer, Shown, listed, values};
use crate::out::sink::{Reader, Sink};
use crate::out::{json, number, time};
use crate::signals;

/// How many rounds of an interval are made up for: the process may have been stopped for hours.
const MOST_LATE: u32 = 1000;

/// For how long late rounds run before all else has its turn: signals, above all.
const AT_ONCE: Duration = Duration::from_millis(50);

/// A block that runs again and again.
struct Interval {
    program: usize,
    period: Duration,
    next: Instant,
}

/// What is known of a script while it runs.
pub struct Script {
    source: Source,
    pub checked: Checked,
    printer: Printer,
    pub names: Names,
    /// Attach points of the controller's programs.
    points: Vec<Point>,
    /// Programs of the controller, by their probes.
    programs: Vec<(Provider, Option<u64>, Verified)>,
    intervals: Vec<Interval>,
    /// What `exit()` was told.
    pub exit: Option<i32>,
    /// Warnings that were given already.
    warned: HashSet<usize>,
    /// The map that counts reads of the target's memory that failed, by blocks.
    pub faults: usize,
    /// What intervals would have printed while nobody read.
    unread: u64,
    /// Nothing is said of warnings of its own.
    pub no_warnings: bool,
    /// How a tool shows it.
    pub layout: Option<Box<dyn Layout>>,
}

impl Script {
    pub fn new(
        source: Source,
        checked: Checked,
        compiled: &Compiled,
        layout: Option<Box<dyn Layout>>,
    ) -> anyhow::Result<Script> {
        let (mut programs, mut points) = (Vec::new(), Vec::new());
        for probe in compiled.probes.iter().filter(|probe| !probe.point.provider.has_target()) {
            let rules = Rules { maps: &compiled.maps, ..Rules::default() };
            let verified = verify(&compiled.programs[probe.program], &rules)
                .map_err(|error| attach::not_accepted(&probe.point, &error))?;
            programs.push((probe.point.provider, period(&probe.point), verified));
            points.push(probe.point.clone());
        }
        if programs.iter().any(|(provider, ..)| *provider == Provider::Own) {
            signals::keep_for_blocks()?;
        }
        let printer = Printer::new(checked.maps.clone(), compiled.map_of.clone());
        let names = Names {
            points: compiled.probes.iter().map(|probe| probe.point.label()).collect(),
            stacks: checked.stacks.iter().copied().zip(compiled.stack_of.iter().copied()).collect(),
            debug_info: checked.config.show_debug_info,
            trailer: checked.config.trailer.clone(),
            layouts: checked.layouts.clone(),
            word: checked.word,
            several: checked.several,
            since_1970: time::realtime().wrapping_sub(time::monotonic()),
            ..Names::default()
        };
        let (intervals, warned) = (Vec::new(), HashSet::new());
        let faults = compiled.faults;
        let (exit, no_warnings) = (None, false);
        let unread = 0;
        Ok(Script {
            source,
            checked,
            printer,
            names,
            points,
            programs,
            intervals,
            exit,
            warned,
            faults,
            unread,
            no_warnings,
            layout,
        })
    }

    /// The first line: bpftrace's, or the tool's, which is no data in any case.
    pub fn started(&self, probes: usize, more_may_come: bool, sink: &mut Sink) -> io::Result<()> {
        self.say_started(probes, more_may_come, sink)?;
        // Programs that run bpftrace and wait for its probes (its runtime suite does) set this.
        if std::env::var_os("__BPFTRACE_NOTIFY_PROBES_ATTACHED").is_some() {
            sink.line("__BPFTRACE_NOTIFY_PROBES_ATTACHED")?;
            sink.flush()?;
        }
        Ok(())
    }

    fn say_started(&self, probes: usize, more_may_come: bool, sink: &mut Sink) -> io::Result<()> {
        if sink.json() {
            return attached(probes, sink);
        }
        match &self.layout {
            Some(layout) => {
                match &*layout.progress(probes) {
                    "" => {}
                    text => sink.progress(text),
                }
                match &*layout.heading() {
                    "" => Ok(()),
                    text => sink.heading(text),
                }
            }
            None => {
                let so_far = if more_may_come { " so far" } else { "" };
                sink.progress(&format!("Attached {probes} probe{}{so_far}", if probes == 1 { "" } else { "s" }));
                Ok(())
            }
        }
    }

    pub fn begin(&mut self, maps: Maps<'_>, sink: &mut Sink) -> io::Result<()> {
        self.all(Provider::Begin, maps, sink)
    }

    /// Runs the blocks of a kind.
    fn all(&mut self, provider: Provider, maps: Maps<'_>, sink: &mut Sink) -> io::Result<()> {
        for program in 0..self.programs.len() {
            if self.programs[program].0 == provider && (provider == Provider::End || self.exit.is_none()) {
                self.run(program, maps, sink)?;
            }
        }
        Ok(())
    }

    /// The probes of a kind with their names, and the numbers of their programs.
    pub fn named(&self, provider: Provider) -> Vec<(String, usize)> {
        let name = |(number, (kind, ..)): (usize, &(Provider, Option<u64>, Verified))| {
            let point = self.points.get(number)?;
            (*kind == provider)
                .then(|| (point.fields.first().map_or(String::new(), |field| field.text.clone()), number))
        };
        self.programs.iter().enumerate().filter_map(name).collect()
    }

    /// Runs one program, whatever it is.
    pub fn run_alone(&mut self, program: usize, maps: Maps<'_>, sink: &mut Sink) -> io::Result<()> {
        self.run(program, maps, sink)
    }

    fn run(&mut self, program: usize, maps: Maps<'_>, sink: &mut Sink) -> io::Result<()> {
        let records = maps.run(&self.programs[program].2).map_err(io::Error::other)?;
        self.records(&records, maps, sink)
    }

    /// From now on intervals run.
    pub fn start_intervals(&mut self) {
        let now = Instant::now();
        for (program, (provider, period, _)) in self.programs.iter().enumerate() {
            if let (Provider::Interval, Some(period)) = (provider, period) {
                let period = Duration::from_nanos(*period);
                self.intervals.push(Interval { program, period, next: now + period });
            }
        }
    }

    /// Whether anything is still to come: `exit()` was not called, and there are intervals, or
    /// blocks for signals.
    pub fn waits(&self) -> bool {
        let waits_for_signals = self.programs.iter().any(|(provider, ..)| *provider == Provider::Own);
        self.exit.is_none() && (!self.intervals.is_empty() || waits_for_signals)
    }

    pub fn until_interval(&self) -> Option<Duration> {
        let next = self.intervals.iter().map(|interval| interval.next).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Runs what is due, also rounds that were slept through. Before that, the blocks of signals
    /// that came.
    pub fn tick(&mut self, maps: Maps<'_>, sink: &mut Sink) -> io::Result<()> {
        for _ in 0..signals::taken_for_blocks() {
            self.all(Provider::Own, maps, sink)?;
        }
        let now = Instant::now();
        while let Some(program) = self.due(now) {
            self.run(program, maps, sink)?;
            if now.elapsed() > AT_ONCE {
                break;
            }
        }
        Ok(())
    }

    /// The same while nobody reads: what would be printed is lost, and counted.
    pub fn tick_unread(&mut self, maps: Maps<'_>) -> io::Result<()> {
        let now = Instant::now();
        for _ in 0..signals::taken_for_blocks() {
            for program in 0..self.programs.len() {
                if self.programs[program].0 == Provider::Own && self.exit.is_none() {
                    self.run_unread(program, maps)?;
                }
            }
        }
        while let Some(program) = self.due(now) {
            self.run_unread(program, maps)?;
            if now.elapsed() > AT_ONCE {
                break;
            }
        }
        Ok(())
    }

    fn run_unread(&mut self, program: usize, maps: Maps<'_>) -> io::Result<()> {
        for record in maps.run(&self.programs[program].2).map_err(io::Error::other)? {
            match number(&record.bytes).and_then(|number| self.checked.actions.get(number)) {
                Some(Action::Exit) => self.exit(&record.bytes),
                Some(Action::Clear(map)) => self.printer.clear(*map, maps),
                Some(Action::Zero(map)) => self.printer.zero(*map, maps),
                _ => self.unread += 1,
            }
        }
        Ok(())
    }

    /// The program of the interval that was over first, which begins anew. This process may have
    /// been late: then each interval runs as often as if it had not been, and in the same order.
    fn due(&mut self, now: Instant) -> Option<usize> {
        let over = self.intervals.iter_mut().filter(|interval| interval.next <= now);
        let interval = over.min_by_key(|interval| interval.next).filter(|_| self.exit.is_none())?;
        let late = now.duration_since(interval.next).as_nanos() / interval.period.as_nanos().max(1);
        let skipped = u32::try_from(late).unwrap_or(u32::MAX).saturating_sub(MOST_LATE);
        interval.next += interval.period * skipped + interval.period;
        Some(interval.program)
    }

    /// END, and then the maps.
    pub fn finish(&mut self, maps: Maps<'_>, sink: &mut Sink) -> io::Result<()> {
        if self.unread > 0 {
            sink.warn(&format!(
                "Lost {} of intervals: nobody read what was printed before",
                number::of(self.unread as usize, "event")
            ));
        }
        self.all(Provider::End, maps, sink)?;
        if let Some(layout) = &mut self.layout {
            sink.text(&layout.end(sink.json()))?;
        }
        if !self.checked.config.print_maps_on_exit {
            return Ok(());
        }
        if !sink.json() && self.layout.is_none() {
            sink.text("\n\n")?;
        }
        for map in self.printer.order() {
            self.print_map(Print { map, top: None, div: 1, axis: (None, None), at_end: true }, maps, sink)?;
        }
        Ok(())
    }

    /// Says how many reads of the target's memory have failed, and of entries of maps, beyond those
    /// that were said.
    pub fn say_faults(&self, maps: Maps<'_>, sink: &mut Sink) -> io::Result<()> {
        let counts = maps.sums(self.faults, 0);
        let checked = &self.checked;
        for (count, block) in counts.iter().zip(&checked.blocks).filter(|(count, _)| **count > 0) {
            if let (true, Some(point)) = (sink.json(), block.points.first()) {
                sink.line(&self.source.failure(point.span, Failure::Read(Memory::Program)))?;
                continue;
            }
            let points: Vec<String> = block.points.iter().map(Point::text).collect();
            let values = if *count == 1 { "value" } else { "values" };
            sink.warn(&format!("{count} {values} could not be read at {}", points.join(", ")));
        }
        // What was said when it happened first is said again if there was more of it.
        for (count, noted) in counts.iter().skip(checked.blocks.len()).zip(&checked.reads) {
            let said = u64::from(self.warned.contains(&noted.action));
            if *count > said {
                self.say_failure(noted.failure, noted.span, *count, sink)?;
            }
        }
        Ok(())
    }

    /// Says that something failed at a place, so many times.
    fn say_failure(&self, failure: Failure, span: Span, count: u64, sink: &mut Sink) -> io::Result<()> {
        if sink.json() {
            return sink.line(&self.source.failure(span, failure));
        }
        let (helper, code) = failure.helper();
        let details = Some(format!("Additional Info - helper: {helper}, retcode: {code}"));
        let hint = Some(format!("{count} times")).filter(|_| count > 1);
        self.source.say(&[Diagnostic { details, hint, ..Diagnostic::warning(span, failure.message()) }]);
        Ok(())
    }

    /// Says what is wrong with the script.
    pub fn say(&self, found: &[Diagnostic]) {
        self.source.say(found);
    }

    pub fn status(&self, otherwise: ExitCode) -> ExitCode {
        match self.exit {
            Some(code) => ExitCode::from(code as u8),
            None => otherwise,
        }
    }

    /// Does what programs have asked for.
    pub fn records(&mut self, records: &[Record], maps: Maps<'_>, sink: &mut Sink) -> io::Result<()> {
        let ended = self.exit.is_some();
        for record in records {
            self.record(&record.bytes, maps, sink)?;
            // What was asked for after `exit()` is too late; END comes after it.
            if !ended && self.exit.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn record(&mut self, record: &[u8], maps: Maps<'_>, sink: &mut Sink) -> io::Result<()> {
        let number = number(record).unwrap_or(usize::MAX);
        let Some(action) = self.checked.actions.get(number).cloned() else { return Ok(()) };
        match action {
            Action::Printf(format, types) => {
                let values = values(record, &types, &mut self.names, maps);
                if let Some(layout) = &mut self.layout {
                    let columns = layout.columns();
                    if sink.json() && columns.len() == values.len() {
                        let members = columns.iter().zip(&values).map(|(name, value)| (name, listed(value)));
                        return sink.line(&json::line("event", json::object(members)));
                    }
                    if let Some(text) = layout.line(&values, sink.json()) {
                        if layout.is_done() {
                            self.exit.get_or_insert(0);
                        }
                        return sink.text(&text);
                    }
                }
                // JSON escapes for itself.
                let reader = if sink.json() { Reader::Program } else { sink.reader() };
                let bytes = rendered(&format, &values, reader);
                say_data(sink, "printf", &bytes)
            }
            Action::Print(ty) => {
                let values = values(record, std::slice::from_ref(&ty), &mut self.names, maps);
                let Some(value) = values.first() else { return Ok(()) };
                match sink.json() {
                    true => sink.line(&json::line("value", value.json())),
                    false => {
                        let text = match value {
                            Shown::Text(bytes) => sink.reader().shown(bytes),
                            value => value.text().into_bytes(),
                        };
                        sink.bytes(&text)?;
                        sink.text("\n")
                    }
                }
            }
            Action::System(format, types) => {
                let values = values(record, &types, &mut self.names, maps);
                let command = OsString::from_vec(rendered(&format, &values, Reader::Program));
                // What it prints is a part of our output.
                sink.flush()?;
                let ran = Command::new("sh").arg("-c").arg(&command).stderr(Stdio::inherit()).output()?;
                say_data(sink, "syscall", &ran.stdout)
            }
            Action::Cat(format, types) => {
                let values = values(record, &types, &mut self.names, maps);
                let file = PathBuf::from(OsString::from_vec(rendered(&format, &values, Reader::Program)));
                let mut bytes = Vec::new();
                match input::open(&file)
                    .and_then(|file| file.take(self.checked.config.max_cat_bytes).read_to_end(&mut bytes))
                {
                    Ok(_) => {
                        let lines = if sink.json() { bytes } else { sink.reader().lines(&bytes) };
                        say_data(sink, "cat", &lines)
                    }
                    Err(error) => {
                        let why = error.to_string();
                        let why = why.split(" (os error").next().unwrap_or_default();
                        sink.warn(&format!("ERROR: failed to open file '{}' ({why})", file.display()));
                        Ok(())
                    }
                }
            }
            Action::Join(separator) => {
                let types = vec![Type::Text(self.checked.config.max_strlen); JOINED];
                let there = |index: &usize| record.get(8 * index..8 * (index + 1)).is_some_and(|word| word != [0; 8]);
                let count = (1..=JOINED).take_while(there).count();
                let values = values(record, &types, &mut self.names, maps);
                let reader = if sink.json() { Reader::Program } else { sink.reader() };
                let texts: Vec<Vec<u8>> = values[..count].iter().map(|text| reader.shown(&text.bytes())).collect();
                let text = texts.join(separator.as_bytes());
                say_data(sink, "join", &text)?;
                if sink.json() { Ok(()) } else { sink.text("\n") }
            }
            Action::PrintMap { map, top, div, axis } => {
                self.print_map(Print { map, top, div, axis, at_end: false }, maps, sink)
            }
            Action::Clear(map) => {
                self.printer.clear(map, maps);
                Ok(())
            }
            Action::Zero(map) => {
                self.printer.zero(map, maps);
                Ok(())
            }
            Action::Time(format) => say_data(sink, "time", time::format(&format, time::realtime()).as_bytes()),
            Action::Exit => {
                self.exit(record);
                Ok(())
            }
            Action::Say(format, types, at) => {
                let values = values(record, &types, &mut self.names, maps);
                let message = String::from_utf8_lossy(&rendered(&format, &values, Reader::Program)).into_owned();
                let message = message.strip_suffix('\n').map(str::to_owned).unwrap_or(message);
                let kind = if at.severity == Severity::Error { "errorf" } else { "warnf" };
                match sink.json() {
                    _ if at.severity != Severity::Error && self.no_warnings => Ok(()),
                    true => sink.line(&self.source.said_at(at.span, kind, &message, &[])),
                    false => {
                        self.source.say(&[Diagnostic { message, ..at }]);
                        Ok(())
                    }
                }
            }
            Action::Failure(failure, span) => match self.warned.insert(number) {
                true => self.say_failure(failure, span, 1, sink),
                false => Ok(()),
            },
            Action::Warning(warning) => match (self.warned.insert(number), sink.json()) {
                (false, _) => Ok(()),
                (true, true) => sink.line(&self.source.said_at(warning.span, "runtime_error", &warning.message, &[])),
                (true, false) => {
                    self.source.say(&[warning]);
                    Ok(())
                }
            },
        }
    }

    fn exit(&mut self, record: &[u8]) {
        let code = record.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_ne_bytes);
        self.exit.get_or_insert(code as i32);
    }

    fn print_map(&mut self, print: Print, maps: Maps<'_>, sink: &mut Sink) -> io::Result<()> {
        if let Some(layout) = &mut self.layout {
            let rows = self.printer.lines(print, maps, &mut self.names);
            if let Some(text) = layout.map(self.printer.name(print.map), &rows, sink.json()) {
                return sink.text(&text);
            }
        }
        if !sink.json() {
            return sink.text(&self.printer.text(print, maps, &mut self.names));
        }
        let name = self.printer.name(print.map);
        let title = self.layout.as_ref().map_or_else(|| name.to_owned(), |layout| layout.title(name));
        match self.printer.json(print, &title, maps, &mut self.names) {
            Some(line) => sink.line(&line),
            None => Ok(()),
        }
    }
}

/// Which action a record asks for.
fn number(record: &[u8]) -> Option<usize> {
    usize::try_from(record.get(..8)?.try_into().map(u64::from_ne_bytes).ok()?).ok()
}

/// What a format makes of values. Strings of the target are escaped on a terminal, and nowhere
/// else: the format is the script's, and has its own colours.
fn rendered(format: &Format, values: &[Shown], reader: Reader) -> Vec<u8> {
    let values: Vec<_> = values.iter().map(Shown::printed).collect();
    format.render(&values, &|bytes| reader.shown(bytes))
}

/// Bytes, or their JSON.
fn say_data(sink: &mut Sink, kind: &str, bytes: &[u8]) -> io::Result<()> {
    match sink.json() {
        true => sink.line(&json::line(kind, json::string(&String::from_utf8_lossy(bytes)))),
        false => sink.bytes(bytes),
    }
}
