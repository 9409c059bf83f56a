//! Why a site, or a technique at a site, is refused. The text of each reason stands here and
//! nowhere else: `explain`, `coverage`, JSON and messages print these values.
//!
//! ```
//! use sidestep_isa::Va;
//! use sidestep_plan::reason::Reason;
//! let reason = Reason::JumpTable { target: Va(0x1234) };
//! assert_eq!(reason.to_string(), "a jump table may lead to 0x1234");
//! ```

use sidestep_isa::Va;
use sidestep_isa::object::Rewriter;
use sidestep_isa::{DecodeError, Insn, RelocateError};
use thiserror::Error;

use crate::fixed::Fixed;

/// Why nothing, or nothing better, can be written at a site. Addresses are link-time addresses.
/// `insn` is the instruction in question.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs, reason = "the text of a variant says what its fields are")]
pub enum Reason {
    // What is at the address.
    #[error("no executable section of the object holds this address")]
    NoSection,
    #[error(
        "no function is known at this address: {start} to {end} is padding, data, or code that has no symbol and that no call, jump or pointer in known code leads to"
    )]
    NoFunction { start: Va, end: Va },
    #[error("where the instructions of its function start is not certain: {0}")]
    UncertainBoundaries(Fault),
    #[error("it is inside `{insn}`: the nearest instructions start at {} and {}", insn.va(), insn.next())]
    InsideInstruction { insn: Insn },
    #[error("its function does not decode up to it")]
    NotDecoded,
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
    #[error("there is a breakpoint already")]
    Breakpoint,
    #[error(transparent)]
    NotRelocatable(#[from] RelocateError),
    #[error("`{insn}` is in the restartable sequence at {start}, in which the kernel goes by the instruction pointer")]
    RestartableSequence { insn: Insn, start: Va },
    #[error("`{insn}` is in an exclusive sequence, whose store at {store} would always fail with a handler in there")]
    ExclusiveSequence { insn: Insn, store: Va },
    #[error("the program itself changes `{insn}` at {} ({by})", insn.va())]
    Rewritten { insn: Insn, by: Rewriter },
    #[error("the runtime of Mono reads `{insn}` at {} to find out what is called", insn.va())]
    ReadByMono { insn: Insn },
    #[error("the stacks of 32-bit Go programs are too small for a handler")]
    GoStacks,

    // A site behind the first instruction.
    #[error("Go checks its stack first")]
    GoChecksStack,
    #[error("`{insn}` is neither the first instruction of a function nor a nop")]
    NotFirst { insn: Insn },
    #[error("the state in front of `{insn}` is lost behind it")]
    StateLost { insn: Insn },
    #[error("a loop jumps back to it")]
    LoopHead,
    #[error("the function ends behind `{insn}`")]
    EndsBehind { insn: Insn },
    #[error("`{insn}` behind it has to stay where it is")]
    NextStays { insn: Insn },
    #[error("`{insn}` behind it may fault, and be tried again")]
    NextMayFault { insn: Insn },
    #[error("a system call is near behind it")]
    SyscallNear,
    #[error("there is a breakpoint of somebody else (a kernel uprobe?) at {site}, and {why}")]
    ForeignBreakpoint { site: Va, why: Box<Reason> },

    // Room for a jump.
    #[error("`{insn}` is a target of indirect branches, which fault where a jump is")]
    TargetMark { insn: Insn },
    #[error("a thread may stand inside `{insn}`, where a jump would be")]
    Divisible { insn: Insn },
    #[error("`{insn}` is no nop of at least {needed} bytes")]
    NoNop { insn: Insn, needed: usize },
    #[error("`{insn}` has {} of {needed} bytes, and execution goes on behind it", insn.len())]
    TooShort { insn: Insn, needed: usize },
    #[error("`{insn}` has {} of {needed} bytes", insn.len())]
    TooShortForShortJump { insn: Insn, needed: usize },
    #[error("the instructions up to {end} have {len} of {needed} bytes, and execution goes on")]
    GroupTooShort { end: Va, len: usize, needed: usize },
    #[error("the function ends at {end}, after {len} bytes, and execution goes on")]
    FunctionEnds { end: Va, len: usize },
    #[error("Go may stop a thread between any two instructions and expects to know the place")]
    GoPreempts,
    #[error("`{insn}` at {} comes back to {}, inside the jump", insn.va(), insn.next())]
    CallReturnsInside { insn: Insn },
    #[error("the code ends after {len} of {needed} bytes, and something else starts at {next}")]
    NextTooNear { len: usize, needed: usize, next: Va },
    #[error("the code ends after {len} of {needed} bytes, and the bytes at {at} are no padding")]
    NoPadding { len: usize, needed: usize, at: Va },
    #[error("the section ends behind it")]
    SectionEnds,
    #[error(
        "no address that a jump with the displacement `{fixed}` leads to is free ({} are possible)", fixed.choices()
    )]
    NoStub { fixed: Fixed },
    #[error("there is no padding between functions near it that nobody else uses")]
    NoIsland,
    #[error("it needs room")]
    NeedsRoom,
    #[error("others jump into it")]
    Frequented,
    #[error("the exit is not displaced")]
    ExitNotDisplaced,

    // Other probes.
    #[error("there is another probe at {at}")]
    OtherProbe { at: Va },
    #[error("the probe at {owner} needs the bytes at {at}")]
    Claimed { owner: Va, at: Va },
    #[error("{0}: register this one first, or both at once")]
    RegisterFirst(Box<Reason>),

    // Control flow to the middle of what a jump replaces.
    #[error("a call at {source_at} goes to {target}")]
    Call { source_at: Va, target: Va },
    #[error("bytes at {source_at}, which may be code, refer to {target}")]
    MaybeJump { source_at: Va, target: Va },
    #[error("the code at {source_at} jumps back to {target}")]
    JumpBack { source_at: Va, target: Va },
    #[error("the code at {source_at} jumps to {target}")]
    Jump { source_at: Va, target: Va },
    #[error("another symbol or function starts at {at}")]
    Symbol { at: Va },
    #[error("exceptions land at {at}")]
    LandingPad { at: Va },
    #[error("the program holds a pointer to {at}")]
    Pointer { at: Va },
    #[error("a jump table may lead to {target}")]
    JumpTable { target: Va },
    #[error("{at} is outside all executable sections")]
    OutsideText { at: Va },
    #[error("the function's end is not known (its symbol has no size)")]
    EndNotKnown,
    #[error("no symbol or unwind information covers {at}, and no walk reaches it")]
    NotCovered { at: Va },
    #[error(transparent)]
    UnknownJumps(#[from] UnknownJumps),
}

/// Why the instructions of a function are not known for certain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// Bytes that are no instruction.
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
    /// A branch or symbol leads into an instruction.
    #[error("{target}, which {source_at} refers to, is in the middle of an instruction")]
    InsideInstruction {
        /// Link-time address of the branch or symbol.
        source_at: Va,
        /// Where it leads.
        target: Va,
    },
}

/// Why the targets of an indirect jump of a function are not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum UnknownJumps {
    /// The instructions of the function are not known for certain.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The jump goes through a table that was not found.
    #[error("the jump table of the jump at {jump} was not found")]
    LostTable {
        /// Link-time address of the jump.
        jump: Va,
    },
    /// The target is computed.
    #[error("the indirect jump at {jump} goes to a computed address")]
    Computed {
        /// Link-time address of the jump.
        jump: Va,
    },
    /// Some code adds a distance to an address inside the function.
    #[error("code computes with {label}")]
    ComputedLabel {
        /// The link-time address that is added to.
        label: Va,
    },
    /// Functions take part that this index of a few functions leaves out.
    #[error("other functions take part, which were not looked at")]
    NotIndexed,
    /// No rule applies to the jump.
    #[error("the indirect jump at {jump} is not understood")]
    NotUnderstood {
        /// Link-time address of the jump.
        jump: Va,
    },
}

/// Why the returns of a function are not watched by a replaced return address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs, reason = "the text of a variant says what it means")]
pub enum NoReplacedReturn {
    #[error("it is not the start of a function")]
    NotAFunction,
    #[error("Go moves its stacks and checks return addresses")]
    Go,
    #[error("nobody calls it: it is a part of another function")]
    Part,
    #[error("a loop inside the function jumps back to its first instruction")]
    LoopHead,
    #[error("its unwind information says that no ordinary call leads to it")]
    OddFrame,
    #[error("where its instructions start is not certain")]
    Uncertain,
    #[error("neither unwind information nor a call to it says that a return address is on top of the stack")]
    NotCalled,
    #[error("it looks at its own return address")]
    LooksAtReturnAddress,
    #[error("its returns take different numbers of arguments off the stack")]
    DropsDiffer,
    #[error("it takes its arguments off the stack")]
    DropsArguments,
    #[error("it takes too many arguments off the stack")]
    DropsTooMany,
    #[error("calls leave the return address in a register, where it is not replaced")]
    InRegister,
}

/// Why no handler can run behind the probed instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs, reason = "the text of a variant says what it means")]
pub enum NotBehind {
    #[error("handlers of a Go function come behind its stack check, not behind its first instruction")]
    StackCheck,
    #[error("the instruction is not displaced")]
    NotDisplaced,
    #[error("the instruction is not known")]
    Undecodable,
    #[error("nothing runs behind a branch: probe the instruction that it leads to")]
    Branch,
    #[error("the instruction does not always lead to the one behind it")]
    DoesNotContinue,
    #[error("an exclusive sequence begins with it: with a handler in there, its store always fails")]
    BeginsSequence,
}

/// Why entry and return of a Go call cannot be paired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs, reason = "the text of a variant says what it means")]
pub enum NotPaired {
    #[error("it is assembly, or of a Go before 1.17")]
    Assembly,
    #[error("where it ends is not known")]
    NoEnd,
    #[error("it calls others without a check of its stack, which may move")]
    MovingStack,
}
