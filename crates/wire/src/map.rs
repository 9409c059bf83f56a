//! Maps of programs: their descriptions. Entries lie elsewhere in the shared region, or in the
//! cells of each thread.

use core::sync::atomic::AtomicU64;

use crate::hash::Table;
use crate::stacks::Stacks;

/// A map. What a program passes to helpers as a map is the address of one of these, in the private
/// region. The one in the shared region has what changes.
///
/// The kernel's per-CPU kinds have a value per *thread* here: nothing in a process keeps a program
/// on its CPU.
#[repr(C, align(64))]
pub struct MapDesc {
    /// Kind: the kernel's number (`enum bpf_map_type`).
    pub kind: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Most entries; of a ring, its bytes.
    pub max_entries: u32,
    /// `BPF_F_*` of the map's creation.
    pub flags: u32,
    /// Number of the map in its session: what records of a ring carry.
    pub index: u32,
    /// Offset of its memory from the start of the shared region; 0 = it has none there.
    pub data: u64,
    /// Offset of its first value from a thread's cells in bytes, for kinds with a value per thread.
    pub cells: u64,
    /// Bytes from one value to the next. Of hash kinds with a value per thread, the word before the
    /// value counts: it holds the generation of the entry ([`crate::hash::Found`]) that the value
    /// belongs to. In another generation the value is zero.
    pub stride: u64,
    /// Entries or records that did not fit.
    pub dropped: AtomicU64,
    /// Entries that are there (hash kinds).
    pub count: AtomicU64,
    /// Head of the list of free entries (hash kinds).
    pub free: AtomicU64,
    /// Where the search for an entry to drop goes on (LRU kinds).
    pub hand: AtomicU64,
    /// Slots of the hash table, a power of two; of a map of stacks, its buckets.
    pub buckets: u32,
    /// Entries that there is memory for: `max_entries` and some more, which replace others.
    pub capacity: u32,
    /// Entries that were ever used (hash kinds); the memory behind them has never been touched.
    pub fresh: AtomicU64,
    /// Keeps the size a multiple of the alignment.
    pub pad: [u64; 4],
}

/// Entries of a hash table beyond `max_entries`: what threads have in their hands at one moment.
const SPARE: u32 = 128;

impl MapDesc {
    /// A map of this shape, whose memory is all zeros. The caller sets [`MapDesc::data`] if
    /// [`MapDesc::data_len`] is not 0, and [`MapDesc::cells`] if [`MapDesc::cells_len`] is not.
    /// `None`: no such map.
    #[inline]
    #[must_use]
    pub fn new(kind: u32, key_size: u32, value_size: u32, max_entries: u32, flags: u32, index: u32) -> Option<MapDesc> {
        let value = u64::from(value_size).next_multiple_of(8);
        let capacity = max_entries.checked_add(SPARE).filter(|_| max_entries != 0)?;
        let buckets = max_entries.checked_next_power_of_two()?;
        let (stride, buckets, capacity) = match kind {
            ARRAY | PERCPU_ARRAY if key_size == 4 && value != 0 => (value, 0, 0),
            HASH | LRU_HASH if key_size != 0 && value != 0 => {
                (8 * Table::len(0, 1, key_size, value_size), buckets, capacity)
            }
            PERCPU_HASH | LRU_PERCPU_HASH if key_size != 0 && value != 0 => (8 + value, buckets, capacity),
            STACK_TRACE if key_size == 4 && value_size % 8 == 0 && value_size != 0 => {
                (8 * Stacks::len(1, value_size), buckets, 0)
            }
            PERF_EVENT_ARRAY | RINGBUF => (0, 0, 0),
            _ => return None,
        };
        let zero = || AtomicU64::new(0);
        Some(MapDesc {
            kind,
            key_size,
            value_size,
            max_entries,
            flags,
            index,
            data: 0,
            cells: 0,
            stride,
            dropped: zero(),
            count: zero(),
            free: zero(),
            hand: zero(),
            buckets,
            capacity,
            fresh: zero(),
            pad: [0; 4],
        })
    }

    /// Bytes that it needs at [`MapDesc::data`].
    #[inline]
    #[must_use]
    pub fn data_len(&self) -> u64 {
        match self.kind {
            ARRAY => self.stride * u64::from(self.max_entries),
            HASH | LRU_HASH => 8 * Table::len(self.buckets, self.capacity, self.key_size, self.value_size),
            PERCPU_HASH | LRU_PERCPU_HASH => 8 * Table::len(self.buckets, self.capacity, self.key_size, 0),
            STACK_TRACE => 8 * Stacks::len(self.buckets, self.value_size),
            _ => 0,
        }
    }

    /// Bytes that it needs in the cells of each thread.
    #[inline]
    #[must_use]
    pub fn cells_len(&self) -> u64 {
        match self.kind {
            PERCPU_ARRAY => self.stride * u64::from(self.max_entries),
            PERCPU_HASH | LRU_PERCPU_HASH => self.stride * u64::from(self.capacity),
            _ => 0,
        }
    }

    /// Is there a value per thread?
    #[inline]
    #[must_use]
    pub const fn has_thread_values(&self) -> bool {
        matches!(self.kind, PERCPU_ARRAY | PERCPU_HASH | LRU_PERCPU_HASH)
    }

    /// Does it drop what was not used for long?
    #[inline]
    #[must_use]
    pub const fn is_lru(&self) -> bool {
        matches!(self.kind, LRU_HASH | LRU_PERCPU_HASH)
    }
}

/// Why a map was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The key is there already.
    Exists,
    /// The key is not there.
    Missing,
    /// There is no room for another key.
    Full,
    /// Flags or key are not valid.
    Invalid,
}

impl MapError {
    /// What the kernel's helper would return.
    #[inline]
    #[must_use]
    pub const fn errno(self) -> i64 {
        match self {
            MapError::Exists => -17,
            MapError::Missing => -2,
            MapError::Full => -7,
            MapError::Invalid => -22,
        }
    }
}

/// `BPF_ANY`: a new value or another one.
pub const ANY: u64 = 0;
/// `BPF_NOEXIST`: a new value only.
pub const NO_EXIST: u64 = 1;
/// `BPF_EXIST`: another value only.
pub const EXIST: u64 = 2;

/// In place of the number of a map: a record of `trace_printk`. Four words: length of the format
/// with its NUL, and three arguments. Then the format, then a text with its NUL for each of the
/// first three conversions that is a `%s`.
pub const TRACE: u32 = crate::record::MAPS_MAX;

/// A value per entry of the map in the shared region, at [`MapDesc::data`].
pub const ARRAY: u32 = 2;
/// Hash table in the shared region.
pub const HASH: u32 = 1;
/// Records of `perf_event_output`, in the ring of each thread.
pub const PERF_EVENT_ARRAY: u32 = 4;
/// Keys as [`HASH`], values in the cells of each thread.
pub const PERCPU_HASH: u32 = 5;
/// Values in the cells of each thread.
pub const PERCPU_ARRAY: u32 = 6;
/// Stacks of `get_stackid`.
pub const STACK_TRACE: u32 = 7;
/// [`HASH`] that drops what was not used for long.
pub const LRU_HASH: u32 = 9;
/// [`PERCPU_HASH`] that does.
pub const LRU_PERCPU_HASH: u32 = 10;
/// Records of the `ringbuf_*` helpers, in the ring of each thread.
pub const RINGBUF: u32 = 27;
