//! Sites behind the first instruction of a function, which stays where it is.
//!
//! The kernel's uprobes write `int3` over the first byte of a function, and go on behind its first
//! instruction, which they copy from the file; when such a probe goes, that byte gets the file's
//! value again. Whatever else was at these bytes is lost then, in the middle of which the thread
//! goes on. A site behind the first instruction has none of its bytes: either probe may come first,
//! and go first, and both see each hit.
//!
//! ```text
//!   function:  push %rbx            the lead: stays. A uprobe is here
//!   site:      jmp detour
//!   detour:    lea 8(%rsp),%rsp     for handlers that look at more than registers
//!              handlers
//!              push %rbx            the lead again
//!              displaced instructions
//!              jmp resume
//! ```

use sidestep_isa::passed::Passed;
use sidestep_isa::{Isa, Va};

use crate::context::Context;
use crate::policy::plan::{DisplacedInsn, Plan};

/// The instruction in front of a site that belongs to the probed address, and stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lead {
    /// The instruction.
    pub insn: DisplacedInsn,
    /// What it has changed when the site is hit.
    pub passed: Passed,
}

/// What the handlers of a site need of the state in front of its instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// What they read of the context.
    pub reads: Context,
    /// They may change registers or memory.
    pub changes: bool,
}

impl Needs {
    /// What both need.
    #[must_use]
    pub fn union(self, other: Needs) -> Needs {
        Needs { reads: self.reads.union(other.reads), changes: self.changes || other.changes }
    }

    /// Whether they can be satisfied behind an instruction that changes this.
    #[must_use]
    pub(crate) fn allow(self, isa: Isa, passed: Passed) -> bool {
        match passed {
            Passed::Nothing => true,
            Passed::Stack { flags, .. } => !(flags && self.reads.has_flags(isa)),
            Passed::Registers { regs, flags } => {
                !self.changes && self.reads.registers(isa) & regs == 0 && !(flags && self.reads.has_flags(isa))
            }
        }
    }
}

/// Where a site may be that is asked for at the start of a function, or at a nop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// At that instruction.
    First,
    /// Behind that instruction if hits cost no more there.
    Behind(Needs),
    /// Behind that instruction in any case: somebody else has a breakpoint on it.
    Forced(Needs),
}

impl Default for Placement {
    /// For handlers that need nothing: they count.
    fn default() -> Placement {
        Placement::Behind(Needs::default())
    }
}

impl Plan {
    /// Link-time address of the instruction whose execution is a hit: the lead, if there is one,
    /// else the site.
    #[must_use]
    pub fn hit_at(&self) -> Va {
        self.lead.map_or(self.site, |lead| lead.insn.va)
    }

    /// Whether a uprobe of the kernel at the address that was asked for leaves the patch alone: it
    /// writes to the first byte there, and no byte of the patch is that one.
    #[must_use]
    pub fn is_beside_uprobes(&self) -> bool {
        self.site != self.asked
    }
}
