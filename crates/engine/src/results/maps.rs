//! Maps of programs: their memory, and reading them while the target runs.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use sidestep_bpf::map::{Map, MapKind};
use sidestep_wire::hash::{Found, Step};
use sidestep_wire::{Common, MapDesc, Slot, Stacks, Table};

use crate::api::{Bundle, Entry, Program, Value};
use crate::memory::layout::Layout;
use crate::memory::maps::placed;
use crate::memory::view::View;
use crate::target::regions::Regions;

/// Bytes that the rings among the maps ask for together.
pub(crate) fn ring_bytes(maps: &[Map]) -> u64 {
    let bytes = |map: &Map| match map.kind {
        MapKind::Ringbuf => u64::from(map.max_entries),
        // Its size is up to whoever opens it.
        MapKind::PerfEventArray => 1,
        _ => 0,
    };
    maps.iter().map(bytes).sum()
}

impl Bundle {
    /// Whether a program writes lines, which need a ring without a map for it.
    pub(crate) fn prints(&self) -> bool {
        self.programs
            .iter()
            .filter_map(Program::verified)
            .any(|v| v.facts.calls(|helper| helper.name == "trace_printk"))
    }
}

/// Steps through a map, in those of one walk: entries that are removed and used again meanwhile are
/// met again.
const WALKS: u64 = 8;

/// The maps of a session, as the controller sees them: with a value of its own where each thread
/// has one.
#[derive(Clone, Copy)]
pub struct Maps<'a> {
    pub(crate) shared: &'a View,
    pub(crate) layout: &'a Layout,
    pub(crate) maps: &'a [Map],
    /// What each thread has, of the controller itself.
    pub(crate) own: &'a [AtomicU64],
}

impl Regions {
    pub fn maps(&self) -> Maps<'_> {
        Maps { shared: &self.common, layout: &self.layout, maps: &self.maps, own: self.own.words(0, self.layout.cells) }
    }

    /// Sets a value of an array to as much of a text as there is room for.
    pub fn set_name(&self, map: usize, index: u64, name: &str) {
        let room = self.maps.get(map).map_or(0, |map| map.value_size as usize);
        self.set_value(map, index, &name.as_bytes()[..name.len().min(room.saturating_sub(1))]);
    }

    /// Sets a value of an array, which programs only read.
    pub fn set_value(&self, map: usize, index: u64, bytes: &[u8]) {
        self.maps().set_value(map, index, bytes);
    }
}

impl Maps<'_> {
    pub(crate) fn map_desc(&self, map: usize) -> Option<MapDesc> {
        placed(self.maps, self.layout, map)
    }

    /// The table of a hash map with this description.
    pub(crate) fn table<'d>(&'d self, map: usize, desc: &'d MapDesc) -> Table<'d> {
        let live = self.shared.map_desc(self.layout.map_desc(map));
        Table::shared(desc, live, self.shared.words(desc.data, desc.data_len() / 8))
    }

    /// Entries of a hash map.
    pub(crate) fn count(&self, map: usize) -> u64 {
        let Some(desc) = self.map_desc(map) else { return 0 };
        let live = self.shared.map_desc(self.layout.map_desc(map));
        live.count.load(Ordering::Relaxed).min(desc.capacity.into())
    }

    /// Entries or records that did not fit.
    pub fn dropped(&self, map: usize) -> u64 {
        if map >= self.maps.len() {
            return 0;
        }
        let at = self.layout.map_desc(map) + offset_of!(MapDesc, dropped) as u64;
        self.shared.u64(at).load(Ordering::Relaxed)
    }

    /// All entries of a map. Each is consistent in itself, as far as programs change values by
    /// whole words.
    pub fn entries(&self, map: usize) -> Vec<Entry> {
        let Some(desc) = self.map_desc(map) else { return Vec::new() };
        match self.maps[map].kind {
            MapKind::Array => self
                .array(&desc, |maps, index| Value::One(maps.bytes(desc.data + index * desc.stride, desc.value_size))),
            MapKind::PercpuArray => self.array(&desc, |maps, index| {
                maps.per_thread(|cells| Some(cells.bytes(desc.cells + index * desc.stride, desc.value_size)))
            }),
            MapKind::Hash | MapKind::LruHash | MapKind::PercpuHash | MapKind::LruPercpuHash => self.hash(map, &desc),
            MapKind::StackTrace => self.stacks(&desc),
            MapKind::Ringbuf | MapKind::PerfEventArray => Vec::new(),
        }
    }

    /// Sets a value of an array.
    pub(crate) fn set_value(&self, map: usize, index: u64, bytes: &[u8]) {
        if index < u64::from(self.maps[map].max_entries) && bytes.len() as u64 <= self.maps[map].stride() {
            self.shared.write(self.layout.maps[map].data + index * self.maps[map].stride(), bytes);
        }
    }

    /// The words of one value of an array; where it has a value per thread, the sums over all
    /// threads.
    pub fn sums(&self, map: usize, index: u64) -> Vec<u64> {
        let Some(desc) = self.map_desc(map).filter(|desc| index < u64::from(desc.max_entries)) else {
            return Vec::new();
        };
        let words = desc.stride / 8;
        if self.maps[map].kind == MapKind::Array {
            let values = self.shared.words(desc.data + index * desc.stride, words);
            return values.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        }
        let mut sums = vec![0u64; words as usize];
        for (_, cells) in self.threads() {
            for (sum, word) in sums.iter_mut().zip(cells.words(desc.cells + index * desc.stride, words)) {
                *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
            }
        }
        sums
    }

    /// Slots in use.
    pub(crate) fn slots(&self) -> u64 {
        let used =
            self.shared.u32(self.layout.common_off + offset_of!(Common, slots_used) as u64).load(Ordering::Acquire);
        u64::from(used).min(self.layout.slots_max)
    }

    /// Thread that uses a slot, or did last.
    pub(crate) fn tid(&self, slot: u64) -> u32 {
        self.shared.u32(self.layout.slot(slot) + offset_of!(Slot, tid) as u64).load(Ordering::Relaxed)
    }

    /// The cells of all threads, and at last our own.
    fn threads(&self) -> impl Iterator<Item = (u32, Cells<'_>)> {
        let words = self.layout.cells;
        let target = (0..self.slots()).map(move |slot| {
            (self.tid(slot), Cells(self.shared.words(self.layout.slot(slot) + self.layout.cells_off, words)))
        });
        target.chain((!self.own.is_empty()).then_some((std::process::id(), Cells(self.own))))
    }

    fn per_thread(&self, value: impl Fn(Cells<'_>) -> Option<Vec<u8>>) -> Value {
        Value::PerThread(self.threads().filter_map(|(tid, cells)| value(cells).map(|bytes| (tid, bytes))).collect())
    }

    fn bytes(&self, at: u64, len: u32) -> Vec<u8> {
        let words = self.shared.words(at, u64::from(len).div_ceil(8));
        to_bytes(words.iter().map(|word| word.load(Ordering::Relaxed)), len)
    }

    fn array(&self, desc: &MapDesc, value: impl Fn(&Self, u64) -> Value) -> Vec<Entry> {
        let entry = |index: u32| Entry { key: index.to_ne_bytes().to_vec(), value: value(self, index.into()) };
        (0..desc.max_entries).map(entry).collect()
    }

    fn hash(&self, map: usize, desc: &MapDesc) -> Vec<Entry> {
        let table = self.table(map, desc);
        let mut entries = Vec::new();
        if table.is_untouched() {
            return entries;
        }
        let mut left = WALKS * table.steps() + u64::from(desc.buckets);
        for bucket in 0..desc.buckets {
            // A walk through a bucket that was changed begins again.
            loop {
                let before = entries.len();
                let Some(mut cursor) = table.bucket(bucket) else { break };
                let done = loop {
                    match table.walk(cursor, &mut left) {
                        Step::Entry(found, next) => {
                            entries.extend(self.entry(desc, &table, &found));
                            cursor = next;
                        }
                        Step::End => break true,
                        Step::Changed => break false,
                    }
                };
                if done {
                    break;
                }
                entries.truncate(before);
            }
        }
        entries
    }

    /// An entry, if it was not replaced while it was read.
    fn entry(&self, desc: &MapDesc, table: &Table<'_>, found: &Found) -> Option<Entry> {
        let (key_words, value_words) = table.sizes();
        let key = to_bytes((0..key_words).map(|word| table.key_word(found, word)), desc.key_size);
        let value = if desc.has_thread_values() {
            self.per_thread(|cells| {
                let at = desc.cells + found.index * desc.stride;
                let generation = cells.words(at, 1).first()?.load(Ordering::Acquire);
                (generation == found.generation).then(|| cells.bytes(at + 8, desc.value_size))
            })
        } else {
            let word = |word| table.value_word(found, word).map_or(0, |word| word.load(Ordering::Relaxed));
            Value::One(to_bytes((0..value_words).map(word), desc.value_size))
        };
        table.is_current(found).then_some(Entry { key, value })
    }

    /// The addresses of a stack in a map of stacks, innermost first, by what `get_stackid` gave.
    #[must_use]
    pub fn stack(&self, map: usize, id: u64) -> Vec<u64> {
        let id = id & u64::from(u32::MAX);
        let mut addresses = Vec::new();
        if let Some(desc) = self.map_desc(map).filter(|desc| id < u64::from(desc.buckets)) {
            let stacks = Stacks::new(&desc, self.shared.words(desc.data, desc.data_len() / 8));
            if !stacks.read(id, |address| addresses.push(address)) {
                addresses.clear();
            }
        }
        addresses
    }

    fn stacks(&self, desc: &MapDesc) -> Vec<Entry> {
        let stacks = Stacks::new(desc, self.shared.words(desc.data, desc.data_len() / 8));
        let entry = |id: u64| {
            let mut addresses = Vec::new();
            stacks.read(id, |address| addresses.extend(address.to_ne_bytes())).then(|| {
                addresses.resize(desc.value_size as usize, 0);
                Entry { key: (id as u32).to_ne_bytes().to_vec(), value: Value::One(addresses) }
            })
        };
        (0..stacks.buckets()).filter_map(entry).collect()
    }
}

/// What a thread has for itself, by offset in bytes.
#[derive(Clone, Copy)]
struct Cells<'a>(&'a [AtomicU64]);

impl<'a> Cells<'a> {
    fn words(self, at: u64, n: u64) -> &'a [AtomicU64] {
        self.0.get((at / 8) as usize..((at / 8) + n) as usize).unwrap_or_default()
    }

    fn bytes(self, at: u64, len: u32) -> Vec<u8> {
        let words = self.words(at, u64::from(len).div_ceil(8));
        to_bytes(words.iter().map(|word| word.load(Ordering::Relaxed)), len)
    }
}

fn to_bytes(words: impl Iterator<Item = u64>, len: u32) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    bytes.truncate(len as usize);
    bytes
}
