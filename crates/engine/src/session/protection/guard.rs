//! Looks, while a session lasts, at what its probes cost and how often they were hit, and disables
//! those that cost or were hit too much.
//!
//! The CPU time that a probe takes is estimated: its hits in a window, times what one costs
//! ([`super::calibration`]). The share is of the CPU time that all processes of the session used in
//! the window.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use super::calibration::{self, Costs};
use crate::api::{Bundle, Options, Request};
use crate::error::SessionError;
use crate::limits::{Disabled, Event, Overhead, Protection};
use crate::patch::switch::Switched;
use crate::session::Session;

/// How long a window is: where there is a limit, and where there is none.
const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(1);
/// A window goes on until so much CPU time was used in it.
const LEAST_TIME: Duration = Duration::from_millis(20);
/// Hits for each second of CPU time from which on it is worth to measure what one costs.
const MANY: f64 = 10_000.0;
/// How often hits are compared with their limit.
const HIT_PERIOD: Duration = Duration::from_millis(10);

/// What is known of the costs.
enum Known {
    Nothing,
    /// A thread measures them.
    Soon(Receiver<Result<Costs, String>>),
    Costs(Costs),
    /// They cannot be measured.
    Never,
}

/// See the module.
pub(crate) struct Guard {
    protection: Protection,
    known: Known,
    bundle: Bundle,
    requests: Vec<Request>,
    options: Options,
    /// When the window began, what each process had used by then, and the hits of each probe.
    since: Instant,
    used: HashMap<i32, Duration>,
    hits: Vec<u64>,
    looked: Instant,
    /// Ids of probes that were disabled, and for how many windows they have been.
    off: HashMap<usize, u32>,
    /// Ids of probes that had all the hits that they may have.
    spent: HashSet<usize>,
    /// Processes in which that is so, with where the session is there.
    done: HashSet<(i32, u64)>,
    warned: bool,
    pub events: Vec<Event>,
}

impl Guard {
    /// Of a session that is about to start, if anything is to be looked at. What hits cost is
    /// measured now if there is a limit, since that has to hold from the first hit on.
    pub fn new(bundle: &Bundle, requests: &[Request], options: &Options) -> Result<Option<Guard>, SessionError> {
        let protection = options.protection.clone();
        if protection.overhead == Overhead::Ignored && protection.max_hits.is_none() {
            return Ok(None);
        }
        let known = match protection.overhead {
            Overhead::Limited(_) => Known::Costs(
                calibration::measure(&protection.calibration, bundle, requests, options)
                    .map_err(|reason| SessionError::Unmeasured { reason })?,
            ),
            Overhead::Warned(_) => Known::Nothing,
            Overhead::Ignored => Known::Never,
        };
        let events = match &known {
            Known::Costs(costs) => vec![measured(costs, requests)],
            _ => Vec::new(),
        };
        let now = Instant::now();
        Ok(Some(Guard {
            protection,
            known,
            bundle: bundle.clone(),
            requests: requests.to_vec(),
            options: options.clone(),
            since: now,
            used: HashMap::new(),
            hits: Vec::new(),
            looked: now,
            off: HashMap::new(),
            spent: HashSet::new(),
            done: HashSet::new(),
            warned: false,
            events,
        }))
    }

    /// The first window begins.
    pub fn begin(&mut self, session: &mut Session) {
        self.since = Instant::now();
        self.used = used(session);
    }

    /// How long to wait before the next look.
    pub fn period(&self) -> Duration {
        match self.protection {
            Protection { max_hits: Some(_), .. } => HIT_PERIOD,
            Protection { overhead: Overhead::Limited(_), .. } => SHORT,
            _ => LONG,
        }
    }

    /// Have all probes had the hits that they may have?
    pub fn is_spent(&self, probes: usize) -> bool {
        probes > 0 && (0..probes).all(|id| self.spent.contains(&id))
    }

    /// Looks, if it is time to.
    pub fn look(&mut self, session: &mut Session) {
        let now = Instant::now();
        if let Some(limit) = self.protection.max_hits {
            if now.duration_since(self.looked) >= HIT_PERIOD {
                self.limit_hits(session, limit);
                self.looked = Instant::now();
            }
        }
        let window = if matches!(self.protection.overhead, Overhead::Limited(_)) { SHORT } else { LONG };
        if now.duration_since(self.since) >= window {
            self.disable_in_new(session);
            if !matches!(self.known, Known::Never) {
                self.look_at_window(session, now);
            }
        }
    }

    fn limit_hits(&mut self, session: &mut Session, limit: u64) {
        let hits: Vec<u64> = session.counts().iter().map(|counts| counts.hits).collect();
        for (id, hits) in hits.into_iter().enumerate() {
            if hits >= limit && self.spent.insert(id) && !self.off.contains_key(&id) {
                let disabled = self.disable(session, vec![id], Disabled::Hits { hits, limit });
                self.spent.extend(disabled);
            }
        }
    }

    /// What was used, and hit, since the last window.
    fn look_at_window(&mut self, session: &mut Session, now: Instant) {
        let used = used(session);
        let since =
            |(pid, time): (&i32, &Duration)| time.saturating_sub(self.used.get(pid).copied().unwrap_or_default());
        let time: Duration = used.iter().map(since).sum();
        if time < LEAST_TIME {
            return;
        }
        let all: Vec<u64> = session.counts().iter().map(|counts| counts.hits + counts.missed).collect();
        let before = |id: usize| self.hits.get(id).copied().unwrap_or(0);
        let hits: Vec<u64> = all.iter().enumerate().map(|(id, now)| now.saturating_sub(before(id))).collect();
        (self.since, self.used, self.hits) = (now, used, all);
        if let Some(shares) = self.shares(session, &hits, time) {
            session.tell_shares(&shares);
            self.decide(session, &shares, &hits);
        }
    }

    /// The share of each probe; 1 is all CPU time. `None`: nobody knows yet.
    fn shares(&mut self, session: &Session, hits: &[u64], time: Duration) -> Option<Vec<f64>> {
        match &self.known {
            Known::Nothing if hits.iter().sum::<u64>() as f64 >= MANY * time.as_secs_f64() => {
                self.known = self.measure();
                None
            }
            Known::Soon(answer) => {
                match answer.try_recv() {
                    Ok(Ok(costs)) => {
                        self.events.push(measured(&costs, &self.requests));
                        self.known = Known::Costs(costs);
                    }
                    Ok(Err(reason)) => self.give_up(reason),
                    Err(TryRecvError::Disconnected) => self.give_up("its thread has ended".to_owned()),
                    Err(TryRecvError::Empty) => {}
                }
                None
            }
            Known::Costs(costs) => {
                let share = |(probe, hits): (&crate::api::Probe, &u64)| {
                    let action = self.requests.get(probe.request).map(|request| request.action).unwrap_or_default();
                    *hits as f64 * costs.of(&action, probe.technique) / time.as_nanos() as f64
                };
                Some(session.probes().iter().zip(hits).map(share).collect())
            }
            Known::Nothing | Known::Never => None,
        }
    }

    fn give_up(&mut self, reason: String) {
        self.known = Known::Never;
        self.events.push(Event::Unmeasured(reason));
    }

    /// Measures what hits cost, while the session goes on.
    fn measure(&self) -> Known {
        let (sender, answer) = mpsc::channel();
        let (bundle, requests) = (self.bundle.clone(), self.requests.clone());
        let (command, options) = (self.protection.calibration.clone(), self.options.clone());
        let measure = move || {
            let _ = sender.send(calibration::measure(&command, &bundle, &requests, &options));
        };
        match std::thread::Builder::new().spawn(measure) {
            Ok(_) => Known::Soon(answer),
            Err(_) => Known::Never,
        }
    }

    fn decide(&mut self, session: &mut Session, shares: &[f64], hits: &[u64]) {
        // Hits that came before a probe was disabled are in the window after it.
        self.off.retain(|id, windows| {
            *windows += 1;
            *windows < 3 || hits.get(*id) == Some(&0)
        });
        let counts = |id: &usize| !self.off.contains_key(id);
        let total: f64 = (0..shares.len()).filter(counts).map(|id| shares[id]).sum();
        match self.protection.overhead {
            Overhead::Warned(most) if total > most && !self.warned => {
                self.warned = true;
                let hottest = (0..shares.len()).max_by(|a, b| shares[*a].total_cmp(&shares[*b])).unwrap_or(0);
                let of_hottest = shares[hottest].min(1.0);
                self.events.push(Event::Costly { share: total.min(1.0), hottest, of_hottest });
            }
            Overhead::Limited(limit) if total > limit => self.disable_hottest(session, shares, total, limit),
            _ => {}
        }
    }

    /// Disables functions with all their probes, the hottest first, until the others take no more
    /// than the limit.
    fn disable_hottest(&mut self, session: &mut Session, shares: &[f64], total: f64, limit: f64) {
        let mut functions: BTreeMap<_, (f64, Vec<usize>)> = BTreeMap::new();
        for probe in session.probes().iter().filter(|probe| !self.off.contains_key(&probe.id)) {
            let function = functions.entry((probe.object.clone(), probe.name.clone())).or_default();
            function.0 += shares.get(probe.id).copied().unwrap_or(0.0);
            function.1.push(probe.id);
        }
        let mut functions: Vec<(f64, Vec<usize>)> = functions.into_values().collect();
        functions.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut rest = total;
        for (share, ids) in functions {
            if rest <= limit {
                break;
            }
            if ids.iter().all(|id| self.off.contains_key(id)) {
                continue; // with another one
            }
            let off = self.disable(session, ids, Disabled::Overhead { share: share.min(1.0), limit });
            rest -= off.iter().filter_map(|id| shares.get(*id)).sum::<f64>();
        }
    }

    /// Disables probes, and those that are at the same functions and places. Gives the ids of all.
    fn disable(&mut self, session: &mut Session, ids: Vec<usize>, why: Disabled) -> Vec<usize> {
        let (ids, result) = session.disable_together(&ids);
        self.off.extend(ids.iter().map(|id| (*id, 0)));
        self.done = session.places_of_processes();
        let refused = match result {
            Ok(Switched { refused, .. }) => refused.first().map(|(_, reason)| (*reason).to_owned()),
            Err(error) => Some(error.to_string()),
        };
        self.events.push(match refused {
            Some(reason) => Event::Kept(ids.clone(), why, reason),
            None => Event::Disabled(ids.clone(), why),
        });
        ids
    }

    /// Processes that have come since have all probes.
    fn disable_in_new(&mut self, session: &mut Session) {
        if self.off.is_empty() {
            return;
        }
        let now = session.places_of_processes();
        if !now.is_subset(&self.done) {
            let ids: Vec<usize> = self.off.keys().copied().collect();
            // One that has ended meanwhile needs nothing.
            let _ = session.disable_together(&ids);
        }
        self.done = now;
    }
}

fn measured(costs: &Costs, requests: &[Request]) -> Event {
    let (handlers, trap) = costs.by_request(requests);
    Event::Measured(handlers, trap)
}

/// What each process of a session has used so far.
fn used(session: &mut Session) -> HashMap<i32, Duration> {
    let pids = session.members();
    pids.into_iter().filter_map(|pid| Some((pid, sidestep_sys::cpu_time(pid)?))).collect()
}
