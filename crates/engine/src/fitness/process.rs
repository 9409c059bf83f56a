//! One process.

use sidestep_isa::Len;
use sidestep_symbols::Source;
use sidestep_sys::Process;

use super::Fact;
use crate::api::Options;
use crate::error::SessionError;
use crate::resolve::objects::Objects;
use crate::results::status::{self, Status};
use crate::target::remote::mappings;
use crate::target::seccomp;

/// A stop takes some 20 µs for each thread.
const THREADS: usize = 500;
/// Address space that a session takes at least.
const ROOM: Len = Len(64 << 20);

/// Whether this process can be probed. If it has seccomp filters, it is stopped for a moment to
/// read them; nothing else touches it.
#[must_use]
pub fn process(pid: i32, options: &Options) -> Vec<Fact> {
    let process = match Process::open(pid) {
        Ok(process) => process,
        Err(error) => return vec![Fact::error("process", error)],
    };
    let comm = process.comm().unwrap_or_default();
    let threads = process.threads().map_or(0, |threads| threads.len());
    vec![
        Fact::fine("process", format!("{pid} ({comm}) can be traced")),
        session(pid, options),
        filters(&process),
        shadow_stack(&process),
        uprobes(&process),
        address_space(sidestep_sys::room(pid)),
        stops(threads),
        program(&process, options),
    ]
}

fn session(pid: i32, options: &Options) -> Fact {
    match status::status(pid, options) {
        Ok(all) => match all.iter().find(|status| status.controller_alive) {
            Some(status) => {
                Fact::fine("session", format!("process {} probes it, too: {}", status.controller, probes(status)))
            }
            None => Fact::fine("session", "one whose controller is gone: the next attach removes it"),
        },
        Err(SessionError::NotProbed { .. }) => Fact::fine("session", "none"),
        Err(error) => Fact::error("session", error),
    }
}

fn probes(status: &Status) -> String {
    let count = status.probes.len();
    if count == 1 { "1 probe".to_owned() } else { format!("{count} probes") }
}

fn filters(process: &Process) -> Fact {
    if process.seccomp().is_ok_and(|mode| mode == 0) {
        return Fact::fine("seccomp", "no filter");
    }
    match process.stop() {
        Ok(stopped) => match seccomp::check(&stopped, seccomp::Extra::default()) {
            Ok(()) => Fact::fine("seccomp", "a filter that lets probes do what they need"),
            Err(error) => {
                match seccomp::check(&stopped, seccomp::Extra { silent: true, ..seccomp::Extra::default() }) {
                    Ok(()) => Fact::limited("seccomp", "a filter that kills", error.to_string()),
                    Err(error) => Fact::error("seccomp", error),
                }
            }
        },
        Err(error) => Fact::error("seccomp", error),
    }
}

fn shadow_stack(process: &Process) -> Fact {
    match process.shadow_stack().unwrap_or(false) {
        true => Fact::prevented(
            "shadow stack",
            "it has one, which is not supported yet",
            "start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off",
        ),
        false => Fact::fine("shadow stack", "none"),
    }
}

/// Uprobes of the kernel that were hit have made the kernel map a page of its own. Of those that
/// were not, nothing tells.
fn uprobes(process: &Process) -> Fact {
    const PAGES: &str = "[uprobes";
    let hit = mappings(process).is_ok_and(|all| all.iter().any(|m| m.name.to_string_lossy().starts_with(PAGES)));
    match hit {
        true => Fact::limited(
            "uprobes",
            "uprobes of the kernel have been hit in it",
            "`explain` says at which functions both can be: end a probe at another one before a uprobe comes there",
        ),
        false => Fact::fine("uprobes", "none of the kernel's has been hit in it"),
    }
}

/// `room`: how many bytes the process may map yet, if there is a limit.
fn address_space(room: Option<u64>) -> Fact {
    match room {
        Some(room) if room < ROOM.0 => Fact::limited(
            "address space",
            format!("limited (ulimit -v): {} MiB are left", room >> 20),
            format!(
                "if an attach finds no memory: prlimit --as=unlimited --pid PID (a session takes {} MiB)",
                ROOM.0 >> 20
            ),
        ),
        _ => Fact::fine("address space", "enough of it"),
    }
}

fn stops(threads: usize) -> Fact {
    match threads > THREADS {
        true => Fact::limited(
            "threads",
            format!("{threads}: each stop of all of them takes some milliseconds"),
            "--live, for `enable` and `disable` without stops",
        ),
        false => Fact::fine("threads", threads.to_string()),
    }
}

/// The main program, and where its names come from.
fn program(process: &Process, options: &Options) -> Fact {
    let open = || -> Result<_, SessionError> {
        let mapped = Objects::mapped(process)?;
        let main = mapped.first().map(|main| Objects::new(options).load(process, main)).transpose()?;
        Ok((main, mapped.len().saturating_sub(1)))
    };
    let (object, libraries) = match open() {
        Ok((Some(main), libraries)) => (main.object, libraries),
        Ok((None, _)) => return Fact::error("program", "it has mapped no program: it cannot be probed"),
        Err(error) => return Fact::error("program", error),
    };
    let linked = if object.is_static() { "static".to_owned() } else { format!("with {libraries} libraries") };
    let named = |source: Source| object.functions().iter().filter(|f| f.source == source).count();
    let (all, exported) = (object.functions().len(), named(Source::Dynsym));
    let path = object.path().display();
    match all - exported {
        0 => Fact::limited(
            "program",
            format!("{path}, {linked}; it is stripped: {all} functions have names"),
            "install its debug symbols (PACKAGE-dbgsym), or name them by 0xADDR; libraries have names of their own",
        ),
        _ => Fact::fine("program", format!("{path}, {linked}, {all} functions")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn little_address_space_is_said() {
        assert_eq!(address_space(None).verdict, Verdict::Fine);
        assert_eq!(address_space(Some(100 << 20)).verdict, Verdict::Fine);
        let fact = address_space(Some(30 << 20));
        assert!(fact.verdict == Verdict::Limited && fact.what.contains("30 MiB"), "{fact:?}");
    }
}
