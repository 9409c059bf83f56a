//! Registers and flags that instructions use.

use super::decode::Insn;
use crate::insn::Usage;

/// The flags N, Z, C and V in the masks of [`Usage`], in the order of `CPSR`.
pub const N: u8 = 8;
/// See [`N`].
pub const Z: u8 = 4;
/// See [`N`].
pub const C: u8 = 2;
/// See [`N`].
pub const V: u8 = 1;
/// All of them.
pub const NZCV: u8 = N | Z | C | V;

/// Flags that a condition looks at (section A8.3).
pub(super) const fn condition_flags(condition: u8) -> u8 {
    match condition >> 1 {
        0 => Z,
        1 => C,
        2 => N,
        3 => V,
        4 => C | Z,
        5 => N | V,
        6 => N | Z | V,
        _ => 0,
    }
}

impl Insn {
    /// See [`crate::Insn::usage`]. The program counter is no register of it: [`crate::Insn::flow`]
    /// and [`crate::Insn::pc_target`] say what is done with it. Where a condition decides, nothing
    /// is gone for certain.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for op in self.ops() {
            let reads = u32::from(op.reads) & 0x7fff;
            let writes = u32::from(op.writes) & 0x7fff;
            // What an instruction in front has written is not read from outside; that does not
            // matter here.
            if op.is_always() && self.it().is_none_or(|_| self.ops().count() == 1) {
                usage.kills = writes & !reads;
                usage.flags_killed = u32::from(op.flags_killed);
            }
            usage.reads |= reads;
            usage.writes |= writes;
            usage.flags_read |= u32::from(op.all_flags_read());
        }
        usage
    }

    /// Flags that may have changed.
    pub(super) fn flags_set(&self) -> u8 {
        self.ops().fold(0, |all, op| all | op.flags_set)
    }
}
