//! Thunks that run programs: what is around compiled code at a hit.

use std::mem::offset_of;

use sidestep_isa::x86::emit::{Asm, Cond, Reg};
use sidestep_wire::arch::x86::{Hit, Regs};
use sidestep_wire::{LookupEntry, ProbeDesc, ThreadState};

use super::frame::{ABOVE, HIT, REGS, hit, regs};
use super::{call, count_missed, find_entry, goroutine};
use crate::codegen::thunk::{Env, Place, Program};

/// `rcx` = address of the probed instruction, of the probe whose number is there. Changes `rdx`.
pub(super) fn load_site(asm: &mut Asm, env: &Env) {
    asm.imul_imm(Reg::Rcx, Reg::Rcx, size_of::<ProbeDesc>() as i32);
    asm.mov_imm64(Reg::Rdx, env.descs.0 + offset_of!(ProbeDesc, site) as u64);
    asm.add(Reg::Rcx, Reg::Rdx);
    asm.load(Reg::Rcx, Reg::Rcx, 0);
}

/// A hit of a program.
pub(super) fn run(asm: &mut Asm, env: &Env, program: &Program, place: Place) {
    // stack: return, probe
    let (missed, out, busy, go) = (asm.label(), asm.label(), asm.label(), asm.label());
    let frame = place.frame(env, program.context, program.changes);
    if program.goroutine.is_some() {
        goroutine::check_room(asm, env, frame.bytes(), frame.above_sp);
    }
    frame.save(asm);
    if program.overrides {
        // Also where the program does not run: the stack may hold what an earlier hit left.
        asm.store_imm(Reg::Rbx, hit!(overridden), 0);
    }
    find_entry(asm, env);
    asm.test(Reg::Rax);
    asm.jcc(Cond::E, missed);
    asm.load(Reg::R9, Reg::Rax, offset_of!(LookupEntry, state) as i32);
    asm.load(Reg::Rdx, Reg::Rax, offset_of!(LookupEntry, cells) as i32);
    asm.test(Reg::Rdx);
    asm.jcc(Cond::E, out); // a forked child
    if let Some(need) = program.goroutine {
        goroutine::prepare(asm, env, need, missed);
        asm.load(Reg::Rdx, Reg::R9, offset_of!(ThreadState, cells) as i32);
    }
    asm.load32(Reg::Rcx, Reg::Rbx, ABOVE + 8);
    if place == Place::Exit {
        asm.mov_imm64(Reg::Rax, Hit::RETURNED);
        asm.add(Reg::Rax, Reg::Rcx);
        asm.store(Reg::Rbx, hit!(probe), Reg::Rax);
    } else {
        asm.store(Reg::Rbx, hit!(probe), Reg::Rcx);
    }
    if program.exclusive {
        asm.cmp_imm8(Reg::R9, offset_of!(ThreadState, busy) as i32, 0);
        asm.jcc(Cond::Ne, busy);
        asm.bind(go);
        asm.lea(Reg::Rsi, Reg::Rbx, HIT);
        asm.store(Reg::R9, offset_of!(ThreadState, busy) as i32, Reg::Rsi);
    }
    asm.lea_index8(Reg::Rdx, Reg::Rdx, Reg::Rcx);
    asm.add_one(Reg::Rdx, 0, false);
    if place == Place::Exit {
        if program.context.has_frame(env.isa) {
            // The return address is on top of the stack.
            asm.load(Reg::Rdx, Reg::Rbx, regs!(rsp));
            asm.load(Reg::Rcx, Reg::Rdx, 0);
            asm.store(Reg::Rbx, regs!(rip), Reg::Rcx);
            asm.lea(Reg::Rdx, Reg::Rdx, 8);
            asm.store(Reg::Rbx, regs!(rsp), Reg::Rdx);
        }
    } else if program.context.has_ip(env.isa) {
        load_site(asm, env);
        asm.store(Reg::Rbx, regs!(rip), Reg::Rcx);
    }
    if program.context.has_cookie(env.isa) {
        // It is for programs that watch the return, too.
        asm.store_imm(Reg::Rbx, hit!(cookie), 0);
    }
    let keep_state = program.exclusive;
    if keep_state {
        // Twice, so that the stack stays aligned.
        asm.push(Reg::R9);
        asm.push(Reg::R9);
    }
    asm.store_imm(Reg::R9, offset_of!(ThreadState, stamp) as i32, 0);
    if let Some(need) = program.goroutine {
        goroutine::enter(asm, env, need);
    }
    asm.lea(Reg::Rdi, Reg::Rbx, REGS);
    call(asm, if place == Place::Inside { program.inside } else { program.code });
    if program.goroutine.is_some() {
        goroutine::leave(asm);
    }
    if keep_state {
        asm.pop(Reg::R9);
        asm.pop(Reg::R9);
        asm.store_imm(Reg::R9, offset_of!(ThreadState, busy) as i32, 0);
    }
    if program.changes.has_ip(env.isa) {
        let normal = asm.label();
        asm.load32(Reg::Rcx, Reg::Rbx, ABOVE + 8);
        load_site(asm, env);
        asm.cmp_mem(Reg::Rbx, regs!(rip), Reg::Rcx);
        asm.jcc(Cond::E, normal);
        // It goes on elsewhere, with the site's stack: the thunk's return leads there.
        asm.load(Reg::Rcx, Reg::Rbx, regs!(rip));
        asm.store(Reg::Rbx, ABOVE, Reg::Rcx);
        frame.restore(asm);
        asm.ret_drop(frame.above_sp as u16 - 8);
        asm.bind(normal);
    }
    asm.bind(out);
    if program.overrides {
        let normal = asm.label();
        asm.cmp_imm8(Reg::Rbx, hit!(overridden), 0);
        asm.jcc(Cond::E, normal);
        frame.restore(asm);
        asm.load(Reg::Rax, Reg::Rsp, regs!(rax) - ABOVE);
        // The thunk's return, the probe and what was stepped over are dropped; the site is the
        // start of a function, so this returns from it.
        asm.lea(Reg::Rsp, Reg::Rsp, frame.above_sp);
        asm.ret();
        asm.bind(normal);
    }
    frame.restore(asm);
    asm.ret();
    if program.exclusive {
        asm.bind(busy);
        asm.lea(Reg::Rdi, Reg::Rbx, REGS);
        asm.mov(Reg::Rsi, Reg::R9);
        call(asm, env.agent_busy);
        asm.mov(Reg::R9, Reg::Rax);
        asm.load32(Reg::Rcx, Reg::Rbx, ABOVE + 8);
        asm.test(Reg::Rax);
        asm.jcc(Cond::E, missed);
        asm.load(Reg::Rdx, Reg::R9, offset_of!(ThreadState, cells) as i32);
        asm.jmp(go);
    }
    asm.bind(missed);
    count_missed(asm, env, ABOVE + 8);
    asm.jmp(out);
}

const _: () = assert!(size_of::<Hit>() % 16 == 0);
