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
use crate::codegen::thunk::Env;

/// Bytes of stack that finding the thread's state needs, and making its stack.
const FIRST: i32 = 320;
/// Bytes that may be pushed between [`prepare`] and [`enter`], and more: who needs the stack there
/// has one.
const LATER: i32 = 64;
const STACK: i32 = offset_of!(ThreadState, stack) as i32;

/// Goes to `enough` unless the goroutine's stack has less than `need` bytes left. Changes `rcx` and
/// `rdx`.
fn unless_short(asm: &mut Asm, env: &Env, need: i32, enough: Label) {
    asm.thread_pointer(Reg::Rcx, env.self_pointer);
    asm.test(Reg::Rcx);
    asm.jcc(Cond::E, enough);
    asm.load(Reg::Rcx, Reg::Rcx, -8);
    asm.test(Reg::Rcx);
    asm.jcc(Cond::E, enough);
    asm.cmp_mem(Reg::Rcx, 0, Reg::Rsp);
    asm.jcc(Cond::A, enough);
    asm.lea(Reg::Rdx, Reg::Rsp, -need);
    asm.cmp_mem(Reg::Rcx, 0, Reg::Rdx);
    asm.jcc(Cond::Be, enough);
}

/// Goes to `missed` where there is not even room to look for the thread's state.
pub(super) fn check_room(asm: &mut Asm, env: &Env, missed: Label) {
    let enough = asm.label();
    unless_short(asm, env, FIRST, enough);
    asm.jmp(missed);
    asm.bind(enough);
}

/// Sees to it that the thread, whose state is in `r9`, has a stack of its own if it needs one; goes
/// to `missed` if there is no memory for it. Changes all registers that a call may change, but
/// `r9`.
pub(super) fn prepare(asm: &mut Asm, env: &Env, need: i32, missed: Label) {
    let there = asm.label();
    unless_short(asm, env, need + LATER, there);
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
    unless_short(asm, env, need, stays);
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
