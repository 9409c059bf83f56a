//! What is not probed, and why.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;

use super::Installer;
use crate::api::{Refused, Request};
use crate::error::SessionError;
use crate::planning::Planned;
use crate::resolve::Match;
use crate::resolve::unnamed::finds_only_few;

impl Installer {
    /// A place that is not probed.
    pub(super) fn refuse(&mut self, m: &Match, reason: String) {
        self.refused.push(Refused { name: m.name.clone(), object: m.object.path().to_owned(), reason });
    }

    /// Leaves out all sites of the probes of which one has a reason, and refuses each of these
    /// probes once.
    pub(super) fn without_whole(&mut self, planned: Vec<Planned>, reasons: Vec<Option<String>>) -> Vec<Planned> {
        let probe = |p: &Planned| (p.request, p.matched.object.path().to_owned(), p.matched.bias(), p.of);
        let mut refused = HashMap::new();
        for (p, reason) in planned.iter().zip(reasons) {
            if let Some(reason) = reason {
                refused.entry(probe(p)).or_insert(reason);
            }
        }
        if refused.is_empty() {
            return planned;
        }
        let mut rest = Vec::new();
        let mut said = HashSet::new();
        for p in planned {
            let probe = probe(&p);
            match refused.get(&probe) {
                None => rest.push(p),
                Some(reason) => {
                    if said.insert(probe) {
                        self.refuse(&p.matched, reason.clone());
                    }
                }
            }
        }
        rest
    }

    /// Takes out those of the missing requests that may mean nothing, because another request of
    /// their group means something.
    pub fn forgive(&self, missing: &mut Vec<(usize, SessionError)>) {
        let absent: HashSet<usize> = missing.iter().map(|(request, _)| *request).collect();
        let is_served = |group: Option<usize>| {
            let mut others = self.requests.iter().enumerate().filter(|(_, other)| other.group == group);
            group.is_some() && others.any(|(i, _)| !absent.contains(&i))
        };
        missing.retain(|(request, error)| {
            let Request { pattern, group, .. } = &self.requests[*request];
            !(pattern.func.is_many() && error.is_about_absence() && is_served(*group))
        });
    }

    /// A request that means nothing.
    pub fn miss(&mut self, request: usize, reason: &SessionError) {
        let (name, reason) = (self.requests[request].pattern.text.clone(), reason.to_string());
        self.refused.push(Refused { name, object: PathBuf::new(), reason });
    }

    /// A request that means nothing yet. What may be missing is nobody's business until the end.
    pub fn wait_for(&mut self, request: usize, reason: &SessionError) {
        if !self.options.missing.is_noted() {
            self.awaited.push((self.requests[request].pattern.text.clone(), reason.to_string()));
        }
    }

    /// Notes the objects that patterns for many functions mean by their few names.
    pub(super) fn note_nameless(&mut self, matches: &[(usize, Match)]) {
        for objects in matches.chunk_by(|a, b| a.0 == b.0 && Rc::ptr_eq(&a.1.object, &b.1.object)) {
            let (request, Match { object, .. }) = &objects[0];
            if finds_only_few(&self.requests[*request].pattern.func, object) {
                self.nameless.insert(object.path().to_owned());
            }
        }
    }

    /// Why a fault of a displaced instruction shows an address of ours, if it does.
    pub fn hides_originals(&self) -> Option<String> {
        match (&self.unguarded, self.faults) {
            (_, 0) => None,
            (Some((object, at)), _) => {
                Some(format!("the system call at {at} of {} could take its signal over", object.display()))
            }
            (None, _) if self.held.is_empty() => None,
            (None, _) => Some("a probe is where a system call would have to be guarded".into()),
        }
    }

    /// The error if nothing is left to be probed.
    pub fn nothing(&self) -> SessionError {
        self.nothing_since(0)
    }

    /// Why nothing at all is probed, if these requests mean nothing.
    pub fn none_of(&self, missing: Vec<(usize, SessionError)>) -> SessionError {
        let first = missing.into_iter().next().filter(|_| self.refused.is_empty());
        first.map_or_else(|| self.nothing(), |(_, error)| error)
    }
}
