//! Flags of `sidestep trace`.

use clap::Args;

use super::Output;
use super::tools::Run;

/// `sidestep trace`.
#[derive(Args, Debug)]
#[command(
    override_usage = "\
sidestep trace [OPTIONS] -p PID SPEC...
       sidestep trace [OPTIONS] SPEC... -- CMD [ARG]...",
    after_help = "\
SPEC = [p:|r[MAXACTIVE]:|post:][OBJECT:]FUNC[(SIGNATURE)] [(CONDITION)] [\"FORMAT\", VALUE, ...]
       u:OBJECT:[PROVIDER:]NAME [(CONDITION)] [\"FORMAT\", VALUE, ...]
  p: at the entry (default), r: at the return, u: a USDT probe, post: when the instruction at FUNC+OFF has been executed.
  r8: watches 8 calls at a time, in all threads, and counts the others as missed.
  CONDITION and VALUE are C with arg0 ... arg9 at the entry (arg1 ... of USDT probes, as tplist \
numbers them), the names of SIGNATURE, retval at the return, $pid (the thread), $tgid, $uid, $gid, $cpu, and STRCMP(\"text\", EXPR).
  A VALUE may also be a register: %ax, %di, %r8, %ip, %sp, %flags, %xmm0 (its lower half).
  FORMAT is printf's: %d %u %x are 32 bits wide, %ld %lu %lx %p 64; %f %e a double, %hf a float, \
which are in %xmm0 ... %xmm7; %s reads a string of the target; %U is the function at an address.
SPEC may also be a line as the kernel's uprobe_events takes it: p|r[MAXACTIVE][:[GROUP/]EVENT] PATH:OFFSET [NAME=FETCHARG[:TYPE]]...

Examples:
  sidestep trace -p 1234 'libc:open \"%s %d\", arg0, arg1'
  sidestep trace 'r:libc:read \"%ld\", retval' -- cat /etc/passwd
  sidestep trace -p 1234 -U 'c:write(int fd, void *p, size_t n) (fd == 1) \"%lu\", n'
  sidestep trace -p 1234 'u:/usr/bin/python3:gc__start \"generation %d\", arg1'
  sidestep trace -p 1234 'post:app:lookup+0x2f \"%lx\", %ax'  # what the instruction there has loaded
  sidestep trace -p 1234 -M 10 -t 'c:malloc \"%lu bytes\", arg0' 'c:free \"%p\", arg0'
  sidestep trace -p 1234 'p:alloc /usr/bin/app:0x1130 size=%di' --filter 'size > 64'"
)]
pub struct Trace {
    /// What to trace and what to print.
    #[arg(required = true, value_name = "SPEC")]
    pub specs: Vec<String>,
    #[command(flatten)]
    pub run: Run,
    /// Trace only hits for which EXPR holds, in the grammar of the kernel's event filters.
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Only the thread TID.
    #[arg(short = 'L', long, value_name = "TID", value_parser = super::parse_pid)]
    pub tid: Option<i32>,
    /// Only of this user.
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
    /// Only of threads whose names contain NAME.
    #[arg(short = 'n', long, value_name = "NAME")]
    pub name: Option<String>,
    /// Only hits whose messages contain TEXT.
    #[arg(long, value_name = "TEXT")]
    pub msg_filter: Option<String>,
    /// Print the time of day.
    #[arg(short = 'T', long)]
    pub time: bool,
    /// Print the time since the start in seconds.
    #[arg(short = 't', long)]
    pub timestamp: bool,
    /// With -t: print seconds since 1970 instead.
    #[arg(short = 'u', long, requires = "timestamp")]
    pub unix_timestamp: bool,
    /// Print the CPU.
    #[arg(short = 'C', long = "print_cpu", alias = "print-cpu")]
    pub cpu: bool,
    /// Print the stacks of the program.
    #[arg(short = 'U', long)]
    pub user_stack: bool,
    /// Print addresses in stacks, too.
    #[arg(short = 'a', long)]
    pub address: bool,
    /// Print equal lines once, at the end, with their number.
    #[arg(short = 'A', long)]
    pub aggregate: bool,
    /// Stop after N lines.
    #[arg(short = 'M', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_events: Option<u64>,
    /// Bytes of a string at most; 256 unless given.
    #[arg(short = 'Z', long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub string_size: Option<u32>,
    /// Headers that bcc would include: types are those of debug information here.
    #[arg(short = 'I', long, value_name = "HEADER", hide = true)]
    pub include: Vec<String>,
    #[arg(short = 'K', long, hide = true)]
    pub kernel_stack: bool,
    #[arg(short = 'S', long, hide = true)]
    pub include_self: bool,
    #[arg(short = 'B', long = "bin_cmp", hide = true)]
    pub bin_cmp: bool,
    #[arg(short = 's', long = "sym_file_list", value_name = "FILES", hide = true)]
    pub sym_file_list: Option<String>,
    #[arg(short = 'b', long, value_name = "PAGES", hide = true)]
    pub buffer_pages: Option<u32>,
    #[arg(long, value_name = "PATH", hide = true)]
    pub cgroup_path: Option<String>,
    #[command(flatten)]
    pub output: Output,
}
