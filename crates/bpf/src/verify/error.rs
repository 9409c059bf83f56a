//! Why a program is refused.

use crate::codec::DecodeError;
use crate::insn::Reg;
use crate::map::MapKind;

/// A program that is not proven to be safe: which instruction is not, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("insn {insn}: {text}: {problem}")]
pub struct VerifyError {
    /// Its slot.
    pub insn: usize,
    /// Its text.
    pub text: String,
    /// What is wrong with it.
    pub problem: Problem,
}

impl VerifyError {
    /// Whether nothing is wrong but that the program is too much to be looked at.
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        matches!(self.problem, Problem::TooComplex(_) | Problem::TooManyPaths)
    }
}

/// What is wrong with an instruction. `what` is in words what a register points to.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Problem {
    /// The program has no instruction.
    #[error("the program is empty: it needs at least exit")]
    Empty,
    /// More slots than the kernel takes.
    #[error("the program has {0} slots, more than {max}: split it", max = super::MAX_SLOTS)]
    TooLong(usize),
    /// Not an instruction.
    #[error("{}", .0.problem)]
    Decode(DecodeError),
    /// A jump or call that leaves the program or hits the middle of an instruction.
    #[error("the target {0} is no instruction: jump to the start of one")]
    Target(i64),
    /// A jump into another function.
    #[error("the target {0} is in another function: call it")]
    JumpsOut(usize),
    /// The function's end is reached.
    #[error("the function does not end here: end it with exit or goto")]
    FallsOff,
    /// No path leads here.
    #[error("no path leads here: remove it")]
    Unreachable,
    /// A function that calls itself.
    #[error("the function at {0} calls itself: use a loop")]
    Recursion(usize),
    /// Too deep.
    #[error("calls are nested more than {max} deep: inline some", max = super::value::MAX_FRAMES)]
    TooDeep,
    /// Too much stack in all frames together.
    #[error("the stacks of nested calls need {0} bytes together, more than {max}: make them smaller", max = super::state::STACK)]
    StackDepth(usize),
    /// Too many steps.
    #[error("still not done after {0} instructions: bound the loops lower, or make the program simpler")]
    TooComplex(usize),
    /// Too many open branches or states.
    #[error("too many paths to remember: bound the loops lower, or make the program simpler")]
    TooManyPaths,
    /// The same state again.
    #[error("the loop never ends: nothing changed since the last time here")]
    InfiniteLoop,

    /// Read before it was written.
    #[error("{0} has no value yet: set it first")]
    Uninit(Reg),
    /// Read after a call.
    #[error("{0} has no value after a call: keep what is needed in r6 to r9")]
    Clobbered(Reg),
    /// Read after what it pointed to was given back.
    #[error("the record that {0} pointed to was submitted or discarded: use it before")]
    Released(Reg),
    /// `r10` is read-only.
    #[error("r10 is read-only: copy it and change the copy")]
    FramePointer,
    /// Maybe null.
    #[error("{reg} may be null: check it first")]
    MayBeNull {
        /// The register.
        reg: Reg,
    },
    /// A number is no pointer.
    #[error("{reg} is a number, not a pointer: read the target's memory with probe_read_user")]
    NumberAsPointer {
        /// The register.
        reg: Reg,
    },
    /// Outside of it.
    #[error("bytes {from} to {to} of {what} are accessed, which has {size}: check the offset first")]
    OutOfBounds {
        /// Of what.
        what: String,
        /// First byte, at the least.
        from: i64,
        /// End, at the most.
        to: i64,
        /// Its length.
        size: u64,
    },
    /// Outside of the stack.
    #[error("the stack is accessed from r10{from:+} to r10{to:+}, but is from r10-{max} to r10: change the offset", max = super::state::STACK)]
    OutOfStack {
        /// First byte, at the least.
        from: i64,
        /// End, at the most.
        to: i64,
    },
    /// Not aligned.
    #[error("{what} is accessed at offset {offset}, which is no multiple of {size}: align it")]
    Misaligned {
        /// What is accessed, a noun phrase.
        what: String,
        /// At the least.
        offset: i64,
        /// Length of the access.
        size: usize,
    },
    /// Not for writing.
    #[error("{what} is read-only: keep what changes in a map")]
    ReadOnly {
        /// What is accessed, a noun phrase.
        what: String,
    },
    /// Not for reading or writing.
    #[error("{what} cannot be accessed directly: {hint}")]
    NoAccess {
        /// What is accessed, a noun phrase.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// The context pointer was changed.
    #[error("the context is accessed through a changed pointer: use a fixed offset from the context itself")]
    ChangedContext,
    /// Stack that was not written.
    #[error("stack at r10{offset:+} has no value yet: write it first")]
    UninitStack {
        /// The byte, from `r10`.
        offset: i64,
    },
    /// Part of a spilled pointer.
    #[error("part of a pointer that is kept at r10{offset:+} is accessed: access all 8 bytes")]
    PartialPointer {
        /// The byte, from `r10`.
        offset: i64,
    },
    /// Atomics on what cannot have them.
    #[error("atomic operations work on map values, records and the stack, not on {what}")]
    Atomic {
        /// What it was.
        what: String,
    },
    /// A pointer in memory that atomics change.
    #[error("the operand {0} is a pointer: atomic operations take numbers")]
    AtomicPointer(Reg),

    /// Constant divisor zero.
    #[error("division by zero: use another divisor")]
    DivisionByZero,
    /// Constant shift too far.
    #[error("a shift by {count} of {bits} bits: shift by less")]
    Shift {
        /// By how much.
        count: i32,
        /// Of how many.
        bits: u32,
    },
    /// Arithmetic that makes no pointer.
    #[error("{reg} is {what}: only + and - of 64 bits work on pointers")]
    PointerOperation {
        /// The register.
        reg: Reg,
        /// What it points to.
        what: String,
    },
    /// Pointer plus pointer.
    #[error("two pointers cannot be added: add an offset")]
    PointerSum,
    /// Number minus pointer.
    #[error("a pointer cannot be subtracted from a number: subtract from the pointer")]
    PointerNegated,
    /// Arithmetic on what has no inside.
    #[error("{what} has no inside: no arithmetic on {reg}")]
    FixedPointer {
        /// The register.
        reg: Reg,
        /// What it is.
        what: String,
    },
    /// An offset that is far outside.
    #[error("{what} is moved by {offset}, further than anything is long: bound the offset first")]
    FarOffset {
        /// The pointer that is moved, a noun phrase.
        what: String,
        /// What is known of the offset.
        offset: String,
    },

    /// No such helper.
    #[error("there is no helper {0}: see the list of helpers")]
    NoHelper(u32),
    /// Not without permission.
    #[error("{0} changes what the target does: allow it with --unsafe")]
    NotAllowed(&'static str),
    /// Wrong argument.
    #[error("{reg} must be {expected}, but is {found}")]
    Argument {
        /// The register.
        reg: Reg,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// Length without bounds.
    #[error("the length {reg} is {found}: bound it to {min} to {max} first")]
    Length {
        /// The register.
        reg: Reg,
        /// What is known of it.
        found: String,
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// Helper and map do not fit.
    #[error("{helper} does not work on map '{map}' of kind {kind}: use another helper or kind")]
    WrongMap {
        /// The helper.
        helper: &'static str,
        /// The map.
        map: String,
        /// Its kind.
        kind: MapKind,
    },
    /// No such map.
    #[error("the program has no map {0}: add it to the list of maps")]
    NoMap(u32),
    /// A map without a value of which the address could be taken.
    #[error("map '{0}' is no array: look the value up")]
    NoMapValue(String),
    /// Descriptors of the kernel.
    #[error("map descriptors mean nothing here: refer to maps by index")]
    Descriptor,
    /// An address that only linking knows.
    #[error("addresses in a thread's memory come from linking: refer to a value of a map")]
    Linked,
    /// Kernel variables.
    #[error("kernel variables cannot be used in a target: remove the reference")]
    KernelVariable,
    /// Not the start of a record.
    #[error("{reg} points into the record, not to its start: pass what ringbuf_reserve returned")]
    MovedRecord {
        /// The register.
        reg: Reg,
    },
    /// The pattern of strncmp must be constant text.
    #[error("{0} must be text that ends in a zero byte, in a read-only map")]
    NoText(Reg),

    /// Not given back.
    #[error("the record reserved at insn {taken} is neither submitted nor discarded: do so on every path")]
    Leaked {
        /// The call that reserved it.
        taken: usize,
    },
    /// A callback returns something else.
    #[error("the callback returns {0}: return 0 to go on, 1 to stop")]
    CallbackResult(String),
    /// A callback keeps or gives back a record.
    #[error("a callback must submit or discard what it reserves, and nothing else")]
    CallbackReference,
    /// A frame's stack.
    #[error("a pointer to the stack of a function that returns must not outlive it: keep it in the function")]
    StackEscapes,
}
