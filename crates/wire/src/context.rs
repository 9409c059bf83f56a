//! What a program sees of a hit: its context, on the target's stack.

use crate::arch::Regs;

/// One hit: [`Regs`], and what belongs to them. Helpers that take the context find the rest around
/// it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Number of the probe in the low 32 bits; [`Hit::RETURNED`].
    pub probe: u64,
    /// The context.
    pub regs: Regs,
    /// 8 bytes that a program writes at the entry and finds again at the return of the same call
    /// (the kernel's `bpf_session_cookie`). Programs reach it as the word behind their registers.
    pub cookie: u64,
    /// The lower halves of `xmm0` to `xmm7`, in which functions get and give numbers with a point.
    /// Programs reach them as the words behind the cookie.
    pub xmm: [u64; 8],
    /// 1: return from the probed function at once, with `regs.rax` (`override_return`).
    pub overridden: u64,
}

impl Hit {
    /// Bytes of the context that programs may read.
    pub const CONTEXT: usize = size_of::<Regs>() + 8 + 8 * 8;
    /// Bit of `probe`: the probed function has returned, this is the program of
    /// [`crate::ProbeDesc::exit`].
    pub const RETURNED: u64 = 1 << 32;
    /// Offset of [`Hit::cookie`] in the context.
    pub const COOKIE: usize = size_of::<Regs>();
    /// Offset of [`Hit::xmm`] in the context.
    pub const XMM: usize = Hit::COOKIE + 8;
}
