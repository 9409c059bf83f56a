//! Faults of displaced instructions: their handlers, core files and debuggers are to see the
//! original addresses. The agent sees to that with a table of all copies (`wire::detours`), while
//! the signals are ours ([`crate::target::signals`]).

use std::mem::offset_of;

use sidestep_isa::{Len, Va};
use sidestep_plan::detour::Detour;
use sidestep_plan::{Plan, faults};

use sidestep_wire::{CopyPair, DetourEntry, DetourTable, Private};

use crate::error::SessionError;
use crate::memory::layout::{PAGE, round};
use crate::memory::raw::bytes_of;
use crate::target::allocator::Table;
use crate::target::hold::Hold;
use crate::target::regions::Regions;

/// The detours of a session.
#[derive(Clone, Default)]
pub(crate) struct Detours {
    entries: Vec<DetourEntry>,
    pairs: Vec<CopyPair>,
    /// The table is in the target, for handlers of faults.
    pub shown: bool,
    /// The table is in the target, for stacks.
    pub walked: bool,
}

impl Regions {
    /// Adds detours to the table of copies, before their sites are written. A new table replaces
    /// the old one.
    pub fn add_detours<'a>(
        &mut self,
        hold: &mut Hold<'_>,
        new: impl Iterator<Item = (&'a Plan, &'a Detour)>,
    ) -> Result<(), SessionError> {
        let known = &mut self.detours;
        for (plan, detour) in new {
            let first = known.pairs.len() as u32;
            known.pairs.append(&mut faults::places(plan, detour));
            let count = known.pairs.len() as u32 - first;
            known.entries.push(DetourEntry { detour: detour.at.0, site: detour.site.0, first, count });
        }
        let (shown, walked) = (known.shown, known.walked);
        if !(shown || walked) || known.entries.is_empty() {
            return Ok(());
        }
        let bytes = known.table();
        let len = Len(round(bytes.len() as u64, PAGE));
        let table = self.room_for_table(hold, len)?;
        let process = hold.process();
        process.write(Va(table.start), &bytes)?;
        let users = [(shown, offset_of!(Private, detours)), (walked, offset_of!(Private, copies))];
        for (_, field) in users.into_iter().filter(|(uses, _)| *uses) {
            process.write(Va(self.private.0 + field as u64), &table.start.to_ne_bytes())?;
        }
        self.spare.borrow_mut().put_into_use(Table::Copies, table);
        Ok(())
    }
}

impl Detours {
    /// Leaves out others.
    pub fn retain(&mut self, stays: impl Fn(&DetourEntry) -> bool) {
        let pairs = std::mem::take(&mut self.pairs);
        self.entries.retain(stays);
        for entry in &mut self.entries {
            let first = std::mem::replace(&mut entry.first, self.pairs.len() as u32) as usize;
            self.pairs.extend_from_slice(&pairs[first..first + entry.count as usize]);
        }
    }

    fn table(&mut self) -> Vec<u8> {
        self.entries.sort_by_key(|entry| entry.detour);
        let mut by_site: Vec<u32> = (0..self.entries.len() as u32).collect();
        by_site.sort_by_key(|index| self.entries[*index as usize].site);
        let head = DetourTable { len: self.entries.len() as u32, copies: self.pairs.len() as u32 };
        let mut bytes = bytes_of(&head).to_vec();
        bytes.extend(self.entries.iter().flat_map(bytes_of));
        bytes.extend(self.pairs.iter().flat_map(bytes_of));
        bytes.extend(by_site.iter().flat_map(|index| index.to_ne_bytes()));
        bytes
    }
}
