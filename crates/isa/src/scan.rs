//! References that bytes would make if they were instructions: for bytes of which it is not known
//! whether and where they are code.

#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, ObjectCode, Va, x86};

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

/// All references of `bytes`, which lie at `start`: a superset, which finds each instruction at
/// each offset where one can start. The addresses need not be in text.
pub fn references(code: &ObjectCode<'_>, start: Va, bytes: &[u8], found: &mut dyn FnMut(Reference)) {
    match code.isa {
        Isa::X86 | Isa::X64 => x86::scan::references(code, start, bytes, found),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::references(start, bytes, found),
    }
}
