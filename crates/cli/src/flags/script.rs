//! Flags of scripts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use super::{EngineFlags, Output, TargetFlags, parse_seconds};
use crate::out::color::When;

/// A script of the bpftrace language.
#[derive(Args, Debug)]
pub struct Script {
    /// Run PROGRAM, a script of the bpftrace language.
    #[arg(short = 'e', value_name = "PROGRAM", allow_hyphen_values = true, overrides_with = "program")]
    pub program: Option<String>,
    /// The file of the script (- is stdin), unless -e gives it, and its arguments: $1, $2 …
    #[arg(value_name = "FILE|ARG", allow_negative_numbers = true)]
    pub words: Vec<String>,
    /// List the attach points that a pattern matches (uprobe:OBJECT:GLOB,
    /// usdt:OBJECT:PROVIDER:NAME, a GLOB alone with -p PID), or those of a program or a script;
    /// with -v, also how many cannot be probed.
    #[arg(short = 'l', long)]
    pub list: bool,
    #[command(flatten)]
    pub target: TargetFlags,
    #[command(flatten)]
    pub output: Output,
    /// Print the syntax tree (STAGE ast), the programs that become of it (codegen) or both, and do
    /// nothing else.
    #[arg(short = 'd', long = "debug", value_name = "STAGE", num_args = 0..=1, require_equals = true,
          default_missing_value = "all", value_parser = Stage::parse)]
    pub debug: Vec<Stage>,
    /// Say what would be written where, and touch nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Allow functions that change what the process does.
    #[arg(long = "unsafe")]
    pub allow_unsafe: bool,
    #[command(flatten)]
    pub engine: EngineFlags,
    #[command(flatten)]
    pub more: More,
}

/// Flags that only scripts on the command line have.
#[derive(Args, Debug, Default)]
pub struct More {
    /// Say whether an attach (to PID, with -p) would fail or be slow on this machine, and what to
    /// do.
    #[arg(long, conflicts_with_all = ["program", "words", "list", "dry_run"])]
    pub info: bool,
    /// Stop after SEC seconds, as exit() in an interval does.
    #[arg(long, value_name = "SEC", value_parser = parse_seconds)]
    pub duration: Option<Duration>,
    /// When output is written: at the end, after each LINE (the default), or at once.
    #[arg(short = 'B', value_name = "MODE")]
    pub buffering: Option<Buffering>,
    /// Colours in what is said about the script: auto (on a terminal, the default; not with
    /// NO_COLOR), always or never.
    #[arg(long, value_name = "WHEN")]
    pub color: Option<When>,
    /// Do not print warnings about the script.
    #[arg(long)]
    pub no_warnings: bool,
    /// Say where reads of memory fail, and where entries of maps are not there; without it, reads
    /// of strings that fail are counted.
    #[arg(short = 'k', long = "warnings", action = ArgAction::Count)]
    pub faults: u8,
    /// Look for files of #include and import here, too.
    #[arg(short = 'I', value_name = "DIR")]
    pub include_dir: Vec<PathBuf>,
    /// Take in a file before the script, as #include does.
    #[arg(long = "include", value_name = "FILE")]
    pub include: Vec<String>,
    /// Run the script's test probes, and nothing else.
    #[arg(long, conflicts_with = "bench")]
    pub test: bool,
    /// Run the script's bench probes, and nothing else.
    #[arg(long)]
    pub bench: bool,
    /// Print the script with its lines laid out anew, and do nothing else; with -o FILE, write it
    /// there.
    #[arg(long, conflicts_with_all = ["test", "bench", "list", "info"])]
    pub fmt: bool,
    /// What to do with the script: test, bench and format are --test, --bench and --fmt; codegen
    /// compiles it, and does nothing else.
    #[arg(long, value_name = "MODE", value_parser = Mode::parse, conflicts_with_all = ["test", "bench", "fmt"])]
    pub mode: Option<Mode>,
    /// Features of the kernel that bpftrace is not to use. None is used here.
    #[arg(long, value_name = "FEATURE", hide = true)]
    pub no_feature: Vec<String>,
    /// How bpftrace raises semaphores of USDT probes: in the probed processes alone here.
    #[arg(long, hide = true)]
    pub usdt_file_activation: bool,
    /// bpftrace's list of the kernel functions that can be probed.
    #[arg(long, value_name = "FILE", hide = true, value_parser = of_the_kernel)]
    pub traceable_functions: Option<String>,
    /// Where bpftrace writes a script as a program.
    #[arg(long, value_name = "FILE", hide = true, value_parser = no_program)]
    pub aot: Option<String>,
    /// Options of the script: `--name=value` behind `--`.
    #[arg(skip)]
    pub options: Vec<(String, Option<String>)>,
}

fn of_the_kernel(_: &str) -> Result<String, String> {
    Err("a list of kernel functions needs the kernel: not available in this tool".to_owned())
}

fn no_program(_: &str) -> Result<String, String> {
    Err("a script is not made a program of its own: run the script".to_owned())
}

/// What `--mode` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The script is compiled.
    Codegen,
    /// `--test`
    Test,
    /// `--bench`
    Bench,
    /// `--fmt`
    Format,
}

impl Mode {
    fn parse(text: &str) -> Result<Mode, String> {
        match text {
            "codegen" => Ok(Mode::Codegen),
            "test" => Ok(Mode::Test),
            "bench" => Ok(Mode::Bench),
            "format" => Ok(Mode::Format),
            "compiler-bench" => Err("it times the passes of bpftrace's compiler, which is not used here".to_owned()),
            _ => Err("there are codegen, test, bench and format".to_owned()),
        }
    }
}

/// What `-d` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The syntax tree.
    Tree,
    /// The maps and programs.
    Programs,
    /// Both.
    All,
}

impl Stage {
    /// The stages of bpftrace's compiler that mean something here.
    pub const NAMES: [&str; 5] = ["ast", "codegen", "codegen-opt", "dis", "all"];

    /// Those that do not.
    pub const OTHERS: [&str; 4] = ["libbpf", "verifier", "parse", "types"];

    fn parse(text: &str) -> Result<Stage, String> {
        match text {
            "ast" => Ok(Stage::Tree),
            "codegen" | "codegen-opt" | "dis" => Ok(Stage::Programs),
            "all" => Ok(Stage::All),
            "libbpf" | "verifier" => Err("nothing is loaded into the kernel here".to_owned()),
            _ => Err("there are ast, codegen, codegen-opt, dis and all".to_owned()),
        }
    }
}

/// When output is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Buffering {
    /// At the end, or when there is much of it.
    Full,
    /// Line by line.
    Line,
    /// At once.
    None,
}

impl More {
    /// Does what `--mode` says.
    fn take_mode(&mut self) {
        match self.mode {
            Some(Mode::Test) => self.test = true,
            Some(Mode::Bench) => self.bench = true,
            Some(Mode::Format) => self.fmt = true,
            Some(Mode::Codegen) | None => {}
        }
    }
}

impl Script {
    /// Whether the syntax tree is printed.
    pub fn prints_tree(&self) -> bool {
        self.debug.iter().any(|stage| *stage != Stage::Programs)
    }

    /// Whether the programs are.
    pub fn prints_programs(&self) -> bool {
        self.debug.iter().any(|stage| *stage != Stage::Tree)
    }

    /// Takes the options of the script from what is behind `--`. The rest is a command.
    pub fn take_options(&mut self) {
        self.more.take_mode();
        let command = &mut self.target.command;
        let options: Vec<_> = command.iter().map_while(|word| script_option(word.to_str()?)).collect();
        command.drain(..options.len());
        self.more.options = options;
    }
}

/// A word behind `--` that is an option of the script.
pub fn script_option(word: &str) -> Option<(String, Option<String>)> {
    let option = word.strip_prefix("--").filter(|option| !option.is_empty())?;
    Some(match option.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (option.to_owned(), None),
    })
}
