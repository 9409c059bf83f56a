//! Promoting sites that were blocked, and blocking them again (`plan::blocked`): a site is a trap
//! while another one inside its jump is enabled, and the jump while none is. Which sites those are
//! is told by the addresses in the journal, so whoever switches sites can do it.
//!
//! In either direction the site is a trap while the bytes behind it change ([`super::live`]), and
//! the gates lead to the copies: so nobody gets inside, also from the detour of a site there, in
//! which a thread may be for as long as it likes. When a gate has closed, the threads behind it
//! leave: the way back from the copies knows no other jumps.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::ops::Bound;
use std::time::Duration;

use sidestep_isa::Va;
use sidestep_sys::Process;
use sidestep_wire::{BlockState, JournalEntry};

use crate::error::SessionError;
use crate::patch::journal::original_of;
use crate::patch::order::Order;
use crate::patch::switch::{Switched, Work};
use crate::patch::thread_state::{Ground, LOOKS};
use crate::patch::{live, stopped};
use crate::target::discovery::{Found, trapped};
use crate::target::remote::stopped_mappings;
use crate::target::thread_positions::{self, Position};

/// More bytes than there are from a site to where its detour leads back.
const REGION_MAX: u64 = 32;

/// Blocks the jumps around sites that are going to be written, before that happens. And those that
/// somebody left who was killed while he changed them.
pub(crate) fn make_way(process: &Process, found: &Found, sites: &BTreeSet<u64>) -> Result<Duration, SessionError> {
    let journal = Neighbours::of(found.entries(process)?);
    let is_in_the_way = |entry: &JournalEntry| {
        let next = sites.range((Bound::Excluded(entry.site), Bound::Unbounded)).next();
        let wanted = next.is_some_and(|site| entry.is_around(*site));
        entry.is_promotable() && !is_blocked(entry) && (wanted || entry.blocked == BlockState::Changing as u16)
    };
    let around = journal.all(is_in_the_way);
    Promotion { process, found, journal: &journal, traps: &BTreeMap::new() }.block(&around)
}

/// Promotes all sites that nobody blocks any more.
pub(crate) fn settle(
    process: &Process,
    found: &Found,
    traps: &BTreeMap<u64, u64>,
    switched: &mut Switched,
) -> Result<(), SessionError> {
    let journal = Neighbours::of(found.entries(process)?);
    let waits = |entry: &JournalEntry| {
        entry.is_promotable() && entry.blocked != BlockState::No as u16 && traps.contains_key(&entry.site)
    };
    let is_wanted = |entry: &JournalEntry| entry.newest != 0 && entry.disabled == 0 && entry.optimized == 1;
    let ready = journal.all(|entry| waits(entry) && is_wanted(entry) && journal.blockers(entry).next().is_none());
    if ready.is_empty() {
        return Ok(());
    }
    let session = Promotion { process, found, journal: &journal, traps };
    // Those inside are disabled, and cannot be enabled without us. Their gates are about to lead
    // elsewhere.
    let inside = ready.iter().flat_map(|index| journal.inside(&journal.entries[*index]));
    let jumps = |entry: &JournalEntry| entry.is_promotable() && !is_blocked(entry);
    let inside: Vec<usize> = inside.filter(|index| jumps(&journal.entries[*index])).collect();
    match session.block(&inside) {
        // They stay traps.
        Err(SessionError::JumpInUse { .. }) => return Ok(()),
        blocked => switched.longest = switched.longest.max(blocked?),
    }
    session.set(&ready, BlockState::Changing)?;
    for index in &ready {
        session.gates(*index, |copy, _| copy)?;
    }
    let mut gone = BTreeSet::new();
    let jump = |entry: &JournalEntry| entry.new[..usize::from(entry.len)].to_vec();
    let longest = session.write(&ready, jump, &mut gone)?;
    let written: Vec<usize> = ready.into_iter().filter(|index| !gone.contains(&journal.entries[*index].site)).collect();
    session.set(&written, BlockState::No)?;
    switched.promoted += written.len();
    switched.longest = switched.longest.max(longest);
    Ok(())
}

/// Is it a trap because of others?
pub(crate) fn is_blocked(entry: &JournalEntry) -> bool {
    entry.blocked == BlockState::Yes as u16
}

/// A journal by address.
pub(crate) struct Neighbours {
    pub entries: Vec<JournalEntry>,
    by_site: Vec<usize>,
}

impl Neighbours {
    pub fn of(entries: Vec<JournalEntry>) -> Neighbours {
        let mut by_site: Vec<usize> = (0..entries.len()).collect();
        by_site.sort_by_key(|index| entries[*index].site);
        Neighbours { entries, by_site }
    }

    fn all(&self, wanted: impl Fn(&JournalEntry) -> bool) -> Vec<usize> {
        (0..self.entries.len()).filter(|index| wanted(&self.entries[*index])).collect()
    }

    /// Those from an address on, and before the end of a patch.
    fn near(&self, from: u64, patch: JournalEntry) -> impl Iterator<Item = usize> {
        let first = self.by_site.partition_point(|index| self.entries[*index].site < from);
        let end = patch.site + patch.reach();
        self.by_site[first..].iter().copied().take_while(move |index| self.entries[*index].site < end)
    }

    /// Those inside a jump.
    fn inside(&self, jump: &JournalEntry) -> impl Iterator<Item = usize> {
        self.near(jump.site + 1, *jump)
    }

    /// The sites that keep a jump away: those inside that are enabled, or that nobody can disable,
    /// or from which a thread could come without a gate.
    pub fn blockers(&self, jump: &JournalEntry) -> impl Iterator<Item = &JournalEntry> {
        let jump = *jump;
        let leaves = move |entry: &JournalEntry| {
            let (from, _) = entry.copies().last().copied().unwrap_or_default();
            !jump.is_pun() && entry.gate == 0 && from != 0 && jump.is_around(entry.site + u64::from(from))
        };
        let stays = move |entry: &JournalEntry| jump.is_around(entry.site) && (entry.own != 0 || entry.disabled == 0);
        let near = self.near(jump.site.saturating_sub(REGION_MAX), jump).map(|index| &self.entries[index]);
        near.filter(move |entry| entry.site != jump.site && (stays(entry) || leaves(entry)))
    }

    /// Is there a jump around a site that is disabled?
    pub fn covers(&self, site: &JournalEntry) -> bool {
        site.disabled == 1 && self.around(site.site).any(|jump| jump.disabled == 0)
    }

    /// Is a place inside a jump, even if that is disabled?
    pub fn is_inside(&self, site: u64) -> bool {
        self.around(site).next().is_some()
    }

    /// The jumps around an address.
    fn around(&self, site: u64) -> impl Iterator<Item = &JournalEntry> {
        let at = JournalEntry { site, len: 1, ..JournalEntry::default() };
        let near = self.near(site.saturating_sub(REGION_MAX), at).map(|index| &self.entries[index]);
        near.filter(move |jump| jump.is_around(site) && jump.is_promotable() && !is_blocked(jump))
    }
}

/// A session, and its journal as it was.
struct Promotion<'s> {
    process: &'s Process,
    found: &'s Found,
    journal: &'s Neighbours,
    /// The trap table, if somebody may stand behind a trap of a site that is to be inside a jump.
    traps: &'s BTreeMap<u64, u64>,
}

impl Promotion<'_> {
    /// Blocks jumps. One that is switched off is not there, but gates lead to its copies. Nobody is
    /// in those copies afterwards.
    fn block(&self, jumps: &[usize]) -> Result<Duration, SessionError> {
        self.set(jumps, BlockState::Changing)?;
        let there: Vec<usize> =
            jumps.iter().copied().filter(|index| self.journal.entries[*index].disabled == 0).collect();
        let longest = self.write(&there, trapped, &mut BTreeSet::new())?;
        jumps.iter().try_for_each(|index| self.gates(*index, |_, closed| closed))?;
        let longest = longest.max(self.leave_copies(jumps)?);
        self.set(jumps, BlockState::Yes)?;
        Ok(longest)
    }

    /// Makes all threads leave the copies behind closed gates: these lead back to places that may
    /// be inside another jump next. A thread between two copies goes on for a while.
    fn leave_copies(&self, jumps: &[usize]) -> Result<Duration, SessionError> {
        const WAIT: Duration = Duration::from_millis(1);
        let mut gated: Vec<&JournalEntry> = jumps.iter().map(|index| &self.journal.entries[*index]).collect();
        gated.retain(|entry| entry.gate != 0);
        gated.sort_by_key(|entry| entry.detour);
        let mut longest = Duration::ZERO;
        if gated.is_empty() {
            return Ok(longest);
        }
        let behind_gate = |position: &Position| {
            let next = gated.partition_point(|entry| entry.detour <= position.ip.0);
            next.checked_sub(1).map(|index| gated[index]).filter(|entry| entry.is_behind_gate(position.ip.0))
        };
        for round in 0..=LOOKS {
            let mut stays = None;
            let stood = self.process.each_thread(false, |thread| {
                let maps = stopped_mappings(thread)?;
                for position in thread_positions::positions(thread, &maps)? {
                    let Some(entry) = behind_gate(&position) else { continue };
                    match original_of(entry, thread, &position) {
                        Some(original) => thread_positions::move_back(thread, &position, original)?,
                        None => stays = Some((position.place.tid(), Va(entry.site))),
                    }
                }
                Ok::<(), SessionError>(())
            });
            longest = longest.max(stood?);
            match stays {
                None => break,
                Some((tid, site)) if round == LOOKS => {
                    return Err(SessionError::JumpInUse { pid: self.process.pid(), tid, site });
                }
                Some(_) => std::thread::sleep(WAIT),
            }
        }
        Ok(longest)
    }

    /// Notes in the journal how far sites are.
    fn set(&self, sites: &[usize], state: BlockState) -> Result<(), SessionError> {
        for index in sites {
            let at = self.found.entry(*index).0 + offset_of!(JournalEntry, blocked) as u64;
            self.process.write(Va(at), &(state as u16).to_ne_bytes())?;
        }
        Ok(())
    }

    /// Sets all gates that lead into a jump: to the copy there or to the original, which `choose`
    /// is given in this order. None leads into a pun.
    fn gates(&self, jump: usize, choose: impl Fn(u64, u64) -> u64) -> Result<(), SessionError> {
        let jump = &self.journal.entries[jump];
        if jump.is_pun() {
            return Ok(());
        }
        for index in self.journal.near(jump.site, *jump) {
            let entry = &self.journal.entries[index];
            let Some(closed) = entry.gate_closed().filter(|closed| jump.is_around(*closed)) else { continue };
            let Some(copy) = jump.copy_of(closed) else { continue };
            // Aligned, so a thread reads either of them.
            let word = choose(copy, closed).to_ne_bytes();
            self.process.write(Va(entry.detour + u64::from(entry.gate)), &word)?;
        }
        Ok(())
    }

    /// Writes sites, while the threads run if nothing else can come to their place.
    fn write(
        &self,
        sites: &[usize],
        goal: impl Fn(&JournalEntry) -> Vec<u8>,
        gone: &mut BTreeSet<u64>,
    ) -> Result<Duration, SessionError> {
        if sites.is_empty() {
            return Ok(Duration::ZERO);
        }
        let inside = |jump: &JournalEntry| {
            let others = self.traps.range(jump.inner(jump.len.into()));
            others.map(|(trap, _)| (trap - jump.site) as usize).collect()
        };
        let work = |index: &usize| {
            let entry = JournalEntry { blocked: BlockState::Changing as u16, ..self.journal.entries[*index] };
            Work::of_blocked(*index, entry, goal(&entry), inside(&entry))
        };
        let mut work: Vec<Work> = sites.iter().map(work).collect();
        work.sort_by_key(Work::site);
        let ground = Ground::of(self.process, self.found)?;
        let (live, rest): (Vec<&Work>, Vec<&Work>) = work.iter().partition(|w| w.entry.stays == 1);
        // All of these are probed before and after, so their order does not matter.
        let longest = live::change(self.process, &live, Order::Enable, &ground, gone)?;
        Ok(longest.max(stopped::change(self.process, self.found, &rest, Order::Enable, &ground, gone)?))
    }
}
