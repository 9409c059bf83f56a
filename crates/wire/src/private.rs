//! The agent's own memory. The controller fills it while every thread of the target is stopped.

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::header::SigAction;

/// Most arguments in a record.
pub const ARGS_MAX: usize = 6;
/// Longest string in a record, in bytes, without NUL.
pub const STR_MAX: usize = 256;
/// Entries of a thread's first shadow stack.
pub const SHADOW_FIRST: usize = 480;

/// Head of the private region.
#[repr(C)]
pub struct Private {
    /// Run-time address of the shared region's [`crate::Header`].
    pub shared: u64,
    /// Run-time address of the lookup table.
    pub lookup: u64,
    /// Run-time address of the return trampoline.
    pub trampoline: u64,
    /// Run-time address of `[ProbeDesc; Header::probes_max]`, within the private region.
    pub probes: u64,
    /// Run-time address of `[ThreadState; Header::slots_max]`, `state_stride` apart, each followed by its first shadow stack.
    pub states: u64,
    /// Distance between thread states in bytes.
    pub state_stride: u64,
    /// Cells that a forked child uses (`Header::cells` of them), within the private region.
    pub child_cells: u64,
    /// Trap table: run-time address of `[TrapEntry; trap_mask + 1]`, open addressing, 0 = no trap probes.
    /// Replaced as a whole; a replaced table stays mapped.
    pub traps: AtomicU64,
    /// Size of the trap table - 1.
    pub trap_mask: AtomicU64,
    /// What to do with a SIGTRAP that is not ours: the action that was installed before.
    pub old_sigtrap: SigAction,
    /// 1: time stamps are TSC; 0: `clock_gettime(CLOCK_MONOTONIC)` by system call.
    pub tsc: u32,
    /// Nanoseconds = (ticks * tsc_mult) >> tsc_shift (128-bit product).
    pub tsc_shift: u32,
    /// See `tsc_shift`.
    pub tsc_mult: u64,
    /// States handed out in this process; starts as a copy of `Header::slots_used`, which the child must not touch.
    pub states_used: AtomicU32,
    /// 1 in a forked child once it has noticed: nothing shared is written any more.
    pub child: AtomicU32,
    /// Process id of the target in its own pid namespace; of a forked child since it has noticed. Code that runs with
    /// another one is a child that shares our memory until it executes a program (`vfork`, `posix_spawn`).
    pub pid: AtomicU32,
    /// Padding.
    pub pad: u32,
    /// Buffer of the controller's remote system calls; the agent does not look at it.
    pub scratch: [u64; 16],
}

/// One thread.
#[repr(C)]
pub struct ThreadState {
    /// `fs` base, the thread's identity.
    pub fs_base: u64,
    /// Run-time address of the thread's [`crate::Slot`]; 0 in a forked child.
    pub slot: u64,
    /// Run-time address of its cells.
    pub cells: u64,
    /// Run-time address of its shadow stack, `[ShadowEntry]`.
    pub shadow: u64,
    /// No shadow stack of the thread has been longer, in entries.
    pub shadow_cap: u64,
    /// Entries in use.
    pub shadow_len: AtomicU64,
    /// Thread id, as `gettid` gave it.
    pub tid: u32,
    /// Where the C library keeps the thread id: offset from `fs` base, 0 = not known (then `gettid` at each record).
    pub tid_word: u32,
    /// Time stamp of the last look at the thread's name.
    pub comm_time: u64,
    /// Thread name.
    pub comm: [u8; 16],
    /// 1: the program believes that SIGTRAP is blocked in this thread. It is open while there are trap probes.
    pub sigtrap_blocked: u32,
    /// Free-running index of the next of `masks`.
    pub mask_next: u32,
    /// Signal sets of system calls that the thread is in, or was.
    pub masks: [u64; 8],
    /// Run-time address of an array that may become the shadow stack, or 0.
    pub shadow_spare: u64,
}

/// A replaced return address.
///
/// An entry is dead, and may be anywhere in the stack, when `slot` is 0, when the word at `slot` is neither the
/// trampoline nor (with [`ShadowEntry::RESTORED`]) `ret`, or when a newer entry of the same `slot` holds a real return
/// address. `ret` is the trampoline itself where two probes share one frame: the next older entry of that `slot` goes on.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ShadowEntry {
    /// Address of the stack slot that holds the trampoline's address. 0 = the entry is dead. Written last.
    pub slot: u64,
    /// The real return address.
    pub ret: u64,
    /// Time stamp of the entry.
    pub time: u64,
    /// Probe number in the low 32 bits; [`ShadowEntry::RESTORED`].
    pub probe: u64,
}

impl ShadowEntry {
    /// Bit of `probe`: the real address was put back for an unwinder.
    pub const RESTORED: u64 = 1 << 32;
}

/// Does the probe watch the entry, the return, or both.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Entry only.
    Entry = 0,
    /// Return only, the work of the probe is done at the return.
    Return = 1,
    /// Entry to return: latency.
    Latency = 2,
    /// Not a user's probe: an unwinder is about to walk the stack; put the real return addresses back.
    Unwind = 3,
    /// Not a user's probe: an exception was caught; frames above the catcher are gone, the others are watched again.
    Caught = 4,
    /// Not a user's probe: a system call that changes signal masks or actions is about to be made, its number is in
    /// `rax`. SIGTRAP stays deliverable.
    SignalCall = 5,
}

/// What the agent does at a hit of one probe.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ProbeDesc {
    /// [`Flow`].
    pub flow: u32,
    /// 1: write a record.
    pub record: u32,
    /// Cell of the hit count.
    pub hits: u32,
    /// Cell of the count of records that did not fit the ring.
    pub lost: u32,
    /// First cell of the histogram ([`crate::Histogram`]), with `flow == Latency`; `u32::MAX` = none.
    pub hist: u32,
    /// Arguments in use.
    pub nargs: u32,
    /// The arguments of a record.
    pub args: [ArgSpec; ARGS_MAX],
}

/// One argument of a record.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ArgSpec {
    /// [`ArgKind`].
    pub kind: u32,
    /// 0…5: integer argument registers; 6…: stack arguments; [`ArgSpec::RETVAL`].
    pub source: u32,
}

impl ArgSpec {
    /// `source` of the return value.
    pub const RETVAL: u32 = 1000;
}

/// How an argument is recorded.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// The 64-bit value.
    Int = 0,
    /// The value is a pointer to a NUL-terminated string. The arg word holds the number of bytes recorded, or
    /// `u64::MAX` when memory could not be read; the bytes follow the words, padded to 8.
    Str = 1,
}

/// What the thunk saved, and what an agent function may look at. Lies on the target's stack.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Frame {
    /// r11 … rax: all registers that the C ABI lets a callee change.
    pub r11: u64,
    /// See `r11`.
    pub r10: u64,
    /// See `r11`.
    pub r9: u64,
    /// See `r11`.
    pub r8: u64,
    /// See `r11`.
    pub rdi: u64,
    /// See `r11`.
    pub rsi: u64,
    /// See `r11`.
    pub rdx: u64,
    /// See `r11`.
    pub rcx: u64,
    /// See `r11`.
    pub rax: u64,
    /// Stack pointer at the probed instruction. At a function entry the return address is at `[rsp]`; in the return
    /// trampoline `rsp - 8` is the slot that held the trampoline's address.
    pub rsp: u64,
}

/// Trap table entry: a trap at `site` continues at `detour`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct TrapEntry {
    /// Run-time address of the trap byte; 0 = empty.
    pub site: u64,
    /// Where to go on.
    pub detour: u64,
}

impl TrapEntry {
    /// First bucket to look at in a table of `mask + 1` entries; linear probing from there.
    #[must_use]
    pub const fn bucket(site: u64, mask: u64) -> u64 {
        (site.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) & mask
    }
}
