//! The signal frame that brings a thread back by itself.
//!
//! Before a thread executes a system call for us, its whole state is written to its memory in the
//! form that `rt_sigreturn(2)` reads, and its registers are set to a `svc #0; ret` with a call of
//! `rt_sigreturn` in the link register. If the controller dies then, the kernel lets the thread
//! run, and it restores itself:
//!
//! ```text
//!   frame + 0     siginfo (not read by rt_sigreturn)       ← sp in the call
//!   frame + 128   struct ucontext
//!         + 168     signal mask
//!         + 304     struct sigcontext: fault address, registers
//!         + 592       records: FPSIMD, SVE if the thread uses it, the end
//! ```
//!
//! Layouts: arch/arm64/include/uapi/asm/{sigcontext,ucontext}.h, arch/arm64/kernel/signal.c.

use std::io;

use sidestep_isa::Va;

use super::super::Regs;
use super::Gadgets;
use crate::process::Process;
use crate::ptrace;

/// Offset of `struct ucontext`: flags, link, alternate stack.
const UCONTEXT: usize = 128;
/// Offset of the signal mask.
const MASK: usize = UCONTEXT + 40;
/// Offset of x0 in `struct sigcontext`.
const X0: usize = UCONTEXT + 176 + 8;
/// Offset of the records.
const RECORDS: usize = UCONTEXT + 176 + 288;
/// `uc_stack.ss_flags` and the padding behind it. There is no such mode, so the kernel leaves the
/// alternate stack as it is (it ignores the error); and no other frame has this word.
const SS_FLAGS: u64 = 0x5349_4445_7fff_fff0;

// include/uapi/linux/elf.h
const NT_PRFPREG: i32 = 2;
const NT_ARM_SVE: i32 = 0x405;
// arch/arm64/include/uapi/asm/sigcontext.h
const FPSIMD_MAGIC: u32 = 0x4650_8001;
const SVE_MAGIC: u32 = 0x5356_4501;
/// Bytes of a record's head, of the last record, and of what all of them are multiples of.
const HEAD: usize = 16;
/// Bytes of 32 vector registers, of which the lower 16 bytes count.
const VECTORS: usize = 512;
/// Most bytes of an image of SVE: vectors of 2048 bits.
const SVE_MAX: usize = 16 * 1024;

/// The vector registers of a thread.
pub struct FpState {
    records: Vec<u8>,
}

impl FpState {
    /// Of a stopped thread.
    pub fn get(tid: i32) -> io::Result<FpState> {
        let fpsimd = ptrace::get_regset(tid, NT_PRFPREG, VECTORS + 16)?;
        let sve = ptrace::get_regset(tid, NT_ARM_SVE, SVE_MAX).ok();
        Ok(FpState { records: [of_fpsimd(&fpsimd), sve.as_deref().and_then(of_sve).unwrap_or_default()].concat() })
    }

    /// Bytes of stack that a frame with it takes.
    pub fn frame_len(&self) -> usize {
        RECORDS + self.records.len() + HEAD
    }
}

/// A head and what belongs to it.
fn record(magic: u32, head: [u8; 8], body: &[u8]) -> Vec<u8> {
    let len = (HEAD + body.len()).next_multiple_of(16);
    let mut bytes = [magic.to_le_bytes(), (len as u32).to_le_bytes()].concat();
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(body);
    bytes.resize(len, 0);
    bytes
}

/// `struct fpsimd_context` of a `struct user_fpsimd_state`: there, FPSR and FPCR come first.
fn of_fpsimd(state: &[u8]) -> Vec<u8> {
    let mut state = state.to_vec();
    state.resize(VECTORS + 8, 0);
    let (vectors, status) = state.split_at(VECTORS);
    record(FPSIMD_MAGIC, status.try_into().unwrap_or_default(), vectors)
}

/// `struct sve_context` of a `struct user_sve_header` with registers behind it, if the thread has
/// any: 32 vectors, 16 predicates and the first-fault register
/// (arch/arm64/include/uapi/asm/ptrace.h).
fn of_sve(state: &[u8]) -> Option<Vec<u8>> {
    /// The registers are those of SVE.
    const REGS_SVE: u16 = 1;
    let half = |at: usize| state.get(at..at + 2).and_then(|b| b.try_into().ok()).map(u16::from_le_bytes);
    let (len, flags) = (half(8)?, half(12)?);
    let quads = usize::from(len / 16);
    let registers = state.get(HEAD..HEAD + quads * (16 * 32 + 2 * 17)).filter(|_| flags & REGS_SVE != 0)?;
    let mut head = [0; 8];
    head[..2].copy_from_slice(&len.to_le_bytes());
    Some(record(SVE_MAGIC, head, registers))
}

/// The bytes of a frame, to be written to a 64-byte-aligned address.
pub struct Frame(pub Vec<u8>);

impl Frame {
    /// A frame at `at` that restores `regs` (settled by [`Regs::settled`]), the vector registers
    /// and the signal mask. The alternate signal stack stays as it is.
    pub fn new(_at: Va, regs: &Regs, fp: &FpState, mask: u64, _: Gadgets) -> Frame {
        let mut bytes = vec![0; RECORDS];
        let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        put(UCONTEXT + 24, SS_FLAGS);
        put(MASK, mask);
        for (index, word) in regs.raw.words.iter().enumerate() {
            put(X0 + 8 * index, *word);
        }
        bytes.extend_from_slice(&fp.records);
        bytes.extend_from_slice(&[0; HEAD]);
        Frame(bytes)
    }
}

/// Is there a frame of ours at `at`? A controller that died has left it.
pub fn is_frame(process: &Process, at: Va) -> bool {
    let words: Result<[u64; 5], _> = process.read_pod(at.offset(UCONTEXT as i64));
    matches!(words, Ok([0, 0, 0, SS_FLAGS, 0]))
}

#[cfg(test)]
mod tests {
    use super::super::{PC, PSTATE, SP};
    use super::*;

    #[test]
    fn the_words_lie_where_the_c_library_says() {
        let context = std::mem::offset_of!(libc::ucontext_t, uc_mcontext);
        assert_eq!(UCONTEXT + context + std::mem::offset_of!(libc::mcontext_t, regs), X0);
        assert_eq!(UCONTEXT + std::mem::offset_of!(libc::ucontext_t, uc_sigmask), MASK);
        assert_eq!((SP, PC, PSTATE), (31, 32, 33));
    }

    #[test]
    fn records_are_multiples_of_16_bytes() {
        let mut state = [0; 16 + 2 * (16 * 32 + 2 * 17) + 16];
        (state[8], state[12]) = (32, 1);
        let sve = of_sve(&state).unwrap();
        assert_eq!((sve.len() % 16, &sve[..8]), (0, &[1, 0x45, 0x56, 0x53, 0x60, 4, 0, 0][..]));
        state[12] = 0;
        assert_eq!(of_sve(&state), None);
        assert_eq!(of_fpsimd(&[0; VECTORS + 16]).len(), 528);
    }
}
