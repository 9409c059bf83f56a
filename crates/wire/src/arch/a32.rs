//! arm32, in both of its instruction sets.

use core::mem::offset_of;

use crate::header::PATCH_MAX;
use crate::masks::StandIns;
use crate::signals::set_of;

/// The patch of a trap in A32: `udf #16`.
pub const BREAKPOINT: [u8; 4] = [0xf0, 0x01, 0xf0, 0xe7];
/// The patch of a trap in T32: `udf #1`.
pub const BREAKPOINT_T32: [u8; 2] = [0x01, 0xde];

/// Signal handlers return through code of the C library, or through the kernel's page for handlers
/// without a restorer (arch/arm/kernel/signal.c: `setup_return`). Both are left as they are, since
/// unwinders know them: no guard sees a handler end. Programs take their real-time signals from
/// both ends of the range, so these are from the middle.
pub const STAND_INS: Option<StandIns> = Some(StandIns {
    of: [set_of(51), set_of(52), set_of(53), set_of(54), set_of(55)],
    never: set_of(56),
    like: set_of(57),
});

/// What a return trampoline begins with, by which other sessions know it: a jump of A32 over
/// `side`.
pub const TRAMPOLINE_MARK: [u8; 8] = [0x00, 0x00, 0x00, 0xea, b's', b'i', b'd', b'e'];

/// Whether a patch is `b` of A32 (DDI 0406C, A8.8.18, encoding A1).
const fn is_jump_a32(patch: &[u8; PATCH_MAX]) -> bool {
    patch[3] == 0xea
}

/// Whether a patch is `b.w` of T32 (encoding T4). No patch of A32 has these bits.
const fn is_jump_t32(patch: &[u8; PATCH_MAX]) -> bool {
    patch[1] & 0xf8 == 0xf0 && patch[3] & 0xd0 == 0x90
}

/// Bytes of the jump that a patch is, which is `b` or `b.w`; `None`: the patch is no jump.
#[must_use]
pub const fn jump_end(patch: &[u8; PATCH_MAX]) -> Option<usize> {
    if is_jump_a32(patch) || is_jump_t32(patch) { Some(4) } else { None }
}

/// The patch of a trap in the instruction set of another patch.
#[must_use]
pub const fn breakpoint_like(patch: &[u8; PATCH_MAX]) -> &'static [u8] {
    // These are the lower bits of some jumps of A32, too.
    let is_trap_t32 = patch[0] == BREAKPOINT_T32[0] && patch[1] == BREAKPOINT_T32[1] && !is_jump_a32(patch);
    if is_trap_t32 || is_jump_t32(patch) { &BREAKPOINT_T32 } else { &BREAKPOINT }
}

/// A hit.
pub type Hit = crate::context::HitOf<Regs>;

/// The registers at the probed instruction, in the order of the kernel's `struct pt_regs`
/// (`arch/arm/include/uapi/asm/ptrace.h`). Words have 64 bits here, as programs read them; the
/// upper halves are 0. A program's `r1` points here.
///
/// What a program or the agent may change is written back; which words are filled besides the
/// registers that the C ABI lets a callee change and the stack pointer, depends on the program
/// (`Thunk` in `sidestep-plan`).
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Regs {
    /// `r0` to `r15`. `r14` is the link register: at the entry of a function it has the return
    /// address, whose bit 0 says T32. `r15` is the address of the probed instruction, without that
    /// bit; at a return, the real return address.
    pub r: [u64; 16],
    /// The flags: `N`, `Z`, `C`, `V` and `Q` in bits 31 to 27, `GE` in bits 19 to 16. Bit 5 says
    /// T32.
    pub cpsr: u64,
    /// What `r0` was at the start of a system call; of a hit, 2^32 - 1: there is none.
    pub orig_r0: u64,
}

/// Offset of `r0`, `r1` and so on.
const fn r(number: usize) -> usize {
    offset_of!(Regs, r) + 8 * number
}

/// Where [`Regs`] has the general registers, by the numbers that instructions have for them: bytes.
pub const REGISTERS: [usize; 15] = {
    let (mut places, mut number) = ([0; 15], 0);
    while number < 15 {
        places[number] = r(number);
        number += 1;
    }
    places
};
/// Where it has the stack pointer.
pub const STACK_POINTER: usize = r(13);
/// Where it has the frame pointer of A32 code.
pub const FRAME_POINTER: usize = r(11);
/// Where it has the link register, which unwind information says the place of
/// ([`UnwindRule::BX`](crate::UnwindRule::BX)).
pub const FRAME_BASE: usize = r(14);
/// Where it has what functions return, if that is a word.
pub const RESULT: usize = r(0);
/// Where it has the address of the instruction.
pub const INSTRUCTION_POINTER: usize = r(15);
/// Where it has the flags.
pub const FLAGS: usize = offset_of!(Regs, cpsr);
/// Where a hit has what functions return (AAPCS32, 6.4 and 7.1).
pub const RESULTS: [usize; 4] = [r(0), r(1), Hit::FLOATS, Hit::FLOATS + 8];
/// Registers that mean nothing at the entry of a function: the one that is free for code between
/// caller and callee (AAPCS32, 6.1.1).
pub const UNUSED_AT_ENTRY: [usize; 1] = [r(12)];
/// Where Go's code has its goroutine.
pub const GOROUTINE: usize = r(10);
/// Words on the stack at the entry of a function before its first argument there.
pub const WORDS_BEFORE_ARGUMENTS: usize = 0;

/// Bytes of the words that a program may change: the general registers in front of the stack
/// pointer.
pub const CHANGEABLE: usize = STACK_POINTER;

impl Regs {
    /// Address of the probed instruction.
    #[must_use]
    pub const fn ip(&self) -> u64 {
        self.r[15]
    }

    /// The stack pointer.
    #[must_use]
    pub const fn sp(&self) -> u64 {
        self.r[13]
    }

    /// The number of the system call that is about to be made, by the EABI
    /// (arch/arm/kernel/entry-common.S).
    #[must_use]
    pub const fn call_number(&self) -> u64 {
        self.r[7]
    }

    /// Makes it another system call.
    pub fn set_call_number(&mut self, number: u64) {
        self.r[7] = number;
    }

    /// What a function returns, at its return.
    #[must_use]
    pub const fn result(&self) -> u64 {
        self.r[0]
    }

    /// Changes what a function returns.
    pub fn set_result(&mut self, value: u64) {
        self.r[0] = value;
    }

    /// The registers in which functions get integers and pointers, in order (AAPCS32, 6.5).
    pub fn arguments(&mut self) -> [&mut u64; 4] {
        let [a, b, c, d, ..] = &mut self.r;
        [a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(bytes: &[u8]) -> [u8; PATCH_MAX] {
        let mut patch = [0; PATCH_MAX];
        patch[..bytes.len()].copy_from_slice(bytes);
        patch
    }

    #[test]
    fn a_patch_says_its_instruction_set() {
        // b.w forward and backward, near and far; a trap.
        for bytes in [[0x00, 0xf0, 0x00, 0xb8], [0xff, 0xf7, 0xfe, 0xbf], [0xff, 0xf3, 0xff, 0x97]] {
            assert_eq!((jump_end(&patch(&bytes)), breakpoint_like(&patch(&bytes))), (Some(4), &BREAKPOINT_T32[..]));
        }
        assert_eq!(jump_end(&patch(&BREAKPOINT_T32)), None);
        assert_eq!(breakpoint_like(&patch(&BREAKPOINT_T32)), BREAKPOINT_T32);
        // b of all distances whose bits might be those of T32; a trap.
        for low in 0..=u16::MAX {
            let [a, b] = low.to_le_bytes();
            let jump = patch(&[a, b, 0x12, 0xea]);
            assert_eq!((jump_end(&jump), breakpoint_like(&jump)), (Some(4), &BREAKPOINT[..]), "{low:#x}");
        }
        assert_eq!((jump_end(&patch(&BREAKPOINT)), breakpoint_like(&patch(&BREAKPOINT))), (None, &BREAKPOINT[..]));
    }
}
