//! arm64.

use core::mem::offset_of;

use crate::header::PATCH_MAX;
use crate::masks::StandIns;
use crate::signals::set_of;

/// The patch of a trap: `brk #0x51de`.
pub const BREAKPOINT: [u8; 4] = [0xc0, 0x3b, 0x2a, 0xd4];

/// The vDSO's code that signal handlers return to is left as it is, since unwinders know it: no
/// guard sees a handler end. Programs take their real-time signals from both ends of the range, so
/// these are from the middle.
pub const STAND_INS: Option<StandIns> = Some(StandIns {
    of: [set_of(51), set_of(52), set_of(53), set_of(54), set_of(55)],
    never: set_of(56),
    like: set_of(57),
});

/// What a return trampoline begins with, by which other sessions know it: a jump over `side`.
pub const TRAMPOLINE_MARK: [u8; 8] = [0x02, 0x00, 0x00, 0x14, b's', b'i', b'd', b'e'];

/// Bytes of the jump that a patch is, which is `b`; `None`: the patch is no jump.
#[must_use]
pub const fn jump_end(patch: &[u8; PATCH_MAX]) -> Option<usize> {
    if patch[3] >> 2 == 0b000101 { Some(4) } else { None }
}

/// The patch of a trap in the instruction set of another patch.
#[must_use]
pub const fn breakpoint_like(_: &[u8; PATCH_MAX]) -> &'static [u8] {
    &BREAKPOINT
}

/// A hit.
pub type Hit = crate::context::HitOf<Regs>;

/// The registers at the probed instruction, in the order of the kernel's `struct user_pt_regs`
/// (`arch/arm64/include/uapi/asm/ptrace.h`), so that programs compiled for the kernel find their
/// arguments. A program's `r1` points here.
///
/// What a program or the agent may change is written back; which words are filled besides the
/// registers that the C ABI lets a callee change and the stack pointer, depends on the program
/// (`Thunk` in `sidestep-plan`).
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Regs {
    /// `x0` to `x30`. The last one is the link register: at the entry of a function it has the
    /// return address.
    pub x: [u64; 31],
    /// Stack pointer at the probed instruction.
    pub sp: u64,
    /// Address of the probed instruction; at a return, the real return address.
    pub pc: u64,
    /// The flags: `N`, `Z`, `C` and `V` in bits 31 to 28.
    pub pstate: u64,
}

/// Offset of `x0`, `x1` and so on.
const fn x(number: usize) -> usize {
    offset_of!(Regs, x) + 8 * number
}

/// Where [`Regs`] has the general registers, by the numbers that instructions have for them, and
/// the stack pointer: bytes.
pub const REGISTERS: [usize; 32] = {
    let (mut places, mut number) = ([0; 32], 0);
    while number < 32 {
        places[number] = x(number);
        number += 1;
    }
    places
};
/// Where it has the stack pointer.
pub const STACK_POINTER: usize = offset_of!(Regs, sp);
/// Where it has the frame pointer.
pub const FRAME_POINTER: usize = x(29);
/// Where it has the link register, which unwind information says the place of
/// ([`UnwindRule::BX`](crate::UnwindRule::BX)).
pub const FRAME_BASE: usize = x(30);
/// Where it has what functions return, if that is a word.
pub const RESULT: usize = x(0);
/// Where it has the address of the instruction.
pub const INSTRUCTION_POINTER: usize = offset_of!(Regs, pc);
/// Where it has the flags.
pub const FLAGS: usize = offset_of!(Regs, pstate);
/// Where a hit has what functions return (AAPCS64, 6.9).
pub const RESULTS: [usize; 4] = [x(0), x(1), Hit::FLOATS, Hit::FLOATS + 8];
/// Registers that mean nothing at the entry of a function: those that are free for code between
/// caller and callee, and scratch registers in which callers give nothing (AAPCS64, 6.1.1). `x8`
/// has the address of a large result, `x18` may belong to the platform.
pub const UNUSED_AT_ENTRY: [usize; 9] = [x(9), x(10), x(11), x(12), x(13), x(14), x(15), x(16), x(17)];
/// Where Go's code has its goroutine.
pub const GOROUTINE: usize = x(28);
/// Words on the stack at the entry of a function before its first argument there.
pub const WORDS_BEFORE_ARGUMENTS: usize = 0;

/// Bytes of the words that a program may change: the general registers but the stack pointer.
pub const CHANGEABLE: usize = offset_of!(Regs, sp);

impl Regs {
    /// Address of the probed instruction.
    #[must_use]
    pub const fn ip(&self) -> u64 {
        self.pc
    }

    /// The stack pointer.
    #[must_use]
    pub const fn sp(&self) -> u64 {
        self.sp
    }

    /// The number of the system call that is about to be made.
    #[must_use]
    pub const fn call_number(&self) -> u64 {
        self.x[8]
    }

    /// Makes it another system call.
    pub fn set_call_number(&mut self, number: u64) {
        self.x[8] = number;
    }

    /// What a function returns, at its return.
    #[must_use]
    pub const fn result(&self) -> u64 {
        self.x[0]
    }

    /// Changes what a function returns.
    pub fn set_result(&mut self, value: u64) {
        self.x[0] = value;
    }

    /// The registers in which functions get integers and pointers, in order (AAPCS64, 6.8.2).
    pub fn arguments(&mut self) -> [&mut u64; 8] {
        let [a, b, c, d, e, f, g, h, ..] = &mut self.x;
        [a, b, c, d, e, f, g, h]
    }
}
