//! Handlers that are functions of the target: what is around a call of ordinary compiled code.
//!
//! ```text
//!   high   r4, link register                <- r4
//!          FPSCR, and padding
//!   low    d0 to d15, or to d31             if the function may use them
//! ```

use sidestep_isa::a32::emit::{Asm, list};
use sidestep_isa::a32::{PC, SP};
use sidestep_isa::{Isa, Va};

use super::{BASE, finish, kept};
use crate::codegen::thunk::native::Native;

/// Bytes of `FPSCR`, and padding.
const STATUS: u32 = 8;

/// Code that calls a function: itself a function of the context, which is in r0, with the result 0.
pub(crate) fn function(at: Va, native: &Native) -> Vec<u8> {
    let mut asm = Asm::new(Isa::A32, at);
    // Processors have 16 or 32 of them (section A2.6.2).
    let vectors = native.vectors.map_or(0, |vectors| if vectors.len > 16 * 8 { 32 } else { 16 });
    let all = || (0..vectors).map(|number| (number, 8 * u32::from(number)));
    asm.push(kept());
    asm.mov(BASE, SP);
    if vectors > 0 {
        asm.sub_imm(SP, SP, STATUS);
        asm.vmrs(1);
        asm.str(1, SP, 0);
        asm.sub_imm(SP, SP, 8 * u32::from(vectors));
        all().for_each(|(number, slot)| asm.vstr(number, SP, slot));
    }
    asm.constant(1, native.data as u32);
    asm.call_any(native.function);
    if vectors > 0 {
        all().for_each(|(number, slot)| asm.vldr(number, SP, slot));
        asm.add_imm(SP, SP, 8 * u32::from(vectors));
        asm.ldr(1, SP, 0);
        asm.vmsr(1);
    }
    asm.mov(SP, BASE);
    asm.constant(0, 0);
    asm.constant(1, 0);
    asm.pop(list(&[BASE, PC]));
    finish(asm)
}
