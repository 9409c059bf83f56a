//! What a probe is called in memory: the number of its cells and its descriptor, and its cookie.

use sidestep_plan::handler::Handler;

use super::Installer;
use super::jobs::Jobs;
use super::sites::site;
use crate::api::Cookie;
use crate::error::SessionError;
use crate::planning::Planned;
use crate::programs::Part;
use crate::resolve::Match;
use crate::resolve::label::inside;
use crate::session::registry::{Sees, Whose};
use crate::target::regions::Regions;

/// The numbers of a probe: each of its sites has one, which names its descriptor and the cell that
/// counts its hits. In several processes a site mostly has the same number; the probe has them all.
#[derive(Clone, Default, Debug)]
pub(crate) struct Numbers {
    /// Of the site at the entry of the function, or of the only one.
    pub entries: Vec<u32>,
    /// Of the exits of the function.
    pub exits: Vec<u32>,
    /// Hits of the probe are those of its exits.
    pub counts_exits: bool,
}

impl Numbers {
    /// Of a probe that has one site so far.
    pub fn of(number: u32, part: &Part) -> Numbers {
        let mut numbers = Numbers::default();
        numbers.add(number, part);
        numbers
    }

    /// Adds a site.
    pub fn add(&mut self, number: u32, part: &Part) {
        match part {
            Part::Whole | Part::Enter => self.entries.push(number),
            Part::Exit { .. } => self.exits.push(number),
        }
    }

    /// Adds the numbers that the sites have in another process.
    pub fn merge(&mut self, other: &Numbers) {
        for (known, more) in [(&mut self.entries, &other.entries), (&mut self.exits, &other.exits)] {
            let new: Vec<u32> = more.iter().copied().filter(|number| !known.contains(number)).collect();
            known.extend(new);
        }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().chain(&self.exits).copied()
    }

    /// The one by which the probe is known.
    pub fn first(&self) -> Option<u32> {
        self.all().next()
    }

    /// Those whose cells are the hits of the probe.
    pub fn counted(&self) -> impl Iterator<Item = u32> {
        let exits = self.counts_exits || self.entries.is_empty();
        if exits { &self.exits } else { &self.entries }.iter().copied()
    }
}

impl Installer {
    /// The number of a probe: larger than those that its site has so far.
    pub(super) fn number(
        &mut self,
        regions: &Regions,
        whose: Whose,
        p: &Planned,
        jobs: &Jobs,
    ) -> Result<u32, SessionError> {
        let site = site(p).and_then(|site| jobs.get(&site));
        let last = site.and_then(|(job, _)| job.handlers.last()).map(Handler::probe);
        let free = |number: u32| last.is_none_or(|last| last < number) && !self.used.contains(&number);
        let sees = if matches!(p.part, Part::Exit { .. }) { Sees::Exit } else { Sees::Entry };
        let number = self.registry.borrow_mut().number(whose, &p.matched, (p.of, sees), free);
        if u64::from(number) >= regions.layout.probes_max {
            return Err(SessionError::TooMany { what: "probes" });
        }
        self.used.insert(number);
        self.new_numbers.push(number);
        Ok(number)
    }

    /// The inner error: the site has no cookie of this kind.
    pub(super) fn cookie(
        &self,
        request: usize,
        cookie: Cookie,
        matched: &Match,
        regions: &Regions,
    ) -> Result<Result<u64, String>, SessionError> {
        let asked = self.requests[request].label.as_ref().filter(|_| cookie == Cookie::Named);
        let label = asked.map(|label| label.of(matched.object.path(), &matched.name));
        let value = match cookie {
            Cookie::Value(value) => return Ok(Ok(value)),
            Cookie::Arguments(map) if self.bundle.facts.is_empty() => {
                return Ok(self.arguments_of(map, matched, regions));
            }
            Cookie::Named if label.is_some() && self.bundle.facts.words.is_none() => {
                self.registry.borrow_mut().cookie_called(label.as_deref().unwrap_or_default())
            }
            Cookie::Arguments(_) | Cookie::PerProbe | Cookie::Named => {
                self.registry.borrow_mut().cookie(request, matched)
            }
        };
        // Those that have an entry for each probe.
        let mut maps = self.bundle.maps.iter().zip(&regions.maps).filter(|(asked, _)| asked.per_probe);
        if maps.any(|(_, map)| value >= u64::from(map.max_entries)) {
            return Err(SessionError::TooMany { what: "probes with results of their own" });
        }
        let tell = || {
            let label = label.as_deref().unwrap_or_default();
            self.registry.borrow_mut().known.tell(&self.bundle.facts, value, label, matched, regions);
        };
        match cookie {
            Cookie::Arguments(map) => {
                tell();
                return Ok(self.arguments_of(map, matched, regions).map(|key| value << 32 | key));
            }
            Cookie::Named => tell(),
            _ => return Ok(Ok(value)),
        }
        let (function, _) = inside(&matched.name);
        let name = self.registry.borrow_mut().name(function);
        if let Some(names) = self.bundle.names {
            if regions.maps.get(names).is_some_and(|map| name >= u64::from(map.max_entries)) {
                return Err(SessionError::TooMany { what: "functions with names" });
            }
            regions.set_name(names, name, function);
        }
        Ok(Ok(name << 32 | value))
    }

    /// The key of a USDT site's arguments, which are there afterwards.
    fn arguments_of(&self, map: usize, matched: &Match, regions: &Regions) -> Result<u64, String> {
        let shape = regions.maps.get(map).ok_or("its program has no map for arguments")?;
        let (key, value) = self.registry.borrow_mut().arguments(map, matched, shape)?;
        regions.set_value(map, u64::from(key), &value);
        Ok(u64::from(key))
    }
}
