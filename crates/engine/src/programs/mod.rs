//! Programs of a session: linked to the memory of their maps, compiled, placed.

mod context;
mod handlers;
mod part;

use std::collections::HashMap;
use std::mem::offset_of;
use std::rc::Rc;

use sidestep_bpf::insn::Imm64;
use sidestep_bpf::interp::{FRAME, MAX_DEPTH};
use sidestep_bpf::map::{Map, MapKind};
use sidestep_bpf::native::{self, Clock, Env};
use sidestep_bpf::pass::arguments::{self, Argument};
use sidestep_bpf::pass::{self, Addition, Link, Values};
use sidestep_bpf::verify::Verified;
use sidestep_isa::Va;
use sidestep_plan::thunk::native::{Native, Vectors, Wide, functions};
use sidestep_plan::thunk::{self};
use sidestep_sys::TscScale;
use sidestep_sys::arch::ISA;
use sidestep_wire::{MapDesc, ProbeDesc, ThreadState};

use crate::api::{Code, Program};
use crate::error::SessionError;
use crate::memory::layout::{Layout, MapPlace};
use context::context;
pub(crate) use context::{changed_registers, context_at_entry, uses_result};
pub(crate) use part::{Ends, Part};

/// Functions begin on their own half cache line.
const ALIGN: usize = 16;
/// What is between functions: nobody comes there.
const FILL: u8 = ISA.limits().breakpoint[0];

/// Bytes of stack that the agent needs at a hit, whatever the program calls (`agent_slot`, output,
/// reads of memory).
const AGENT_STACK: i32 = 384;
/// Bytes of stack of `agent_hit`, if it runs no program: a guard, or one end of a remembered call.
pub(crate) const HIT_STACK: i32 = 768;
/// Bytes of stack of `agent_hit` until it runs a program.
const RUN_STACK: i32 = 512;
/// The same for the interpreter's own frames.
const INTERPRETER_STACK: i32 = 768;

/// Bytes of stack that a function of the target is given on a goroutine's stack.
const NATIVE_STACK: i32 = 64 << 10;

/// Bytes of stack that a helper needs, somewhat rounded up: those of the longest chain of calls in
/// the agent's code.
fn helper_stack(number: u32) -> i32 {
    match number {
        2 => 1152,       // map_update_elem: makes room in an LRU hash
        1 | 3 => 640,    // map_lookup_elem, map_delete_elem
        27 | 67 => 1152, // get_stackid, get_stack
        _ => AGENT_STACK,
    }
}

/// Bytes of stack for an interpreted program: every nested call has its own frame.
fn frames(program: &sidestep_bpf::Program) -> i32 {
    FRAME as i32 * program.functions.len().clamp(1, MAX_DEPTH as usize) as i32
}

/// A program that was linked and compiled.
#[derive(Clone)]
struct Compiled {
    /// Its code, and what has to be around it.
    thunk: thunk::Program,
    /// Bytes of stack that it and what it calls need.
    stack: i32,
    /// For detours.
    inline: Option<Rc<Verified>>,
    /// For detours: decides whether the program has anything to do.
    filter: Option<Rc<Verified>>,
    /// For detours: all that it does, if that is to add to cells.
    adds: Option<Rc<[Addition]>>,
    /// Of the descriptors of its probes.
    flags: u32,
    /// What runs instead of the probed function.
    replaces: Option<Replaces>,
    /// The linked program that still asks where arguments are; here they are all missing.
    asks: Option<Rc<Asks>>,
}

/// A linked program that is completed for the sites of static probes.
struct Asks {
    verified: Verified,
    name: String,
    /// Numbers of the arguments that it wants, ascending.
    numbers: Vec<u64>,
}

/// Where a site has the arguments that a program asks for, by their numbers.
pub(crate) type Arguments = Vec<(u64, Argument)>;

/// A replacement; run-time addresses.
#[derive(Clone, Copy)]
struct Replaces {
    /// What runs.
    function: Va,
    /// The word that leads to the original.
    original: Va,
}

/// All programs of a session, and behind them one that does nothing: the hit is counted.
#[derive(Clone)]
pub(crate) struct Programs {
    compiled: Vec<Compiled>,
    /// Programs that were completed for sites. Their indices go on behind those of
    /// [`Programs::compiled`].
    completed: Vec<Compiled>,
    /// Which of them are for the sites that have a program's arguments at the same places.
    complete: HashMap<(usize, Arguments), usize>,
    /// Their code.
    pub bytes: Vec<u8>,
    /// What they are compiled for.
    pub env: Env,
    /// Where stubs have addresses, with [`Programs::place`] to fill them in.
    stubs: Vec<Stub>,
    /// Run-time address of the interpreter, if there is one.
    pub interpreter: Option<Va>,
    /// Somebody wants all programs to be interpreted.
    interprets_all: bool,
    /// See [`Programs::count_rejected`].
    counts_rejected: bool,
}

/// Programs that were completed for sites: see [`Programs::complete`].
pub(crate) struct Completed {
    pub programs: Programs,
    keys: HashMap<(usize, Arguments), usize>,
}

/// The code of a program that is interpreted: a call of the interpreter.
#[derive(Clone)]
struct Stub {
    /// Offset of a word that gets the address of the program's instructions …
    slots_at: usize,
    /// … which lie at this offset, …
    slots: usize,
    /// and of a word that gets the address of the interpreter.
    interpreter_at: usize,
}

/// Where maps are in the target.
pub(crate) struct Memory<'a> {
    pub layout: &'a Layout,
    pub maps: &'a [Map],
    /// Run-time address of the shared region.
    pub shared: Va,
    /// Run-time address of the descriptions that programs are given.
    pub descs: Va,
}

impl Memory<'_> {
    pub fn links(&self) -> Vec<Link> {
        let one = |(index, (map, place)): (usize, (&Map, &MapPlace))| {
            let base = match map.kind {
                MapKind::Array => Some(Imm64::Value(self.shared.0 + place.data)),
                MapKind::PercpuArray => u32::try_from(place.cells).ok().map(Imm64::Thread),
                _ => None,
            };
            let values = base.map(|base| Values { base, stride: map.stride() as u32, entries: map.max_entries });
            Link { map: self.descs.0 + (index * size_of::<MapDesc>()) as u64, values }
        };
        self.maps.iter().zip(&self.layout.maps).enumerate().map(one).collect()
    }
}

impl Programs {
    /// Links and compiles, if there is native code for the target and nobody wants all of them to
    /// be interpreted; [`Programs::place`] comes next.
    pub fn compile(
        programs: &[Program],
        memory: &Memory<'_>,
        interpret: bool,
        tsc: Option<&TscScale>,
    ) -> Result<Programs, SessionError> {
        let clock = |tsc: &TscScale| Clock {
            mult: tsc.mult,
            shift: tsc.shift as u8,
            base: tsc.offset(),
            stamp: Some(offset_of!(ThreadState, stamp) as i32),
        };
        let cells = offset_of!(ThreadState, cells) as i32;
        let env = Env { cells, clock: tsc.map(clock), ..Env::default() };
        let mut all = Programs { interprets_all: interpret, ..Programs::none(env) };
        let links = memory.links();
        for program in programs {
            all.add(program, &links)?;
        }
        all.add(&Program::nothing()?, &links)?;
        Ok(all)
    }

    /// Programs that come later, compiled; [`Programs::place`] and [`Programs::append`] come next.
    pub fn more(&self, programs: &[Program], memory: &Memory<'_>) -> Result<Programs, SessionError> {
        let mut more = self.later();
        let links = memory.links();
        for program in programs {
            more.add(program, &links)?;
        }
        Ok(more)
    }

    /// Puts programs at these indices, in ascending order: behind those that are there, or in place
    /// of others.
    pub fn append(&mut self, more: Programs, indices: &[usize]) {
        for (program, index) in more.compiled.into_iter().zip(indices) {
            // The one that does nothing stays the last.
            let last = self.compiled.len().saturating_sub(1);
            if *index < last {
                self.compiled[*index] = program;
                self.complete.retain(|(of, _), _| of != index);
            } else {
                self.compiled.insert(last, program);
            }
        }
    }

    /// Numbers of the arguments that a program asks for, ascending.
    pub fn asked(&self, index: usize) -> &[u64] {
        self.at(index).and_then(|program| program.asks.as_ref()).map_or(&[], |asks| &asks.numbers)
    }

    /// Compiles programs, by index, for sites that have their arguments at these places, each once.
    /// [`Programs::place`] and [`Programs::keep`] come next, if there is any code.
    pub fn complete(&self, wanted: impl Iterator<Item = (usize, Arguments)>) -> Result<Completed, SessionError> {
        let (mut new, mut keys) = (self.later(), HashMap::new());
        for key in wanted {
            let Some(asks) = self.at(key.0).and_then(|program| program.asks.clone()) else { continue };
            if self.complete.contains_key(&key) || keys.contains_key(&key) {
                continue;
            }
            let find = |number| key.1.iter().find(|(of, _)| *of == number).map(|(_, argument)| *argument);
            if let Some(verified) = arguments::complete(&asks.verified, find) {
                new.add_linked(&asks.name, verified, self.interpreter.is_some())?;
                keys.insert(key, new.compiled.len() - 1);
            }
        }
        Ok(Completed { programs: new, keys })
    }

    /// Keeps programs that were completed and placed.
    pub fn keep(&mut self, new: Completed) {
        let before = self.completed.len();
        self.completed.extend(new.programs.compiled);
        self.complete.extend(new.keys.into_iter().map(|(key, index)| (key, before + index)));
    }

    /// The index of the program for sites that have its arguments at these places.
    pub fn completed(&self, index: usize, arguments: Arguments) -> Option<usize> {
        self.complete.get(&(index, arguments)).map(|at| self.compiled.len() + at)
    }

    fn at(&self, index: usize) -> Option<&Compiled> {
        self.compiled.get(index).or_else(|| self.completed.get(index.checked_sub(self.compiled.len())?))
    }

    /// For programs that come later, and are treated like these.
    fn later(&self) -> Programs {
        let (interprets_all, counts_rejected) = (self.interprets_all, self.counts_rejected);
        Programs { interprets_all, counts_rejected, ..Programs::none(self.env) }
    }

    fn none(env: Env) -> Programs {
        Programs {
            compiled: Vec::new(),
            completed: Vec::new(),
            complete: HashMap::new(),
            bytes: Vec::new(),
            env,
            stubs: Vec::new(),
            interpreter: None,
            interprets_all: false,
            counts_rejected: false,
        }
    }

    fn add(&mut self, program: &Program, links: &[Link]) -> Result<(), SessionError> {
        let interpret = self.interprets_all || !native::is_for(ISA);
        let verified = match &program.code {
            Code::Verified(verified) => verified,
            Code::Native { function, data, general_only, redirects } => {
                let vectors = match general_only {
                    true => None,
                    false => Some(saved(sidestep_sys::vectors().ok_or(SessionError::NoXsave)?)),
                };
                let (function, data, redirects) = (*function, *data, *redirects);
                self.add_native(&Native { function, data, vectors, redirects });
                return Ok(());
            }
            Code::Replace { function, original } => {
                // It counts, and that is all that a program has to do.
                self.add(&Program::nothing()?, links)?;
                if let Some(last) = self.compiled.last_mut() {
                    last.flags = ProbeDesc::REPLACES;
                    last.replaces = Some(Replaces { function: Va(*function), original: Va(*original) });
                }
                return Ok(());
            }
        };
        let failed = |source| SessionError::Link { name: program.name.clone(), source };
        let linked = verified.link(links).map_err(failed)?;
        let unknown = || SessionError::Arguments { name: program.name.clone() };
        let numbers = arguments::asked(&linked).map_err(|_| unknown())?;
        if numbers.is_empty() {
            let adds = if self.interprets_all { None } else { pass::additions(&linked) };
            self.add_linked(&program.name, linked, interpret)?;
            if let Some(last) = self.compiled.last_mut() {
                last.adds = adds.map(Rc::from);
            }
            return Ok(());
        }
        let without = arguments::complete(&linked, |_| None).ok_or_else(unknown)?;
        self.add_linked(&program.name, without, interpret)?;
        if let Some(last) = self.compiled.last_mut() {
            last.asks = Some(Rc::new(Asks { verified: linked, name: program.name.clone(), numbers }));
        }
        Ok(())
    }

    /// Compiles a program that is linked and complete.
    fn add_linked(&mut self, name: &str, linked: Verified, interpret: bool) -> Result<(), SessionError> {
        let failed = |source| SessionError::Compile { name: name.to_owned(), source };
        let at = self.align();
        let stack = if interpret {
            self.stub(&linked.program);
            INTERPRETER_STACK + frames(&linked.program)
        } else {
            let code = native::function(ISA, &linked.program, &linked.facts, &self.env).map_err(failed)?;
            self.bytes.extend_from_slice(&code.bytes);
            code.stack as i32
        };
        let facts = &linked.facts;
        let thunk = thunk::Program {
            code: Va(at),
            inside: Va(at),
            context: context(&linked),
            changes: changed_registers(&linked),
            exclusive: !facts.reentrant,
            overrides: facts.calls(|helper| helper.name == "override_return"),
            goroutine: None,
        };
        let stack = stack + facts.helpers.iter().map(|number| helper_stack(*number)).fold(AGENT_STACK, i32::max);
        let whole = interpret || self.counts_rejected;
        let filter = if whole { None } else { pass::filter(&linked).map(Rc::new) };
        // Nothing keeps a signal handler out of a part of a detour. A program that lets the
        // function return needs the stack as it was in front of the first instruction, as a part of
        // a detour behind that instruction has it not.
        let changes = thunk.changes != thunk::Context::default() || thunk.overrides;
        let inline = (facts.reentrant && !changes && !interpret).then(|| Rc::new(linked));
        self.compiled.push(Compiled { thunk, stack, inline, filter, adds: None, flags: 0, replaces: None, asks: None });
        Ok(())
    }

    /// Code that calls a function of the target.
    fn add_native(&mut self, native: &Native) {
        let at = self.align();
        let (bytes, inside) = functions(ISA, Va(at), native, ALIGN);
        self.bytes.extend(bytes);
        let thunk = thunk::Program {
            code: Va(at),
            inside,
            context: thunk::Context::NATIVE,
            changes: thunk::Context::native_changes(native.redirects),
            exclusive: true,
            overrides: false,
            goroutine: None,
        };
        let (stack, flags) = (NATIVE_STACK, ProbeDesc::NATIVE);
        let (inline, filter, adds) = (None, None, None);
        self.compiled.push(Compiled { thunk, stack, inline, filter, adds, flags, replaces: None, asks: None });
    }

    /// Where the next function begins.
    fn align(&mut self) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), FILL);
        self.bytes.len() as u64
    }

    /// A function as native code would be, which has the program interpreted. `agent_interpret` in
    /// `sidestep-agent` says what it gets.
    fn stub(&mut self, program: &sidestep_bpf::Program) {
        let start = self.bytes.len();
        let made = thunk::interpreted(ISA, frames(program), program.slots.len());
        self.bytes.extend(made.bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), FILL);
        let (slots_at, interpreter_at) = (start + made.slots_at, start + made.interpreter_at);
        self.stubs.push(Stub { slots_at, slots: self.bytes.len(), interpreter_at });
        self.bytes.extend(program.to_bytes());
    }

    /// Says where the code is, and the interpreter if there is one.
    pub fn place(&mut self, at: Va, interpreter: Option<Va>) {
        self.interpreter = interpreter;
        for stub in &self.stubs {
            let slots = at.0 + stub.slots as u64;
            let interpreter = interpreter.unwrap_or_default().0;
            for (at, address) in [(stub.slots_at, slots), (stub.interpreter_at, interpreter)] {
                let word = ISA.word() as usize;
                self.bytes[at..at + word].copy_from_slice(&address.to_le_bytes()[..word]);
            }
        }
        for program in &mut self.compiled {
            program.thunk.code.0 += at.0;
            program.thunk.inside.0 += at.0;
        }
    }

    /// What any of them reads of the context.
    pub fn context(&self) -> thunk::Context {
        // What is completed later may ask for any register.
        let of = |p: &Compiled| if p.asks.is_some() { thunk::Context::NATIVE } else { p.thunk.context };
        self.compiled.iter().map(of).reduce(thunk::Context::union).unwrap_or_default()
    }

    /// What any of them may change of the context.
    pub fn changes(&self) -> thunk::Context {
        self.compiled.iter().map(|p| p.thunk.changes).reduce(thunk::Context::union).unwrap_or_default()
    }

    /// Bytes of stack that the agent and any of the programs need at a hit.
    pub fn agent_stack(&self) -> i32 {
        self.compiled.iter().chain(&self.completed).map(|p| p.stack + RUN_STACK).fold(HIT_STACK, i32::max)
    }
}

impl Programs {
    /// Hits that a filter rejects are counted from now on, too: detours have the whole program
    /// instead of what decides whether it would do anything.
    pub fn count_rejected(&mut self) {
        self.compiled.iter_mut().chain(&mut self.completed).for_each(|program| program.filter = None);
        self.counts_rejected = true;
    }
}

/// How this machine's vectors are saved.
fn saved(vectors: sidestep_sys::Vectors) -> Vectors {
    let sidestep_sys::Vectors { avx, avx512, components, len, compact } = vectors;
    let wide = match (avx, avx512) {
        (_, true) => Wide::Avx512,
        (true, false) => Wide::Avx,
        (false, false) => Wide::No,
    };
    Vectors { wide, components, len, compact }
}
