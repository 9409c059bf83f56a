//! What is fixed for an instruction set: sizes, numbers, and what its programs can have.

use crate::context::Context;
use crate::insn::RegisterSet;
#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, Va, a32, a64, x86};

/// What is fixed for an instruction set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bits of an address: 32 or 64.
    pub bits: u32,
    /// Addresses of instructions are multiples of this, in bytes.
    pub alignment: u64,
    /// Bytes of the jump that is written at sites.
    pub jump: usize,
    /// Bytes and assembly of that jump where its target is not known yet.
    pub jump_text: (&'static str, &'static str),
    /// The breakpoint that is written at sites.
    pub breakpoint: &'static [u8],
    /// A breakpoint may take the place of the start of any instruction while threads run.
    pub traps_first: bool,
    /// How far such a jump reaches in each direction, in bytes. `None`: everywhere.
    pub reach: Option<u64>,
    /// Where user space ends on Linux.
    pub address_end: u64,
    /// Names of the general-purpose registers, by number.
    pub registers: &'static [&'static str],
    /// Number of the stack pointer among them.
    pub stack_pointer: u8,
    /// Registers that a call may change.
    pub changed_by_calls: RegisterSet,
    /// The arithmetic flags, a bit each.
    pub flags: u32,
    /// Instructions have any length: a jump may overlap the next one, and there is a short jump,
    /// which may lead to the long one.
    pub overlaps: bool,
    /// Branches that [`scan::distances`](crate::scan::distances) does not find lead less far than
    /// this, in bytes.
    pub short_branch: i64,
    /// Most bytes between the target that `scan::distances` gives for an operand and the address
    /// that the operand means.
    pub operand_slack: u64,
    /// There are exclusive sequences: from a load to a store that fails if the memory was accessed
    /// otherwise in between.
    pub exclusive: bool,
    /// Where a page asks for that, an indirect branch to anything but a mark faults.
    pub guards_targets: bool,
    /// Compilers write data between instructions, so what lies behind data may be read at the wrong
    /// places.
    pub data_in_code: bool,
    /// A byte at the start of an instruction that programs may jump over.
    pub skipped_prefix: Option<u8>,
    /// Functions may take their arguments off the stack when they return.
    pub drops_arguments: bool,
    /// Words of text and data that look like addresses are taken for such. Not where too many
    /// numbers do.
    pub words_name_code: bool,
    /// Handlers find the end of a goroutine's stack.
    pub go: bool,
    /// Where handlers find the registers.
    pub context: &'static Context,
}

impl Isa {
    /// Whether an instruction can begin at an address.
    #[must_use]
    pub fn can_begin_at(self, va: Va) -> bool {
        va.0 % self.limits().alignment == 0
    }

    /// What is fixed for it.
    #[must_use]
    pub const fn limits(self) -> &'static Limits {
        match self {
            Isa::X86 => &x86::LIMITS_32,
            Isa::X64 => &x86::LIMITS_64,
            Isa::A64 => &a64::LIMITS,
            Isa::A32 => &a32::LIMITS_A32,
            Isa::T32 => &a32::LIMITS_T32,
            #[cfg(feature = "toy")]
            Isa::Toy => &toy::LIMITS,
        }
    }
}
