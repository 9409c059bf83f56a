//! Programs of the kernel.
#![allow(unsafe_code, reason = "bpf(2) takes pointers to code, licence and log")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::call::{Command, ProgLoad, TestRun, bpf, bpf_new, short_name};

/// What the kernel's verifier may say at most, in bytes.
const LOG: usize = 1 << 24;

/// What a program is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramKind {
    /// Runs on a packet: `BPF_PROG_TYPE_SOCKET_FILTER`.
    SocketFilter,
    /// Runs at a probe: `BPF_PROG_TYPE_KPROBE`. Its context is the kernel's `struct pt_regs`.
    Probe,
    /// The same, for [`super::attach_multi`] (Linux 6.6).
    ProbeMulti,
}

/// A program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgramSpec<'a> {
    /// For messages, and for `bpftool prog`, which sees 15 characters of it.
    pub name: &'a str,
    /// What it is for.
    pub kind: ProgramKind,
    /// Little-endian instructions of 8 bytes; maps by descriptor, see [`super::resolve_maps`].
    pub code: &'a [u64],
    /// `GPL` or the like, or some helpers are refused.
    pub license: &'a str,
}

/// Why a program was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The verifier, or the kernel before it, said no.
    #[error("the kernel refuses program '{name}': {source}{}", if log.is_empty() { String::new() } else { format!("\n{log}") })]
    Refused {
        /// Its name.
        name: String,
        /// What the kernel said.
        source: io::Error,
        /// What its verifier said, in lines; empty if it did not come to that.
        log: String,
    },
    /// The licence contains a zero byte.
    #[error("the license of program '{name}' contains a zero byte; end it before that")]
    License {
        /// The program's name.
        name: String,
    },
}

impl LoadError {
    /// The last lines of what the verifier said: the reason.
    #[must_use]
    pub fn reason(&self) -> Vec<&str> {
        let LoadError::Refused { log, .. } = self else { return Vec::new() };
        let lines = log.lines().filter(|line| !line.is_empty() && !line.starts_with("processed "));
        let lines: Vec<&str> = lines.collect();
        lines[lines.len().saturating_sub(3)..].to_vec()
    }
}

/// A loaded program.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    name: String,
}

impl Program {
    /// Loads a program.
    ///
    /// # Errors
    /// What the kernel says, with its verifier's words.
    pub fn load(spec: &ProgramSpec<'_>) -> Result<Program, LoadError> {
        let name = || spec.name.to_owned();
        let license = CString::new(spec.license).map_err(|_| LoadError::License { name: name() })?;
        let mut log = Vec::new();
        // The verifier does not speak the first time: that takes long.
        let fd = load(spec, &license, &mut log).or_else(|source| {
            let mut said = source;
            for len in [1 << 20, LOG] {
                log = vec![0; len];
                match load(spec, &license, &mut log) {
                    Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {}
                    Err(error) => {
                        said = error;
                        break;
                    }
                    Ok(fd) => return Ok(fd),
                }
            }
            Err(said)
        });
        match fd {
            Ok(fd) => Ok(Program { fd, name: name() }),
            Err(source) => {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                Err(LoadError::Refused { name: name(), source, log: String::from_utf8_lossy(&log[..end]).into_owned() })
            }
        }
    }

    /// Whether [`Program::load`] would load it, without the verifier's words, which take long.
    #[must_use]
    pub fn loads(spec: &ProgramSpec<'_>) -> bool {
        CString::new(spec.license).is_ok_and(|license| load(spec, &license, &mut []).is_ok())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs it once on a packet of zeros: what it returns. For [`ProgramKind::SocketFilter`] only.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn run(&self) -> io::Result<u32> {
        let packet = [0u8; 64];
        let mut attr = TestRun {
            program: self.fd.as_raw_fd() as u32,
            data_in_len: packet.len() as u32,
            data_in: packet.as_ptr() as u64,
            ..TestRun::default()
        };
        // SAFETY: the attribute of this command; the packet lives during the call.
        unsafe { bpf(Command::ProgTestRun, &mut attr) }?;
        Ok(attr.result)
    }
}

/// Loads once; the verifier's words go to `log` unless it is empty.
fn load(spec: &ProgramSpec<'_>, license: &CStr, log: &mut [u8]) -> io::Result<OwnedFd> {
    let code = spec.code.iter().map(|slot| slot.to_le()).collect::<Vec<u64>>();
    let (kind, attach_type) = match spec.kind {
        ProgramKind::SocketFilter => (1, 0),
        ProgramKind::Probe => (2, 0),
        ProgramKind::ProbeMulti => (2, super::probe::UPROBE_MULTI),
    };
    let mut attr = ProgLoad {
        kind,
        count: code.len() as u32,
        code: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        name: short_name(spec.name),
        attach_type,
        ..ProgLoad::default()
    };
    if !log.is_empty() {
        (attr.log_level, attr.log_size, attr.log) = (1, log.len() as u32, log.as_mut_ptr() as u64);
    }
    // SAFETY: the attribute of this command; code, licence and log live during the call and have
    // the lengths given.
    unsafe { bpf_new(Command::ProgLoad, &mut attr) }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
