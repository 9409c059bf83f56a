//! From the attach to the exit status: the part that is the same for all commands that probe.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use sidestep_engine::{
    Bundle, ExitStatus, Missing, Options, Request, Session, SessionError, Stops, Target, TargetState,
};

use super::audit::Audit;
use super::costs::Costs;
use super::losses::Losses;
use super::paths::few_of_many;
use super::{is_unwanted, progress};
use crate::flags::{EngineFlags, Output, TargetFlags, Timing};
use crate::out::processes::by_reason;
use crate::out::sink::Sink;
use crate::out::{number, outlet, refusals};
use crate::signals::{self, Signals};

/// What makes a command out of a session.
pub trait Tool {
    /// Probes are in: print the first line.
    fn heading(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()>;
    /// How long to wait before the next [`Tool::poll`].
    fn period(&self) -> Duration {
        Duration::from_millis(100)
    }
    /// Take and print what must not wait. `Ok(true)`: the user has what was asked for.
    fn poll(&mut self, _session: &mut Session, _sink: &mut Sink) -> io::Result<bool> {
        Ok(false)
    }
    /// The same while nobody reads what was printed before, and nothing is printed.
    fn unread(&mut self, _session: &mut Session) -> io::Result<bool> {
        Ok(false)
    }
    /// An interval is over.
    fn interval(&mut self, _session: &Session, _sink: &mut Sink) -> io::Result<()> {
        Ok(())
    }
    /// What becomes of a request that means nothing.
    fn missing(&self) -> Missing {
        Missing::Usual
    }
    /// Attach points that may be probed at most.
    fn most_probes(&self) -> Option<usize> {
        None
    }
    /// Whether it prints names of addresses.
    fn wants_symbols(&self) -> bool {
        false
    }
    /// If the tool has had enough: it was told so by a hit, after which others came.
    fn ends_at_a_hit(&self) -> bool {
        true
    }

    /// Whether a command that was started is to end, too, once the user has what was asked for.
    fn ends_command(&self) -> bool {
        false
    }
    /// The probes are out: print the rest.
    fn end(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()>;
}

/// When a tool that prints records looks for them again.
#[derive(Default)]
pub struct Pace {
    busy: bool,
}

impl Pace {
    /// More records than this at once: there are more to come, do not wait for them.
    const BUSY: usize = 256;

    /// So many records were there.
    pub fn saw(&mut self, records: usize) {
        self.busy = records > Self::BUSY;
    }

    /// How long to wait.
    pub fn period(&self) -> Duration {
        if self.busy { Duration::ZERO } else { Duration::from_millis(20) }
    }
}

/// The flags that all tools share, and the probes.
pub struct Job<'a> {
    pub target: &'a TargetFlags,
    pub timing: Option<&'a Timing>,
    pub output: &'a Output,
    pub engine: &'a EngineFlags,
    pub bundle: &'a Bundle,
    pub requests: &'a [Request],
}

/// Why the probing ended.
enum End {
    Signal(i32),
    Done,
    Target(TargetState),
    Output(io::Error),
    Audit(anyhow::Error),
}

impl End {
    /// As the log has it.
    fn reason(&self) -> String {
        match self {
            End::Signal(signal) => format!("signal {signal}"),
            End::Done => "done".to_owned(),
            End::Target(TargetState::Executed) => "the process executed another program".to_owned(),
            End::Target(_) => "the process ended".to_owned(),
            End::Output(error) => format!("the results could not be written: {error}"),
            End::Audit(_) => "error".to_owned(),
        }
    }
}

/// How long a command that was told to end may take.
pub const GRACE: Duration = Duration::from_secs(5);

/// How often losses are looked for; counts are sums over all threads, so not at every tick.
const LOSS_PERIOD: Duration = Duration::from_secs(1);

/// How often it is looked whether somebody reads again.
pub const UNREAD_PERIOD: Duration = Duration::from_millis(20);

/// Starts the session, lets the tool print, detaches, and passes on the exit status of a command.
pub fn run(job: &Job, tool: &mut dyn Tool) -> anyhow::Result<ExitCode> {
    let sink = Sink::of(job.output)?;
    run_with(job, tool, sink)
}

/// The same for a tool that has printed something already.
pub fn run_with(job: &Job, tool: &mut dyn Tool, sink: Sink) -> anyhow::Result<ExitCode> {
    let target = job.target.target();
    let is_command = matches!(target, Target::Command(_));
    let signals = Signals::install(is_command)?;
    // From here on, nobody who does not read keeps the target attached.
    outlet::start()?;
    let (missing, follow) = (tool.missing(), job.target.follow);
    let late = follow || missing.is_noted();
    let share_across_users = job.target.share_across_users;
    let protect = &job.target.protect;
    let options = Options {
        symbols: tool.wants_symbols(),
        most_probes: tool.most_probes(),
        missing,
        follow,
        late,
        share_across_users,
        protection: protect.protection(),
        ..job.engine.options()
    };
    let mut audit = Audit::open(protect.audit.as_deref())?;
    let session = {
        let mut line = progress::Line::new(job.output.detail.quiet);
        Session::start(target, job.bundle, job.requests, &options, &mut |progress| line.show(progress))
            .map_err(|error| hint(error, follow))?
    };
    if let Err(error) = audit.look(&session, job.requests) {
        drop(session);
        return Err(error);
    }
    notes(&session, &sink, &options, job.output.detail.verbose);
    let losses = Losses::new(&session, job.bundle);
    let costs = Costs::default();
    let requests = job.requests;
    let lost = Vec::new();
    let mut watch = Watch { session, tool, sink, signals, losses, lost, has_enough: false, costs, audit, requests };

    let mut unwritten = None;
    let end = watch.probing(job.timing).unwrap_or_else(|error| watch.unwritten(error));
    let detached = watch.session.detach();
    watch.audit.because(end.reason());
    let audited = watch.audit.end();
    if job.output.detail.verbose {
        watch.sink.note(&format!("detached: {}", stopped(watch.session.detach_stops())));
    }
    if let Some((first, second)) = watch.session.detach_stops().sharing {
        watch.sink.warn(&format!(
            "threads {first} and {second} share a thread pointer (`clone` without CLONE_SETTLS): what they count may be too low"
        ));
    }
    // A second Ctrl-C, while we were busy: the user does not want to wait for results.
    let mut hurry = outlet::is_wanted().is_err();
    if !hurry && !matches!(end, End::Output(_)) {
        match watch.results(&end) {
            Ok(written) => hurry = !written,
            Err(error) if outlet::is_given_up(&error) => hurry = true,
            Err(error) => unwritten = Some(error),
        }
    }
    watch.losses.total(&watch.sink);
    watch.costs.total(&watch.sink);
    let code = if is_command { watch.command_status(&end, hurry) } else { ExitCode::SUCCESS };

    detached?;
    audited?;
    match unwritten.map_or(end, End::Output) {
        End::Audit(error) => Err(error),
        End::Output(error) if !is_unwanted(&error) => {
            Err(anyhow::Error::new(error).context("cannot write the results"))
        }
        _ => Ok(code),
    }
}

/// What is not there may come.
#[derive(Debug)]
pub struct MayCome(pub SessionError);

impl std::fmt::Display for MayCome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.0, MayCome::HINT)
    }
}

impl std::error::Error for MayCome {}

impl MayCome {
    /// What to do about it.
    pub const HINT: &str = "--follow waits for what is executed or loaded later";
}

fn hint(error: SessionError, follow: bool) -> anyhow::Error {
    if error.may_come() && error.is_unlike() && !follow { MayCome(error).into() } else { error.into() }
}

/// A session at work.
struct Watch<'w> {
    session: Session,
    tool: &'w mut dyn Tool,
    sink: Sink,
    signals: Signals,
    losses: Losses,
    /// What maps had lost when the tool had read its records; nothing before it did.
    lost: Vec<u64>,
    /// The tool has ended the session.
    has_enough: bool,
    costs: Costs,
    audit: Audit,
    requests: &'w [Request],
}

impl Watch<'_> {
    /// Until something ends it.
    fn probing(&mut self, timing: Option<&Timing>) -> io::Result<End> {
        self.tool.heading(&self.session, &mut self.sink)?;
        self.sink.flush()?;
        let start = Instant::now();
        let end = timing.and_then(|timing| timing.duration).map(|duration| start + duration);
        let interval = timing.and_then(|timing| timing.interval);
        let mut next_interval = interval.map(|interval| start + interval);
        let mut next_losses = start + LOSS_PERIOD;
        loop {
            let state = self.session.poll();
            // Records stay where they are until somebody reads those before them.
            let is_read = !outlet::is_full();
            let enough = match is_read {
                true => self.tool.poll(&mut self.session, &mut self.sink)?,
                false => self.tool.unread(&mut self.session)?,
            };
            if is_read {
                self.costs.look(&mut self.session, self.requests, &mut self.sink)?;
            }
            if let Err(error) = self.audit.look(&self.session, self.requests) {
                return Ok(End::Audit(error));
            }
            self.has_enough = enough;
            let enough = enough || self.session.is_spent();
            let now = Instant::now();
            if enough || end.is_some_and(|end| now >= end) {
                return Ok(End::Done);
            }
            if state != TargetState::Running {
                return Ok(End::Target(state));
            }
            if next_interval.is_some_and(|next| now >= next) {
                if is_read {
                    self.tool.interval(&self.session, &mut self.sink)?;
                }
                // From the plan, not from now: intervals do not drift. Those that were slept
                // through are left out.
                while next_interval.is_some_and(|next| now >= next) {
                    next_interval = next_interval.zip(interval).map(|(next, interval)| next + interval);
                }
            }
            if is_read && now >= next_losses {
                self.losses.look(&self.session, &mut self.sink)?;
                next_losses = now + LOSS_PERIOD;
            }
            self.lost = self.losses.of_maps(&self.session);
            self.sink.flush()?;
            let deadline = [end, next_interval].into_iter().flatten().min();
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            let period = if is_read { self.tool.period() } else { UNREAD_PERIOD };
            let period = period.min(self.session.poll_period());
            if let Some(signal) = self.signals.wait_or(left.min(period), self.session.wakes()) {
                return Ok(End::Signal(signal));
            }
        }
    }

    /// Why the results could not be written.
    fn unwritten(&self, error: io::Error) -> End {
        match self.signals.wait(Duration::ZERO) {
            Some(signal) if outlet::is_given_up(&error) => End::Signal(signal),
            _ => End::Output(error),
        }
    }

    /// After the detach: what is still in the rings and maps. False: a signal came before somebody
    /// had read it.
    fn results(&mut self, end: &End) -> io::Result<bool> {
        self.tool.poll(&mut self.session, &mut self.sink)?;
        self.costs.look(&mut self.session, self.requests, &mut self.sink)?;
        self.tool.end(&self.session, &mut self.sink)?;
        if self.has_enough && self.tool.ends_at_a_hit() {
            self.losses.over(&self.session, &self.lost, &self.sink);
        }
        self.losses.look(&self.session, &mut self.sink)?;
        self.losses.unfinished(&self.session, &mut self.sink)?;
        for (which, reason) in by_reason(self.session.unfollowed()) {
            self.sink.warn(&format!("{which} not followed: {reason}"));
        }
        for (which, reason) in by_reason(self.session.unwatched()) {
            self.sink.warn(&format!(
                "{which} given real return addresses back ({reason}); from then on, returns of functions whose exits are not known were not counted"
            ));
        }
        if self.session.probes().is_empty() {
            self.sink.warn("WARNING: nothing of what was asked for was there, in any of the processes");
        }
        self.sink.end()?;
        if !outlet::drain(&self.signals) {
            return Ok(false);
        }
        // It may have failed meanwhile.
        self.sink.end()?;
        let pid = self.session.pid();
        match end {
            End::Target(TargetState::Exited(None)) => self.sink.note(&format!("target exited (process {pid})")),
            End::Target(TargetState::Executed) => self.sink.note(&format!(
                "process {pid} runs another program now (execve); the probes went with the old one; --follow goes along"
            )),
            _ => {}
        }
        Ok(true)
    }

    /// The exit status of a command that we have started; waits for its end. A Ctrl-C in a terminal
    /// reaches the command, too, but a SIGTERM only us, so it is handed on, as is a SIGHUP. A
    /// signal while we wait kills a command that was told to end, and so does the end of the time
    /// that [`Tool::ends_command`] leaves it. Where nobody reads our output any more, as behind
    /// `| head`, the command is told to end, as under bpftrace. Any other command goes on alone.
    fn command_status(&mut self, end: &End, hurry: bool) -> ExitCode {
        // A command that has been waited for has no process id any more.
        let gone = matches!(self.session.poll(), TargetState::Exited(_));
        let is_unread = matches!(end, End::Output(error) if is_unwanted(error));
        let ends = is_unread || matches!(end, End::Done) && self.tool.ends_command();
        let handed_on = match end {
            End::Signal(signal @ (libc::SIGTERM | libc::SIGHUP)) => Some(*signal),
            _ => ends.then_some(libc::SIGTERM),
        };
        if let Some(signal) = handed_on.filter(|_| !gone) {
            signals::send(self.session.pid(), signal);
        }
        let deadline = ends.then(|| Instant::now() + GRACE);
        let mut signal = match end {
            End::Signal(signal) if hurry => Some(*signal),
            _ => None,
        };
        let (mut told, mut killed_at) = (false, None);
        loop {
            match self.session.poll() {
                TargetState::Exited(Some(ExitStatus::Code(code))) => return ExitCode::from(code as u8),
                TargetState::Exited(Some(ExitStatus::Signal(signal))) => {
                    // Nobody is told what they did themselves.
                    if handed_on.is_none() && !matches!(end, End::Signal(_)) {
                        self.sink.note(&format!("the command was killed by {}", sidestep_lang::signals::name(signal)));
                    }
                    return killed(signal);
                }
                TargetState::Exited(None) => return ExitCode::SUCCESS,
                // What `execve` put in its place is the command still, but nothing that the session
                // looks at.
                TargetState::Running | TargetState::Executed => {}
            }
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let interrupts = sidestep_engine::interrupts();
            if handed_on.is_some() && (signal.is_some() || late) && killed_at.is_none() {
                // It ends for certain now, and says what its status is.
                signals::send(self.session.pid(), libc::SIGKILL);
                killed_at = Some(interrupts);
            } else if let Some(signal) = signal.filter(|_| killed_at != Some(interrupts)) {
                // One that came before the end of the detach was counted then, and is read here.
                return killed(signal);
            }
            if matches!(end, End::Done) && !told && !ends {
                self.sink.note("the probes are out; waiting for the command to end");
                told = true;
            }
            signal = self.signals.wait(Duration::from_millis(100));
        }
    }
}

/// As a shell has it.
pub fn killed(signal: i32) -> ExitCode {
    ExitCode::from((128 + signal) as u8)
}

/// What the user should know about the attach.
fn notes(session: &Session, sink: &Sink, options: &Options, verbose: bool) {
    for (pattern, reason) in session.awaited() {
        sink.warn(&format!("WARNING: No matches for {pattern} yet: {reason}; waiting for what is executed or loaded"));
    }
    for (pid, remains) in session.remains() {
        sink.warn(&format!("WARNING: in process {pid}, {remains}"));
    }
    few_of_many(session.nameless()).iter().for_each(|note| sink.note(note));
    if !verbose {
        refusals::summary(session.refused()).into_iter().for_each(|line| sink.note(&line));
        return;
    }
    session.refused().iter().for_each(|refused| sink.note(&refusals::line(refused)));
    if let Some(reason) = session.hides_originals() {
        sink.note(&format!("if a displaced instruction faults, the address of the fault is not its own: {reason}"));
    }
    for (object, reason) in session.without_frames() {
        sink.note(&format!("stacks go through {} by frame pointers alone: {reason}", object.display()));
    }
    if options.interprets() && !options.interpret {
        sink.note("handlers are interpreted, except those that only count: there is no native code for these programs");
    }
    let mut techniques: Vec<(String, usize)> = Vec::new();
    for probe in session.probes() {
        let name = probe.technique.to_string();
        match techniques.iter_mut().find(|known| known.0 == name) {
            Some(known) => known.1 += 1,
            None => techniques.push((name, 1)),
        }
    }
    let techniques: Vec<_> = techniques.into_iter().map(|(name, count)| format!("{count} by {name}")).collect();
    let stats = session.stats();
    sink.note(&format!(
        "{} in process {}: {}; planned in {:.1} ms, {}, {} bytes of code",
        number::of(session.probes().len(), "probe"),
        session.pid(),
        techniques.join(", "),
        stats.planning.as_secs_f64() * 1e3,
        stopped(&stats.stops),
        stats.code_bytes
    ));
}

/// How a target stood still.
fn stopped(stops: &Stops) -> String {
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let mut text = format!("threads stopped {}", number::times(stops.pauses.len()));
    if let Some(longest) = stops.longest() {
        text += &format!(" for at most {:.2} ms ({})", millis(longest.time), longest.purpose);
    }
    if stops.live > 0 {
        let (sites, alone) = (number::of(stops.live, "site"), millis(stops.alone));
        text += &format!(", {sites} written while they ran, each stopped alone for at most {alone:.2} ms");
    }
    text
}
