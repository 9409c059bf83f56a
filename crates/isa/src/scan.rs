//! References that bytes would make if they were instructions: for bytes of which it is not known
//! whether and where they are code.

#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, ObjectCode, Va, a32, a64, x86};

/// What an instruction at some byte would refer to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reference {
    /// A direct jump, branch or call.
    Branch {
        /// Where the instruction would be.
        source: Va,
        /// Where it would lead.
        target: Va,
    },
    /// An operand that may be an address.
    Names(Va),
    /// An address to which a register is added.
    Sum(Va),
}

/// A distance that an instruction would have, if some bytes are one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Distance {
    /// Which byte of the instruction, counted from the first byte that was looked at: the
    /// instruction has it, but need not begin there.
    pub at: usize,
    /// Where it leads. An operand may mean up to [`Limits::operand_slack`] bytes more.
    ///
    /// [`Limits::operand_slack`]: crate::Limits::operand_slack
    pub target: Va,
    /// It may be the distance of a jump, branch or call.
    pub is_branch: bool,
    /// It may be the distance of an operand.
    pub is_operand: bool,
}

/// All distances in `bytes`, which lie at `start`, that reach farther than
/// [`Limits::short_branch`](crate::Limits::short_branch): a superset, as [`references`] is, but
/// fast. Programs call it for all of their text.
///
/// ```
/// use sidestep_isa::{Isa, Va, scan};
/// let mut found = Vec::new();
/// // jmp to 0x1105
/// scan::distances(Isa::X64, Va(0x1000), &[0xe9, 0x00, 0x01, 0, 0], |distance| {
///     found.push((distance.at, distance.target, distance.is_branch));
/// });
/// assert_eq!(found, [(0, Va(0x1105), true)]);
/// ```
pub fn distances(isa: Isa, start: Va, bytes: &[u8], found: impl FnMut(Distance)) {
    match isa {
        Isa::X86 | Isa::X64 => x86::scan::distances(isa, start, bytes, found),
        Isa::A64 => a64::scan::distances(start, bytes, found),
        Isa::A32 | Isa::T32 => a32::scan::distances(isa, start, bytes, found),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::distances(start, bytes, found),
    }
}

/// All references of `bytes`, which lie at `start`: a superset, which finds each instruction at
/// each offset where one can start. The addresses need not be in text.
pub fn references(code: &ObjectCode<'_>, start: Va, bytes: &[u8], found: &mut dyn FnMut(Reference)) {
    match code.isa {
        Isa::X86 | Isa::X64 => x86::scan::references(code, start, bytes, found),
        Isa::A64 => a64::scan::references(start, bytes, found),
        Isa::A32 | Isa::T32 => a32::scan::references(code.isa, start, bytes, found),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::references(start, bytes, found),
    }
}
