//! Calls that are remembered from the entry of a function to its exit, in generated code.
//!
//! What is here does the same as `shadow::kept` of the agent, with the same order of stores, which
//! `shadow.rs` there explains. Whatever is not the usual case is left to the agent's thunk: nothing
//! has happened then, or what has happened is a dead entry.

use std::mem::offset_of;
use std::rc::Rc;

use sidestep_bpf::native::x86_64::{Code, Env as Native, Shape, Site, compile};
use sidestep_bpf::pass::only_keeps;
use sidestep_bpf::verify::Verified;
use sidestep_isa::Va;
use sidestep_isa::x86::emit::{Asm, Cond, Label, Reg};
use sidestep_isa::x86::live::Dead;
use sidestep_wire::lookup::LookupTable;
use sidestep_wire::{Hit, ProbeDesc, ShadowEntry, ShadowHead, ThreadState};

use super::{Context, ENTRY_STATE, Env, Place, Places, RED_ZONE, frame};
use crate::detour::saved::Saved;

/// One end of the calls of a probe, with what runs there.
#[derive(Clone, Debug)]
pub struct End {
    /// Which end.
    pub side: Side,
    /// Number of the program: [`crate::handler::Handler::end`] asks for it.
    pub number: usize,
    /// The program, linked.
    pub program: Rc<Verified>,
}

/// Which end of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Side {
    /// The function is entered: the program runs, and the call is remembered.
    Enter,
    /// The function is about to return: the call is forgotten, and the program runs.
    Leave,
}

/// All that the code for finding the call changes.
const CHANGED: [Reg; 9] = [Reg::Rax, Reg::Rcx, Reg::Rdx, Reg::Rsi, Reg::Rdi, Reg::R8, Reg::R9, Reg::R10, Reg::R11];
/// The word that is kept for the return ([`Hit::cookie`]).
const COOKIE: Reg = Reg::R11;
/// The thread's cells.
const CELLS: Reg = Reg::R9;
/// The thread's state.
const STATE: Reg = Reg::R10;
/// The shadow stack.
const SHADOW: Reg = Reg::Rcx;
/// An entry of that.
const CALL: Reg = Reg::Rsi;

const KEPT: u8 = ShadowEntry::KEPT.trailing_zeros() as u8;
const ENTRY: i32 = size_of::<ShadowEntry>() as i32;

/// From a shadow stack: its capacity.
const CAP: i32 = offset_of!(ShadowHead, cap) as i32 - size_of::<ShadowHead>() as i32;

/// A field of the thread's state.
macro_rules! state {
    ($field:ident) => {
        offset_of!(ThreadState, $field) as i32
    };
}
/// A field of an entry.
macro_rules! entry {
    ($field:ident) => {
        offset_of!(ShadowEntry, $field) as i32
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
        }
        asm.align(16);
        at
    };
    match end.side {
        Side::Enter => Places { entry: at(Place::Entry), bare: at(Place::Bare), ..agent },
        Side::Leave => Places { inside: at(Place::Inside), ..agent },
    }
}

/// What the code consists of.
struct Parts {
    code: Code,
    saved: Saved,
    /// Registers that the program reads, a bit each.
    reads: u16,
    /// From the stack pointer, behind what was saved: the number of the probe.
    probe: i32,
    /// From there, too: the slot of the return address.
    slot: i32,
}

impl Parts {
    /// `None` if the program cannot be a part of the code.
    fn new(env: &Env, end: &End, place: Place) -> Option<Parts> {
        let context = Context(end.program.facts.context);
        let reads = context.registers();
        match end.side {
            Side::Enter if context.has_cookie() || !only_keeps(&end.program) => return None,
            Side::Leave if Context(end.program.facts.context_written).has_cookie() => return None,
            // That of the exit is not that of the return.
            Side::Leave if context.has_sp() => return None,
            Side::Enter | Side::Leave => {}
        }
        // All probes of a slab share the code.
        let native = Native { attach_cookie: None, func_ip: None, ..env.native };
        let (own, cells) = match end.side {
            Side::Enter => (COOKIE.bit(), None),
            Side::Leave => (COOKIE.bit() | CELLS.bit(), Some(CELLS)),
        };
        if context.has_ip() || reads & own != 0 {
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
        let (slow, undo, fresh, same) = (asm.label(), asm.label(), asm.label(), asm.label());
        self.saved.save(asm);
        self.saved.reload(asm, self.reads);
        asm.mov_imm64(COOKIE, 0);
        asm.raw(&self.code.bytes);
        find_state(asm, env, slow);
        // The next entry of the shadow stack. The newest one may be of the same call, of this probe
        // or another one.
        let (len, slot, next) = (Reg::Rax, Reg::Rdi, Reg::R8);
        asm.load(len, STATE, state!(shadow_len));
        asm.cmp_mem(SHADOW, CAP, len);
        asm.jcc(Cond::Be, slow);
        asm.imul_imm(CALL, len, ENTRY);
        asm.add(CALL, SHADOW);
        asm.lea(slot, Reg::Rsp, self.slot);
        asm.test(len);
        asm.jcc(Cond::E, fresh);
        asm.cmp_mem(CALL, entry!(slot) - ENTRY, slot);
        asm.jcc(Cond::E, same);
        asm.bind(fresh);
        asm.lea(next, len, 1);
        asm.replace(STATE, state!(shadow_len), next);
        asm.jcc(Cond::Ne, slow);
        asm.store(CALL, entry!(cookie), COOKIE);
        let index = COOKIE;
        asm.mov(index, len);
        asm.load(Reg::Rax, slot, 0);
        asm.store(CALL, entry!(ret), Reg::Rax);
        asm.store_imm(CALL, entry!(time), 0);
        asm.load32(Reg::Rax, Reg::Rsp, self.probe);
        asm.lea_index8(CELLS, CELLS, Reg::Rax);
        asm.set_bit(Reg::Rax, KEPT);
        asm.store(CALL, entry!(probe), Reg::Rax);
        asm.clear(Reg::Rax);
        asm.replace(CALL, entry!(slot), slot);
        asm.jcc(Cond::Ne, slow); // a handler left something there
        asm.cmp_mem(STATE, state!(shadow), SHADOW);
        asm.jcc(Cond::Ne, undo);
        asm.cmp_mem(STATE, state!(shadow_len), index);
        asm.jcc(Cond::Be, undo);
        asm.add_one(CELLS, 0, false);
        self.saved.restore(asm);
        asm.ret();
        // Another probe of the function, or an earlier call of this one, which has ended otherwise.
        asm.bind(same);
        asm.load32(next, Reg::Rsp, self.probe);
        asm.set_bit(next, KEPT);
        asm.cmp_mem(CALL, entry!(probe) - ENTRY, next);
        asm.jcc(Cond::Ne, fresh);
        asm.jmp(slow);
        // A handler has made room meanwhile.
        asm.bind(undo);
        asm.mov(Reg::Rax, slot);
        asm.clear(SHADOW);
        asm.replace(CALL, entry!(slot), SHADOW);
        asm.bind(slow);
        self.saved.restore(asm);
        asm.jmp_far(agent);
    }

    /// The end where a function is about to return. The call that returns is usually the newest.
    fn leave(&self, asm: &mut Asm, env: &Env, agent: Va) {
        let slow = asm.label();
        self.saved.save(asm);
        find_state(asm, env, slow);
        let (len, desc, scratch) = (Reg::Rdx, Reg::Rdi, Reg::R8);
        asm.load(len, STATE, state!(shadow_len));
        // One less than nothing is more than any capacity.
        asm.lea(CALL, len, -1);
        asm.cmp_mem(SHADOW, CAP, CALL);
        asm.jcc(Cond::Be, slow);
        asm.imul_imm(CALL, CALL, ENTRY);
        asm.add(CALL, SHADOW);
        asm.load32(Reg::Rax, Reg::Rsp, self.probe);
        asm.imul_imm(desc, Reg::Rax, size_of::<ProbeDesc>() as i32);
        asm.mov_imm64(scratch, env.descs.0);
        asm.add(desc, scratch);
        // `pair` is one more than the number. Without one this is no number.
        asm.load(scratch, desc, offset_of!(ProbeDesc, pair) as i32);
        asm.lea(scratch, scratch, -1);
        asm.set_bit(scratch, KEPT);
        asm.cmp_mem(CALL, entry!(probe), scratch);
        asm.jcc(Cond::Ne, slow);
        asm.lea(Reg::Rax, Reg::Rsp, self.slot);
        asm.cmp_mem(CALL, entry!(slot), Reg::Rax);
        asm.jcc(Cond::Ne, slow);
        asm.load(COOKIE, CALL, entry!(cookie));
        Parts::forget(asm, len, scratch, slow);
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

    /// Takes the newest entry, of the slot in `rax`, from the shadow stack. If a handler has made
    /// room meanwhile, its copy is left to the agent.
    fn forget(asm: &mut Asm, len: Reg, new: Reg, slow: Label) {
        asm.mov_imm64(new, 0);
        asm.replace(CALL, entry!(slot), new);
        asm.jcc(Cond::Ne, slow);
        asm.cmp_mem(STATE, state!(shadow), SHADOW);
        asm.jcc(Cond::Ne, slow);
        // Not if a handler has left something above it: then it is a dead entry like any other.
        asm.mov(Reg::Rax, len);
        asm.lea(new, len, -1);
        asm.replace(STATE, state!(shadow_len), new);
    }
}

/// The thread's cells, state and shadow stack into their registers. To `slow` where there are none,
/// and where calls may have moved to other threads. Changes `rcx`.
fn find_state(asm: &mut Asm, env: &Env, slow: Label) {
    asm.thread_pointer(Reg::Rcx, env.self_pointer);
    env.emit_hash(asm, STATE, Reg::Rcx);
    asm.cmp_mem(STATE, env.bucket_disp(), Reg::Rcx);
    asm.jcc(Cond::Ne, slow);
    asm.load(CELLS, STATE, env.cells_disp());
    asm.test(CELLS);
    asm.jcc(Cond::E, slow);
    asm.load(STATE, STATE, env.bucket_disp() + ENTRY_STATE);
    let table = env.bucket_disp() - offset_of!(LookupTable, buckets) as i32;
    asm.cmp_at_imm8(table + offset_of!(LookupTable, migrated) as i32, 0);
    asm.jcc(Cond::Ne, slow);
    asm.load(SHADOW, STATE, state!(shadow));
    asm.test(SHADOW);
    asm.jcc(Cond::E, slow);
}

const _: () = assert!(Hit::COOKIE == 8 * 21);
