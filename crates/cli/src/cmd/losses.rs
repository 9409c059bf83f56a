//! Hits that were missed and records that were lost: said as they appear, and in total at the end.

use std::io;

use sidestep_engine::Counts;

use crate::out::json;
use crate::out::sink::Sink;

/// A way to lose something.
struct Kind {
    of: fn(&Counts) -> u64,
    /// `Lost 3 events of read`.
    verb: &'static str,
    noun: &'static str,
    total: &'static str,
    /// In JSON; the first is bpftrace's.
    json: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind {
        of: |counts| counts.lost,
        verb: "Lost",
        noun: "events",
        total: "Total lost event count",
        json: "lost_events",
    },
    Kind {
        of: |counts| counts.missed,
        verb: "Missed",
        noun: "hits",
        total: "Total missed hit count",
        json: "missed_hits",
    },
];

/// What has been said so far, per probe.
pub struct Losses {
    labels: Vec<String>,
    said: Vec<Counts>,
}

impl Losses {
    /// Nothing has been lost yet. The labels are the probes' names.
    pub fn new(labels: Vec<String>) -> Losses {
        let said = vec![Counts::default(); labels.len()];
        Losses { labels, said }
    }

    /// Says what is new, one line per probe.
    pub fn look(&mut self, counts: &[Counts], sink: &mut Sink) -> io::Result<()> {
        for ((now, said), label) in counts.iter().zip(&mut self.said).zip(&self.labels) {
            for kind in &KINDS {
                let new = (kind.of)(now).saturating_sub((kind.of)(said));
                if new > 0 {
                    sink.warn(&format!("{} {new} {} of {label}", kind.verb, kind.noun));
                    if sink.json() {
                        sink.line(&line(kind.json, new, label))?;
                    }
                }
            }
            *said = *now;
        }
        Ok(())
    }

    /// Says the sums, if there are any, and what they are made of.
    pub fn total(&self, sink: &Sink) {
        for kind in &KINDS {
            if let Some(text) = self.sum(kind) {
                sink.warn(&text);
            }
        }
    }

    fn sum(&self, kind: &Kind) -> Option<String> {
        let losses = self.said.iter().map(|counts| (kind.of)(counts)).zip(&self.labels);
        let losses: Vec<(u64, &String)> = losses.filter(|(count, _)| *count > 0).collect();
        let sum: u64 = losses.iter().map(|(count, _)| count).sum();
        let parts: Vec<String> = losses.iter().map(|(count, label)| format!("{count} of {label}")).collect();
        (sum > 0).then(|| format!("{}: {sum} ({})", kind.total, parts.join(", ")))
    }
}

/// bpftrace's schema has the number in both places.
fn line(kind: &str, events: u64, label: &str) -> String {
    let data = [("events", json::number(events)), ("probe", json::string(label))];
    json::object([("type", json::string(kind)), ("count", json::number(events)), ("data", json::object(data))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_name_the_probes() {
        let mut losses = Losses::new(vec!["open".to_owned(), "read".to_owned(), "write".to_owned()]);
        assert_eq!(losses.sum(&KINDS[0]), None);
        losses.said[1].lost = 2;
        losses.said[2].lost = 40;
        losses.said[2].missed = 1;
        let [lost, missed] = [0, 1].map(|kind| losses.sum(&KINDS[kind]).unwrap());
        assert_eq!(lost, "Total lost event count: 42 (2 of read, 40 of write)");
        assert_eq!(missed, "Total missed hit count: 1 (1 of write)");
    }

    #[test]
    fn json_has_bpftraces_members() {
        assert_eq!(
            line("lost_events", 3, "read"),
            r#"{"type": "lost_events", "count": 3, "data": {"events": 3, "probe": "read"}}"#
        );
    }
}
