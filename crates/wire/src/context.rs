//! What a program sees of a hit: its context, on the target's stack.

/// The registers at the probed instruction, in the order of the kernel's `struct pt_regs` on x86-64
/// (`arch/x86/include/uapi/asm/ptrace.h`), so that programs compiled for the kernel find their
/// arguments. A program's `r1` points here.
///
/// What a program or the agent may change is written back; which words are filled besides the
/// registers that the C ABI lets a callee change, `rbx` and `rsp`, depends on the program (`Thunk`
/// in `sidestep-plan`).
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the machine's names
pub struct Regs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    /// Address of the probed instruction; at a return, the real return address.
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    /// Stack pointer at the probed instruction. At a function entry the return address is at
    /// `[rsp]`; in the return trampoline `rsp - 8` is the slot that held the trampoline's address.
    pub rsp: u64,
    pub ss: u64,
}

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
