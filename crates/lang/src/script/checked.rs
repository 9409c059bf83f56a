//! What checking makes of the syntax tree: every name resolved, every type known.

use super::ast::{BinaryOp, Point, Step};
use super::ctype::Layouts;
pub use super::failure::{Failure, Memory, Noted};
use super::printf::Format;
use super::types::{Content, Type};

/// A script whose names and types are right.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Its blocks, in order.
    pub blocks: Vec<Block>,
    /// Its maps, in order of their first use.
    pub maps: Vec<Map>,
    /// What programs ask the controller to do.
    pub actions: Vec<Action>,
    /// Most frames of its stack maps.
    pub stacks: Vec<Stack>,
    /// Types of what calls keep from their entry to their return: `self.x`.
    pub own: Vec<Type>,
    /// What programs ask of their probes.
    pub facts: Vec<Fact>,
    /// What the script may not find, or cannot read, if that is said and counted.
    pub reads: Vec<Noted>,
    /// Calls that need `--unsafe`, for they change something.
    pub unsafe_calls: Vec<super::diagnostic::Diagnostic>,
    /// What to say of `cpid` where no command is started.
    pub cpid: Vec<super::diagnostic::Diagnostic>,
    /// It asks whether there is one.
    pub asks_for_cpid: bool,
    /// `config = { … }`, and the defaults.
    pub config: Config,
    /// The records that it uses.
    pub layouts: Layouts,
    /// Bytes of a pointer of C.
    pub word: u8,
    /// Processors that the machine may have: `ncpus`.
    pub processors: u64,
    /// The memory node of each processor: `numaid`.
    pub nodes: Vec<u8>,
    /// It may run in several processes, where addresses mean different things.
    pub several: bool,
}

/// Bytes of a map with a value per thread at most: large values have fewer keys.
pub const PER_THREAD: usize = 8 << 20;

/// What whoever attaches tells programs of a probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fact {
    /// How far the symbol of this name is from the probe.
    Symbol(String),
    /// Where the number of the goroutine is, from what `r14` points to.
    Goid,
}

/// How stacks are kept and printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stack {
    /// Frames at most.
    pub depth: u32,
    /// How they are printed.
    pub mode: StackMode,
}

/// How a stack is printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StackMode {
    /// `symbol+off`
    Bpftrace,
    /// As perf does.
    Perf,
    /// Addresses.
    Raw,
    /// Build ids and offsets in files, for whoever looks names up elsewhere.
    BuildId,
}

/// Settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Bytes of a string.
    pub max_strlen: usize,
    /// Keys of a map.
    pub max_map_keys: u32,
    /// Bytes of a file that `cat()` prints at most.
    pub max_cat_bytes: u64,
    /// Attach points at most, if anybody has said so.
    pub max_probes: Option<u64>,
    /// Maps are printed at the end.
    pub print_maps_on_exit: bool,
    /// Stacks have source lines and inlined functions.
    pub show_debug_info: bool,
    /// What becomes of an attach point that means nothing, beside others that do.
    pub missing_probes: MissingProbes,
    /// How stacks are printed that do not say how.
    pub stack_mode: StackMode,
    /// What is printed behind a text that was cut.
    pub trailer: String,
    /// What was not found or could not be read is said with its place. Without it, reads of texts
    /// and data that fail are counted.
    pub count_reads: bool,
    /// Functions may be called that change the program (`--unsafe`).
    pub allow_unsafe: bool,
    /// Settings that mean nothing here, as they were made.
    pub unused: Vec<(&'static str, String)>,
    /// The map that `tseries` takes the time from, in nanoseconds since 1970, instead of the clock:
    /// for tests of scripts (`BPFTRACE_DUMMY_TS_MAP=@name`).
    pub series_clock: Option<String>,
}

/// What becomes of an attach point that means nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissingProbes {
    /// The script does not run.
    Error,
    /// The user is told.
    Warn,
    /// Nothing is said.
    Ignore,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_strlen: 1024,
            max_map_keys: 4096,
            max_cat_bytes: 10 << 10,
            max_probes: None,
            print_maps_on_exit: true,
            show_debug_info: true,
            missing_probes: MissingProbes::Error,
            stack_mode: StackMode::Bpftrace,
            trailer: "..".to_owned(),
            count_reads: false,
            allow_unsafe: false,
            unused: Vec::new(),
            series_clock: None,
        }
    }
}

/// A map of the script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// With the sign.
    pub name: String,
    /// Types of its keys; none: it is one value.
    pub keys: Vec<Type>,
    /// What it holds.
    pub content: Content,
    /// Programs read it: then what they count is kept in one place for all threads.
    pub shared: bool,
    /// What a declaration says: keys at most, and whether those that were not used for long make
    /// room for others.
    pub declared: Option<(u32, bool)>,
}

/// A block.
#[derive(Clone, Debug)]
pub struct Block {
    /// Where it runs.
    pub points: Vec<Point>,
    /// Whether it runs.
    pub predicate: Option<Value>,
    /// The predicate has variables of its own.
    pub predicate_vars: bool,
    /// What it does.
    pub body: Vec<Op>,
    /// Types of its variables.
    pub vars: Vec<Type>,
    /// It uses `self`.
    pub uses_own: bool,
    /// It assigns to `self`.
    pub sets_own: bool,
    /// Which value of `self` is the address of the result, kept where the call begins.
    pub result_in: Option<usize>,
    /// It asks for the latency of calls.
    pub uses_latency: bool,
    /// Of each variable, in which function it is: 0 is the block itself, others are bodies of loops
    /// over maps ([`Each::number`]). `None`: in several of them.
    pub owners: Vec<Option<usize>>,
}

/// A statement.
#[derive(Clone, Debug)]
pub enum Op {
    /// For what it does besides.
    Eval(Value),
    /// `$x = value`
    SetVar(usize, Value),
    /// `@m[keys] = value`
    SetMap(Entry, Value),
    /// `@m[keys] += value`, in one step.
    AddMap(Entry, Value),
    /// `@m[keys] = count()` and the like, with the number if there is one.
    Aggregate(Entry, Option<Value>),
    /// `@m = tseries(n, …)`, with the number and the time of the first value.
    Series(Entry, Value, Value),
    /// `self.x = value`
    SetOwn(usize, Value),
    /// `delete(@m[keys])`
    Delete(Entry),
    /// The controller does it.
    Act(usize, Vec<Value>),
    /// `exit(code)`: the controller is told, and the block ends.
    Exit(usize, Value),
    /// `if`
    If(Value, Vec<Op>, Vec<Op>),
    /// `while` and `for`.
    Loop(Box<Loop>),
    /// `for` over a map.
    Each(Box<Each>),
    /// `signal(number)`: to the process, or to the thread that was hit.
    Signal {
        /// To the thread.
        thread: bool,
        /// The number of the signal.
        number: Value,
    },
    /// `override(result)`: the function that begins returns this, and does not run.
    Override(Value),
    /// `join(address)`: the controller prints the texts.
    Join(usize, Value),
    /// The innermost loop ends.
    Break,
    /// The innermost loop begins its next round.
    Continue,
    /// The block ends.
    Return,
}

/// A loop.
#[derive(Clone, Debug)]
pub struct Loop {
    /// Its body is this function of the block, as of [`Each::number`]; `None`: it is known to have
    /// few rounds, and lies where it is.
    pub number: Option<usize>,
    /// What the controller does if there are too many.
    pub warning: usize,
    /// As long as it holds.
    pub cond: Value,
    /// What is done.
    pub body: Vec<Op>,
    /// What is done before the next round.
    pub step: Vec<Op>,
}

/// A loop over the entries of a map.
#[derive(Clone, Debug)]
pub struct Each {
    /// 1 for the first of the block, and so on.
    pub number: usize,
    /// Which map.
    pub map: usize,
    /// The variable with key and value.
    pub var: usize,
    /// What is done.
    pub body: Vec<Op>,
}

/// An entry of a map.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Which map.
    pub map: usize,
    /// None if it is one value.
    pub keys: Vec<Value>,
    /// What is noted if nothing is there: an index into [`Checked::reads`].
    pub read: Option<usize>,
}

/// Which bits of data mean something.
#[derive(Clone, Debug)]
pub struct Meaning {
    /// By words of 8 bytes.
    pub words: Vec<u64>,
    /// Enumerations in the data, which `words` has as a whole.
    pub choices: Vec<Choice>,
}

/// An enumeration in data, which is one of several variants.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The first byte of the number that tells which.
    pub tag: usize,
    /// How many bytes it has.
    pub bytes: u8,
    /// Numbers, and the bits of the whole data that mean something then; the variant without a
    /// number is there at all other numbers.
    pub variants: Vec<(Option<u64>, Meaning)>,
}

impl Meaning {
    /// These bits mean something.
    pub fn set(&mut self, bit: u64, count: u64) {
        self.change(bit, count, |word, mask| *word |= mask);
    }

    /// These bits mean nothing.
    pub fn clear(&mut self, bit: u64, count: u64) {
        self.change(bit, count, |word, mask| *word &= !mask);
    }

    fn change(&mut self, bit: u64, count: u64, change: impl Fn(&mut u64, u64)) {
        let end = bit.saturating_add(count);
        for (index, word) in (0_u64..).zip(&mut self.words) {
            let (from, to) = (bit.max(64 * index), end.min(64 * (index + 1)));
            if from < to {
                change(word, u64::MAX >> (64 - (to - from)) << (from - 64 * index));
            }
        }
    }

    /// Whether each of the first bits means something.
    #[must_use]
    pub fn is_whole(&self, bits: u64) -> bool {
        let mut missing = Meaning { words: self.words.iter().map(|word| !word).collect(), choices: Vec::new() };
        missing.clear(bits, u64::MAX - bits);
        missing.words.iter().all(|word| *word == 0)
    }
}

/// An expression with its type.
#[derive(Clone, Debug)]
pub struct Value {
    /// What it gives.
    pub ty: Type,
    /// What kind of expression: a constant, a builtin, an operation, a call …
    pub kind: ValueKind,
}

/// Kinds of expressions.
#[derive(Clone, Debug)]
pub enum ValueKind {
    /// A number that is known.
    Int(u64),
    /// A text that is known.
    Text(Vec<u8>),
    /// A variable.
    Var(usize),
    /// What is in a map; nothing is 0 or "".
    Read(Entry),
    /// A number of what `stats(n)` keeps in a map; 0 if nothing is there.
    Stat(Entry, Stat),
    /// Whether a key is there.
    Has(Entry),
    /// Something of the moment.
    Builtin(Builtin),
    /// `!x`
    Not(Box<Value>),
    /// `~x`
    Invert(Box<Value>),
    /// `-x`
    Negate(Box<Value>),
    /// Of numbers; the flag: without a sign.
    Binary(BinaryOp, bool, Box<Value>, Box<Value>),
    /// A division whose divisor may be 0: then the controller does this, and 1 is the result.
    Divide(BinaryOp, bool, Box<Value>, Box<Value>, usize),
    /// An index; if it is not below this length, the controller does something.
    Within(Box<Value>, Box<Value>, usize),
    /// A character of a text: which one. It is 0 behind the end.
    CharOf(Box<Value>, Box<Value>),
    /// Where a variable is while the program runs.
    AddressOf(Box<Value>),
    /// Whether two texts are the same, in their first bytes if a number is given.
    Same(Box<Value>, Box<Value>, Option<usize>),
    /// `a ? b : c`
    Ternary(Box<Value>, Box<Value>, Box<Value>),
    /// The lower bytes of a number.
    Resize(Box<Value>),
    /// A number or data in the target's memory: its type is that of the value.
    Load(Box<Value>),
    /// Data whose words are these.
    Words(Vec<Value>),
    /// Data whose meaningless bits are 0.
    Meant(Box<Value>, Box<Meaning>),
    /// A number, text or data at an offset in data that is in our own memory.
    Part(Box<Value>, usize),
    /// An element of an array that is in our own memory: the array, and which one. It is zeros if
    /// there is no such element.
    Element(Box<Value>, Box<Value>),
    /// `++` and `--` of a variable.
    StepVar(Step, usize),
    /// `++` and `--` of a map, by so much.
    StepMap(Step, Entry, u64),
    /// A string in the target's memory; of so many bytes at most, if that is only known when it is
    /// read.
    ReadText(Box<Value>, Option<Box<Value>>),
    /// A text in the target's memory that its length ends: address and length.
    CountedText(Box<Value>, Box<Value>),
    /// The first text with the second behind it.
    Concat(Box<Value>, Box<Value>),
    /// The name of the process with this number, if it is probed or the controller asks.
    CommOf(Box<Value>),
    /// Bytes in the target's memory: address and length.
    ReadBytes(Box<Value>, Box<Value>),
    /// The first bytes of a text, as many as its type says.
    BytesOf(Box<Value>),
    /// Which of two texts or buffers is the greater one by so many bytes: below 0, 0, or above.
    Order(Box<Value>, Box<Value>, usize),
    /// Writes the second value's first bytes, so many, to an address of the target; whether that
    /// could be done.
    Write(Box<Value>, Box<Value>, usize),
    /// Length of a text.
    Length(Box<Value>),
    /// A number with its bytes in reverse.
    Swap(Box<Value>),
    /// How many keys a map has.
    MapLength(usize),
    /// How many frames a stack has, of this stack map.
    StackLength(usize, Box<Value>),
    /// Where in the first text the second one begins, or a negative number.
    Find(Box<Value>, Box<Value>),
    /// Whether the first text is what the second one, a pattern, says.
    Matches(Box<Value>, Box<Value>),
    /// Something that is printed as something else.
    Shown(Box<Value>),
    /// An address; what is noted if nothing can be read there: an index into [`Checked::reads`].
    Noted(Box<Value>, usize),
    /// `self.x`; 0 or "" if nothing was assigned in this call.
    Own(usize),
    /// A value after statements.
    After(Vec<Op>, Box<Value>),
    /// `(a, b)`
    Tuple(Vec<Value>),
    /// `a.0`, of a tuple.
    Item(Box<Value>, usize),
}

/// A number of what `stats(n)` keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stat {
    /// How many values there were.
    Count,
    /// Their sum.
    Total,
    /// Their sum divided by their number.
    Average,
}

/// What a program finds when it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Builtin {
    /// `argN`
    Arg(u32),
    /// `retval`
    Retval,
    /// A word of the registers, by its offset: `reg("ip")`.
    Register(u16),
    /// `pid`
    Pid,
    /// `ppid`
    Ppid,
    /// `cpid`: the command that was started, or 0.
    Cpid,
    /// `ncpus`
    Processors,
    /// `tid`
    Tid,
    /// `uid`
    Uid,
    /// `gid`
    Gid,
    /// `comm`
    Comm,
    /// `leader_comm`: the name of the process, which is that of its first thread.
    LeaderComm,
    /// `pcomm`: the name of the parent process.
    ParentComm,
    /// `nsecs`
    Nsecs,
    /// `nsecs(boot)` and the like.
    Clock(Timer),
    /// `elapsed`
    Elapsed,
    /// `cpu`
    Cpu,
    /// `numaid`
    Node,
    /// `rand`
    Rand,
    /// `probe`
    Probe,
    /// `func`: the number of the function's name.
    Function,
    /// `caller`: where the call returns to.
    Caller,
    /// The name of the function that was hit, as a text.
    Func,
    /// The attach point that was hit, as a text.
    ProbeText,
    /// The kind of the probe that was hit, as a text.
    ProbeType,
    /// The address of a symbol: which fact.
    Symbol(usize),
    /// The number of the goroutine: which fact.
    Goid(usize),
    /// `latency()`: nanoseconds since the entry of the call that returns.
    Latency,
    /// `ustack`, of this stack map.
    Stack(usize),
}

/// Clocks that `nsecs()` knows besides the monotonic one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timer {
    /// With the time that the machine was suspended.
    Boot,
    /// International atomic time.
    Tai,
}

impl Timer {
    /// Their names in scripts.
    pub const ALL: [(&'static str, Timer); 3] = [("boot", Timer::Boot), ("tai", Timer::Tai), ("sw_tai", Timer::Tai)];
}

/// What the controller does when it reads the record.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// `printf(format, …)`
    Printf(Format, Vec<Type>),
    /// `print(@m, top, div)`
    PrintMap {
        /// The index of the map.
        map: usize,
        /// The largest so many.
        top: Option<u64>,
        /// Values are divided by it.
        div: u64,
        /// Of a `tseries`, where its axis begins and ends, if that is not to be taken from the
        /// values.
        axis: (Option<i64>, Option<i64>),
    },
    /// `print(value)`
    Print(Type),
    /// `join(array, separator)`
    Join(String),
    /// `system(format, …)`
    System(Format, Vec<Type>),
    /// `cat(format, …)`
    Cat(Format, Vec<Type>),
    /// `clear(@m)`
    Clear(usize),
    /// `zero(@m)`
    Zero(usize),
    /// `time(format)`
    Time(String),
    /// `exit(code)`
    Exit,
    /// Something that went wrong in a program: message, and where.
    Warning(super::diagnostic::Diagnostic),
    /// Something was not found, or could not be read: where.
    Failure(Failure, super::diagnostic::Span),
    /// `errorf(format, …)` and `warnf(format, …)`: where.
    Say(Format, Vec<Type>, super::diagnostic::Diagnostic),
}
