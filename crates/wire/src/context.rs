//! What a program sees of a hit: its context, on the target's stack.

/// One hit: the registers, and what belongs to them. Helpers that take the context find
/// the rest around it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct HitOf<R> {
    /// Number of the probe in the low 32 bits; [`HitOf::RETURNED`].
    pub probe: u64,
    /// The context.
    pub regs: R,
    /// 8 bytes that a program writes at the entry and finds again at the return of the same call
    /// (the kernel's `bpf_session_cookie`). Programs reach it as the word behind their registers.
    pub cookie: u64,
    /// The lower halves of the first eight vector registers, in which functions get and give
    /// floating-point numbers. Programs reach them as the words behind the cookie.
    pub floats: [u64; 8],
    /// 1: return from the probed function at once, with the result in `regs` (`override_return`).
    pub overridden: u64,
}

impl<R> HitOf<R> {
    /// Bytes of the context that programs may read.
    pub const CONTEXT: usize = size_of::<R>() + 8 + 8 * 8;
    /// Bit of `probe`: the probed function has returned, this is the program of
    /// [`crate::ProbeDesc::exit`].
    pub const RETURNED: u64 = 1 << 32;
    /// Offset of [`HitOf::cookie`] in the context.
    pub const COOKIE: usize = size_of::<R>();
    /// Offset of [`HitOf::floats`] in the context.
    pub const FLOATS: usize = Self::COOKIE + 8;
}
