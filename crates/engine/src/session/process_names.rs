//! What programs are told of processes: their names and those of their parents, in a hash by the
//! number that a process has for itself. A program asks the kernel for the name of its own thread.
//! Nothing that a hit may do asks for the name of another one: that takes a file descriptor.

use std::time::{Duration, Instant};

use sidestep_sys::{Process, parent};

use crate::api::{Entry, Value};
use crate::session::Session;
use crate::target::regions::Regions;

/// Bytes of the name of a process, with what ends it (`TASK_COMM_LEN`).
const NAME: usize = 16;
/// How old a name may be. A process may change its own at any time.
const AGE: Duration = Duration::from_millis(100);

/// The names of a process and of its parent, as entries of the hash by process number.
///
/// One that has ended has no name. A parent outside the PID namespace of the process has no number
/// there.
///
/// ```
/// let entries = sidestep_engine::process_names(std::process::id() as i32);
/// assert_eq!(entries.last().unwrap().key, u64::from(std::process::id()).to_ne_bytes());
/// ```
#[must_use]
pub fn process_names(pid: i32) -> Vec<Entry> {
    let Ok(process) = Process::look_at(pid) else { return Vec::new() };
    let parent = parent(pid).and_then(|parent| Process::look_at(parent).ok());
    let parent = parent.filter(|parent| parent.namespaces() == process.namespaces());
    [parent, Some(process)].into_iter().flatten().filter_map(|process| name(&process)).collect()
}

fn name(process: &Process) -> Option<Entry> {
    let mut bytes = process.comm().ok()?.into_bytes();
    bytes.truncate(NAME - 1);
    bytes.resize(NAME, 0);
    let key = u64::from(process.own_id().unsigned_abs()).to_ne_bytes().to_vec();
    Some(Entry { key, value: Value::One(bytes) })
}

/// Tells programs what a process and its parent are called.
pub(crate) fn tell_names(map: Option<usize>, pid: i32, regions: &Regions) {
    let Some(map) = map else { return };
    for entry in process_names(pid) {
        regions.maps().insert(map, &entry);
    }
}

impl Session {
    /// Tells the names of all processes of the session anew, if they may be out of date.
    pub(crate) fn refresh_names(&mut self) {
        let map = self.installer.bundle.processes;
        if map.is_none() || self.named.is_some_and(|named| named.elapsed() < AGE) {
            return;
        }
        if let Some(regions) = self.installer.regions() {
            self.pids().for_each(|pid| tell_names(map, pid, regions));
        }
        self.named = Some(Instant::now());
    }
}
