//! How to find the caller of a frame: what `.eh_frame` says of each instruction, as a table that is searched at a hit.
//!
//! Made by the engine and replaced as a whole; a replaced one stays mapped, and so do rows. Numbers of rules stay the same.
//!
//! ```text
//!   UnwindTable
//!   [UnwindObject; objects]   in order of `start`
//!   [UnwindRule; rules]
//!
//!   of each object, elsewhere:
//!   [u32; rows]   offsets from `start` at which a rule begins to hold, in order; the first is 0
//!   [u16; rows]   its number
//! ```

/// Head of the table.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct UnwindTable {
    /// Number of objects.
    pub objects: u32,
    /// Number of rules.
    pub rules: u32,
}

impl UnwindTable {
    /// Offset of the objects from the start of the table.
    pub const OBJECTS: u64 = size_of::<UnwindTable>() as u64;
    /// Most rules: their numbers are kept in 16 bits.
    pub const RULES_MAX: usize = 1 << 16;

    /// Offset of the rules.
    #[inline]
    #[must_use]
    pub const fn rules(&self) -> u64 {
        UnwindTable::OBJECTS + self.objects as u64 * size_of::<UnwindObject>() as u64
    }
}

/// Code of an object.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct UnwindObject {
    /// Its run-time address.
    pub start: u64,
    /// The address behind it.
    pub end: u64,
    /// Run-time address of the rows.
    pub rows: u64,
    /// Number of rows, at least 1.
    pub len: u64,
}

impl UnwindObject {
    /// Run-time address of the numbers of rules.
    #[inline]
    #[must_use]
    pub const fn numbers(&self) -> u64 {
        self.rows + 4 * self.len
    }
}

/// Where the caller's registers are. Words are the target's; "CFA" is the stack pointer of the caller, above its return
/// address (DWARF 5, 6.4.1: canonical frame address).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnwindRule {
    /// An [`UnwindKind`] as a number.
    pub kind: u8,
    /// The register of `offset`, as its place in `struct pt_regs` ([`UnwindRule::BP`] and the like).
    pub base: u8,
    /// [`UnwindRule::BP_BY_BP`], [`UnwindRule::BX_BY_BP`].
    pub flags: u8,
    /// Padding.
    pub pad: u8,
    /// Where the caller's frame pointer is: words from the CFA; 0 = unchanged, [`UnwindRule::LOST`].
    pub bp: i16,
    /// The same for the caller's `rbx`.
    pub bx: i16,
    /// See [`UnwindKind`].
    pub offset: i32,
    /// See [`UnwindKind`].
    pub plus: i32,
}

impl UnwindRule {
    /// Number of the rule of code about which nothing is known.
    pub const UNKNOWN: u16 = 0;
    /// `base`: the frame pointer.
    pub const BP: u8 = 4;
    /// `base`: `rbx`.
    pub const BX: u8 = 5;
    /// `base`: the stack pointer.
    pub const SP: u8 = 19;
    /// `bp`, `bx`: nowhere.
    pub const LOST: i16 = i16::MIN;
    /// Bit of `flags`: `bp` counts from this frame's frame pointer, and 0 is a place, too.
    pub const BP_BY_BP: u8 = 1;
    /// Bit of `flags`: so does `bx`.
    pub const BX_BY_BP: u8 = 2;
}

/// How a rule finds the CFA.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindKind {
    /// Nothing is known about the code.
    Unknown = 0,
    /// `base + offset`.
    Register = 1,
    /// The word at `base + offset`, plus `plus`.
    Memory = 2,
    /// The frame is the outermost one.
    Outermost = 3,
    /// Code to which a signal handler returns: the registers are in the `struct ucontext` at the stack pointer.
    Signal = 4,
    /// The description is one that cannot be followed.
    Strange = 5,
}
