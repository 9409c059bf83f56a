//! The sites of a session, as they are looked up while the session is removed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use sidestep_isa::Va;
use sidestep_sys::{Process, Stopped, arch};
use sidestep_wire::header::ISLAND;
use sidestep_wire::{JournalEntry, MapEntry, MapKind};

use crate::error::SessionError;
use crate::patch::pages::{Stretch, pages};
use crate::patch::share::Others;
use crate::target::discovery::{self, Found, Site, is_ours, is_written};
use crate::target::remote::mappings;
use crate::target::thread_positions::Position;

/// All sites, as far as they are looked up: that takes longer than a stop should.
pub(crate) struct Journal {
    pub entries: Vec<JournalEntry>,
    /// Other sessions need the session's guards, and its handler if it owns the signals.
    pub is_needed: bool,
    /// These guards, and their islands, if so.
    pub kept: HashSet<usize>,
    /// Those that are still written. What is not now is not going to be, as it is our turn.
    pub written: Vec<usize>,
    /// Those that have detours, by the addresses of these.
    detours: Vec<usize>,
    /// Islands, with the sites that lead there.
    pub islands: HashMap<u64, Va>,
    /// Our own sites, which are restored last.
    own: BTreeSet<u64>,
    /// Users' exits of functions whose entries are sites of our own.
    exits: BTreeSet<u64>,
    /// Where our code is.
    pub code: Vec<Range<u64>>,
}

impl Journal {
    pub fn of(process: &Process, found: &Found, others: &Others) -> Result<Journal, SessionError> {
        let (entries, mut written) = entries(process, found, others)?;
        let has_users = found.users(others.sessions()).next().is_some();
        let mut kept = HashSet::new();
        if has_users {
            let guards = found.sites(process)?.into_iter().filter(Site::is_guard);
            let (indices, sites): (HashSet<usize>, HashSet<u64>) =
                guards.map(|site| (site.index, site.entry.site)).unzip();
            let islands = |e: &JournalEntry| e.own == ISLAND && sites.contains(&e.detour);
            kept.extend((0..entries.len()).filter(|index| indices.contains(index) || islands(&entries[*index])));
            written.retain(|index| !kept.contains(index));
        }
        let is_needed = has_users && (found.owner == Va(0) || !kept.is_empty());
        let mut detours: Vec<usize> = (0..entries.len()).filter(|index| entries[*index].detour_len != 0).collect();
        detours.sort_by_key(|index| entries[*index].detour);
        let islands = entries.iter().rev().filter(|e| e.own == ISLAND).map(|e| (e.site, Va(e.detour))).collect();
        let is_code = |m: &&MapEntry| m.kind == MapKind::Agent as u32 || m.kind == MapKind::Slab as u32;
        let code = found.mappings(process)?.iter().filter(is_code).map(MapEntry::range).collect();
        // What does not say which probes it has has no exits.
        let exits = discovery::exits_of_own(&found.sites(process).unwrap_or_default());
        let is_written = written.iter().map(|index| &entries[*index]);
        let own = is_written.filter(|entry| entry.own == 1).map(|entry| entry.site).collect();
        Ok(Journal { entries, is_needed, kept, written, detours, islands, own, exits, code })
    }

    /// Is it restored with our own sites? An island is with the site that leads there. `waits`: so
    /// are the exits of functions whose entries are sites of our own.
    pub fn is_last(&self, entry: &JournalEntry, waits: bool) -> bool {
        let site = if entry.own == ISLAND { entry.detour } else { entry.site };
        self.own.contains(&site) || waits && self.exits.contains(&site)
    }

    /// Does a site have this byte?
    pub fn has_site_at(&self, at: u64) -> bool {
        let held = |entry: &JournalEntry| entry.site..entry.site + u64::from(entry.len);
        self.entries.iter().any(|entry| entry.own != ISLAND && held(entry).contains(&at))
    }

    /// Is a position at a copy, or in front of all handlers, of a guard that stays?
    pub fn stays_at(&self, stopped: &Stopped, position: &Position) -> bool {
        let is_kept = self.detour_at(position.ip.0).is_some_and(|index| self.kept.contains(&index));
        is_kept && self.original_of(stopped, position).is_some()
    }

    /// The entry in whose detour an address is.
    pub fn detour_at(&self, ip: u64) -> Option<usize> {
        let next = self.detours.partition_point(|index| self.entries[*index].detour <= ip);
        let index = self.detours[next.checked_sub(1)?];
        let entry = &self.entries[index];
        (ip - entry.detour < u64::from(entry.detour_len)).then_some(index)
    }

    /// The original of a position in a detour at which no handler is under way, and the entry.
    pub fn original_of(&self, stopped: &Stopped, position: &Position) -> Option<(&JournalEntry, Va)> {
        let entry = &self.entries[self.detour_at(position.ip.0)?];
        Some((entry, original_of(entry, stopped, position)?))
    }
}

/// The original of a position in a detour at which no handler is under way.
///
/// The copy of a system call is more than one instruction where the call leaves an address in a
/// register. A call that is interrupted may end there with EINTR instead of being restarted
/// (`epoll_wait`, `io_uring_enter`), and its thread would make it again as soon as it runs: so it
/// never stands elsewhere.
pub(crate) fn original_of(entry: &JournalEntry, stopped: &Stopped, position: &Position) -> Option<Va> {
    let at = |Va(ip): Va| if ip == entry.detour { Some(entry.site) } else { entry.original_of(ip) };
    let len = arch::CALL_LEN;
    let behind_call = || {
        let call = at(position.ip.offset(-len)).filter(|_| position.is_behind_call(stopped))?;
        Some(call.wrapping_add_signed(len))
    };
    at(position.ip).or_else(behind_call).map(Va)
}

fn entries(process: &Process, found: &Found, others: &Others) -> Result<(Vec<JournalEntry>, Vec<usize>), SessionError> {
    let (mut journal, maps) = (found.journal(process)?, mappings(process)?);
    let child = found.is_child(process);
    if child {
        // It may have been forked between the change of a site and that of its entry.
        journal = found.entries(process)?;
        for entry in &mut journal {
            entry.disabled = 1;
            if entry.is_promotable() && !is_written(process, &maps, entry) {
                *entry = entry.trap();
            }
        }
    }
    let mut order: Vec<usize> = (0..journal.len()).collect();
    order.sort_unstable_by_key(|index| journal[*index].site);
    let mut written = Vec::new();
    for page in pages(&order, |index| journal[*index].site) {
        let places = page.iter().map(|index| (journal[*index].site, usize::from(journal[*index].len)));
        let text = Stretch::read(process, places);
        written.extend(page.iter().filter(|index| {
            let entry = &journal[**index];
            // A place next to it may have been unmapped.
            let now = text.at(entry.site, entry.len.into());
            let is = || now.map_or_else(|| is_written(process, &maps, entry), |now| is_ours(now, &maps, entry));
            // Nobody's any more: what is there now is another session's. But a child may have been
            // forked before.
            let left = found.retained || others.are_at(entry.site);
            let theirs = !child && left && entry.newest == 0 && entry.own != ISLAND;
            // A blank one says nothing.
            entry.len != 0 && !theirs && (is() || others.leads_to(process, entry))
        }));
    }
    written.sort_unstable();
    Ok((journal, written))
}
