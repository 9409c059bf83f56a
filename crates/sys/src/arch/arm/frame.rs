//! The signal frame that brings a thread back by itself.
//!
//! Before a thread executes a system call for us, its whole state is written to its memory in the
//! form that `rt_sigreturn(2)` reads, and its registers are set to a `svc #0; bx lr` with a call of
//! `rt_sigreturn` in the link register. If the controller dies then, the kernel lets the thread
//! run, and it restores itself:
//!
//! ```text
//!   frame + 0     siginfo (not read by rt_sigreturn)       ← sp in the call
//!   frame + 128   struct ucontext: flags, link, alternate stack
//!         + 20      struct sigcontext: trap, error, mask, r0 to r15, cpsr, fault address
//!         + 104     signal mask
//!         + 232     records: VFP, the end
//!   frame + 872   code for programs that execute their stack (not read)
//! ```
//!
//! Layouts: arch/arm/include/uapi/asm/sigcontext.h, arch/arm/include/asm/ucontext.h,
//! arch/arm/kernel/signal.h; reading: `restore_sigframe` in arch/arm/kernel/signal.c. A record of
//! iWMMXt in front of that of VFP may be left out where the thread does not use iWMMXt.

use std::io;

use sidestep_isa::Va;

use super::super::Regs;
use super::{Gadgets, USER_WORDS};
use crate::process::Process;
use crate::ptrace;

/// Offset of `struct ucontext`: flags, link, alternate stack.
const UCONTEXT: usize = 128;
/// Offset of r0 in `struct sigcontext`.
const R0: usize = UCONTEXT + 20 + 12;
/// Offset of the signal mask.
const MASK: usize = UCONTEXT + 104;
/// Offset of the records.
const RECORDS: usize = UCONTEXT + 232;
/// Bytes of `struct rt_sigframe`.
const LEN: usize = UCONTEXT + 744 + 16;
/// `uc_stack.ss_flags`. There is no such mode, so the kernel leaves the alternate stack as it is
/// (it ignores the error); and no other frame has this word.
const SS_FLAGS: u32 = 0x7fff_fff0;
/// `uc_stack.ss_size`: to be told from others once more.
const SS_SIZE: u32 = 0x5349_4445;

/// `NT_ARM_VFP` (include/uapi/linux/elf.h): `struct user_vfp`, d0 to d31 and FPSCR.
const NT_ARM_VFP: i32 = 0x400;
const VFP: usize = 32 * 8 + 4;
/// `struct vfp_sigframe`: a head, `struct user_vfp` with padding, `struct user_vfp_exc`; padding.
const VFP_MAGIC: u32 = 0x5646_5001;
const VFP_RECORD: usize = 288;
const HEAD: usize = 8;
/// `FPEXC.EN`: the unit is on. Of that register the kernel takes nothing else but an exception of
/// units that are older than ARMv7 (`vfp_restore_user_hwstate` in arch/arm/vfp/vfpmodule.c).
const FPEXC_EN: u32 = 1 << 30;
const FPEXC: usize = HEAD + (VFP + 4);

/// The vector registers of a thread.
pub struct FpState {
    vfp: Vec<u8>,
}

impl FpState {
    /// Of a stopped thread.
    pub fn get(tid: i32) -> io::Result<FpState> {
        let mut vfp = ptrace::get_regset(tid, NT_ARM_VFP, VFP)?;
        vfp.resize(VFP, 0);
        Ok(FpState { vfp })
    }

    /// Bytes of stack that a frame with it takes.
    pub fn frame_len(&self) -> usize {
        LEN
    }
}

/// The bytes of a frame, to be written to a 64-byte-aligned address.
pub struct Frame(pub Vec<u8>);

impl Frame {
    /// A frame at `at` that restores `regs` (settled by [`Regs::settled`]), the vector registers
    /// and the signal mask. The alternate signal stack stays as it is.
    pub fn new(_at: Va, regs: &Regs, fp: &FpState, mask: u64, _: Gadgets) -> Frame {
        let mut bytes = vec![0; LEN];
        let mut put = |at: usize, more: &[u8]| bytes[at..at + more.len()].copy_from_slice(more);
        put(UCONTEXT + 12, &SS_FLAGS.to_le_bytes());
        put(UCONTEXT + 16, &SS_SIZE.to_le_bytes());
        for (index, word) in regs.raw.words[..USER_WORDS].iter().enumerate() {
            put(R0 + 4 * index, &word.to_le_bytes());
        }
        put(MASK, &mask.to_le_bytes());
        put(RECORDS, &VFP_MAGIC.to_le_bytes());
        put(RECORDS + 4, &(VFP_RECORD as u32).to_le_bytes());
        put(RECORDS + HEAD, &fp.vfp);
        put(RECORDS + FPEXC, &FPEXC_EN.to_le_bytes());
        Frame(bytes)
    }
}

/// Is there a frame of ours at `at`? A controller that died has left it.
pub fn is_frame(process: &Process, at: Va) -> bool {
    let words: Result<[u32; 5], _> = process.read_pod(at.offset(UCONTEXT as i64));
    matches!(words, Ok([0, 0, 0, SS_FLAGS, SS_SIZE]))
}

#[cfg(test)]
mod tests {
    use super::super::tests::regs;
    use super::*;

    #[test]
    fn the_words_lie_where_the_c_library_says() {
        let context = UCONTEXT + std::mem::offset_of!(libc::ucontext_t, uc_mcontext);
        assert_eq!(context + std::mem::offset_of!(libc::mcontext_t, arm_r0), R0);
        assert_eq!(context + std::mem::offset_of!(libc::mcontext_t, arm_cpsr), R0 + 4 * (USER_WORDS - 1));
        assert_eq!(UCONTEXT + std::mem::offset_of!(libc::ucontext_t, uc_sigmask), MASK);
        assert_eq!(UCONTEXT + std::mem::offset_of!(libc::ucontext_t, uc_regspace), RECORDS);
    }

    #[test]
    fn a_frame_has_the_registers_and_the_record_of_vfp() {
        let mut regs = regs(0x4000, false);
        regs.raw.words[13] = 0x7000;
        let fp = FpState { vfp: vec![7; VFP] };
        let frame = Frame::new(Va(0x10000), &regs, &fp, 0x1_0000_abcd, Gadgets::of_code_at(Va(0))).0;
        let word = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
        assert_eq!((word(R0 + 4 * 13), word(R0 + 4 * 15), word(R0 + 4 * 16)), (0x7000, 0x4000, 0x10));
        assert_eq!((word(MASK), word(MASK + 4)), (0xabcd, 1));
        let record = &frame[RECORDS..RECORDS + VFP_RECORD];
        assert_eq!(record[..HEAD], [1, 0x50, 0x46, 0x56, 0x20, 1, 0, 0]);
        assert_eq!((record[HEAD], record[HEAD + VFP - 1], record[HEAD + VFP]), (7, 7, 0));
        assert_eq!(record[FPEXC..], [[0, 0, 0, 0x40], [0; 4], [0; 4], [0; 4]].concat());
        // The end of the records.
        assert_eq!(word(RECORDS + VFP_RECORD), 0);
        assert_eq!(frame.len(), fp.frame_len());
    }
}
