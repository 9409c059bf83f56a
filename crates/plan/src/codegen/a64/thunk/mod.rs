//! Code that all detours of a slab share, the return trampoline and the entry of signals.
//!
//! There is one thunk for all sites: it saves all general registers (`frame`), finds the thread's
//! state, and calls `agent_hit`, which runs the program. Agent functions have the C ABI (AAPCS64).
//!
//! ```text
//!   detour:  stp x16, x30, [sp, #-512]!
//!            mov x16, #probe
//!            bl thunk
//!            ldp x16, x30, [sp]
//!            add sp, sp, #512
//! ```
//!
//! The pages of this code must not be guarded (`PROT_BTI`): there are no landing pads in it.

mod frame;
mod interpreted;
pub(crate) mod native;

use std::mem::offset_of;

use sidestep_bpf::pass::Addition;
use sidestep_isa::Va;
use sidestep_isa::a64::emit::{
    Address, Asm, Label, Reg, Size, add, add_imm, add_shifted, blr, br, ldp, ldr, ldxr, mov, mrs, mul, nop, ret, stp,
    str, stxr, sub, svc, system, ubfx,
};
use sidestep_wire::arch::a64::TRAMPOLINE_MARK;
use sidestep_wire::{LookupEntry, ProbeDesc};

use crate::codegen::thunk::{Env, Globals, Places, Program, Thunks};
use crate::codegen::x86::detour::Inlined;
use frame::{BASE, FRAME, OVERRIDDEN, PC, PROBE, REGS, has_pc, register, restore, save};
pub(in crate::codegen::a64) use frame::{SKIPPED, enter, leave};

pub(crate) use interpreted::interpreted;

/// A register by its number.
pub(in crate::codegen::a64) const fn x(number: u8) -> Reg {
    match Reg::x(number) {
        Some(register) => register,
        None => Reg::ZERO,
    }
}

const ENTRY_SHIFT: u32 = size_of::<LookupEntry>().trailing_zeros();
const ENTRY_CELLS: i64 = offset_of!(LookupEntry, cells) as i64;
const ENTRY_STATE: i64 = offset_of!(LookupEntry, state) as i64;
/// The number of `rt_sigreturn` (`include/uapi/asm-generic/unistd.h`).
const RT_SIGRETURN: u16 = 139;

/// `key` = thread pointer, `entry` = the thread's bucket. Goes to `other` if another thread has the
/// bucket. `scratch` changes, the flags do not.
fn find_bucket(asm: &mut Asm, env: &Env, [key, entry, scratch]: [Reg; 3], other: Label) {
    asm.push(mrs(key, system::TPIDR_EL0));
    match env.bucket_count.trailing_zeros() {
        0 => asm.constant(entry, 0),
        width => {
            asm.constant(entry, i64::from(env.hash_multiplier) as u64);
            asm.push(mul(entry, key, entry));
            asm.push(ubfx(entry, entry, env.hash_shift.into(), width));
        }
    }
    asm.mov_address(scratch, env.buckets.0);
    asm.push(add_shifted(entry, scratch, entry, ENTRY_SHIFT));
    asm.push(ldr(Size::Double, scratch, Address::at(entry)));
    asm.push(sub(scratch, scratch, key));
    asm.cbnz(scratch, other);
}

/// Adds to cells of this thread, where it has some. Else goes to `slow`. Changes the three
/// registers and nothing else. Only the thread and its signal handlers write the cells: a handler
/// that comes in between makes the exclusive store fail.
pub(in crate::codegen::a64) fn count(
    asm: &mut Asm,
    env: &Env,
    additions: &[Addition],
    registers: [Reg; 3],
    slow: Label,
) {
    let [value, cell, scratch] = registers;
    find_bucket(asm, env, registers, slow);
    asm.push(ldr(Size::Double, cell, Address::with(cell, ENTRY_CELLS)));
    asm.cbz(cell, slow);
    let mut before = 0;
    for Addition { offset, value: number } in additions {
        advance(asm, cell, (offset - before) as i64, scratch);
        before = *offset;
        let again = asm.label();
        asm.bind(again);
        asm.push(ldxr(Size::Double, value, cell));
        asm.push(add_imm(value, value, i64::from(*number)));
        asm.push(stxr(Size::Double, scratch, value, cell));
        asm.cbnz(scratch, again);
    }
}

/// Adds an offset to an address.
fn advance(asm: &mut Asm, cell: Reg, offset: i64, scratch: Reg) {
    match offset {
        0..0x100_0000 => {
            let (low, high) = (offset & 0xfff, offset & !0xfff);
            for part in [high, low].into_iter().filter(|part| *part != 0) {
                asm.push(add_imm(cell, cell, part));
            }
        }
        _ => {
            asm.constant(scratch, offset as u64);
            asm.push(add(cell, cell, scratch));
        }
    }
}

fn call(asm: &mut Asm, function: Va) {
    asm.mov_address(x(16), function.0);
    asm.push(blr(x(16)));
}

/// x1 = the state of this thread, or 0.
fn find_state(asm: &mut Asm, env: &Env) {
    let (slow, found, done) = (asm.label(), asm.label(), asm.label());
    find_bucket(asm, env, [x(1), x(0), x(2)], slow);
    asm.push(ldr(Size::Double, x(2), Address::with(x(0), ENTRY_CELLS)));
    asm.cbnz(x(2), found);
    asm.bind(slow);
    asm.mov_address(x(0), env.private.0);
    call(asm, env.agent_slot);
    asm.push(mov(x(1), x(0)));
    asm.cbz(x(0), done);
    asm.bind(found);
    asm.push(ldr(Size::Double, x(1), Address::with(x(0), ENTRY_STATE)));
    asm.bind(done);
}

/// x0 = address of the probed instruction. Changes x1.
fn load_site(asm: &mut Asm, env: &Env) {
    asm.constant(x(1), size_of::<ProbeDesc>() as u64);
    asm.push(mul(x(1), PROBE, x(1)));
    asm.mov_address(x(0), env.descs.0 + offset_of!(ProbeDesc, site) as u64);
    asm.push(add(x(0), x(0), x(1)));
    asm.push(ldr(Size::Double, x(0), Address::at(x(0))));
}

fn hit(asm: &mut Asm, env: &Env) {
    save(asm, env);
    if has_pc(env) {
        load_site(asm, env);
        asm.push(str(Size::Double, x(0), Address::with(BASE, PC)));
    }
    find_state(asm, env);
    asm.push(add_imm(x(0), BASE, REGS));
    asm.mov_address(x(2), env.private.0);
    asm.push(mov(x(3), PROBE));
    call(asm, env.agent_hit);

    let (same, normal) = (asm.label(), asm.label());
    if has_pc(env) {
        load_site(asm, env);
        asm.push(ldr(Size::Double, x(1), Address::with(BASE, PC)));
        asm.push(sub(x(0), x(0), x(1)));
        asm.cbz(x(0), same);
        // It goes on elsewhere, with the site's stack. x16 has to lead there: what lies between
        // caller and callee may change it (AAPCS64, 6.1.1). `ret` asks for no landing pad.
        restore(asm, env);
        asm.push(ldr(Size::Double, Reg::LINK, Address::with(Reg::SP, 8)));
        asm.push(ldr(Size::Double, x(16), Address::with(Reg::SP, PC)));
        asm.push(add_imm(Reg::SP, Reg::SP, FRAME));
        asm.push(ret(x(16)));
    }
    asm.bind(same);
    asm.push(ldr(Size::Double, x(0), Address::with(BASE, OVERRIDDEN)));
    asm.cbz(x(0), normal);
    restore(asm, env);
    leave(asm);
    // The site is the start of a function, so this returns from it.
    asm.push(ret(Reg::LINK));
    asm.bind(normal);
    restore(asm, env);
    asm.push(ret(Reg::LINK));
}

/// Nops up to a multiple of `to`, in bytes.
pub(in crate::codegen::a64) fn align(asm: &mut Asm, to: u64) {
    while asm.here().0 % to != 0 {
        asm.word(nop());
    }
}

/// The code. Its operands are registers that exist, and addresses of programs, which have an
/// encoding.
fn finish(asm: Asm) -> Vec<u8> {
    asm.finish().expect("the code of thunks has an encoding")
}

/// The shared code at the start of a slab. All handlers share one thunk.
pub(crate) fn thunks(at: Va, env: &Env, enter: Va, programs: &[Option<Program>]) -> (Vec<u8>, Thunks) {
    let mut asm = Asm::new(at);
    hit(&mut asm, env);
    align(&mut asm, 16);
    let one = Places { entry: at, bare: at, inside: at, exit: at };
    let programs = vec![Some(one); programs.len()];
    (finish(asm), Thunks { agent: one, returns: one, enter, programs, ends: Vec::new(), inlined: Inlined::default() })
}

/// The process-wide code.
pub(crate) fn globals(at: Va, env: &Env) -> (Vec<u8>, Globals) {
    let mut asm = Asm::new(at);
    asm.quad(env.private.0);
    asm.quad(env.agent_real.0);
    // Where a function returns to whose link register the agent has replaced at its entry. The
    // frame is known by the stack pointer, which is the one of the call; `agent_return` gives where
    // the function was called from, which is in the link register then, as behind each return.
    // Nothing leads here before the agent has shadow stacks for return addresses in registers.
    let trampoline = asm.here();
    for word in TRAMPOLINE_MARK.chunks_exact(4) {
        asm.word(word.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)));
    }
    enter_trampoline(&mut asm, env);
    align(&mut asm, 16);

    // The kernel calls this with (signal, info, context) in x0, x1 and x2, and the restorer in x30;
    // the agent wants its memory first. The program's own handler gets these as the kernel has made
    // them, and the stack pointer. A jump through x16 may lead to each mark of a function.
    let signal = asm.here();
    let done = asm.label();
    asm.push(stp(Reg::FP, Reg::LINK, Address::before(Reg::SP, -48)));
    asm.push(stp(x(0), x(1), Address::with(Reg::SP, 16)));
    asm.push(str(Size::Double, x(2), Address::with(Reg::SP, 32)));
    // Where the return address is, which the agent may change.
    asm.push(add_imm(x(4), Reg::SP, 8));
    asm.push(mov(x(3), x(2)));
    asm.push(mov(x(2), x(1)));
    asm.push(mov(x(1), x(0)));
    asm.mov_address(x(0), env.private.0);
    call(&mut asm, env.agent_signal);
    asm.push(mov(x(16), x(0)));
    asm.push(ldp(x(0), x(1), Address::with(Reg::SP, 16)));
    asm.push(ldr(Size::Double, x(2), Address::with(Reg::SP, 32)));
    asm.push(ldp(Reg::FP, Reg::LINK, Address::after(Reg::SP, 48)));
    asm.cbz(x(16), done);
    asm.push(br(x(16)));
    asm.bind(done);
    asm.push(ret(Reg::LINK));
    align(&mut asm, 16);

    let restorer = asm.here();
    asm.constant(x(8), RT_SIGRETURN.into());
    asm.word(svc());
    align(&mut asm, 16);
    (finish(asm), Globals { enter: trampoline, trampoline, signal, restorer })
}

/// The trampoline, behind its mark.
fn enter_trampoline(asm: &mut Asm, env: &Env) {
    enter(asm);
    save(asm, env);
    find_state(asm, env);
    asm.push(add_imm(x(0), BASE, REGS));
    asm.mov_address(x(2), env.private.0);
    call(asm, env.agent_return);
    asm.push(str(Size::Double, x(0), Address::with(BASE, register(30))));
    restore(asm, env);
    leave(asm);
    asm.push(ret(Reg::LINK));
}
