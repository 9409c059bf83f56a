//! Flags of the tools that are scripts, with the letters of bcc's.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::output::Detail;
use super::script::{More, Script};
use super::{DebugInfo, EngineFlags, Format, Output, TargetFlags, parse_seconds};

/// `sidestep tools`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidestep tools                                       # which there are
  sidestep tools --print stackcount -i 5 c:malloc      # the script that stackcount runs with these flags")]
pub struct Tools {
    /// Print the script of the tool NAME, as it is with the flags that follow.
    #[arg(long, value_name = "NAME", num_args = 1.., allow_hyphen_values = true)]
    pub print: Vec<String>,
}

/// What all of them have.
#[derive(Args, Clone, Debug)]
pub struct Run {
    #[command(flatten)]
    pub target: TargetFlags,
    /// Stop after SEC seconds; -D, too, as bcc's stackcount has it.
    #[arg(short = 'd', short_alias = 'D', long, value_name = "SEC", value_parser = parse_seconds)]
    pub duration: Option<Duration>,
    /// Print the script and do nothing else.
    #[arg(long, aliases = ["ebpf", "debug"])]
    pub print: bool,
    /// Say what would be written where, and touch nothing.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub engine: EngineFlags,
}

impl Run {
    /// The same for a script.
    pub fn script(&self, program: String, output: Output) -> Script {
        Script {
            program: Some(program),
            words: Vec::new(),
            list: false,
            target: self.target.clone(),
            output,
            debug: Vec::new(),
            more: More::default(),
            dry_run: self.dry_run,
            allow_unsafe: false,
            engine: self.engine.clone(),
        }
    }
}

/// Where and how to print, for tools whose `-f` is folded stacks.
#[derive(Args, Clone, Debug)]
pub struct Folded {
    /// Print folded stacks, a line each: `main;work;malloc 42`.
    #[arg(short = 'f', long, conflicts_with = "format")]
    pub folded: bool,
    /// Output format, which -f json is, too; json is one object per line.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// Write the results to FILE; stdout is left to the command.
    #[arg(short = 'o', value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub detail: Detail,
}

impl Folded {
    /// The same for a script.
    pub fn output(&self) -> Output {
        Output { file: self.file.clone(), format: self.format, detail: self.detail }
    }
}

/// `sidestep stackcount`.
#[derive(Args, Debug)]
#[command(
    override_usage = "\
sidestep stackcount [OPTIONS] -p PID PATTERN
       sidestep stackcount [OPTIONS] PATTERN -- CMD [ARG]...",
    after_help = "\
PATTERN is [OBJECT:]FUNC, or u:OBJECT:[PROVIDER:]NAME for a USDT probe.

Examples:
  sidestep stackcount -p 1234 c:malloc                 # until Ctrl-C
  sidestep stackcount -p 1234 -f c:malloc > folded.txt # for a flame graph
  sidestep stackcount -p 1234 -i 1 -T 'c:mem*'         # every second, with the time
  sidestep stackcount -p 1234 -sv c:malloc             # with offsets and addresses
  sidestep stackcount -Pr 'c:^(read|write)$' -- ls     # with the thread's name; a regular expression"
)]
pub struct Stackcount {
    /// Functions: [OBJECT:]FUNC, or u:OBJECT:[PROVIDER:]NAME.
    pub pattern: String,
    #[command(flatten)]
    pub run: Run,
    /// Print every SEC seconds.
    #[arg(short = 'i', long, value_name = "SEC", value_parser = parse_seconds)]
    pub interval: Option<Duration>,
    /// Print the time of day above each output.
    #[arg(short = 'T', long)]
    pub timestamp: bool,
    /// FUNC is a regular expression.
    #[arg(short = 'r', long = "regexp")]
    pub regexp: bool,
    /// Print offsets in functions.
    #[arg(short = 's', long)]
    pub offset: bool,
    /// Count apart by process, with the names of its threads.
    #[arg(short = 'P', long)]
    pub perpid: bool,
    /// Only what happens on this CPU.
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// The stacks of the program: there are no others here, and -K, those of the kernel, is
    /// refused.
    #[arg(short = 'U', long = "user-stacks-only")]
    pub user: bool,
    #[arg(short = 'K', long = "kernel-stacks-only", hide = true)]
    pub kernel: bool,
    /// Frames at most.
    #[arg(long, value_name = "N", default_value = "127", value_parser = clap::value_parser!(u32).range(1..=127))]
    pub depth: u32,
    #[command(flatten)]
    pub output: Folded,
}

/// `sidestep argdist`.
#[derive(Args, Debug)]
#[command(
    override_usage = "\
sidestep argdist [OPTIONS] -p PID {-C|-H} SPEC...
       sidestep argdist [OPTIONS] {-C|-H} SPEC... -- CMD [ARG]...",
    after_help = "\
SPEC = {p|r}:[OBJECT]:FUNC(SIGNATURE)[VALUES][#LABEL]
       u:OBJECT:[PROVIDER:]NAME()[VALUES][#LABEL]
  VALUES = :TYPE[,TYPE]...:EXPR[,EXPR]...[:FILTER]
  p: at the entry, r: at the return, u: a USDT probe, whose arguments are arg1, arg2 ...
  EXPR and FILTER are C with the names of SIGNATURE; at the return also $retval, $latency (in \
nanoseconds), and $entry(NAME), the argument as it was at the entry. STRCMP(\"text\", EXPR) compares strings.

Examples:
  sidestep argdist -p 1234 -H 'c:malloc(size_t n):size_t:n'              # sizes, every second
  sidestep argdist -p 1234 -i 5 -C 'p:c:write(int fd):int:fd#descriptor' # which descriptors, every 5 seconds
  sidestep argdist -p 1234 -C 'r:c:open(char *p):char*:$entry(p):$retval < 0'
  sidestep argdist -p 1234 -H 'r:c:read():u64:$latency/1000#us'
  sidestep argdist -n 1 -i 10 -C 'p:c:write(int fd):int:fd' -- ls        # once, after 10 seconds"
)]
pub struct Argdist {
    /// Count how often EXPR has which value.
    #[arg(short = 'C', long = "count", value_name = "SPEC", num_args = 1..)]
    pub count: Vec<String>,
    /// Print a histogram of EXPR.
    #[arg(short = 'H', long = "histogram", value_name = "SPEC", num_args = 1..)]
    pub histogram: Vec<String>,
    #[command(flatten)]
    pub run: Run,
    /// Print every SEC seconds.
    #[arg(short = 'i', long, value_name = "SEC", default_value = "1", value_parser = parse_seconds)]
    pub interval: Duration,
    /// Stop after so many outputs.
    #[arg(short = 'n', long = "number", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub number: Option<u64>,
    /// Go on adding: do not begin with nothing after an output.
    #[arg(long)]
    pub cumulative: bool,
    /// Print the most frequent N values only.
    #[arg(short = 'T', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub top: Option<u64>,
    /// Only the thread TID.
    #[arg(short = 't', long, value_name = "TID", value_parser = super::parse_pid)]
    pub tid: Option<i32>,
    /// Headers that bcc would include: types are those of debug information here.
    #[arg(short = 'I', long, value_name = "HEADER", hide = true)]
    pub include: Vec<String>,
    /// Bytes of a string at most.
    #[arg(short = 'z', long, value_name = "BYTES", default_value = "80",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub string_size: u32,
    #[command(flatten)]
    pub output: Output,
}

/// `sidestep funcslower`.
#[derive(Args, Debug)]
#[command(
    override_usage = "\
sidestep funcslower [OPTIONS] -p PID FUNCTION...
       sidestep funcslower [OPTIONS] FUNCTION... -- CMD [ARG]...",
    after_help = "\
Examples:
  sidestep funcslower -p 1234 -m 10 processCommand     # calls that take more than 10 ms
  sidestep funcslower -p 1234 -u 100 c:read c:write    # more than 100 us, of two functions
  sidestep funcslower -p 1234 -a 2 c:open              # with the first two arguments
  sidestep funcslower -p 1234 -U c:fsync               # with their stacks
  sidestep funcslower -p 1234 -Uf c:fsync > folded.txt # time by stack, for a flame graph"
)]
pub struct Funcslower {
    /// Functions: [OBJECT:]FUNC.
    #[arg(required = true, value_name = "FUNCTION")]
    pub functions: Vec<String>,
    #[command(flatten)]
    pub run: Run,
    /// Calls that take longer than MIN milliseconds (1 unless -u is given).
    #[arg(short = 'm', long = "min-ms", value_name = "MIN", value_parser = parse_limit, conflicts_with = "microseconds")]
    pub milliseconds: Option<f64>,
    /// Calls that take longer than MIN microseconds.
    #[arg(short = 'u', long = "min-us", value_name = "MIN", value_parser = parse_limit)]
    pub microseconds: Option<f64>,
    /// Print the first N arguments.
    #[arg(short = 'a', long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u32).range(0..=6))]
    pub arguments: u32,
    /// Print the stacks of the calls.
    #[arg(short = 'U', long = "user-stack")]
    pub stack: bool,
    #[arg(short = 'K', long = "kernel-stack", hide = true)]
    pub kernel: bool,
    /// Print the time of day.
    #[arg(short = 'T', long)]
    pub time: bool,
    /// Print the seconds since the start.
    #[arg(short = 't', long, conflicts_with = "time")]
    pub timestamp: bool,
    /// FUNCTION is a regular expression.
    #[arg(short = 'r', long = "regexp")]
    pub regexp: bool,
    #[command(flatten)]
    pub output: Folded,
}

/// How long calls take at least, of which a part is a nanosecond or more.
fn parse_limit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(limit) if (0.0..=1e12).contains(&limit) => Ok(limit),
        _ => Err("expected a number, for example 10 or 0.5".to_owned()),
    }
}

/// `sidestep bashreadline`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidestep bashreadline -p 1234                        # what is typed into this shell
  sidestep bashreadline -p 1234 -s /lib/libreadline.so # a program with a library of its own")]
pub struct Bashreadline {
    #[command(flatten)]
    pub run: Run,
    /// The library with `readline`; without it, the program, then every mapped object.
    #[arg(short = 's', long, value_name = "OBJECT")]
    pub shared: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

/// `sidestep gethostlatency`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidestep gethostlatency -p 1234
  sidestep gethostlatency -f json -- curl http://localhost/")]
pub struct Gethostlatency {
    #[command(flatten)]
    pub run: Run,
    #[command(flatten)]
    pub output: Output,
}

/// `sidestep sslsniff`.
#[derive(Args, Debug)]
#[command(after_help = "\
OpenSSL, GnuTLS and NSS, those that are mapped.

Examples:
  sidestep sslsniff -o plain.txt -- curl https://localhost/
  sidestep sslsniff -p 1234 -x -l                      # with user, thread and the time of each call
  sidestep sslsniff --extra-lib openssl:./app -- ./app # a program that has OpenSSL in itself
  sidestep sslsniff -p 1234 --hexdump --max-buffer-size 64")]
pub struct Sslsniff {
    #[command(flatten)]
    pub run: Run,
    /// Print user and thread.
    #[arg(short = 'x', long)]
    pub extra: bool,
    /// Print how long calls take.
    #[arg(short = 'l', long)]
    pub latency: bool,
    /// Only of threads with this name.
    #[arg(long, value_name = "NAME")]
    pub comm: Option<String>,
    /// Only of this user.
    #[arg(short = 'u', long, value_name = "UID")]
    pub uid: Option<u32>,
    /// Handshakes of OpenSSL, too.
    #[arg(long)]
    pub handshake: bool,
    /// Another library, too: openssl:FILE, gnutls:FILE or nss:FILE.
    #[arg(long, value_name = "KIND:FILE")]
    pub extra_lib: Vec<String>,
    /// Print the data in hexadecimal.
    #[arg(long)]
    pub hexdump: bool,
    /// Bytes of one call that are printed at most.
    #[arg(long, value_name = "BYTES", default_value = "8192", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub max_buffer_size: u32,
    /// Not the calls of OpenSSL.
    #[arg(long)]
    pub no_openssl: bool,
    /// Not the calls of GnuTLS.
    #[arg(short = 'g', long)]
    pub no_gnutls: bool,
    /// Not the calls of NSS.
    #[arg(short = 'n', long)]
    pub no_nss: bool,
    #[command(flatten)]
    pub output: Output,
}

/// `sidestep memleak`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidestep memleak -p 1234                             # every 5 seconds, what is older than 500 ms
  sidestep memleak -p 1234 -a                          # with each address
  sidestep memleak -p 1234 -i 10 -n 1 -o 60000         # once, after 10 seconds
  sidestep memleak -p 1234 --sort count -T 3           # the three stacks with the most allocations
  sidestep memleak -p 1234 -s 100 -z 1024              # every 100th allocation, of those of at least 1 KiB
  sidestep memleak -o 0 -- ./program                   # what it has not freed at its end")]
pub struct Memleak {
    /// The same as -i, as bcc has it.
    #[arg(value_name = "INTERVAL", value_parser = parse_seconds, conflicts_with = "interval")]
    pub every: Option<Duration>,
    /// The same as -n.
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "number")]
    pub count: Option<u64>,
    #[command(flatten)]
    pub run: Run,
    /// Print every SEC seconds.
    #[arg(short = 'i', long, value_name = "SEC", default_value = "5", value_parser = parse_seconds)]
    pub interval: Duration,
    /// Stop after so many outputs.
    #[arg(short = 'n', long = "number", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub number: Option<u64>,
    /// Print each allocation with its address, too.
    #[arg(short = 'a', long)]
    pub show_allocs: bool,
    /// Print allocations only that are older than MS milliseconds.
    #[arg(short = 'o', long, value_name = "MS", default_value = "500")]
    pub older: u64,
    /// Print each call as it happens.
    #[arg(short = 't', long)]
    pub trace: bool,
    /// All allocations, however old, by stack.
    #[arg(long, conflicts_with = "show_allocs")]
    pub combined_only: bool,
    /// An address that is given again was freed in between, though nobody saw it: this is so in any
    /// case here.
    #[arg(long)]
    pub wa_missing_free: bool,
    #[arg(long, hide = true)]
    pub percpu: bool,
    /// Look at every Nth allocation only.
    #[arg(short = 's', long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    pub sample_rate: u64,
    /// Stacks are chosen and sorted by bytes or by allocations.
    #[arg(long, value_name = "KEY", default_value = "size")]
    pub sort: Sort,
    /// Print the N stacks with the most bytes, or allocations.
    #[arg(short = 'T', long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u64).range(1..))]
    pub top: u64,
    /// Only allocations of at least BYTES.
    #[arg(short = 'z', long, value_name = "BYTES")]
    pub min_size: Option<u64>,
    /// Only allocations of at most BYTES.
    #[arg(short = 'Z', long, value_name = "BYTES")]
    pub max_size: Option<u64>,
    /// The object with the allocator.
    #[arg(short = 'O', long = "obj", value_name = "OBJECT", default_value = "c")]
    pub object: String,
    /// What the names of its functions begin with: je_ for je_malloc.
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub symbols_prefix: String,
    /// Write the results to FILE; stdout is left to the command.
    #[arg(long = "output", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Output format; json is one object per line.
    #[arg(short = 'f', long, default_value = "text")]
    pub format: Format,
    #[command(flatten)]
    pub detail: Detail,
}

/// By what `memleak` sorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Bytes.
    Size,
    /// Allocations.
    Count,
}

/// `sidestep deadlock`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidestep deadlock -p 1234
  sidestep deadlock 1234                               # the same
  sidestep deadlock -p 1234 -v --dump-graph graph.json # with the graph of which was locked while which was held
  sidestep deadlock --lock-symbols my_lock --unlock-symbols my_unlock -- ./program")]
pub struct Deadlock {
    /// The same as -p, as bcc has it.
    #[arg(value_name = "PID", value_parser = super::parse_pid, conflicts_with = "pid")]
    pub process: Option<i32>,
    #[command(flatten)]
    pub run: Run,
    /// The object with these functions, for those that are named without one.
    #[arg(long, value_name = "OBJECT")]
    pub binary: Option<String>,
    /// Functions that lock a mutex, which is their first argument.
    #[arg(
        long = "lock-symbols",
        alias = "lock-symbol",
        value_name = "FUNC",
        value_delimiter = ',',
        default_value = "c:pthread_mutex_lock"
    )]
    pub lock: Vec<String>,
    /// Functions that unlock it.
    #[arg(
        long = "unlock-symbols",
        alias = "unlock-symbol",
        value_name = "FUNC",
        value_delimiter = ',',
        default_value = "c:pthread_mutex_unlock"
    )]
    pub unlock: Vec<String>,
    /// Write the graph to FILE every second: mutexes, and which was locked while which was held, as
    /// networkx has it in JSON.
    #[arg(long, value_name = "FILE")]
    pub dump_graph: Option<PathBuf>,
    /// Threads that hold mutexes at a time, and threads that are created, at most.
    #[arg(short = 't', long, value_name = "N", default_value = "65536", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub threads: u32,
    /// Pairs of mutexes at most.
    #[arg(short = 'e', long, value_name = "N", default_value = "65536", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub edges: u32,
    #[command(flatten)]
    pub output: Output,
}

/// `sidestep tplist`.
#[derive(Args, Debug)]
#[command(after_help = "\
FILTER is [PROVIDER:]NAME, with globs.

Examples:
  sidestep tplist -p 1234                              # of all objects of a process
  sidestep tplist -l c 'mutex*'
  sidestep tplist -v -l /usr/bin/python3               # with arguments")]
pub struct Tplist {
    /// Of the objects of this process.
    #[arg(short = 'p', long, value_parser = super::parse_pid)]
    pub pid: Option<i32>,
    /// Of this program or library.
    #[arg(short = 'l', long = "lib", value_name = "OBJECT")]
    pub object: Option<String>,
    /// Which probes.
    pub filter: Option<String>,
    /// Print each site with its arguments.
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Write to FILE instead of stdout.
    #[arg(short = 'o', value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Output format; json is one object per line.
    #[arg(short = 'f', long, default_value = "text", value_enum)]
    pub format: Format,
    #[command(flatten)]
    pub debuginfo: DebugInfo,
}
