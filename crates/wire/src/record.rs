//! Records in a ring: `[RecordHeader][arg values: u64 × nargs][string bytes…]`, 8-byte aligned, never wrapping in the middle
//! of a header, but free to wrap in the payload (positions are taken modulo the ring's length, 8 bytes at a time).

/// Head of a record. All lengths are multiples of 8.
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
}
