//! Calls that are remembered from the entry of a function to its exit, in generated code.
//!
//! What is here does the same as `shadow::kept` of the agent, with the same order of stores, which
//! `memory/call.rs` there explains. Whatever is not the usual case is left to the agent's thunk:
//! nothing has happened then.

use std::mem::offset_of;

use sidestep_bpf::native::x86_64::{Code, Env as Native, Shape, Site, compile};
use sidestep_bpf::pass::only_keeps;
use sidestep_isa::live::Dead;
use sidestep_isa::x86::emit::{Asm, Cond, Label, Reg};
use sidestep_isa::{Isa, RegisterSet, Va};
use sidestep_wire::arch::x86::Hit;
use sidestep_wire::lookup::LookupTable;
use sidestep_wire::private::{CALLS, CALLS_OFF};
use sidestep_wire::{Call, ProbeDesc, ShadowEntry};

use super::{ENTRY_STATE, RED_ZONE, frame};
use crate::codegen::thunk::{End, Env, Place, Places, Side};
use crate::codegen::x86::detour::saved::Saved;
use crate::context::Context;

/// All that the code for finding the call changes.
const CHANGED: [Reg; 6] = [Reg::Rax, Reg::Rcx, Reg::Rdx, Reg::R9, Reg::R10, Reg::R11];
/// The word that is kept for the return ([`Hit::cookie`]).
const COOKIE: Reg = Reg::R11;
/// The thread's cells.
const CELLS: Reg = Reg::R9;
/// The thread's state.
const STATE: Reg = Reg::R10;
/// The stack slot of the return address.
const SLOT: Reg = Reg::Rcx;
/// The thread's state, plus the distance from the first call of the table to the call of the slot.
const CALL: Reg = STATE;

/// A field of a call, from [`CALL`].
macro_rules! call {
    ($field:ident) => {
        (CALLS_OFF + offset_of!(Call, $field)) as i32
    };
}

/// Emits the code of an end; gives where it is. The agent's thunk does what is not there.
pub(super) fn emit(asm: &mut Asm, env: &Env, end: &End, agent: Places) -> Places {
    let mut at = |place| {
        let Some(parts) = Parts::new(env, end, place) else { return agent.at(place) };
        let at = asm.here();
        match end.side {
            Side::Enter => parts.enter(asm, env, agent.at(place)),
            Side::Leave => parts.leave(asm, env, agent.at(place)),
            Side::Jump => parts.jump(asm, env, agent.at(place)),
        }
        asm.align(16);
        at
    };
    match end.side {
        Side::Enter => Places { entry: at(Place::Entry), bare: at(Place::Bare), ..agent },
        Side::Leave | Side::Jump => Places { inside: at(Place::Inside), ..agent },
    }
}

/// What the code consists of.
struct Parts {
    code: Code,
    saved: Saved,
    /// Registers that the program reads, a bit each.
    reads: RegisterSet,
    /// From the stack pointer, behind what was saved: the number of the probe.
    probe: i32,
    /// From there, too: the slot of the return address.
    slot: i32,
}

impl Parts {
    /// `None` if the program cannot be a part of the code.
    fn new(env: &Env, end: &End, place: Place) -> Option<Parts> {
        let context = Context(end.program.facts.context);
        let reads = context.registers(Isa::X64);
        match end.side {
            Side::Enter if context.has_cookie(Isa::X64) || !only_keeps(&end.program) => return None,
            Side::Leave if Context(end.program.facts.context_written).has_cookie(Isa::X64) => return None,
            // That of the exit is not that of the return.
            Side::Leave if context.has_sp(Isa::X64) => return None,
            Side::Enter | Side::Leave | Side::Jump => {}
        }
        // All probes of a slab share the code.
        let native = Native { attach_cookie: None, func_ip: None, ..env.native };
        let (own, cells) = match end.side {
            Side::Enter => (COOKIE.bit(), None),
            Side::Leave | Side::Jump => (COOKIE.bit() | CELLS.bit(), Some(CELLS)),
        };
        if context.has_ip(Isa::X64) || reads & own != 0 {
            return None;
        }
        let dead = match place {
            Place::Bare => Dead { regs: frame::unused(), flags: true },
            _ => Dead::default(),
        };
        // All of these are saved anyway.
        let changed = CHANGED.iter().fold(0, |set, reg| set | reg.bit());
        let free = changed & !own & !reads;
        let attempt = |pushed: i32| {
            let zone = if place.is_stepped() { RED_ZONE } else { 0 };
            let (probe, slot) = (pushed + 8, pushed + 16 + zone);
            let site = Site { dead: free, cells, sp: slot, ip: 0, cookie: Some(COOKIE) };
            let code = compile(&end.program.program, &end.program.facts, &native, Shape::Inline(site)).ok()?;
            let saved = Saved::new(dead, changed | code.clobbers, true);
            Some(Parts { code, saved, reads, probe, slot })
        };
        // The length of the code does not depend on how much is pushed.
        attempt(attempt(0)?.saved.bytes())
    }

    /// The end where a function is entered. The program runs first: it has no effect yet.
    fn enter(&self, asm: &mut Asm, env: &Env, agent: Va) {
        let slow = asm.label();
        self.saved.save(asm);
        self.saved.reload(asm, self.reads);
        asm.mov_imm64(COOKIE, 0);
        asm.raw(&self.code.bytes);
        find_state(asm, env, slow);
        self.find_call(asm);
        asm.clear(Reg::Rax);
        asm.mov_imm32(Reg::Rdx, Call::BUSY as u32);
        asm.replace(CALL, call!(slot), Reg::Rdx);
        asm.jcc(Cond::Ne, slow);
        asm.load32(Reg::Rax, Reg::Rsp, self.probe);
        asm.store(CALL, call!(probe), Reg::Rax);
        asm.load(Reg::Rdx, SLOT, 0);
        asm.store(CALL, call!(ret), Reg::Rdx);
        asm.store(CALL, call!(cookie), COOKIE);
        asm.store(CALL, call!(slot), SLOT);
        asm.lea_index8(CELLS, CELLS, Reg::Rax);
        asm.add_one(CELLS, 0, false);
        self.saved.restore(asm);
        asm.ret();
        asm.bind(slow);
        self.saved.restore(asm);
        asm.jmp_far(agent);
    }

    /// The end where a function is about to return.
    fn leave(&self, asm: &mut Asm, env: &Env, agent: Va) {
        let slow = asm.label();
        self.saved.save(asm);
        find_state(asm, env, slow);
        self.find_own(asm, env, slow);
        // Another one may have been left there by an exception. The agent knows which exits have to
        // tell that.
        asm.load(Reg::Rdx, SLOT, 0);
        asm.cmp_mem(CALL, call!(ret), Reg::Rdx);
        asm.jcc(Cond::Ne, slow);
        asm.load(COOKIE, CALL, call!(cookie));
        // Only this thread takes the call: it has not moved to another one.
        asm.store_imm(CALL, call!(slot), 0);
        asm.load32(Reg::Rax, Reg::Rsp, self.probe);
        asm.lea_index8(Reg::Rax, CELLS, Reg::Rax);
        asm.add_one(Reg::Rax, 0, false);
        self.saved.reload(asm, self.reads);
        asm.raw(&self.code.bytes);
        self.saved.restore(asm);
        asm.ret();
        asm.bind(slow);
        self.saved.restore(asm);
        asm.jmp_far(agent);
    }

    /// The function is about to jump to another one.
    fn jump(&self, asm: &mut Asm, env: &Env, agent: Va) {
        let slow = asm.label();
        self.saved.save(asm);
        find_state(asm, env, slow);
        self.find_own(asm, env, slow);
        asm.mov_imm32(Reg::Rax, ShadowEntry::JUMPED as u32);
        asm.add(Reg::Rdx, Reg::Rax);
        asm.store(CALL, call!(probe), Reg::Rdx);
        self.saved.restore(asm);
        asm.ret();
        asm.bind(slow);
        self.saved.restore(asm);
        asm.jmp_far(agent);
    }

    /// The call that [`ProbeDesc::pair`] means, and that into `rdx`. To `slow` if another one is
    /// there, or none. Changes `rax`.
    fn find_own(&self, asm: &mut Asm, env: &Env, slow: Label) {
        self.find_call(asm);
        asm.cmp_mem(CALL, call!(slot), SLOT);
        asm.jcc(Cond::Ne, slow);
        // `pair` is one more than the number of the probe.
        asm.load32(Reg::Rax, Reg::Rsp, self.probe);
        asm.imul_imm(Reg::Rax, Reg::Rax, size_of::<ProbeDesc>() as i32);
        asm.mov_imm64(Reg::Rdx, env.descs.0);
        asm.add(Reg::Rdx, Reg::Rax);
        asm.load32(Reg::Rdx, Reg::Rdx, offset_of!(ProbeDesc, pair) as i32);
        asm.lea(Reg::Rdx, Reg::Rdx, -1);
        asm.cmp_mem(CALL, call!(probe), Reg::Rdx);
        asm.jcc(Cond::Ne, slow);
    }

    /// The slot into its register, and the call of the slot. Changes `rax`.
    fn find_call(&self, asm: &mut Asm) {
        asm.lea(SLOT, Reg::Rsp, self.slot);
        const SHIFT: u8 = (size_of::<Call>() as u64 / Call::DISTANCE).trailing_zeros() as u8;
        const MASK: i32 = ((CALLS - 1) * size_of::<Call>()) as i32;
        asm.mov(Reg::Rax, SLOT);
        asm.shl(Reg::Rax, SHIFT);
        asm.and32(Reg::Rax, MASK);
        asm.add(CALL, Reg::Rax);
    }
}

/// The thread's cells and state into their registers. To `slow` where there are none, and where
/// calls may have moved to other threads. Changes `rcx`.
fn find_state(asm: &mut Asm, env: &Env, slow: Label) {
    env.emit_bucket(asm, STATE, Reg::Rcx);
    asm.cmp_mem(STATE, env.bucket_disp(), Reg::Rcx);
    asm.jcc(Cond::Ne, slow);
    asm.load(CELLS, STATE, env.cells_disp());
    asm.test(CELLS);
    asm.jcc(Cond::E, slow);
    asm.load(STATE, STATE, env.bucket_disp() + ENTRY_STATE);
    env.emit_test_table(asm, offset_of!(LookupTable, migrated), Reg::Rcx);
    asm.jcc(Cond::Ne, slow);
}

const _: () = assert!(Hit::COOKIE == 8 * 21);
const _: () = assert!(size_of::<Call>() as u64 % Call::DISTANCE == 0);
