//! Handlers that are functions of the target: what is around a call of ordinary compiled code.
//!
//! ```text
//!   high   return into the thunk or the agent
//!          rbp, rbx
//!   low    extended state (vectors, x87, MXCSR) in XSAVE format, 64-aligned
//! ```

use std::mem::offset_of;

use sidestep_isa::x86::emit::{Asm, Cond, Reg};
use sidestep_wire::{Hit, Regs};

use super::Context;

/// A function of the target: `void function(context, data)` of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Native {
    /// Its address.
    pub function: u64,
    /// Its second argument.
    pub data: u64,
    /// What is saved around it; `None`: it uses general registers only.
    pub vectors: Option<Vectors>,
    /// It may change the instruction pointer.
    pub redirects: bool,
}

/// How the state that a thunk does not save is saved (Intel SDM volume 1, chapter 13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vectors {
    /// The state components, a bit each as in `XCR0`. Those that are not in use cost little.
    pub components: u32,
    /// Bytes of the area.
    pub len: u32,
    /// There is `XSAVEC`, and `len` is for its format.
    pub compact: bool,
}

/// Offset and length of the header of an XSAVE area.
const HEADER: i32 = 512;
const HEADER_LEN: i32 = 64;
/// The direction flag, in the second byte of the flags.
const DIRECTION: u8 = 0x04;

impl Context {
    /// All that a handler in the target sees: all words, and the one behind them.
    pub const NATIVE: Context = Context(Context::ALL.0 | 1 << (Hit::COOKIE / 8));

    /// What such a handler may change: the general registers but `rsp`, and the instruction pointer if it `redirects`.
    #[must_use]
    pub fn native_changes(redirects: bool) -> Context {
        let ip = 1 << (offset_of!(Regs, rip) / 8);
        Context((ip - 1) | if redirects { ip } else { 0 })
    }
}

/// Code that calls a function: itself a function of the context in `rdi`, with the result 0.
pub fn call(asm: &mut Asm, native: &Native) {
    asm.push(Reg::Rbp);
    asm.mov(Reg::Rbp, Reg::Rsp);
    asm.push(Reg::Rbx);
    asm.mov(Reg::Rbx, Reg::Rdi);
    asm.raw(&[0xfc]); // cld, as the ABI has it
    match native.vectors {
        Some(vectors) => {
            asm.lea(Reg::Rsp, Reg::Rsp, -(vectors.len as i32));
            asm.and_imm8(Reg::Rsp, -64);
            for at in (HEADER..HEADER + HEADER_LEN).step_by(8) {
                asm.store_imm(Reg::Rsp, at, 0);
            }
            components(asm, vectors);
            asm.raw(if vectors.compact { &[0x48, 0x0f, 0xc7, 0x24, 0x24] } else { &[0x48, 0x0f, 0xae, 0x24, 0x24] });
        }
        None => asm.and_imm8(Reg::Rsp, -16),
    }
    asm.mov(Reg::Rdi, Reg::Rbx);
    asm.mov_imm64(Reg::Rsi, native.data);
    super::call(asm, sidestep_isa::Va(native.function));
    if let Some(vectors) = native.vectors {
        components(asm, vectors);
        asm.raw(&[0x48, 0x0f, 0xae, 0x2c, 0x24]); // xrstor64 (%rsp)
    }
    let up = asm.label();
    asm.load(Reg::Rax, Reg::Rbx, offset_of!(Regs, eflags) as i32);
    asm.raw(&[0xf6, 0xc4, DIRECTION]); // test $4,%ah
    asm.jcc(Cond::E, up);
    asm.raw(&[0xfd]); // std
    asm.bind(up);
    asm.lea(Reg::Rsp, Reg::Rbp, -8);
    asm.pop(Reg::Rbx);
    asm.pop(Reg::Rbp);
    leave(asm);
}

/// Code that lets the thread go on at the start of another function, whatever the probed one would have done. As [`call`].
pub fn replace(asm: &mut Asm, function: u64) {
    asm.mov_imm64(Reg::Rax, function);
    asm.store(Reg::Rdi, offset_of!(Regs, rip) as i32, Reg::Rax);
    leave(asm);
}

/// `edx:eax` = which components.
fn components(asm: &mut Asm, vectors: Vectors) {
    asm.raw(&[0xb8]);
    asm.raw(&vectors.components.to_le_bytes());
    asm.raw(&[0x31, 0xd2]); // xor %edx,%edx
}

fn leave(asm: &mut Asm) {
    asm.raw(&[0x31, 0xc0]); // xor %eax,%eax
    asm.ret();
}
