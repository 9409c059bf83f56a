//! The signal frame that brings a thread back by itself.
//!
//! As on x86-64, before a thread executes a system call for us, its whole state is written to its
//! memory in the form that `rt_sigreturn(2)` reads, and its registers are set to an
//! `int $0x80; ret` whose return address is a call of `rt_sigreturn`:
//!
//! ```text
//!   frame + 0     address of `mov $173,%eax; int $0x80`  ← esp in the call; `ret` pops it
//!   frame + 4     signal, addresses of siginfo and ucontext, siginfo (not read by rt_sigreturn)
//!   frame + 144   struct ucontext: flags, link, stack
//!         + 20      struct sigcontext: registers, pointer to the FP state
//!         + 108     signal mask
//!   frame + 272   FP state: 112 bytes in FSAVE format
//!   frame + 384   the same in XSAVE format, 64-byte aligned, then FP_XSTATE_MAGIC2
//! ```
//!
//! Layouts: arch/x86/include/asm/sigframe.h (`rt_sigframe_ia32`),
//! arch/x86/include/uapi/asm/sigcontext.h (`sigcontext_32`); reading: arch/x86/kernel/signal_32.c,
//! arch/x86/kernel/fpu/signal.c (`fpu__restore_sig`).

use std::io;

use sidestep_isa::Va;

use super::super::{Regs, xsave};
use super::Gadgets;
use crate::process::Process;
use crate::ptrace;

/// Offset of the ucontext.
const UCONTEXT: usize = 144;
/// Offset of the FP state in XSAVE format.
const XSTATE: usize = 384;
/// Length of the FP state in FSAVE format, which lies before it (`struct fregs_state`).
const FSAVE: usize = 112;
/// `NT_PRFPREG` (linux/elf.h): the FSAVE format without its last word.
const NT_PRFPREG: i32 = 2;
/// UC_FP_XSTATE
const UC_FLAGS: u32 = 1;
/// `uc_stack.ss_flags`. There is no such mode, so the kernel leaves the alternate stack as it is
/// (it ignores the error); and no other frame has this word.
const SS_FLAGS: u32 = 0x7fff_fff0;
/// `uc_stack.ss_size`: to be told from others once more.
const SS_SIZE: u32 = 0x5349_4445;

/// The FP state of a thread.
pub struct FpState {
    fsave: Vec<u8>,
    xstate: Vec<u8>,
}

impl FpState {
    /// Of a stopped thread.
    pub fn get(tid: i32) -> io::Result<FpState> {
        let mut fsave = ptrace::get_regset(tid, NT_PRFPREG, FSAVE)?;
        fsave.resize(FSAVE, 0);
        Ok(FpState { fsave, xstate: xsave::get(tid)? })
    }

    /// Bytes of stack that a frame with it takes.
    pub fn frame_len(&self) -> usize {
        XSTATE + xsave::len(&self.xstate)
    }
}

/// The bytes of a frame, to be written to a 64-byte-aligned address.
pub struct Frame(pub Vec<u8>);

impl Frame {
    /// A frame at `at` that restores `regs` (settled by [`Regs::settled`]), the FP state and the
    /// signal mask. The alternate signal stack stays as it is.
    pub fn new(at: Va, regs: &Regs, fp: &FpState, mask: u64, gadgets: Gadgets) -> Frame {
        let r = &regs.raw;
        let words = [
            // ucontext: flags, link, stack {sp, flags, size}
            UC_FLAGS as i32,
            0,
            0,
            SS_FLAGS as i32,
            SS_SIZE as i32,
            // sigcontext
            r.xgs,
            r.xfs,
            r.xes,
            r.xds,
            r.edi,
            r.esi,
            r.ebp,
            r.esp,
            r.ebx,
            r.edx,
            r.ecx,
            r.eax,
            0, // trapno
            0, // err
            r.eip,
            r.xcs,
            r.eflags,
            r.esp,
            r.xss,
            at.0 as i32 + (XSTATE - FSAVE) as i32,
            mask as i32, // oldmask
            0,           // cr2
            mask as i32,
            (mask >> 32) as i32,
        ];
        let mut bytes = (gadgets.sigreturn.0 as u32).to_le_bytes().to_vec();
        bytes.resize(UCONTEXT, 0);
        bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        bytes.resize(XSTATE - FSAVE, 0);
        bytes.extend_from_slice(&fp.fsave);
        bytes.extend_from_slice(&xsave::in_frame(&fp.xstate));
        Frame(bytes)
    }
}

/// Is there a frame of ours at `at`? A controller that died has left it.
pub fn is_frame(process: &Process, at: Va) -> bool {
    let words: Result<[u32; 5], _> = process.read_pod(at.offset(UCONTEXT as i64));
    matches!(words, Ok([UC_FLAGS, 0, 0, SS_FLAGS, SS_SIZE]))
}

#[cfg(test)]
mod tests {
    use super::super::tests::regs;
    use super::*;

    #[test]
    fn the_words_lie_where_the_kernel_reads_them() {
        let mut regs = regs(0x4000, 7, -1);
        regs.raw.esp = 0x7000;
        let fp = FpState { fsave: vec![1; FSAVE], xstate: vec![0; 832] };
        let gadgets = Gadgets { syscall_ret: Va(1), sigreturn: Va(2) };
        let frame = Frame::new(Va(0x10000), &regs, &fp, 0x1_0000_abcd, gadgets).0;
        let word = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), 2);
        // The C library's ucontext_t is the kernel's, with room behind; gregs: gs fs es ds edi esi
        // ebp esp ebx edx ecx eax trapno err eip cs efl uesp ss.
        let gregs = UCONTEXT + std::mem::offset_of!(libc::ucontext_t, uc_mcontext);
        let reg = |n: i32| word(gregs + 4 * n as usize);
        assert_eq!((reg(libc::REG_EIP), reg(libc::REG_ESP), reg(libc::REG_EAX)), (0x4000, 0x7000, 7));
        assert_eq!((reg(libc::REG_CS), reg(libc::REG_SS), reg(libc::REG_GS)), (0x23, 0x2b, 0x63));
        let fpregs = gregs + std::mem::offset_of!(libc::mcontext_t, fpregs);
        assert_eq!(word(fpregs), 0x10000 + (XSTATE - FSAVE) as u32);
        let mask = UCONTEXT + std::mem::offset_of!(libc::ucontext_t, uc_sigmask);
        assert_eq!((word(mask), word(mask + 4)), (0xabcd, 1));
        assert_eq!(frame[XSTATE - FSAVE..XSTATE], [1; FSAVE]);
        assert_eq!(frame.len(), fp.frame_len());
    }
}
