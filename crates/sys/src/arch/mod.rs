//! What depends on the instruction set: registers, the signal frame, the instructions that a remote
//! call needs.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "arm")]
mod arm;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod processor;
mod regs;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod restart;
mod vdso;
mod vectors;
#[cfg(target_arch = "x86")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod xsave;

#[cfg(target_arch = "aarch64")]
use aarch64 as host;
#[cfg(target_arch = "arm")]
use arm as host;
#[cfg(target_arch = "x86")]
use {std::arch::x86 as cpu, x86 as host};
#[cfg(target_arch = "x86_64")]
use {std::arch::x86_64 as cpu, x86_64 as host};

#[cfg(not(any(target_arch = "aarch64", target_arch = "arm", target_arch = "x86", target_arch = "x86_64")))]
compile_error!("sidestep runs on x86 and on Arm");

use sidestep_isa::Va;

pub use host::{
    ADDRESS_END, BATCH_CODE, CLOCK_GETTIME, FUTEX, GADGET_CODE, ISA, ISAS, LENDING_CALLS, MMAP, MMAP_UNIT, NAME, OTHER,
    RELATIVE, RETURNS_IN_VDSO, SETS_THREAD_POINTER, SIGNAL_CALLS, Word, signal_frames, thread_pointer_readable,
};
pub(crate) use host::{
    AUDIT, ELF, ENTRY_STUB_LEN, FpState, Frame, Gadgets, OTHER_ELF, entry_stub, first_byte, get_user_regs, is_frame,
    set_user_regs, thread_pointer, ticks, ticks_usable,
};
pub(crate) use regs::rseq_abort;
pub use regs::{CALL_LEN, Regs};
pub use vdso::{Caller, caller};
pub use vectors::{Vectors, vectors};

/// System calls that execute another program.
pub const EXEC_CALLS: &[libc::c_long] = &[libc::SYS_execve, libc::SYS_execveat];

/// A word of the target's memory as a number.
#[allow(clippy::useless_conversion)] // not where words are shorter
pub(crate) fn word(word: Word) -> u64 {
    word.into()
}

/// A signal frame on a stack: where it is, and what it will restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalFrame {
    /// Lowest address of the frame, or of the longest kind of frame that this may be.
    pub start: Va,
    /// Address of the saved instruction pointer.
    pub ip_at: Va,
    /// The saved instruction pointer.
    pub ip: Va,
    /// The saved stack pointer.
    pub sp: Va,
    /// Address of the saved register that holds the same address as the instruction pointer, since
    /// a system call has left it there (see [`Regs::is_behind_call`]); `None`: there is no such
    /// register.
    pub call_at: Option<Va>,
    /// Address of the signal mask: at least the first 32 signals.
    pub mask_at: Va,
    /// The first 32 signals of the mask, as the kernel has written them once more. If the word at
    /// `mask_at` differs, the frame is what is left of one that is over, and the word may be
    /// anything; or the handler has changed the mask. Where the kernel writes no copy, it differs
    /// if nothing shows that the handler still runs.
    pub mask_copy: u32,
    /// The saved frame pointer; 0 where nobody needs it.
    pub frame_pointer: Va,
    /// Address of the `siginfo_t` of the signal, if the handler gets one.
    pub info_at: Option<Va>,
    /// A word that the kernel writes in each frame and never reads: the number of an exception, or
    /// `uc_link` where there is no such number. A handler may mark its frame there.
    pub mark: u32,
}
