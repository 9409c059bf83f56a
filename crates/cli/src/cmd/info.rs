//! `sidestep --info`: would an attach work here, and how well?

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::Context;
use sidestep_engine::fitness::{self, Fact, Verdict};
use sidestep_engine::{Action, Bundle, FuncPattern, Pattern, Request, Session, Target};
use sidestep_symbols::Object;

use crate::flags::script::Script;
use crate::out::json;
use crate::out::sink::Sink;

/// Runs the command. The exit status is 1 if something prevents an attach.
pub fn run(flags: &Script) -> anyhow::Result<ExitCode> {
    let options = flags.engine.options();
    let mut facts = fitness::machine();
    for pid in &flags.target.pid {
        facts.extend(fitness::process(*pid, &options));
    }
    if flags.target.pid.is_empty() {
        facts.push(trial(flags));
    }
    let mut sink = Sink::of(&flags.output)?;
    for fact in &facts {
        sink.line(&if sink.json() { object(fact) } else { line(fact) })?;
    }
    sink.flush()?;
    let prevented = facts.iter().any(|fact| fact.verdict == Verdict::Prevented);
    Ok(if prevented { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fine => "ok",
        Verdict::Limited => "limited",
        Verdict::Prevented => "no",
    }
}

fn line(fact: &Fact) -> String {
    let advice = fact.advice.as_ref().map_or(String::new(), |advice| format!("; {advice}"));
    format!("{:<7}  {:<15}  {}{advice}", word(fact.verdict), fact.name, fact.what)
}

fn object(fact: &Fact) -> String {
    let advice = fact.advice.as_ref().map_or_else(|| "null".to_owned(), |advice| json::string(advice));
    json::line(
        "info",
        json::object([
            ("name", json::string(fact.name)),
            ("verdict", json::string(word(fact.verdict))),
            ("fact", json::string(&fact.what)),
            ("advice", advice),
        ]),
    )
}

/// A process of our own, which waits for a script on its standard input.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What nobody can foresee is tried: a probe in a process of our own.
fn trial(flags: &Script) -> Fact {
    let tried = || -> anyhow::Result<f64> {
        let exe = std::env::current_exe()?;
        let mut command = Command::new(&exe);
        command.arg("-").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = Waiting(command.spawn().with_context(|| format!("cannot start {}", exe.display()))?);
        let (object, func) = (Some(exe.display().to_string()), FuncPattern::Addr(Object::open(&exe, &[])?.entry()));
        let request = Request::new(Pattern { text: "its entry point".to_owned(), object, func }, Action::default());
        let start = Instant::now();
        let target = Target::Pid(child.0.id() as i32);
        let mut session = Session::start(target, &Bundle::default(), &[request], &flags.engine.options(), &mut |_| {})?;
        let took = start.elapsed();
        session.detach()?;
        Ok(took.as_secs_f64() * 1e3)
    };
    let fact = |verdict, what| Fact { name: "trial", verdict, what, advice: None };
    match tried() {
        Ok(took) => fact(Verdict::Fine, format!("a process of this user was probed, and left, in {took:.0} ms")),
        Err(error) => {
            fact(Verdict::Prevented, format!("a process of this user could not be probed: {}", crate::message(&error)))
        }
    }
}
