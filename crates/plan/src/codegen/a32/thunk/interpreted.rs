//! A program that is not compiled: a function as native code would be, which calls the interpreter
//! in the agent.
//!
//! `agent_interpret(regs, slots, len: u64, stack_end: u64, stack_len: u64, state)` runs the
//! program's `len` instructions at `slots`, on a stack that the function has. The function itself
//! has five numbers of 64 bits, the first of which is the context, and the thread's state: that is
//! behind three of the numbers on the stack (AAPCS32, 6.5).

use sidestep_isa::a32::emit::{Asm, list};
use sidestep_isa::a32::{PC, SP};
use sidestep_isa::{Isa, Va};

use super::{BASE, IP, finish, kept};
use crate::codegen::thunk::Interpreted;

/// From the stack pointer of the caller: the thread's state.
const STATE: u32 = 3 * 8;
/// Bytes of the registers that are kept.
const KEPT: u32 = 8;
/// Bytes of the arguments of the interpreter on the stack.
const ARGUMENTS: u32 = 24;

/// See [`crate::thunk::interpreted`].
pub(crate) fn interpreted(stack: i32, len: usize) -> Interpreted {
    let mut asm = Asm::new(Isa::A32, Va(0));
    let (slots, interpreter) = (asm.label(), asm.label());
    asm.push(kept());
    asm.mov(BASE, SP);
    // The stack of the program ends at a multiple of 16, which r2 has.
    asm.bic_imm(2, SP, 15);
    asm.constant(1, stack as u32 + ARGUMENTS);
    asm.sub(1, 2, 1);
    asm.mov(SP, 1);
    asm.constant(3, 0);
    asm.str(2, SP, 0);
    asm.str(3, SP, 4);
    asm.constant(2, stack as u32);
    asm.str(2, SP, 8);
    asm.str(3, SP, 12);
    asm.ldr(2, BASE, KEPT + STATE);
    asm.str(2, SP, 16);
    asm.constant(2, len as u32);
    asm.ldr_literal(1, slots);
    asm.ldr_literal(IP, interpreter);
    asm.blx(IP);
    asm.mov(SP, BASE);
    asm.pop(list(&[BASE, PC]));
    asm.align(8);
    let slots_at = asm.len();
    asm.bind(slots);
    asm.quad(0);
    let interpreter_at = asm.len();
    asm.bind(interpreter);
    asm.quad(0);
    Interpreted { bytes: finish(asm), slots_at, interpreter_at }
}
