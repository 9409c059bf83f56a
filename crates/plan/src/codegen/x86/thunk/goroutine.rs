//! Stacks of goroutines, which begin with two kilobytes. There is no guard page below such a stack,
//! but somebody else's memory. What finds too little of it runs on a stack of the thread's own.
//!
//! The goroutine `g` is in the word below the thread pointer (cmd/internal/obj/x86: `-8(FS)`); it
//! begins with the lowest address of its stack (runtime/runtime2.go). Before the runtime has set it
//! up, and on a stack that is not the goroutine's (a signal's), there is room. So a signal handler
//! that interrupts a program on the thread's own stack does not use that once more.

use std::mem::offset_of;

use sidestep_isa::x86::emit::{Asm, Cond, Label, Reg};
use sidestep_wire::ThreadState;

use super::call;
use crate::codegen::thunk::{Env, STATE_STACK};

/// Bytes that may be pushed between [`prepare`] and [`enter`], and more: who needs the stack there
/// has one.
const LATER: i32 = 64;
const STACK: i32 = offset_of!(ThreadState, stack) as i32;

/// Goes to `enough` unless the goroutine's stack has less than `need` bytes left. The stack pointer
/// of the site, `above` bytes higher, says whether it is the goroutine's stack: functions without a
/// stack check may leave so little of it that what is pushed here lies below. Changes `rcx`, `rdx`
/// and the flags.
fn unless_short(asm: &mut Asm, env: &Env, need: i32, above: i32, enough: Label) {
    asm.thread_pointer(Reg::Rcx, env.self_pointer);
    asm.test(Reg::Rcx);
    asm.jcc(Cond::E, enough);
    asm.load(Reg::Rcx, Reg::Rcx, -8);
    asm.test(Reg::Rcx);
    asm.jcc(Cond::E, enough);
    asm.lea(Reg::Rdx, Reg::Rsp, above);
    asm.cmp_mem(Reg::Rcx, 0, Reg::Rdx);
    asm.jcc(Cond::A, enough);
    asm.lea(Reg::Rdx, Reg::Rsp, -need);
    asm.cmp_mem(Reg::Rcx, 0, Reg::Rdx);
    asm.jcc(Cond::Be, enough);
}

/// At the start of a thunk, with the return address and the number of the probe on the stack: where
/// there is not even room for its frame and to look for the thread's state, counts the hit as
/// missed and returns. Nothing but three words is written before that is known. `above` is how far
/// above the stack pointer the site's lies. Registers and flags stay.
pub(super) fn check_room(asm: &mut Asm, env: &Env, frame: i32, above: i32) {
    const SAVED: [Reg; 3] = [Reg::Rax, Reg::Rcx, Reg::Rdx];
    const BYTES: i32 = 8 * SAVED.len() as i32;
    let restore = |asm: &mut Asm| {
        asm.ax_to_flags();
        SAVED.into_iter().rev().for_each(|reg| asm.pop(reg));
    };
    let enough = asm.label();
    SAVED.into_iter().for_each(|reg| asm.push(reg));
    asm.flags_to_ax();
    unless_short(asm, env, frame + STATE_STACK, above + BYTES, enough);
    // return, probe
    asm.load32(Reg::Rcx, Reg::Rsp, BYTES + 8);
    asm.mov_imm64(Reg::Rdx, env.missed.0);
    asm.lea_index8(Reg::Rcx, Reg::Rdx, Reg::Rcx);
    asm.add_one(Reg::Rcx, 0, true);
    restore(asm);
    asm.ret();
    asm.bind(enough);
    restore(asm);
}

/// Sees to it that the thread, whose state is in `r9`, has a stack of its own if it needs one; goes
/// to `missed` if there is no memory for it. Changes all registers that a call may change, but
/// `r9`.
pub(super) fn prepare(asm: &mut Asm, env: &Env, need: i32, missed: Label) {
    let there = asm.label();
    unless_short(asm, env, need + LATER, 0, there);
    asm.cmp_imm8(Reg::R9, STACK, 0);
    asm.jcc(Cond::Ne, there);
    // Twice, so that the stack stays aligned.
    asm.push(Reg::R9);
    asm.push(Reg::R9);
    asm.mov(Reg::Rdi, Reg::R9);
    call(asm, env.agent_stack);
    asm.pop(Reg::R9);
    asm.pop(Reg::R9);
    asm.test(Reg::Rax);
    asm.jcc(Cond::E, missed);
    asm.bind(there);
}

/// Goes to the thread's own stack if that is needed; [`leave`] comes back. Changes `rax`, `rcx` and
/// `rdx`.
pub(super) fn enter(asm: &mut Asm, env: &Env, need: i32) {
    let stays = asm.label();
    asm.mov(Reg::Rax, Reg::Rsp);
    unless_short(asm, env, need, 0, stays);
    asm.load(Reg::Rsp, Reg::R9, STACK);
    asm.bind(stays);
    asm.push(Reg::Rax);
    asm.push(Reg::Rax);
}

/// The other end of [`enter`]. Changes `rcx`.
pub(super) fn leave(asm: &mut Asm) {
    asm.pop(Reg::Rcx);
    asm.mov(Reg::Rsp, Reg::Rcx);
}
