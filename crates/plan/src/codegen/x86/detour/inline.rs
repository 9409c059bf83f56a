//! Programs at a site: as much of them as can be is a part of the detour, and saves what is live
//! and changed, nothing else.
//!
//! ```text
//!   filter:  save what it changes, compare …, restore, jmp done      stop: nothing else
//!   inline:  save what it changes, find the cells, count, program, restore
//!   done:
//!   …
//!   cold:    restore, push probe, call thunk, jmp done               all of it, with a frame
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use sidestep_bpf::native::x86_64::{self as native, Code, Env as Native, Shape, compile};
use sidestep_bpf::verify::Verified;
use sidestep_isa::live::Dead;
use sidestep_isa::patch::OutOfReach;
use sidestep_isa::x86::emit::{Asm, Cond, Label, Reg};
use sidestep_isa::{Isa, RegisterSet, Va};

use super::saved::{ORDER, Saved};
use crate::codegen::handler::Program;
use crate::codegen::thunk::{Env, Place, Places};
use crate::codegen::x86::thunk::{RED_ZONE, short};
use crate::context::Context;

/// What is emitted behind the detour.
pub struct Cold {
    probe: u32,
    thunk: Places,
    place: Place,
    done: Label,
    ways: Vec<Way>,
}

/// A way to the thunk: where it comes from, and what has to be restored before.
struct Way {
    label: Label,
    saved: Saved,
}

/// Emits the program; what is left goes behind the detour. `ip` is the instruction pointer that it
/// sees.
pub fn program(
    asm: &mut Asm,
    dead: Dead,
    ip: Va,
    program: &Program,
    (thunk, inlined): (Places, &Inlined),
    place: Place,
    env: &Env,
) -> Result<Option<Cold>, OutOfReach> {
    let done = asm.label();
    let inside = place.is_stepped();
    let mut cold = Cold { probe: program.probe, thunk, place, done, ways: Vec::new() };
    let native = Native { attach_cookie: Some(program.cookie), func_ip: Some(program.func_ip.0), ..env.native };
    // What comes before the program must leave it what it reads.
    let site = Site { dead: program.context.spare(Isa::X64, dead), inside, ip: ip.0, native, inlined };
    if let Some(filter) = &program.filter {
        if let Some((code, saved)) = site.filter(filter) {
            let go = asm.label();
            saved.save(asm);
            asm.code(&code.bytes, &code.go.iter().map(|at| (*at, go)).collect::<Vec<_>>());
            saved.restore(asm);
            cold.ways.push(Way { label: go, saved });
            asm.bind(done);
            return Ok(Some(cold));
        }
    }
    match program.inline.as_ref().and_then(|inline| site.inline(asm, inline, program.probe, env)) {
        Some(way) => cold.ways.push(way),
        None => {
            cold.call(asm)?;
            return Ok(None);
        }
    }
    asm.bind(done);
    Ok(Some(cold))
}

/// Emits a program of 32-bit code: if it only adds to cells, that is done in the detour. There is
/// no native code for 32-bit programs, so all others go through the thunk.
pub fn count(
    asm: &mut Asm,
    dead: Dead,
    program: &Program,
    thunk: Places,
    env: &Env,
) -> Result<Option<Cold>, OutOfReach> {
    let done = asm.label();
    let place = Place::of(dead, false);
    let mut cold = Cold { probe: program.probe, thunk, place, done, ways: Vec::new() };
    let Some(additions) = program.additions() else {
        cold.call(asm)?;
        return Ok(None);
    };
    let changed = Reg::Rax.bit() | Reg::Rcx.bit() | Reg::Rdx.bit();
    let (saved, slow) = (Saved::new(dead, changed, true), asm.label());
    saved.save(asm);
    short::count(asm, env, &additions, slow);
    saved.restore(asm);
    cold.ways.push(Way { label: slow, saved });
    asm.bind(done);
    Ok(Some(cold))
}

impl Cold {
    fn call(&self, asm: &mut Asm) -> Result<(), OutOfReach> {
        super::call(asm, self.probe, self.thunk, self.place)
    }

    pub fn emit(self, asm: &mut Asm) -> Result<(), OutOfReach> {
        for way in &self.ways {
            asm.bind(way.label);
            way.saved.restore(asm);
            self.call(asm)?;
            asm.jmp(self.done);
        }
        Ok(())
    }
}

/// Programs that were compiled as parts of detours. Most sites of a slab have the same registers to
/// spare, so few of them need code of their own.
#[derive(Clone, Debug, Default)]
pub struct Inlined {
    made: RefCell<HashMap<Key, Option<Made>>>,
}

/// What was compiled is always the same, so it makes no difference whether it is there already.
impl PartialEq for Inlined {
    fn eq(&self, _: &Inlined) -> bool {
        true
    }
}

impl Eq for Inlined {}

/// A program by its address, whether it is a filter, and what is true of the site.
type Key = (*const Verified, bool, RegisterSet, bool, bool);

/// Code, and what has to be saved around it.
type Made = (Rc<Code>, Saved);

/// Where a program is to be inlined.
struct Site<'a> {
    dead: Dead,
    inside: bool,
    ip: u64,
    native: Native,
    inlined: &'a Inlined,
}

impl Site<'_> {
    fn inline(&self, asm: &mut Asm, program: &Rc<Verified>, probe: u32, env: &Env) -> Option<Way> {
        // What the program reads of the site must not be used for finding the cells.
        let read = Context(program.facts.context).registers(Isa::X64);
        let free = |reg: &Reg| read & reg.bit() == 0 && *reg != Reg::Rax;
        let mut scratch: Vec<Reg> = ORDER.into_iter().filter(free).collect();
        scratch.sort_by_key(|reg| self.dead.regs & reg.bit() == 0);
        let (&cells, &key) = (scratch.first()?, scratch.get(1)?);
        let (code, saved) = self.compile(
            program,
            |site| Shape::Inline(native::Site { cells: Some(cells), ..site }),
            |code| (code.clobbers | cells.bit() | key.bit(), true),
        )?;

        let slow = asm.label();
        saved.save(asm);
        env.emit_bucket(asm, cells, key);
        asm.cmp_mem(cells, env.bucket_disp(), key);
        asm.jcc(Cond::Ne, slow);
        asm.load(cells, cells, env.cells_disp());
        asm.test(cells);
        asm.jcc(Cond::E, slow);
        asm.add_one(cells, probe as i32 * 8, false);
        asm.raw(&code.bytes);
        saved.restore(asm);
        Some(Way { label: slow, saved })
    }

    fn filter(&self, program: &Rc<Verified>) -> Option<Made> {
        // One that never lets anything pass has nothing to spare: the hit counts.
        let found = self.compile(program, Shape::Filter, |code| (code.clobbers, code.flags));
        found.filter(|(code, _)| !code.go.is_empty())
    }

    /// Code, and what it makes necessary to save: `changes` are the registers, and whether the
    /// flags. It is the same at all sites with the same registers to spare, unless it contains
    /// their address or number.
    fn compile(
        &self,
        program: &Rc<Verified>,
        shape: impl Fn(native::Site) -> Shape,
        changes: impl Fn(&Code) -> (RegisterSet, bool),
    ) -> Option<Made> {
        let names_site = program.facts.calls(|helper| matches!(helper.name, "get_func_ip" | "get_attach_cookie"));
        if names_site || Context(program.facts.context).has_ip(Isa::X64) {
            return self.compile_anew(program, shape, changes);
        }
        let none = native::Site { dead: 0, cells: None, sp: 0, ip: 0, cookie: None };
        let is_filter = matches!(shape(none), Shape::Filter(_));
        let key = (Rc::as_ptr(program), is_filter, self.dead.regs, self.dead.flags, self.inside);
        let known = self.inlined.made.borrow().get(&key).cloned();
        known.unwrap_or_else(|| {
            let made = self.compile_anew(program, shape, changes);
            self.inlined.made.borrow_mut().insert(key, made.clone());
            made
        })
    }

    fn compile_anew(
        &self,
        program: &Verified,
        shape: impl Fn(native::Site) -> Shape,
        changes: impl Fn(&Code) -> (RegisterSet, bool),
    ) -> Option<Made> {
        let attempt = |pushed: i32| {
            let stepped = if self.inside { RED_ZONE } else { 0 };
            let site =
                native::Site { dead: self.dead.regs, cells: None, sp: stepped + pushed, ip: self.ip, cookie: None };
            let code = compile(&program.program, &program.facts, &self.native, shape(site)).ok()?;
            let (changed, flags) = changes(&code);
            let saved = Saved::new(self.dead, changed, flags);
            // The flags would be where the program looks for a value of the site.
            let clash = saved.has_flags() && Context(program.facts.context).registers(Isa::X64) & Reg::Rax.bit() != 0;
            (!clash).then_some((Rc::new(code), saved))
        };
        // How much is pushed says where the site's stack pointer is; code that looks at it is as
        // long either way.
        let (_, saved) = attempt(0)?;
        attempt(saved.bytes())
    }
}
