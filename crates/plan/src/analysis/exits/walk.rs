//! The walk through a function, from its first instruction to its exits.

use std::collections::{BTreeMap, BTreeSet};

use sidestep_isa::stack::Stack;
use sidestep_isa::thunk::is_thunk;
use sidestep_isa::{DecodeError, Flow, Insn, Len, Va};

use super::{ExitKind, NoExits};
use crate::analysis::family::Leads;
use crate::analysis::index::Index;
use crate::analysis::sweep::Borders;
use crate::reason::UnknownJumps;

/// A walk through a function.
pub(super) struct Walk<'i, 'a> {
    index: &'i Index<'a>,
    entry: Va,
    /// What is known of the stack in front of each instruction that was reached.
    states: BTreeMap<Va, Stack>,
    todo: Vec<Va>,
    pub exits: BTreeMap<Va, ExitKind>,
    /// Direct calls: where they go, and where they are.
    calls: Vec<(Va, Va)>,
    /// Where indirect jumps of the function go in it.
    led_to: BTreeSet<Va>,
}

impl<'i, 'a> Walk<'i, 'a> {
    /// Walks through the function that starts at `entry`.
    pub fn through(index: &'i Index<'a>, entry: Va) -> Result<Walk<'i, 'a>, NoExits> {
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
        Ok(walk)
    }

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
    pub fn is_exclusive(&self) -> bool {
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
pub(super) fn is_run_into(index: &Index<'_>, va: Va, known: impl Fn(Va) -> bool) -> bool {
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
