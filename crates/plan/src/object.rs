//! What the planner must be told about an object file. All addresses are link-time.

use sidestep_isa::{Len, Va};

/// A run of bytes at a link-time address.
#[derive(Clone, Debug)]
pub struct Bytes<'a> {
    /// Section or segment name, for messages.
    pub name: &'a str,
    /// Where it starts.
    pub va: Va,
    /// Its contents as in the file.
    pub data: &'a [u8],
}

/// A function's extent, from a symbol or an FDE of `.eh_frame`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: Va,
    /// Length; 0 = not known (a symbol without a size).
    pub len: Len,
}

/// Everything the planner knows about one object.
#[derive(Clone, Debug, Default)]
pub struct ObjectCode<'a> {
    /// Executable sections, sorted by address.
    pub text: Vec<Bytes<'a>>,
    /// Read-only and writable data sections that may hold jump tables or code pointers.
    pub data: Vec<Bytes<'a>>,
    /// All known function extents: symbols of both tables and FDEs, any order, duplicates allowed.
    pub extents: Vec<Extent>,
    /// Every symbol address in text, also of size 0 and of other types than function.
    pub labels: Vec<Va>,
    /// Values that dynamic relocations store and that may be code addresses (R_X86_64_RELATIVE and R_X86_64_64 addends).
    pub pointers: Vec<Va>,
    /// Landing pads of all LSDAs.
    pub landing_pads: Vec<Va>,
    /// The object was compiled by the Go toolchain.
    pub go: bool,
}
