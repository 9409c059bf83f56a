//! What a session shows of itself: its probes, its counts, and what was found out at the attach.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use sidestep_isa::Va;

use super::Session;
use crate::api::{AttachStats, Counts, Probe, Refused};
use crate::resolve::names::Symbols;
use crate::session::installer::Numbers;

impl Session {
    /// The sites in all processes: the process id, the run-time address, and the id of the probe.
    pub fn places(&self) -> Vec<(i32, Va, usize)> {
        let rows = rows(&self.installer.numbers);
        let of = |session: &Session| -> Vec<(i32, Va, usize)> {
            let id = |numbers: &Numbers| rows.get(&numbers.first()?).copied();
            let probes = session.installer.probes.iter().zip(&session.installer.numbers);
            probes.filter_map(|(probe, number)| Some((session.pid(), probe.va, id(number)?))).collect()
        };
        let others = self.others.iter().flat_map(of);
        of(self).into_iter().chain(others).collect()
    }

    /// All installed probes, of several processes each once; `Probe::id` is the index.
    pub fn probes(&self) -> &[Probe] {
        &self.installer.probes
    }

    /// Patterns that meant nothing when the session started, but may later, and why they did not.
    pub fn awaited(&self) -> &[(String, String)] {
        &self.installer.awaited
    }

    /// Matches that were refused.
    pub fn refused(&self) -> &[Refused] {
        &self.installer.refused
    }

    /// Current counts, per probe. Works while the target runs, after its end, and after the detach.
    pub fn counts(&self) -> Vec<Counts> {
        let Some(regions) = self.installer.regions() else { return Vec::new() };
        let by_exits = |numbers: &Numbers| {
            if numbers.exits.is_empty() {
                return 0; // none of its sites sees an end
            }
            let begun: u64 = numbers.entries.iter().map(|number| regions.cell(*number)).sum();
            let ended = |number: &u32| regions.cell(*number) + regions.missed(*number);
            begun.saturating_sub(numbers.exits.iter().map(ended).sum())
        };
        let dropped = |numbers: &Numbers| numbers.all().map(|number| regions.dropped_returns(number)).sum::<u64>();
        let count = |numbers: &Numbers| Counts {
            hits: numbers.counted().map(|number| regions.cell(number)).sum(),
            missed: numbers.all().map(|number| regions.missed(number)).sum(),
            unfinished: by_exits(numbers) + dropped(numbers),
        };
        self.installer.numbers.iter().map(count).collect()
    }

    /// Names of the target's addresses, if [`Options::symbols`](crate::api::Options::symbols) asked
    /// for them: those that came since the last time.
    pub fn take_symbols(&mut self) -> Symbols {
        if let Some(images) = self.installer.images.take().filter(|_| self.installer.wants_symbols()) {
            self.symbols.add(self.installer.meaning, images);
        }
        std::mem::take(&mut self.symbols)
    }

    /// Why a fault of a displaced instruction shows its handler, or a core file, an address of ours
    /// instead of its own; `None`: it does not.
    pub fn hides_originals(&self) -> Option<String> {
        self.installer.hides_originals()
    }

    /// Objects of which a pattern for many functions means those with a name, while most have none.
    pub fn nameless(&self) -> impl Iterator<Item = &Path> {
        self.installer.nameless.iter().map(PathBuf::as_path)
    }

    /// Objects through which stacks go by frame pointers alone, although they describe their
    /// frames, and why.
    pub fn without_frames(&self) -> &[(PathBuf, String)] {
        self.installer.without_frames()
    }

    /// Figures about the attach.
    pub fn stats(&self) -> AttachStats {
        self.installer.stats.clone()
    }
}

/// Indices of probes, by each of their numbers.
pub(super) fn rows(numbers: &[Numbers]) -> HashMap<u32, usize> {
    let of = |(id, numbers): (usize, &Numbers)| numbers.all().map(|number| (number, id)).collect::<Vec<_>>();
    numbers.iter().enumerate().flat_map(of).collect()
}
