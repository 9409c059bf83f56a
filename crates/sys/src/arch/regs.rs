//! Registers of a stopped thread, as far as all instruction sets have the same to say about them.

use sidestep_isa::Va;

use super::host::{MMAPS, SYSCALL, UserRegs};
use crate::memory::MemoryError;
use crate::process::Process;

/// Bytes of the instruction that makes a system call; of the shortest one, where there are several.
pub const CALL_LEN: i64 = SYSCALL.len() as i64;

/// The registers of a stopped thread.
#[derive(Clone, Copy, Debug)]
pub struct Regs {
    pub(crate) raw: UserRegs,
    pub(super) thread_pointer: u64,
}

impl Regs {
    /// The registers that the kernel gave, of a thread with this thread pointer.
    pub(crate) fn new(raw: UserRegs, thread_pointer: u64) -> Regs {
        Regs { raw, thread_pointer }
    }

    /// Number of the system call that the thread is in or has just finished.
    #[must_use]
    pub fn syscall(&self) -> Option<u64> {
        // Negative as int, like the kernel looks at it (syscall_get_nr).
        (self.kept_number() as i32 >= 0).then_some(self.kept_number())
    }

    /// Thread pointer: where the thread's TLS is. 0 = it has none yet.
    #[must_use]
    pub fn thread_pointer(&self) -> Va {
        Va(self.thread_pointer)
    }
}

/// Registers at the entry of a system call, for following the start of a program.
impl Regs {
    /// A system call that changes mappings.
    pub(crate) fn changes_maps(&self) -> bool {
        self.is_one_of(MMAPS)
            || self.is_one_of(&[libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_brk])
    }

    /// A system call that may make code appear: the third argument of `mmap` and `mprotect` is the
    /// protection.
    pub(crate) fn maps_code(&self) -> bool {
        (self.is_one_of(MMAPS) || self.is_one_of(&[libc::SYS_mprotect]))
            && self.argument3() & libc::PROT_EXEC as u64 != 0
    }

    fn is_one_of(&self, calls: &[libc::c_long]) -> bool {
        self.syscall().is_some_and(|nr| calls.contains(&(nr as libc::c_long)))
    }
}

/// If a thread with these registers stands in a restartable sequence: where its abort handler is,
/// and the address of the word (`rseq_cs`) to be cleared. The kernel would abort the sequence, as
/// the thread has been preempted; it looks at the instruction pointer to know, and does not find it
/// if we let the thread execute something else in between (kernel/rseq.c).
pub fn rseq_abort(process: &Process, area: Va, ip: Va) -> Result<Option<(Va, Va)>, MemoryError> {
    // struct rseq { u32 cpu_id_start, cpu_id; u64 rseq_cs; … }
    let word = area.offset(8);
    let descriptor: u64 = process.read_pod(word)?;
    if descriptor == 0 {
        return Ok(None);
    }
    // struct rseq_cs { u32 version, flags; u64 start_ip, post_commit_offset, abort_ip; }
    let [_, start, len, abort]: [u64; 4] = process.read_pod(Va(descriptor))?;
    Ok((ip.0.wrapping_sub(start) < len).then_some((Va(abort), word)))
}
