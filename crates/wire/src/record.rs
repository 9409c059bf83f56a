//! Records in a ring: `[RecordHeader][arg values: u64 × nargs][string bytes…]`, never wrapping in the middle of a header,
//! but free to wrap in the payload (positions are taken modulo the ring's length, 8 bytes at a time).
//!
//! Every record begins on a [`RECORD_ALIGN`] boundary and its length is a multiple of it: that keeps headers whole,
//! and a record of up to three integers is one cache line.

/// Alignment and granularity of records, in bytes.
pub const RECORD_ALIGN: u64 = 64;

/// Head of a record.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// [`RecordState`] in the low 32 bits, length of the whole record in bytes in the high 32 bits. Written twice:
    /// `Reserved` first (before `Slot::head` covers it), `Committed` last.
    pub state_len: u64,
    /// Probe number in the low 32 bits, thread id in the high 32 bits.
    pub probe_tid: u64,
    /// Time stamp: TSC, or nanoseconds of `CLOCK_MONOTONIC` where `Private::tsc` is 0.
    pub time: u64,
    /// Thread name, NUL-padded.
    pub comm: [u8; 16],
}

/// Progress of a record.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// Being filled.
    Reserved = 1,
    /// Complete.
    Committed = 2,
    /// Given up by the controller: its writer was interrupted and never came back. Nothing in it may be used.
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
