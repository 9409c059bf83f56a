//! Handlers that are functions of the target: what is around a call of ordinary compiled code.
//!
//! ```text
//!   high   context                  in 32-bit code, where arguments are on the stack
//!          return into the thunk or the agent
//!          rbp, rbx
//!          extended state (vectors, x87, MXCSR) in XSAVE format, 64-aligned
//!   low    context, data            in 32-bit code
//! ```

use std::mem::offset_of;

use sidestep_isa::x86::emit::{Asm, Cond, Reg};
use sidestep_isa::{Isa, Va};
use sidestep_wire::arch::x86::Regs;

use crate::codegen::{a32, a64};

/// A function of the target: `void function(context, data)` of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Native {
    /// Its address.
    pub function: u64,
    /// Its second argument.
    pub data: u64,
    /// What is saved around it; `None`: it uses general registers only. On arm64, q0 to q31; on
    /// arm32, d0 to d31 or to d15.
    pub vectors: Option<Vectors>,
    /// It may change the instruction pointer.
    pub redirects: bool,
}

/// How the state that a thunk does not save is saved: vectors, x87 registers and MXCSR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vectors {
    /// What there is besides `xmm0` to `xmm15`.
    pub wide: Wide,
    /// State components as in `XCR0`, a bit each (Intel SDM volume 1, chapter 13).
    pub components: u32,
    /// Bytes of their XSAVE area; on arm32, of the registers d0 and following.
    pub len: u32,
    /// There is `XSAVEC`, and `len` is for its format.
    pub compact: bool,
}

/// Vector registers beside `xmm0` to `xmm15`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wide {
    /// None.
    No,
    /// Their upper halves, `ymm`.
    Avx,
    /// `zmm0` to `zmm31`, and the masks `k0` to `k7`.
    Avx512,
}

/// What is done about it, by where a handler runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Around {
    /// At the entry or return of a function: vectors, masks and MXCSR, one by one. The x87 stack is
    /// as the ABI has it: compiled code leaves it as it was. (5 ns for 16 `ymm` registers, where
    /// `XSAVEC` and `XRSTOR` take 200 to 300 ns on Zen 5.)
    Call,
    /// Anywhere: all components.
    Anything,
}

/// Offset and length of the header of an XSAVE area.
const HEADER: i32 = 512;
const HEADER_LEN: i32 = 64;
/// Room for the arguments in 32-bit code, a multiple of 16.
const ARGUMENTS_32: i32 = 16;
/// The direction flag, in the second byte of the flags.
const DIRECTION: u8 = 0x04;

/// Code that calls a function, for `at`: first for entries and returns, and for any other place,
/// which may be the same. Gives the address of the second, too, which is a multiple of `align` as
/// `at` is.
#[must_use]
pub fn functions(isa: Isa, at: Va, native: &Native, align: usize) -> (Vec<u8>, Va) {
    match isa {
        Isa::X86 | Isa::X64 => of_x86(isa, at, native, align),
        Isa::A64 => (a64::thunk::native::function(at, native), at),
        Isa::A32 | Isa::T32 => (a32::thunk::native::function(at, native), at),
        #[cfg(feature = "toy")]
        Isa::Toy => (Vec::new(), at),
    }
}

fn of_x86(isa: Isa, at: Va, native: &Native, align: usize) -> (Vec<u8>, Va) {
    let mut asm = Asm::of(isa, at);
    // In 32-bit code functions give numbers with a point on the x87 stack, so their returns are any
    // place.
    let apart = native.vectors.is_some() && isa == Isa::X64;
    call(&mut asm, isa, native, if apart { Around::Call } else { Around::Anything });
    let mut inside = at;
    if apart {
        asm.align(align);
        inside = asm.here();
        call(&mut asm, isa, native, Around::Anything);
    }
    (asm.finish(), inside)
}

/// Code that calls a function: itself a function of the context, which is in `rdi` or on the stack,
/// with the result 0.
fn call(asm: &mut Asm, isa: Isa, native: &Native, around: Around) {
    let word = isa.word() as i32;
    asm.push(Reg::Rbp);
    asm.mov(Reg::Rbp, Reg::Rsp);
    asm.push(Reg::Rbx);
    match isa {
        Isa::X86 => asm.load(Reg::Rbx, Reg::Rbp, 2 * word),
        _ => asm.mov(Reg::Rbx, Reg::Rdi),
    }
    if_backwards(asm, 0xfc); // cld, as the ABI has it
    if let Some(vectors) = native.vectors {
        let len = match around {
            Around::Call => vectors.wide.len(),
            Around::Anything => vectors.len as i32,
        };
        asm.lea(Reg::Rsp, Reg::Rsp, -len);
    }
    asm.and_imm8(Reg::Rsp, -64);
    match (native.vectors, around) {
        (Some(vectors), Around::Call) => vectors.wide.each(asm, true),
        (Some(vectors), Around::Anything) => {
            for at in (HEADER..HEADER + HEADER_LEN).step_by(word as usize) {
                asm.store_imm(Reg::Rsp, at, 0);
            }
            components(asm, vectors);
            wide_operand(asm, isa);
            asm.raw(if vectors.compact { &[0x0f, 0xc7, 0x24, 0x24] } else { &[0x0f, 0xae, 0x24, 0x24] });
            asm.raw(&[0xdb, 0xe3]); // fninit: the x87 stack may be full
        }
        (None, _) => {}
    }
    match isa {
        Isa::X86 => {
            asm.lea(Reg::Rsp, Reg::Rsp, -ARGUMENTS_32);
            asm.store(Reg::Rsp, 0, Reg::Rbx);
            asm.store_imm(Reg::Rsp, word, native.data as i32);
            asm.mov_imm32(Reg::Rax, native.function as u32);
            asm.call_reg(Reg::Rax);
            asm.lea(Reg::Rsp, Reg::Rsp, ARGUMENTS_32);
        }
        _ => {
            asm.mov(Reg::Rdi, Reg::Rbx);
            asm.mov_imm64(Reg::Rsi, native.data);
            super::call(asm, Va(native.function));
        }
    }
    match (native.vectors, around) {
        (Some(vectors), Around::Call) => vectors.wide.each(asm, false),
        (Some(vectors), Around::Anything) => {
            components(asm, vectors);
            wide_operand(asm, isa);
            asm.raw(&[0x0f, 0xae, 0x2c, 0x24]); // xrstor (%rsp)
        }
        (None, _) => {}
    }
    if_backwards(asm, 0xfd); // std
    asm.lea(Reg::Rsp, Reg::Rbp, -word);
    asm.pop(Reg::Rbx);
    asm.pop(Reg::Rbp);
    asm.raw(&[0x31, 0xc0, 0x31, 0xd2]); // xor %eax,%eax; xor %edx,%edx
    asm.ret();
}

/// The prefix with which XSAVE and XRSTOR use the format of 64-bit code.
fn wide_operand(asm: &mut Asm, isa: Isa) {
    if isa == Isa::X64 {
        asm.raw(&[0x48]);
    }
}

/// An instruction of one byte that is executed if the direction flag was set at the hit: it takes
/// 25 ns on Zen 5. `rbx` is the context.
fn if_backwards(asm: &mut Asm, instruction: u8) {
    let forwards = asm.label();
    asm.load(Reg::Rax, Reg::Rbx, offset_of!(Regs, eflags) as i32);
    asm.raw(&[0xf6, 0xc4, DIRECTION]); // test $4,%ah
    asm.jcc(Cond::E, forwards);
    asm.raw(&[instruction]);
    asm.bind(forwards);
}

impl Wide {
    /// Number of vector registers, and their length in bytes.
    fn vectors(self) -> (u8, i32) {
        match self {
            Wide::No => (16, 16),
            Wide::Avx => (16, 32),
            Wide::Avx512 => (32, 64),
        }
    }

    fn masks(self) -> u8 {
        if self == Wide::Avx512 { 8 } else { 0 }
    }

    /// Bytes for all, a multiple of 64: vectors, masks, MXCSR.
    fn len(self) -> i32 {
        let (count, len) = self.vectors();
        i32::from(count) * len + 128
    }

    /// Stores all of them to `rsp`, which is 64-aligned, or loads them. Encodings: Intel SDM volume
    /// 2, 2.3 and 2.7.
    fn each(self, asm: &mut Asm, store: bool) {
        let (count, len) = self.vectors();
        let opcode = if store { 0x7f } else { 0x6f };
        for n in 0..count {
            let at = i32::from(n) * len;
            let (low, high, higher) = (n & 7, n >> 3 & 1, n >> 4);
            match self {
                Wide::No if store => asm.store_xmm(at, n),
                Wide::No => asm.load_xmm(at, n),
                Wide::Avx => {
                    asm.raw(&[0xc5, 0x7d | (high ^ 1) << 7, opcode]); // vmovdqa
                    at_rsp(asm, low, at);
                }
                // vmovdqa64, with a displacement in units of 64 bytes
                Wide::Avx512 => asm.raw(&[
                    0x62,
                    0x61 | (high ^ 1) << 7 | (higher ^ 1) << 4,
                    0xfd,
                    0x48,
                    opcode,
                    0x44 | low << 3,
                    0x24,
                    n,
                ]),
            }
        }
        let masks = i32::from(count) * len;
        for n in 0..self.masks() {
            asm.raw(&[0xc4, 0xe1, 0xf8, if store { 0x91 } else { 0x90 }]); // kmovq
            at_rsp(asm, n, masks + 8 * i32::from(n));
        }
        asm.raw(&[0x0f, 0xae]); // stmxcsr, ldmxcsr
        at_rsp(asm, if store { 3 } else { 2 }, masks + 64);
    }
}

/// ModRM and what follows, for `disp32(%rsp)`.
fn at_rsp(asm: &mut Asm, reg: u8, disp: i32) {
    asm.raw(&[0x84 | reg << 3, 0x24]);
    asm.raw(&disp.to_le_bytes());
}

/// `edx:eax` = which components.
fn components(asm: &mut Asm, vectors: Vectors) {
    asm.raw(&[0xb8]);
    asm.raw(&vectors.components.to_le_bytes());
    asm.raw(&[0x31, 0xd2]); // xor %edx,%edx
}
