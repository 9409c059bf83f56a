//! The memory that controller and target share, and the memory that the agent keeps for itself:
//! layouts, and the structures that both change at the same time.
//!
//! There are four regions in a target:
//!
//! | region | kind | who writes | on fork |
//! |---|---|---|---|
//! | shared | memfd, `MAP_SHARED`, also in the controller | both | a followed child writes it |
//! | private | anonymous, read-write | controller while all threads are stopped, agent | copied |
//! | lookup | anonymous, read-write, `MADV_WIPEONFORK` | the same | zero: so a child is known |
//! | code (agent, slabs) | anonymous, read-execute | controller, through `/proc/PID/mem` | copied |
//!
//! The second part of the shared region ([`Common`]: slots and maps) is the same memory in all
//! processes of a session.
//!
//! The shared region holds all that is needed to undo an attach (journal and mapping list), so that
//! any later controller can clean up after one that was killed. Everything is `repr(C)`, in words
//! of 64 bits also where addresses have 32 (there `u64` is aligned to 4 bytes, so alignments are
//! spelled out), and checked by layout tests.
#![no_std]
#![forbid(unsafe_code)]

pub mod arch;
pub mod bell;
pub mod context;
pub mod detours;
pub mod glob;
pub mod hash;
pub mod header;
pub mod lookup;
pub mod map;
pub mod masks;
pub mod private;
pub mod record;
pub mod ring;
pub mod signals;
pub mod slot;
pub mod stacks;
pub mod unwind;
pub mod watchdog;

pub use arch::{Hit, Regs};
pub use bell::{Asked, BEAT, Bell, PATIENCE, Question};
pub use detours::{CopyPair, DetourEntry, DetourTable};
pub use hash::Table;
pub use header::{
    BlockState, Common, Header, JournalEntry, MapEntry, MapKind, SemaphoreState, SharedLayout, SigAction, SigAction32,
};
pub use lookup::{LOOKUP_BUCKETS, LookupEntry, LookupTable};
pub use map::{MapDesc, MapError};
pub use private::{
    Call, Flow, GoroutineCall, HELPERS, HandlerSwitch, Private, ProbeDesc, ShadowEntry, ShadowHead, ThreadState,
    TrapEntry, TrapRecord,
};
pub use record::{MAPS_MAX, RECORD_ALIGN, RecordHeader, RecordState};
pub use ring::Ring;
pub use signals::{Blocked, ClosedThread, Signals};
pub use slot::{Histogram, Slot};
pub use stacks::Stacks;
pub use unwind::{PlainRule, UnwindKind, UnwindObject, UnwindRule, UnwindTable};
