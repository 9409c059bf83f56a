//! x86-64 and x86-32.

/// First byte of the patch of a trap: `int3`.
pub const BREAKPOINT: u8 = 0xcc;
/// First byte of a jump, behind its prefixes: `jmp rel32`.
pub const JUMP: u8 = 0xe9;
/// Bytes of a jump without prefixes.
pub const JUMP_LEN: u64 = 5;
/// A prefix that a jump ignores: the segment override of `es` (SDM volume 2, 2.1.1).
pub const NO_PREFIX: u8 = 0x26;

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
