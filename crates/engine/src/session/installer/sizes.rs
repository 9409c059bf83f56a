//! How large a session's memory is made: before anything is mapped, for what is there and may come.

use sidestep_bpf::map::Map;
use sidestep_sys::arch::Word;

use super::Installer;
use crate::api::BundleMap;
use crate::error::SessionError;
use crate::memory::layout::{Layout, Needs};
use crate::results::maps;

/// Ring of a thread, unless asked for otherwise.
const RING_DEFAULT: usize = 256 * 1024;
const RING_MIN: usize = 4096;
const RING_MAX: usize = 64 << 20;
/// Sites of probes for which a spawned command gets room: what it will match is not known before
/// its libraries are there.
const SPAWN_PROBES: u64 = if size_of::<Word>() == 4 { 64 * 1024 } else { 128 * 1024 };
/// Probes at unwinders of libraries that come later, where return addresses are replaced: for some
/// ten libraries.
const LATER_UNWINDERS: u64 = 64;
/// Fewest where the user limits the memory.
const SPAWN_PROBES_LEAST: u64 = 1024;
/// Probes with map entries of their own, for patterns that mean one function of each object. Those
/// that mean many get as many as there are sites, if there is room.
const SPAWN_ENTRIES: u64 = if size_of::<Word>() == 4 { 128 } else { 512 };

impl Installer {
    /// Decides the sizes for an attach, where all matches are known, unless more may come.
    pub fn size_for(&mut self, probes: usize) -> Result<(), SessionError> {
        let probes = probes as u64;
        let more = self.options.extensible || self.options.listens();
        match more || self.registry.borrow().several {
            true => self.size_for_more(probes),
            false => {
                let later = if self.replaces { LATER_UNWINDERS } else { 0 };
                self.size(probes + later, probes)
            }
        }
    }

    /// Decides the sizes for a spawn.
    pub fn size_for_spawn(&mut self) -> Result<(), SessionError> {
        self.size_for_more(0)
    }

    /// Decides the sizes for so many probes, and for those that may come: for fewer of them where
    /// there is no room.
    fn size_for_more(&mut self, known: u64) -> Result<(), SessionError> {
        let is_many = self.requests.iter().any(|request| request.pattern.func.is_many());
        let mut probes = known.max(SPAWN_PROBES);
        let mut entries = known.max(if is_many { SPAWN_PROBES } else { SPAWN_ENTRIES });
        loop {
            match self.size(probes, entries) {
                Err(SessionError::MapsTooLarge | SessionError::MemoryLimit { .. })
                    if entries > known.max(SPAWN_ENTRIES) =>
                {
                    entries = known.max(SPAWN_ENTRIES).max(entries / 2);
                }
                Err(SessionError::MemoryLimit { .. }) if probes > known.max(SPAWN_PROBES_LEAST) => {
                    probes = known.max(probes / 2);
                }
                result => return result,
            }
        }
    }

    fn size(&mut self, probes: u64, cookies: u64) -> Result<(), SessionError> {
        if self.registry.borrow().layout.is_some() {
            return Ok(());
        }
        let probes = probes.max(1);
        let entries = u32::try_from(cookies.max(1)).map_err(|_| SessionError::TooMany { what: "probes" })?;
        let sized = |m: &BundleMap| match m.per_probe {
            true => Map { max_entries: entries, ..m.map.clone() },
            false => m.map.clone(),
        };
        let maps: Vec<Map> = self.bundle.maps.iter().map(sized).collect();
        let asked = match self.options.ring_bytes {
            0 => RING_DEFAULT,
            n => n.clamp(RING_MIN, RING_MAX),
        };
        // All rings of a bundle share the one that each thread has.
        let ring_len = match maps::ring_bytes(&maps) {
            0 if !self.bundle.prints() => 0,
            wanted => (wanted as usize).clamp(asked, RING_MAX).next_power_of_two() as u64,
        };
        let needs = Needs { probes, maps, ring_len };
        let layout = Layout::new(&needs).ok_or(SessionError::MapsTooLarge)?;
        let layout = match self.options.protection.max_memory {
            Some(limit) => layout.within(limit).map_err(|needed| SessionError::MemoryLimit { needed, limit })?,
            None => layout,
        };
        self.registry.borrow_mut().layout = Some((layout, needs.maps));
        Ok(())
    }
}
