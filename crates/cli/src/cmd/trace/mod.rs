//! `sidestep trace`: a line per call, with arguments or the return value; or per hit of an event of
//! `uprobe_events`.
//!
//! What a record of the kernel's events can hold is recorded as one ([`events`]); all else, such as
//! conditions and stacks, is a script (`tools::trace`). Both print through [`rows`].

mod events;
pub mod rows;

use std::process::ExitCode;

use clap::error::ErrorKind;

use super::tools;
use crate::flags::Trace;
use crate::flags::spec::{self, Spec};

/// Runs the command.
pub fn run(flags: &Trace) -> anyhow::Result<ExitCode> {
    if let Some(why) = refused(flags) {
        refuse(why);
    }
    let is_recorded = |text: &&String| events::is_line(text) || spec::is_recorded(text);
    let recorded = flags.specs.iter().find(is_recorded);
    let wanted = wanted(flags);
    match (recorded, wanted) {
        (Some(text), Some(flag)) => refuse(&format!("'{text}' is recorded as the kernel does it, without {flag}")),
        (Some(_), None) => events::run(flags),
        (None, None) if flags.specs.iter().all(|text| Spec::parse(text).is_ok()) => events::run(flags),
        (None, _) if flags.filter.is_some() => refuse(
            "--filter is for what records hold; write the condition behind the function: 'c:write (arg0 == 1) \"%lu\", arg2'",
        ),
        (None, _) => tools::run(flags),
    }
}

fn refuse(message: &str) -> ! {
    tools::usage("trace", ErrorKind::ValueValidation, message)
}

/// A flag that only a script can do.
fn wanted(flags: &Trace) -> Option<&'static str> {
    let wanted = [
        (flags.run.print, "--print"),
        (flags.uid.is_some(), "--uid"),
        (flags.cpu, "-C"),
        (flags.user_stack, "-U"),
        (flags.string_size.is_some(), "-Z"),
    ];
    wanted.into_iter().find(|(is_wanted, _)| *is_wanted).map(|(_, flag)| flag)
}

/// Why a flag of bcc's is none here.
fn refused(flags: &Trace) -> Option<&'static str> {
    let refused = [
        (flags.kernel_stack, tools::KERNEL_STACKS),
        (
            flags.cgroup_path.is_some(),
            "--cgroup-path: cgroups need the kernel; choose processes with -p 1,2 or --follow",
        ),
        (flags.include_self, "-S: sidestep probes the processes that are named, and itself only with -p"),
        (
            flags.bin_cmp,
            "-B: STRCMP compares texts, which end with a zero; compare bytes with ==, as in (*(uint8 *)arg0 == 0)",
        ),
        (flags.sym_file_list.is_some(), "-s: names are those of the process's own files; --debuginfo DIR adds others"),
        (flags.buffer_pages.is_some(), "-b: the size of buffers is fixed here; what does not fit is counted and said"),
        (flags.address && !flags.user_stack, "-a: prints the addresses of stacks; add -U"),
    ];
    refused.into_iter().find(|(is_given, _)| *is_given).map(|(_, why)| why)
}
