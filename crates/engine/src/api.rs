//! What a front end sees.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use sidestep_isa::Va;
use sidestep_plan::{Plan, Technique};

/// What to probe.
#[derive(Clone, Debug)]
pub enum Target {
    /// A running process.
    Pid(i32),
    /// A command to start, stopped before its first instruction until the probes are in. Looked up in `PATH`.
    Command(Vec<OsString>),
}

/// `OBJECT:FUNC` as the user wrote it, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The whole text, for messages and headings.
    pub text: String,
    /// Path or short library name (`libc`, `c`, `libssl.so.3`); `None` = the main program, then every mapped object.
    pub object: Option<String>,
    /// The function part.
    pub func: FuncPattern,
}

/// The function part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FuncPattern {
    /// A glob or plain name, matched against raw and demangled names; a plain name matches exactly one function of
    /// one object (the first object that has it).
    Name(String),
    /// `symbol+0xOFF`.
    Offset(String, u64),
    /// `0xADDR`: link-time virtual address.
    Addr(Va),
    /// `-r`: a regular expression is matched against names.
    Regex(String),
}

/// What a probe does at a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Count hits.
    Count,
    /// Count, and put the time from entry to return into a histogram. `per_function`: one histogram a function,
    /// otherwise one for all functions of the request.
    Latency {
        /// One histogram per function.
        per_function: bool,
    },
    /// One record per hit.
    Record {
        /// At the return instead of the entry.
        at_return: bool,
        /// Up to 6.
        args: Vec<Arg>,
    },
}

/// One argument of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arg {
    /// `arg0`…; `None` = `retval`.
    pub index: Option<u32>,
    /// Read the value as a pointer to a string.
    pub string: bool,
}

/// A pattern with what to do at its sites.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where.
    pub pattern: Pattern,
    /// What.
    pub action: Action,
}

/// One installed probe.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Index in all per-probe results.
    pub id: usize,
    /// Index of the request it came from.
    pub request: usize,
    /// Symbol name, demangled, as shown to the user (with `+0xOFF` where asked for).
    pub name: String,
    /// Path of the object as the target sees it.
    pub object: PathBuf,
    /// Run-time address of the site.
    pub va: Va,
    /// How it is done.
    pub technique: Technique,
}

/// A match that could not be probed.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Symbol name.
    pub name: String,
    /// Path of the object.
    pub object: PathBuf,
    /// A clause for the user.
    pub reason: String,
}

/// One record as read from a ring.
#[derive(Clone, Debug)]
pub struct Record {
    /// Which probe.
    pub probe: usize,
    /// Thread id.
    pub tid: u32,
    /// Thread name.
    pub comm: String,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The arguments asked for.
    pub args: Vec<Value>,
}

/// A recorded argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The register or stack word.
    Int(u64),
    /// The string's bytes, at most [`sidestep_wire::private::STR_MAX`].
    Str(Vec<u8>),
    /// The pointer could not be read.
    Fault(u64),
}

/// Counts of one probe since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Hits that were handled.
    pub hits: u64,
    /// Hits that were not handled.
    pub missed: u64,
    /// Records that did not fit.
    pub lost: u64,
}

/// A latency distribution in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// `(low, high, count)` of the non-empty fine buckets, ascending; a value v is in one if low ≤ v < high.
    pub buckets: Vec<(u64, u64, u64)>,
    /// Sum of all values.
    pub sum: u64,
    /// Number of values.
    pub count: u64,
}

/// What became of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// Still there, still probed.
    Running,
    /// Gone. The wait status, if it was started by the session.
    Exited(Option<ExitStatus>),
    /// Replaced itself by another program (`execve`): the probes went with the old one.
    Executed,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// `exit(code)`.
    Code(i32),
    /// Killed by a signal.
    Signal(i32),
}

/// Options of a session.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Use trap probes only (`--no-optimize`).
    pub no_optimize: bool,
    /// Bytes of ring per thread, rounded up to a power of two; 0 = the default (256 KiB).
    pub ring_bytes: usize,
    /// Where to look for separate debug files besides `/usr/lib/debug`.
    pub debug_dirs: Vec<PathBuf>,
}

/// Figures about the attach, for `-v` and benchmarks.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachStats {
    /// Resolving and planning, while the target ran.
    pub planning: Duration,
    /// How long the threads were stopped.
    pub stopped: Duration,
    /// Bytes of detours and thunks.
    pub code_bytes: usize,
}

/// A site with its plan, for `explain`.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Symbol name.
    pub name: String,
    /// Object path.
    pub object: PathBuf,
    /// The plan or the refusal.
    pub plan: Result<Plan, sidestep_plan::Refusal>,
}
