//! The function of the vDSO through which 32-bit x86 programs enter the kernel (`__kernel_vsyscall`
//! in arch/x86/entry/vdso/vdso32/system_call.S): `push %ecx; push %edx; push %ebp`, what the CPU
//! has for the entry, `int $0x80`, where interrupted calls are made again, and
//! `pop %ebp; pop %edx; pop %ecx; ret`.

use sidestep_isa::Va;

use super::{Regs, SignalFrame};
use crate::memory::MemoryError;
use crate::process::Process;

/// The code that has called the function, and the registers that it had then; the others are the
/// same in the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Address of the call.
    pub call: Va,
    /// Stack pointer.
    pub sp: Va,
    /// Frame pointer.
    pub frame_pointer: Va,
}

#[cfg(target_arch = "x86")]
mod here {
    use super::*;

    /// `call *%gs:0x10`
    const TO_VDSO: [u8; 7] = [0x65, 0xff, 0x15, 0x10, 0, 0, 0];
    const BEGIN: [u8; 3] = [0x51, 0x52, 0x55];
    /// From `int $0x80` on.
    const END: [u8; 6] = [0xcd, 0x80, 0x5d, 0x5a, 0x59, 0xc3];
    /// Where that is in the function.
    const INTERRUPT: usize = 7;
    const WORD: i64 = size_of::<u32>() as i64;
    /// Words from the saved instruction pointer to the stack pointer and to the frame pointer
    /// (`struct sigcontext_32` in arch/x86/include/uapi/asm/sigcontext.h).
    const SP: i64 = -7;
    const FRAME_POINTER: i64 = -8;

    /// The caller of the function, if a thread with these registers is in there and has not entered
    /// the kernel.
    #[must_use]
    pub fn caller(process: &Process, ip: Va, sp: Va, frame_pointer: Va) -> Option<Caller> {
        let begin = ip.offset(-(INTERRUPT as i64));
        let code: [u8; 2 * INTERRUPT + END.len()] = process.read_pod(begin).ok()?;
        let is_function = |at: &usize| code[*at..].starts_with(&BEGIN) && code[at + INTERRUPT..].starts_with(&END);
        let offset = INTERRUPT - (0..=INTERRUPT).find(is_function)?;
        let pushed = offset.min(BEGIN.len()) as i64;
        let frame_pointer = if pushed == BEGIN.len() as i64 { Va(process.read_word(sp).ok()?) } else { frame_pointer };
        let back = Va(process.read_word(sp.offset(WORD * pushed)).ok()?);
        call(process, back).map(|call| Caller { call, sp: sp.offset(WORD * (pushed + 1)), frame_pointer })
    }

    /// The call from which a thread has come that stands at the `int $0x80`.
    pub(crate) fn call_of_interrupt(process: &Process, ip: Va, sp: Va) -> Option<Va> {
        if process.read_pod::<[u8; 6]>(ip).ok()? != END {
            return None;
        }
        call(process, Va(process.read_word(sp.offset(WORD * BEGIN.len() as i64)).ok()?))
    }

    /// The call that returns to an address.
    fn call(process: &Process, back: Va) -> Option<Va> {
        let call = back.offset(-(TO_VDSO.len() as i64));
        let code: [u8; 7] = process.read_pod(call).ok()?;
        (code == TO_VDSO).then_some(call)
    }

    impl Regs {
        /// Goes on at `ip` with the registers of the caller.
        pub(crate) fn go_back(&mut self, caller: &Caller, ip: Va) {
            self.set_ip(ip);
            self.raw.esp = caller.sp.0 as i32;
            self.raw.ebp = caller.frame_pointer.0 as i32;
        }
    }

    impl SignalFrame {
        /// What it restores are the registers of the caller, and `ip`.
        pub fn go_back(&self, process: &Process, caller: &Caller, ip: Va) -> Result<(), MemoryError> {
            process.write_word(self.ip_at.offset(WORD * SP), caller.sp.0)?;
            process.write_word(self.ip_at.offset(WORD * FRAME_POINTER), caller.frame_pointer.0)?;
            process.write_word(self.ip_at, ip.0)
        }
    }
}

#[cfg(not(target_arch = "x86"))]
mod here {
    use super::*;

    /// There is no such function.
    #[must_use]
    pub fn caller(_: &Process, _: Va, _: Va, _: Va) -> Option<Caller> {
        None
    }

    impl Regs {
        pub(crate) fn go_back(&mut self, _: &Caller, _: Va) {}
    }

    impl SignalFrame {
        /// There is no such caller.
        pub fn go_back(&self, _: &Process, _: &Caller, _: Va) -> Result<(), MemoryError> {
            Ok(())
        }
    }
}

#[cfg(target_arch = "x86")]
pub(super) use here::call_of_interrupt;
pub use here::caller;
