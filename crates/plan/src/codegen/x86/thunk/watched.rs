//! Entering a function whose return address was replaced.
//!
//! ```text
//!   detour:      push probe
//!                call thunk
//!   watched:     lea rsp, [rsp + 16]       drop the probe and the slot of the return address
//!                jmp enter
//!   not watched: lea rsp, [rsp + 8]        drop the probe
//!   body:        displaced instructions
//!
//!   enter:       call [rsp - 16]           to the body, whose address is where the probe was;
//!                                          the slot is written again
//!   trampoline:  …
//!                ret
//! ```
//!
//! Every return so has its call, and the processor's return predictor is right about the function's
//! and about the trampoline's. If the agent only replaced the return address, both would cost a
//! misprediction (5 ns on Zen).

use sidestep_isa::Va;
use sidestep_isa::patch::OutOfReach;
use sidestep_isa::x86::emit::{Asm, Cond, Label, Reg};

use super::count_missed;
use super::frame::ABOVE;
use crate::codegen::thunk::Env;

/// Bytes of the detour from `watched` to `not watched`.
const PLAIN: i32 = 10;
/// Bytes of the detour from `watched` to `body`.
const BODY: i32 = 15;

/// What a detour has behind the call of the thunk.
pub(crate) fn enter(asm: &mut Asm, enter: Va) -> Result<(), OutOfReach> {
    asm.lea(Reg::Rsp, Reg::Rsp, 16);
    asm.jmp_to(enter)?;
    asm.lea(Reg::Rsp, Reg::Rsp, 8);
    Ok(())
}

/// In the thunk, behind the agent's hit function and at the label `missed`: where the detour goes
/// on.
pub(super) fn choose(asm: &mut Asm, env: &Env, missed: Label, out: Label) {
    let plain = asm.label();
    asm.load(Reg::Rcx, Reg::Rbx, ABOVE);
    asm.test(Reg::Rax);
    asm.jcc(Cond::E, plain);
    asm.lea(Reg::Rcx, Reg::Rcx, BODY);
    asm.store(Reg::Rbx, ABOVE + 8, Reg::Rcx);
    asm.jmp(out);
    asm.bind(missed);
    count_missed(asm, env, ABOVE + 8);
    asm.load(Reg::Rcx, Reg::Rbx, ABOVE);
    asm.bind(plain);
    asm.lea(Reg::Rcx, Reg::Rcx, PLAIN);
    asm.store(Reg::Rbx, ABOVE, Reg::Rcx);
}

#[cfg(test)]
mod tests {
    use sidestep_isa::Isa;

    use super::*;

    #[test]
    fn the_thunk_knows_where_the_detour_goes_on() {
        let mut asm = Asm::new(Va(0x1000));
        enter(&mut asm, Va(0x4000)).unwrap();
        let insns: Vec<_> = sidestep_isa::sweep(Isa::X64, &asm.finish(), Va(0)).map(|insn| insn.unwrap()).collect();
        let [_, jump, plain] = &insns[..] else { panic!("{insns:?}") };
        assert!(!jump.falls_through() && plain.falls_through());
        assert_eq!((plain.va(), plain.next()), (Va(PLAIN as u64), Va(BODY as u64)));
    }
}
