//! What a session has left in its target's memory, for whoever may read it: its controller, any
//! other process, or the next controller after this one was killed. Only looks;
//! [`crate::patch::detach`] removes, [`crate::patch::toggle`] changes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::ops::Range;

use sidestep_isa::{Isa, Len, Va};
use sidestep_sys::{Mapping, Process, arch};
use sidestep_wire::arch::breakpoint_like;
use sidestep_wire::header::{MAGIC, VERSION};
use sidestep_wire::{
    Common, Flow, Header, JournalEntry, MapEntry, Private, ProbeDesc, ShadowEntry, ThreadState, TrapEntry,
};

use crate::error::SessionError;
use crate::memory::layout::{MAPS_CAP, SHARED_MAX, SLOTS_MAX};
use crate::memory::raw::{Plain, from_bytes};
use crate::target::regions;
use crate::target::remote::{Room, mappings};
use crate::target::signals::{self, TRAPS};

/// How our memfd shows in `/proc/PID/maps` and `/proc/PID/fd`.
pub(crate) const MEMFD_LINK: &str = "/memfd:sidestep";

/// The header of a shared region as read from a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub shared_va: Va,
    /// 0: it was killed before anything else was there.
    pub controller_pid: i32,
    pub controller_start: u64,
    pub target_pid: i32,
    pub private_va: Va,
    pub agent: (u64, u64),
    pub trampoline: u64,
    /// Code that makes several system calls.
    pub batch: Va,
    /// The signals that its sites may rely on.
    pub signals: u64,
    /// Those that it owns: the program has yet to get back what it believes of them.
    pub taken: u64,
    /// The private region of the session whose signals it shares, or 0.
    pub owner: Va,
    /// It has ended. What others need of it stays.
    pub retained: bool,
    /// The program is getting its signals back: nobody may share them any more.
    pub ending: bool,
    /// Somebody has begun to take the probes out.
    pub detaching: bool,
    /// Offset and number of entries.
    pub journal: (u64, u32),
    maps: (u64, u32),
    cells: Cells,
}

/// Where hits are counted.
#[derive(Clone, Copy, Debug, Default)]
struct Cells {
    /// Of the first thread's slot, and from one to the next.
    slots: (u64, u64),
    /// Slots in use.
    used: u32,
    /// From a slot to its cells.
    cells: u64,
    /// Hits that were missed, by probe.
    missed: u64,
    /// What each probe takes of the target's CPU time.
    shares: u64,
}

/// The shared regions among the mappings of a process: one for each session. What cannot be read as
/// one is none: the target may make up any, and must not keep us from those that are there.
pub(crate) fn all(process: &Process, mappings: &[Mapping]) -> Vec<Found> {
    regions(process, mappings).filter_map(|found| found.ok().flatten()).collect()
}

/// Where the agents of sessions are, which may look into each other's memory for the owner of the
/// signals.
pub(crate) fn agents(sessions: &[Found]) -> Vec<Range<u64>> {
    sessions.iter().map(|found| found.agent.0..found.agent.0.saturating_add(found.agent.1)).collect()
}

/// A region of another version of this program, or of one that cannot be read.
pub(crate) fn foreign(process: &Process, mappings: &[Mapping]) -> Option<SessionError> {
    regions(process, mappings).find_map(Result::err)
}

fn regions<'a>(
    process: &'a Process,
    mappings: &'a [Mapping],
) -> impl Iterator<Item = Result<Option<Found>, SessionError>> + 'a {
    // A region begins at the begin of its file. What all processes of a session share is a part of
    // another file, and has no header.
    mappings.iter().filter(|m| is_ours_at(m, 0)).map(|m| at(process, m.start))
}

/// Is this a mapping of a memfd of ours, from this offset on?
fn is_ours_at(mapping: &Mapping, offset: u64) -> bool {
    mapping.offset == offset && !mapping.exec && mapping.name.to_string_lossy().starts_with(MEMFD_LINK)
}

/// The length of the shared region at an address, as it is mapped, in one part or in two.
pub(crate) fn mapped_len(mappings: &[Mapping], start: Va) -> Len {
    let parts = mappings.iter().skip_while(|m| m.start != start);
    let len = parts.fold(0, |len, m| match m.start.0 == start.0 + len && is_ours_at(m, len) {
        true => m.end.0 - start.0,
        false => len,
    });
    Len(len)
}

/// The shared region at an address; `None`: there is none.
pub(crate) fn at(process: &Process, start: Va) -> Result<Option<Found>, SessionError> {
    let mut head = [0; size_of::<Header>()];
    if process.read(start, &mut head).is_err() {
        return Ok(None);
    }
    let word = |off: usize| u64::from_ne_bytes(head[off..off + 8].try_into().unwrap_or_default());
    let half = |off: usize| u32::from_ne_bytes(head[off..off + 4].try_into().unwrap_or_default());
    if word(offset_of!(Header, magic)) != MAGIC {
        // Killed before anything else was mapped, or no region of ours.
        let begun = half(offset_of!(Header, controller_pid)) == 0 || half(offset_of!(Header, version)) == VERSION;
        return Ok(begun.then(|| Found::bare(start)));
    }
    if half(offset_of!(Header, version)) != VERSION {
        return Err(SessionError::ForeignVersion { pid: process.pid() });
    }
    let mut found = Found {
        shared_va: start,
        controller_pid: half(offset_of!(Header, controller_pid)) as i32,
        controller_start: word(offset_of!(Header, controller_start)),
        target_pid: half(offset_of!(Header, target_pid)) as i32,
        private_va: Va(word(offset_of!(Header, private_va))),
        agent: (word(offset_of!(Header, agent_va)), word(offset_of!(Header, agent_len))),
        trampoline: word(offset_of!(Header, trampoline_va)),
        batch: Va(word(offset_of!(Header, batch_va))),
        signals: word(offset_of!(Header, signals)),
        taken: 0,
        owner: Va(0),
        retained: false,
        ending: false,
        detaching: half(offset_of!(Header, detaching)) != 0,
        journal: (word(offset_of!(Header, layout.journal_off)), half(offset_of!(Header, journal_len))),
        maps: (word(offset_of!(Header, layout.maps_off)), half(offset_of!(Header, maps_len))),
        cells: Cells {
            slots: (word(offset_of!(Header, layout.slots_off)), word(offset_of!(Header, layout.slot_stride))),
            used: slots_used(process, start, word(offset_of!(Header, layout.common_off)))
                .min(half(offset_of!(Header, layout.slots_max))),
            cells: word(offset_of!(Header, layout.cells_off)),
            missed: word(offset_of!(Header, layout.missed_off)),
            shares: word(offset_of!(Header, layout.shares_off)),
        },
    };
    if found.has_private(process) {
        found.taken = signals::taken(process, found.private_va)?;
        found.owner = signals::owner_of_sharer(process, found.private_va)?;
        found.retained = signals::is_retained(process, found.private_va)?;
        found.ending = signals::is_ending(process, found.private_va)?;
    }
    Ok(Some(found))
}

/// The sessions that a process is the target of, one at least, in the order in which their
/// controllers started. Not what others need of sessions that have ended.
pub(crate) fn sessions(process: &Process) -> Result<Vec<Found>, SessionError> {
    let maps = mappings(process)?;
    let (mut usable, mut first) = (Vec::new(), foreign(process, &maps));
    for found in all(process, &maps).into_iter().filter(|found| !found.retained) {
        match usable_in(process, found) {
            Ok(found) => usable.push(found),
            Err(why) => first = first.or(Some(why)),
        }
    }
    usable.sort_by_key(|found| (found.controller_start, std::cmp::Reverse(found.shared_va)));
    match usable.is_empty() {
        true => Err(first.unwrap_or(SessionError::NotProbed { pid: process.pid() })),
        false => Ok(usable),
    }
}

/// The one of them whose shared region is there.
pub(crate) fn session(process: &Process, shared: Va) -> Result<Found, SessionError> {
    let found = at(process, shared)?.ok_or(SessionError::NotProbed { pid: process.pid() })?;
    usable_in(process, found)
}

fn usable_in(process: &Process, found: Found) -> Result<Found, SessionError> {
    let pid = process.pid();
    match found {
        found if found.controller_pid == 0 => Err(SessionError::NotProbed { pid }),
        found if found.is_child(process) => Err(SessionError::Forked { pid, parent: found.target_pid }),
        found if found.detaching => Err(SessionError::Detaching { pid }),
        found => Ok(found),
    }
}

/// Reads something of a session in a process that may detach at the same time.
pub(crate) fn look<T>(
    process: &Process,
    shared: Va,
    read: impl FnOnce(&Found) -> Result<T, SessionError>,
) -> Result<T, SessionError> {
    let result = read(&session(process, shared)?);
    session(process, shared)?;
    result
}

impl Found {
    fn bare(shared_va: Va) -> Found {
        Found {
            shared_va,
            controller_pid: 0,
            controller_start: 0,
            target_pid: 0,
            private_va: Va(0),
            agent: (0, 0),
            trampoline: 0,
            batch: Va(0),
            signals: 0,
            taken: 0,
            owner: Va(0),
            retained: false,
            ending: false,
            detaching: false,
            journal: (0, 0),
            maps: (0, 0),
            cells: Cells::default(),
        }
    }

    /// Is the controller that made this still there?
    pub fn controller_alive(&self) -> bool {
        self.controller_pid > 0 && sidestep_sys::start_time_of(self.controller_pid) == Some(self.controller_start)
    }

    /// Is this process the controller? Its own, if it is of this program, so one of its sessions is
    /// told from the others by [`Found::shared_va`].
    pub fn is_mine(&self) -> bool {
        self.controller_pid == std::process::id() as i32 && self.controller_alive()
    }

    /// Has it nobody who would miss it? What a forked child has of its parent's session does
    /// nothing, or is probed by somebody who looks for children.
    pub fn is_left_over(&self, process: &Process) -> bool {
        self.is_child(process) || !self.controller_alive()
    }

    /// Why this is nothing that a controller has left, though it looks like that: a clause. What is
    /// checked is what a controller writes before the first site, whenever it dies.
    pub fn made_up(&self, process: &Process, mappings: &[Mapping]) -> Option<&'static str> {
        let end = mappings.iter().find(|m| m.start == self.shared_va).map_or(self.shared_va, |m| m.end);
        let room = end.0 - self.shared_va.0;
        let fits = |offset: u64, count: u32, size: usize| {
            u64::from(count)
                .checked_mul(size as u64)
                .and_then(|len| offset.checked_add(len))
                .is_some_and(|at| at <= room)
        };
        let is_code = |(at, len): (u64, u64)| {
            let there = mappings.iter().find(|m| m.contains(Va(at)));
            there.is_some_and(|m| m.exec && !m.write && m.name.is_empty() && len <= m.end.0 - at)
        };
        match () {
            () if self.controller_pid == 0 => None,
            () if !fits(self.journal.0, self.journal.1, size_of::<JournalEntry>()) => {
                Some("its journal is outside of it")
            }
            () if !fits(self.maps.0, self.maps.1, size_of::<MapEntry>()) => {
                Some("its list of mappings is outside of it")
            }
            // A detach unmaps what the sites need once they are restored.
            () if self.detaching || self.journal.1 == 0 => None,
            () if !self.has_private(process) => Some("its sites have no memory"),
            () if !is_code(self.agent) => Some("its sites have no code"),
            () => None,
        }
    }

    /// Is the private region there? Not yet, or not any more, if a controller died while it mapped
    /// or unmapped. (The header is written at another moment.)
    pub fn has_private(&self, process: &Process) -> bool {
        self.private_va != Va(0)
            && process.read_pod::<u64>(self.private_va).is_ok_and(|shared| shared == self.shared_va.0)
    }

    /// All sites, in the order in which they were written, as they are treated for now.
    pub fn journal(&self, process: &Process) -> Result<Vec<JournalEntry>, SessionError> {
        Ok(self.entries(process)?.iter().map(JournalEntry::for_now).collect())
    }

    /// All sites as the journal has them.
    pub fn entries(&self, process: &Process) -> Result<Vec<JournalEntry>, SessionError> {
        let entries: Vec<JournalEntry> = read_array(process, self.entry(0), u64::from(self.journal.1))?;
        Ok(entries.into_iter().map(JournalEntry::checked).collect())
    }

    /// Is this a process that was forked from the one that the session is for? It has a copy of the
    /// head, which says what its parent had then.
    pub fn is_child(&self, process: &Process) -> bool {
        self.target_pid != process.pid()
    }

    /// What several remote calls need.
    pub fn room(&self) -> Room {
        regions::room(self.private_va, self.batch)
    }

    /// Where an entry of the journal is.
    pub fn entry(&self, index: usize) -> Va {
        let offset = self.journal.0.wrapping_add((index * size_of::<JournalEntry>()) as u64);
        Va(self.shared_va.0.wrapping_add(offset))
    }

    /// All mappings of ours. The number comes from the target: more than a list has room for are an
    /// error.
    pub fn mappings(&self, process: &Process) -> Result<Vec<MapEntry>, SessionError> {
        // The agent may have appended since the header was read.
        let len: u32 = process.read_pod(Va(self.shared_va.0 + offset_of!(Header, maps_len) as u64))?;
        if u64::from(len) > MAPS_CAP {
            return Err(SessionError::Damaged { pid: process.pid() });
        }
        let entries: Vec<MapEntry> =
            read_array(process, Va(self.shared_va.0.wrapping_add(self.maps.0)), u64::from(len))?;
        Ok(entries.into_iter().filter(|e| e.kind != 0 && e.len != 0).collect())
    }

    /// The trap table, by site; empty, unless SIGTRAP is ours.
    pub fn traps(&self, process: &Process) -> Result<BTreeMap<u64, u64>, SessionError> {
        if self.signals & TRAPS == 0 || !self.has_private(process) {
            return Ok(BTreeMap::new());
        }
        let word = |off: usize| process.read_pod::<u64>(Va(self.private_va.0 + off as u64));
        let (table, mask) = (word(offset_of!(Private, traps))?, word(offset_of!(Private, trap_mask))?);
        let entries: Vec<TrapEntry> =
            if table == 0 { Vec::new() } else { read_array(process, Va(table), mask.saturating_add(1))? };
        Ok(entries.into_iter().filter(|e| e.site != 0 && e.detour != 0).map(|e| (e.site, e.detour)).collect())
    }

    /// Of all sessions of the process: those that need this one's guards and, if it owns the
    /// signals, its handler.
    pub fn users<'f>(&self, all: &'f [Found]) -> impl Iterator<Item = &'f Found> {
        let Found { shared_va, private_va, owner, .. } = *self;
        all.iter().filter(move |other| match owner {
            _ if other.shared_va == shared_va || private_va == Va(0) => false,
            Va(0) => other.owner == private_va,
            // The owner and the other sharers may have left out guards that this one has.
            owner => !other.retained && [other.owner, other.private_va].contains(&owner),
        })
    }

    /// Has the session ended, and do none of these sessions need what stays of it?
    pub fn is_unneeded(&self, all: &[Found]) -> bool {
        self.retained && self.users(all).next().is_none()
    }

    /// The sites with their probes.
    pub fn sites(&self, process: &Process) -> Result<Vec<Site>, SessionError> {
        let journal = self.journal(process)?;
        let descs: Vec<ProbeDesc> = match journal.iter().map(|e| e.newest).max() {
            None | Some(0) => Vec::new(),
            Some(newest) => {
                let at = process.read_pod(Va(self.private_va.0 + offset_of!(Private, probes) as u64))?;
                read_array(process, Va(at), newest.into())?
            }
        };
        let mut has_site = vec![false; descs.len()];
        let site = |(index, entry): (usize, JournalEntry)| {
            let mut probes = Vec::new();
            // Older ones have smaller numbers: whatever is in the memory, this ends.
            let mut next = entry.newest;
            while let Some(number) = next.checked_sub(1) {
                let Some(desc) = descs.get(number as usize) else { break };
                // A probe is at one site: else a chain could be copied for each entry. It may have
                // come to another site since the journal was read.
                if std::mem::replace(&mut has_site[number as usize], true) {
                    break;
                }
                probes.push((number, *desc));
                next = desc.older.min(number);
            }
            probes.reverse();
            Site { index, entry, probes }
        };
        Ok(journal.into_iter().enumerate().map(site).collect())
    }

    /// Hits and misses of the probes with numbers below `probes`: sums over all threads, as they
    /// are now.
    pub fn counts(&self, process: &Process, probes: u32) -> Result<Vec<(u64, u64)>, SessionError> {
        let Cells { slots: (first, stride), used, cells, missed, .. } = self.cells;
        // Both numbers come from the target.
        let bytes = u64::from(used) * u64::from(probes) * size_of::<u64>() as u64;
        if u64::from(used) > SLOTS_MAX || bytes > SHARED_MAX {
            return Err(SessionError::Damaged { pid: process.pid() });
        }
        let words = |off| read_array::<u64>(process, Va(self.shared_va.0.wrapping_add(off)), probes.into());
        let mut counts: Vec<(u64, u64)> = words(missed)?.into_iter().map(|missed| (0, missed)).collect();
        for slot in 0..u64::from(used) {
            for (count, hits) in
                counts.iter_mut().zip(words(first.wrapping_add(slot.wrapping_mul(stride)).wrapping_add(cells))?)
            {
                count.0 += hits;
            }
        }
        Ok(counts)
    }

    /// What each of the first so many probes takes of the target's CPU time, as the controller
    /// found it last, in parts per million. `None`: it does not know.
    pub fn shares(&self, process: &Process, probes: u32) -> Result<Vec<Option<u32>>, SessionError> {
        let at = Va(self.shared_va.0.wrapping_add(self.cells.shares));
        // Whatever the target has written: no more than all of it.
        let share = |word: u64| word.checked_sub(1).map(|millionths| millionths.min(1_000_000) as u32);
        Ok(read_array::<u64>(process, at, probes.into())?.into_iter().map(share).collect())
    }
}

/// A site and who listens there.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// In the journal.
    pub index: usize,
    pub entry: JournalEntry,
    /// Numbers and descriptors, in order of registration, those of our own included.
    pub probes: Vec<(u32, ProbeDesc)>,
}

impl Site {
    /// Is it in front of a system call, for the sake of signals or children? Other probes may be
    /// there, too.
    pub fn is_guard(&self) -> bool {
        let guards = |desc: &ProbeDesc| desc.flow == Flow::SignalCall as u32;
        self.entry.own == 1 && self.entry.newest != 0 && self.probes.iter().any(|(_, desc)| guards(desc))
    }

    /// Those that are not our own, and were not taken out.
    pub fn users(&self) -> impl Iterator<Item = &(u32, ProbeDesc)> {
        const USERS: [Flow; 4] = [Flow::Entry, Flow::Return, Flow::Enter, Flow::Exit];
        let own = |desc: &ProbeDesc| !USERS.iter().any(|flow| desc.flow == *flow as u32);
        self.probes.iter().filter(move |(_, desc)| !own(desc) && desc.flags & ProbeDesc::RETIRED == 0)
    }

    /// The function that it is of, a run-time address; if there are several, the lowest one.
    pub fn function(&self) -> u64 {
        self.users().map(|(_, desc)| desc.asked).min().unwrap_or(self.entry.site)
    }
}

/// The users' exits of functions whose entries are sites of our own. They stay as long as these:
/// calls would be seen that never return.
pub(crate) fn exits_of_own(sites: &[Site]) -> BTreeSet<u64> {
    let own = sites.iter().filter(|site| site.entry.own == 1);
    let entered: BTreeSet<u64> = own.flat_map(Site::users).map(|(_, probe)| probe.asked).collect();
    let returns = |(_, probe): &(u32, ProbeDesc)| probe.flow == Flow::Exit as u32 && entered.contains(&probe.asked);
    sites.iter().filter(|site| site.users().any(returns)).map(|site| site.entry.site).collect()
}

/// The breakpoint of the instruction set that a site is of, which its patch says.
pub(crate) fn trap_of(entry: &JournalEntry) -> &'static [u8] {
    breakpoint_like(&entry.new)
}

/// The instruction set that a site is of.
pub(crate) fn isa_of(entry: &JournalEntry) -> Isa {
    let is_of = |isa: &Isa| isa.limits().breakpoint == trap_of(entry);
    arch::ISAS.iter().copied().find(is_of).unwrap_or(arch::ISA)
}

/// The original code of a site with a breakpoint over its start.
pub(crate) fn trapped(entry: &JournalEntry) -> Vec<u8> {
    let (code, trap) = (&entry.old[..usize::from(entry.len)], trap_of(entry));
    [trap, code.get(trap.len()..).unwrap_or_default()].concat()
}

/// What is at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Text {
    /// Our patch.
    Patched,
    /// A trap instead of a jump, to the same detour: for good, or while it is being switched.
    Trapped,
    /// What was there before, since the site was disabled.
    Original,
    /// Our patch, but for its first byte: that is somebody else's breakpoint, or the original one,
    /// which whoever had a breakpoint there has put back. Uprobes of the kernel do so.
    Disturbed,
    /// Something else: its library was unloaded, or somebody has changed it.
    Foreign,
}

/// What is at the site of an entry now.
pub(crate) fn text(process: &Process, mappings: &[Mapping], entry: &JournalEntry) -> Text {
    let mut now = vec![0; usize::from(entry.len)];
    let read = process.read(Va(entry.site), &mut now).is_ok();
    text_of(read.then_some(&now[..]), mappings, entry)
}

/// What these bytes at the site of an entry are.
pub(crate) fn text_of(now: Option<&[u8]>, mappings: &[Mapping], entry: &JournalEntry) -> Text {
    let len = usize::from(entry.len);
    let Some(now) = now else { return Text::Foreign };
    // The same bytes at the same place of another file, or at another place of the same, may have
    // other successors; and a byte that is like our trap may be somebody else's. Memory that is of
    // no file may be a copy of the code with our patches.
    let file = file_of(mappings, Va(entry.site));
    let same_file = file == (entry.inode, entry.file_offset);
    let other_file = !same_file && file.0 != 0 && entry.inode != 0;
    let is_either = |i: usize| now[i] == entry.old[i] || now[i] == entry.new[i];
    let trap = trap_of(entry);
    let is_start = |start: &[u8]| start == trap || start == &entry.old[..trap.len()];
    match () {
        () if other_file => Text::Foreign,
        () if now == &entry.new[..len] => Text::Patched,
        () if entry.disabled == 1 && now == &entry.old[..len] && same_file => Text::Original,
        () if entry.may_be_trap() && now.starts_with(trap) && (trap.len()..len).all(is_either) => Text::Trapped,
        () if len > trap.len() && is_start(&now[..trap.len()]) && now[trap.len()..] == entry.new[trap.len()..len] => {
            Text::Disturbed
        }
        () => Text::Foreign,
    }
}

/// Is it ours what is at the site?
pub(crate) fn is_written(process: &Process, mappings: &[Mapping], entry: &JournalEntry) -> bool {
    matches!(text(process, mappings, entry), Text::Patched | Text::Trapped | Text::Disturbed)
}

/// Are these bytes at the site ours?
pub(crate) fn is_ours(now: &[u8], mappings: &[Mapping], entry: &JournalEntry) -> bool {
    matches!(text_of(Some(now), mappings, entry), Text::Patched | Text::Trapped | Text::Disturbed)
}

/// The original code at the site of an entry, where these bytes are now: a breakpoint of somebody
/// else stays.
pub(crate) fn original(now: &[u8], mappings: &[Mapping], entry: &JournalEntry) -> Vec<u8> {
    let mut old = entry.old[..usize::from(entry.len)].to_vec();
    if text_of(Some(now), mappings, entry) == Text::Disturbed {
        old[0] = now[0];
    }
    old
}

/// The inode that an address is mapped from, and where in the file it is; (0, 0) = none.
pub(crate) fn file_of(mappings: &[Mapping], at: Va) -> (u64, u64) {
    let next = mappings.partition_point(|m| m.start <= at);
    let mapping = mappings[..next].last().filter(|m| m.contains(at) && m.inode != 0);
    mapping.map_or((0, 0), |m| (m.inode, m.offset + (at.0 - m.start.0)))
}

/// The states of all threads that have hit a probe, and where they are.
pub(crate) fn states(process: &Process, private: Va) -> Result<Vec<(Va, ThreadState)>, SessionError> {
    state_addresses(process, private)?.into_iter().map(|at| Ok((at, read_one(process, at)?))).collect()
}

/// Where they are. The numbers may come from the target: more states than a session has are an
/// error, and so are states that overlap.
pub(crate) fn state_addresses(process: &Process, private: Va) -> Result<Vec<Va>, SessionError> {
    let head: Private = read_one(process, private)?;
    let used = u64::from(head.states_used.into_inner());
    if used > SLOTS_MAX || used > 1 && head.state_stride < size_of::<ThreadState>() as u64 {
        return Err(SessionError::Damaged { pid: process.pid() });
    }
    Ok((0..used).map(|i| Va(head.states.wrapping_add(head.state_stride.wrapping_mul(i)))).collect())
}

/// The entries in use of all shadow stacks, and where they are. The numbers may come from the
/// target: more in all than one array may have are an error.
pub(crate) fn shadow_entries(process: &Process, private: Va) -> Result<Vec<(Va, ShadowEntry)>, SessionError> {
    const SIZE: u64 = size_of::<ShadowEntry>() as u64;
    let (mut all, mut left) = (Vec::new(), LONGEST / SIZE);
    for (_, state) in states(process, private)? {
        let len = state.shadow_len.into_inner().min(state.shadow_cap);
        if state.shadow == 0 || len == 0 {
            continue;
        }
        left = left.checked_sub(len).ok_or(SessionError::Damaged { pid: process.pid() })?;
        let entries = read_array::<ShadowEntry>(process, Va(state.shadow), len)?;
        let places = (0..len).map(|index| Va(state.shadow.wrapping_add(index * SIZE)));
        all.extend(places.zip(entries).filter(|(_, entry)| entry.slot != 0));
    }
    Ok(all)
}

/// How many slots of a session are in use, which may have several processes.
fn slots_used(process: &Process, shared: Va, common: u64) -> u32 {
    let at = shared.0.wrapping_add(common).wrapping_add(offset_of!(Common, slots_used) as u64);
    process.read_pod(Va(at)).unwrap_or(0)
}

/// Bytes of the longest array of a session.
const LONGEST: u64 = 1 << 28;

/// Reads structs of a session. `count` may come from the target: what no session has is an error,
/// and memory is taken only for what is there.
pub(crate) fn read_array<T: Plain>(process: &Process, at: Va, count: u64) -> Result<Vec<T>, SessionError> {
    /// Bytes that are read at once.
    const PART: usize = 1 << 20;
    let len = count.checked_mul(size_of::<T>() as u64).filter(|len| *len <= LONGEST);
    let len = len.ok_or(SessionError::Damaged { pid: process.pid() })? as usize;
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let read = bytes.len();
        bytes.resize(len.min(read + PART), 0);
        process.read(Va(at.0.wrapping_add(read as u64)), &mut bytes[read..])?;
    }
    Ok(bytes.chunks_exact(size_of::<T>()).filter_map(from_bytes).collect())
}

pub(crate) fn read_one<T: Plain>(process: &Process, at: Va) -> Result<T, SessionError> {
    let mut all = read_array(process, at, 1)?;
    all.pop().ok_or(SessionError::TooMany { what: "nothing" })
}
