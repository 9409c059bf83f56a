//! Reads of addresses that may not be mapped: an error, never a signal in the target.
//!
//! While the engine vouches for SIGSEGV and SIGBUS (`wire::Signals::readable`), memory is simply
//! read, and our handler lets a load that failed go on ([`crate::arch::load`]). This holds in
//! children of `vfork` and `posix_spawn`, too: they inherit the handler, and what they do to it is
//! kept from the kernel (`guard`).
//!
//! Otherwise the kernel is asked: `process_vm_readv` on our own process fails with EFAULT. Where a
//! seccomp filter denies it, `rt_sigprocmask` with an invalid `how` tells whether eight bytes can
//! be read: the kernel copies the set in first (EFAULT) and looks at `how` then (EINVAL); see
//! `kernel/signal.c`.

use core::mem::MaybeUninit;
use core::ptr::addr_of;
use core::sync::atomic::Ordering;

use crate::arch::{self, load, nr};
use crate::kernel;
use crate::memory::Agent;

const PAGE: u64 = 4096;
/// Bytes of a string that the kernel is asked for at once. They lie on the stack of the interrupted
/// thread.
const PIECE: u64 = 128;
const EPERM: i64 = -1;
const ENOSYS: i64 = -38;
const EINVAL: i64 = -22;

/// May this address be read directly? NULL and its like are the bad addresses that are met most,
/// and those with the highest bit are the kernel's: its answer is cheaper than a fault.
#[inline(always)]
fn is_direct(agent: Agent, from: u64) -> bool {
    let readable = || agent.private().signals.readable.load(Ordering::Relaxed) == 1;
    // Of two faults at a time on one stack, one handler would overwrite the other.
    let is_shared = || agent.owner().private().signals.shared_stack.load(Ordering::Relaxed) != 0;
    let may_fault = || readable() && !is_shared();
    (PAGE..arch::ADDRESS_END).contains(&from) && may_fault()
}

/// Where a load of a session's agent goes on that has failed at `ip`; `None` = that is no load.
/// Each session has an agent of its own, and only that one knows the addresses.
#[inline(never)]
pub fn after_fault(agent: Agent, ip: u64) -> Option<u64> {
    let next = match agent.private().after_fault {
        0 => return load::after_fault(ip),
        at => {
            // SAFETY: the controller put the address of `agent_after_fault` there. That agent stays
            // mapped as long as the session shares the signals, or has them.
            let ask: extern "C" fn(u64) -> u64 = unsafe { core::mem::transmute(at as *const ()) };
            ask(ip)
        }
    };
    (next != 0).then_some(next)
}

/// Copies `len` bytes; gives how many were copied before the first that cannot be read.
///
/// # Safety
/// `to` is writable for `len` bytes.
pub unsafe fn copy(agent: Agent, from: u64, to: *mut u8, len: u64) -> u64 {
    if is_direct(agent, from) {
        // SAFETY: the caller promises that `to` is writable for `len` bytes. `is_direct` says that
        // our handler gets the faults.
        return unsafe { load::load(to, from, len) };
    }
    if arch::WORD == 4 && Stack::of_thread().has(from, len) {
        // Arguments of 32-bit programs.
        // SAFETY: `has` found that the bytes can be read. The caller promises that `to` is writable
        // for `len` bytes.
        return unsafe { load::load(to, from, len) };
    }
    let mut done = 0;
    while done < len {
        // SAFETY: the caller promises that `to` is writable for `len` bytes, of which `done` are
        // written.
        let got = unsafe { within_page(from.wrapping_add(done), to.add(done as usize), len - done) };
        if got == 0 {
            break;
        }
        done += got;
    }
    done
}

/// Copies a string and its NUL, at most `max` bytes; gives its length without NUL. It ends where it
/// cannot be read any more; `None` = its very first byte cannot. Behind the NUL, `to` stays as it
/// was, however the string is read: programs compare the whole of such memory, and take it for a
/// key.
///
/// # Safety
/// `to` is writable for `max` bytes.
pub unsafe fn copy_str(agent: Agent, from: u64, to: *mut u8, max: u64) -> Option<u64> {
    if is_direct(agent, from) {
        // SAFETY: the caller promises that `to` is writable for `max` bytes. `is_direct` says that
        // our handler gets the faults.
        let len = unsafe { load::load_string(to, from, max) };
        return (len != u64::MAX).then_some(len);
    }
    let mut done = 0;
    let mut piece = MaybeUninit::<[u8; PIECE as usize]>::uninit();
    let piece = piece.as_mut_ptr().cast::<u8>();
    while done < max {
        // SAFETY: `piece` is writable for `PIECE` bytes.
        let got = unsafe { within_page(from.wrapping_add(done), piece, PIECE.min(max - done)) };
        for i in 0..got {
            // SAFETY: the first `got` bytes were just written. The caller promises that `to` is
            // writable for `max` bytes. Volatile: no call of `memcpy`.
            let byte = unsafe {
                let byte = piece.add(i as usize).read_volatile();
                to.add((done + i) as usize).write_volatile(byte);
                byte
            };
            if byte == 0 {
                return Some(done + i);
            }
        }
        if got == 0 {
            return (done != 0).then_some(done);
        }
        done += got;
    }
    Some(done)
}

/// The word of the target at an address, if it can be read.
#[must_use]
pub fn word(agent: Agent, at: u64) -> Option<u64> {
    if arch::WORD == 8 {
        return u64_at(agent, at);
    }
    let mut word = 0u32;
    let to = core::ptr::addr_of_mut!(word);
    // SAFETY: `word` has four bytes.
    (unsafe { copy(agent, at, to.cast(), 4) } == 4).then(|| u64::from(unsafe { to.read_volatile() }))
}

/// What is known of the stack that this thread is on, while it is walked along. In 32-bit programs,
/// where nothing is read directly, the kernel is asked once for a page. Nobody unmaps a stack while
/// somebody is on it.
#[derive(Clone, Copy)]
pub struct Stack {
    /// From the frame of whoever made this up to here everything can be read; none in 64-bit
    /// programs.
    known: [(u64, u64); if arch::WORD == 4 { 1 } else { 0 }],
}

impl Stack {
    /// Pages that are looked at.
    const PAGES: u64 = 16;

    /// That of the caller.
    #[inline(always)]
    #[must_use]
    pub fn of_thread() -> Stack {
        let mut known = [(0, 0); if arch::WORD == 4 { 1 } else { 0 }];
        let here = addr_of!(known) as u64;
        for part in &mut known {
            *part = (here, (here / PAGE + 1) * PAGE);
        }
        Stack { known }
    }

    /// Can these bytes be read, and is that known to be so for as long as this thread is on this
    /// stack?
    fn has(&mut self, at: u64, len: u64) -> bool {
        let Some((start, end)) = self.known.first_mut() else { return false };
        let Some(last) = at.checked_add(len).filter(|last| at >= *start && *last <= *start + Stack::PAGES * PAGE)
        else {
            return false;
        };
        while *end < last {
            if !is_mapped(*end) {
                return false;
            }
            *end += PAGE;
        }
        true
    }

    /// As [`word`], for many words of the stack.
    #[inline(always)]
    #[must_use]
    pub fn word(&mut self, agent: Agent, at: u64) -> Option<u64> {
        if arch::WORD == 8 && is_direct(agent, at) {
            // SAFETY: `is_direct` says that our handler gets the faults.
            return unsafe { load::load_u64(at) };
        }
        if arch::WORD == 4 && self.has(at, 4) {
            // SAFETY: `has` found that the word can be read.
            return Some(unsafe { arch::read_word(at) });
        }
        word(agent, at)
    }
}

/// Eight bytes at an address, if they can be read.
#[must_use]
#[inline(never)]
pub fn u64_at(agent: Agent, at: u64) -> Option<u64> {
    if is_direct(agent, at) {
        // SAFETY: `is_direct` says that our handler gets the faults.
        return unsafe { load::load_u64(at) };
    }
    let last = at.checked_add(7)?;
    let here = addr_of!(last) as u64 / PAGE;
    if at / PAGE == here && last / PAGE == here {
        // SAFETY: all eight bytes are on the page of this function's own frame. Each is read alone,
        // because the destination of a copy of eight bytes could overlap them.
        let byte = |i| unsafe { (at as *const u8).add(i).read_volatile() };
        return Some(u64::from_le_bytes(core::array::from_fn(byte)));
    }
    let mut bytes = [0u8; 8];
    // SAFETY: `bytes` has eight bytes.
    let got = unsafe { copy(agent, at, bytes.as_mut_ptr(), 8) };
    (got == 8).then(|| u64::from_le_bytes(bytes))
}

/// Asks the kernel, whatever the state of our handler: copies up to `len` bytes that lie in one
/// page; gives how many.
///
/// # Safety
/// `to` is writable for `len` bytes.
pub unsafe fn within_page(from: u64, to: *mut u8, len: u64) -> u64 {
    if from >= arch::ADDRESS_END {
        return 0;
    }
    let len = len.min(PAGE - from % PAGE);
    let local = [to as u64 as arch::Word, len as arch::Word];
    let remote = [from as arch::Word, len as arch::Word];
    // SAFETY: both iovecs live through the call, and the kernel checks what they point to. The pid
    // is asked for each time: a stored one could be a vfork parent's, or stale.
    let read = unsafe {
        let pid = kernel::process_id().into();
        arch::syscall(nr::PROCESS_VM_READV, [pid, addr_of!(local) as u64, 1, addr_of!(remote) as u64, 1, 0])
    };
    match read {
        EPERM | ENOSYS if is_mapped(from) => {
            for i in 0..len {
                // SAFETY: the page was readable a moment ago. The caller promises that `to` is
                // writable for `len` bytes.
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
