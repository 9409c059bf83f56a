//! Handlers that are functions of the target: what is around a call of ordinary compiled code.
//!
//! ```text
//!   high   x29, x30
//!          FPSR, FPCR
//!   low    q0 to q31             if the function may use them
//! ```
//!
//! A load of the lower half of a vector register clears its upper part where there is SVE. At the
//! start and at the end of a function nobody needs these parts: each function may change them
//! (AAPCS64, 6.1.3). Elsewhere they may be in use.

use sidestep_isa::Va;
use sidestep_isa::a64::emit::{
    Address, Asm, Reg, ldp, ldp_vector, mov, mrs, msr, ret, stp, stp_vector, sub_imm, system,
};

use super::{call, finish, x};
use crate::codegen::thunk::native::Native;

/// Bytes of all vector registers.
const VECTORS: i64 = 32 * 16;

/// Code that calls a function: itself a function of the context, which is in x0, with the result 0.
pub(crate) fn function(at: Va, native: &Native) -> Vec<u8> {
    let mut asm = Asm::new(at);
    let has_vectors = native.vectors.is_some();
    let all = || (0..32_u8).step_by(2).map(|first| (first, Address::with(Reg::SP, 16 * i64::from(first))));
    asm.push(stp(Reg::FP, Reg::LINK, Address::before(Reg::SP, -32)));
    asm.push(mov(Reg::FP, Reg::SP));
    if has_vectors {
        asm.push(mrs(x(1), system::FPSR));
        asm.push(mrs(x(2), system::FPCR));
        asm.push(stp(x(1), x(2), Address::with(Reg::FP, 16)));
        asm.push(sub_imm(Reg::SP, Reg::SP, VECTORS));
        all().for_each(|(first, slot)| asm.push(stp_vector(first, first + 1, slot)));
    }
    asm.constant(x(1), native.data);
    call(&mut asm, Va(native.function));
    if has_vectors {
        all().for_each(|(first, slot)| asm.push(ldp_vector(first, first + 1, slot)));
        asm.push(mov(Reg::SP, Reg::FP));
        asm.push(ldp(x(1), x(2), Address::with(Reg::FP, 16)));
        asm.push(msr(system::FPSR, x(1)));
        asm.push(msr(system::FPCR, x(2)));
    }
    asm.push(ldp(Reg::FP, Reg::LINK, Address::after(Reg::SP, 32)));
    asm.constant(x(0), 0);
    asm.push(ret(Reg::LINK));
    finish(asm)
}
