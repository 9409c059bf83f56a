//! The agent's own memory. The controller fills it while every thread of the target is stopped.

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::bell::Asked;
use crate::header::SharedLayout;
use crate::signals::{Blocked, Signals};

/// Helpers have numbers below this.
pub const HELPERS: usize = 266;
/// Addresses whose rules a thread remembers, a power of two ([`ThreadState::unwound`]).
pub const UNWOUND: usize = 256;
/// Return addresses that a thread remembers, a power of two ([`ThreadState::callers`]).
pub const CALLERS: usize = 16;
/// Words of `struct clone_args` (`include/uapi/linux/sched.h`).
pub const CLONE_ARGS: usize = 11;
/// Entries of a thread's first shadow stack.
pub const SHADOW_FIRST: usize = 160;
/// Entries of a thread's table of calls, a power of two ([`Call`]).
pub const CALLS: usize = 512;
/// From a thread's state to its table of calls, in bytes.
pub const CALLS_OFF: usize = size_of::<ThreadState>().next_multiple_of(align_of::<Call>());
/// From a thread's state to its first shadow stack, in bytes.
pub const SHADOW_OFF: usize = CALLS_OFF + CALLS * size_of::<Call>();
/// Bytes of a thread: its state, its table of calls and its first shadow stack.
pub const STATE_LEN: usize = SHADOW_OFF + SHADOW_FIRST * size_of::<ShadowEntry>();
/// Largest number of bytes that a watched function may take off the stack when it returns: the
/// trampoline keeps so many below the stack pointer as they are.
pub const MAX_DROPPED: u64 = 64;

/// Head of the private region.
#[repr(C, align(8))]
pub struct Private {
    /// Run-time address of the shared region's [`crate::Header`].
    pub shared: u64,
    /// Run-time address of the lookup table.
    pub lookup: u64,
    /// Run-time address of the return trampoline.
    pub trampoline: u64,
    /// Run-time address of `[ProbeDesc; SharedLayout::probes_max]`, within the private region.
    pub probes: u64,
    /// Run-time address of `[ThreadState; SharedLayout::slots_max]`, `state_stride` apart, each
    /// followed by its first shadow stack.
    pub states: u64,
    /// Distance between thread states in bytes.
    pub state_stride: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC` = (ticks * tsc_mult) >> tsc_shift, plus this (wrapping).
    pub tsc_base: u64,
    /// Trap table: run-time address of `[TrapEntry; trap_mask + 1]`, open addressing, 0 = no trap
    /// probes. Replaced as a whole; a replaced table stays mapped.
    pub traps: AtomicU64,
    /// Size of the trap table - 1.
    pub trap_mask: AtomicU64,
    /// Run-time address of the [`crate::DetourTable`], or 0: faults of displaced instructions are
    /// not looked up. Replaced as a whole; a replaced table stays mapped.
    pub detours: AtomicU64,
    /// Run-time address of the [`crate::UnwindTable`], or 0: stacks are those that frame pointers
    /// give.
    pub unwind: AtomicU64,
    /// Run-time address of a [`crate::DetourTable`] for stacks, as `detours` is one for faults, or
    /// 0.
    pub copies: AtomicU64,
    /// 1: time stamps are TSC; 0: `clock_gettime(CLOCK_MONOTONIC)` by system call.
    pub tsc: u32,
    /// Nanoseconds = (ticks * tsc_mult) >> tsc_shift (128-bit product).
    pub tsc_shift: u32,
    /// See `tsc_shift`.
    pub tsc_mult: u64,
    /// States handed out in this process.
    pub states_used: AtomicU32,
    /// 1 in a forked child once it has noticed: unless children are followed, nothing is written to
    /// what is shared.
    pub child: AtomicU32,
    /// Process id of the target in its own pid namespace; of a forked child since it has noticed.
    /// Code that runs with another one is a child that shares our memory until it executes a
    /// program (`vfork`, `posix_spawn`).
    pub pid: AtomicU32,
    /// 1: forked children are probed as their parents are; 0: nothing is counted there.
    pub follow: u32,
    /// Which of the session's meanings addresses have in this process: 0, 1, 2 …; forked children
    /// have their parent's. It goes along with stacks and symbols ([`stack_id`], [`symbol`]).
    pub space: AtomicU32,
    /// 1: a seccomp filter would kill the process for the agent's system calls, so it makes none.
    /// All it does then is to count, and the filter forbids children, or they count nothing.
    pub silent: u32,
    /// Run-time address of the private region of the session that owns the signals, if that is
    /// another one; 0 = this one does, or takes none. It is written once.
    pub owner: AtomicU64,
    /// Run-time address of the agent's function that knows where a load that failed goes on: the
    /// owner of the signals gets the faults of all agents.
    pub after_fault: u64,
    /// Signals of ours.
    pub signals: Signals,
    /// Run-time addresses of tables of the calls that goroutines make, 0 = none yet: the agent's
    /// ([`ProbeDesc::GOROUTINE`]).
    pub goroutines: [AtomicU64; GOROUTINE_TABLES],
    /// 1: return addresses stay as they are from now on, since the program has loaded a library
    /// that looks at them.
    pub keeps_returns: AtomicU64,
    /// Where everything in the shared region is.
    pub layout: SharedLayout,
    /// Run-time address of `[MapDesc; SharedLayout::map_descs]`, within the private region: the
    /// shapes of maps, which programs are given. What changes is in those of the shared region.
    pub shapes: u64,
    /// What a thread has asked of the controller, and whether it has its answer.
    pub asked: Asked,
}

/// How many tables of calls of goroutines there may be.
pub const GOROUTINE_TABLES: usize = 4;
/// Entries of these tables, powers of two.
pub const GOROUTINE_CALLS: [u64; GOROUTINE_TABLES] = [1 << 12, 1 << 15, 1 << 18, 1 << 21];

/// A call of a Go function that ends at an exit, in a table of all threads.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct GoroutineCall {
    /// The address of a `runtime.g`; 0 = the entry is free, [`GoroutineCall::CLAIMED`].
    pub goroutine: u64,
    /// In the upper half, words from the return address to the end of the goroutine's stack; in the
    /// lower half, the number of the probe.
    pub key: u64,
    /// [`crate::Hit::cookie`] as the program of the entry left it.
    pub cookie: u64,
}

impl GoroutineCall {
    /// In place of a goroutine: a thread is filling the entry.
    pub const CLAIMED: u64 = 1;
}

/// More numbers than this cannot be told apart in [`symbol`].
pub const SPACES: u32 = 1 << 16;

/// The number of a stack in its map, which is in the lower half, with [`Private::space`].
#[must_use]
pub const fn stack_id(id: u64, space: u32) -> u64 {
    id | (space as u64) << 32
}

/// An address, whose upper 16 bits are zeros in all programs, with [`Private::space`]. Other
/// numbers stay as they are.
#[must_use]
pub const fn symbol(address: u64, space: u32) -> u64 {
    if address >> 48 == 0 { address | (space as u64) << 48 } else { address }
}

/// What [`symbol`] has put together: the number and the address.
#[must_use]
pub const fn split_symbol(word: u64) -> (u32, u64) {
    ((word >> 48) as u32, word & ((1 << 48) - 1))
}

/// One thread. Native code of programs is given its address, on x86-64 in `r9`: the table of
/// helpers.
#[repr(C, align(8))]
pub struct ThreadState {
    /// Run-time addresses of the helpers, by number. A number without a helper has one that returns
    /// `-EINVAL`.
    pub helpers: [u64; HELPERS],
    /// Run-time address of the private region.
    pub private: u64,
    /// Stack address of the [`crate::Hit`] that the thread is in with a program that must not be
    /// entered again; 0 = none.
    pub busy: u64,
    /// Time stamp that the program took last, in nanoseconds; 0 = none in this hit. What records
    /// carry.
    pub stamp: u64,
    /// `fs` base, the thread's identity.
    pub fs_base: u64,
    /// Run-time address of the thread's [`crate::Slot`]; 0 in a forked child.
    pub slot: u64,
    /// Run-time address of its cells; 0 in a forked child, where no program runs.
    pub cells: u64,
    /// 1: hits are counted. 0: not in a forked child; nor, once the thread has lent its memory and
    /// its thread pointer to a child (`vfork`, `posix_spawn`), before it hits a probe itself.
    pub counting: u64,
    /// Stack pointer of the call by which it has lent them last, or 0. The highest byte counts how
    /// often the owner was met since (`agent::thread`).
    pub lent_at: u64,
    /// What such a child is given in place of the thread's [`crate::LookupEntry`]: the same without
    /// cells.
    pub guest: [u64; 4],
    /// Process id before a call that makes a child without signal handlers (`CLONE_CLEAR_SIGHAND`),
    /// which are left to the agent; above it, that of the child once it is without them. 0 = there
    /// was no such call.
    pub clearing: u64,
    /// Run-time address of its shadow stack, `[ShadowEntry]`.
    pub shadow: u64,
    /// No shadow stack of the thread has been longer, in entries.
    pub shadow_cap: u64,
    /// Entries in use.
    pub shadow_len: AtomicU64,
    /// Thread id, as `gettid` gave it.
    pub tid: u32,
    /// Where the C library keeps the thread id: offset from `fs` base, 0 = not known (then `gettid`
    /// at each record).
    pub tid_word: u32,
    /// Time stamp of the last look at the thread's name.
    pub comm_time: u64,
    /// Thread name.
    pub comm: [u8; 16],
    /// Signals of ours that the program believes to be blocked in this thread.
    pub blocked: Blocked,
    /// Free-running index of the next pair of `masks`.
    pub mask_next: u64,
    /// What system calls that the thread is in, or was, point to: signal sets, in pairs of words.
    pub masks: [u64; 2 * MASKS],
    /// What the program has passed to these calls, where they were given the address of a pair: by
    /// its index.
    pub mask_from: [u64; MASKS],
    /// A copy of `struct clone_args`, for that call.
    pub clone_args: [u64; CLONE_ARGS],
    /// Run-time address of the end of a stack on which programs run where a goroutine's is too
    /// short, 16-aligned; 0 = there is none yet.
    pub stack: u64,
    /// Run-time address of an array that may become the shadow stack, or 0.
    pub shadow_spare: u64,
    /// Rules of addresses that were met last: `address << 16 | number of the rule`; 0 = none.
    pub unwound: [u64; UNWOUND],
    /// Return addresses that were met last, each behind a call; 0 = none.
    pub callers: [u64; CALLERS],
    /// Run-time address of the alternate signal stack that the thread has set while its system
    /// calls were guarded; 0 = none.
    pub altstack: u64,
}

/// Pairs of words that [`ThreadState::masks`] holds.
pub const MASKS: usize = 4;

pub use crate::arch::TRAMPOLINE_MARK;

/// In front of the code that calls what is watched, which ends at the trampoline: two words of 64
/// bits, the address of the session's [`Private`] and that of its agent's function `agent_real`,
/// which other sessions ask. So far are they from the trampoline, in bytes; only x86-64 has such
/// code.
pub const TRAMPOLINE_HEAD: u64 = 16 + if cfg!(target_arch = "x86_64") { 4 } else { 0 };

/// In front of a shadow stack.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ShadowHead {
    /// Entries that there is room for.
    pub cap: u64,
    /// 1 while its entries are copied to another array.
    pub pinned: u64,
    /// So many attempts to make room in it fail at once.
    pub given_up: u64,
}

/// A replaced return address.
///
/// An entry is dead, and may be anywhere in the stack, when `slot` is 0, when the word at `slot` is
/// neither the trampoline nor (with [`ShadowEntry::RESTORED`]) `ret`, or when a newer entry of the
/// same `slot` holds a real return address. `ret` is the trampoline itself where two probes share
/// one frame: the next older entry of that `slot` goes on. Another session's trampoline
/// ([`TRAMPOLINE_MARK`]) in either place says that both watch the frame.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ShadowEntry {
    /// Address of the stack slot that holds the trampoline's address. 0 = the entry is dead.
    /// Written last.
    pub slot: u64,
    /// The real return address.
    pub ret: u64,
    /// Time stamp of the entry: of two entries of one slot in different stacks, the newer one is
    /// alive.
    pub time: u64,
    /// Probe number in the low 32 bits; [`ShadowEntry::RESTORED`].
    pub probe: u64,
    /// [`crate::Hit::cookie`] as the program of the entry left it.
    pub cookie: u64,
}

impl ShadowEntry {
    /// Bit of `probe`: the real address was put back for an unwinder.
    pub const RESTORED: u64 = 1 << 32;
    /// Bit of `probe`: the return address was never replaced, the call ends at an exit
    /// ([`Flow::Exit`]). Such an entry is dead when the word at `slot` is not `ret`, or when the
    /// same probe has a newer entry of the same `slot`.
    pub const KEPT: u64 = 1 << 33;
    /// Bit of `probe` with [`ShadowEntry::KEPT`], and of [`Call::probe`]: the call has left its
    /// function by a jump to another one, and ends at an exit of that one. No number of a probe has
    /// this bit, so that [`ProbeDesc::pair`] can ask for it.
    pub const JUMPED: u64 = 1 << 31;

    /// The number of the probe.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.probe as u32 & !(Self::JUMPED as u32)
    }
}

/// A call that ends at an exit of its function ([`Flow::Exit`]), in the table of the thread that
/// has entered the function.
///
/// The stack slot of the return address says which entry of the table that is ([`Call::index`]). If
/// another call has the entry, the shadow stack remembers this one.
#[repr(C, align(32))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Call {
    /// Address of the stack slot that holds the return address; 0 = the entry is free,
    /// [`Call::BUSY`]. Written last.
    pub slot: u64,
    /// Number of the probe; [`ShadowEntry::JUMPED`].
    pub probe: u64,
    /// The return address. The call is over when the stack slot holds another word.
    pub ret: u64,
    /// [`crate::Hit::cookie`] as the program of the entry left it.
    pub cookie: u64,
}

impl Call {
    /// In place of a slot: the entry is being filled. It stays so for ever if a signal handler
    /// leaves that code by `siglongjmp`.
    pub const BUSY: u64 = 1;
    /// Neighbouring entries of the table belong to stack slots that are so far apart, in bytes: the
    /// psABI keeps the stack pointer a multiple of 16 at each call.
    pub const DISTANCE: u64 = 16;

    /// The number of the probe.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.probe as u32 & !(ShadowEntry::JUMPED as u32)
    }

    /// The number of the entry for a stack slot.
    ///
    /// ```
    /// use sidestep_wire::Call;
    /// assert_eq!(Call::index(0x7fff_0000_1238) + 1, Call::index(0x7fff_0000_1248));
    /// ```
    #[inline(always)]
    #[must_use]
    pub const fn index(slot: u64) -> usize {
        (slot / Call::DISTANCE) as usize % CALLS
    }
}

/// What the agent does at a hit.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Nothing but the program of the entry, which thunks call without the agent.
    Entry = 0,
    /// Watch for the return. [`ProbeDesc::entry`] runs before, if there is one, and
    /// [`ProbeDesc::exit`] at the return.
    Return = 1,
    /// Not a user's probe: an unwinder is about to walk the stack; put the real return addresses
    /// back.
    Unwind = 3,
    /// Not a user's probe: an exception was caught; frames above the catcher are gone, the others
    /// are watched again.
    Caught = 4,
    /// Not a user's probe: a system call that changes signal masks or actions is about to be made,
    /// its number is in `rax`. Signals of ours stay deliverable. Also one that makes a child on the
    /// thread's own memory, whose hits are not the thread's, and one that executes another program,
    /// for the controller to follow.
    SignalCall = 5,
    /// Not a user's probe: the dynamic loader says that it has changed what is mapped; the
    /// controller looks for more to probe.
    Mapped = 6,
    /// A call begins whose exits are probed, too. [`ProbeDesc::entry`] runs, if there is one; the
    /// call is remembered until an exit, and the stack stays as it is.
    Enter = 7,
    /// An exit of a function is about to be executed. [`ProbeDesc::exit`] runs with the registers
    /// of the return.
    Exit = 8,
}

/// One probe.
///
/// Code is a function of the System V ABI that is given the address of [`crate::Hit::regs`] in
/// `rdi` and of the [`ThreadState`] in `r9`; its result is in `rax`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ProbeDesc {
    /// [`Flow`].
    pub flow: u32,
    /// Cell of the hit count.
    pub hits: u32,
    /// [`ProbeDesc::COUNT_ENTRY`], [`ProbeDesc::EXCLUSIVE`], [`ProbeDesc::FUNCTION`],
    /// [`ProbeDesc::USDT`], [`ProbeDesc::POST`], [`ProbeDesc::NATIVE`], [`ProbeDesc::REPLACES`].
    pub flags: u32,
    /// 1 + the number of the probe that was registered before this one at the same site; 0 = none.
    pub older: u32,
    /// Run-time address that programs see as the instruction pointer at a hit: the function or
    /// instruction, or with [`ProbeDesc::POST`] what is behind it.
    pub site: u64,
    /// Run-time address that was asked for (`get_func_ip`): the instruction, or the mark for
    /// indirect branches in front of it.
    pub asked: u64,
    /// What `get_attach_cookie` gives.
    pub cookie: u64,
    /// Run-time address of the code that runs at the entry, or 0. If its result is not 0, the
    /// return is not watched.
    pub entry: u64,
    /// Run-time address of the code that runs at the return, or 0.
    pub exit: u64,
    /// How many calls are watched at a time, in all threads; 0 = any number. Others count as
    /// missed.
    pub maxactive: u64,
    /// Run-time address of `[u64; 1 + maxactive]`, zeroed: the agent's. Not if there is no limit.
    pub places: u64,
    /// Bytes of arguments that the function takes off the stack when it returns, at most
    /// [`MAX_DROPPED`].
    pub drops: u64,
    /// Of an exit: 1 + the number of the probe that remembers the calls of the function
    /// ([`Flow::Enter`]); other hits are no returns of it. 0 = each hit is a return. With
    /// [`ShadowEntry::JUMPED`], only calls that have left the function by a jump end there.
    pub pair: u32,
    /// Of a probe with several sites: 1 + the number of the first of them. 0 = it has one site.
    pub group: u32,
    /// Where the probe can be switched without the others of its site.
    pub switch: HandlerSwitch,
    /// Of a probe that remembers calls, in units of [`ProbeDesc::STACKED`]: at most so many entries
    /// of shadow stacks are calls of it. In units of [`ProbeDesc::JUMPED`]: those of them that have
    /// left by a jump. The agent's.
    pub stacked: u64,
}

/// A word in the detour that says where to go on in front of a handler: an address. On arm64 and
/// arm32, the word is code, a row of `nop`s of which the first one may be a jump behind the
/// handler. What is written has to be seen by instruction fetches, too.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct HandlerSwitch {
    /// Run-time address of the word; 0 = there is none.
    pub word: u64,
    /// What is there while the probe is enabled: what leads to the handler.
    pub on: u64,
    /// And while it is disabled: what leads behind it.
    pub off: u64,
}

impl ProbeDesc {
    /// Whether a probe has no other site, or this is the first one; `number` is its own.
    #[must_use]
    pub const fn is_first(&self, number: u32) -> bool {
        self.group == 0 || self.group == number + 1
    }

    /// Unit of `stacked`.
    pub const STACKED: u64 = 1;
    /// Unit of `stacked`: what is less are entries.
    pub const JUMPED: u64 = 1 << 32;

    /// Bit of `flags`: hits are counted at the entry, else at the return.
    pub const COUNT_ENTRY: u32 = 1;
    /// Bit of `flags`: the programs must not be entered again by a signal handler that interrupts
    /// them; such a hit counts as missed.
    pub const EXCLUSIVE: u32 = 2;
    /// Bit of `flags`: the site is the entry of a function, so that the return address is at
    /// `[rsp]`. Always so with [`Flow::Return`].
    pub const FUNCTION: u32 = 4;
    /// Bit of `flags`: the site belongs to a USDT probe.
    pub const USDT: u32 = 8;
    /// Bit of `flags`: hits are behind the probed instruction.
    pub const POST: u32 = 16;
    /// Bit of `flags`: its programs are functions of the target itself, which run outside of our
    /// memory.
    pub const NATIVE: u32 = 32;
    /// Bit of `flags`: another function runs instead of the probed one. `cookie` is the run-time
    /// address of a word of the target that leads to the original: a copy while the probe is there,
    /// the function itself before and after.
    pub const REPLACES: u32 = 64;
    /// Bit of `flags`: the handler runs behind displaced instructions of the site, not in front of
    /// them.
    pub const BEHIND: u32 = 256;
    /// Bit of `flags`: the function is Go's, whose goroutine is in `r14`, and the stack may be
    /// moved while it runs.
    pub const GOROUTINE: u32 = 512;
    /// Bit of `flags`: an exit to which calls of other functions come, too. A call ends there only
    /// if it has the same return address.
    pub const SHARED: u32 = 1024;
    /// Bit of `flags`: at this exit of the function, a call goes on in another function.
    pub const JUMP: u32 = 2048;
    /// Bit of `flags`: the probe was taken out for good, while others of its site stay.
    pub const RETIRED: u32 = 128;
}

/// Trap table entry: what a trap at `site` leads to.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct TrapEntry {
    /// Run-time address of the trap byte; 0 = empty.
    pub site: u64,
    /// Where to go on. With [`TrapEntry::RECORD`], a [`TrapRecord`] is there instead, and the copy
    /// of the instruction behind it. 0 = the site is nobody's any more.
    pub detour: u64,
}

impl TrapEntry {
    /// Flag of `detour`. No address of a program is that high.
    pub const RECORD: u64 = 1 << 63;

    /// First bucket to look at in a table of `mask + 1` entries; linear probing from there.
    #[must_use]
    pub const fn bucket(site: u64, mask: u64) -> u64 {
        (site.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) & mask
    }
}

/// What the trap handler does at a site where hits are only counted. It is the beginning of the
/// site's detour.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct TrapRecord {
    /// The instruction as an operation (`isa::x86::emulate::Op::to_words`); zeros = its copy has to
    /// run.
    pub op: [u64; 2],
    /// 1 + the number of the newest probe of the site, whose [`ProbeDesc`] names the next one.
    pub newest: u32,
    /// 0.
    pub pad: u32,
}

impl TrapRecord {
    /// As it lies in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<TrapRecord>()] {
        let TrapRecord { op: [first, second], newest, pad } = self;
        let mut bytes = [0; size_of::<TrapRecord>()];
        let words = [first, second, u64::from(newest) | u64::from(pad) << 32];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}
