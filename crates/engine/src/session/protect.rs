//! What a session does so that its probes do not harm the target: [`crate::session::protection`].

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::shown::rows;
use super::{Numbers, Session};
use crate::api::Probe;
use crate::error::SessionError;
use crate::limits::Event;
use crate::patch::switch::{Switch, Switched};
use crate::patch::toggle;
use crate::session::follow::Follow;
use crate::session::protection::Guard;

impl Session {
    /// What there is to say about the cost of the probes since the last time.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.guard.as_mut().map(|guard| std::mem::take(&mut guard.events)).unwrap_or_default()
    }

    /// How often [`Session::poll`] has to be called at least, so that limits are kept.
    pub fn poll_period(&self) -> Duration {
        self.guard.as_ref().map_or(Duration::MAX, Guard::period)
    }

    /// Have all probes had the hits that they may have, and will no others come?
    pub fn is_spent(&self) -> bool {
        let is_final = self.awaited().is_empty() && !self.installer.awaits_more();
        is_final && self.guard.as_ref().is_some_and(|guard| guard.is_spent(self.probes().len()))
    }

    /// Looks at what probes cost.
    pub(crate) fn look_at_costs(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        if self.attached {
            guard.look(self);
        }
        self.guard = Some(guard);
    }

    /// Says in the target what each probe takes of its CPU time, for whoever asks.
    pub(crate) fn tell_shares(&self, shares: &[f64]) {
        let Some(regions) = self.installer.regions() else { return };
        for (numbers, share) in self.installer.numbers.iter().zip(shares) {
            let Some(number) = numbers.first() else { continue };
            let millionths = (share.clamp(0.0, 1.0) * 1e6) as u64;
            let at = regions.layout.shares_off + 8 * u64::from(number);
            regions.common.u64(at).store(1 + millionths, Ordering::Relaxed);
        }
    }

    /// The processes of the session, and their children, if these are followed.
    pub(crate) fn members(&mut self) -> Vec<i32> {
        let children = self.follow.as_mut().map(Follow::members).unwrap_or_default();
        let mut all: Vec<i32> = self.pids().chain(children).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The processes, with where the session is in each: what one executes has its id, too.
    pub(crate) fn places_of_processes(&self) -> HashSet<(i32, u64)> {
        let place = |session: &Session| Some((session.pid(), session.shared().ok()?.0));
        self.others.iter().chain([self]).filter_map(place).collect()
    }

    /// Disables probes, given by their ids, in all processes, and those that are at the same
    /// functions or places: what counts at the entry and the return of a function ends together.
    /// Gives the ids of all of them.
    pub(crate) fn disable_together(&mut self, ids: &[usize]) -> (Vec<usize>, Result<Switched, SessionError>) {
        let children = self.follow.as_mut().map(Follow::members).unwrap_or_default();
        if !children.is_empty() {
            let parents = self.pids().chain(self.ended.iter().map(Session::pid));
            for pid in parents.collect::<Vec<_>>() {
                self.adopt_children(pid, &children);
            }
        }
        let rows = rows(&self.installer.numbers);
        let mut ids: BTreeSet<usize> = ids.iter().copied().collect();
        let numbers = loop {
            let count = ids.len();
            let probes = &self.installer.probes;
            let function = |probe: &Probe| (probe.object.clone(), probe.name.clone());
            let functions: HashSet<_> = ids.iter().filter_map(|id| probes.get(*id)).map(function).collect();
            ids.extend(probes.iter().filter(|probe| functions.contains(&function(probe))).map(|probe| probe.id));
            let named = ids.iter().filter_map(|id| self.installer.numbers.get(*id));
            let mut numbers: HashSet<u32> = named.flat_map(Numbers::all).collect();
            for session in self.others.iter().chain([&*self]) {
                // One that has ended has no sites.
                let shared = session.shared();
                let _ = shared.and_then(|shared| toggle::add_neighbours(&session.process, shared, &mut numbers));
            }
            ids.extend(numbers.iter().filter_map(|number| rows.get(number)));
            if ids.len() == count {
                break numbers;
            }
        };
        let mut all = Ok(Switched::default());
        for session in self.others.iter().chain([&*self]) {
            let off = |shared| toggle::by_number(&session.process, shared, &numbers, Switch::Off);
            match (session.shared().and_then(off), &mut all) {
                (Ok(switched), Ok(all)) => all.add(switched),
                (Err(error), Ok(_)) if session.process.is_alive() && !session.process.is_replaced() => all = Err(error),
                _ => {}
            }
        }
        (ids.into_iter().collect(), all)
    }
}
