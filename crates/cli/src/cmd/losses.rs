//! Hits that were missed, records that were lost, entries that did not fit: said as they appear,
//! and in total at the end.

use std::io;

use sidestep_bpf::map::{Map, MapKind};
use sidestep_engine::{Bundle, Counts, Maps, Session};

use crate::out::json;
use crate::out::label;
use crate::out::number;
use crate::out::sink::Sink;

/// A way to lose something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Events,
    Hits,
    Entries,
}

/// What is lost of a ring: a tool's own ring has no other name.
fn events_of(name: &str) -> String {
    if name == "events" { name.to_owned() } else { format!("events of {name}") }
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Events, Kind::Hits, Kind::Entries];

    /// `Lost 3 events`, with the first word of the name's clause.
    fn new_ones(self, count: u64, name: &str) -> String {
        match self {
            Kind::Events => format!("Lost {count} {}", events_of(name)),
            Kind::Hits => format!("Missed {} of {name}", number::of(count as usize, "hit")),
            Kind::Entries => format!(
                "WARNING: Map full; can't update element. {name} has dropped {count}. More keys: config max_map_keys, or let {name} = hash(N)"
            ),
        }
    }

    fn total(self) -> &'static str {
        match self {
            Kind::Events => "Total lost event count",
            Kind::Hits => "Total missed hit count",
            Kind::Entries => "Total dropped entry count",
        }
    }

    /// In JSON; the first is bpftrace's.
    fn json(self) -> &'static str {
        match self {
            Kind::Events => "lost_events",
            Kind::Hits => "missed_hits",
            Kind::Entries => "dropped_entries",
        }
    }
}

/// Something that loses, and how much it had lost when it was said last.
struct Loser {
    kind: Kind,
    name: String,
    said: u64,
    /// What it lost at the end or after it, which nobody misses.
    after_end: u64,
}

impl Loser {
    fn new(kind: Kind, name: String) -> Loser {
        Loser { kind, name, said: 0, after_end: 0 }
    }
}

/// What has been said so far.
pub struct Losses {
    /// A probe each, then a map each, and the lines of `trace_printk`.
    losers: Vec<Loser>,
    probes: usize,
    maps: usize,
}

impl Losses {
    /// Nothing has been lost yet.
    pub fn new(session: &Session, bundle: &Bundle) -> Losses {
        let probes = label::labels(session.probes()).into_iter().map(|label| Loser::new(Kind::Hits, label));
        let maps = bundle.maps.iter().map(|m| Loser::new(of_map(&m.map), m.map.name.clone()));
        let lines = std::iter::once(Loser::new(Kind::Events, "trace_printk".to_owned()));
        let (count, of_maps) = (session.probes().len(), bundle.maps.len());
        Losses { losers: probes.chain(maps).chain(lines).collect(), probes: count, maps: of_maps }
    }

    /// The same without a target.
    pub fn local(bundle: &Bundle) -> Losses {
        let losers = bundle.maps.iter().map(|m| Loser::new(Kind::Entries, m.map.name.clone()));
        let losers: Vec<Loser> = losers.collect();
        Losses { maps: losers.len(), losers, probes: 0 }
    }

    /// Says what is new, one line each.
    pub fn look(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        if session.probes().len() > self.probes {
            // Some came later.
            let labels = label::labels(session.probes()).into_iter().skip(self.probes);
            let new = labels.map(|name| Loser::new(Kind::Hits, name));
            self.losers.splice(self.probes..self.probes, new);
            self.probes = session.probes().len();
        }
        let hits = session.counts().into_iter().map(|counts| counts.missed);
        let dropped = (0..self.maps).map(|map| session.dropped(map));
        let lines = std::iter::once(session.lines_dropped());
        let now: Vec<u64> = hits.chain(dropped).chain(lines).collect();
        self.say(&now, sink)
    }

    /// How much each map has lost so far.
    pub fn of_maps(&self, session: &Session) -> Vec<u64> {
        (0..self.maps).map(|map| session.dropped(map)).collect()
    }

    /// A hit has ended the session. `before` is what maps had lost when their rings were emptied
    /// before that. The ring of the thread that ended it had room for that hit, so that it has lost
    /// only what came later; what others lost may have come shortly before. Neither is called a
    /// loss, and both are said.
    pub fn over(&mut self, session: &Session, before: &[u64], sink: &Sink) {
        let now = self.of_maps(session);
        let before = before.iter().chain(std::iter::repeat(&0));
        for ((loser, now), before) in self.losers.iter_mut().skip(self.probes).zip(now).zip(before) {
            if loser.kind == Kind::Events {
                loser.after_end = now.saturating_sub(*before);
                if loser.after_end > 0 {
                    let (count, events) = (loser.after_end, events_of(&loser.name));
                    sink.note(&format!("{count} {events} came at the end or after it, and were not read"));
                }
            }
        }
    }

    /// The same without a target.
    pub fn look_local(&mut self, maps: Maps<'_>, sink: &mut Sink) -> io::Result<()> {
        let now: Vec<u64> = (0..self.maps).map(|map| maps.dropped(map)).collect();
        self.say(&now, sink)
    }

    fn say(&mut self, now: &[u64], sink: &mut Sink) -> io::Result<()> {
        let mut missed = Vec::new();
        for (now, loser) in now.iter().zip(&mut self.losers) {
            let now = now.saturating_sub(loser.after_end);
            let new = now.saturating_sub(loser.said);
            loser.said = now;
            if new == 0 {
                continue;
            }
            match loser.kind {
                Kind::Hits => missed.push((new, loser.name.clone())),
                Kind::Events | Kind::Entries => sink.warn(&loser.kind.new_ones(new, &loser.name)),
            }
            if sink.json() {
                sink.line(&line(loser.kind, new, &loser.name))?;
            }
        }
        // All functions of a program may miss hits at once.
        if missed.len() > NAMED {
            sink.warn(&Kind::Hits.new_ones(sum(&missed), &format!("{} probes ({})", missed.len(), parts(&mut missed))));
        } else {
            missed.iter().for_each(|(new, name)| sink.warn(&Kind::Hits.new_ones(*new, name)));
        }
        Ok(())
    }

    /// Says which calls had not returned, at the end: what needs their returns has not seen them.
    pub fn unfinished(&self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        let counts = session.counts();
        let of = |(loser, counts): (&Loser, &Counts)| (counts.unfinished, loser.name.clone());
        let mut calls: Vec<_> = self.losers.iter().zip(&counts).map(of).filter(|(calls, _)| *calls > 0).collect();
        if let Some(text) = had_not_returned(&mut calls, session.returns_dropped()) {
            sink.warn(&text);
        }
        if sink.json() {
            for (count, name) in &calls {
                let data = json::object([("probe", json::string(name))]);
                let kind = ("type", json::string("unfinished_calls"));
                sink.line(&json::object([kind, ("count", json::number(*count)), ("data", data)]))?;
            }
        }
        Ok(())
    }

    /// Says the sums, if there are any, and what they are made of.
    pub fn total(&self, sink: &Sink) {
        for text in Kind::ALL.into_iter().filter_map(|kind| self.sum(kind)) {
            sink.warn(&text);
        }
    }

    fn sum(&self, kind: Kind) -> Option<String> {
        let losers = self.losers.iter().filter(|loser| loser.kind == kind && loser.said > 0);
        let mut lost: Vec<_> = losers.map(|loser| (loser.said, loser.name.clone())).collect();
        (!lost.is_empty()).then(|| format!("{}: {} ({})", kind.total(), sum(&lost), parts(&mut lost)))
    }
}

/// How many are named of those that make up a number.
const NAMED: usize = 5;

/// Numbers with what each is a number of.
type Parts = [(u64, String)];

fn sum(parts: &Parts) -> u64 {
    parts.iter().map(|(count, _)| count).sum()
}

/// `20 of main, 3 of exit`: the largest ones.
fn parts(parts: &mut Parts) -> String {
    parts.sort_by(|(a, _), (b, _)| b.cmp(a));
    let named: Vec<String> = parts.iter().take(NAMED).map(|(count, name)| format!("{count} of {name}")).collect();
    named.join(", ") + if parts.len() > NAMED { ", …" } else { "" }
}

/// `23 calls had not returned (20 of main, 3 of exit)`; `others` are calls of functions that are
/// not known any more.
fn had_not_returned(calls: &mut Parts, others: u64) -> Option<String> {
    let sum = others + sum(calls);
    let more = if others > 0 && calls.len() <= NAMED { ", …" } else { "" };
    let parts = if calls.is_empty() { String::new() } else { format!(" ({}{more})", parts(calls)) };
    let calls = if sum == 1 { "1 call had".to_owned() } else { format!("{sum} calls had") };
    (sum > 0).then(|| format!("{calls} not returned{parts}"))
}

fn of_map(map: &Map) -> Kind {
    match map.kind {
        MapKind::Ringbuf | MapKind::PerfEventArray => Kind::Events,
        _ => Kind::Entries,
    }
}

/// bpftrace's schema has the number in both places.
fn line(kind: Kind, count: u64, name: &str) -> String {
    let of = if kind == Kind::Hits { "probe" } else { "map" };
    let data = [("events", json::number(count)), (of, json::string(name))];
    json::object([("type", json::string(kind.json())), ("count", json::number(count)), ("data", json::object(data))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_name_the_probes() {
        let loser = |kind, name: &str, said| Loser { said, ..Loser::new(kind, name.to_owned()) };
        let losers = vec![
            loser(Kind::Hits, "open", 0),
            loser(Kind::Hits, "read", 1),
            loser(Kind::Events, "events", 2),
            loser(Kind::Events, "more", 40),
        ];
        let losses = Losses { losers, probes: 2, maps: 2 };
        assert_eq!(losses.sum(Kind::Entries), None);
        assert_eq!(losses.sum(Kind::Events).unwrap(), "Total lost event count: 42 (40 of more, 2 of events)");
        assert_eq!(losses.sum(Kind::Hits).unwrap(), "Total missed hit count: 1 (1 of read)");
    }

    #[test]
    fn calls_that_had_not_returned_are_named() {
        let calls = |counts: &[u64]| -> Vec<_> { counts.iter().map(|count| (*count, format!("f{count}"))).collect() };
        assert_eq!(had_not_returned(&mut [], 0), None);
        assert_eq!(had_not_returned(&mut calls(&[1]), 0).unwrap(), "1 call had not returned (1 of f1)");
        assert_eq!(had_not_returned(&mut [], 7).unwrap(), "7 calls had not returned");
        assert_eq!(had_not_returned(&mut calls(&[3, 2]), 1).unwrap(), "6 calls had not returned (3 of f3, 2 of f2, …)");
        let many = had_not_returned(&mut calls(&[4, 9, 8, 7, 6, 5]), 0).unwrap();
        assert_eq!(many, "39 calls had not returned (9 of f9, 8 of f8, 7 of f7, 6 of f6, 5 of f5, …)");
    }

    #[test]
    fn json_has_bpftraces_members() {
        assert_eq!(
            line(Kind::Events, 3, "events"),
            r#"{"type": "lost_events", "count": 3, "data": {"events": 3, "map": "events"}}"#
        );
    }
}
