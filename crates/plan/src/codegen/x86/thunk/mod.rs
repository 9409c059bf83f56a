//! Code that all detours of a slab share, and the return trampoline.
//!
//! Every thunk saves all that the C ABI lets a callee change (`frame`), so that agent functions
//! can be plain compiled code. 32-bit code has thunks of its own (`short`).

mod frame;
mod goroutine;
mod interpreted;
mod kept;
pub mod native;
mod program;
pub(crate) mod short;
pub(crate) mod watched;

use std::mem::offset_of;

use sidestep_isa::live::Dead;
use sidestep_isa::x86::emit::{Asm, Cond, Reg};
pub use sidestep_isa::x86::emit::{SETS_THREAD_POINTER_LEN, sets_thread_pointer, thread_pointer_through_self};
use sidestep_isa::{Isa, Va};
use sidestep_wire::arch::x86::{Regs, TRAMPOLINE_MARK};
use sidestep_wire::{LookupEntry, LookupTable};

use crate::codegen::thunk::{End, Env, Globals, Place, Places, Program, Thunks};
use crate::codegen::x86::detour::Inlined;
use crate::context::Context;
use frame::{ABOVE, Frame, REGS, regs};

pub(crate) use interpreted::interpreted;

const ENTRY_SHIFT: u8 = size_of::<LookupEntry>().trailing_zeros() as u8;
const ENTRY_CELLS: i32 = offset_of!(LookupEntry, cells) as i32;
const ENTRY_STATE: i32 = offset_of!(LookupEntry, state) as i32;

impl Place {
    /// Of a site: `inside` if the detour has stepped over the red zone, else by what is dead there.
    pub(crate) fn of(dead: Dead, inside: bool) -> Place {
        match inside {
            true => Place::Inside,
            false if dead.flags && dead.regs & frame::unused() == frame::unused() => Place::Bare,
            false => Place::Entry,
        }
    }

    /// Whether the detour has stepped over the red zone.
    pub(crate) fn is_stepped(self) -> bool {
        matches!(self, Place::Inside | Place::Exit)
    }

    fn frame(self, env: &Env, context: Context, changes: Context) -> Frame {
        // The detour's push and call.
        let above_sp = 16 + if self.is_stepped() { RED_ZONE } else { 0 };
        Frame { xmm: env.agent_vectors, context, changes, above_sp, bare: self == Place::Bare }
    }
}

impl Places {
    fn emit(asm: &mut Asm, mut emit: impl FnMut(&mut Asm, Place)) -> Places {
        let mut one = |place| {
            let at = asm.here();
            emit(asm, place);
            asm.align(16);
            at
        };
        Places { entry: one(Place::Entry), bare: one(Place::Bare), inside: one(Place::Inside), exit: one(Place::Exit) }
    }
}
/// Bytes of red zone below the stack pointer (System V ABI, AMD64 supplement, 3.2.2).
pub const RED_ZONE: i32 = 128;

impl Env {
    /// The thread pointer to `key`, and the address of its bucket to `out`, to which
    /// [`Env::bucket_disp`] is to be added.
    pub(crate) fn emit_bucket(&self, asm: &mut Asm, out: Reg, key: Reg) {
        asm.thread_pointer(key, self.self_pointer);
        asm.imul_imm(out, key, self.hash_multiplier);
        asm.shr(out, self.hash_shift - ENTRY_SHIFT);
        asm.and32(out, ((self.bucket_count - 1) << ENTRY_SHIFT) as i32);
        if !self.is_low() {
            asm.mov_imm64(key, self.buckets.0);
            asm.add(out, key);
            asm.thread_pointer(key, self.self_pointer);
        }
    }

    /// Whether a displacement can name all of the lookup table: in 32-bit code, any does.
    fn is_low(&self) -> bool {
        self.isa == Isa::X86 || self.buckets.0 + size_of::<LookupTable>() as u64 <= i32::MAX as u64
    }

    pub(crate) fn bucket_disp(&self) -> i32 {
        if self.is_low() { self.buckets.0 as i32 } else { 0 }
    }

    /// Compares a field of the lookup table, of 8 bytes, with 0. May change `scratch`.
    fn emit_test_table(&self, asm: &mut Asm, field: usize, scratch: Reg) {
        let disp = field as i32 - offset_of!(LookupTable, buckets) as i32;
        if self.is_low() {
            asm.cmp_at_imm8(self.buckets.0 as i32 + disp, 0);
        } else {
            asm.mov_imm64(scratch, self.buckets.0);
            asm.cmp_imm8(scratch, disp, 0);
        }
    }

    /// Offset of the cells pointer in a lookup entry.
    pub(crate) fn cells_disp(&self) -> i32 {
        self.bucket_disp() + ENTRY_CELLS
    }
}

fn call(asm: &mut Asm, function: Va) {
    asm.mov_imm64(Reg::Rax, function.0);
    asm.call_reg(Reg::Rax);
}

/// `rax` = lookup entry of this thread, or 0: the first bucket, else `agent_slot`.
fn find_entry(asm: &mut Asm, env: &Env) {
    let slow = asm.label();
    let found = asm.label();
    let done = asm.label();
    env.emit_bucket(asm, Reg::Rax, Reg::Rsi);
    asm.cmp_mem(Reg::Rax, env.bucket_disp(), Reg::Rsi);
    asm.jcc(Cond::Ne, slow);
    asm.load(Reg::Rcx, Reg::Rax, env.cells_disp());
    asm.test(Reg::Rcx);
    asm.jcc(Cond::Ne, found);
    asm.bind(slow);
    asm.mov_imm64(Reg::Rdi, env.private.0);
    call(asm, env.agent_slot);
    asm.jmp(done);
    asm.bind(found);
    asm.lea(Reg::Rax, Reg::Rax, env.bucket_disp());
    asm.bind(done);
}

/// `[missed + probe * 8] += 1`, for all threads.
fn count_missed(asm: &mut Asm, env: &Env, probe_disp: i32) {
    asm.load32(Reg::Rcx, Reg::Rbx, probe_disp);
    asm.mov_imm64(Reg::R9, env.missed.0);
    asm.lea_index8(Reg::Rcx, Reg::R9, Reg::Rcx);
    asm.add_one(Reg::Rcx, 0, true);
}

fn hit(asm: &mut Asm, env: &Env, place: Place, watch: bool, goroutine: Option<i32>) {
    // stack: return, probe
    let missed = asm.label();
    let out = asm.label();
    let frame = place.frame(env, env.context, env.changes);
    if goroutine.is_some() {
        goroutine::check_room(asm, env, frame.bytes(), frame.above_sp);
    }
    frame.save(asm);
    let probe = ABOVE + 8;
    if env.context.has_ip(env.isa) {
        asm.load32(Reg::Rcx, Reg::Rbx, probe);
        program::load_site(asm, env);
        asm.store(Reg::Rbx, regs!(rip), Reg::Rcx);
    }
    find_entry(asm, env);
    asm.test(Reg::Rax);
    asm.jcc(Cond::E, missed);
    if let Some(need) = goroutine {
        asm.load(Reg::R9, Reg::Rax, ENTRY_STATE);
        asm.test(Reg::R9);
        asm.jcc(Cond::E, missed);
        goroutine::prepare(asm, env, need, missed);
        goroutine::enter(asm, env, need);
        asm.mov(Reg::Rsi, Reg::R9);
    } else {
        asm.load(Reg::Rsi, Reg::Rax, ENTRY_STATE);
    }
    asm.lea(Reg::Rdi, Reg::Rbx, REGS);
    asm.mov_imm64(Reg::Rdx, env.private.0);
    asm.load32(Reg::Rcx, Reg::Rbx, probe);
    call(asm, env.agent_hit);
    if goroutine.is_some() {
        goroutine::leave(asm);
    }
    if watch {
        watched::choose(asm, env, missed, out);
    } else {
        asm.jmp(out);
        asm.bind(missed);
        count_missed(asm, env, probe);
    }
    asm.bind(out);
    frame.restore(asm);
    asm.ret();
}

/// See [`crate::thunk::thunks`]; of 64-bit code.
pub(crate) fn thunks(
    at: Va,
    env: &Env,
    enter: Va,
    programs: &[Option<Program>],
    ends: &[End],
    goroutine: Option<i32>,
) -> (Vec<u8>, Thunks) {
    let mut asm = Asm::new(at);
    let agent = Places::emit(&mut asm, |asm, place| hit(asm, env, place, false, goroutine));
    let returns = Places::emit(&mut asm, |asm, place| hit(asm, env, place, true, None));
    let far = enter;
    let enter = asm.here();
    asm.jmp_far(far);
    asm.align(16);
    let programs = programs
        .iter()
        .map(|program| {
            let program = program.as_ref()?;
            Some(Places::emit(&mut asm, |asm, place| program::run(asm, env, program, place)))
        })
        .collect();
    // The calls of goroutines are remembered in another way.
    let ends = ends.iter().filter(|_| goroutine.is_none());
    let ends = ends.map(|end| (end.side, end.number, kept::emit(&mut asm, env, end, agent))).collect();
    (asm.finish(), Thunks { agent, returns, enter, programs, ends, inlined: Inlined::default() })
}

/// What other sessions need of this one ([`sidestep_wire::private::TRAMPOLINE_HEAD`]).
fn head(env: &Env) -> Vec<u8> {
    [env.private.0.to_le_bytes(), env.agent_real.0.to_le_bytes()].concat()
}

/// See [`crate::thunk::globals`]; of 64-bit code. The trampoline leaves by `ret`, as the function
/// has returned to where it was called from (`watched`).
pub(crate) fn globals(at: Va, env: &Env) -> (Vec<u8>, Globals) {
    let mut asm = Asm::new(at);
    asm.raw(&head(env));
    let enter = asm.here();
    // Two instructions of the detour left the stack pointer above the slot.
    asm.call_mem_rsp(-16);
    let trampoline = asm.here();
    asm.raw(&TRAMPOLINE_MARK);
    // The slot becomes the real return address. Until then it still holds the trampoline's address:
    // that is how the agent sees, in a signal handler, that the frame is alive.
    asm.lea(Reg::Rsp, Reg::Rsp, -8);
    let frame = Frame { xmm: env.agent_vectors, context: env.context, changes: env.changes, above_sp: 8, bare: false };
    frame.save(&mut asm);
    find_entry(&mut asm, env);
    let no_entry = asm.label();
    asm.mov(Reg::Rsi, Reg::Rax);
    asm.test(Reg::Rax);
    asm.jcc(Cond::E, no_entry);
    asm.load(Reg::Rsi, Reg::Rax, ENTRY_STATE);
    asm.bind(no_entry);
    asm.lea(Reg::Rdi, Reg::Rbx, REGS);
    asm.mov_imm64(Reg::Rdx, env.private.0);
    call(&mut asm, env.agent_return);
    asm.store(Reg::Rbx, ABOVE, Reg::Rax);
    frame.restore(&mut asm);
    asm.ret();
    asm.align(16);

    // The kernel calls this with (sig, info, context) in rdi, rsi, rdx; the agent wants its memory
    // first. The program's own handler gets all as the kernel has made it: registers (rax = 0),
    // stack pointer, return address.
    let signal = asm.here();
    let done = asm.label();
    asm.push(Reg::Rdi);
    asm.push(Reg::Rsi);
    asm.push(Reg::Rdx);
    asm.mov(Reg::Rcx, Reg::Rdx);
    asm.mov(Reg::Rdx, Reg::Rsi);
    asm.mov(Reg::Rsi, Reg::Rdi);
    asm.mov_imm64(Reg::Rdi, env.private.0);
    call(&mut asm, env.agent_signal);
    asm.mov(Reg::Rcx, Reg::Rax);
    asm.pop(Reg::Rdx);
    asm.pop(Reg::Rsi);
    asm.pop(Reg::Rdi);
    asm.test(Reg::Rax);
    asm.jcc(Cond::E, done);
    asm.raw(&[0x31, 0xc0, 0xff, 0xe1]); // xor %eax,%eax; jmp *%rcx
    asm.bind(done);
    asm.ret();
    asm.align(16);

    let restorer = asm.here();
    asm.syscall(15); // rt_sigreturn
    asm.align(16);
    (asm.finish(), Globals { enter, trampoline, signal, restorer })
}
