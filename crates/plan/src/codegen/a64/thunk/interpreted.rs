//! A program that is not compiled: a function as native code would be, which calls the interpreter
//! in the agent.
//!
//! `agent_interpret(regs, slots, len: u64, stack_end: u64, stack_len: u64, state)` runs the
//! program's `len` instructions at `slots`, on a stack that the function has. The function itself
//! has the context in x0 and the thread's state in x5, where the interpreter has them, too.

use sidestep_isa::Va;
use sidestep_isa::a64::emit::{Address, Asm, Reg, blr, ldp, mov, ret, stp, sub_imm};

use super::{align, finish, x};
use crate::codegen::thunk::Interpreted;

/// See [`crate::thunk::interpreted`].
pub(crate) fn interpreted(stack: i32, len: usize) -> Interpreted {
    let mut asm = Asm::new(Va(0));
    let (slots, interpreter) = (asm.label(), asm.label());
    asm.push(stp(Reg::FP, Reg::LINK, Address::before(Reg::SP, -16)));
    asm.push(mov(Reg::FP, Reg::SP));
    let stack = i64::from(stack);
    for part in [stack & !0xfff, stack & 0xfff].into_iter().filter(|part| *part != 0) {
        asm.push(sub_imm(Reg::SP, Reg::SP, part));
    }
    asm.ldr_literal(x(1), slots);
    asm.constant(x(2), len as u64);
    asm.push(mov(x(3), Reg::FP));
    asm.constant(x(4), stack as u64);
    asm.ldr_literal(x(16), interpreter);
    asm.push(blr(x(16)));
    asm.push(mov(Reg::SP, Reg::FP));
    asm.push(ldp(Reg::FP, Reg::LINK, Address::after(Reg::SP, 16)));
    asm.push(ret(Reg::LINK));
    align(&mut asm, 8);
    let slots_at = asm.len();
    asm.bind(slots);
    asm.quad(0);
    let interpreter_at = asm.len();
    asm.bind(interpreter);
    asm.quad(0);
    Interpreted { bytes: finish(asm), slots_at, interpreter_at }
}
