//! The state of a thread that ordinary compiled code changes besides general registers, and how it
//! is saved.

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
use super::cpu::{__cpuid, __cpuid_count, _xgetbv};

/// How vector registers, x87 registers and MXCSR are saved (Intel SDM volume 1, chapter 13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vectors {
    /// There are `ymm` registers.
    pub avx: bool,
    /// There are `zmm` registers, and masks of 64 bits.
    pub avx512: bool,
    /// The state components, a bit each as in `XCR0`.
    pub components: u32,
    /// Bytes of the area.
    pub len: u32,
    /// There is `XSAVEC`, and `len` is for its format.
    pub compact: bool,
}

/// What this machine has. There is no native code of programs on other processors than x86.
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
#[must_use]
pub fn vectors() -> Option<Vectors> {
    None
}

/// x87, SSE, AVX and the three of AVX-512. Not: protection keys, which are no register of compiled
/// code, and AMX tiles, whose use needs a permission.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
const COMPONENTS: u32 = 0b1110_0111;
/// The legacy region and the header.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
const HEAD: u32 = 576;

/// What this machine has; `None`: the kernel has not enabled `XSAVE`.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
#[must_use]
#[allow(unsafe_code, unused_unsafe, reason = "cpuid and xgetbv")]
pub fn vectors() -> Option<Vectors> {
    // SAFETY: every CPU that has vectors has CPUID; an unknown leaf gives zeros.
    let (features, leaf) = unsafe { (__cpuid(1), |n| __cpuid_count(0xd, n)) };
    const OSXSAVE: u32 = 1 << 27;
    if features.ecx & OSXSAVE == 0 {
        return None;
    }
    // SAFETY: OSXSAVE says that the instruction is there.
    let enabled = unsafe { _xgetbv(0) } as u32;
    let components = enabled & COMPONENTS;
    let compact = leaf(1).eax & 2 != 0;
    // Where one of the three is, so are the others; what has masks of 16 bits only (Xeon Phi) is no
    // target.
    let (avx, avx512) = (components & 4 != 0, components & 0b1110_0000 != 0);
    let area = |end: u32, component: u32| {
        let leaf = leaf(component);
        match (compact, leaf.ecx & 2 != 0) {
            (true, true) => end.next_multiple_of(64) + leaf.eax,
            (true, false) => end + leaf.eax,
            (false, _) => end.max(leaf.ebx + leaf.eax),
        }
    };
    let len = (2..32).filter(|component| components >> component & 1 == 1).fold(HEAD, area);
    Some(Vectors { avx, avx512, components, len: len.next_multiple_of(64), compact })
}
