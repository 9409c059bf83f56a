//! What a front end sees.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use sidestep_bpf::verify::{Rules, Verified, VerifyError, verify};
use sidestep_isa::Va;
use sidestep_plan::explain::Returns;
use sidestep_plan::{Plan, Technique};

use crate::refusal::Refusal;
use crate::resolve::label::Label;
pub use crate::resolve::pattern::{FuncPattern, Pattern};
pub use sidestep_wire::Histogram;
use sidestep_wire::Hit;

/// What to probe.
#[derive(Clone, Debug)]
pub enum Target {
    /// A running process.
    Pid(i32),
    /// Several of them.
    Pids(Vec<i32>),
    /// A command to start, stopped before its first instruction until the probes are in. Looked up
    /// in `PATH`.
    Command(Vec<OsString>),
}

/// Programs, and the maps that they share: what a session runs in its target.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    /// Programs refer to them by index.
    pub maps: Vec<BundleMap>,
    /// [`Action`]s refer to them by index.
    pub programs: Vec<Program>,
    /// What maps hold at the start, by index: of those with a value per thread, the controller's.
    pub entries: Vec<(usize, Entry)>,
    /// An array of texts, with room for one per probe with [`Cookie::Named`]: they become the names
    /// of functions, by their numbers there.
    pub names: Option<usize>,
    /// What programs know of their probes besides.
    pub facts: Facts,
    /// An array whose first word becomes the number of the process.
    pub pid: Option<usize>,
    /// A hash that is told of each process what it is called: by its number, as it sees that
    /// itself, a text of 16 bytes.
    pub processes: Option<usize>,
}

/// Arrays with an entry for each probe, by the lower half of the cookie that [`Cookie::Named`]
/// gives, or the upper half of that of [`Cookie::Arguments`].
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Texts, as [`Request::label`] makes them.
    pub places: Option<usize>,
    /// As many words as there are in `of`, each with what it says. Twice the number, and one; 0: it
    /// is not known there.
    pub words: Option<usize>,
    /// What the words say.
    pub of: Vec<About>,
}

impl Facts {
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_none() && self.words.is_none()
    }
}

/// What is said of a probe by a number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum About {
    /// How far the symbol of this name in the probe's object is from the place that was asked for.
    Symbol(String),
    /// Where Go's `runtime.g` has the number of the goroutine, in code that has it in `r14`.
    Goid,
}

impl Bundle {
    /// Adds a program that was made here, for probes at entries and returns. It may write the
    /// cookie of a call.
    ///
    /// # Errors
    /// What the verifier found.
    pub fn add(&mut self, name: &str, program: &sidestep_bpf::Program) -> Result<usize, VerifyError> {
        let maps: Vec<_> = self.maps.iter().map(|m| m.map.clone()).collect();
        let rules = Rules {
            maps: &maps,
            context_size: CONTEXT,
            context_writable: COOKIE,
            // Whoever makes it has asked the user.
            allow_unsafe: true,
            ..Rules::default()
        };
        self.programs.push(Program { name: name.to_owned(), code: Code::Verified(verify(program, &rules)?) });
        Ok(self.programs.len() - 1)
    }
}

/// Bytes of the context that programs may read: the registers, the cookie, and the lower halves of
/// `xmm0` to `xmm7`.
pub const CONTEXT: u32 = Hit::CONTEXT as u32;

/// The word behind the registers: kept from the entry of a call to its return.
pub const COOKIE: std::ops::Range<u32> = Hit::COOKIE as u32..Hit::FLOATS as u32;

/// The words of the context that a program may change: the general registers but `rsp`, and the
/// instruction pointer.
pub const REGISTERS: std::ops::Range<u32> = 0..sidestep_wire::arch::CHANGEABLE as u32;

/// A map of a session.
#[derive(Clone, Debug)]
pub struct BundleMap {
    /// What it is.
    pub map: sidestep_bpf::map::Map,
    /// It gets as many entries as there are probes with [`Cookie::PerProbe`] or [`Cookie::Named`].
    pub per_probe: bool,
}

/// A program of a session.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name, for messages.
    pub name: String,
    /// What runs.
    pub code: Code,
}

/// The code of a program.
#[derive(Clone, Debug)]
pub enum Code {
    /// eBPF, proven to be harmless, with the maps of the bundle.
    Verified(Verified),
    /// A function of the target itself, which must be there until the session is over. What it does
    /// is its own business: it never runs inside itself or another one on the same thread (such a
    /// hit counts as missed), and the detach waits until it has returned.
    Native {
        /// Run-time address of a function `void (context, data)` of the C ABI. The context is
        /// [`sidestep_wire::Regs`] and the word behind them.
        function: u64,
        /// Its second argument.
        data: u64,
        /// It is compiled for general registers only: vectors need not be saved around it.
        general_only: bool,
        /// It may change the instruction pointer. Such a program cannot be at a probe that watches
        /// returns.
        redirects: bool,
    },
    /// Another function of the target runs instead of the probed one, on its stack and with its
    /// arguments.
    Replace {
        /// Run-time address of that function.
        function: u64,
        /// Run-time address of a word of the target, which holds the address at which the original
        /// can be called: kept right while the probe is put in and taken out.
        original: u64,
    },
}

impl Program {
    /// The program, if it is eBPF.
    #[must_use]
    pub fn verified(&self) -> Option<&Verified> {
        match &self.code {
            Code::Verified(verified) => Some(verified),
            Code::Native { .. } | Code::Replace { .. } => None,
        }
    }

    /// The program that does nothing.
    pub(crate) fn nothing() -> Result<Program, VerifyError> {
        let exit = sidestep_bpf::Insn::Alu {
            width: sidestep_bpf::Width::W64,
            op: sidestep_bpf::AluOp::Mov,
            dst: sidestep_bpf::Reg::R0,
            src: sidestep_bpf::Operand::Imm(0),
        };
        let program = sidestep_bpf::Program {
            slots: sidestep_bpf::program::encode(&[exit, sidestep_bpf::Insn::Exit]),
            ..Default::default()
        };
        Ok(Program { name: "nothing".to_owned(), code: Code::Verified(verify(&program, &Rules::default())?) })
    }
}

/// What a probe does at a hit: hits are always counted, at the entry unless there is only a program
/// for the return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// The program that runs at the entry. If its result is not 0, the return of this call is not
    /// watched.
    pub entry: Option<usize>,
    /// The program that runs at the return.
    pub exit: Option<usize>,
    /// The program of the entry runs when the probed instruction has been executed, with the
    /// registers as it left them, and the instruction pointer behind it. Not with a program for the
    /// return.
    pub post: bool,
    /// With a program for the return: how many calls each probe watches at a time, in all threads;
    /// 0 = any number. Other calls count as missed.
    pub maxactive: u32,
    /// What `get_attach_cookie` gives.
    pub cookie: Cookie,
}

/// A number that tells programs which probe was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cookie {
    /// The same for all sites of the request.
    Value(u64),
    /// 0, 1, 2 … for each probe that asks for it: [`Probe::cookie`].
    PerProbe,
    /// The same in the lower half, and in the upper one the number of the function's name: probes
    /// of functions that are called the same have the same one. Probes with a label that are called
    /// the same have the same number, unless there are [`Facts::words`] of each.
    Named,
    /// Of a USDT site, the key of its arguments in this map of the bundle, an array of libbpf's
    /// `struct __bpf_usdt_spec`.
    Arguments(usize),
}

impl Default for Cookie {
    fn default() -> Self {
        Cookie::Value(0)
    }
}

/// A pattern with what to do at its sites.
#[derive(Clone, Debug)]
pub struct Request {
    /// The functions, USDT probes or addresses.
    pub pattern: Pattern,
    /// What a hit does.
    pub action: Action,
    /// What its probes are called in [`Facts::places`]; `None`: nobody asks.
    pub label: Option<Label>,
    /// The number of a group, such as the attach points of one block of a script. A pattern for
    /// many functions may mean nothing if another request of its group means something.
    pub group: Option<usize>,
}

impl Request {
    /// One that stands alone, and whose probes have no names for programs.
    #[must_use]
    pub fn new(pattern: Pattern, action: Action) -> Request {
        Request { pattern, action, label: None, group: None }
    }
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
    /// Run-time address of the instruction whose execution is a hit: that of the site, or of the
    /// one in front that stays.
    pub va: Va,
    /// Run-time address of the first byte that is written; of a return probe, at the first of its
    /// sites.
    pub site: Va,
    /// How it is done.
    pub technique: Technique,
    /// What its programs see as cookie.
    pub cookie: u64,
}

/// A match that could not be probed.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Symbol name.
    pub name: String,
    /// Path of the object; empty if the pattern itself, which is the name then, means nothing.
    pub object: PathBuf,
    /// A clause for the user.
    pub reason: String,
}

/// One record as read from a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which map it was written to; `None`: by `trace_printk`.
    pub map: Option<usize>,
    /// Process that wrote it, in its own pid namespace.
    pub pid: u32,
    /// Thread that wrote it, in its own pid namespace.
    pub tid: u32,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// What the program wrote.
    pub bytes: Vec<u8>,
}

/// An entry of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key; of an array, the index.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Value,
}

/// A value of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// All threads share it.
    One(Vec<u8>),
    /// Thread ids, and each thread's own.
    PerThread(Vec<(u32, Vec<u8>)>),
}

/// Counts of one probe since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Hits that were handled.
    pub hits: u64,
    /// Hits that were not handled.
    pub missed: u64,
    /// Calls that were seen to begin, and not to return: they have ended in another way (longjmp,
    /// an exception, the end of a thread), or go on. Of return probes that need the entry of a
    /// call.
    pub unfinished: u64,
}

/// A latency distribution in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// `(low, high, count)` of the fine buckets that are not empty, ascending. A bucket has the
    /// values from `low` on that are below `high`.
    pub buckets: Vec<(u64, u64, u64)>,
    /// Sum of all values.
    pub sum: u64,
    /// Number of values.
    pub count: u64,
}

impl Distribution {
    /// The distribution in the cells of a histogram ([`sidestep_wire::Histogram`]): buckets, then
    /// the sum.
    #[must_use]
    pub fn from_cells(cells: &[u64]) -> Distribution {
        let buckets: Vec<_> = cells
            .iter()
            .take(Histogram::BUCKETS)
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(i, n)| (Histogram::low(i), Histogram::low(i + 1), *n))
            .collect();
        let count = buckets.iter().map(|b| b.2).sum();
        Distribution { buckets, sum: cells.get(Histogram::SUM).copied().unwrap_or(0), count }
    }
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
    /// Switch probes while the threads run even in libraries that the program may unload at the
    /// same moment (`--live`). Elsewhere that is so in any session that can take SIGTRAP: no other
    /// session needs the signals, and no system call of the program can block them unseen.
    pub live: bool,
    /// Interpret programs instead of compiling them (`--interpret`).
    pub interpret: bool,
    /// Bytes of ring per thread, rounded up to a power of two; 0 = the default (256 KiB).
    pub ring_bytes: usize,
    /// Where to look for separate debug files besides `/usr/lib/debug`.
    pub debug_dirs: Vec<PathBuf>,
    /// Of what patterns match, only what this regular expression finds in `OBJECT:FUNC` is meant.
    pub filter: Option<String>,
    /// Attach points that may be probed at most; none are, if there are more.
    pub most_probes: Option<usize>,
    /// Names of addresses are wanted: [`crate::Session::take_symbols`].
    pub symbols: bool,
    /// Stacks are what frame pointers give (`--frame-pointers`): faster, and wrong where there are
    /// none.
    pub frame_pointers: bool,
    /// More probes and programs may come ([`crate::Session::add`]): room is made for them.
    pub extensible: bool,
    /// What becomes of a request that means nothing, beside others that do.
    pub missing: Missing,
    /// Children of the target are probed, too, and what it and they execute.
    pub follow: bool,
    /// Libraries that are mapped later are probed, too, where requests mean something in them.
    pub late: bool,
    /// Processes of different users may be in one session, whose memory each of them can write
    /// (`--share-across-users`): whoever controls one can read and falsify what the others count.
    pub share_across_users: bool,
    /// What keeps the target from harm by the probes themselves.
    pub protection: crate::limits::Protection,
}

/// What becomes of a request that means nothing, beside others that do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Missing {
    /// In a running process it is an error; of a command, which may load more later, it is noted in
    /// [`crate::Session::refused`].
    #[default]
    Usual,
    /// It is an error.
    Error,
    /// It is noted in [`crate::Session::refused`].
    Noted,
    /// The same, also if no other request means anything.
    Allowed,
}

impl Missing {
    /// Is it noted, whatever the target is?
    #[must_use]
    pub fn is_noted(self) -> bool {
        matches!(self, Missing::Noted | Missing::Allowed)
    }
}

impl Options {
    /// Is there anything for which processes ask their controller?
    pub(crate) fn listens(&self) -> bool {
        self.follow || self.late
    }

    /// Are programs interpreted: because it was asked for, or because there is no native code for
    /// these targets?
    #[must_use]
    pub fn interprets(&self) -> bool {
        self.interpret || !sidestep_bpf::native::is_for(sidestep_sys::arch::ISA)
    }
}

/// Figures about the attach, for `-v` and benchmarks.
#[derive(Clone, Debug, Default)]
pub struct AttachStats {
    /// Resolving and planning, while the target ran.
    pub planning: Duration,
    /// How the target stood still meanwhile. Not at all: it had not begun yet.
    pub stops: Stops,
    /// Bytes of detours and thunks.
    pub code_bytes: usize,
}

/// How a target stood still while it was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// How long all threads were stopped, each time.
    pub pauses: Vec<Pause>,
    /// Sites that were written while the threads ran, and each was stopped alone.
    pub live: usize,
    /// The longest time for which one was.
    pub alone: Duration,
    /// Two threads that shared a thread pointer at the end, so that their counts are too low.
    pub sharing: Option<(i32, i32)>,
}

/// A time for which all threads of a target stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// From when the first was asked to stop until the last was let go.
    pub time: Duration,
    /// What for.
    pub purpose: &'static str,
}

impl Stops {
    /// The longest pause, if there was any.
    #[must_use]
    pub fn longest(&self) -> Option<Pause> {
        self.pauses.iter().copied().max_by_key(|pause| pause.time)
    }

    /// So many sites were written while the threads ran; none stood longer alone.
    pub(crate) fn note_live(&mut self, sites: usize, longest: Duration) {
        self.live += sites;
        self.alone = self.alone.max(longest);
    }

    /// And these came after them.
    pub(crate) fn append(&mut self, mut more: Stops) {
        self.pauses.append(&mut more.pauses);
        self.note_live(more.live, more.alone);
        self.sharing = self.sharing.or(more.sharing);
    }
}

/// A site with its plan, for `explain`.
#[derive(Clone, Debug)]
pub struct Explained {
    /// See [`crate::Listed::is_few`].
    pub is_few: bool,
    /// Symbol name.
    pub name: String,
    /// Object path.
    pub object: PathBuf,
    /// The plan or the refusal.
    pub plan: Result<Plan, Refusal>,
    /// How its returns are watched, of a function.
    pub returns: Returns,
}
