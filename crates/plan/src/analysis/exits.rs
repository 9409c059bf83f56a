//! Where a function ends: all of its exits, found by walking its control flow from the first
//! instruction.
//!
//! An exit is a return, or a jump that leaves the function (a tail call), conditional or not. Each
//! path from the entry to the end of a call passes exactly one exit. So a handler at the exits sees
//! each return once, and the stack stays as the program made it.
//!
//! What the walk relies on is said by [`NoExits`]: whatever is not proven is an error, and the
//! caller has to watch the function in another way, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use sidestep_isa::stack::Stack;
use sidestep_isa::thunk::is_thunk;
use sidestep_isa::{DecodeError, Flow, Insn};
use sidestep_isa::{Len, Va};

use crate::analysis::family::Leads;
use crate::analysis::index::Index;
use crate::analysis::sweep::Borders;
use crate::reason::{Fault, UnknownJumps};

/// An instruction by which a function ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exit {
    /// Link-time address.
    pub va: Va,
    /// How it leaves.
    pub kind: ExitKind,
}

/// How an exit leaves its function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitKind {
    /// `ret`, with the number of bytes of arguments that it takes off the stack.
    Return {
        /// In bytes.
        drops: u16,
    },
    /// A jump to another function.
    TailCall {
        /// Link-time address of the function; `None`: it is known only when the jump is made.
        to: Option<Va>,
    },
    /// The same, if a condition holds. Else the function goes on.
    ConditionalTailCall {
        /// Link-time address of the other function.
        to: Va,
    },
}

/// The exits of a function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exits {
    /// By address; one at least.
    pub all: Vec<Exit>,
    /// Nobody comes to an exit but through the entry of the function: a hit there is a return of
    /// the function. Else others share some of its code, and which function ends is known only from
    /// the entry of the call.
    pub exclusive: bool,
}

impl Exits {
    /// Whether the function ends by a jump to another one, at least at times: its result is not
    /// known there.
    #[must_use]
    pub fn has_tail_calls(&self) -> bool {
        self.all.iter().any(|exit| !matches!(exit.kind, ExitKind::Return { .. }))
    }
}

/// Why the exits of a function are not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoExits {
    /// No function starts there.
    NotAFunction,
    /// What is on top of the stack at its entry is no return address, by its unwind information.
    OddFrame,
    /// The instructions are not known for certain.
    Undecodable(Fault),
    /// Not all jumps are understood.
    UnknownJumps(UnknownJumps),
    /// An indirect jump that may stay in the function or leave it.
    Ambiguous {
        /// Link-time address of the jump.
        at: Va,
    },
    /// The stack pointer is not that of the entry.
    Unbalanced {
        /// Link-time address of the exit.
        at: Va,
        /// Stack pointer there minus that at the entry, in bytes.
        depth: i64,
    },
    /// It calls an address inside of itself, so a return may not be one of the function.
    InnerCall {
        /// Link-time address of the call.
        at: Va,
    },
    /// Execution runs over the end.
    OpenEnd {
        /// Link-time address of the end.
        at: Va,
    },
    /// A conditional jump whose condition is no flag.
    CountedBranch {
        /// Link-time address of the jump.
        at: Va,
    },
    /// A far jump or return.
    Far {
        /// Link-time address of the instruction.
        at: Va,
    },
    /// A return takes arguments off the stack, which 64-bit code of compilers never does.
    DropsArguments {
        /// Link-time address of the return.
        at: Va,
    },
    /// No path leads to a return.
    NeverReturns,
    /// The result is that of another function, which is not known.
    ForeignResult {
        /// Link-time address of the jump to it.
        at: Va,
    },
}

impl fmt::Display for NoExits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoExits::NotAFunction => f.write_str("it is not the start of a function"),
            NoExits::OddFrame => f.write_str("its unwind information says that no ordinary call leads to it"),
            NoExits::Undecodable(fault) => fault.fmt(f),
            NoExits::UnknownJumps(unknown) => unknown.fmt(f),
            NoExits::Ambiguous { at } => write!(f, "the indirect jump at {at} may stay in the function or leave it"),
            NoExits::Unbalanced { at, depth } => {
                write!(f, "at the exit at {at} the stack pointer is {depth} bytes from where it was at the entry")
            }
            NoExits::InnerCall { at } => write!(f, "the call at {at} goes to the inside of the function"),
            NoExits::OpenEnd { at } => write!(f, "execution runs over the end of the function at {at}"),
            NoExits::CountedBranch { at } => {
                write!(f, "the jump at {at} leaves the function by a counter, not by a flag")
            }
            NoExits::Far { at } => write!(f, "the instruction at {at} leaves by a far jump"),
            NoExits::DropsArguments { at } => write!(f, "the return at {at} takes arguments off the stack"),
            NoExits::ForeignResult { at } => {
                write!(f, "its result is that of the function that the jump at {at} leads to, which is not known")
            }
            NoExits::NeverReturns => f.write_str("it never returns: no path from its entry leads to a return"),
        }
    }
}

impl std::error::Error for NoExits {}

/// Finds the exits of the function that starts at `entry`, a link-time address.
///
/// # Errors
/// They are not proven: [`NoExits`] says which part of the proof is missing.
pub fn exits(index: &Index<'_>, entry: Va) -> Result<Exits, NoExits> {
    if !index.is_start(entry) || index.is_part(entry) {
        return Err(NoExits::NotAFunction);
    }
    if index.has_odd_frame(entry) {
        return Err(NoExits::OddFrame);
    }
    let mut walk = Walk {
        index,
        entry,
        states: BTreeMap::new(),
        todo: Vec::new(),
        exits: BTreeMap::new(),
        calls: Vec::new(),
        led_to: BTreeSet::new(),
    };
    walk.reach(entry, Stack::ENTRY);
    if index.code().go {
        walk.reach_all();
    }
    walk.run()?;
    if walk.exits.is_empty() {
        return Err(NoExits::NeverReturns);
    }
    let all = walk.exits.iter().map(|(va, kind)| Exit { va: *va, kind: *kind }).collect();
    Ok(Exits { all, exclusive: walk.is_exclusive() })
}

/// Finds where the result of the function that starts at `entry` is known: its returns, and those
/// of the functions to which it jumps. They are returns of this function only for calls that were
/// seen to begin.
///
/// # Errors
/// As [`exits`], of any of these functions.
pub fn results(index: &Index<'_>, entry: Va) -> Result<Exits, NoExits> {
    let mut found = exits(index, entry)?;
    if !found.has_tail_calls() {
        return Ok(found);
    }
    let (mut returns, mut done, mut todo) = (BTreeMap::new(), BTreeSet::from([entry]), found.all);
    while let Some(exit) = todo.pop() {
        let to = match exit.kind {
            ExitKind::Return { .. } => {
                returns.insert(exit.va, exit);
                continue;
            }
            ExitKind::TailCall { to } => to.ok_or(NoExits::ForeignResult { at: exit.va })?,
            ExitKind::ConditionalTailCall { to } => to,
        };
        if done.insert(to) {
            match exits(index, to) {
                Ok(more) => todo.extend(more.all),
                Err(NoExits::NeverReturns) => {}
                Err(NoExits::NotAFunction) => return Err(NoExits::ForeignResult { at: exit.va }),
                Err(why) => return Err(why),
            }
        }
    }
    if returns.is_empty() {
        return Err(NoExits::NeverReturns);
    }
    found = Exits { all: returns.into_values().collect(), exclusive: false };
    Ok(found)
}

/// A walk through a function.
struct Walk<'i, 'a> {
    index: &'i Index<'a>,
    entry: Va,
    /// What is known of the stack in front of each instruction that was reached.
    states: BTreeMap<Va, Stack>,
    todo: Vec<Va>,
    exits: BTreeMap<Va, ExitKind>,
    /// Direct calls: where they go, and where they are.
    calls: Vec<(Va, Va)>,
    /// Where indirect jumps of the function go in it.
    led_to: BTreeSet<Va>,
}

impl Walk<'_, '_> {
    fn reach(&mut self, va: Va, stack: Stack) {
        // Go's compiler puts a nop behind a last call that does not return.
        let own = || self.index.stretch(self.entry).is_some_and(|(_, own)| (own.start..own.end).contains(&va));
        if self.index.code().go && !own() {
            return;
        }
        let met = match self.states.get(&va) {
            Some(before) => before.meet(stack),
            None => stack,
        };
        if self.states.insert(va, met) != Some(met) {
            self.todo.push(va);
        }
    }

    /// Reaches all instructions of the function: Go's lie in one piece, and their jump tables are
    /// not read.
    fn reach_all(&mut self) {
        let Some((_, stretch)) = self.index.stretch(self.entry).filter(|(_, stretch)| stretch.start == self.entry)
        else {
            return;
        };
        stretch.insns().for_each(|va| self.reach(va, Stack::UNKNOWN));
    }

    fn run(&mut self) -> Result<(), NoExits> {
        let mut pads = BTreeSet::new();
        loop {
            while let Some(va) = self.todo.pop() {
                self.step(va)?;
            }
            // Where exceptions land is a part of the function that has called.
            let new: Vec<Va> = self.landing_pads().into_iter().filter(|pad| pads.insert(*pad)).collect();
            // Other code may go to a label that is named, when it has unwound the stack itself, as
            // a `raise` of OCaml does.
            let new = if new.is_empty() { self.labels() } else { new };
            if new.is_empty() {
                break;
            }
            new.into_iter().for_each(|label| self.reach(label, Stack::UNKNOWN));
        }
        // A return of what was called would be taken for one of the function.
        if let Some((_, at)) = self.calls.iter().find(|(to, _)| self.states.contains_key(to)) {
            return Err(NoExits::InnerCall { at: *at });
        }
        // Known only when all paths are: the meet of two may know less.
        for (va, kind) in &self.exits {
            let stack = self.states.get(va).map(|stack| match (kind, self.index.code().insn_at(*va)) {
                (ExitKind::Return { .. }, Some(insn)) => stack.at_return(&insn),
                _ => *stack,
            });
            match stack.and_then(|stack| stack.depth()) {
                Some(depth) if depth != 0 => return Err(NoExits::Unbalanced { at: *va, depth }),
                _ => {}
            }
        }
        Ok(())
    }

    /// Landing pads in the stretches that were reached.
    fn landing_pads(&self) -> Vec<Va> {
        let mut pads = Vec::new();
        let mut end = Va(0);
        for va in self.states.keys().filter(|va| !self.is_other_function(**va)) {
            if *va < end {
                continue;
            }
            let Some((_, stretch)) = self.index.stretch(*va) else { continue };
            end = stretch.end;
            pads.extend_from_slice(self.index.landing_pads(stretch.start, stretch.end));
        }
        pads
    }

    /// Labels in the stretches that were reached, to which no path was found.
    fn labels(&self) -> Vec<Va> {
        if self.index.code().go {
            return Vec::new();
        }
        let own = self.states.keys().filter(|va| !self.is_other_function(**va));
        let numbers: BTreeSet<usize> = own.filter_map(|va| self.index.stretch(*va)).map(|(number, _)| number).collect();
        let mut labels: Vec<Va> = numbers.iter().flat_map(|number| self.index.inner_names(*number)).collect();
        labels.retain(|label| !self.states.contains_key(label));
        labels
    }

    fn step(&mut self, va: Va) -> Result<(), NoExits> {
        let (number, stretch) = self.index.stretch(va).ok_or(NoExits::OpenEnd { at: va })?;
        if stretch.borders == Borders::Gap {
            // Hand-written code runs on into the next function, over padding.
            let stack = self.states.get(&va).copied().unwrap_or(Stack::UNKNOWN);
            let end = stretch.end;
            return match self.index.is_padding(va, end) {
                true => {
                    self.reach(end, stack);
                    Ok(())
                }
                false => Err(NoExits::OpenEnd { at: va }),
            };
        }
        if let Some(fault) = stretch.fault {
            return Err(NoExits::Undecodable(fault));
        }
        let undecodable = || NoExits::Undecodable(DecodeError { at: va }.into());
        let insn = self.index.code().insn_at(va).ok_or_else(undecodable)?;
        let stack = self.states.get(&va).copied().unwrap_or(Stack::UNKNOWN);
        let after = stack.after(&insn);
        match insn.flow() {
            // With a condition, it is an exit at times.
            Flow::Return | Flow::JumpIndirect if insn.falls_through() => return Err(NoExits::Ambiguous { at: va }),
            Flow::Return => match insn.dropped_by_return().unwrap_or(0) {
                1.. if !self.index.code().isa.limits().drops_arguments => {
                    return Err(NoExits::DropsArguments { at: va });
                }
                drops => self.exit(va, ExitKind::Return { drops }),
            },
            Flow::Jump(to) | Flow::Branch(to) if self.leaves(va, to) && self.is_handed_on(va, to, number) => {
                if matches!(insn.flow(), Flow::Branch(_)) {
                    return Err(NoExits::Ambiguous { at: va });
                }
                self.jump(&insn, number, stack, after)?;
            }
            Flow::Jump(to) if self.leaves(va, to) => self.exit(va, ExitKind::TailCall { to: Some(to) }),
            Flow::Jump(to) => self.reach(to, after),
            Flow::Branch(to) if self.leaves(va, to) => {
                if insn.condition().is_none() {
                    return Err(NoExits::CountedBranch { at: va });
                }
                self.exit(va, ExitKind::ConditionalTailCall { to });
                self.reach(insn.next(), after);
            }
            Flow::Branch(to) | Flow::Transaction(to) => {
                self.reach(to, after);
                self.reach(insn.next(), after);
            }
            Flow::JumpIndirect => self.jump(&insn, number, stack, after)?,
            Flow::Call(to) => {
                if to != insn.next() && to != self.entry {
                    self.calls.push((to, va));
                }
                self.after_call(&insn, after);
            }
            Flow::CallIndirect => self.after_call(&insn, after),
            Flow::Next | Flow::Syscall => self.reach(insn.next(), after),
            Flow::Interrupt if !insn.is_breakpoint() => self.reach(insn.next(), after),
            Flow::Interrupt | Flow::Stop => {}
            Flow::Far => return Err(NoExits::Far { at: va }),
        }
        Ok(())
    }

    fn exit(&mut self, va: Va, kind: ExitKind) {
        self.exits.insert(va, kind);
    }

    /// Behind a call: unless what was called does not return, which is so if no code of the
    /// function follows. (Compilers jump to the parts that they have moved away: none is run into.)
    fn after_call(&mut self, call: &Insn, after: Stack) {
        let next = call.next();
        let own = self.index.stretch(call.va()).map(|(number, _)| number);
        let goes_on = self.index.stretch(next).is_some_and(|(number, stretch)| {
            let follows = Some(number) == own || !self.index.is_start(next);
            stretch.borders != Borders::Gap && follows
        });
        if goes_on {
            self.reach(next, after);
        }
    }

    /// Whether another function starts there, which a jump would call.
    fn is_other_function(&self, va: Va) -> bool {
        va != self.entry && self.index.is_start(va) && !self.index.is_part(va) && !self.index.is_led_part(va)
    }

    /// Whether a direct jump leaves the function.
    fn leaves(&self, from: Va, to: Va) -> bool {
        // Go's functions begin again when their stack has grown.
        if to == self.entry {
            return !self.index.code().go;
        }
        let Some(((own, _), (other, stretch))) = self.index.stretch(from).zip(self.index.stretch(to)) else {
            return true;
        };
        let part = self.index.is_start(to) && self.index.is_part(to);
        self.is_other_function(to)
            || stretch.borders == Borders::Gap
            || !(own == other || part || self.index.same_family(own, other))
    }

    /// Whether a jump that leaves the function is one through a register, which may come back: the
    /// code that it leads to jumps there.
    fn is_handed_on(&self, va: Va, to: Va, number: usize) -> bool {
        let leads = self.index.family(number).map_or(Leads::Pointer, |family| family.leads(va));
        let may_come_back = || leads != Leads::Pointer || !self.index.inner_names(number).is_empty();
        is_thunk(self.index.code().isa, to, |va| self.index.code().insn_at(va)) && may_come_back()
    }

    /// An indirect jump goes to one of these instructions of the function.
    fn lead_to(&mut self, targets: Vec<Va>, after: Stack) {
        self.led_to.extend(&targets);
        targets.into_iter().for_each(|to| self.reach(to, after));
    }

    /// An indirect jump: through a table of the function, or to another one.
    fn jump(&mut self, insn: &Insn, number: usize, stack: Stack, after: Stack) -> Result<(), NoExits> {
        if insn.is_slot_jump() {
            self.exit(insn.va(), ExitKind::TailCall { to: None });
            return Ok(());
        }
        if self.index.code().go {
            // Go's compiler makes jump tables, which stay in the function, and its assembly tail
            // calls through registers.
            if insn.jumps_through_value() {
                self.exit(insn.va(), ExitKind::TailCall { to: None });
            }
            return Ok(());
        }
        let own = |to: &Va| {
            self.index.stretch(*to).is_some_and(|(other, stretch)| {
                let led = || self.index.is_led_part(stretch.start);
                let belongs = other == number || self.index.same_family(number, other) || led();
                belongs && stretch.insn_start(*to) == Some(*to) && !self.is_other_function(*to)
            })
        };
        if let Some(table) = insn.pointer_table() {
            // A table's end is not known: what is read behind it may be anything.
            let targets: Vec<Va> = self.index.pointers_at(table).take_while(own).collect();
            match targets.is_empty() {
                true => self.exit(insn.va(), ExitKind::TailCall { to: None }),
                false => self.lead_to(targets, after),
            }
            return Ok(());
        }
        let family = self.index.family(number);
        let labels = self.index.inner_names(number);
        match (family.map_or(Leads::Pointer, |family| family.leads(insn.va())), stack.depth()) {
            (Leads::Table, _) => {
                let all = family.map_or(&[][..], |family| &family.targets);
                let targets: Vec<Va> = all.iter().copied().filter(own).collect();
                self.lead_to(targets, after);
            }
            // To a label of the function if something names any, or to another function.
            (Leads::Pointer, _) if labels.is_empty() => self.exit(insn.va(), ExitKind::TailCall { to: None }),
            (Leads::Pointer, Some(depth)) if depth != 0 => self.lead_to(labels, after),
            // A stored pointer may be scrambled. What is computed from an address of the function
            // needs that address.
            (Leads::Computed, Some(0)) if labels.is_empty() && !self.index.names_itself(number) => {
                self.exit(insn.va(), ExitKind::TailCall { to: None });
            }
            (Leads::Pointer, _) => return Err(NoExits::Ambiguous { at: insn.va() }),
            (Leads::Lost | Leads::Computed, _) => {
                let known = family.and_then(|family| family.unknown);
                let unknown = known.unwrap_or(UnknownJumps::NotUnderstood { jump: insn.va() });
                return Err(NoExits::UnknownJumps(unknown));
            }
        }
        Ok(())
    }

    /// Whether code that was not walked runs on into an instruction.
    fn is_run_into(&self, va: Va) -> bool {
        is_run_into(self.index, va, |before| self.states.contains_key(&before))
    }

    /// Whether nobody comes into the walked code but through the entry.
    fn is_exclusive(&self) -> bool {
        let index = self.index;
        let own = |va: Va| self.states.contains_key(&va);
        self.states.keys().filter(|va| **va != self.entry).all(|va| {
            let end = va.plus(Len(1));
            !self.is_other_function(*va)
                && !self.is_run_into(*va)
                && index.edges_to(*va, end).iter().all(|edge| own(edge.source))
                && (index.is_part(*va) || !index.has_symbol(*va))
                // A label that the function's own jumps lead to is named for them.
                && (index.is_part(*va) || self.led_to.contains(va) || !index.is_named(*va))
        })
    }
}

/// Whether code runs on into an instruction, but for `known` one: the one in front of it, or in
/// front of the padding there.
fn is_run_into(index: &Index<'_>, va: Va, known: impl Fn(Va) -> bool) -> bool {
    let mut at = va;
    loop {
        let before = index.stretch(at.offset(-1)).and_then(|(_, stretch)| stretch.insn_start(at.offset(-1)));
        let Some(before) = before.filter(|before| !known(*before)) else { return false };
        match index.code().insn_at(before) {
            Some(insn) if insn.next() == at && insn.is_filler() => at = before,
            // What a compiler moves away stands behind other code that it has moved away, which may
            // end with a call that does not return.
            Some(insn) if matches!(insn.flow(), Flow::Call(_) | Flow::CallIndirect) => {
                return insn.next() == at && !(index.is_start(va) && index.is_part(va));
            }
            Some(insn) => return insn.next() == at && insn.falls_through(),
            None => return true,
        }
    }
}

/// The jumps to a return, as exits in its place: all that lead to it, if these are direct jumps of
/// the same code alone. A return has one byte, often too few for a jump; a jump to it has more.
/// `None`: others may come to it.
#[must_use]
pub fn jumps_to(index: &Index<'_>, exit: Exit) -> Option<Vec<Exit>> {
    let Exit { va, kind: ExitKind::Return { drops: 0 } } = exit else { return None };
    let end = va.plus(Len(1));
    let named = index.is_start(va) || index.has_symbol(va) || index.is_named(va);
    let lands = !index.landing_pads(va, end).is_empty();
    let unknown = index.code().go || index.control_flow_known(va.offset(-1), end).is_err();
    if named || lands || unknown || is_run_into(index, va, |_| false) {
        return None;
    }
    let jump = |source: Va| {
        let insn = index.code().insn_at(source)?;
        match insn.flow() {
            Flow::Jump(to) if to == va => Some(Exit { va: source, kind: ExitKind::TailCall { to: Some(va) } }),
            Flow::Branch(to) if to == va && insn.condition().is_some() => {
                Some(Exit { va: source, kind: ExitKind::ConditionalTailCall { to: va } })
            }
            _ => None,
        }
    };
    let edges = index.edges_to(va, end);
    let all: Option<Vec<Exit>> = edges.iter().map(|edge| jump(edge.source)).collect();
    all.filter(|all| !all.is_empty())
}
