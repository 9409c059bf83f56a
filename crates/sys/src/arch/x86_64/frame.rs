//! The signal frame that brings a thread back by itself.
//!
//! Before a thread executes a system call for us, its whole state is written to its memory in the
//! form that `rt_sigreturn(2)` reads, and its registers are set to a `syscall; ret` whose return
//! address is a call of `rt_sigreturn`. If the controller dies then, the kernel lets the thread
//! run, and it restores itself:
//!
//! ```text
//!   frame + 0     address of `mov $15,%eax; syscall`  ← rsp in the call; `ret` pops it
//!   frame + 8     struct ucontext                          ← rsp - 8 + 8 at rt_sigreturn
//!         + 48      struct sigcontext: registers, pointer to the FP state
//!         + 304     signal mask
//!   frame + 312   siginfo (not read by rt_sigreturn)
//!   frame + 512   FP state in XSAVE format, 64-byte aligned, then FP_XSTATE_MAGIC2
//! ```
//!
//! Layouts: arch/x86/include/uapi/asm/{sigcontext,ucontext}.h, arch/x86/include/asm/sigframe.h.

use std::io;

use sidestep_isa::Va;

use super::super::{Regs, xsave};
use super::Gadgets;
use crate::process::Process;

/// Offset of the FP state.
const FPSTATE: usize = 512;
/// UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS
const UC_FLAGS: u64 = 7;
/// `uc_stack.ss_flags` and the padding behind it. There is no such mode, so the kernel leaves the
/// alternate stack as it is (it ignores the error); and no other frame has this word.
const SS_FLAGS: u64 = 0x5349_4445_7fff_fff0;
/// The FP state of a thread.
pub struct FpState {
    xstate: Vec<u8>,
}

impl FpState {
    /// Of a stopped thread.
    pub fn get(tid: i32) -> io::Result<FpState> {
        Ok(FpState { xstate: xsave::get(tid)? })
    }

    /// Bytes of stack that a frame with it takes.
    pub fn frame_len(&self) -> usize {
        FPSTATE + xsave::len(&self.xstate)
    }
}

/// The bytes of a frame, to be written to a 64-byte-aligned address.
pub struct Frame(pub Vec<u8>);

impl Frame {
    /// A frame at `at` that restores `regs` (settled by [`Regs::settled`]), the FP state and the
    /// signal mask. The alternate signal stack stays as it is.
    pub fn new(at: Va, regs: &Regs, fp: &FpState, mask: u64, gadgets: Gadgets) -> Frame {
        let r = &regs.raw;
        let selectors = r.cs & 0xffff | (r.ss & 0xffff) << 48;
        let words = [
            gadgets.sigreturn.0,
            // ucontext: flags, link, stack {sp, flags, size}
            UC_FLAGS,
            0,
            0,
            SS_FLAGS,
            0,
            // sigcontext
            r.r8,
            r.r9,
            r.r10,
            r.r11,
            r.r12,
            r.r13,
            r.r14,
            r.r15,
            r.rdi,
            r.rsi,
            r.rbp,
            r.rbx,
            r.rdx,
            r.rax,
            r.rcx,
            r.rsp,
            r.rip,
            r.eflags,
            selectors,
            0,    // err
            0,    // trapno
            mask, // oldmask
            0,    // cr2
            at.0.wrapping_add(FPSTATE as u64),
            // reserved
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            mask,
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.resize(FPSTATE, 0);
        bytes.extend_from_slice(&xsave::in_frame(&fp.xstate));
        Frame(bytes)
    }
}

/// Is there a frame of ours at `at`? A controller that died has left it.
pub fn is_frame(process: &Process, at: Va) -> bool {
    // Without the first word: `ret` may have popped it, and the page below may not exist.
    let words: Result<[u64; 5], _> = process.read_pod(at.offset(size_of::<u64>() as i64));
    matches!(words, Ok([UC_FLAGS, 0, 0, SS_FLAGS, 0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_lie_where_the_c_library_says() {
        // libc's ucontext_t is the kernel's, with room behind.
        let uc = 8;
        let regs = std::mem::offset_of!(libc::ucontext_t, uc_mcontext) + uc;
        assert_eq!(regs, 48);
        let raw = libc::user_regs_struct {
            r15: 15,
            r14: 14,
            r13: 13,
            r12: 12,
            rbp: 106,
            rbx: 104,
            r11: 11,
            r10: 10,
            r9: 9,
            r8: 8,
            rax: 100,
            rcx: 101,
            rdx: 102,
            rsi: 103,
            rdi: 105,
            orig_rax: 0,
            rip: 107,
            cs: 0x33,
            eflags: 0x202,
            rsp: 108,
            ss: 0x2b,
            fs_base: 0,
            gs_base: 0,
            ds: 0,
            es: 0,
            fs: 0,
            gs: 0,
        };
        let gadgets = Gadgets { syscall_ret: Va(1), sigreturn: Va(2) };
        let frame = Frame::new(Va(0x10000), &Regs::new(raw, 0), &FpState { xstate: vec![0; 832] }, 0xabcd, gadgets).0;
        let word = |at: usize| u64::from_le_bytes(frame[at..at + 8].try_into().unwrap());
        let reg = |n: i32| word(regs + 8 * n as usize);
        assert_eq!(word(0), 2);
        assert_eq!(reg(libc::REG_R8), 8);
        assert_eq!(reg(libc::REG_R15), 15);
        assert_eq!(reg(libc::REG_RAX), 100);
        assert_eq!(reg(libc::REG_RDI), 105);
        assert_eq!(reg(libc::REG_RSP), 108);
        assert_eq!(reg(libc::REG_RIP), 107);
        assert_eq!(reg(libc::REG_CSGSFS), 0x002b_0000_0000_0033);
        let fpregs =
            std::mem::offset_of!(libc::ucontext_t, uc_mcontext) + std::mem::offset_of!(libc::mcontext_t, fpregs) + uc;
        assert_eq!(word(fpregs), 0x10000 + FPSTATE as u64);
        assert_eq!(word(std::mem::offset_of!(libc::ucontext_t, uc_sigmask) + uc), 0xabcd);
        assert_eq!(frame[frame.len() - 4..], 0x4650_5845u32.to_le_bytes());
    }
}
