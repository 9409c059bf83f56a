//! The FP state in a signal frame: the XSAVE format as ptrace gives it, with the words that make
//! the kernel take all of it.
//!
//! Checks: arch/x86/kernel/fpu/signal.c (`check_xstate_in_sigframe`).

use std::io;

use super::cpu::__cpuid_count;
use crate::ptrace;

/// `NT_X86_XSTATE` (linux/elf.h).
const NT_X86_XSTATE: i32 = 0x202;
/// More than any XSAVE image of today (with AMX 11 KiB).
const XSTATE_MAX: usize = 16 * 1024;
/// Legacy region and header of the XSAVE format.
const XSAVE_MIN: usize = 576;
/// Offset of `struct _fpx_sw_bytes` in the legacy region.
const SW_BYTES: usize = 464;
const XSTATE_BV: usize = 512;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
const MAGIC2_LEN: usize = 4;
/// AMX tiles: part of the frame only if the thread has used them, as they need a permission.
const AMX: u64 = 1 << 17 | 1 << 18;

/// The image of a stopped thread.
pub fn get(tid: i32) -> io::Result<Vec<u8>> {
    ptrace::get_regset(tid, NT_X86_XSTATE, XSTATE_MAX)
}

/// Bytes that it takes in a frame.
pub fn len(xstate: &[u8]) -> usize {
    let (_, size) = features(xstate);
    size + MAGIC2_LEN
}

/// The FP state with the words that make the kernel take all of it.
pub fn in_frame(xstate: &[u8]) -> Vec<u8> {
    let (features, size) = features(xstate);
    let mut fp = xstate.to_vec();
    fp.resize(size, 0);
    let extended = (size + MAGIC2_LEN) as u32;
    // struct _fpx_sw_bytes: magic1, extended_size, xfeatures, xstate_size, padding
    let mut sw = Vec::with_capacity(48);
    sw.extend_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    sw.extend_from_slice(&extended.to_le_bytes());
    sw.extend_from_slice(&features.to_le_bytes());
    sw.extend_from_slice(&(size as u32).to_le_bytes());
    sw.resize(48, 0);
    fp.splice(SW_BYTES..SW_BYTES + sw.len(), sw);
    fp.extend_from_slice(&FP_XSTATE_MAGIC2.to_le_bytes());
    fp
}

/// The features that the frame restores, and the length of the XSAVE image that holds them.
fn features(xstate: &[u8]) -> (u64, usize) {
    let word = |at: usize| {
        let bytes = xstate.get(at..at + 8).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    // The kernel puts the features of the OS into the software bytes (arch/x86/include/asm/user.h).
    let enabled = word(SW_BYTES);
    let used = word(XSTATE_BV);
    let features = enabled & !AMX | used;
    let size = (2..63).filter(|i| features >> i & 1 == 1).map(feature_end).fold(XSAVE_MIN, usize::max);
    (features, size.min(xstate.len().max(XSAVE_MIN)))
}

/// End of a feature's area in the standard format: CPUID leaf 0DH (Intel SDM vol. 1, 13.2).
fn feature_end(feature: u32) -> usize {
    #[allow(unsafe_code, unused_unsafe)]
    // SAFETY: every CPU that runs Linux has CPUID; an unknown leaf gives zeros.
    let leaf = unsafe { __cpuid_count(0xd, feature) };
    (leaf.eax + leaf.ebx) as usize
}
