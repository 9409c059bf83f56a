//! Hits that were missed and records that were lost: said as they appear, and in total at the end.

use std::io;

use sidestep_engine::Counts;

use crate::out::json;
use crate::out::sink::Sink;

/// What has been said so far.
#[derive(Default)]
pub struct Losses {
    said: Vec<Counts>,
}

impl Losses {
    /// Says what is new, one line per probe.
    pub fn look(&mut self, counts: &[Counts], labels: &[String], sink: &mut Sink) -> io::Result<()> {
        self.said.resize(counts.len(), Counts::default());
        for ((now, said), label) in counts.iter().zip(&mut self.said).zip(labels) {
            if now.lost > said.lost {
                say(
                    sink,
                    &format!("Lost {} events of {label}", now.lost - said.lost),
                    "lost_events",
                    label,
                    now.lost - said.lost,
                )?;
            }
            if now.missed > said.missed {
                let new = now.missed - said.missed;
                say(sink, &format!("Missed {new} hits of {label}"), "missed_events", label, new)?;
            }
            *said = *now;
        }
        Ok(())
    }

    /// Says the sums, if there were any.
    pub fn total(&self, sink: &Sink) {
        let lost: u64 = self.said.iter().map(|counts| counts.lost).sum();
        let missed: u64 = self.said.iter().map(|counts| counts.missed).sum();
        if lost > 0 {
            sink.warn(&format!("Total lost event count: {lost}"));
        }
        if missed > 0 {
            sink.warn(&format!("Total missed hit count: {missed}"));
        }
    }
}

fn say(sink: &mut Sink, text: &str, kind: &str, label: &str, events: u64) -> io::Result<()> {
    sink.warn(text);
    if sink.json() {
        // bpftrace's schema has the number in both places.
        sink.line(&json::object([
            ("type", json::string(kind)),
            ("count", json::number(events)),
            ("data", json::object([("events", json::number(events)), ("probe", json::string(label))])),
        ]))?;
    }
    Ok(())
}
