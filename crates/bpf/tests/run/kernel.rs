//! The kernel's own eBPF: `BPF_PROG_LOAD` and `BPF_PROG_TEST_RUN`, as root.
//!
//! Numbers and layouts: `include/uapi/linux/bpf.h`.

use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use sidestep_bpf::{Imm64, Insn, Program};

use super::Buffer;

const MAP_CREATE: i32 = 0;
const MAP_LOOKUP_ELEM: i32 = 1;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const PROG_TEST_RUN: i32 = 10;
const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;

/// A map with one entry, which is the buffer.
pub struct Kernel {
    map: OwnedFd,
}

fn bpf<T>(command: i32, attr: &mut T) -> Result<i32, Error> {
    // SAFETY: an attribute of this command, with pointers that live during the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr as *mut T, size_of::<T>()) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result as i32) }
}

#[repr(C)]
struct Element {
    map: u64,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
}

#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    result: u32,
    data_in_len: u32,
    data_out_len: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

impl Kernel {
    /// None, and a line that says so, where the machine does not let us load programs.
    pub fn new() -> Option<Kernel> {
        let mut attr = [MAP_TYPE_ARRAY, 4, size_of::<Buffer>() as u32, 1];
        match bpf(MAP_CREATE, &mut attr) {
            // SAFETY: a new descriptor that nobody else has.
            Ok(fd) => Some(Kernel { map: unsafe { OwnedFd::from_raw_fd(fd) } }),
            Err(error) => {
                // Not println: this must be seen although the test passes.
                let line =
                    format!("NOT COMPARED with the kernel's eBPF, run as root to do so: bpf(MAP_CREATE): {error}\n");
                // SAFETY: writes that line.
                unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
                None
            }
        }
    }

    fn element(&self, command: i32, buffer: &mut Buffer) {
        let key = 0u32;
        let (map, key) = (self.map.as_raw_fd() as u64, &raw const key as u64);
        bpf(command, &mut Element { map, key, value: buffer.as_mut_ptr() as u64, flags: 0 }).unwrap();
    }

    /// Runs a program with references to the buffer; changes the buffer as it does, and gives the lower half of `r0`.
    ///
    /// # Errors
    /// What the kernel's verifier says.
    pub fn run(&self, program: &Program, buffer: &mut Buffer) -> Result<u32, String> {
        self.element(MAP_UPDATE_ELEM, buffer);
        let mut program = program.clone();
        let fd = self.map.as_raw_fd() as u32;
        for (at, insn) in program.clone().iter().map(Result::unwrap) {
            if let Insn::LoadImm64 { dst, imm: Imm64::MapFdValue { offset, .. } } = insn {
                program.slots[at] = Insn::LoadImm64 { dst, imm: Imm64::MapFdValue { map: fd, offset } }.encode().0;
            }
        }
        let mut log = vec![0u8; 1 << 20];
        let mut load = Load {
            kind: PROG_TYPE_SOCKET_FILTER,
            count: program.slots.len() as u32,
            insns: program.slots.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            ..Load::default()
        };
        let loaded = bpf(PROG_LOAD, &mut load).or_else(|_| {
            (load.log_level, load.log_size, load.log) = (1, log.len() as u32, log.as_mut_ptr() as u64);
            bpf(PROG_LOAD, &mut load)
        });
        let fd = loaded.map_err(|error| {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            format!("{error}: {}", String::from_utf8_lossy(&log[..end]))
        })?;
        // SAFETY: a new descriptor that nobody else has.
        let loaded = unsafe { OwnedFd::from_raw_fd(fd) };
        let packet = [0u8; 64];
        let mut run = TestRun {
            program: loaded.as_raw_fd() as u32,
            data_in_len: packet.len() as u32,
            data_in: packet.as_ptr() as u64,
            ..TestRun::default()
        };
        bpf(PROG_TEST_RUN, &mut run).unwrap();
        self.element(MAP_LOOKUP_ELEM, buffer);
        Ok(run.result)
    }
}
