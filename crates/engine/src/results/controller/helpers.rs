//! The helpers of programs that run in the controller, as far as they mean something there: its own
//! process is the one that is asked about, and there is no target to read from.

use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::MetadataExt;

use sidestep_wire::map::STACK_TRACE;
use sidestep_wire::{Histogram, glob};

use super::memory::{RECORD, Space};
use crate::api::Record;

const ENOENT: i64 = -2;
const EFAULT: i64 = -14;
const EINVAL: i64 = -22;

impl Space<'_> {
    /// What a helper returns; `None`: there is none with this number.
    pub fn help(&mut self, helper: u32, args: [u64; 5]) -> Option<u64> {
        let [a, b, c, d, _] = args;
        Some(match helper {
            1 => {
                self.desc(a).and_then(|(map, desc)| self.lookup(map, &self.read(b, desc.key_size.into())?)).unwrap_or(0)
            }
            2 => {
                let done = self.desc(a).and_then(|(map, desc)| {
                    let (key, value) = (self.read(b, desc.key_size.into())?, self.read(c, desc.value_size.into())?);
                    Some(self.update(map, &key, &value, d))
                });
                done.unwrap_or(EINVAL) as u64
            }
            3 => {
                let done =
                    self.desc(a).and_then(|(map, desc)| Some(self.delete(map, &self.read(b, desc.key_size.into())?)));
                done.unwrap_or(ENOENT) as u64
            }
            5 => sidestep_sys::monotonic(),
            7 => std::hash::RandomState::new().build_hasher().finish() & u64::from(u32::MAX),
            8 => cpu(),
            14 => u64::from(std::process::id()) << 32 | u64::from(std::process::id()),
            15 => std::fs::metadata("/proc/self").map_or(0, |own| u64::from(own.gid()) << 32 | u64::from(own.uid())),
            16 => {
                let mut comm = std::fs::read("/proc/self/comm").unwrap_or_default();
                comm.retain(|byte| *byte != b'\n');
                comm.resize(b as usize, 0);
                if let Some(last) = comm.last_mut() {
                    *last = 0;
                }
                self.write(a, &comm).map_or(EFAULT as u64, |()| 0)
            }
            4 | 112 | 113 => {
                let done = self.read(c, b).and_then(|bytes| self.write(a, &bytes));
                if done.is_none() {
                    let _ = self.write(a, &vec![0; b as usize]);
                }
                done.map_or(EFAULT as u64, |()| 0)
            }
            45 | 114 | 115 => {
                let done = self.read_text(c, b).and_then(|text| self.write(a, &text).map(|()| text.len() as u64));
                if done.is_none() && b > 0 {
                    let _ = self.write(a, &vec![0; b as usize]);
                }
                done.unwrap_or(EFAULT as u64)
            }
            131 => match self.desc(a) {
                Some((map, _)) => {
                    self.new_record(map, b);
                    RECORD
                }
                None => 0,
            },
            132 => {
                self.submit(8 * self.record.len() as u64);
                0
            }
            133 => {
                self.record.clear();
                0
            }
            // Nothing is probed.
            174 => 0,
            258 => self.desc(a).and_then(|(map, desc)| self.next_entry(map, &desc, b, c, d)).unwrap_or(0),
            259 => self.desc(a).map_or(0, |(map, desc)| match desc.kind {
                STACK_TRACE => self.maps.stack(map, b).len() as u64,
                _ => self.maps.count(map),
            }),
            260 => match (self.read_text(a, b + 1), self.read_text(c, d + 1)) {
                (Some(text), Some(part)) => {
                    let part = &part[..part.len() - 1];
                    let found = (0..text.len()).find(|at| text[*at..text.len() - 1].starts_with(part));
                    found.map_or(u64::MAX, |at| at as u64)
                }
                _ => EFAULT as u64,
            },
            261 => u64::from(std::os::unix::process::parent_id()),
            262 => match (self.read_text(a, b + 1), self.read_text(c, d + 1)) {
                (Some(text), Some(pattern)) => {
                    let byte = |of: &[u8], at: u64| of.get(at as usize).copied().unwrap_or(0);
                    glob::matches(|at| byte(&text, at), |at| byte(&pattern, at)).into()
                }
                _ => EFAULT as u64,
            },
            263 => a,
            265 => b,
            255 => {
                let name = i32::try_from(c).ok().and_then(|pid| sidestep_sys::comm_bytes(pid).ok());
                let Some(mut comm) = name else { return Some(ENOENT as u64) };
                comm.resize(b as usize, 0);
                if let Some(last) = comm.last_mut() {
                    *last = 0;
                }
                self.write(a, &comm).map_or(EFAULT as u64, |()| 0)
            }
            256 => Histogram::bucket(a) as u64,
            257 => {
                self.submit(b);
                0
            }
            _ => return None,
        })
    }

    fn submit(&mut self, len: u64) {
        let bytes = self.read(RECORD, len.min(8 * self.record.len() as u64)).unwrap_or_default();
        let (pid, time_ns) = (std::process::id(), sidestep_sys::monotonic());
        self.records.push(Record { map: Some(self.record_map), pid, tid: pid, time_ns, bytes });
        self.record.clear();
    }
}

/// The processor that this thread ran on last: field 39 of `/proc/self/stat`.
fn cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_ascii_whitespace().nth(36).and_then(|cpu| cpu.parse().ok()).unwrap_or(0)
}
