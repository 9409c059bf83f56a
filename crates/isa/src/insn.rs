//! Instructions of all instruction sets: what analysis and policy ask about one, under the same
//! names.
//!
//! Each method of [`Insn`] is a question that a port answers for its own instructions. Where an
//! instruction set has nothing of the kind, the answer is the one that its documentation gives for
//! "none".

use core::fmt;

use crate::passed::Passed;
#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, Va, a32, a64, x86};

/// Bytes of the longest instruction of all instruction sets.
pub const INSN_MAX: usize = a32::INSN_MAX;

const _: () = assert!(INSN_MAX >= x86::decode::INSN_MAX);

/// Bytes that are no instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the bytes at {at} are no complete instruction")]
pub struct DecodeError {
    /// Where decoding started.
    pub at: Va,
}

/// Where execution goes on after an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// The next instruction.
    Next,
    /// A jump to a fixed address.
    Jump(Va),
    /// A conditional jump to a fixed address, or the next instruction.
    Branch(Va),
    /// A jump through a register or memory.
    JumpIndirect,
    /// A call of a fixed address; comes back to the next instruction, as a rule.
    Call(Va),
    /// A call through a register or memory.
    CallIndirect,
    /// A return, also one that drops arguments.
    Return,
    /// Never continues: an instruction that is defined to fault.
    Stop,
    /// A system call.
    Syscall,
    /// A software interrupt, a breakpoint.
    Interrupt,
    /// The start of a memory transaction: the next instruction, or the given address after an
    /// abort.
    Transaction(Va),
    /// A jump, call or return that changes the privilege or the segment.
    Far,
}

impl Flow {
    /// See [`Insn::falls_through`].
    pub(crate) fn falls_through(self) -> bool {
        !matches!(self, Flow::Jump(_) | Flow::JumpIndirect | Flow::Return | Flow::Stop | Flow::Far)
    }
}

/// General-purpose registers, a bit per register number.
pub type RegisterSet = u32;

/// Registers and arithmetic flags that an instruction uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Registers of which any part is read, or may be.
    pub reads: RegisterSet,
    /// Registers of which any part is written, or may be.
    pub writes: RegisterSet,
    /// Registers whose old value is gone for certain, in all of its bits.
    pub kills: RegisterSet,
    /// Arithmetic flags that are read, or may be: a bit each, as the instruction set numbers them.
    pub flags_read: u32,
    /// Arithmetic flags whose old value is gone for certain.
    pub flags_killed: u32,
}

/// A decoded instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Insn {
    /// Of x86-64 or x86-32.
    X86(x86::Insn),
    /// Of A64.
    A64(a64::Insn),
    /// Of A32 or T32.
    A32(a32::Insn),
    /// Of the instruction set of the tests.
    #[cfg(feature = "toy")]
    Toy(toy::Insn),
}

/// The same question to the instruction of each instruction set.
macro_rules! ask {
    ($insn:expr, $own:ident => $answer:expr) => {
        match $insn {
            Insn::X86($own) => $answer,
            Insn::A64($own) => $answer,
            Insn::A32($own) => $answer,
            #[cfg(feature = "toy")]
            Insn::Toy($own) => $answer,
        }
    };
}

/// Decodes the instruction at the start of `bytes`, which lie at `at`. Bytes behind it do not
/// matter.
///
/// ```
/// use sidestep_isa::{Flow, Isa, Va, decode};
/// let insn = decode(Isa::X64, &[0xeb, 0x02, 0x90], Va(0x1000))?;
/// assert_eq!((insn.len(), insn.flow()), (2, Flow::Jump(Va(0x1004))));
/// # Ok::<(), sidestep_isa::DecodeError>(())
/// ```
///
/// # Errors
/// The bytes are no instruction, or not a whole one.
pub fn decode(isa: Isa, bytes: &[u8], at: Va) -> Result<Insn, DecodeError> {
    match isa {
        Isa::X86 | Isa::X64 => x86::decode(isa, bytes, at).map(Insn::X86),
        Isa::A64 => a64::decode(bytes, at).map(Insn::A64),
        Isa::A32 | Isa::T32 => a32::decode(isa, bytes, at).map(Insn::A32),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::decode(bytes, at).map(Insn::Toy),
    }
}

/// Decodes at any place of one piece of code.
#[allow(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
pub enum Reader<'a> {
    /// Of x86-64 or x86-32.
    X86(x86::Reader<'a>),
    /// Of A64.
    A64(a64::Reader<'a>),
    /// Of A32 or T32.
    A32(a32::Reader<'a>),
    /// Of the instruction set of the tests.
    #[cfg(feature = "toy")]
    Toy(toy::Reader<'a>),
}

impl<'a> Reader<'a> {
    /// For `code`, which lies at `base`.
    #[must_use]
    pub fn new(isa: Isa, code: &'a [u8], base: Va) -> Reader<'a> {
        match isa {
            Isa::X86 | Isa::X64 => Reader::X86(x86::Reader::new(isa, code, base)),
            Isa::A64 => Reader::A64(a64::Reader::new(code, base)),
            Isa::A32 | Isa::T32 => Reader::A32(a32::Reader::new(isa, code, base)),
            #[cfg(feature = "toy")]
            Isa::Toy => Reader::Toy(toy::Reader::new(code, base)),
        }
    }

    /// The instruction at an address.
    ///
    /// # Errors
    /// There is none, or the code does not have it.
    pub fn at(&mut self, at: Va) -> Result<Insn, DecodeError> {
        match self {
            Reader::X86(reader) => reader.at(at).map(Insn::X86),
            Reader::A64(reader) => reader.at(at).map(Insn::A64),
            Reader::A32(reader) => reader.at(at).map(Insn::A32),
            #[cfg(feature = "toy")]
            Reader::Toy(reader) => reader.at(at).map(Insn::Toy),
        }
    }

    /// As [`Insn::usage`], with the memory of the questions before.
    pub(crate) fn usage(&mut self, insn: &Insn) -> Usage {
        match (self, insn) {
            (Reader::X86(reader), Insn::X86(insn)) => reader.usage(insn),
            (_, insn) => insn.usage(),
        }
    }
}

/// Decodes `bytes` from the first to the last, one instruction behind the other. Ends after the
/// first error.
pub fn sweep(isa: Isa, bytes: &[u8], at: Va) -> Sweep<'_> {
    match isa {
        Isa::X86 | Isa::X64 => Sweep::X86(x86::Sweep::new(isa, bytes, at)),
        Isa::A64 => Sweep::A64(a64::Sweep::new(bytes, at)),
        Isa::A32 | Isa::T32 => Sweep::A32(a32::Sweep::new(isa, bytes, at)),
        #[cfg(feature = "toy")]
        Isa::Toy => Sweep::Toy(toy::Sweep::new(bytes, at)),
    }
}

/// See [`sweep`].
#[allow(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
pub enum Sweep<'a> {
    /// Of x86-64 or x86-32.
    X86(x86::Sweep<'a>),
    /// Of A64.
    A64(a64::Sweep<'a>),
    /// Of A32 or T32.
    A32(a32::Sweep<'a>),
    /// Of the instruction set of the tests.
    #[cfg(feature = "toy")]
    Toy(toy::Sweep<'a>),
}

impl Iterator for Sweep<'_> {
    type Item = Result<Insn, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Sweep::X86(sweep) => sweep.next().map(|insn| insn.map(Insn::X86)),
            Sweep::A64(sweep) => sweep.next().map(|insn| insn.map(Insn::A64)),
            Sweep::A32(sweep) => sweep.next().map(|insn| insn.map(Insn::A32)),
            #[cfg(feature = "toy")]
            Sweep::Toy(sweep) => sweep.next().map(|insn| insn.map(Insn::Toy)),
        }
    }
}

pub(crate) use ask;

impl Insn {
    /// The instruction of x86, if it is one.
    pub(crate) fn x86(self) -> Option<x86::Insn> {
        match self {
            Insn::X86(insn) => Some(insn),
            _ => None,
        }
    }

    /// The instruction of A64, if it is one.
    pub(crate) fn a64(self) -> Option<a64::Insn> {
        match self {
            Insn::A64(insn) => Some(insn),
            _ => None,
        }
    }

    /// The instruction of A32 or T32, if it is one.
    pub(crate) fn a32(self) -> Option<a32::Insn> {
        match self {
            Insn::A32(insn) => Some(insn),
            _ => None,
        }
    }

    /// The instruction set that it was decoded as one of.
    #[must_use]
    pub fn isa(&self) -> Isa {
        ask!(self, insn => insn.isa())
    }

    /// Its address, as given to [`decode`].
    #[must_use]
    pub fn va(&self) -> Va {
        ask!(self, insn => insn.va())
    }

    /// Its length in bytes, 1 to [`INSN_MAX`].
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        ask!(self, insn => insn.len())
    }

    /// The address behind it.
    #[must_use]
    pub fn next(&self) -> Va {
        ask!(self, insn => insn.next())
    }

    /// Where execution goes on.
    #[must_use]
    pub fn flow(&self) -> Flow {
        ask!(self, insn => insn.flow())
    }

    /// The condition of a branch that looks at flags, as the code generator of the instruction set
    /// takes it. `None`: it is no branch, or one that counts or tests a register.
    #[must_use]
    pub fn condition(&self) -> Option<u8> {
        ask!(self, insn => insn.condition())
    }

    /// Whether execution can reach the next instruction: directly, by a return from a call, trap or
    /// system call, or because a condition does not hold. Returns and jumps through a register may
    /// have one.
    #[must_use]
    pub fn falls_through(&self) -> bool {
        match self {
            Insn::A32(insn) => insn.falls_through(),
            _ => self.flow().falls_through(),
        }
    }

    /// An instruction without any effect, of any length. Hints to the CPU are none.
    #[must_use]
    pub fn is_nop(&self) -> bool {
        ask!(self, insn => insn.is_nop())
    }

    /// What assemblers write between functions.
    #[must_use]
    pub fn is_filler(&self) -> bool {
        ask!(self, insn => insn.is_filler())
    }

    /// The mark of a valid target of indirect branches, which has to stay where it is.
    #[must_use]
    pub fn is_target_mark(&self) -> bool {
        ask!(self, insn => insn.is_target_mark())
    }

    /// If it is a return: how many bytes of arguments it takes off the stack.
    #[must_use]
    pub fn dropped_by_return(&self) -> Option<u16> {
        ask!(self, insn => insn.dropped_by_return())
    }

    /// An instruction that debuggers and probes write.
    #[must_use]
    pub fn is_breakpoint(&self) -> bool {
        ask!(self, insn => insn.is_breakpoint())
    }

    /// A trap that is reported with the address behind it.
    #[must_use]
    pub fn is_trap(&self) -> bool {
        ask!(self, insn => insn.is_trap())
    }

    /// The address that its operand means relative to the program counter, whether it is loaded
    /// from, stored to or only computed. Targets of branches are in [`Insn::flow`].
    #[must_use]
    pub fn pc_target(&self) -> Option<Va> {
        ask!(self, insn => insn.pc_target())
    }

    /// A value that it makes available to the program and that may be an address: what is relative
    /// to the program counter, or an immediate.
    #[must_use]
    pub fn address_candidate(&self) -> Option<Va> {
        ask!(self, insn => insn.address_candidate())
    }

    /// An address to which it adds a register. Code at fixed addresses makes a label of a distance
    /// so.
    #[must_use]
    pub fn address_in_sum(&self) -> Option<Va> {
        ask!(self, insn => insn.address_in_sum())
    }

    /// As [`Insn::address_candidate`], of code whose addresses may be distances from its
    /// `_GLOBAL_OFFSET_TABLE_`.
    #[must_use]
    pub fn address_from(&self, got: Va) -> Option<Va> {
        ask!(self, insn => insn.address_from(got))
    }

    /// Whether it makes an address available as a value: what it names is no operand of a load or
    /// store.
    #[must_use]
    pub fn makes_address(&self) -> bool {
        ask!(self, insn => insn.makes_address())
    }

    /// The register that it writes a whole value to, if that is its first operand.
    #[must_use]
    pub fn destination(&self) -> Option<u8> {
        ask!(self, insn => insn.destination())
    }

    /// The register that it copies as a whole, and the one that it copies it to.
    #[must_use]
    pub fn copied(&self) -> Option<(u8, u8)> {
        ask!(self, insn => insn.copied())
    }

    /// If a condition decides which whole value a register gets: the registers that may be copied,
    /// and the one that gets the value.
    #[must_use]
    pub fn selected(&self) -> Option<(RegisterSet, u8)> {
        ask!(self, insn => insn.selected())
    }

    /// Whether it computes a sum of a register that it reads and something else, whatever register
    /// gets that.
    #[must_use]
    pub fn is_sum(&self) -> bool {
        ask!(self, insn => insn.is_sum())
    }

    /// Of a jump through memory: whether that is one word that linkers place, as for those of the
    /// procedure linkage table.
    #[must_use]
    pub fn is_slot_jump(&self) -> bool {
        ask!(self, insn => insn.is_slot_jump())
    }

    /// Whether it jumps through a register, or through a word of the stack: then the value may be a
    /// computed one, and [`crate::indirect`] has to say where it came from. Jumps through other
    /// memory go where a stored pointer says.
    #[must_use]
    pub fn jumps_through_value(&self) -> bool {
        ask!(self, insn => insn.jumps_through_value())
    }

    /// If it jumps through a table of pointers by an index: where the table is.
    #[must_use]
    pub fn pointer_table(&self) -> Option<Va> {
        ask!(self, insn => insn.pointer_table())
    }

    /// Whether compilers make it for a program: not what only the kernel may do, and not what zeros
    /// are.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        ask!(self, insn => insn.is_usual())
    }

    /// Whether it is a system call from which the kernel comes back to the next instruction.
    #[must_use]
    pub fn is_plain_syscall(&self) -> bool {
        ask!(self, insn => insn.is_plain_syscall())
    }

    /// Registers and flags that it uses.
    #[must_use]
    pub fn usage(&self) -> Usage {
        ask!(self, insn => insn.usage())
    }

    /// What has changed when it has been executed; `None` where that cannot be told or matters to
    /// others than the function itself.
    #[must_use]
    pub fn passed(&self) -> Option<Passed> {
        ask!(self, insn => insn.passed())
    }

    /// Whether it may raise an exception that a program sees as a signal at its address.
    /// Conservative: `false` is a promise for programs that have their own code, data and stack
    /// mapped.
    #[must_use]
    pub fn may_fault(&self) -> bool {
        ask!(self, insn => insn.may_fault())
    }

    /// The same, where what lies on the stack above its pointer is there, too.
    #[must_use]
    pub fn may_fault_off_stack(&self) -> bool {
        ask!(self, insn => insn.may_fault_off_stack())
    }

    /// Whether its fault may be what the program waits for, which then goes on somewhere else with
    /// the registers as they were.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        ask!(self, insn => insn.is_recoverable())
    }

    /// Whether it begins an exclusive sequence: the store that ends the sequence fails if the
    /// thread was in the kernel meanwhile, or wrote to memory near the word. A probe inside makes
    /// the program try again forever. An instruction set without such sequences has none.
    #[must_use]
    pub fn is_exclusive_load(&self) -> bool {
        ask!(self, insn => insn.is_exclusive_load())
    }

    /// Whether a thread can stand inside it: it is several instructions of the processor.
    #[must_use]
    pub fn is_divisible(&self) -> bool {
        ask!(self, insn => insn.is_divisible())
    }

    /// Whether it ends an exclusive sequence. See [`Insn::is_exclusive_load`].
    #[must_use]
    pub fn is_exclusive_store(&self) -> bool {
        ask!(self, insn => insn.is_exclusive_store())
    }
}

impl fmt::Display for Insn {
    /// In the syntax of the GNU assembler, as `objdump -d` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ask!(self, insn => insn.fmt(f))
    }
}
