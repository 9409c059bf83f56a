//! `--kernel`: the same object in the kernel, by its uprobes.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::error::ErrorKind;
use sidestep_bpf::Insn;
use sidestep_bpf::map::MapKind;
use sidestep_bpf::object::ObjectProgram;
use sidestep_engine::kernel_bpf::{
    self as kernel, LoadError, Map, MapSpec, MultiSite, PerfBuffer, PerfRecord, Probe, Program, ProgramKind,
    ProgramSpec, RingBuffer, Site, Update, possible_cpus,
};
use sidestep_engine::{Arguments, Cookie, Entry, Files, Place, Request, Value};

use super::load::Loaded;
use super::print::Printer;
use crate::cmd::funccount::timestamp;
use crate::cmd::{is_unwanted, usage};
use crate::flags::Bpf;
use crate::out::sink::Sink;
use crate::out::{number, outlet};
use crate::signals::Signals;

/// `trace_printk`.
const TRACE_PRINTK: u32 = 6;
/// Pages of a CPU's buffer for `perf_event_output`.
const PERF_PAGES: usize = 64;
/// How often rings are looked at.
const PERIOD: Duration = Duration::from_millis(20);

/// The process that was asked for, or a usage error: the kernel cannot hold back a command until
/// its libraries are there.
pub fn target(flags: &Bpf) -> i32 {
    match *flags.target.pid {
        [pid] => pid,
        [] => usage(
            ErrorKind::MissingRequiredArgument,
            "--kernel needs a running process: give -p PID instead of a command",
        ),
        _ => usage(ErrorKind::TooManyValues, "--kernel takes one process: give one -p PID"),
    }
}

/// Runs the command.
pub fn run(flags: &Bpf, pid: i32, loaded: &Loaded, printer: &Printer<'_>) -> anyhow::Result<ExitCode> {
    let mut files = Files::open(pid, &flags.engine.options())?;
    kernel::permitted().map_err(said)?;
    let signals = Signals::install(false)?;
    outlet::start()?;
    let mut sink = Sink::of(&flags.output)?;
    let maps: Vec<Map> = loaded.object.maps.iter().map(|m| create(&m.map)).collect::<Result<_, _>>().map_err(said)?;
    let mut rings = rings(&maps).map_err(said)?;
    let probes = attach_all(loaded, pid, &maps, &mut files, &sink, flags.output.detail.verbose)?;
    if loaded.object.programs.iter().any(prints) {
        sink.note("lines of trace_printk go to the kernel: see /sys/kernel/tracing/trace_pipe");
    }
    let mut run = Run { flags, printer, maps: &maps, rings: &mut rings, sink: &mut sink };
    let sites = probes.iter().map(|(_, sites)| sites).sum();
    let result = super::heading(loaded, sites, " in the kernel", run.sink)
        .and_then(|()| run.probing(&files, &signals))
        .and_then(|end| {
            drop(probes);
            run.end(end, pid)?;
            outlet::drain(&signals);
            run.sink.end()
        });
    match result {
        Err(error) if !is_unwanted(&error) => Err(anyhow::Error::new(error).context("cannot write the results")),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// An error whose text already says what it came from.
fn said(error: impl std::error::Error) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

fn create(map: &sidestep_bpf::map::Map) -> Result<Map, kernel::MapError> {
    Map::create(&MapSpec {
        name: &map.name,
        kind: map.kind.number(),
        key_size: map.key_size,
        value_size: map.value_size,
        max_entries: map.max_entries,
        flags: map.flags,
        initial: &map.initial,
        readonly: map.readonly,
    })
}

fn prints(program: &ObjectProgram) -> bool {
    program.program.iter().any(|insn| matches!(insn, Ok((_, Insn::CallHelper(TRACE_PRINTK)))))
}

/// Attached probes of all programs, with how many places each is at.
fn attach_all(
    loaded: &Loaded,
    pid: i32,
    maps: &[Map],
    files: &mut Files,
    sink: &Sink,
    verbose: bool,
) -> anyhow::Result<Vec<(Vec<Probe>, usize)>> {
    let mut arguments: Vec<Option<Arguments>> = maps.iter().map(|_| None).collect();
    let mut refused = Vec::new();
    let mut all = Vec::new();
    for request in &loaded.requests {
        let index = request.action.entry.or(request.action.exit).and_then(|number| loaded.chosen.get(number));
        let Some(program) = index.and_then(|index| loaded.object.programs.get(*index)) else { continue };
        let mut sites = Vec::new();
        for place in files.places(&request.pattern)? {
            let mut cookie = |place: &Place| cookie(request.action.cookie, place, maps, &mut arguments);
            match place.and_then(|place| Ok((cookie(&place)?, place))) {
                Ok(site) => sites.push(site),
                Err(reason) => refused.push(reason),
            }
        }
        let at = Attach { loaded, program, request, pid, maps };
        let count = sites.len();
        if count > 0 {
            all.push((at.attach(&sites)?, count));
        }
    }
    match refused.first() {
        Some(reason) if all.is_empty() => bail!("nothing can be probed: {reason}"),
        Some(_) if verbose => refused.iter().for_each(|reason| sink.note(&format!("cannot be probed: {reason}"))),
        Some(_) => {
            sink.note(&format!("{} cannot be probed; -v says which and why", number::of(refused.len(), "place")))
        }
        None => {}
    }
    Ok(all)
}

/// The cookie of a place; arguments of USDT probes are in their map afterwards.
fn cookie(cookie: Cookie, place: &Place, maps: &[Map], all: &mut [Option<Arguments>]) -> Result<u64, String> {
    let index = match cookie {
        Cookie::Value(value) => return Ok(value),
        Cookie::PerProbe | Cookie::Named => return Ok(0),
        Cookie::Arguments(map) => map,
    };
    let refused = |reason: String| format!("{}: {reason}", place.name);
    let (Some(probe), Some(map)) = (&place.usdt, maps.get(index)) else {
        return Err(refused("it is no USDT probe".to_owned()));
    };
    let new = || Arguments::new(map.value_size() as u32, map.max_entries() as u32);
    let arguments = all[index].get_or_insert_with(new);
    let key = arguments.key(probe).map_err(refused)?;
    let written = map.update(&key.to_ne_bytes(), &arguments.specs()[key as usize], Update::Any);
    written.map_err(|error| refused(error.to_string()))?;
    Ok(key.into())
}

/// A program that is to be attached.
struct Attach<'a> {
    loaded: &'a Loaded,
    program: &'a ObjectProgram,
    request: &'a Request,
    pid: i32,
    maps: &'a [Map],
}

impl Attach<'_> {
    fn attach(&self, sites: &[(u64, Place)]) -> anyhow::Result<Vec<Probe>> {
        if self.request.action.post {
            bail!(
                "program {} is in section {}: the kernel's uprobes run nothing behind an instruction; leave out --kernel",
                self.program.name,
                self.program.section
            );
        }
        let on_return = match (self.request.action.entry, self.request.action.exit) {
            (Some(_), Some(_)) => bail!(
                "program {} is in section {}: sessions run in the process only; leave out --kernel",
                self.program.name,
                self.program.section
            ),
            (_, exit) => exit.is_some(),
        };
        // Many at once is much faster, but not in all kernels.
        if sites.len() > 1 && sites.iter().all(|(_, place)| place.semaphore.is_none()) {
            if let Ok(probes) = self.attach_many(sites, on_return) {
                return Ok(probes);
            }
        }
        let program = self.load(ProgramKind::Probe)?;
        let one = |(cookie, place): &(u64, Place)| {
            let site = Site {
                path: &place.file,
                offset: place.offset.0,
                counter: place.semaphore.map_or(Ok(0), |at| u32::try_from(at.0))?,
                on_return,
                pid: Some(self.pid),
                cookie: *cookie,
            };
            kernel::attach(&program, &site).map_err(said)
        };
        sites.iter().map(one).collect()
    }

    fn attach_many(&self, sites: &[(u64, Place)], on_return: bool) -> anyhow::Result<Vec<Probe>> {
        let program = self.load(ProgramKind::ProbeMulti)?;
        let files = sites.chunk_by(|(_, a), (_, b)| a.file == b.file);
        let one = |sites: &[(u64, Place)]| {
            let places: Vec<_> = sites.iter().map(|(cookie, place)| (place.offset.0, *cookie)).collect();
            let path = &sites[0].1.file;
            Ok(kernel::attach_multi(&program, &MultiSite { path, places: &places, on_return, pid: Some(self.pid) })?)
        };
        files.map(one).collect()
    }

    fn load(&self, kind: ProgramKind) -> anyhow::Result<Program> {
        let slots = &self.program.program.slots;
        let mut code: Vec<u64> = slots.iter().map(|slot| u64::from_le_bytes(slot.to_bytes())).collect();
        kernel::resolve_maps(&mut code, &self.maps.iter().collect::<Vec<_>>())?;
        let license = &self.loaded.object.license;
        let loaded = Program::load(&ProgramSpec { name: &self.program.name, kind, code: &code, license });
        loaded.map_err(|error| match (&error, error.reason()) {
            (LoadError::Refused { source, .. }, reason) if !reason.is_empty() => {
                let (name, reason) = (&self.program.name, reason.join("; "));
                anyhow::anyhow!("the kernel refuses program {name}: {source}; its verifier says: {reason}")
            }
            _ => said(error),
        })
    }
}

/// A map from which records come.
enum Ring<'a> {
    One(RingBuffer<'a>),
    PerCpu(PerfBuffer<'a>, u64),
}

/// The rings among the maps, by index.
fn rings(maps: &[Map]) -> Result<Vec<(usize, Ring<'_>)>, kernel::RingError> {
    let open = |(index, map)| match MapKind::from_number(Map::kind(map)) {
        Some(MapKind::Ringbuf) => Some(RingBuffer::new(map).map(|ring| (index, Ring::One(ring)))),
        Some(MapKind::PerfEventArray) => {
            Some(PerfBuffer::new(map, PERF_PAGES).map(|buffer| (index, Ring::PerCpu(buffer, 0))))
        }
        _ => None,
    };
    maps.iter().enumerate().filter_map(open).collect()
}

/// Why it ends.
#[derive(PartialEq, Eq)]
enum End {
    Wanted,
    TargetGone,
}

/// Programs at work in the kernel.
struct Run<'r, 'm> {
    flags: &'r Bpf,
    printer: &'r Printer<'r>,
    maps: &'m [Map],
    rings: &'r mut Vec<(usize, Ring<'m>)>,
    sink: &'r mut Sink,
}

impl Run<'_, '_> {
    /// Until a signal, the end of the time, or of the process.
    fn probing(&mut self, files: &Files, signals: &Signals) -> io::Result<End> {
        self.sink.flush()?;
        let timing = &self.flags.timing;
        let start = Instant::now();
        let end = timing.duration.map(|duration| start + duration);
        let mut next = timing.interval.map(|interval| start + interval);
        loop {
            let alive = files.is_alive();
            let is_read = !outlet::is_full();
            if is_read {
                self.records()?;
            }
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Ok(End::Wanted);
            }
            if !alive {
                return Ok(End::TargetGone);
            }
            if next.is_some_and(|next| now >= next) {
                if is_read {
                    self.print_maps()?;
                }
                while next.is_some_and(|next| now >= next) {
                    next = next.zip(timing.interval).map(|(next, interval)| next + interval);
                }
            }
            self.sink.flush()?;
            let left = end.into_iter().chain(next).map(|at| at.saturating_duration_since(Instant::now())).min();
            if signals.wait(left.map_or(PERIOD, |left| left.min(PERIOD))).is_some() {
                return Ok(End::Wanted);
            }
        }
    }

    /// The probes are out: the rest.
    fn end(&mut self, end: End, pid: i32) -> io::Result<()> {
        self.records()?;
        self.print_maps()?;
        self.sink.flush()?;
        self.sink.progress("Detaching...");
        for (index, ring) in self.rings.iter() {
            if let Ring::PerCpu(_, lost @ 1..) = ring {
                self.sink.warn(&format!("Total lost event count: {lost} of {}", self.maps[*index].name()));
            }
        }
        if end == End::TargetGone {
            self.sink.note(&format!("target exited (process {pid})"));
        }
        Ok(())
    }

    fn records(&mut self) -> io::Result<()> {
        for (index, ring) in self.rings.iter_mut() {
            let (index, printer) = (*index, self.printer);
            let mut lines = Vec::new();
            let read = match ring {
                Ring::One(ring) => ring.read(|bytes| lines.push(printer.kernel_record(index, None, bytes))),
                Ring::PerCpu(buffer, lost) => buffer.read(|record| match record {
                    PerfRecord::Data { cpu, bytes } => lines.push(printer.kernel_record(index, Some(cpu), bytes)),
                    PerfRecord::Lost { count, .. } => *lost += count,
                }),
            };
            read.map_err(io::Error::other)?;
            for line in lines {
                self.sink.text(&format!("{line}\n"))?;
            }
        }
        Ok(())
    }

    fn print_maps(&mut self) -> io::Result<()> {
        timestamp(self.flags.timing.timestamp, self.sink)?;
        for index in self.printer.shown() {
            let entries = entries(&self.maps[index]).map_err(io::Error::other)?;
            for line in self.printer.map(index, &entries) {
                self.sink.line(&line)?;
            }
        }
        Ok(())
    }
}

/// The entries of a map, the values of CPUs apart.
fn entries(map: &Map) -> Result<Vec<Entry>, kernel::MapError> {
    let cpus = possible_cpus()?;
    let per_cpu = MapKind::from_number(map.kind())
        .is_some_and(|kind| matches!(kind, MapKind::PercpuArray | MapKind::PercpuHash | MapKind::LruPercpuHash));
    let entry = |(key, value): (Vec<u8>, Vec<u8>)| {
        let value = match per_cpu {
            true => {
                Value::PerThread(cpus.iter().copied().zip(value.chunks(map.value_size()).map(<[u8]>::to_vec)).collect())
            }
            false => Value::One(value),
        };
        Entry { key, value }
    };
    Ok(map.entries()?.into_iter().map(entry).collect())
}
