//! Plain structs as bytes, to write them into and read them from another process.
#![allow(unsafe_code)] // two conversions, argued below; everything else in the crate is safe

use sidestep_wire::{
    Blocked, Call, ClosedThread, CopyPair, DetourEntry, DetourTable, GoroutineCall, HandlerSwitch, JournalEntry,
    LookupEntry, MapDesc, MapEntry, Private, ProbeDesc, RecordHeader, ShadowEntry, SharedLayout, SigAction,
    SigAction32, ThreadState, TrapEntry, UnwindObject, UnwindRule, UnwindTable,
};

/// A struct without padding and for which every bit pattern is a value.
///
/// # Safety
/// `repr(C)`, no padding bytes, no references, no enums, no bool; atomics are fine.
pub(crate) unsafe trait Plain: Sized {}

macro_rules! plain {
    ($($name:ty),* $(,)?) => {
        // SAFETY: repr(C) structs of integers (or atomics of integers) whose layout tests in `wire`
        // show that there is no padding; and such integers.
        $(unsafe impl Plain for $name {})*
    };
}

plain!(
    Call,
    GoroutineCall,
    JournalEntry,
    ClosedThread,
    CopyPair,
    DetourEntry,
    DetourTable,
    HandlerSwitch,
    UnwindTable,
    UnwindObject,
    UnwindRule,
    Blocked,
    MapEntry,
    MapDesc,
    ProbeDesc,
    RecordHeader,
    ShadowEntry,
    SharedLayout,
    SigAction,
    SigAction32,
    ThreadState,
    TrapEntry,
    LookupEntry,
    Private,
    u64
);

/// The bytes of a value.
pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` types have no padding, so all `size_of::<T>()` bytes are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The value of some bytes; `None` if there are too few.
pub(crate) fn from_bytes<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: enough bytes, any bit pattern is a value of a `Plain` type, and the read does not
    // need alignment.
    Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}
