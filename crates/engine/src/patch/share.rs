//! Sites that several sessions have, each with its own detour, programs and results. The site's
//! jump leads to the detour of one of them; where its copies of the displaced instructions begin, a
//! jump leads to the detour of the next; the last one runs its copies.
//!
//! ```text
//!   site:      jmp detour 1
//!   detour 1:  handlers 1;  jmp detour 2      (its copies' place)
//!   detour 2:  handlers 2;  displaced instructions;  jmp back
//! ```
//!
//! The jumps in the text and in the detours are the truth: no journal names another session. A new
//! session is put at the end. A session that ends is left out by one write of five bytes while all
//! threads stand. So sessions end in any order. After a controller was killed, the process runs,
//! and the next session goes on from there. A detour that was left out still leads to the next one,
//! because a thread may be in there.
//!
//! Plans are made for the original code, so they are alike. Only jumps that displace the same
//! instructions, and need nothing but their five bytes, can be shared; all else is refused, as are
//! overlaps. Signals have one owner, and the others share them ([`crate::target::signals`]).

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use sidestep_isa::Va;
use sidestep_isa::patch;
use sidestep_plan::{Patch, Plan, Technique};
use sidestep_sys::{Mapping, Process, Stopped, arch};
use sidestep_wire::header::ISLAND;
use sidestep_wire::{JournalEntry, ProbeDesc};

use crate::error::SessionError;
use crate::patch::order::{Order, Rank};
use crate::patch::per_probe;
use crate::patch::stopped::set_semaphores;
use crate::patch::switch::{FOREIGN, Switch, Switched, is_same, note};
use crate::patch::thread_state::{Ground, LOOKS, Scene};
use crate::target::discovery::{self, Found, Site, is_ours, is_written, isa_of};
use crate::target::hold::{Hold, Turn};
use crate::target::remote::stopped_mappings;
use crate::target::thread_positions::{self, Place};

/// Bytes of a jump.
const JUMP: usize = arch::ISA.limits().jump;
/// Longest region of a site.
const REGION_MAX: u64 = 64;

/// What other sessions have in a process.
#[derive(Clone, Default)]
pub(crate) struct Others {
    sessions: Vec<Found>,
    /// By address.
    sites: BTreeMap<u64, Vec<Theirs>>,
}

/// A site of another session, or an island.
#[derive(Clone)]
struct Theirs {
    controller: i32,
    /// The shared region of its session.
    shared: Va,
    entry: JournalEntry,
    /// It guards a system call.
    guards: bool,
    /// Why nobody can have the same site.
    alone: Option<&'static str>,
}

/// A place of a jump of a chain.
struct Jump {
    at: u64,
    /// What is there if no detour follows.
    original: [u8; JUMP],
}

impl Others {
    /// All sessions but the one whose shared region is at `but`.
    pub fn of(process: &Process, mappings: &[Mapping], but: Option<Va>) -> Result<Others, SessionError> {
        let mut others = Others::default();
        for found in discovery::all(process, mappings) {
            if Some(found.shared_va) == but || found.controller_pid == 0 || !found.has_private(process) {
                continue;
            }
            if !found.controller_alive() && found.made_up(process, mappings).is_some() {
                continue;
            }
            // What cannot be read is not a session. If it was one, the text does not have what the
            // file has, and no probe is put there.
            let read =
                || Ok::<_, SessionError>((found.entries(process)?, found.traps(process)?, found.sites(process)?));
            let Ok((entries, traps, sites)) = read() else { continue };
            // A blank one says nothing.
            for (site, entry) in sites.iter().zip(entries).filter(|(_, entry)| entry.len != 0) {
                let inner = || traps.range(entry.inner(JUMP as u64)).next().is_some();
                let behind = ProbeDesc::POST | ProbeDesc::BEHIND;
                let post = || site.probes.iter().any(|(_, desc)| desc.flags & behind != 0);
                let alone = match () {
                    () if !is_plain(&entry) || inner() => Some("it takes more than a jump"),
                    () if entry.optimized == 0 => Some("it is a trap for now (sidestep optimize makes it a jump)"),
                    () if post() => Some("it runs behind the instruction"),
                    () => None,
                };
                let (controller, shared, guards) = (found.controller_pid, found.shared_va, site.is_guard());
                let theirs = Theirs { controller, shared, entry, guards, alone };
                others.sites.entry(entry.site).or_default().push(theirs);
            }
            others.sessions.push(found);
        }
        others.forget_absent(process, mappings);
        Ok(others)
    }

    /// The text says which guards are there: a library may have gone, and come again without them.
    /// A site that a detach has restored is nobody's, whatever the journal says: the detach may
    /// have been given up, or killed half-way.
    fn forget_absent(&mut self, process: &Process, mappings: &[Mapping]) {
        let detaching: Vec<Va> = self.sessions.iter().filter(|found| found.detaching).map(|f| f.shared_va).collect();
        let counts = |theirs: &Theirs| theirs.guards || detaching.contains(&theirs.shared);
        let is_absent = |Theirs { entry, .. }: &Theirs| {
            let is_there = is_written(process, mappings, &entry.for_now());
            !is_there && !self.chain(process, entry).contains(&entry.detour)
        };
        let all =
            self.sites.iter().flat_map(|(site, all)| all.iter().enumerate().map(|(i, theirs)| (*site, i, theirs)));
        let known = all.filter(|(.., theirs)| theirs.entry.own != ISLAND && counts(theirs));
        let absent: Vec<(u64, usize)> =
            known.filter(|(.., theirs)| is_absent(theirs)).map(|(site, i, _)| (site, i)).collect();
        for (site, i) in absent {
            if let Some(theirs) = self.sites.get_mut(&site).and_then(|all| all.get_mut(i)) {
                theirs.guards = false;
                if detaching.contains(&theirs.shared) {
                    theirs.entry.newest = 0;
                }
            }
        }
    }

    /// The sessions.
    pub fn sessions(&self) -> &[Found] {
        &self.sessions
    }

    /// The session that owns the signals, or would: the first one that has guards.
    pub fn owner(&self) -> Option<&Found> {
        let owners = || self.sessions.iter().filter(|found| found.owner == Va(0) && !found.ending);
        let all = || self.sites.values().flatten();
        let guards = |found: &&Found| all().any(|theirs| theirs.guards && theirs.shared == found.shared_va);
        owners().find(|found| found.taken != 0).or_else(|| owners().find(guards))
    }

    /// The controller of a session whose signals the program is getting back.
    pub fn ending(&self) -> Option<i32> {
        self.sessions.iter().find(|found| found.ending).map(|found| found.controller_pid)
    }

    /// Does a guard of others do at a site what one of ours would?
    pub fn guard(&self, site: u64) -> bool {
        self.sites.get(&site).is_some_and(|all| all.iter().any(|theirs| theirs.guards))
    }

    /// Have others probes at a site, enabled or not?
    pub fn are_at(&self, site: u64) -> bool {
        self.at(site).any(|entry| entry.newest != 0)
    }

    /// Is a site of ours one that others have, too, or had?
    pub fn know(&self, own: &JournalEntry) -> bool {
        own.own != ISLAND && self.at(own.site).next().is_some()
    }

    fn at(&self, site: u64) -> impl Iterator<Item = &JournalEntry> {
        let theirs = self.sites.get(&site).into_iter().flatten();
        theirs.map(|theirs| &theirs.entry).filter(|entry| entry.own != ISLAND)
    }

    /// Why a plan cannot be carried out beside the others. `needs`: the run-time range that it
    /// displaces or relies on.
    pub fn refuse(&self, plan: &Plan, bias: i64, needs: &Range<u64>) -> Option<String> {
        let site = plan.site.offset(bias).0;
        let island = match plan.patch {
            Patch::Short { island } => island.offset(bias).0..island.offset(bias).0 + JUMP as u64,
            Patch::Jump { .. } | Patch::Trap => site..site,
        };
        let start = needs.start.min(island.start).saturating_sub(REGION_MAX);
        let near = self.sites.range(start..needs.end.max(island.end)).flat_map(|(_, theirs)| theirs);
        let is_there = |theirs: &&Theirs| theirs.entry.newest != 0 || theirs.entry.own == ISLAND;
        near.filter(is_there).find_map(|theirs| {
            let Theirs { controller, entry, guards, alone, .. } = theirs;
            let takes = takes(entry);
            let meets = |range: &Range<u64>| takes.start < range.end && range.start < takes.end;
            let why = match alone {
                _ if !meets(needs) && !meets(&island) => return None,
                _ if entry.site != site || entry.own == ISLAND => "it needs some of the same bytes",
                Some(why) => why,
                None if !is_alike(plan, entry) => "only one of the two needs nothing but a jump",
                None => return None,
            };
            let at = Va(entry.site);
            Some(match guards {
                true => format!("a guard of all sessions that use signals is at {at}, and {why}: end those first"),
                false => format!("process {controller} has a probe at {at}, and {why}: end that first"),
            })
        })
    }

    /// Can jumps lead from and to a detour at a site that others have?
    pub fn reach(&self, site: u64, detour: u64, resumes_at: u64) -> bool {
        let can = |entry: &JournalEntry, from: u64, to: u64| patch::jump(isa_of(entry), Va(from), Va(to)).is_ok();
        let mut theirs = self.at(site).filter(|entry| entry.own == 0 || entry.newest != 0);
        theirs.all(|entry| can(entry, entry.resumes_at(), detour) && can(entry, resumes_at, entry.detour))
    }

    /// Makes of what is at a site what would be there without the others.
    pub fn undo(&self, site: u64, now: &mut [u8]) {
        let theirs = self.at(site).find(|entry| {
            let len = usize::from(entry.len);
            now.get(..len).is_some_and(|now| is_ours(now, &[], entry))
        });
        if let Some(entry) = theirs {
            let len = usize::from(entry.len);
            now[..len].copy_from_slice(&entry.old[..len]);
        }
    }

    /// Does a chain that has this detour of ours begin at its site?
    pub fn leads_to(&self, process: &Process, own: &JournalEntry) -> bool {
        self.know(own) && self.chain(process, own).contains(&own.detour)
    }

    /// Does a site lead to a detour of others?
    pub fn are_in(&self, process: &Process, own: &JournalEntry) -> bool {
        self.chain(process, own).iter().any(|detour| *detour != own.detour)
    }

    /// Can our detour be put at the end of a chain as the threads stand? Not while one is where the
    /// jump would be, and runs on.
    pub fn can_link(&self, process: &Process, scene: &Scene, own: &JournalEntry) -> bool {
        let Some(last) = self.last(process, own) else { return true };
        let at = last.resumes_at();
        let jump = |ip: u64| (at + 1..at + JUMP as u64).contains(&ip) && last.original_of(ip).is_none();
        // What its handler returns to is said by another session.
        let faulted = |ip: u64| own.inner(JUMP as u64).contains(&ip);
        let frame = |place: Place| matches!(place, Place::SignalFrame { .. });
        !scene.positions.iter().any(|p| jump(p.ip.0) || frame(p.place) && faulted(p.ip.0))
    }

    /// Puts our detour at the end of a chain, if it is not there, while the threads stand. The one
    /// that was the last runs its copies no more, so threads in there go to ours.
    pub fn link(&self, stopped: &mut Stopped, scene: &Scene, own: &JournalEntry) -> Result<(), SessionError> {
        let process = stopped.process().clone();
        if self.leads_to(&process, own) {
            return Ok(());
        }
        // It may lead to one that came and went since it was left out.
        process.write(Va(own.resumes_at()), &own.resume[..JUMP])?;
        let Some(last) = self.last(&process, own) else {
            return Ok(process.write(Va(own.site), &own.new[..JUMP])?);
        };
        let at = last.resumes_at();
        for position in scene.positions.iter().filter(|position| position.ip.0 != at) {
            if let Some(to) = last.original_of(position.ip.0).and_then(|original| own.copy_of(original)) {
                thread_positions::move_to(stopped, position, Va(to))?;
            }
        }
        Ok(process.write(Va(at), &jump(own, at, own.detour)?)?)
    }

    /// The last of the others in a chain that has none of ours.
    fn last(&self, process: &Process, own: &JournalEntry) -> Option<&JournalEntry> {
        let last = *self.chain(process, own).last()?;
        self.at(own.site).find(|entry| entry.detour == last)
    }

    /// Leaves our detour out wherever a jump leads there, while the threads stand. May be repeated.
    pub fn unlink(&self, process: &Process, own: &JournalEntry) -> Result<(), SessionError> {
        let at = own.resumes_at();
        let next = target(process, own, at).filter(|to| self.at(own.site).any(|entry| entry.detour == *to));
        for place in self.places(own).filter(|place| target(process, own, place.at) == Some(own.detour)) {
            let bytes = next.map_or(Ok(place.original), |next| jump(own, place.at, next))?;
            process.write(Va(place.at), &bytes)?;
        }
        Ok(())
    }

    /// Where a jump to our detour may be.
    fn places(&self, own: &JournalEntry) -> impl Iterator<Item = Jump> {
        let site = Jump { at: own.site, original: first(&own.old) };
        let theirs = self.at(own.site).map(|entry| Jump { at: entry.resumes_at(), original: first(&entry.resume) });
        std::iter::once(site).chain(theirs)
    }

    /// The detours that a hit at a site of ours goes through, in order.
    fn chain(&self, process: &Process, own: &JournalEntry) -> Vec<u64> {
        let mut chain = Vec::new();
        let mut at = own.site;
        while let Some(to) = target(process, own, at) {
            let entry = std::iter::once(own).chain(self.at(own.site)).find(|entry| entry.detour == to);
            let Some(entry) = entry.filter(|_| !chain.contains(&to)) else { break };
            chain.push(to);
            at = entry.resumes_at();
        }
        chain
    }
}

/// Does a site need nothing but five bytes, for a jump to its detour, whose copies are behind all
/// handlers?
fn is_plain(entry: &JournalEntry) -> bool {
    let jumps = jump(entry, entry.site, entry.detour).is_ok_and(|jump| entry.new[..JUMP] == jump);
    let copies = entry
        .copies()
        .first()
        .is_some_and(|(from, to)| *from == 0 && *to != 0 && u32::from(*to) + JUMP as u32 <= entry.detour_len);
    entry.own != ISLAND && usize::from(entry.len) == JUMP && jumps && copies && entry.gate == 0 && entry.blocked == 0
}

/// Does a plan displace the same instructions for nothing but a jump?
fn is_alike(plan: &Plan, entry: &JournalEntry) -> bool {
    let jumps = plan.patch == Patch::Jump { prefixes: 0, stub: None } && plan.region.0 >= JUMP as u64;
    let offsets = plan.displaced.iter().map(|insn| insn.va).chain(plan.resume).map(|va| va.since(plan.site));
    let copies = entry.copies().iter().map(|(from, _)| i64::from(*from));
    let plain = jumps && plan.technique != Technique::GuardedJump && !plan.gate && !plan.is_blocked();
    plain && offsets.eq(copies)
}

/// The run-time range that a site needs: its copies, and the displacement of its jump also where
/// that is not written.
fn takes(entry: &JournalEntry) -> Range<u64> {
    let jump = if entry.is_jump() { entry.reach() } else { 0 };
    let copied = entry.copies().iter().map(|(from, _)| u64::from(*from)).max().unwrap_or(0);
    entry.site..entry.site + copied.max(jump).max(entry.len.into())
}

/// A jump in the instruction set of an entry.
fn jump(entry: &JournalEntry, from: u64, to: u64) -> Result<[u8; JUMP], SessionError> {
    let no_room = SessionError::NoRoom { near: Va(from) };
    let bytes = patch::jump(isa_of(entry), Va(from), Va(to)).ok();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or(no_room)
}

/// Where the jump at an address leads, if there is one in the instruction set of an entry.
fn target(process: &Process, entry: &JournalEntry, at: u64) -> Option<u64> {
    let bytes: [u8; JUMP] = process.read_pod(Va(at)).ok()?;
    patch::jump_target(isa_of(entry), &bytes, Va(at)).map(|to| to.0)
}

fn first<const N: usize>(bytes: &[u8; N]) -> [u8; JUMP] {
    std::array::from_fn(|i| bytes[i])
}

/// Switches sites of a session that others have, too, while the threads stand. By who has the turn.
pub(crate) fn switch(
    process: &Process,
    found: &Found,
    others: &Others,
    chosen: &[&Site],
    to: Switch,
    switched: &mut Switched,
) -> Result<(), SessionError> {
    if chosen.is_empty() {
        return Ok(());
    }
    if matches!(to, Switch::Jump | Switch::Trap) {
        let refused = chosen.iter().map(|site| (Va(site.entry.site), "another session has a probe at the same place"));
        switched.refused.extend(refused);
        return Ok(());
    }
    let entries = found.entries(process)?;
    let on = to == Switch::On;
    let mut work: Vec<(usize, &JournalEntry, Rank)> = Vec::new();
    for site in chosen {
        let va = Va(site.entry.site);
        let Some(entry) = entries.get(site.index).filter(|entry| is_same(entry, &site.entry)) else {
            switched.refused.push((va, "the probe is not there any more"));
            continue;
        };
        if others.leads_to(process, entry) == on {
            switched.unchanged += site.users().filter(|(number, desc)| desc.is_first(*number)).count();
        } else if on && !others.are_in(process, entry) && is_foreign(process, entry) {
            switched.refused.push((va, FOREIGN));
        } else {
            work.push((site.index, entry, Rank::of(site)));
            switched.sites += 1;
            switched.probes += site
                .users()
                .filter(|(number, desc)| desc.is_first(*number) && !per_probe::is_off(process, desc))
                .count();
        }
    }
    let indices: Vec<usize> = work.iter().map(|(index, ..)| *index).collect();
    if !on {
        note(process, found, &indices, to)?;
    }
    let longest = change(process, found, others, work, on)?;
    if on {
        note(process, found, &indices, to)?;
    }
    switched.stopped += indices.len();
    switched.longest = switched.longest.max(longest);
    Ok(())
}

/// Links or unlinks sites in pauses that are not long, those of a function in one, except paired
/// exits.
fn change(
    process: &Process,
    found: &Found,
    others: &Others,
    work: Vec<(usize, &JournalEntry, Rank)>,
    on: bool,
) -> Result<Duration, SessionError> {
    let ground = Ground::of(process, found)?;
    let mut hold = Hold::running(process);
    let order = if on { Order::Enable } else { Order::Disable };
    let pieces = order.pieces(work, |(.., rank)| rank.page(), |(_, entry, _)| entry.site);
    let look = |stopped: &mut Stopped| Scene::new(stopped, &stopped_mappings(stopped)?, &ground);
    let mut waited = 0;
    hold.in_turns(
        |_| "sites",
        &pieces,
        look,
        |stopped, scene, piece| {
            let stands = |entry: &JournalEntry| {
                let inside = entry.inner(JUMP as u64);
                scene.positions.iter().any(|p| inside.contains(&p.ip.0)) || !others.can_link(process, scene, entry)
            };
            if on && waited < LOOKS && piece.iter().any(|(_, entry, _)| stands(entry)) {
                waited += 1;
                return Ok(Turn::Later);
            }
            for (index, entry, _) in piece {
                if on && stands(entry) {
                    return Err(SessionError::Occupied { pid: process.pid() });
                }
                if on {
                    others.link(stopped, scene, entry)?;
                }
                set_semaphores(stopped, found, [(*index, entry.semaphore)].into_iter(), on)?;
                if !on {
                    others.unlink(process, entry)?;
                }
            }
            Ok(Turn::Done)
        },
    )?;
    Ok(hold.longest())
}

/// Is something else at a site than its original code?
fn is_foreign(process: &Process, entry: &JournalEntry) -> bool {
    let now = process.read_pod::<[u8; JUMP]>(Va(entry.site));
    now.map_or(true, |now| now != entry.old[..JUMP])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(new: &[u8], copies: &[(u16, u16)]) -> JournalEntry {
        let mut entry = JournalEntry { site: 0x1000, detour: 0x2000, detour_len: 64, ..JournalEntry::default() };
        (entry.len, entry.insns_len) = (new.len() as u8, copies.len() as u8);
        entry.new[..new.len()].copy_from_slice(new);
        entry.insns[..copies.len()].copy_from_slice(copies);
        entry
    }

    #[test]
    fn a_site_takes_what_is_copied_and_the_displacement_that_is_not_written() {
        assert_eq!(takes(&entry(&[0xcc], &[(0, 8), (3, 12)])), 0x1000..0x1003);
        assert_eq!(takes(&entry(&[0xe9, 0, 0, 0, 0], &[(0, 8), (7, 12)])), 0x1000..0x1007);
        assert_eq!(takes(&entry(&[0xe9, 0, 0], &[(0, 8), (3, 12)])), 0x1000..0x1005);
        assert_eq!(takes(&entry(&[0x26, 0xe9, 0], &[(0, 8), (3, 12)])), 0x1000..0x1006);
    }

    #[test]
    fn only_a_jump_to_the_detour_itself_is_plain() {
        let jump = jump(&entry(&[0xe9, 0, 0, 0, 0], &[]), 0x1000, 0x2000).unwrap();
        assert!(is_plain(&entry(&jump, &[(0, 8), (5, 16)])));
        assert!(!is_plain(&entry(&jump, &[(0, 0), (5, 16)])), "its copies come before its handlers");
        assert!(!is_plain(&entry(&jump, &[(0, 60), (5, 64)])), "there is no room for a jump");
        assert!(!is_plain(&entry(&[0xe9, 0, 0, 0, 0], &[(0, 8), (5, 16)])), "it leads to a stub");
        assert!(!is_plain(&JournalEntry { gate: 16, ..entry(&jump, &[(0, 8), (5, 16)]) }));
    }
}
