//! Liveness: what a detour may overwrite because the code that follows does so before it looks.

use crate::insn::{Flow, Reader, RegisterSet};
use crate::{Isa, Va};

/// Instructions looked at for one question, on all paths together.
const BUDGET: usize = 96;
/// Conditional branches followed to both sides on one path.
const BRANCHES: usize = 6;

/// What nobody reads any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dead {
    /// Registers. The stack pointer is never dead.
    pub regs: RegisterSet,
    /// All arithmetic flags.
    pub flags: bool,
}

/// What is dead right before the instruction at `at`, judged by the code that follows in `code`,
/// which starts at `base`.
///
/// Conservative: at a call, return, indirect jump, system call or undecodable byte, outside `code`
/// and when the look-ahead is used up, everything is live. Not even the ABI's scratch registers are
/// dead at a `ret` or `call`: compilers know which registers a local function leaves alone (GCC's
/// `-fipa-ra`), and hand-written code has its own conventions.
///
/// An instruction that may fault is not known to have written anything, since a handler of the
/// signal may skip it. `recovers` says whether the program may go on at another place of the
/// function after a fault of the instruction at an address, for example at a landing pad: then,
/// everything is live there.
#[must_use]
pub fn dead_before(isa: Isa, code: &[u8], base: Va, at: Va, recovers: &dyn Fn(Va) -> bool) -> Dead {
    let limits = isa.limits();
    let mut walk = Walk { code: Reader::new(isa, code, base), budget: BUDGET, recovers };
    let open = Open { regs: !(1 << limits.stack_pointer), flags: limits.flags };
    let dead = walk.dead(at, open, BRANCHES);
    Dead { regs: dead.regs, flags: dead.flags == limits.flags }
}

/// A set of registers and flags.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Open {
    regs: RegisterSet,
    flags: u32,
}

struct Walk<'a, 'r> {
    code: Reader<'a>,
    budget: usize,
    recovers: &'r dyn Fn(Va) -> bool,
}

impl Walk<'_, '_> {
    /// The members of `open` that are dead at `at`.
    fn dead(&mut self, mut at: Va, mut open: Open, branches: usize) -> Open {
        let mut dead = Open { regs: 0, flags: 0 };
        while self.budget > 0 && open != (Open { regs: 0, flags: 0 }) {
            self.budget -= 1;
            let Ok(insn) = self.code.at(at) else { return dead };
            if !matches!(insn.flow(), Flow::Next | Flow::Jump(_) | Flow::Branch(_)) {
                return dead;
            }
            let mut usage = self.code.usage(&insn);
            if insn.is_recoverable() {
                if (self.recovers)(at) {
                    return dead;
                }
                // A handler may go on behind it, with the registers as they were.
                (usage.kills, usage.flags_killed) = (0, 0);
            }
            open.regs &= !usage.reads;
            open.flags &= !usage.flags_read;
            dead.regs |= open.regs & usage.kills;
            dead.flags |= open.flags & usage.flags_killed;
            open.regs &= !usage.kills;
            open.flags &= !usage.flags_killed;
            match insn.flow() {
                Flow::Jump(target) => at = target,
                Flow::Branch(target) => {
                    if branches == 0 {
                        return dead;
                    }
                    let here = self.dead(insn.next(), open, branches - 1);
                    // Only what is dead on one side can be dead on both.
                    let both = self.dead(target, here, branches - 1);
                    return Open { regs: dead.regs | both.regs, flags: dead.flags | both.flags };
                }
                _ => at = insn.next(),
            }
        }
        dead
    }
}
