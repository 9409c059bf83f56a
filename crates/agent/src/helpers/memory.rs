//! The target's memory, and what is computed: 4, 36, 45, 112 to 115, 182, 256, 260.

use core::ptr::addr_of;

use sidestep_wire::{Histogram, ThreadState, glob};

use super::{EFAULT, here};
use crate::arch::{self, nr};
use crate::{kernel, safe_read};

/// 4, 112, 113: all memory that can be read is the target's own.
pub unsafe extern "C" fn probe_read(to: u64, len: u64, from: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the verifier has proven that `len` bytes can be written at `to`. The sixth argument
    // is the state of this thread.
    unsafe {
        let (agent, _) = here(state);
        if safe_read::copy(agent, from, to as *mut u8, len) == len {
            return 0;
        }
        clear(to, len);
    }
    EFAULT
}

/// 36: the kernel writes, as far as the program itself may write there.
pub unsafe extern "C" fn probe_write_user(to: u64, from: u64, len: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    let [local, remote] = [from, to].map(|at| [at as arch::Word, len as arch::Word]);
    // SAFETY: the verifier has proven that `len` bytes can be read at `from`. Both iovecs live
    // through the call, and the kernel checks what they point to. What a program that may be unsafe
    // does to the target is its own business.
    let written = unsafe {
        let pid = kernel::process_id().into();
        arch::syscall(nr::PROCESS_VM_WRITEV, [pid, addr_of!(local) as u64, 1, addr_of!(remote) as u64, 1, 0])
    };
    if written == len as i64 { 0 } else { EFAULT }
}

/// 45, 114, 115: length with the NUL, which ends also a string that was cut.
pub unsafe extern "C" fn probe_read_str(to: u64, len: u64, from: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    if len == 0 {
        return 0;
    }
    // SAFETY: the verifier has proven that `len` bytes can be written at `to`. The sixth argument
    // is the state of this thread.
    unsafe {
        let (agent, _) = here(state);
        match safe_read::copy_str(agent, from, to as *mut u8, len) {
            Some(text) if text == len => {
                (to as *mut u8).add(len as usize - 1).write_volatile(0);
                len
            }
            // Up to its NUL, or up to where it could not be read any more: the last byte says
            // which.
            Some(text) if safe_read::copy(agent, from.wrapping_add(text), (to + text) as *mut u8, 1) == 1 => text + 1,
            _ => {
                clear(to, len);
                EFAULT
            }
        }
    }
}

/// 182: compares up to `len` bytes.
pub unsafe extern "C" fn strncmp(a: u64, len: u64, b: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    for i in 0..len {
        // SAFETY: the verifier has proven that `len` bytes can be read at `a`, and that the text at
        // `b` ends by a NUL. Nothing is read behind that NUL.
        let (a, b) = unsafe { (((a + i) as *const u8).read_volatile(), ((b + i) as *const u8).read_volatile()) };
        if a != b {
            return (i64::from(a) - i64::from(b)).signum() as u64;
        }
        if a == 0 {
            break;
        }
    }
    0
}

/// 260: both end by a NUL, or where their memory does.
pub unsafe extern "C" fn text_find(text: u64, len: u64, part: u64, part_len: u64, _: u64, _: *mut ThreadState) -> u64 {
    // SAFETY: the verifier has proven that both texts are readable for their lengths.
    let byte = |at: u64, len: u64, index: u64| unsafe { byte(at, len, index) };
    let mut start = 0;
    loop {
        let mut same = 0;
        loop {
            let wanted = byte(part, part_len, same);
            if wanted == 0 {
                return start;
            }
            if byte(text, len, start + same) != wanted {
                break;
            }
            same += 1;
        }
        if byte(text, len, start) == 0 {
            return u64::MAX;
        }
        start += 1;
    }
}

/// 262: both end by a NUL, or where their memory does.
pub unsafe extern "C" fn text_matches(
    text: u64,
    len: u64,
    pattern: u64,
    pattern_len: u64,
    _: u64,
    _: *mut ThreadState,
) -> u64 {
    // SAFETY: the verifier has proven that text and pattern are readable for their lengths.
    let byte = |at: u64, len: u64, index: u64| unsafe { byte(at, len, index) };
    glob::matches(|index| byte(text, len, index), |index| byte(pattern, pattern_len, index)).into()
}

/// A byte of a text; 0 behind its memory.
///
/// # Safety
/// `at` is readable for `len` bytes.
unsafe fn byte(at: u64, len: u64, index: u64) -> u8 {
    match index < len {
        // SAFETY: the caller promises that `len` bytes are readable at `at` (section "Safety"
        // above). The index is below `len`.
        true => unsafe { ((at + index) as *const u8).read_volatile() },
        false => 0,
    }
}

/// 256
pub unsafe extern "C" fn hist_bucket(value: u64, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    Histogram::bucket(value) as u64
}

/// # Safety
/// `at` is writable for `len` bytes.
pub unsafe fn clear(at: u64, len: u64) {
    for i in 0..len {
        // SAFETY: the caller promises that `len` bytes are writable at `at` (section "Safety"
        // above). Volatile, so that this becomes no call of `memset`.
        unsafe { ((at + i) as *mut u8).write_volatile(0) }
    }
}
