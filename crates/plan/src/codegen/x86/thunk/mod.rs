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

use sidestep_bpf::native::x86_64::Env as Native;
use sidestep_isa::live::Dead;
use sidestep_isa::x86::emit::{Asm, Cond, Reg};
pub use sidestep_isa::x86::emit::{SETS_THREAD_POINTER_LEN, sets_thread_pointer, thread_pointer_through_self};
use sidestep_isa::{Isa, Va};
use sidestep_wire::private::TRAMPOLINE_MARK;
use sidestep_wire::{LookupEntry, Regs};

pub use crate::context::Context;
use frame::{ABOVE, Frame, REGS, regs};

use crate::codegen::x86::detour::Inlined;
pub use interpreted::{Interpreted, interpreted};
pub use kept::{End, Side};
pub use program::Program;

/// Run-time facts that generated code contains.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// What the code is.
    pub isa: Isa,
    /// Address of the private region.
    pub private: Va,
    /// Address of the first bucket of the lookup table; below 2 GiB, so that it fits a
    /// displacement.
    pub buckets: Va,
    /// Address of the array of missed counts.
    pub missed: Va,
    /// Address of the descriptions of the probes.
    pub descs: Va,
    /// `agent_slot`.
    pub agent_slot: Va,
    /// `agent_hit`.
    pub agent_hit: Va,
    /// `agent_return`.
    pub agent_return: Va,
    /// `agent_stack`.
    pub agent_stack: Va,
    /// `agent_busy`.
    pub agent_busy: Va,
    /// `agent_real`.
    pub agent_real: Va,
    /// `agent_signal`.
    pub agent_signal: Va,
    /// What programs read of the context that run at returns, or before the agent watches for one.
    pub context: Context,
    /// What they may change of it.
    pub changes: Context,
    /// The xmm registers that the agent's code touches, a bit each.
    pub agent_xmm: u16,
    /// What programs are compiled for.
    pub native: Native,
    /// Every thread has its thread pointer at `%fs:0`, now and from now on.
    pub self_pointer: bool,
    /// Multiplier of the lookup hash (`wire::lookup`).
    pub hash_multiplier: i32,
    /// Shift of the lookup hash.
    pub hash_shift: u8,
    /// Number of buckets, a power of two.
    pub bucket_count: u32,
    /// The handlers of a site can be switched one by one.
    pub singly: bool,
}

const ENTRY_SHIFT: u8 = size_of::<LookupEntry>().trailing_zeros() as u8;
const ENTRY_CELLS: i32 = offset_of!(LookupEntry, cells) as i32;
const ENTRY_STATE: i32 = offset_of!(LookupEntry, state) as i32;

/// Where the shared code of a slab is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thunks {
    /// Those of the agent's hit function.
    pub agent: Places,
    /// Those of the agent's hit function for probes that may replace the return address.
    pub returns: Places,
    /// Leads to [`Globals::enter`].
    pub enter: Va,
    /// Those of each program that was given, in the same order.
    pub programs: Vec<Option<Places>>,
    /// Those of each end of remembered calls that was given.
    pub ends: Vec<(Side, usize, Places)>,
    /// Programs as parts of the detours of the slab.
    pub inlined: Inlined,
}

/// A thunk for each [`Place`]. All take the number of the probe from the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    entry: Va,
    bare: Va,
    inside: Va,
    exit: Va,
}

/// Where a site is, as far as thunks care.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At a function entry.
    Entry,
    /// At a function entry where nobody needs `rax`, `r10`, `r11` and the flags any more: at most
    /// of them.
    Bare,
    /// Elsewhere; the detour has stepped over the red zone.
    Inside,
    /// In front of an exit; the detour has stepped over the red zone. The program sees the
    /// registers as they are behind the return.
    Exit,
}

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
        Frame { xmm: env.agent_xmm, context, changes, above_sp, bare: self == Place::Bare }
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

    /// Its address.
    #[must_use]
    pub fn at(&self, place: Place) -> Va {
        match place {
            Place::Entry => self.entry,
            Place::Bare => self.bare,
            Place::Inside => self.inside,
            Place::Exit => self.exit,
        }
    }
}

/// Process-wide code: the return trampoline and the signal entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Globals {
    /// Calls a function whose return address was replaced (`watched`).
    pub enter: Va,
    /// What a replaced return address points to.
    pub trampoline: Va,
    /// Handler of the signals of ours.
    pub signal: Va,
    /// Its restorer.
    pub restorer: Va,
}

/// Bytes of red zone below the stack pointer (System V ABI, AMD64 supplement, 3.2.2).
pub const RED_ZONE: i32 = 128;

impl Env {
    /// Bucket address of the key in `key` to `out`, as displacement base for `self.buckets`.
    pub(crate) fn emit_hash(&self, asm: &mut Asm, out: Reg, key: Reg) {
        asm.imul_imm(out, key, self.hash_multiplier);
        asm.shr(out, self.hash_shift - ENTRY_SHIFT);
        asm.and32(out, ((self.bucket_count - 1) << ENTRY_SHIFT) as i32);
    }

    pub(crate) fn bucket_disp(&self) -> i32 {
        self.buckets.0 as i32
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
    asm.thread_pointer(Reg::Rsi, env.self_pointer);
    env.emit_hash(asm, Reg::Rax, Reg::Rsi);
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
    frame.save(asm);
    let probe = ABOVE + 8;
    if env.context.has_ip() {
        asm.load32(Reg::Rcx, Reg::Rbx, probe);
        program::load_site(asm, env);
        asm.store(Reg::Rbx, regs!(rip), Reg::Rcx);
    }
    if goroutine.is_some() {
        goroutine::check_room(asm, env, missed);
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

/// The shared code at the start of a slab. `enter` is [`Globals::enter`]; of the programs, those
/// and `ends` that its detours need. `goroutine`: the detours are on stacks of goroutines, of which
/// the agent needs so many bytes.
#[must_use]
pub fn thunks(
    at: Va,
    env: &Env,
    enter: Va,
    programs: &[Option<Program>],
    ends: &[End],
    goroutine: Option<i32>,
) -> (Vec<u8>, Thunks) {
    if env.isa == Isa::X86 {
        return short::thunks(at, env, enter, programs);
    }
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

impl Thunks {
    /// The thunk of one end of remembered calls, with this program.
    #[must_use]
    pub fn end(&self, side: Side, number: usize) -> Places {
        let found = self.ends.iter().find(|end| (end.0, end.1) == (side, number));
        found.map_or(self.agent, |end| end.2)
    }
}

/// What other sessions need of this one ([`sidestep_wire::private::TRAMPOLINE_HEAD`]).
fn head(env: &Env) -> Vec<u8> {
    [env.private.0.to_le_bytes(), env.agent_real.0.to_le_bytes()].concat()
}

/// The process-wide code.
///
/// The trampoline leaves by `ret`, as the function has returned to where it was called from
/// (`watched`).
#[must_use]
pub fn globals(at: Va, env: &Env) -> (Vec<u8>, Globals) {
    if env.isa == Isa::X86 {
        return short::globals(at, env);
    }
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
    let frame = Frame { xmm: env.agent_xmm, context: env.context, changes: env.changes, above_sp: 8, bare: false };
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
