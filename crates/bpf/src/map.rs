//! What maps are, as far as programs and objects say it.

use std::fmt;

/// Kinds of maps, with the kernel's meanings (`enum bpf_map_type` in `include/uapi/linux/bpf.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapKind {
    /// Any key to a value.
    Hash,
    /// Key is an index of 4 bytes; all entries exist.
    Array,
    /// Where `perf_event_output` writes.
    PerfEventArray,
    /// [`MapKind::Hash`] with a value per CPU.
    PercpuHash,
    /// [`MapKind::Array`] with a value per CPU.
    PercpuArray,
    /// What `get_stackid` fills.
    StackTrace,
    /// [`MapKind::Hash`] that drops what was used least recently.
    LruHash,
    /// [`MapKind::LruHash`] with a value per CPU.
    LruPercpuHash,
    /// What the `ringbuf_*` helpers write.
    Ringbuf,
}

impl MapKind {
    const ALL: [(MapKind, u32, &'static str); 9] = [
        (MapKind::Hash, 1, "hash"),
        (MapKind::Array, 2, "array"),
        (MapKind::PerfEventArray, 4, "perf_event_array"),
        (MapKind::PercpuHash, 5, "percpu_hash"),
        (MapKind::PercpuArray, 6, "percpu_array"),
        (MapKind::StackTrace, 7, "stack_trace"),
        (MapKind::LruHash, 9, "lru_hash"),
        (MapKind::LruPercpuHash, 10, "lru_percpu_hash"),
        (MapKind::Ringbuf, 27, "ringbuf"),
    ];

    /// All kinds.
    pub fn all() -> impl Iterator<Item = MapKind> {
        Self::ALL.into_iter().map(|(kind, ..)| kind)
    }

    /// The kind with this number of the kernel, if it is one that probes can use.
    #[must_use]
    pub fn from_number(number: u32) -> Option<MapKind> {
        Self::ALL.into_iter().find(|&(_, n, _)| n == number).map(|(kind, ..)| kind)
    }

    /// The kernel's number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.entry().1
    }

    /// Its name, as bpftool prints it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().2
    }

    /// Whether programs look entries up by key: not so for rings and stack traces.
    #[must_use]
    pub fn has_entries(self) -> bool {
        !matches!(self, MapKind::PerfEventArray | MapKind::StackTrace | MapKind::Ringbuf)
    }

    fn entry(self) -> (MapKind, u32, &'static str) {
        Self::ALL.into_iter().find(|&(kind, ..)| kind == self).unwrap_or(Self::ALL[0])
    }
}

impl fmt::Display for MapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A map as its maker describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// Its name, for messages and output.
    pub name: String,
    /// What it is.
    pub kind: MapKind,
    /// Length of a key, in bytes. 0 for rings.
    pub key_size: u32,
    /// Length of a value, in bytes. 0 for rings.
    pub value_size: u32,
    /// Most entries; for rings, their length in bytes.
    pub max_entries: u32,
    /// `BPF_F_*` flags of map creation.
    pub flags: u32,
    /// Programs must not write to its values (`.rodata`).
    pub readonly: bool,
    /// What the first value holds at the start; empty: zeros. Else as long as a value.
    pub initial: Vec<u8>,
}

impl Map {
    /// Bytes from one value to the next, where they lie one behind the other: that of a value,
    /// rounded up to 8.
    #[must_use]
    pub fn stride(&self) -> u64 {
        u64::from(self.value_size.max(1)).next_multiple_of(8)
    }
}
