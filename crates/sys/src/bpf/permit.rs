//! Does this machine let us run programs in the kernel?
#![allow(unsafe_code, reason = "perf_event_open takes pointers")]

use std::io;

use super::call::{EventAttr, perf_event_open};
use super::map::{Map, MapError, MapSpec};
use super::probe::{self, AttachError};
use super::program::{LoadError, Program, ProgramKind, ProgramSpec};

/// Why the kernel does not run our programs.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It has no eBPF.
    #[error("this kernel has no eBPF (CONFIG_BPF_SYSCALL): run the object without --kernel")]
    NoBpf,
    /// There are uprobes, but none that objects can work with. A 32-bit kernel refuses them in T32
    /// code, and gives programs registers of 32 bits, where clang has 64 for each; a 64-bit kernel
    /// refuses them in all 32-bit programs.
    #[error("this kernel has no uprobes for eBPF objects in 32-bit Arm programs: run the object without --kernel")]
    Arm32,
    /// It has no uprobes for perf.
    #[error("this kernel has no uprobes for perf ({0}): run the object without --kernel")]
    NoUprobes(AttachError),
    /// Maps are not for us.
    #[error(
        "the kernel lets us create no map ({source}): run as root, or with CAP_BPF and CAP_PERFMON; before Linux 5.11 also with 'ulimit -l unlimited'"
    )]
    Map {
        /// What the kernel said.
        source: io::Error,
    },
    /// Programs are not for us.
    #[error(
        "the kernel lets us load no program ({source}): run as root, or with CAP_BPF and CAP_PERFMON, and without kernel lockdown"
    )]
    Program {
        /// What the kernel said.
        source: io::Error,
    },
    /// Uprobes are not for us.
    #[error("the kernel lets us attach no uprobe ({source}): run as root, or with CAP_PERFMON")]
    Uprobe {
        /// What the kernel said.
        source: io::Error,
    },
    /// The machine does not say what it is.
    #[error(transparent)]
    Machine(MapError),
}

/// Whether maps can be made, programs for probes loaded, and uprobes attached: tries each, and
/// leaves nothing behind.
///
/// # Errors
/// What is missing, in words.
pub fn permitted() -> Result<(), Refusal> {
    if cfg!(target_arch = "arm") {
        return Err(Refusal::Arm32);
    }
    let spec = MapSpec { name: "permitted", kind: 2, key_size: 4, value_size: 4, max_entries: 1, ..MapSpec::default() };
    match Map::create(&spec) {
        Ok(_) => {}
        Err(MapError::Create { source, .. }) if source.raw_os_error() == Some(libc::ENOSYS) => {
            return Err(Refusal::NoBpf);
        }
        Err(MapError::Create { source, .. }) => return Err(Refusal::Map { source }),
        Err(other) => return Err(Refusal::Machine(other)),
    }
    // r0 = 0; exit
    let code = [0xb7, 0x95];
    let spec = ProgramSpec { name: "permitted", kind: ProgramKind::Probe, code: &code, license: "GPL" };
    if let Err(LoadError::Refused { source, .. }) = Program::load(&spec) {
        return Err(Refusal::Program { source });
    }
    let attr = EventAttr { kind: probe::event_type().map_err(Refusal::NoUprobes)?, ..EventAttr::default() };
    // SAFETY: an event without a path: null is refused with EINVAL.
    match unsafe { perf_event_open(&attr, -1, 0) } {
        // It asks for the right before it looks at the path.
        Err(source) if matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOSYS)) => {
            Err(Refusal::Uprobe { source })
        }
        _ => Ok(()),
    }
}
