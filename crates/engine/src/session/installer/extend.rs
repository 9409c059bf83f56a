//! Requests and programs that come after the first ones.

use std::collections::HashSet;
use std::ops::Range;

use sidestep_isa::Va;
use sidestep_wire::{JournalEntry, TrapEntry};

use super::sites::place;
use super::{Hook, Installer, Numbers};
use crate::api::{Probe, Program, Request};
use crate::error::SessionError;
use crate::session::reclaim::Addition;

/// What planning changes, to go back to.
pub(crate) struct Checkpoint {
    hooked: HashSet<(&'static str, u64)>,
    replaces: bool,
    unwatched: Option<String>,
    lens: (usize, usize),
    free: (Vec<usize>, Vec<usize>),
}

/// Where requests and programs that came later are, in ascending order.
pub(crate) struct Slots {
    pub requests: Vec<usize>,
    pub programs: Vec<usize>,
}

impl Installer {
    /// The indices that the next so many programs get, in ascending order.
    pub fn next_programs(&self, count: usize) -> Vec<usize> {
        next(&self.free.1, self.bundle.programs.len(), count)
    }

    /// Before [`Installer::extend`].
    pub fn checkpoint(&self) -> Checkpoint {
        let lens = (self.requests.len(), self.bundle.programs.len());
        Checkpoint {
            hooked: self.hooked.clone(),
            replaces: self.replaces,
            unwatched: self.unwatched.clone(),
            lens,
            free: self.free.clone(),
        }
    }

    /// Nothing of what came since is wanted.
    pub fn go_back(&mut self, to: Checkpoint) {
        self.hooked = to.hooked;
        (self.replaces, self.unwatched) = (to.replaces, to.unwatched);
        self.free = to.free;
        self.requests.truncate(to.lens.0);
        self.bundle.programs.truncate(to.lens.1);
    }

    /// Takes up requests, and programs that [`crate::target::regions::Regions::add_programs`] puts
    /// in.
    pub fn extend(&mut self, programs: &[Program], requests: &[Request]) -> Slots {
        let slots = Slots {
            requests: next(&self.free.0, self.requests.len(), requests.len()),
            programs: self.next_programs(programs.len()),
        };
        put(&mut self.requests, requests, &slots.requests);
        put(&mut self.bundle.programs, programs, &slots.programs);
        self.free.0.retain(|index| !slots.requests.contains(index));
        self.free.1.retain(|index| !slots.programs.contains(index));
        slots
    }

    /// These indices are nobody's, nor what was dealt with for them.
    pub fn free_slots(&mut self, requests: &[usize], programs: Vec<usize>) {
        self.done.retain(|(request, ..)| !requests.contains(request));
        self.free.0.extend(requests);
        self.free.1.extend(programs);
        self.free.0.sort_unstable();
        self.free.1.sort_unstable();
    }

    /// No probe has these numbers any more.
    pub fn free_numbers(&mut self, numbers: &HashSet<u32>) {
        let probes = std::mem::take(&mut self.probes).into_iter().zip(std::mem::take(&mut self.numbers));
        for (id, (probe, number)) in
            probes.filter(|(_, own)| !own.all().any(|number| numbers.contains(&number))).enumerate()
        {
            self.probes.push(Probe { id, ..probe });
            self.numbers.push(number);
        }
        self.used.retain(|number| !numbers.contains(number));
        self.registry.borrow_mut().free_numbers(numbers);
    }

    /// Nothing was taken so far.
    pub fn begin_addition(&mut self) {
        self.new_numbers.clear();
        if let Some(regions) = &self.regions {
            regions.taken.take();
        }
    }

    /// What was taken since then is that of the probes behind the first so many. Not of a session
    /// that has several processes, nor if sites of our own are among it: these stay.
    pub fn end_addition(&mut self, slots: Slots, probes: usize, has_own: bool) {
        let Some(regions) = &self.regions else { return };
        let (numbers, taken) = (std::mem::take(&mut self.new_numbers), regions.taken.take());
        if !has_own && !self.registry.borrow().several && !self.options.follow {
            let Slots { requests, programs } = slots;
            let present = self.numbers[probes..].iter().flat_map(Numbers::all).collect();
            self.additions.note(Addition { requests, programs, numbers, taken }, present);
        }
    }

    /// The users' site that is where one of our own has to be.
    pub fn in_the_way(&self, hook: &Hook, entries: &[JournalEntry]) -> Option<Va> {
        let own = place(&hook.planned)?;
        let meets = |e: &&JournalEntry| {
            e.newest != 0 && e.own == 0 && e.site < own.end && e.site + u64::from(e.len) > own.start
        };
        entries.iter().find(meets).map(|entry| Va(entry.site))
    }

    /// As [`Installer::nothing`], of what was refused behind the first so many.
    pub fn nothing_since(&self, refused: usize) -> SessionError {
        match self.refused.get(refused) {
            Some(first) => SessionError::AllRefused {
                name: first.name.clone(),
                object: first.object.clone(),
                reason: first.reason.clone(),
                others: self.refused.len() - refused - 1,
            },
            None => SessionError::EndedEarly,
        }
    }

    /// Sites that nobody is responsible for any more, and detours that no trap leads to.
    pub fn forget(&mut self, sites: &[u64], detours: &[Range<u64>]) {
        if let Some(regions) = &mut self.regions {
            let is_gone = |trap: &TrapEntry| detours.iter().any(|d| d.contains(&(trap.detour & !TrapEntry::RECORD)));
            regions.traps.retain(|trap| !is_gone(trap));
        }
        let gone: HashSet<u64> = sites.iter().copied().collect();
        self.live.retain(|site| !gone.contains(site));
        self.surroundings.release(&gone);
    }

    /// Run-time addresses of all sites, in ascending order.
    pub fn sites(&self) -> impl Iterator<Item = u64> {
        self.live.iter().copied()
    }

    /// No site has these numbers any more. When their functions are there again, they get the same,
    /// and those that were `disabled` are disabled again.
    pub fn forget_numbers(&mut self, numbers: &HashSet<u32>, mut disabled: HashSet<u32>) {
        // A probe that could not be put in as a whole has no row, and nobody has disabled it.
        let rows: HashSet<u32> = self.numbers.iter().flat_map(Numbers::all).collect();
        disabled.retain(|number| rows.contains(number));
        self.used.retain(|number| !numbers.contains(number));
        self.unloaded.extend(numbers);
        self.to_disable.extend(disabled);
        let places = self.registry.borrow().places(numbers);
        self.done.retain(|done| !places.contains(done));
    }

    /// Numbers of probes that are there again, and were disabled when their libraries went.
    pub fn to_disable(&self) -> HashSet<u32> {
        self.to_disable.intersection(&self.used).copied().collect()
    }

    /// These are disabled, or are to be enabled when they come.
    pub fn forget_disabled(&mut self, numbers: &HashSet<u32>) {
        self.to_disable.retain(|number| !numbers.contains(number));
    }

    /// Sites of our own among `gone`, given in ascending order, stand for nothing any more, and
    /// objects that are not there (`is_there` asks, by their run-time address) were not looked at.
    pub fn forget_objects(&mut self, gone: &[u64], is_there: impl Fn(u64) -> bool) {
        self.own.retain(|range| gone.binary_search(&range.start).is_err());
        self.hooked.retain(|(_, start)| is_there(*start));
        self.permanent.retain(|start| is_there(*start));
    }
}

/// The first indices that are free, in ascending order.
fn next(free: &[usize], len: usize, count: usize) -> Vec<usize> {
    free.iter().copied().chain(len..).take(count).collect()
}

fn put<T: Clone>(all: &mut Vec<T>, new: &[T], indices: &[usize]) {
    for (one, index) in new.iter().zip(indices) {
        if *index < all.len() { all[*index] = one.clone() } else { all.push(one.clone()) }
    }
}
