//! Vector registers that code uses ([`crate::vectors`]).

use super::class::Class;
use super::sweep::Sweep;
use crate::{Isa, Va};

/// See [`crate::vectors::vectors_used`]. A superset: all of them, if there is one.
pub(crate) fn vectors_used(isa: Isa, code: &[u8]) -> u32 {
    let is_vector = |class| {
        matches!(class, Class::Vector | Class::VectorMove | Class::VectorLoad | Class::VectorStore | Class::Coprocessor)
    };
    let mut insns = Sweep::new(isa, code, Va(0));
    // What is not known may use all of them.
    let uses = insns.any(|insn| insn.map_or(true, |insn| insn.ops().any(|op| is_vector(op.class))));
    if uses { u32::MAX } else { 0 }
}
