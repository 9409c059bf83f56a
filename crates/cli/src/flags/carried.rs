//! Flags of the commands about probes that a process carries already.

use clap::{Args, ValueEnum};

use super::{DebugInfo, Formatted, parse_pid};

/// `sidestep status`.
#[derive(Args, Debug)]
#[command(after_help = "\
A line per probe, by address; those of one place in the order in which they were registered:
  ADDRESS  KIND  FUNCTION+OFFSET  [OBJECT]  [STATE]  HITS  MISSED  SHARE
  KIND   p instruction, b behind an instruction, r return, u USDT, - one of sidestep's own (with -v)
  STATE  [OPTIMIZED] a jump, [DISABLED] the original code, [GONE] neither that nor ours; nothing: a trap
  SHARE  of the process' CPU time, in the last second or less; -: not known (few hits, or no controller)

Examples:
  sidestep status -p 1234
  sidestep status -p 1234 -f json   # one JSON object per line")]
pub struct Status {
    /// The process.
    #[arg(short = 'p', long, value_parser = parse_pid)]
    pub pid: i32,
    #[command(flatten)]
    pub format: Formatted,
    /// Also list probes of sidestep's own, and say which probes keep others from being jumps.
    #[arg(short = 'v', long)]
    pub verbose: bool,
    #[command(flatten)]
    pub debuginfo: DebugInfo,
}

/// `sidestep optimize`.
#[derive(Args, Debug)]
#[command(after_help = "\
What `debug.kprobes-optimization` is for kprobes. A probe that is disabled is a trap, or a jump, when it is enabled again.

Examples:
  sidestep optimize off -p 1234             # all of them become traps
  sidestep optimize on -p 1234 libc:malloc  # this one is a jump again")]
pub struct Optimize {
    /// Jumps, where they are possible, or traps.
    pub to: OnOff,
    #[command(flatten)]
    pub switch: Switch,
}

/// A state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// Jumps.
    On,
    /// Traps.
    Off,
}

/// `sidestep disable` and `sidestep enable`.
#[derive(Args, Debug)]
#[command(after_help = "\
Probes are named as they were put in, or by the 0xADDRESS that `sidestep status` shows. Those of \
one place are switched together.

Examples:
  sidestep disable -p 1234                                # all of them
  sidestep disable -p 1234 libc:malloc 'SSL_*' main+0x1c
  sidestep enable -p 1234 0x55d0c3f8c1a9 usdt:libc:libc:setjmp")]
pub struct Switch {
    /// Which probes: [OBJECT:]FUNC, usdt:OBJECT:PROVIDER:NAME, 0xADDRESS; all if there is none.
    #[arg(value_name = "PATTERN")]
    pub patterns: Vec<String>,
    /// The process.
    #[arg(short = 'p', long, value_parser = parse_pid)]
    pub pid: i32,
    /// FUNC is a regular expression.
    #[arg(short = 'r', long = "regexp")]
    pub regexp: bool,
    /// Print nothing but what went wrong.
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Say for how long the threads were stopped.
    #[arg(short = 'v', long)]
    pub verbose: bool,
    #[command(flatten)]
    pub debuginfo: DebugInfo,
}

/// `sidestep detach`.
#[derive(Args, Debug)]
#[command(after_help = "\
A session detaches by itself when it ends, whatever signal ends it. Only SIGKILL leaves probes \
behind: they go on counting, and the process goes on. The next attach removes them; this command does it without one. Sessions at work stay.

Examples:
  sidestep detach -p 1234")]
pub struct Detach {
    /// The process.
    #[arg(short = 'p', long, value_parser = parse_pid)]
    pub pid: i32,
    /// Print nothing but what went wrong.
    #[arg(short = 'q', long)]
    pub quiet: bool,
}
