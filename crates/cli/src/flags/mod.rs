//! What can be typed: one table of flags, and the small languages inside the arguments.
#![allow(
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    rustdoc::bare_urls,
    reason = "doc comments are the texts of --help here: their brackets are no links"
)]

mod carried;
pub mod format;
#[cfg(test)]
mod guide;
pub mod help;
pub mod order;
mod output;
mod protect;
mod read;
pub mod script;
pub mod spec;
mod target;
pub mod tools;
mod trace;
pub mod words;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use sidestep_engine::Options;

pub use carried::{Detach, OnOff, Optimize, Status, Switch};
pub use output::{Format, Formatted, Output, Timing};
pub use protect::{CALIBRATION, Protect};
pub use read::parse;
pub use target::TargetFlags;
pub use trace::Trace;

use output::parse_seconds;
use target::{parse_pid, target_group};

/// Count, time and trace the functions of live programs, without a trap.
#[derive(Parser, Debug)]
#[command(
    name = "sidestep",
    version,
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    override_usage = "\
sidestep [OPTIONS] -p PID -e PROGRAM [ARG]...
       sidestep [OPTIONS] FILE [ARG]... [-- CMD [ARG]...]
       sidestep -l PATTERN
       sidestep COMMAND ...",
    after_help = "\
Examples:
  sidestep -p 1234 -e 'u:libc:malloc { @[ustack(5)] = sum(arg0) }'   # a script of the bpftrace language
  sidestep -c './server --once' latency.bt 100        # from a file, with its $1
  sidestep -l 'u:redis-server:*Command'               # attach points to paste back
  sidestep funclatency libc:read -- grep -rc fn src   # how long do grep's reads take?
  sidestep funccount -p 1234 -i 1 'libc:str*'         # how often, every second?
  sidestep trace -p 1234 'libc:open \"%s %d\", arg0, arg1'
  sidestep explain /usr/bin/redis-server:call         # what would be written where, and why?
  sidestep list 'libc:*alloc*'                        # what can be probed?
  sidestep coverage /usr/bin/redis-server             # how many functions get a jump?
  sidestep status -p 1234                             # which probes are in there?
  sidestep disable -p 1234 'libc:str*'                # not these for now
  sidestep enable -p 1234                             # all of them again

OBJECT:FUNC  OBJECT is a path or a library's short name (libc, c); without it, the main program, then \
every mapped object. FUNC is a name, a glob, symbol+0xOFF or 0xADDR (address in the file). \
OBJECT@FILE:LINE[:COLUMN] is a line of a source file."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Without a command: a script.
    #[command(flatten)]
    pub script: script::Script,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Count the calls of functions.
    Funccount(Funccount),
    /// Time functions from entry to return and print a histogram.
    Funclatency(Funclatency),
    /// Print a line with arguments or return value at each call.
    Trace(Trace),
    /// Run the programs of an eBPF object file at their probes.
    Bpf(Bpf),
    /// List the tools that are scripts, or print one of them.
    Tools(tools::Tools),
    /// Count the stacks that lead to functions.
    Stackcount(tools::Stackcount),
    /// Count values of arguments and returns, or print their histograms.
    Argdist(tools::Argdist),
    /// Print calls that take longer than a limit.
    Funcslower(tools::Funcslower),
    /// Print the lines that are typed into bash, or into other programs with readline.
    Bashreadline(tools::Bashreadline),
    /// Print look-ups of host names, and how long they take.
    Gethostlatency(tools::Gethostlatency),
    /// Print what is sent and received through TLS, as plain text.
    Sslsniff(tools::Sslsniff),
    /// Print memory that was allocated and not freed, by stack.
    Memleak(tools::Memleak),
    /// Find mutexes that are locked in different orders.
    Deadlock(tools::Deadlock),
    /// List the USDT probes of a process or library. Touches no process.
    Tplist(tools::Tplist),
    /// Say what would be written where, and why. Touches no process.
    Explain(Explain),
    /// List the functions that a pattern matches. Touches no process.
    List(List),
    /// Count which sites of programs and libraries get a jump, and why others do not. Touches no
    /// process.
    Coverage(Coverage),
    /// List the probes that a process carries, with what they have counted.
    Status(Status),
    /// Disable probes that a process carries, at no cost until they are enabled.
    Disable(Switch),
    /// Enable probes that were disabled.
    Enable(Switch),
    /// Make probes that a process carries traps instead of jumps, or jumps again.
    Optimize(Optimize),
    /// Remove the probes of a controller that was killed.
    Detach(Detach),
    /// Print a manual page, or write all of them to a folder.
    Man(Man),
    /// Print the completions of a shell.
    Completions(Completions),
}

/// `sidestep man`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidestep man | man -l -                          # sidestep(1)
  sidestep man funccount                           # sidestep-funccount(1)
  sidestep man language                            # sidestep-language(7)
  sidestep man --dir /usr/local/share/man          # all of them, in man1/ and man7/")]
pub struct Man {
    /// The command whose page is printed; language: the language of scripts. Without it, the page
    /// of sidestep itself.
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub page: Option<String>,
    /// Write all pages to DIR/man1 and DIR/man7.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// `sidestep completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidestep completions bash > /etc/bash_completion.d/sidestep
  sidestep completions zsh > ~/.zfunc/_sidestep
  sidestep completions fish > ~/.config/fish/completions/sidestep.fish")]
pub struct Completions {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// `sidestep funccount`.
#[derive(Args, Debug)]
#[command(group = target_group(), override_usage = "\
sidestep funccount [OPTIONS] -p PID PATTERN
       sidestep funccount [OPTIONS] PATTERN -- CMD [ARG]...", after_help = "\
Examples:
  sidestep funccount -p 1234 libc:malloc            # until Ctrl-C
  sidestep funccount -p 1234 -i 1 -d 5 'libc:str*'  # every second, five times
  sidestep funccount -r 'c:^(read|write)$' -- ls    # a command of one's own, a regular expression
  sidestep funccount -p 1234 'u:c:setjmp'           # a USDT probe
  sidestep funccount -p 1234 -f json -i 10 'SSL_*'  # one JSON object per line")]
pub struct Funccount {
    /// Functions: [OBJECT:]FUNC; or u:OBJECT:[PROVIDER:]NAME, a USDT probe.
    pub pattern: String,
    #[command(flatten)]
    pub target: TargetFlags,
    #[command(flatten)]
    pub timing: Timing,
    /// FUNC is a regular expression.
    #[arg(short = 'r', long = "regexp")]
    pub regexp: bool,
    /// Say what would be written where, and touch nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// The program of a hit, in bcc; `funccount` needs none.
    #[arg(short = 'D', long, hide = true)]
    pub debug: bool,
    /// One CPU, in bcc (where `-c` is its letter).
    #[arg(long, value_name = "CPU", hide = true)]
    pub cpu: Option<u32>,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub engine: EngineFlags,
}

/// `sidestep funclatency`.
#[derive(Args, Debug)]
#[command(group = target_group(), override_usage = "\
sidestep funclatency [OPTIONS] -p PID PATTERN
       sidestep funclatency [OPTIONS] PATTERN -- CMD [ARG]...", after_help = "\
Examples:
  sidestep funclatency libc:read -- grep -rc fn src      # a command of one's own
  sidestep funclatency -p 1234 processCommand            # until Ctrl-C
  sidestep funclatency -p 1234 -mTi 5 libc:nanosleep     # milliseconds, every 5 seconds, with the time
  sidestep funclatency -p 1234 -F 'libssl:SSL_*'         # one histogram per function")]
pub struct Funclatency {
    /// Functions: [OBJECT:]FUNC.
    pub pattern: String,
    #[command(flatten)]
    pub target: TargetFlags,
    #[command(flatten)]
    pub timing: Timing,
    /// Histogram in microseconds.
    #[arg(short = 'u', long, conflicts_with = "milliseconds")]
    pub microseconds: bool,
    /// Histogram in milliseconds.
    #[arg(short = 'm', long)]
    pub milliseconds: bool,
    /// One histogram per function.
    #[arg(short = 'F', long = "function")]
    pub per_function: bool,
    /// How deep recursion is followed, in bcc: it is to any depth here.
    #[arg(short = 'l', long, value_name = "DEPTH", hide = true)]
    pub level: Option<u32>,
    /// FUNC is a regular expression.
    #[arg(short = 'r', long = "regexp")]
    pub regexp: bool,
    /// Say what would be written where, and touch nothing.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub engine: EngineFlags,
}

/// `sidestep bpf`.
#[derive(Args, Debug)]
#[command(group = target_group(), override_usage = "\
sidestep bpf [OPTIONS] OBJECT.bpf.o -p PID
       sidestep bpf [OPTIONS] OBJECT.bpf.o -- CMD [ARG]...", after_help = "\
The object is what `clang -g -O2 -target bpf -c` makes of programs for libbpf. Sections say where they run:
  uprobe/OBJECT:FUNC[+OFF]  uretprobe/OBJECT:FUNC  uprobe.multi/OBJECT:GLOB  uretprobe.multi/OBJECT:GLOB
  uprobe.post/OBJECT:FUNC+OFF (when the instruction has been executed)  usdt/OBJECT:PROVIDER:NAME
Maps are printed at the end (and with -i), records of rings as they come.

Examples:
  sidestep bpf count.bpf.o -p 1234                      # until Ctrl-C
  sidestep bpf count.bpf.o -a on_call=libc:malloc -- ls # where the section does not say it
  sidestep bpf count.bpf.o -a f=usdt:libc:libc:setjmp -p 1234
  sidestep bpf lat.bpf.o --set min_ns=1000 -p 1234      # a volatile const of the program
  sidestep bpf -f json -d 5 events.bpf.o -p 1234        # one JSON object per line
  sidestep bpf --kernel count.bpf.o -p 1234             # the same in the kernel, to compare")]
pub struct Bpf {
    /// Object file.
    #[arg(value_name = "OBJECT")]
    pub object: PathBuf,
    #[command(flatten)]
    pub target: TargetFlags,
    /// Run PROGRAM at [OBJECT:]FUNC or usdt:OBJECT:PROVIDER:NAME, whatever its section says.
    #[arg(short = 'a', long, value_name = "PROGRAM=PLACE")]
    pub attach: Vec<String>,
    /// Give the global variable NAME (in .rodata, .data or .bss) an integer value before the start.
    #[arg(short = 's', long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Print the records of ring MAP as values of C type TYPE.
    #[arg(short = 't', long = "type", value_name = "MAP=TYPE")]
    pub types: Vec<String>,
    /// Run in the kernel, by its uprobes (needs root).
    #[arg(long, conflicts_with = "user")]
    pub kernel: bool,
    /// Run in the process (this is the default).
    #[arg(long)]
    pub user: bool,
    /// Allow programs to change what the process does: registers and the instruction pointer in the
    /// context, override_return.
    #[arg(long = "unsafe")]
    pub allow_unsafe: bool,
    /// Say what would be written where, and touch nothing.
    #[arg(long, conflicts_with = "kernel")]
    pub dry_run: bool,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub engine: EngineFlags,
}

/// `sidestep explain`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidestep explain /usr/bin/redis-server:processCommand
  sidestep explain -p 1234 'libc:mem*'                  # as mapped in a process")]
pub struct Explain {
    /// Functions: OBJECT:FUNC; or usdt:OBJECT:PROVIDER:NAME, OBJECT@FILE:LINE[:COLUMN].
    pub pattern: String,
    #[command(flatten)]
    pub look: Look,
}

/// `sidestep list`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidestep list 'libc:*alloc*'
  sidestep list -v '/usr/bin/redis-server:*Command'     # with address, size and technique
  sidestep list -p 1234 'SSL_*'                         # in all objects of a process
  sidestep list 'usdt:libc:libc:*'                      # USDT probes")]
pub struct List {
    /// Functions: OBJECT:GLOB; or usdt:OBJECT:PROVIDER:NAME, OBJECT@FILE:LINE[:COLUMN].
    pub pattern: String,
    #[command(flatten)]
    pub look: Look,
}

/// `sidestep coverage`.
#[derive(Args, Debug)]
#[command(after_help = "\
BINARY is a path, or a library's short name (libc, c).

Examples:
  sidestep coverage /usr/bin/redis-server libc          # the entries of all functions
  sidestep coverage --all-instructions libcrypto        # every instruction of every function
  sidestep coverage -f json libcrypto             # one JSON object per line")]
pub struct Coverage {
    /// Programs and libraries.
    #[arg(required = true, value_name = "BINARY")]
    pub binaries: Vec<String>,
    /// Count every instruction of every function, not only the first.
    #[arg(short = 'a', long)]
    pub all_instructions: bool,
    /// Count functions by their exits, where return probes are put.
    #[arg(short = 'R', long, conflicts_with = "all_instructions")]
    pub returns: bool,
    #[command(flatten)]
    pub format: Formatted,
    /// Write to FILE instead of stdout.
    #[arg(short = 'o', value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub debuginfo: DebugInfo,
}

/// Where `explain` and `list` look.
#[derive(Args, Debug)]
pub struct Look {
    /// Look in the objects of this process.
    #[arg(short = 'p', long, value_parser = parse_pid)]
    pub pid: Option<i32>,
    /// FUNC is a regular expression.
    #[arg(short = 'r', long = "regexp")]
    pub regexp: bool,
    /// Write to FILE instead of stdout.
    #[arg(short = 'o', value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Say more.
    #[arg(short = 'v', long)]
    pub verbose: bool,
    #[command(flatten)]
    pub format: Formatted,
    #[command(flatten)]
    pub engine: EngineFlags,
}

/// Where separate debug files are.
#[derive(Args, Clone, Debug, Default)]
pub struct DebugInfo {
    /// Look for separate debug files here, too; several: DIR:DIR.
    #[arg(long = "debuginfo", value_name = "DIR", value_delimiter = ':', value_parser = parse_directory)]
    pub directories: Vec<PathBuf>,
}

/// A directory for debug files. bpftrace compares checksums where a `+` is in front; Sidestep
/// always does.
fn parse_directory(text: &str) -> Result<PathBuf, std::convert::Infallible> {
    Ok(PathBuf::from(text.strip_prefix('+').unwrap_or(text)))
}

/// Flags for the engine.
#[derive(Args, Clone, Debug)]
pub struct EngineFlags {
    #[command(flatten)]
    pub debuginfo: DebugInfo,
    /// Use trap probes only.
    #[arg(long)]
    pub no_optimize: bool,
    /// Switch probes while the threads run even in libraries that the program may unload at the
    /// same moment.
    #[arg(long)]
    pub live: bool,
    /// Interpret handlers instead of compiling them, to compare.
    #[arg(long)]
    pub interpret: bool,
    /// Only probe, or list, what the regular expression matches: OBJECT:FUNC.
    #[arg(long, value_name = "REGEX")]
    pub probe_filter: Option<String>,
}

impl EngineFlags {
    /// The same for the engine.
    pub fn options(&self) -> Options {
        Options {
            no_optimize: self.no_optimize,
            live: self.live,
            interpret: self.interpret,
            debug_dirs: self.debuginfo.directories.clone(),
            filter: self.probe_filter.clone(),
            ..Options::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, error::ErrorKind};
    use sidestep_engine::Target;
    use std::time::Duration;

    fn parse(args: &[&str]) -> Result<Command, ErrorKind> {
        Cli::try_parse_from([&["sidestep"], args].concat())
            .map(|cli| cli.command.expect("a command"))
            .map_err(|e| e.kind())
    }

    #[test]
    fn flag_table_is_consistent() {
        Cli::command().debug_assert();
        // That looks at letters in debug builds only.
        for command in Cli::command().get_subcommands() {
            let mut letters: Vec<char> = command.get_arguments().filter_map(clap::Arg::get_short).collect();
            let count = letters.len();
            letters.sort_unstable();
            letters.dedup();
            assert_eq!(letters.len(), count, "{} has a letter twice", command.get_name());
        }
    }

    #[test]
    fn command_behind_dashes_keeps_its_flags() {
        let Ok(Command::Funccount(flags)) = parse(&["funccount", "-i", "0.5", "libc:malloc", "--", "grep", "-c", "7"])
        else {
            panic!("not parsed");
        };
        assert_eq!(flags.timing.interval, Some(Duration::from_millis(500)));
        let Target::Command(command) = flags.target.target() else { panic!("no command") };
        assert_eq!(command, ["grep", "-c", "7"]);
    }

    #[test]
    fn command_in_one_word_is_split() {
        let Ok(Command::Trace(flags)) = parse(&["trace", "-c", "sh -c 'exit 3'", "libc:open", "libc:read"]) else {
            panic!("not parsed");
        };
        assert_eq!(flags.specs, ["libc:open", "libc:read"]);
        let Target::Command(command) = flags.run.target.target() else { panic!("no command") };
        assert_eq!(command, ["sh", "-c", "exit 3"]);
    }

    #[test]
    fn exactly_one_target() {
        assert_eq!(parse(&["funccount", "f"]).err(), Some(ErrorKind::MissingRequiredArgument));
        assert_eq!(parse(&["funccount", "-p", "1", "f", "--", "ls"]).err(), Some(ErrorKind::ArgumentConflict));
        assert_eq!(parse(&["funccount", "-p", "1", "-c", "ls", "f"]).err(), Some(ErrorKind::ArgumentConflict));
    }

    #[test]
    fn combined_short_flags_as_in_bcc() {
        let Ok(Command::Funclatency(flags)) = parse(&["funclatency", "-mTi", "5", "-p", "1", "f"]) else {
            panic!("not parsed");
        };
        assert!(flags.milliseconds && flags.timing.timestamp);
        assert_eq!(flags.timing.interval, Some(Duration::from_secs(5)));
        assert_eq!(parse(&["funclatency", "-um", "-p", "1", "f"]).err(), Some(ErrorKind::ArgumentConflict));
    }

    #[test]
    fn numbers_are_checked() {
        assert_eq!(parse_pid("a1111"), Err("Failed to parse pid: invalid integer: a1111".to_owned()));
        assert!(parse_pid("0").is_err() && parse_pid("-5").is_err() && parse_pid("99999999999").is_err());
        assert_eq!(parse_pid("42"), Ok(42));
        for bad in ["0", "-1", "nan", "inf", "x", "", "1e300"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
