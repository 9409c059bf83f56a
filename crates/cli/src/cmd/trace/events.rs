//! What the kernel's event records can hold: arguments, registers, the return value; and lines of
//! `uprobe_events`.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use sidestep_engine::{Action, Bundle, BundleMap, Cookie, FuncPattern, Pattern, Record, Request, Session};
use sidestep_isa::FileOff;
use sidestep_lang::uprobe_events::{self, Event, Filter, Kind, Options, ParseError, RecordFormat};

use super::rows::{Hit, Rows};
use crate::cmd::explain;
use crate::cmd::funccount::attached;
use crate::cmd::tools;
use crate::cmd::watch::{self, Job, Pace, Tool};
use crate::flags::format::Value;
use crate::flags::spec::Spec;
use crate::flags::{Timing, Trace};
use crate::out::sink::Sink;
use crate::out::{escape, json, label};

/// Runs the command for SPECs of which each is one.
pub fn run(flags: &Trace) -> anyhow::Result<ExitCode> {
    let sources: Vec<Source> = flags.specs.iter().map(|text| Source::parse(text)).collect();
    let probes = sources.iter().map(|source| source.probe(flags.filter.as_deref())).collect::<Vec<_>>();
    let mut bundle = Bundle::default();
    let (mut requests, mut formats) = (Vec::new(), Vec::new());
    for (source, compiled) in sources.iter().zip(uprobe_events::compile(&probes, &Options::default())?) {
        if bundle.maps.is_empty() {
            // All programs write to one ring.
            bundle.maps = compiled.maps.into_iter().map(|map| BundleMap { map, per_probe: false }).collect();
        }
        let program = Some(bundle.add(source.event.name.as_str(), &compiled.program)?);
        let (entry, exit) = if source.event.kind == Kind::Return { (None, program) } else { (program, None) };
        let post = source.spec.as_ref().is_some_and(Spec::is_post);
        let maxactive = source.event.maxactive;
        let action = Action { entry, exit, post, maxactive, cookie: Cookie::default() };
        requests.push(Request::new(source.pattern.clone(), action));
        formats.push(compiled.format);
    }
    let target = &flags.run.target;
    tools::need_target("trace", target);
    let timing = Timing { interval: None, duration: flags.run.duration, timestamp: false };
    let job = Job {
        target,
        timing: Some(&timing),
        output: &flags.output,
        engine: &flags.run.engine,
        bundle: &bundle,
        requests: &requests,
    };
    if flags.run.dry_run {
        return explain::dry_run(&job);
    }
    let plain = sources.iter().all(|source| source.spec.as_ref().is_none_or(Spec::is_plain));
    let (rows, left) = (Rows::new(flags, plain), flags.max_events.unwrap_or(u64::MAX));
    let mut tool = Tracer { sources, formats, labels: Vec::new(), places: 0, rows, left, pace: Pace::default() };
    watch::run(&job, &mut tool)
}

/// One SPEC.
struct Source {
    pattern: Pattern,
    event: Event,
    /// What it prints; `None`: what the kernel would print for the event.
    spec: Option<Spec>,
}

impl Source {
    fn parse(text: &str) -> Source {
        if is_line(text) {
            let event = Event::parse(text).unwrap_or_else(|error| refuse(&error, text));
            let (object, func) = (Some(event.path.clone()), FuncPattern::FileOffset(FileOff(event.offset)));
            let pattern = Pattern { text: format!("{}:{:#x}", event.path, event.offset), object, func };
            return Source { pattern, event, spec: None };
        }
        let spec =
            Spec::parse(text).unwrap_or_else(|message| tools::usage("trace", ErrorKind::ValueValidation, &message));
        Source { pattern: spec.pattern.clone(), event: spec.event(), spec: Some(spec) }
    }

    fn probe(&self, filter: Option<&str>) -> uprobe_events::Probe {
        let parse = |text| Filter::parse(text, &self.event).unwrap_or_else(|error| refuse(&error, text));
        uprobe_events::Probe { event: self.event.clone(), filter: filter.map(parse) }
    }
}

/// `p`, `r` or `-`, perhaps with a name, and then a file: the kernel's grammar, not bcc's, which
/// has parentheses and quotes there.
pub fn is_line(text: &str) -> bool {
    let mut words = text.split_ascii_whitespace();
    let (Some(first), Some(second)) = (words.next(), words.next()) else { return text.starts_with("-:") };
    let kind = first.split(':').next().unwrap_or_default();
    let limit = kind.strip_prefix(['p', 'r']);
    let is_kind = limit.is_some_and(|n| n.is_empty() || n.starts_with(|c: char| c.is_ascii_digit()));
    is_kind && !first.contains('(') && !second.starts_with(['"', '('])
}

/// As the kernel's `error_log` has it: what is wrong, and where.
fn refuse(error: &ParseError, text: &str) -> ! {
    let message = error.render(text);
    tools::usage("trace", ErrorKind::ValueValidation, message.trim_start_matches("error: ").trim_end())
}

struct Tracer {
    sources: Vec<Source>,
    formats: Vec<RecordFormat>,
    /// Names of the probes of each source: process, address, name.
    labels: Vec<Vec<(i32, u64, String)>>,
    /// How many sites these are.
    places: usize,
    rows: Rows,
    /// Hits of lines of `uprobe_events` that are still printed.
    left: u64,
    pace: Pace,
}

impl Tracer {
    /// Probes may come later: in other processes, in libraries.
    fn look(&mut self, session: &Session) {
        let places = session.places();
        if self.places == places.len() && !self.labels.is_empty() {
            return;
        }
        self.places = places.len();
        let labels = label::labels(session.probes());
        self.labels = vec![Vec::new(); self.sources.len()];
        for (pid, va, id) in places {
            self.labels[session.probes()[id].request].push((pid, va.0, labels[id].clone()));
        }
    }

    fn print(&mut self, record: &Record, session: &Session, sink: &mut Sink) -> io::Result<()> {
        let number = uprobe_events::event_number(&record.bytes).and_then(|number| usize::try_from(number).ok());
        let Some((number, format)) = number.and_then(|number| Some((number, self.formats.get(number)?.clone()))) else {
            return Ok(());
        };
        let (Ok(header), Ok(text)) = (format.header(&record.bytes), format.render(&record.bytes)) else {
            return Ok(());
        };
        let comm = escape::row_of(&header.comm);
        let site = if self.sources[number].event.kind == Kind::Return { header.func } else { header.ip };
        let values: Vec<uprobe_events::Value> =
            (0..format.fields().len()).filter_map(|i| format.value(&record.bytes, i).ok().flatten()).collect();
        let pid = session.pid_of(record);
        let name = self.label(number, pid, site);
        let Some(spec) = &self.sources[number].spec else {
            if self.left == 0 {
                return Ok(());
            }
            self.left -= 1;
            if sink.json() {
                return sink.line(&event_json(record, pid, &comm, &format, &values));
            }
            let seconds = record.time_ns as f64 / 1e9;
            return sink.line(&format!(
                "{comm:>16}-{:<7} {seconds:>12.6}: {}",
                header.tid,
                escape::row_of(text.as_bytes())
            ));
        };
        let plain: Vec<Value> = values.iter().map(plain).collect();
        let message = spec.message(&plain);
        let hit = Hit {
            nsecs: record.time_ns,
            cpu: None,
            pid,
            tid: i32::try_from(header.tid).unwrap_or_default(),
            comm: &comm,
            func: &name,
            args: if sink.json() { values.iter().map(value_json).collect() } else { Vec::new() },
            message,
            stack: Vec::new(),
        };
        sink.text(&self.rows.show(&hit, sink.json()))
    }

    /// What the function at an address is called: in this process, or else, as a child has its
    /// parent's, in any.
    fn label(&self, source: usize, pid: i32, site: u64) -> String {
        let labels = self.labels.get(source).map_or(&[][..], Vec::as_slice);
        let here = labels.iter().find(|(of, va, _)| (*of, *va) == (pid, site));
        let found = here.or_else(|| labels.iter().find(|(_, va, _)| *va == site)).or(labels.first());
        found.map_or_else(|| format!("{site:#x}"), |(.., name)| name.clone())
    }
}

fn plain(value: &uprobe_events::Value) -> Value {
    match value {
        uprobe_events::Value::Unsigned(value) => Value::Int(*value),
        uprobe_events::Value::Signed(value) => Value::Int(*value as u64),
        uprobe_events::Value::Bytes(bytes) => Value::Str(bytes.clone()),
        uprobe_events::Value::Array(_) | uprobe_events::Value::Fault => Value::Fault,
    }
}

fn value_json(value: &uprobe_events::Value) -> String {
    match value {
        uprobe_events::Value::Unsigned(value) => json::number(*value),
        uprobe_events::Value::Signed(value) => value.to_string(),
        uprobe_events::Value::Bytes(bytes) => json::string(&String::from_utf8_lossy(bytes)),
        uprobe_events::Value::Array(elements) => json::array(elements.iter().map(value_json)),
        uprobe_events::Value::Fault => "null".to_owned(),
    }
}

fn event_json(record: &Record, pid: i32, comm: &str, format: &RecordFormat, values: &[uprobe_events::Value]) -> String {
    let fields = format.fields().iter().zip(values).map(|(field, value)| (field.name.as_str(), value_json(value)));
    json::line(
        "event",
        json::object([
            ("name", json::string(format.name())),
            ("nsecs", json::number(record.time_ns)),
            ("pid", pid.to_string()),
            ("tid", record.tid.to_string()),
            ("comm", json::string(comm)),
            ("fields", json::object(fields)),
        ]),
    )
}

impl Tool for Tracer {
    fn heading(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.look(session);
        if sink.json() {
            return attached(session.probes().len(), sink);
        }
        if self.sources.iter().all(|source| source.spec.is_none()) {
            return sink.heading(&format!("{:>16}-{:<7} {:>12}  FUNCTION", "TASK", "TID", "TIMESTAMP"));
        }
        sink.heading(&self.rows.heading())
    }

    fn period(&self) -> Duration {
        self.pace.period()
    }

    fn poll(&mut self, session: &mut Session, sink: &mut Sink) -> io::Result<bool> {
        self.look(session);
        let records = session.records();
        self.pace.saw(records.len());
        for record in &records {
            self.print(record, session, sink)?;
        }
        Ok(self.left == 0 || self.rows.is_done())
    }

    fn end(&mut self, _session: &Session, sink: &mut Sink) -> io::Result<()> {
        sink.text(&self.rows.end(sink.json()))
    }
}
