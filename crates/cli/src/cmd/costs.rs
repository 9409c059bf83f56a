//! What is said of probes that cost too much, or had all the hits that they may have.

use std::io;

use sidestep_engine::{Disabled, Event, FuncPattern, Probe, Request, Session};

use crate::out::sink::Sink;
use crate::out::{json, time};

/// Probes that one line names at most.
const NAMED: usize = 5;

/// What has been said so far.
#[derive(Default)]
pub struct Costs {
    /// Names of probes that were disabled.
    disabled: Vec<String>,
}

impl Costs {
    /// Says what is new, one line each.
    pub fn look(&mut self, session: &mut Session, requests: &[Request], sink: &mut Sink) -> io::Result<()> {
        let events = session.take_events();
        let name = |id: &usize| session.probes().get(*id).map(|probe| name(probe, requests)).unwrap_or_default();
        for event in events {
            match event {
                Event::Disabled(ids, why) => {
                    let names: Vec<String> = ids.iter().map(name).collect();
                    sink.warn(&format!("sidestep: disabled {}: {}", listed(&names), clause(&why, &time::now())));
                    if sink.json() {
                        sink.line(&line("disabled_probes", members(&names, &why)))?;
                    }
                    self.disabled.extend(names);
                }
                Event::Kept(ids, why, reason) => {
                    let names: Vec<String> = ids.iter().map(name).collect();
                    let clause = clause(&why, &time::now());
                    sink.warn(&format!("sidestep: cannot disable {}: {reason}: {clause}", listed(&names)));
                    if sink.json() {
                        let reason = ("reason", json::string(&reason));
                        let members = members(&names, &why).into_iter().chain([reason]).collect();
                        sink.line(&line("kept_probes", members))?;
                    }
                }
                Event::Costly { share, hottest, of_hottest } => {
                    let (name, all, one) = (name(&hottest), percent(share), percent(of_hottest));
                    sink.note(&format!(
                        "WARNING: the probes take {all} of the target's CPU time ({name} {one}); --max-overhead limits that"
                    ));
                    if sink.json() {
                        let share = ("share", ratio(share));
                        let hottest = [("probe", json::string(&name)), ("share", ratio(of_hottest))];
                        sink.line(&line("overhead", vec![share, ("hottest", json::object(hottest))]))?;
                    }
                }
                Event::Measured(handlers, trap) => {
                    let text = |(request, cost): &(usize, f64)| {
                        let request = requests.get(*request);
                        format!("{cost:.1} ns at {}", request.map_or("?", |request| request.pattern.text.as_str()))
                    };
                    let handlers: Vec<String> = handlers.iter().map(text).collect();
                    sink.detail(&format!("a hit costs about {}; as a trap {trap:.0} ns more", listed(&handlers)));
                }
                Event::Unmeasured(reason) => {
                    sink.detail(&format!("what a hit costs could not be measured: {reason}"));
                }
            }
        }
        Ok(())
    }

    /// Says at the end whose results are not whole.
    pub fn total(&self, sink: &Sink) {
        let (count, names) = (self.disabled.len(), listed(&self.disabled));
        match count {
            0 => {}
            1 => sink.warn(&format!("1 probe was disabled before the end, and saw nothing from then on: {names}")),
            _ => sink
                .warn(&format!("{count} probes were disabled before the end, and saw nothing from then on: {names}")),
        }
    }
}

/// `u:server:handle`, as a script has it.
pub fn name(probe: &Probe, requests: &[Request]) -> String {
    let request = requests.get(probe.request);
    let kind = match request.map(|request| (&request.pattern.func, request.action.exit)) {
        Some((FuncPattern::Usdt(..), _)) => "usdt",
        Some((_, Some(_))) => "ur",
        _ => "u",
    };
    let object = probe.object.file_name().unwrap_or_default().to_string_lossy();
    format!("{kind}:{object}:{}", probe.name)
}

fn listed(names: &[String]) -> String {
    let text = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > NAMED { format!("{text} and {} more", names.len() - NAMED) } else { text }
}

fn clause(why: &Disabled, now: &str) -> String {
    match why {
        Disabled::Overhead { share, limit } => {
            format!("{} of the target's CPU time at {now} (limit {}, --max-overhead)", percent(*share), percent(*limit))
        }
        Disabled::Hits { hits, limit } => format!("{hits} hits at {now} (limit {limit}, --max-hits)"),
    }
}

fn members(names: &[String], why: &Disabled) -> Vec<(&'static str, String)> {
    let mut members = vec![
        ("probes", json::array(names.iter().map(|name| json::string(name)))),
        ("time", json::string(&time::now())),
    ];
    members.extend(match why {
        Disabled::Overhead { share, limit } => {
            [("cause", json::string("overhead")), ("share", ratio(*share)), ("limit", ratio(*limit))]
        }
        Disabled::Hits { hits, limit } => {
            [("cause", json::string("hits")), ("hits", json::number(*hits)), ("limit", json::number(*limit))]
        }
    });
    members
}

fn line(kind: &str, members: Vec<(&'static str, String)>) -> String {
    json::line(kind, json::object(members))
}

/// As JSON has it; 1 is all.
fn ratio(share: f64) -> String {
    format!("{share:.4}")
}

/// With as many digits as mean something.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let text = match percent {
        10.0.. => format!("{percent:.0}"),
        1.0.. => format!("{percent:.1}"),
        _ => format!("{percent:.2}"),
    };
    // A limit of 2 % is not 2.0 %.
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_the_digits_that_mean_something() {
        for (share, text) in [(0.834, "83 %"), (0.0213, "2.1 %"), (0.02, "2 %"), (0.00512, "0.51 %"), (1.0, "100 %")] {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn what_was_disabled_is_one_line() {
        let why = Disabled::Overhead { share: 0.83, limit: 0.02 };
        assert_eq!(clause(&why, "10:12:03"), "83 % of the target's CPU time at 10:12:03 (limit 2 %, --max-overhead)");
        let why = Disabled::Hits { hits: 1003, limit: 1000 };
        assert_eq!(clause(&why, "10:12:03"), "1003 hits at 10:12:03 (limit 1000, --max-hits)");
        let names: Vec<String> = (0..7).map(|n| format!("u:app:f{n}")).collect();
        assert_eq!(listed(&names[..1]), "u:app:f0");
        assert!(listed(&names).ends_with("u:app:f4 and 2 more"));
    }
}
