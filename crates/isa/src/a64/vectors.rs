//! Vector registers that A64 code uses ([`crate::vectors`]).

use super::class::Class;
use super::decode::Sweep;
use crate::Va;

/// See [`crate::vectors::vectors_used`]. Fields of numbers count as registers, too: that is a
/// superset. SVE and SME use all of them.
pub(crate) fn vectors_used(code: &[u8]) -> u32 {
    let mut used = 0;
    for insn in Sweep::new(code, Va(0)) {
        // What is not known may use all of them.
        let Ok(insn) = insn else { return u32::MAX };
        let [d, n, m, a] = [insn.rd(), insn.rn(), insn.rm(), insn.ra()].map(|number| 1_u32 << number);
        used |= match insn.class() {
            Class::Sve | Class::Sme => u32::MAX,
            // Tables and structures have up to four registers, one behind the other.
            Class::Vector => d | m | a | (0..4).fold(0, |all, i| all | n.rotate_left(i)),
            Class::Structures | Class::StructureOrdered => (0..4).fold(0, |all, i| all | d.rotate_left(i)),
            Class::LoadLiteralVector | Class::SingleVector => d,
            Class::PairVector => d | a,
            _ => 0,
        };
    }
    used
}
