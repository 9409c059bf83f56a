//! What programs are told of processes: their names and those of their parents, in a hash by the
//! number that a process has for itself. A program asks the kernel for the name of its own thread.
//! Nothing that a hit may do asks for the name of another one: that takes a file descriptor.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sidestep_sys::{comm_bytes, namespace_ids, parent};

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
    let own = namespace_ids(pid);
    let parent = parent(pid).filter(|parent| namespace_ids(*parent).len() == own.len());
    parent.into_iter().chain([pid]).filter_map(name).collect()
}

/// The bytes of the name: it may be no text.
fn name(pid: i32) -> Option<Entry> {
    let own = *namespace_ids(pid).last()?;
    let mut bytes = comm_bytes(pid).ok()?;
    bytes.truncate(NAME - 1);
    bytes.resize(NAME, 0);
    Some(Entry { key: u64::from(own.unsigned_abs()).to_ne_bytes().to_vec(), value: Value::One(bytes) })
}

fn one(value: Value) -> Option<Vec<u8>> {
    if let Value::One(bytes) = value { Some(bytes) } else { None }
}

/// Names that programs were told, and when.
#[derive(Default)]
pub(crate) struct Told {
    names: HashMap<Vec<u8>, Vec<u8>>,
    at: Option<Instant>,
}

/// Tells programs what a process and its parent are called.
pub(crate) fn tell_names(map: Option<usize>, pid: i32, regions: &Regions) {
    let Some(map) = map else { return };
    for entry in process_names(pid) {
        regions.maps().insert(map, &entry);
    }
}

impl Session {
    /// Tells the names of all processes of the session that have changed, if they may be out of
    /// date. A program may be reading a name while it is written: so nothing is written that is
    /// known.
    pub(crate) fn refresh_names(&mut self) {
        let map = self.installer.bundle.processes;
        let (Some(map), Some(regions)) = (map, self.installer.regions()) else { return };
        if self.told.at.is_some_and(|at| at.elapsed() < AGE) {
            return;
        }
        if self.told.at.is_none() {
            let known = regions.maps().entries(map).into_iter();
            self.told.names = known.filter_map(|entry| Some((entry.key, one(entry.value)?))).collect();
        }
        for entry in self.pids().flat_map(process_names).collect::<Vec<_>>() {
            let Some(bytes) = one(entry.value.clone()) else { continue };
            if self.told.names.get(&entry.key) != Some(&bytes) {
                regions.maps().insert(map, &entry);
                self.told.names.insert(entry.key, bytes);
            }
        }
        self.told.at = Some(Instant::now());
    }
}
