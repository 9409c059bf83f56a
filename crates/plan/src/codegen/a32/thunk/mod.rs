//! Code that all detours of a slab share, the return trampoline and the entry of signals. All of it
//! is A32: `bl` of A32 and `blx` of T32 lead there, and `bx lr` back to either.
//!
//! There is one thunk for all sites: it saves all general registers (`frame`), finds the thread's
//! state, and calls `agent_hit`, which runs the program. Agent functions have the C ABI (AAPCS32),
//! and are A32 or T32 by bit 0 of their address.
//!
//! ```text
//!   detour:  sub sp, sp, #256
//!            stm sp, {r12, lr}
//!            movw r12, #probe
//!            bl thunk             (blx in T32)
//!            ldm sp, {r12, lr}
//!            add sp, sp, #256
//! ```

mod frame;
mod interpreted;
pub(crate) mod native;

use std::mem::offset_of;

use sidestep_bpf::pass::Addition;
use sidestep_isa::a32::emit::{Asm, Cond, Label, list};
use sidestep_isa::a32::{LINK, SP};
use sidestep_isa::{Isa, Va};
use sidestep_wire::arch::a32::TRAMPOLINE_MARK;
use sidestep_wire::{LookupEntry, ProbeDesc};

use crate::codegen::thunk::{Env, Globals, Places, Program, Thunks};
use crate::codegen::x86::detour::Inlined;
use frame::{BASE, OVERRIDDEN, PC, PROBE, REGS, address, has_pc, register, restore, save};
pub(in crate::codegen::a32) use frame::{FRAME, IP, enter, leave};

pub(crate) use interpreted::interpreted;

const ENTRY_SHIFT: u32 = size_of::<LookupEntry>().trailing_zeros();
const ENTRY_CELLS: u32 = offset_of!(LookupEntry, cells) as u32;
const ENTRY_STATE: u32 = offset_of!(LookupEntry, state) as u32;
/// The number of `rt_sigreturn` (arch/arm/tools/syscall.tbl).
const RT_SIGRETURN: u16 = 173;

/// `key` = thread pointer, `entry` = the thread's bucket. Goes to `other` if another thread has the
/// bucket. `scratch` and the flags change.
///
/// The upper half of a key is 0: no thread pointer has one, and neither has what is no key.
fn find_bucket(asm: &mut Asm, env: &Env, [key, entry, scratch]: [u8; 3], other: Label) {
    asm.thread_pointer(key);
    match env.bucket_count.trailing_zeros() {
        0 => asm.constant(entry, 0),
        width => {
            // The hash is in the upper half of the product (`wire::lookup`).
            asm.constant(entry, env.hash_multiplier as u32);
            asm.umull(scratch, entry, key, entry);
            asm.ubfx(entry, entry, u32::from(env.hash_shift).saturating_sub(32), width);
        }
    }
    asm.constant(scratch, address(env.buckets));
    asm.add(entry, scratch, entry, ENTRY_SHIFT);
    asm.ldr(scratch, entry, 0);
    asm.cmp(scratch, key);
    asm.b_cond(Cond::Ne, other);
}

/// Adds to cells of this thread, where it has some. Else goes to `slow`. Changes the three
/// registers and the flags. Only the thread and its signal handlers write the cells: a handler that
/// comes in between makes the exclusive store fail. The carry into the upper half is added apart:
/// it takes some 2^25 hits in between until another one comes.
pub(in crate::codegen::a32) fn count(
    asm: &mut Asm,
    env: &Env,
    additions: &[Addition],
    registers: [u8; 3],
    slow: Label,
) {
    let [value, cell, scratch] = registers;
    find_bucket(asm, env, registers, slow);
    asm.ldr(cell, cell, ENTRY_CELLS);
    asm.cmp_imm(cell, 0);
    asm.b_cond(Cond::Eq, slow);
    let mut before = 0;
    for Addition { offset, value: number } in additions {
        let step = (offset - before) as u32;
        before = *offset;
        if asm.has_immediate(step) {
            asm.add_imm(cell, cell, step);
        } else {
            asm.constant(scratch, step);
            asm.add(cell, cell, scratch, 0);
        }
        let (again, done) = (asm.label(), asm.label());
        asm.bind(again);
        asm.ldrex(value, cell);
        asm.add_imm(value, value, (*number).into());
        asm.strex(scratch, value, cell);
        asm.cmp_imm(scratch, 0);
        asm.b_cond(Cond::Ne, again);
        // A sum that is smaller than what was added has gone over the upper end.
        asm.cmp_imm(value, *number);
        asm.b_cond(Cond::Hs, done);
        asm.ldr(value, cell, 4);
        asm.add_imm(value, value, 1);
        asm.str(value, cell, 4);
        asm.bind(done);
    }
}

fn call(asm: &mut Asm, function: Va) {
    asm.call_any(function.0);
}

/// r1 = the state of this thread, or 0.
fn find_state(asm: &mut Asm, env: &Env) {
    let (slow, found, done) = (asm.label(), asm.label(), asm.label());
    find_bucket(asm, env, [2, 0, 1], slow);
    asm.ldr(1, 0, ENTRY_CELLS);
    asm.cmp_imm(1, 0);
    asm.b_cond(Cond::Ne, found);
    asm.bind(slow);
    // A number of 64 bits is in r2 and r3 (AAPCS32, 6.5).
    asm.constant(0, address(env.private));
    asm.constant(3, 0);
    call(asm, env.agent_slot);
    asm.mov(1, 0);
    asm.cmp_imm(0, 0);
    asm.b_cond(Cond::Eq, done);
    asm.bind(found);
    asm.ldr(1, 0, ENTRY_STATE);
    asm.bind(done);
}

/// r0 = address of the probed instruction. Changes r1.
fn load_site(asm: &mut Asm, env: &Env) {
    asm.constant(1, size_of::<ProbeDesc>() as u32);
    asm.mul(1, PROBE, 1);
    asm.constant(0, address(env.descs).wrapping_add(offset_of!(ProbeDesc, site) as u32));
    asm.add(0, 0, 1, 0);
    asm.ldr(0, 0, 0);
}

fn hit(asm: &mut Asm, env: &Env) {
    save(asm, env);
    if has_pc(env) {
        load_site(asm, env);
        asm.str(0, BASE, PC);
    }
    find_state(asm, env);
    asm.add_imm(0, BASE, REGS);
    asm.constant(2, address(env.private));
    asm.mov(3, PROBE);
    call(asm, env.agent_hit);

    let (same, normal) = (asm.label(), asm.label());
    if has_pc(env) {
        load_site(asm, env);
        asm.ldr(1, BASE, PC);
        asm.cmp(0, 1);
        asm.b_cond(Cond::Eq, same);
        // It goes on elsewhere, with the site's stack. r12 has to lead there: what lies between
        // caller and callee may change it (AAPCS32, 6.1.1).
        restore(asm, env, PC);
        leave(asm);
        asm.bx(IP);
    }
    asm.bind(same);
    asm.ldr(0, BASE, OVERRIDDEN);
    asm.cmp_imm(0, 0);
    asm.b_cond(Cond::Eq, normal);
    restore(asm, env, register(IP.into()));
    leave(asm);
    // The site is the start of a function, so this returns from it.
    asm.bx(LINK);
    asm.bind(normal);
    restore(asm, env, register(IP.into()));
    asm.bx(LINK);
}

/// The code. Its operands are registers that exist, and numbers that have an encoding.
fn finish(asm: Asm) -> Vec<u8> {
    asm.finish().expect("the code of thunks has an encoding")
}

/// The shared code at the start of a slab. All handlers share one thunk.
pub(crate) fn thunks(at: Va, env: &Env, enter: Va, programs: &[Option<Program>]) -> (Vec<u8>, Thunks) {
    let mut asm = Asm::new(Isa::A32, at);
    hit(&mut asm, env);
    asm.align(16);
    let one = Places { entry: at, bare: at, inside: at, exit: at };
    let programs = vec![Some(one); programs.len()];
    (finish(asm), Thunks { agent: one, returns: one, enter, programs, ends: Vec::new(), inlined: Inlined::default() })
}

/// The process-wide code.
pub(crate) fn globals(at: Va, env: &Env) -> (Vec<u8>, Globals) {
    let mut asm = Asm::new(Isa::A32, at);
    asm.quad(env.private.0);
    asm.quad(env.agent_real.0);
    // Where a function returns to whose link register the agent has replaced at its entry. The
    // frame is known by the stack pointer, which is the one of the call; `agent_return` gives where
    // the function was called from, which is in the link register then, as behind each return.
    // Nothing leads here before the agent has shadow stacks for return addresses in registers.
    let trampoline = asm.here();
    asm.raw(&TRAMPOLINE_MARK);
    enter_trampoline(&mut asm, env);
    asm.align(16);

    // The kernel calls this with (signal, info, context) in r0, r1 and r2, and the restorer in the
    // link register (arch/arm/kernel/signal.c: `setup_return`); the agent wants its memory first.
    // The program's own handler gets these as the kernel has made them, and the stack pointer.
    //
    //   high   the return address, a word of 64 bits, which the agent may change
    //          r0, r1, r2, and padding
    //          padding
    //   low    address of the return address: the fifth argument
    const RETURN: u32 = 24;
    const ARGUMENTS: u32 = 8;
    let signal = asm.here();
    asm.sub_imm(SP, SP, RETURN + 8);
    asm.constant(3, 0);
    asm.str(3, SP, RETURN + 4);
    asm.str(LINK, SP, RETURN);
    for number in 0..3 {
        asm.str(number, SP, ARGUMENTS + 4 * u32::from(number));
    }
    asm.add_imm(3, SP, RETURN);
    asm.str(3, SP, 0);
    asm.mov(3, 2);
    asm.mov(2, 1);
    asm.mov(1, 0);
    asm.constant(0, address(env.private));
    call(&mut asm, env.agent_signal);
    asm.mov(IP, 0);
    for number in 0..3 {
        asm.ldr(number, SP, ARGUMENTS + 4 * u32::from(number));
    }
    asm.ldr(LINK, SP, RETURN);
    asm.add_imm(SP, SP, RETURN + 8);
    let done = asm.label();
    asm.cmp_imm(IP, 0);
    asm.b_cond(Cond::Eq, done);
    asm.bx(IP);
    asm.bind(done);
    asm.bx(LINK);
    asm.align(16);

    let restorer = asm.here();
    asm.movw(7, RT_SIGRETURN);
    asm.svc();
    asm.align(16);
    (finish(asm), Globals { enter: trampoline, trampoline, signal, restorer })
}

/// The trampoline, behind its mark. A return leads here, so r12, r2 and r3 and the flags are free
/// (AAPCS32, 6.1.1).
fn enter_trampoline(asm: &mut Asm, env: &Env) {
    enter(asm);
    // No detour: the state is that of this code.
    asm.constant(LINK, 0);
    save(asm, env);
    find_state(asm, env);
    asm.add_imm(0, BASE, REGS);
    asm.constant(2, address(env.private));
    call(asm, env.agent_return);
    asm.str(0, BASE, register(LINK.into()));
    restore(asm, env, register(IP.into()));
    leave(asm);
    asm.bx(LINK);
}

/// The registers that a function here keeps on its stack.
fn kept() -> u16 {
    list(&[BASE, LINK])
}
