//! The CPU as the oracle: a traced process that runs one instruction from a chosen state, and the
//! state that it leaves.
#![allow(unsafe_code, dead_code)]

pub mod features;
pub mod judge;
#[path = "../random/mod.rs"]
mod random;
pub mod state;

use std::ptr;

use libc::{c_int, c_void, iovec, pid_t, siginfo_t, user_regs_struct};

#[allow(unused_imports)] // not every test binary that has this module asks for features
pub use features::Features;
pub use random::Rng;
use sidestep_isa::Isa;
pub use state::State;

/// Where the process has code. All of it is `int3`, but for the original.
pub const CODE: u64 = 0x1000_0000;
/// Where originals run.
pub const FROM: u64 = CODE + 0x1000;
/// Where copies run.
pub const TO: u64 = 0x5000_0400;
/// Memory for operands.
pub const DATA: u64 = 0x2000_0000;
/// The stack.
pub const STACK: u64 = 0x3000_0000;

pub const CODE_LEN: usize = 0x2000;
const COPY_LEN: usize = 0x1000;
pub const DATA_LEN: usize = 0x4000;
pub const STACK_LEN: usize = 0x2000;
/// Address, length, protection; they follow each other in the shared memory.
const REGIONS: [(u64, usize, c_int); 4] = [
    (CODE, CODE_LEN, libc::PROT_READ | libc::PROT_EXEC),
    (TO & !0xfff, COPY_LEN, libc::PROT_READ | libc::PROT_EXEC),
    (DATA, DATA_LEN, libc::PROT_READ | libc::PROT_WRITE),
    (STACK, STACK_LEN, libc::PROT_READ | libc::PROT_WRITE),
];
const ALL: usize = CODE_LEN + COPY_LEN + DATA_LEN + STACK_LEN;
const NT_X86_XSTATE: usize = 0x202;
/// Request of ptrace (asm/ptrace-abi.h).
const PTRACE_SET_THREAD_AREA: u32 = 26;
/// Selectors of the first two of the segments that a thread can make (asm/segment.h,
/// `GDT_ENTRY_TLS_MIN`).
pub const FS: u64 = 12 << 3 | 3;
pub const GS: u64 = 13 << 3 | 3;
/// An instruction that runs through this many periods of the timer never ends.
const PATIENCE: usize = 4;

/// What a run ended with.
#[derive(Clone)]
pub struct Outcome {
    /// The signal, its code and address. 0 = it did not end.
    pub signal: (c_int, c_int, u64),
    pub regs: user_regs_struct,
    pub xstate: Vec<u8>,
    pub data: Vec<u8>,
    pub stack: Vec<u8>,
}

impl Outcome {
    /// It reached an `int3` that fills the code: the address of that.
    pub fn reached(&self) -> Option<u64> {
        let stop = self.regs.rip.wrapping_sub(1);
        let ours = (CODE..CODE + CODE_LEN as u64).contains(&stop);
        (self.signal.0 == libc::SIGTRAP && self.signal.1 == 0x80 && ours).then_some(stop)
    }
}

/// The process.
pub struct Cpu {
    /// What it runs. 32-bit code runs in the same process, in compatibility mode.
    pub isa: Isa,
    pid: pid_t,
    shared: *mut u8,
    /// The extended state that it started with, for its layout.
    pub blank: Vec<u8>,
}

impl Cpu {
    pub fn new(isa: Isa) -> Cpu {
        // SAFETY: a new file, and a new mapping of it.
        let (fd, shared) = unsafe {
            let fd = libc::memfd_create(c"sidestep-isa".as_ptr(), 0);
            assert_eq!(libc::ftruncate(fd, ALL as i64), 0, "memory");
            (fd, libc::mmap(ptr::null_mut(), ALL, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0))
        };
        assert_ne!(shared, libc::MAP_FAILED, "memory");
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            child(fd);
        }
        // SAFETY: our descriptor.
        unsafe { libc::close(fd) };
        let mut cpu = Cpu { isa, pid, shared: shared.cast(), blank: Vec::new() };
        let status = cpu.wait();
        assert_eq!(libc::WSTOPSIG(status), libc::SIGSTOP, "the child could not prepare itself");
        cpu.ptrace(libc::PTRACE_SETOPTIONS, 0, libc::PTRACE_O_EXITKILL as usize);
        cpu.blank = cpu.xstate();
        cpu.segment(FS, DATA + 0x1000);
        cpu.segment(GS, DATA + 0x1800);
        cpu
    }

    /// Puts an original and its copy into place. The copy goes on behind the original.
    pub fn load(&mut self, original: &[u8], copy: &[u8]) {
        let memory = self.memory();
        memory[..CODE_LEN + COPY_LEN].fill(0xcc);
        let from = (FROM - CODE) as usize;
        memory[from..from + original.len()].copy_from_slice(original);
        let to = CODE_LEN + (TO & 0xfff) as usize;
        memory[to..to + copy.len()].copy_from_slice(copy);
        let end = to + copy.len();
        let distance = (FROM + original.len() as u64).wrapping_sub(TO + copy.len() as u64 + 5) as u32;
        memory[end] = 0xe9;
        memory[end + 1..end + 5].copy_from_slice(&distance.to_le_bytes());
    }

    /// The code with the original.
    pub fn code(&mut self) -> Vec<u8> {
        self.memory()[..CODE_LEN].to_vec()
    }

    /// Runs what is at `at`, from this state.
    pub fn run(&mut self, at: u64, state: &State) -> Outcome {
        let data = CODE_LEN + COPY_LEN;
        let memory = self.memory();
        memory[data..data + DATA_LEN].copy_from_slice(&state.data);
        memory[data + DATA_LEN..].copy_from_slice(&state.stack);
        let mut regs = state.regs;
        regs.rip = at;
        self.ptrace(libc::PTRACE_SETREGS, 0, ptr::addr_of!(regs) as usize);
        let mut vector = iovec { iov_base: state.xstate.as_ptr() as *mut c_void, iov_len: state.xstate.len() };
        self.ptrace(libc::PTRACE_SETREGSET, NT_X86_XSTATE, ptr::addr_of_mut!(vector) as usize);
        let mut signal = (0, 0, 0);
        for _ in 0..PATIENCE {
            self.ptrace(libc::PTRACE_CONT, 0, 0);
            let status = self.wait();
            assert!(libc::WIFSTOPPED(status), "the process ended: {status:#x}");
            if libc::WSTOPSIG(status) != libc::SIGVTALRM {
                signal = self.signal();
                break;
            }
        }
        self.ptrace(libc::PTRACE_GETREGS, 0, ptr::addr_of_mut!(regs) as usize);
        let xstate = self.xstate();
        let memory = self.memory();
        let (data, stack) = memory[data..].split_at(DATA_LEN);
        Outcome { signal, regs, xstate, data: data.to_vec(), stack: stack.to_vec() }
    }

    /// The registers that the kernel gave the process.
    pub fn initial(&self) -> user_regs_struct {
        // SAFETY: plain numbers.
        let mut regs: user_regs_struct = unsafe { std::mem::zeroed() };
        self.ptrace(libc::PTRACE_GETREGS, 0, ptr::addr_of_mut!(regs) as usize);
        regs
    }

    /// Makes a segment of all memory from `base` on, for 32-bit code.
    fn segment(&self, selector: u64, base: u64) {
        let entry = (selector >> 3) as u32;
        // `struct user_desc` (asm/ldt.h): 32-bit, limit in pages, usable.
        let segment = [entry, base as u32, 0xf_ffff, 1 | 1 << 4 | 1 << 6];
        self.ptrace(PTRACE_SET_THREAD_AREA, entry as usize, ptr::addr_of!(segment) as usize);
    }

    fn memory(&mut self) -> &mut [u8] {
        // SAFETY: mapped as long as `self` lives; the process is stopped while it is looked at.
        unsafe { std::slice::from_raw_parts_mut(self.shared, ALL) }
    }

    fn signal(&self) -> (c_int, c_int, u64) {
        // SAFETY: plain numbers.
        let mut info: siginfo_t = unsafe { std::mem::zeroed() };
        self.ptrace(libc::PTRACE_GETSIGINFO, 0, ptr::addr_of_mut!(info) as usize);
        // SAFETY: filled by the kernel for a fault.
        let at = unsafe { info.si_addr() } as u64;
        (info.si_signo, info.si_code, at)
    }

    fn xstate(&self) -> Vec<u8> {
        let mut bytes = vec![0u8; 0x4000];
        let mut vector = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        self.ptrace(libc::PTRACE_GETREGSET, NT_X86_XSTATE, ptr::addr_of_mut!(vector) as usize);
        bytes.truncate(vector.iov_len);
        bytes
    }

    fn wait(&self) -> c_int {
        let mut status = 0;
        // SAFETY: our child.
        let got = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        assert_eq!(got, self.pid, "waitpid");
        status
    }

    fn ptrace(&self, request: u32, addr: usize, data: usize) {
        // SAFETY: `data` is what the request wants, alive for the call.
        let done = unsafe { libc::ptrace(request, self.pid, addr, data) };
        assert_eq!(done, 0, "ptrace {request:#x}: {}", std::io::Error::last_os_error());
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        // SAFETY: our child and our mapping.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, ptr::null_mut(), 0);
            libc::munmap(self.shared.cast(), ALL);
        }
    }
}

/// Maps the regions, starts the timer and stops, for ever.
fn child(fd: c_int) -> ! {
    // SAFETY: system calls on what this process has just been given; addresses that nothing else
    // has.
    unsafe {
        let mut offset = 0;
        for (at, len, protection) in REGIONS {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
            if libc::mmap(at as *mut c_void, len, protection, flags, fd, offset) as u64 != at {
                libc::_exit(1);
            }
            offset += len as i64;
        }
        // Some instructions give the number of the CPU.
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &cpus);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
        let period = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        let timer = libc::itimerval { it_interval: period, it_value: period };
        libc::setitimer(libc::ITIMER_VIRTUAL, &timer, ptr::null_mut());
        libc::raise(libc::SIGSTOP);
        libc::_exit(2)
    }
}
