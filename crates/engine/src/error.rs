//! Why a session could not do something. Each message is one line that says what to do.

use std::path::PathBuf;

use sidestep_sys::{CallError, HandOverError, OpenError, Process, SharedError, SpawnError, StartupError, StopError};

/// Why a session could not start, or not be ended cleanly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The process cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The command cannot be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The command did not get as far as its entry point.
    #[error(transparent)]
    Startup(#[from] StartupError),
    /// The threads cannot be stopped.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// A system call in the target failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Memory of the session could not be given to one more process.
    #[error(transparent)]
    HandOver(#[from] HandOverError),
    /// The target's memory cannot be accessed.
    #[error(transparent)]
    Memory(#[from] sidestep_sys::MemoryError),
    /// The shared memory cannot be mapped.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// A file is no usable object.
    #[error(transparent)]
    Object(#[from] sidestep_symbols::ObjectError),
    /// No such function.
    #[error(transparent)]
    Symbol(#[from] sidestep_symbols::SymbolError),
    /// No such line of a source file.
    #[error(transparent)]
    Line(#[from] sidestep_symbols::LineError),
    /// No such USDT probe.
    #[error(transparent)]
    Usdt(#[from] sidestep_symbols::usdt::UsdtError),
    /// A regular expression does not parse.
    #[error(transparent)]
    Pattern(#[from] sidestep_symbols::PatternError),
    /// A pattern means nothing.
    #[error(transparent)]
    NoMatch(Box<NoMatch>),
    /// More is matched than is allowed.
    #[error("Can't attach to {found} probes because it exceeds the current limit of {most} probes.")]
    TooManyProbes {
        /// Attach points.
        found: usize,
        /// [`crate::Options::most_probes`]
        most: usize,
    },
    /// Nothing is left of what a pattern means.
    #[error("nothing that it matches is left by the filter `{filter}`")]
    Filtered {
        /// The filter.
        filter: String,
    },
    /// The object part of a pattern names nothing.
    #[error("no object `{name}` {place}; give a path, or a library name such as libc")]
    NoObject {
        /// What the user wrote.
        name: String,
        /// Where it was looked for: `among the mappings of process 42`.
        place: String,
    },
    /// Another controller is at work, for longer than a detach waits.
    #[error(
        "process {pid} stays probed, since another controller is changing its probes; `sidestep detach -p {pid}` removes what stays"
    )]
    StillProbed {
        /// Process id.
        pid: i32,
    },
    /// Another controller is at work.
    #[error("somebody else is changing the probes of process {pid}; try again")]
    Occupied {
        /// Process id.
        pid: i32,
    },
    /// A jump cannot make way for a probe inside it.
    #[error(
        "a probe would be inside the jump at {site}, and thread {tid} of process {pid} stays in the detour of that \
         jump: try again"
    )]
    JumpInUse {
        /// Process id.
        pid: i32,
        /// The thread.
        tid: i32,
        /// Run-time address of the jump.
        site: sidestep_isa::Va,
    },
    /// SIGTRAP is not the session's.
    #[error(
        "the session in process {pid} takes no traps, so its jumps stay: the program blocks the signals or could, or a \
         library of its probes may be unloaded (see --live)"
    )]
    NoTraps {
        /// Process id.
        pid: i32,
    },
    /// A name without object was found nowhere.
    #[error("no {what} in {searched}{nearest}")]
    NowhereFound {
        /// What the user wrote: "function `f`".
        what: String,
        /// Names of the objects, shortened.
        searched: String,
        /// `; did you mean …?`, or nothing.
        nearest: String,
    },
    /// What processes ask for cannot be watched.
    #[error("cannot watch what processes ask for: {source}; check the limits on threads and files (ulimit -a)")]
    Watch {
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The user has asked for the end before the probes were there.
    #[error("interrupted before the probes were there")]
    Interrupted,
    /// No process was given.
    #[error("there is no process to attach to; give one with -p")]
    NoTarget,
    /// What the target has mapped is not what was made for it.
    #[error("the memory made for process {pid} was exchanged by a process that shares its descriptors; end that one")]
    Exchanged {
        /// The id of the process.
        pid: i32,
    },
    /// Processes of different users would share memory.
    #[error(
        "processes {first} and {other} run as different users, or with different rights (users {}), and would share \
         what they count: probe each alone, or allow it by --share-across-users",
        if users.0 == users.1 { users.0.to_string() } else { format!("{} and {}", users.0, users.1) }
    )]
    Users {
        /// A process.
        first: i32,
        /// Another one.
        other: i32,
        /// Their real users.
        users: (u32, u32),
    },
    /// One of several processes has nothing that was asked for.
    #[error("process {pid}: {source}")]
    InProcess {
        /// The id of the process.
        pid: i32,
        /// The cause.
        source: Box<SessionError>,
    },
    /// The embedded agent is broken.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The embedded agent lacks a function.
    #[error("the embedded agent has no function {name}: rebuild sidestep")]
    AgentSymbol {
        /// The name of the function of the agent.
        name: &'static str,
    },
    /// All sites were refused.
    #[error("nothing can be probed: {name} in {}: {reason}{}", .object.display(), and_others(*.others))]
    AllRefused {
        /// First refused function.
        name: String,
        /// The path of the object.
        object: PathBuf,
        /// The reason, a clause.
        reason: String,
        /// How many more were refused.
        others: usize,
    },
    /// This program has a session in the process.
    #[error("process {pid} is already probed by process {controller}, which is this one: end that session first")]
    Busy {
        /// The target.
        pid: i32,
        /// The controller.
        controller: i32,
    },
    /// Another session has come or gone since the plans were made, and is in the way of a site or a
    /// signal that this one needs.
    #[error("another session has just come to process {pid}, or is about to go: {reason}, or try again")]
    Overtaken {
        /// The target.
        pid: i32,
        /// A clause that says what to do.
        reason: String,
    },
    /// Another session is in the way.
    #[error("process {pid} is probed by somebody else, too: {reason}")]
    Beside {
        /// The target.
        pid: i32,
        /// A clause that says what to do.
        reason: String,
    },
    /// What a session keeps in the target's memory was overwritten.
    #[error("process {pid} has overwritten what the session keeps in it; end the process, or leave it alone")]
    Damaged {
        /// The process.
        pid: i32,
    },
    /// More signal frames than a program has.
    #[error(
        "the stack of thread {tid} of process {pid} has so many signal frames that they cannot all be looked at: try \
         again, or end the process"
    )]
    Frames {
        /// The process.
        pid: i32,
        /// The thread at which the limit was reached.
        tid: i32,
    },
    /// There is no session in the process.
    #[error("process {pid} carries no probes")]
    NotProbed {
        /// The process.
        pid: i32,
    },
    /// A detach is under way, or was given up.
    #[error("the probes of process {pid} are being removed; if nobody does so any more, the next attach does")]
    Detaching {
        /// The process.
        pid: i32,
    },
    /// The process has copies of another one's probes, which do nothing in it.
    #[error("process {pid} was forked from process {parent}, whose probes do nothing in it: give -p {parent}")]
    Forked {
        /// The process.
        pid: i32,
        /// The target of the session.
        parent: i32,
    },
    /// None of the installed probes is meant.
    #[error("process {pid} has no probe at `{pattern}`; sidestep status -p {pid} lists those it has")]
    NoProbe {
        /// The target.
        pid: i32,
        /// What the user wrote.
        pattern: String,
    },
    /// `/proc/PID/maps` cannot be read.
    #[error("cannot read the mappings of process {pid}: {source}")]
    Maps {
        /// The target.
        pid: i32,
        /// The cause.
        source: std::io::Error,
    },
    /// The main thread's stack is full, or has another name.
    #[error("process {pid} has no unused stack for a moment's use: try again")]
    NoStack {
        /// The target.
        pid: i32,
    },
    /// More than fits.
    #[error("too many {what} for one session: use a narrower pattern")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
    },
    /// Maps that need more memory than a session gets.
    #[error(
        "the maps need too much memory: give them fewer or smaller entries (those per CPU are kept for each thread)"
    )]
    MapsTooLarge,
    /// The user limits the memory.
    #[error(
        "the probes need {} of memory in the process, and --max-memory allows {}: raise it, or probe less",
        bytes(*needed), bytes(*limit)
    )]
    MemoryLimit {
        /// What would do, in bytes.
        needed: u64,
        /// What was allowed.
        limit: u64,
    },
    /// What a hit costs on this machine cannot be measured.
    #[error("cannot measure what a hit costs, which --max-overhead needs: {reason}")]
    Unmeasured {
        /// A clause for the user.
        reason: String,
    },
    /// A program is not proven to be harmless.
    #[error(transparent)]
    Verify(#[from] sidestep_bpf::verify::VerifyError),
    /// A program cannot become native code.
    #[error("program {name}: {source}")]
    Compile {
        /// The name of the program.
        name: String,
        /// The cause.
        source: sidestep_bpf::native::CompileError,
    },
    /// A program asks for an argument of a static probe by a number that is not always the same.
    #[error("program {name}: the number of an argument of a static probe must be a constant")]
    Arguments {
        /// The name of the program.
        name: String,
    },
    /// A program refers to what is not there.
    #[error("program {name}: {source}")]
    Link {
        /// The name of the program.
        name: String,
        /// The cause.
        source: sidestep_bpf::program::LinkError,
    },
    /// The processor or kernel does not let programs read the thread pointer.
    #[error("this machine has no FSGSBASE instructions: Linux 5.9 or newer on a processor of 2012 or newer is needed")]
    NoFsgsbase,
    /// Vector registers cannot be saved around a function of the target.
    #[error("this machine has no XSAVE instructions, which handlers in the target need")]
    NoXsave,
    /// Sites of our own are needed where a user's probe is.
    #[error("the probe at {at} is in the way of one that keeps the process safe: unregister it first")]
    InTheWay {
        /// Run-time address.
        at: sidestep_isa::Va,
    },
    /// Threads cannot be told apart.
    #[error(
        "threads {first} and {second} share a thread pointer (`clone` without CLONE_SETTLS): they would overwrite each other's \
         counts; nothing was changed"
    )]
    SharedThreadPointer {
        /// One of them.
        first: i32,
        /// The other.
        second: i32,
    },
    /// Another process executes in the same memory.
    #[error(
        "process {other} executes in the memory of process {pid} and is no thread of it (`clone` with CLONE_VM): it \
         would hit the same probes, with other signal handlers; nothing was changed"
    )]
    SharedMemory {
        /// Process id.
        pid: i32,
        /// The other one.
        other: i32,
    },
    /// No free address space where it is needed.
    #[error("no free address space that a jump reaches from {near}: the program has mapped all of it")]
    NoRoom {
        /// Run-time address.
        near: sidestep_isa::Va,
    },
    /// The command ended before anything could be probed.
    #[error("the command ended before its entry point was reached")]
    EndedEarly,
    /// After the text was restored, a thread would not leave our code.
    #[error(
        "process {pid} runs unprobed again, but {bytes} bytes of memory stay there: thread {tid} {inside}; \
         `sidestep detach -p {pid}` or the next attach removes them when it has left"
    )]
    StillInside {
        /// The target.
        pid: i32,
        /// A thread that did not leave.
        tid: i32,
        /// Where it is.
        inside: Inside,
        /// Bytes of memory that are left.
        bytes: u64,
    },
    /// A probe makes system calls that a filter punishes.
    #[error(
        "the seccomp filter of process {pid} would kill it for {call}, which these probes need: only hits can be counted \
         there, as funccount does (or its filter cannot be read: run as root)"
    )]
    Seccomp {
        /// The target.
        pid: i32,
        /// Name of the system call.
        call: &'static str,
    },
    /// System calls of the target are given back to it.
    #[error(
        "thread {tid} of process {pid} has its system calls given back to it as signals (PR_SET_SYSCALL_USER_DISPATCH, as \
         Wine does), and those of probes with them: it cannot be probed"
    )]
    Dispatch {
        /// The target.
        pid: i32,
        /// The thread.
        tid: i32,
    },
    /// Traces of an earlier controller that cannot be understood.
    #[error("process {pid} carries probes of another version of sidestep: use that version to remove them")]
    ForeignVersion {
        /// The target.
        pid: i32,
    },
}

/// Where a thread is that needs our code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// In a signal handler of the program, which will return to a probe.
    SignalHandler,
    /// In a handler that is a function of the program.
    Function,
    /// In a probe, or on its way to one.
    Code,
}

impl std::fmt::Display for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Inside::SignalHandler => "is in a signal handler that has interrupted a probe",
            Inside::Function => "is in a function that handles a probe",
            Inside::Code => "has not left the code of a probe",
        })
    }
}

impl SessionError {
    /// Is it about something that is not there, and may come with a program or library?
    #[must_use]
    pub fn may_come(&self) -> bool {
        matches!(self, SessionError::NoMatch(missing) if missing.may_come)
    }

    /// Is there nothing with such a name that could be meant instead?
    #[must_use]
    pub fn is_unlike(&self) -> bool {
        match self {
            SessionError::NoMatch(missing) => missing.reason.is_unlike(),
            SessionError::NowhereFound { nearest, .. } => nearest.is_empty(),
            _ => true,
        }
    }

    /// Is it about something that is not there, and not about something that cannot be read?
    pub(crate) fn is_about_absence(&self) -> bool {
        let is_absence = |reason: &SessionError| reason.is_absence() || matches!(reason, SessionError::NoObject { .. });
        matches!(self, SessionError::NoMatch(missing) if is_absence(&missing.reason))
    }

    /// Do the objects that are there have nothing like that?
    fn is_absence(&self) -> bool {
        match self {
            SessionError::NowhereFound { .. } | SessionError::Filtered { .. } | SessionError::Line(_) => true,
            SessionError::Symbol(error) => matches!(error, sidestep_symbols::SymbolError::NotFound { .. }),
            SessionError::Usdt(error) => matches!(error, sidestep_symbols::usdt::UsdtError::NotFound { .. }),
            _ => false,
        }
    }
}

/// A pattern that means nothing, and why.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NoMatch {
    /// What the user wrote.
    pub pattern: String,
    /// The reason, a clause.
    pub reason: SessionError,
    /// A program or library that comes later may have it.
    pub may_come: bool,
}

impl NoMatch {
    /// Says of an error that it is about a pattern. `others`: the pattern means other objects, too,
    /// than those that are there.
    pub(crate) fn of(pattern: &str, reason: SessionError, others: bool) -> SessionError {
        let may_come = matches!(reason, SessionError::NoObject { .. }) || others && reason.is_absence();
        SessionError::NoMatch(Box::new(NoMatch { pattern: pattern.to_owned(), reason, may_come }))
    }
}

fn and_others(n: usize) -> String {
    if n == 0 { String::new() } else { format!(" (and {n} more; -v lists them)") }
}

/// Why the mappings of a process cannot be read: mostly because it has ended.
pub(crate) fn unreadable(process: &Process, source: std::io::Error) -> SessionError {
    let pid = process.pid();
    if process.is_alive() { SessionError::Maps { pid, source } } else { StopError::Exited { pid }.into() }
}

/// The embedded agent is not what the engine expects: a fault of the build.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// Not a readable ELF file.
    #[error("the embedded agent is no ELF file ({0}): rebuild sidestep")]
    Elf(#[from] object::Error),
    /// A relocation that needs more than the base address.
    #[error("the embedded agent has a relocation of another kind at {0:#x}: rebuild sidestep")]
    Relocation(u64),
    /// Not one read-execute part at 0 that begins with the code.
    #[error("the embedded agent is not laid out as in agent.ld: rebuild sidestep")]
    Layout,
}

/// A number of bytes, for the user.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
