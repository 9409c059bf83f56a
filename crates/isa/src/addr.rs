//! Addresses and lengths with types, so that a link-time address, a file offset and a length are
//! never mixed up.

use core::fmt;

/// A virtual address: link-time (as the ELF file states it) or run-time (in a process); each API
/// says which.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Va(pub u64);

/// An offset in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileOff(pub u64);

/// A length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Len(pub u64);

impl Va {
    /// The address `len` bytes further on. Wraps like the address arithmetic of the CPU.
    #[must_use]
    pub fn plus(self, len: Len) -> Va {
        Va(self.0.wrapping_add(len.0))
    }

    /// The address moved by a signed distance, for example a load bias.
    #[must_use]
    pub fn offset(self, by: i64) -> Va {
        Va(self.0.wrapping_add_signed(by))
    }

    /// The signed distance from `from` to `self`.
    #[must_use]
    pub fn since(self, from: Va) -> i64 {
        self.0.wrapping_sub(from.0) as i64
    }
}

impl fmt::Debug for Va {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Va {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for FileOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Len {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
