//! Libraries that a process has unloaded: their sites are gone. When such a library is loaded
//! again, at the same place or another one, it is probed like one that was never there.

use std::collections::HashSet;

use sidestep_isa::Va;
use sidestep_sys::{Mapping, Process};
use sidestep_wire::header::ISLAND;
use sidestep_wire::{JournalEntry, ProbeDesc, TrapEntry};

use crate::error::SessionError;
use crate::memory::raw::bytes_of;
use crate::patch::per_probe;
use crate::patch::switch::take_turn;
use crate::session::Session;
use crate::session::installer::Installer;
use crate::target::discovery::{Found, Site, all};
use crate::target::hold;
use crate::target::native;
use crate::target::regions::Regions;
use crate::target::remote::mappings;
use crate::target::signals;

/// Sites where nothing is mapped any more.
struct Unloaded {
    /// Those with probes.
    sites: Vec<Site>,
    /// Numbers of the probes that are disabled: they are disabled again when their library comes.
    disabled: HashSet<u32>,
    /// Entries of the journal: these, and islands that lead there.
    entries: Vec<(usize, JournalEntry)>,
}

impl Unloaded {
    fn of(process: &Process, found: &Found, maps: &[Mapping]) -> Result<Unloaded, SessionError> {
        let is_gone = |at: u64| !is_mapped(maps, at);
        let entries: Vec<(usize, JournalEntry)> = found.entries(process)?.into_iter().enumerate().collect();
        // Those of probes that were removed are cleared by who takes back what they had.
        let is_removed = |entry: &JournalEntry| entry.disabled == 1 && entry.newest == 0;
        let gone = |entry: &JournalEntry| entry.len != 0 && !is_removed(entry) && is_gone(entry.site);
        let addresses: HashSet<u64> =
            entries.iter().filter(|(_, e)| e.own != ISLAND && gone(e)).map(|(_, e)| e.site).collect();
        let leads = |e: &JournalEntry| addresses.contains(if e.own == ISLAND { &e.detour } else { &e.site });
        let mut sites = found.sites(process)?;
        sites.retain(|site| gone(&site.entry) && site.entry.newest != 0);
        let disabled = sites.iter().flat_map(|site| disabled(process, site)).collect();
        Ok(Unloaded {
            sites,
            disabled,
            entries: entries.into_iter().filter(|(_, entry)| gone(entry) && leads(entry)).collect(),
        })
    }
}

impl Session {
    /// Forgets the sites that a process of the session has no more. `is_first`: it is the one that
    /// the session began with. A forked child becomes a process of the session for that, and so do
    /// the children of the process: these still have the library.
    pub(super) fn forget_unloaded(
        &mut self,
        pid: i32,
        is_first: bool,
        family: &mut impl FnMut() -> Vec<i32>,
    ) -> Result<(), SessionError> {
        let process = Process::look_at(pid)?;
        let maps = mappings(&process)?;
        let known = match is_first {
            true => Some(&self.installer),
            false => self.others.iter().find(|other| other.pid() == pid).map(|other| &other.installer),
        };
        let is_known = known.is_some();
        if !known.or_else(|| self.inherited(pid)).is_some_and(|installer| installer.lacks_sites(&maps)) {
            return Ok(());
        }
        let Some(found) = all(&process, &maps).into_iter().find(Found::is_mine) else { return Ok(()) };
        let unloaded = Unloaded::of(&process, &found, &maps)?;
        if unloaded.entries.is_empty() {
            return Ok(());
        }
        self.adopt_children(pid, &family());
        if !is_known {
            self.adopt(pid)?;
        }
        let session = match is_first {
            true => Some(self),
            false => self.others.iter_mut().find(|other| other.pid() == pid),
        };
        session.map_or(Ok(()), |session| session.forget_sites(&found, unloaded, &maps))
    }

    fn forget_sites(&mut self, found: &Found, unloaded: Unloaded, maps: &[Mapping]) -> Result<(), SessionError> {
        let _turn = take_turn(&self.process)?;
        let stopped = hold::stop(&self.process)?;
        // Another session may have a trap where the library is loaded again, and the handler asks
        // all sessions.
        let is_gone = |trap: &TrapEntry| unloaded.entries.iter().any(|(_, entry)| has(entry, trap.site));
        let forgotten = signals::forget_traps(&stopped, found.private_va, is_gone);
        let retire = |()| unloaded.sites.iter().try_for_each(|site| native::retire_site(&stopped, found, site));
        let result = forgotten.and_then(retire);
        stopped.resume()?;
        result?;
        let installer = &mut self.installer;
        installer.regions_mut().map_or(Ok(()), |regions| regions.blank(&unloaded.entries))?;
        let mut gone: Vec<u64> = unloaded.entries.iter().map(|(_, entry)| entry.site).collect();
        gone.sort_unstable();
        let stays = |desc: &ProbeDesc| desc.flags & ProbeDesc::RETIRED == 0;
        let probes = unloaded.sites.iter().flat_map(|site| &site.probes).filter(|(_, desc)| stays(desc));
        let numbers = probes.map(|(number, _)| *number).collect();
        installer.forget(&gone, &[]);
        installer.forget_numbers(&numbers, unloaded.disabled);
        installer.forget_objects(&gone, |start| is_mapped(maps, start));
        Ok(())
    }
}

impl Installer {
    /// Is there a site where nothing is mapped any more?
    fn lacks_sites(&self, maps: &[Mapping]) -> bool {
        let mut maps = maps.iter().peekable();
        self.sites().any(|site| {
            while maps.next_if(|m| m.end.0 <= site).is_some() {}
            maps.peek().is_none_or(|m| m.start.0 > site)
        })
    }
}

impl Regions {
    /// Entries of sites that are gone say nothing any more. Nobody comes to their detours.
    fn blank(&mut self, entries: &[(usize, JournalEntry)]) -> Result<(), SessionError> {
        for (index, _) in entries {
            self.head.write(self.entry_off(*index as u64), bytes_of(&JournalEntry::default()))?;
        }
        let detours: HashSet<u64> = entries.iter().map(|(_, entry)| entry.detour).collect();
        self.traps.retain(|trap| !entries.iter().any(|(_, entry)| has(entry, trap.site)));
        self.detours.retain(|detour| !detours.contains(&detour.detour));
        Ok(())
    }
}

/// Has the patch of a site this byte?
fn has(entry: &JournalEntry, at: u64) -> bool {
    (entry.site..entry.site + u64::from(entry.len)).contains(&at)
}

/// Numbers of the probes of a site that are disabled.
fn disabled(process: &Process, site: &Site) -> Vec<u32> {
    let is_off = |desc: &ProbeDesc| site.entry.disabled == 1 || per_probe::is_off(process, desc);
    site.users().filter(|(_, desc)| is_off(desc)).map(|(number, _)| *number).collect()
}

fn is_mapped(maps: &[Mapping], at: u64) -> bool {
    let next = maps.partition_point(|m| m.start.0 <= at);
    maps[..next].last().is_some_and(|m| m.contains(Va(at)))
}
