//! What compilers are told, and what they give.

use sidestep_isa::RegisterSet;

use crate::codec::DecodeError;
use crate::insn::Imm64;

/// What is known of the place where code will run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Env {
    /// Offset from the table of the word with the address of the thread's memory.
    pub cells: i32,
    /// How to compute the time. None: a helper does.
    pub clock: Option<Clock>,
    /// What `get_attach_cookie` gives, if it is always the same.
    pub attach_cookie: Option<u64>,
    /// What `get_func_ip` gives, if it is always the same.
    pub func_ip: Option<u64>,
}

/// Nanoseconds are `(ticks * mult >> shift) + base`, with ticks of the processor's counter of time
/// and a product of 128 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// Factor.
    pub mult: u64,
    /// Bits, below 128.
    pub shift: u8,
    /// Added in the end, wrapping.
    pub base: u64,
    /// Offset from the table of a word where functions leave each time that they take.
    pub stamp: Option<i32>,
}

/// Native code of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    /// The code; its first byte is the entry.
    pub bytes: Vec<u8>,
    /// Machine registers that it changes, one bit each by their number.
    pub clobbers: RegisterSet,
    /// Whether it changes the arithmetic flags.
    pub flags: bool,
    /// Whether it needs the address of the thread's memory.
    pub cells: bool,
    /// Whether it calls helpers, and so needs the table.
    pub helpers: bool,
    /// Bytes of stack below the stack pointer that it is entered with, without the helpers' own.
    pub stack: usize,
    /// Where the code of each instruction starts: offset in `bytes`, and slot. Rising.
    pub map: Vec<(usize, usize)>,
    /// Offsets in `bytes` of the distances, 4 bytes from their own end, of jumps out of a
    /// [`Shape::Filter`](super::Shape::Filter).
    pub go: Vec<usize>,
}

impl Code {
    /// The instruction that an offset in the code belongs to; none in what saves and restores
    /// registers.
    #[must_use]
    pub fn slot_at(&self, offset: usize) -> Option<usize> {
        let after = self.map.partition_point(|&(start, _)| start <= offset);
        after.checked_sub(1).map(|i| self.map[i].1)
    }
}

/// Why there is no native code for a program. None of this is left in one that was verified and
/// linked, except [`CompileError::Inline`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CompileError {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("insn {at}: {imm} has no address yet; link the program first")]
    Unlinked { at: usize, imm: Imm64 },
    #[error("insn {at}: goes to no instruction of its function; verify the program first")]
    Target { at: usize },
    #[error("insn {at}: r10 can only be read, copied, compared and added to; verify the program first")]
    FramePointer { at: usize },
    #[error("insn {at}: there is no helper {number}; use one that is listed")]
    Helper { at: usize, number: u32 },
    #[error("insn {at}: calls itself, or too deep; use a loop")]
    Recursion { at: usize },
    #[error("insn {at}: cannot be inlined; compile the program as a function")]
    Inline { at: usize },
    #[error("there is no compiler for this instruction set; have the program interpreted")]
    Isa,
    #[error("insn {at}: the thread's memory is out of reach; use smaller maps")]
    Cells { at: usize },
}

/// Helpers are numbered below this: a table of one page of pointers holds them.
pub const MAX_HELPERS: u32 = 512;
