//! The processes that have the memory of a session: those that it knows, and all that were forked
//! from them.

use std::collections::HashSet;
use std::fs;

use sidestep_sys::parse_maps;

use crate::target::discovery::MEMFD_LINK;

/// Finds them by what they have mapped: so a child is found whoever its parent is by now, and
/// whatever namespace it lives in.
pub(crate) struct Family {
    /// Of the memory.
    inode: u64,
    /// Processes that do not have it: memory is inherited, so they never will.
    strangers: HashSet<i32>,
}

impl Family {
    pub fn new(inode: u64) -> Family {
        Family { inode, strangers: HashSet::new() }
    }

    /// All that are there at the moment.
    pub fn look(&mut self) -> Vec<i32> {
        let all: HashSet<i32> = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        self.strangers.retain(|pid| all.contains(pid));
        let mut members: Vec<i32> =
            all.difference(&self.strangers).copied().filter(|pid| self.is_member(*pid)).collect();
        self.strangers.extend(all.into_iter().filter(|pid| !members.contains(pid)));
        members.retain(|pid| *pid != std::process::id() as i32);
        members
    }

    /// The process that calls itself by this id.
    pub fn find(&mut self, own: i32) -> Option<i32> {
        if self.is_member(own) {
            return Some(own);
        }
        self.look().into_iter().find(|pid| innermost_pid(*pid) == Some(own))
    }

    fn is_member(&self, pid: i32) -> bool {
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        let ours = |name: &str| name.starts_with(MEMFD_LINK);
        parse_maps(&maps).iter().any(|m| m.inode == self.inode && ours(&m.name.to_string_lossy()))
    }
}

/// The last of the ids that a process has in nested pid namespaces.
fn innermost_pid(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_ascii_whitespace().last()?.parse().ok()
}
