//! [`Checked`] → eBPF programs and their maps.
//!
//! Registers: `r6` is the context, `r7` and `r8` are a record and how much of it is used while one
//! is written. Numbers are computed in `r0`; what has to wait lies on the stack.

mod aggregate;
mod builtin;
mod change;
mod compiled;
mod data;
mod each;
mod expr;
mod fact;
mod failure;
mod helper;
mod index;
mod map;
mod meaning;
mod own;
mod programs;
mod record;
mod rounds;
mod series;
mod shape;
mod span;
mod stmt;
mod text;
mod tuple;
mod usdt;

use std::collections::HashMap;

use sidestep_bpf::map::{Map, MapKind};
use sidestep_bpf::{Program, Reg};
use sidestep_isa::{Context, Isa};

use super::ast::{Point, Provider};
use super::checked::{self, Checked};
use super::types::{COMM, Content, NAME, POINT as PLACE, Type, text_room};
use crate::build::{Builder, Label};
pub use compiled::{Compiled, LowerError, Probe};
use own::InWord;
use programs::Programs;
pub use record::JOINED;
use rounds::Calls;
pub use shape::{is_array, key_size};
use shape::{map, shape};

/// Bytes of all rings of a thread together, that scripts ask for.
const RING: u32 = 256 * 1024;
/// Stacks that are kept of each kind.
const STACKS: u32 = 16 * 1024;
/// Calls that keep something until they return, at a time; of more, those are forgotten that were
/// not looked at for long.
const CALLS: u32 = 16 * 1024;
/// Most rounds of all loops of a block that are no functions: the verifier walks through each of
/// them.
pub const INLINE_ROUNDS: u64 = 128;
/// Processes whose names are kept at a time.
const NAMED: u32 = 4096;
/// A bit of what stands for a probe: the rest is the number of an attach point, not of a probe of
/// the session.
pub const POINT: u64 = 1 << 63;

/// Where the maps are that are not the script's.
const RING_MAP: u32 = 0;
const CONSTANTS: u32 = 1;
const SCRATCH: u32 = 2;
const FAULTS: u32 = 3;
const NAMES: u32 = 4;
const COMMAND: u32 = 5;
const PLACES: u32 = 6;
const FACTS: u32 = 7;
const PROCESSES: u32 = 8;
const FIRST: u32 = 9;

/// What programs know of time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Since when `elapsed` counts, on the clock of `nsecs`.
    pub start: u64,
    /// Add it to `nsecs` to get nanoseconds since 1970.
    pub since_1970: u64,
    /// Add it to `nsecs` to get the time since the machine was started.
    pub boot: u64,
    /// Add it to `nsecs` to get international atomic time.
    pub tai: u64,
}

/// Makes programs of a script.
///
/// # Errors
/// It is too large for eBPF.
pub fn lower(checked: &Checked, clock: Clock) -> Result<Compiled, LowerError> {
    let own_len: usize = checked.own.iter().map(Type::stored).sum();
    let longest = checked.maps.iter().map(|map| map.content.stored()).max().unwrap_or(8).max(own_len);
    let mut shared = Shared {
        checked,
        clock,
        constants: vec![0; longest + 8],
        scratch: 8,
        needs_stamp: false,
        uses_names: false,
        uses_places: false,
        uses_processes: false,
        points: checked.blocks.iter().flat_map(|block| block.points.clone()).collect(),
        block: 0,
        in_word: InWord::of(checked),
    };
    let mut programs = Programs::default();
    let mut probes = Vec::new();
    for (number, block) in checked.blocks.iter().enumerate() {
        shared.block = number;
        let mut known: Vec<(Site, usize, Option<usize>)> = Vec::new();
        for point in &block.points {
            let site = match point.provider {
                Provider::Uprobe => Site::Entry,
                Provider::Uretprobe => Site::Return,
                Provider::Usdt => Site::Usdt(probes.len()),
                Provider::Begin
                | Provider::End
                | Provider::Interval
                | Provider::Test
                | Provider::Bench
                | Provider::Own => Site::Controller(probes.len()),
            };
            let (program, entry) = match known.iter().find(|(known, ..)| *known == site) {
                Some((_, program, entry)) => (*program, *entry),
                None => {
                    let program = match shared.in_word {
                        // What the block does is done for the probe of the return.
                        Some(InWord { setter, .. }) if setter == Some(number) => programs.nothing()?,
                        _ => programs.add(Lower::new(&mut shared, site, block).program(block)?),
                    };
                    let entry = match shared.in_word {
                        _ if site != Site::Return => None,
                        _ if block.result_in.is_some() => {
                            let stamp = std::mem::take(&mut shared.needs_stamp);
                            Some(programs.add(Lower::new(&mut shared, Site::Entry, block).keep_result(block, stamp)?))
                        }
                        _ if std::mem::take(&mut shared.needs_stamp) => {
                            Some(programs.stamp(shared.context().cookie())?)
                        }
                        Some(InWord { setter: Some(setter), reader }) if reader == number => {
                            shared.block = setter;
                            let setter = &checked.blocks[setter];
                            Some(programs.add(Lower::new(&mut shared, Site::Entry, setter).program(setter)?))
                        }
                        _ if block.uses_own => Some(programs.nothing()?),
                        _ => None,
                    };
                    shared.block = number;
                    known.push((site, program, entry));
                    (program, entry)
                }
            };
            probes.push(Probe { point: point.clone(), block: number, program, entry });
        }
    }
    let is_symbol = |ty: &Type| ty.contains(&Type::Symbol);
    let holds = |content: &Content| matches!(content, Content::Value(ty) if is_symbol(ty));
    let uses_symbols = checked.maps.iter().any(|map| map.keys.iter().any(is_symbol) || holds(&map.content))
        || checked.actions.iter().any(|action| match action {
            checked::Action::Printf(_, types)
            | checked::Action::System(_, types)
            | checked::Action::Cat(_, types)
            | checked::Action::Say(_, types, _) => types.iter().any(is_symbol),
            checked::Action::Print(ty) => is_symbol(ty),
            _ => false,
        });
    let Shared { constants, scratch, uses_names, uses_places, uses_processes, .. } = shared;
    let mut maps = vec![
        map("printf", MapKind::Ringbuf, 0, 0, RING),
        Map {
            readonly: true,
            initial: constants.clone(),
            ..map("constants", MapKind::Array, 4, constants.len() as u32, 1)
        },
        // A buffer of no bytes may end there, and helpers look at one byte at least.
        map("scratch", MapKind::PercpuArray, 4, scratch + 8, 1),
        map("faults", MapKind::PercpuArray, 4, 8 * (checked.blocks.len() + checked.reads.len()) as u32, 1),
        map("names", MapKind::Array, 4, text_room(NAME) as u32, 1),
        map("command", MapKind::Array, 4, 8, 1),
        map("places", MapKind::Array, 4, text_room(PLACE) as u32, 1),
        map("facts", MapKind::Array, 4, 8 * checked.facts.len().max(1) as u32, 1),
        map("processes", MapKind::LruHash, 8, text_room(COMM) as u32, if uses_processes { NAMED } else { 1 }),
    ];
    let map_of = (maps.len()..).take(checked.maps.len()).collect();
    maps.extend(checked.maps.iter().map(|map| shape(map, &checked.config)));
    let stack_of = (maps.len()..).take(checked.stacks.len()).collect();
    maps.extend(checked.stacks.iter().map(|stack| map("ustack", MapKind::StackTrace, 4, 8 * stack.depth, STACKS)));
    if own_len > 0 && shared.in_word.is_none() {
        maps.push(map("self", MapKind::LruHash, own::KEY, own_len as u32, CALLS));
    }
    let places = uses_places.then_some(PLACES as usize);
    let facts = (!checked.facts.is_empty()).then_some(FACTS as usize);
    let names = uses_names.then_some(NAMES as usize);
    let processes = uses_processes.then_some(PROCESSES as usize);
    let (faults, command) = (FAULTS as usize, COMMAND as usize);
    Ok(Compiled {
        maps,
        probes,
        programs: programs.all,
        map_of,
        stack_of,
        faults,
        names,
        places,
        processes,
        facts,
        asked: checked.facts.clone(),
        command,
        uses_symbols,
    })
}

/// What the programs of a script have in common.
struct Shared<'a> {
    checked: &'a Checked,
    clock: Clock,
    /// What programs only read; it begins with zeros, as long as the longest value.
    constants: Vec<u8>,
    /// Bytes of memory of each thread.
    scratch: u32,
    /// The program needs the time of the entry.
    needs_stamp: bool,
    /// A program looks at names of functions.
    uses_names: bool,
    /// A program looks at attach points.
    uses_places: bool,
    /// A program looks at names of processes.
    uses_processes: bool,
    /// All attach points.
    points: Vec<Point>,
    /// Number of the block.
    block: usize,
    /// `self` is in the word of the call.
    in_word: Option<InWord>,
}

impl Shared<'_> {
    /// Where the registers are.
    fn context(&self) -> &'static Context {
        Isa::with_word(self.checked.word).limits().context
    }
}

/// Where a program runs, as far as its code depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Site {
    Entry,
    Return,
    Usdt(usize),
    Controller(usize),
}

/// Where a variable is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Stack(i16),
    Scratch(u32),
}

struct Lower<'s, 'a> {
    shared: &'s mut Shared<'a>,
    site: Site,
    out: Builder,
    vars: Vec<(Place, Type)>,
    /// Which function each variable is in.
    owners: Vec<Option<usize>>,
    end: Label,
    /// Of the loops around: where their next rounds begin, and where they end.
    loops: Vec<(Label, Label)>,
    /// Bodies of loops that are functions, behind the program.
    bodies: Vec<Body>,
    /// Bytes of stack in use.
    used: i16,
    too_big: bool,
}

/// The body of a loop, which is still to be written.
enum Body {
    /// For each entry of a map; where the cursor is in memory.
    Each { of: checked::Each, cursor: u32, calls: Calls },
    /// As long as a condition holds; the number of the function.
    Rounds { of: checked::Loop, number: usize, calls: Calls },
}

/// Stack for variables; those beyond lie in the thread's memory.
const VARIABLES: i16 = 192;
/// All of it.
const STACK: i16 = 512;

impl<'s, 'a> Lower<'s, 'a> {
    fn new(shared: &'s mut Shared<'a>, site: Site, block: &checked::Block) -> Lower<'s, 'a> {
        let mut out = Builder::new();
        let end = out.label();
        let (vars, loops, bodies) = (Vec::new(), Vec::new(), Vec::new());
        let owners = block.owners.clone();
        let mut lower = Lower { shared, site, out, vars, owners, end, loops, bodies, used: 0, too_big: false };
        // Each function has a stack of its own.
        let mut frames: HashMap<usize, i16> = HashMap::new();
        for (ty, owner) in block.vars.iter().zip(&block.owners) {
            let frame = owner.map(|owner| frames.entry(owner).or_default());
            let place = match ty {
                // A text in it is read with a byte behind it.
                Type::Data { .. } => Place::Scratch(lower.scratch(ty.stored() + 8)),
                ty if ty.is_wide() => Place::Scratch(lower.scratch(ty.stored())),
                _ => match frame {
                    Some(used) if *used < VARIABLES => {
                        *used += 8;
                        Place::Stack(-*used)
                    }
                    _ => Place::Scratch(lower.scratch(8)),
                },
            };
            lower.vars.push((place, ty.clone()));
        }
        lower
    }

    fn program(mut self, block: &checked::Block) -> Result<Program, LowerError> {
        self.out.mov(Reg::R6, Reg::R1);
        if self.begins_call() {
            self.forget_own();
        }
        if let (Some(index), Site::Return) = (block.result_in, self.site) {
            self.needs_result(index);
        }
        if block.predicate_vars {
            self.clear_vars(0, None);
        }
        if let Some(predicate) = &block.predicate {
            let end = self.end;
            self.branch(predicate, false, end);
        }
        self.clear_vars(0, None);
        self.ops(&block.body);
        let end = self.end;
        self.out.bind(end);
        if self.ends_call() {
            self.forget_own();
        }
        self.out.mov_imm(Reg::R0, 0);
        self.out.push(sidestep_bpf::Insn::Exit);
        while let Some(body) = self.bodies.pop() {
            match body {
                Body::Each { of, cursor, calls } => self.each_body(&of, cursor, &calls),
                Body::Rounds { of, number, calls } => self.round_body(&of, number, &calls),
            }
        }
        if self.too_big { Err(LowerError::Stack) } else { Ok(self.out.finish()?) }
    }

    /// Sets the variables of a function to zero, the block's with those that are in several
    /// functions. They lie at the top of its stack. `set` has its value already.
    fn clear_vars(&mut self, function: usize, set: Option<usize>) {
        self.used = 0;
        for (var, (place, ty)) in self.vars.clone().into_iter().enumerate() {
            if self.owners[var].unwrap_or(0) != function || set == Some(var) {
                continue;
            }
            match place {
                Place::Stack(at) => {
                    self.used = self.used.max(-at);
                    self.out.put_imm(Reg::R10, at, 0);
                }
                Place::Scratch(at) => {
                    self.out.map_value(Reg::R1, SCRATCH, at);
                    for word in 0..ty.stored() / 8 {
                        self.out.put_imm(Reg::R1, 8 * word as i16, 0);
                    }
                }
            }
        }
    }

    /// Bytes on the stack, until [`Lower::release`]; their offset from `r10`.
    fn stack(&mut self, len: usize) -> i16 {
        self.used += len.next_multiple_of(8).min(STACK as usize) as i16;
        if self.used > STACK {
            self.too_big = true;
            self.used = STACK;
        }
        -self.used
    }

    /// Gives back all stack that was taken since `used` was this.
    fn release(&mut self, used: i16) {
        self.used = used;
    }

    /// Memory of the thread, of this program alone.
    fn scratch(&mut self, len: usize) -> u32 {
        let at = self.shared.scratch;
        self.shared.scratch += len.next_multiple_of(8) as u32;
        at
    }

    /// Bytes that are only read, with zeros behind them.
    fn constant(&mut self, bytes: &[u8], room: usize) -> u32 {
        let at = self.shared.constants.len();
        self.shared.constants.extend(bytes);
        self.shared.constants.resize(at + room.max(bytes.len() + 1).next_multiple_of(8), 0);
        at as u32
    }

    /// Index of a script's map in the session.
    fn map_index(&self, map: usize) -> u32 {
        FIRST + map as u32
    }
}
