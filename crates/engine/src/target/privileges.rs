//! Programs that run with more privileges than whoever executes them. The kernel withholds these
//! from a process that is traced, unless its tracer has them all (`bprm_creds_from_file` and
//! `LSM_UNSAFE_PTRACE` in the kernel): so such programs are not followed.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sidestep_isa::Va;
use sidestep_sys::{Process, may_trace_privileged};

/// Longest path that is looked at (`PATH_MAX`).
const LONGEST: u64 = 4096;

/// Would a process gain privileges, and lose them to us, by executing what this path in its memory
/// names? What cannot be told is taken to be so.
pub(crate) fn gained(pid: i32, path: Va) -> bool {
    const SET_IDS: u32 = libc::S_ISUID | libc::S_ISGID;
    if may_trace_privileged() {
        return false;
    }
    let Some(path) = Process::look_at(pid).ok().and_then(|process| text(&process, path)) else { return true };
    match fs::metadata(&path) {
        Ok(file) => file.permissions().mode() & SET_IDS != 0 || sidestep_sys::has_capabilities(&path),
        // The process will see the same.
        Err(_) => false,
    }
}

/// The path as we see it. `None`: it is empty, or cannot be read.
fn text(process: &Process, at: Va) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < LONGEST {
        let byte: u64 = u64::from(read_byte(process, Va(at.0 + bytes.len() as u64))?);
        if byte == 0 {
            break;
        }
        bytes.push(byte as u8);
    }
    let path = Path::new(std::ffi::OsStr::from_bytes(&bytes));
    let proc = |name: &str| PathBuf::from(format!("/proc/{}/{name}", process.pid()));
    match path.strip_prefix("/") {
        _ if bytes.is_empty() => None,
        Ok(from_root) => Some(proc("root").join(from_root)),
        Err(_) => Some(proc("cwd").join(path)),
    }
}

fn read_byte(process: &Process, at: Va) -> Option<u8> {
    let mut byte = [0];
    process.read(at, &mut byte).ok()?;
    Some(byte[0])
}
