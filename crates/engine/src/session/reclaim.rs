//! Taking back what probes that were removed have left in the target: detours, code of programs,
//! stubs, journal entries, numbers with their cells and descriptors. In batches, when probes are
//! about to be added: then all threads stand for a moment, and are looked at as a detach does, but
//! nobody is moved. What somebody is in, or comes back to, stays for the next time.
//!
//! A forked child has copies of the detours, whose hits are counted in what is common. So while
//! there is one, nothing is taken back. It is looked for after the threads have stood: one that
//! comes later has nothing of what was removed.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use sidestep_isa::Va;
use sidestep_plan::room::STUB;
use sidestep_sys::{Process, Stopped, processes};
use sidestep_wire::header::ISLAND;
use sidestep_wire::private::{CALLS, CALLS_OFF};
use sidestep_wire::{Call, JournalEntry, ShadowEntry};

use crate::api::TargetState;
use crate::error::SessionError;
use crate::memory::raw::bytes_of;
use crate::patch::switch::take_turn;
use crate::session::Session;
use crate::session::follow::family::has_mapped;
use crate::session::installer::Installer;
use crate::target::allocator::Taken;
use crate::target::discovery::{self, Found, read_array, shadow_entries, state_addresses};
use crate::target::hold;
use crate::target::native;
use crate::target::regions::Regions;
use crate::target::remote::stopped_mappings;
use crate::target::thread_positions;

/// So many additions are taken back at once.
const BATCH: usize = 64;
/// So many more, if that was not possible.
const MORE: usize = 16;

/// Bytes of an address.
const WORD: usize = size_of::<sidestep_sys::arch::Word>();
/// From one place in a stack to the next where one may be. Nothing keeps a stack pointer aligned;
/// but where addresses are short, many words look like one.
const STEP: usize = if WORD == 8 { 1 } else { WORD };

/// What was added at once, and is taken back at once.
#[derive(Clone)]
pub(crate) struct Addition {
    pub requests: Vec<usize>,
    pub programs: Vec<usize>,
    /// Numbers of probes, also of those that were refused.
    pub numbers: Vec<u32>,
    pub taken: Taken,
}

/// Additions, and when to look at those that are gone.
#[derive(Clone, Default)]
pub(crate) struct Additions {
    /// Those that have probes, with the numbers of these.
    present: Vec<(HashSet<u32>, Addition)>,
    /// The others.
    gone: Vec<Addition>,
    /// How many of these were left the last time.
    left: usize,
}

impl Additions {
    /// These probes were put in.
    pub fn note(&mut self, addition: Addition, numbers: HashSet<u32>) {
        if numbers.is_empty() { self.gone.push(addition) } else { self.present.push((numbers, addition)) }
    }

    /// These probes were taken out.
    pub fn remove(&mut self, numbers: &HashSet<u32>) {
        for (present, _) in &mut self.present {
            present.retain(|number| !numbers.contains(number));
        }
        let (present, gone): (Vec<_>, Vec<_>) = self.present.drain(..).partition(|(numbers, _)| !numbers.is_empty());
        self.present = present;
        self.gone.extend(gone.into_iter().map(|(_, addition)| addition));
    }

    fn are_many(&self) -> bool {
        self.gone.len() >= if self.left == 0 { BATCH } else { self.left + MORE }
    }
}

impl Session {
    /// Takes back the memory of probes that were removed, if that has become much: for
    /// [`Session::add`]. The requests and programs that they were are forgotten, and their indices
    /// given to others; probes that are there get other ids. Gives the numbers of these requests:
    /// nobody is in a handler of theirs any more.
    ///
    /// # Errors
    /// The target cannot be stopped or read.
    pub fn reclaim(&mut self) -> Result<Vec<usize>, SessionError> {
        if !self.attached || !self.installer.additions.are_many() || self.poll() != TargetState::Running {
            return Ok(Vec::new());
        }
        let process = self.process.clone();
        let _turn = take_turn(&process)?;
        let found = discovery::session(&process, self.installer.shared(&process)?)?;
        let stopped = hold::stop(&process)?;
        let agents = discovery::agents(&discovery::all(&process, &stopped_mappings(&stopped)?));
        let idle = idle(&stopped, &found, &agents, &self.installer.additions.gone);
        stopped.resume()?;
        let installer = &mut self.installer;
        // A thread in the agent is elsewhere the next time: that is not waited for until there is
        // more.
        let Some(idle) = idle? else { return Ok(Vec::new()) };
        let freed = match installer.has_children(&process)? {
            false => installer.take_back(&process, &idle)?,
            true => Vec::new(),
        };
        installer.additions.left = installer.additions.gone.len();
        Ok(freed)
    }
}

/// Which of these nobody is in, nor comes back to. `None`: somebody may be about to look something
/// up, in the agent of this session, or of another one that does it for this one.
fn idle(
    stopped: &Stopped,
    found: &Found,
    agents: &[Range<u64>],
    gone: &[Addition],
) -> Result<Option<Vec<bool>>, SessionError> {
    let process = stopped.process();
    if !found.has_private(process) {
        return Ok(None);
    }
    let places = Places::of(gone);
    let mut idle = vec![true; gone.len()];
    let mut meet = |address: u64| {
        if let Some(index) = places.find(address) {
            idle[index] = false;
        }
    };
    let mappings = stopped_mappings(stopped)?;
    // Return addresses, and registers in frames of signals.
    let words = |stack: &[u8]| stack.windows(WORD).step_by(STEP).for_each(|word| meet(value(word)));
    let positions = thread_positions::look(stopped, &mappings, words)?;
    if positions.iter().any(|position| agents.iter().any(|agent| agent.contains(&position.ip.0))) {
        return Ok(None);
    }
    positions.iter().for_each(|position| meet(position.ip.0));
    // Calls whose return is watched, and handlers that went to another stack.
    let mut numbers: HashSet<u32> = HashSet::new();
    // A call that ends at an exit may have ended in another way.
    let goes_on = |slot: u64, ret: u64| process.read_word(Va(slot)).ok() == Some(ret);
    for at in state_addresses(process, found.private_va)? {
        let calls = read_array::<Call>(process, at.offset(CALLS_OFF as i64), CALLS as u64)?;
        let calls = calls.iter().filter(|call| call.slot > Call::BUSY && goes_on(call.slot, call.ret));
        numbers.extend(calls.map(Call::number));
    }
    let stays = |entry: &ShadowEntry| entry.probe & ShadowEntry::KEPT == 0 || goes_on(entry.slot, entry.ret);
    let watched = shadow_entries(process, found.private_va)?;
    numbers.extend(watched.iter().filter(|(_, entry)| stays(entry)).map(|(_, entry)| entry.number()));
    numbers.extend(native::busy(process, found)?.iter().map(|hit| hit.number as u32));
    for (idle, addition) in idle.iter_mut().zip(gone) {
        *idle &= !addition.numbers.iter().any(|number| numbers.contains(number));
    }
    Ok(Some(idle))
}

fn value(word: &[u8]) -> u64 {
    word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Code of additions by address.
struct Places {
    /// By start: end, number of the addition.
    ranges: BTreeMap<u64, (u64, usize)>,
    /// From the first start to the last end.
    all: Range<u64>,
}

impl Places {
    fn of(additions: &[Addition]) -> Places {
        let ranges = |(index, addition): (usize, &Addition)| {
            let stubs = addition.taken.stubs.iter().map(|at| *at..*at + STUB);
            let all: Vec<Range<u64>> = addition.taken.code.iter().cloned().chain(stubs).collect();
            all.into_iter().map(move |range| (range.start, (range.end, index)))
        };
        let ranges: BTreeMap<u64, (u64, usize)> = additions.iter().enumerate().flat_map(ranges).collect();
        let end = ranges.values().map(|(end, _)| *end).max().unwrap_or(0);
        Places { all: ranges.first_key_value().map_or(0, |(start, _)| *start)..end, ranges }
    }

    fn find(&self, address: u64) -> Option<usize> {
        // Nearly no word is an address of ours.
        let near = self.all.contains(&address).then(|| self.ranges.range(..=address).next_back());
        let (_, (end, index)) = near.flatten()?;
        (address < *end).then_some(*index)
    }
}

impl Installer {
    /// Has another process the session's memory?
    fn has_children(&self, process: &Process) -> Result<bool, SessionError> {
        let Some(file) = self.regions().and_then(|regions| regions.common.file()) else { return Ok(true) };
        let inode = file.metadata().map_err(|source| SessionError::Watch { source })?.ino();
        let own = [process.pid(), std::process::id() as i32];
        Ok(processes().into_iter().any(|pid| !own.contains(&pid) && has_mapped(pid, inode)))
    }

    fn take_back(&mut self, process: &Process, idle: &[bool]) -> Result<Vec<usize>, SessionError> {
        let gone = std::mem::take(&mut self.additions.gone);
        let mut freed = Vec::new();
        // The newest first: what an older one has put into padding is under that of a newer one.
        for (addition, idle) in gone.into_iter().zip(idle).rev() {
            let Some(regions) = self.regions_mut() else { break };
            if *idle && regions.clear_entries(process, &addition.taken.entries)? {
                regions.forget(&addition);
                freed.push(addition);
            } else {
                self.additions.gone.push(addition);
            }
        }
        self.additions.gone.reverse();
        if let Some(regions) = self.regions_mut() {
            regions.spare.borrow_mut().release_tables();
        }
        let numbers: HashSet<u32> = freed.iter().flat_map(|addition| addition.numbers.iter().copied()).collect();
        let stubs: Vec<u64> = freed.iter().flat_map(|addition| addition.taken.stubs.iter().copied()).collect();
        let requests: Vec<usize> = freed.iter().flat_map(|addition| addition.requests.iter().copied()).collect();
        let programs = freed.iter().flat_map(|addition| addition.programs.iter().copied()).collect();
        self.surroundings.release_stubs(&stubs);
        self.free_numbers(&numbers);
        self.free_slots(&requests, programs);
        Ok(requests)
    }
}

impl Regions {
    /// Blanks journal entries of sites that are nobody's, and restores padding. `false`: that is
    /// not possible now, nothing has changed.
    fn clear_entries(&self, process: &Process, indices: &[u64]) -> Result<bool, SessionError> {
        let entry = |index: &u64| self.head.read_array::<JournalEntry>(self.entry_off(*index), 1);
        let entries: Vec<_> = indices.iter().map(entry).collect::<Result<_, _>>()?;
        let entries: Vec<JournalEntry> = entries.into_iter().flatten().map(JournalEntry::checked).collect();
        let mut islands = Vec::new();
        for entry in &entries {
            let len = usize::from(entry.len);
            if entry.own == ISLAND {
                let mut now = vec![0; len];
                // An object that was unloaded has no padding.
                if process.read(Va(entry.site), &mut now).is_ok() {
                    if now != entry.new[..len] {
                        return Ok(false);
                    }
                    islands.push(entry);
                }
            } else if entry.own != 0 || entry.newest != 0 || entry.disabled == 0 {
                return Ok(false);
            }
        }
        for island in islands {
            process.write(Va(island.site), &island.old[..usize::from(island.len)])?;
        }
        for index in indices {
            self.head.write(self.entry_off(*index), bytes_of(&JournalEntry::default()))?;
        }
        self.spare.borrow_mut().entries.extend(indices);
        Ok(true)
    }

    /// Nobody comes to the code of an addition any more.
    fn forget(&mut self, addition: &Addition) {
        let code = &addition.taken.code;
        let is_there = |at: u64| code.iter().any(|range| range.contains(&at));
        self.traps.retain(|entry| !is_there(entry.detour & !sidestep_wire::TrapEntry::RECORD));
        self.detours.retain(|entry| !is_there(entry.detour));
        self.spare.borrow_mut().code.extend(code.iter().cloned());
        let cells = |number: u32| u64::from(number) * 8;
        for number in &addition.numbers {
            for slot in 0..self.slots() {
                let cell = self.layout.slot(slot) + self.layout.cells_off + cells(*number);
                self.common.u64(cell).store(0, Ordering::Relaxed);
            }
            self.common.u64(self.layout.missed_off + cells(*number)).store(0, Ordering::Relaxed);
            self.forget_dropped(*number);
        }
    }
}
