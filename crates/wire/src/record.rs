//! Records in a thread's ring: a [`RecordHeader`], then the bytes. A record never wraps: a record
//! that nobody reads fills the rest of the ring.
//!
//! Every record begins on a [`RECORD_ALIGN`] boundary and its length is a multiple of it: that
//! keeps headers whole, and a record of up to five integers is one cache line.

/// Alignment and granularity of records, in bytes.
pub const RECORD_ALIGN: u64 = 64;

/// Head of a record.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// [`RecordState`] in the low 32 bits, length of the whole record in bytes in the high 32 bits.
    /// Written twice: `Reserved` first (before `Slot::head` covers it), `Committed` last.
    pub state_len: u64,
    /// Number of the map ([`crate::MapDesc::index`]) in the low 15 bits, thread in the next 22 (the
    /// kernel's `PID_MAX_LIMIT`), length of the bytes in the high 27: [`RecordHeader::what`]. A
    /// slot goes from one thread to the next, so each record says whose it is.
    pub what: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
}

/// Maps of a session are numbered below this.
pub const MAPS_MAX: u32 = (1 << MAP_BITS) - 1;
const MAP_BITS: u32 = 15;
const LEN_SHIFT: u32 = 37;

/// All but the length.
const LOW: u64 = (1 << LEN_SHIFT) - 1;

impl RecordHeader {
    /// Packs map, thread and length.
    ///
    /// ```
    /// use sidestep_wire::RecordHeader;
    /// let what = RecordHeader::what(3, 4_194_303, 40);
    /// let header = RecordHeader { what, ..RecordHeader::default() };
    /// assert_eq!((header.map(), header.tid(), header.len()), (3, 4_194_303, 40));
    /// ```
    #[inline(always)]
    #[must_use]
    pub const fn what(map: u32, tid: u32, len: u64) -> u64 {
        (map & MAPS_MAX) as u64 | (tid as u64) << MAP_BITS & LOW | len << LEN_SHIFT
    }

    /// The same with at most this length: the new word, and the length.
    #[inline(always)]
    #[must_use]
    pub const fn cut(what: u64, len: u64) -> (u64, u64) {
        let whole = what >> LEN_SHIFT;
        let len = if len < whole { len } else { whole };
        (what & LOW | len << LEN_SHIFT, len)
    }

    /// Number of the map, or [`crate::map::TRACE`].
    #[must_use]
    pub const fn map(&self) -> u32 {
        self.what as u32 & MAPS_MAX
    }

    /// The thread that wrote it.
    #[must_use]
    pub const fn tid(&self) -> u32 {
        ((self.what & LOW) >> MAP_BITS) as u32
    }

    /// Bytes behind the header.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> u64 {
        self.what >> LEN_SHIFT
    }
}

/// Progress of a record.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// Being filled.
    Reserved = 1,
    /// Complete.
    Committed = 2,
    /// Given up by the controller: its writer was interrupted and never came back. Nothing in it
    /// may be used.
    Abandoned = 3,
    /// Room that a writer reserved and did not need; skipped.
    Pad = 4,
}

impl RecordState {
    /// The first word of a record of `len` bytes in this state.
    ///
    /// ```
    /// use sidestep_wire::RecordState;
    /// assert_eq!(RecordState::Committed.word(64), 0x40_0000_0002);
    /// ```
    #[must_use]
    pub const fn word(self, len: u64) -> u64 {
        self as u64 | len << 32
    }
}
