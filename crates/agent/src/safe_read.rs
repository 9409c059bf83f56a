//! Reads of addresses that may not be mapped.
//!
//! `process_vm_readv` on our own process fails with EFAULT instead of a signal. Where a seccomp filter denies it,
//! `rt_sigprocmask` with an invalid `how` tells whether eight bytes can be read: the kernel copies the set in first
//! (EFAULT) and looks at `how` then (EINVAL); see `kernel/signal.c`.

use core::ptr::addr_of;

use crate::arch::{self, nr};

const PAGE: u64 = 4096;
const EPERM: i64 = -1;
const ENOSYS: i64 = -38;
const EINVAL: i64 = -22;

/// Copies up to `len` bytes that lie in one page; returns how many were copied.
///
/// # Safety
/// `to` is writable for `len` bytes.
pub unsafe fn within_page(from: u64, to: *mut u8, len: u64) -> u64 {
    let len = len.min(PAGE - from % PAGE);
    let local = [to as u64, len];
    let remote = [from, len];
    // SAFETY: both iovecs live through the call, and the kernel checks what they point to. The pid is asked for each
    // time: a stored one could be a vfork parent's, or stale.
    let read = unsafe {
        let pid = arch::syscall(nr::GETPID, [0; 6]) as u64;
        arch::syscall(nr::PROCESS_VM_READV, [pid, addr_of!(local) as u64, 1, addr_of!(remote) as u64, 1, 0])
    };
    match read {
        EPERM | ENOSYS if is_mapped(from) => {
            for i in 0..len {
                // SAFETY: the page was readable a moment ago; `to` is the caller's.
                unsafe { to.add(i as usize).write_volatile(((from + i) as *const u8).read_volatile()) }
            }
            len
        }
        read => read.max(0) as u64,
    }
}

fn is_mapped(at: u64) -> bool {
    const INVALID_HOW: u64 = 0x7fff_ffff;
    // SAFETY: reads eight aligned bytes, changes nothing because `how` is invalid.
    (unsafe { arch::syscall(nr::RT_SIGPROCMASK, [INVALID_HOW, at & !7, 0, 8, 0, 0]) }) == EINVAL
}

/// The word at an address, if it can be read. `near` is an address that is known to be mapped: its page needs no
/// system call.
#[must_use]
pub fn word(at: u64, near: u64) -> Option<u64> {
    let last = at.checked_add(7)?;
    if at / PAGE == near / PAGE && last / PAGE == near / PAGE {
        // SAFETY: lies within the page of `near`.
        return Some(unsafe { (at as *const u64).read_unaligned() });
    }
    let mut bytes = [0u8; 8];
    let first = PAGE - at % PAGE;
    // SAFETY: eight bytes in two parts at most, `first` < 8 where there are two.
    let whole = unsafe {
        let to = bytes.as_mut_ptr();
        if first >= 8 {
            within_page(at, to, 8) == 8
        } else {
            within_page(at, to, first) == first
                && within_page(at + first, to.add(first as usize), 8 - first) == 8 - first
        }
    };
    whole.then(|| u64::from_le_bytes(bytes))
}

/// Some mapped address: this thread's stack.
#[inline(always)]
#[must_use]
pub fn here() -> u64 {
    let local = 0u8;
    addr_of!(local) as u64
}
