//! The processes that have the memory of a session: the known ones, and all that were forked from
//! them. A target can hand the memory to any process, and can name any process when it asks. So
//! the session changes and traces only processes that the kernel says to belong here.

use std::collections::{HashMap, HashSet};
use std::fs;

use sidestep_sys::{Credentials, parent, parse_maps, processes, start_time_of};

use crate::target::discovery::MEMFD_LINK;

/// Init, to which processes go whose parents have ended.
const INIT: i32 = 1;

/// Finds processes by what they have mapped, in any namespace. A process belongs to the family if
/// the kernel says that a known process is its ancestor, or that a known process may trace it. So
/// the session does nothing for the target that the target may not do itself.
pub(crate) struct Family {
    /// Of the memory.
    inode: u64,
    /// Processes that did not have it. Members inherit it, so these are none; but somebody may give
    /// it to them later ([`Family::look_anew`]).
    strangers: HashSet<i32>,
    /// Members, also those that have ended, with when they began.
    known: HashMap<i32, (u64, Credentials)>,
    /// Processes that have the memory and are no members, with when they began.
    refused: HashMap<i32, u64>,
    /// Those of them of which nobody was told.
    untold: Vec<i32>,
}

impl Family {
    /// Of the processes that the session begins with.
    pub fn new(inode: u64, first: impl IntoIterator<Item = i32>) -> Family {
        let mut family = Family {
            inode,
            strangers: HashSet::new(),
            known: HashMap::new(),
            refused: HashMap::new(),
            untold: Vec::new(),
        };
        first.into_iter().for_each(|pid| family.know(pid));
        family
    }

    /// A process that the session knows for another reason.
    pub fn know(&mut self, pid: i32) {
        self.strangers.remove(&pid);
        if let (Some(start), Ok(credentials)) = (start_time_of(pid), Credentials::of(pid)) {
            self.known.insert(pid, (start, credentials));
        }
    }

    /// All that are there at the moment.
    pub fn look(&mut self) -> Vec<i32> {
        let all: HashSet<i32> = processes().into_iter().collect();
        self.strangers.retain(|pid| all.contains(pid));
        let mut holders: Vec<i32> =
            all.difference(&self.strangers).copied().filter(|pid| has_mapped(*pid, self.inode)).collect();
        self.strangers.extend(all.into_iter().filter(|pid| !holders.contains(pid)));
        // Parents first: who is known makes others known.
        holders.sort_unstable();
        holders.retain(|pid| self.is_kin(*pid));
        holders
    }

    /// As [`Family::look`], also at those that did not have the memory before: somebody may have
    /// given it to them since, or their ids may be those of others by now.
    pub fn look_anew(&mut self) -> Vec<i32> {
        self.strangers.clear();
        self.look()
    }

    /// The process that calls itself by this id.
    pub fn find(&mut self, own: i32) -> Option<i32> {
        if has_mapped(own, self.inode) && self.is_kin(own) {
            return Some(own);
        }
        self.look().into_iter().find(|pid| innermost_pid(*pid) == Some(own))
    }

    /// Processes that had the memory without being members, each once.
    pub fn take_refused(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.untold)
    }

    /// Is it one of the family by the kernel's word? Then it is known from now on.
    fn is_kin(&mut self, pid: i32) -> bool {
        let Some(start) = start_time_of(pid) else { return false };
        if self.known.get(&pid).is_some_and(|(known, _)| *known == start) {
            return true;
        }
        if pid == std::process::id() as i32 || self.refused.get(&pid) == Some(&start) {
            return false;
        }
        let Ok(credentials) = Credentials::of(pid) else { return false };
        let may_trace = || self.known.values().any(|(_, known)| known.may_trace(&credentials));
        if pid != INIT && (self.descends(pid, start) || may_trace()) {
            self.known.insert(pid, (start, credentials));
            return true;
        }
        self.refused.insert(pid, start);
        self.untold.push(pid);
        false
    }

    /// Is a known process its parent, or the parent of one of its parents?
    fn descends(&self, pid: i32, start: u64) -> bool {
        let (mut child, mut child_start) = (pid, start);
        while let Some(parent) = parent(child).filter(|parent| *parent > INIT) {
            // A parent is older than its child: else this id is somebody else's by now.
            let Some(began) = start_time_of(parent).filter(|began| *began <= child_start) else { return false };
            if self.known.get(&parent).is_some_and(|(known, _)| *known == began) {
                return true;
            }
            (child, child_start) = (parent, began);
        }
        false
    }
}

/// Has a process this memory mapped?
pub(crate) fn has_mapped(pid: i32, inode: u64) -> bool {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let ours = |name: &str| name.starts_with(MEMFD_LINK);
    parse_maps(&maps).iter().any(|m| m.inode == inode && ours(&m.name.to_string_lossy()))
}

/// The last of the ids that a process has in nested pid namespaces.
pub(super) fn innermost_pid(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_ascii_whitespace().last()?.parse().ok()
}
