//! Which original instructions the copies in detours stand for: what a handler of a fault is shown,
//! and where it comes back to.
//!
//! One table, made by the engine and replaced as a whole; a replaced one stays mapped:
//!
//! ```text
//!   DetourTable
//!   [DetourEntry; len]   in order of `detour`
//!   [CopyPair; copies]   of each entry, in a row
//!   [u32; len]           numbers of entries, in order of `site`
//! ```

/// Head of the table.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct DetourTable {
    /// Number of entries.
    pub len: u32,
    /// Number of pairs of all entries together.
    pub copies: u32,
}

/// A detour with copies of instructions.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct DetourEntry {
    /// Its run-time address.
    pub detour: u64,
    /// Run-time address of the first displaced instruction.
    pub site: u64,
    /// Number of its first [`CopyPair`].
    pub first: u32,
    /// How many it has.
    pub count: u32,
}

/// A place in a detour and what it stands for.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct CopyPair {
    /// Offset from the site, and flags.
    pub original: u16,
    /// Offset from the start of the detour.
    pub copy: u16,
}

impl CopyPair {
    /// Flag: behind the push that begins the copy of a call. The original has not pushed anything
    /// yet.
    pub const PUSHED: u16 = 0x8000;
    /// Flag: behind the copy of a trap, where the processor says that it was.
    pub const TRAPPED: u16 = 0x4000;
    /// Both flags: at `copy` is the word of a gate, which leads to offset `original` from the site
    /// when it is closed. While it is, what is at the originals is in use, but for the first one.
    pub const GATE: u16 = CopyPair::PUSHED | CopyPair::TRAPPED;
    /// Flag: no copy, but a `push` or `call` of a handler, where all registers are those of the
    /// site but for the stack pointer. It is lower by as many bytes as [`CopyPair::OFFSET`] says.
    pub const SAVES: u16 = 0x2000;
    /// The bits of `original` that are its offset.
    pub const OFFSET: u16 = 0x1fff;
}

impl DetourTable {
    /// Offset of the entries from the start of the table.
    pub const ENTRIES: u64 = size_of::<DetourTable>() as u64;

    /// Offset of the pairs.
    #[must_use]
    pub const fn pairs(&self) -> u64 {
        DetourTable::ENTRIES + self.len as u64 * size_of::<DetourEntry>() as u64
    }

    /// Offset of the order by site.
    #[must_use]
    pub const fn by_site(&self) -> u64 {
        self.pairs() + self.copies as u64 * size_of::<CopyPair>() as u64
    }
}
