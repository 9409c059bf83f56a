//! How many sites of an object get which technique.
//!
//! Decided by the same code as a [`crate::plan()`], which does more: what a detour need not save,
//! for example, is not asked here. That, and instruction boundaries which the [`Index`] keeps, make
//! a million sites cheap.

use std::collections::{BTreeMap, HashMap};

use sidestep_isa::{Va, sweep};

use crate::analysis::exits::{Exit, NoExits, exits, jumps_to};
use crate::analysis::index::Index;
use crate::analysis::parallel;
use crate::analysis::sweep::{Borders, Stretch};
use crate::policy::lead::Placement;
use crate::policy::plan::{Plan, Refusal, Technique};
use crate::policy::room::Room;
use crate::policy::strategy::{Ladder, choose, plan_exit};

/// Which sites are counted. Functions are what symbols and unwind information describe, and what
/// was found by walking the code; padding and whatever else lies between them is no site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sites {
    /// The starts of all functions, but not of parts that the compiler has moved away from theirs.
    Entries,
    /// Every instruction of every function, decoded from its start.
    Instructions,
    /// The functions of [`Sites::Entries`], by all exits of each: the technique is that of the exit
    /// that gets the worst one.
    Returns,
}

/// The sites of an object, counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    /// Sites by technique. Techniques without a site are left out.
    pub techniques: BTreeMap<Technique, u64>,
    /// Sites that cannot be probed.
    pub refused: u64,
    /// Instructions in functions that do not decode, or not to something that makes sense: data
    /// among the code. They are no sites.
    pub data: u64,
    /// Functions that never return: they have no exit, and are no sites.
    pub never_return: u64,
    /// Bytes between functions that are no padding: data, or code that nothing describes.
    pub between: u64,
    /// Why sites were refused, or got a trap: most frequent first.
    pub reasons: Vec<Reason>,
}

/// Why some sites were refused, or got a trap instead of something better.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    /// The technique that was not possible, where a trap was; `None` where nothing was.
    pub rejected: Option<Technique>,
    /// A clause for the user. `X` stands for an address, `…` for an instruction with operands.
    pub text: String,
    /// How many sites.
    pub sites: u64,
    /// The first of them.
    pub example: Va,
}

impl Coverage {
    /// Counts the sites of an object, on all processors. Each is decided about by itself, in a room
    /// that `room` makes for each processor: it should not keep what is claimed.
    #[must_use]
    pub fn of<R: Room>(index: &Index<'_>, sites: Sites, room: impl Fn() -> R + Sync) -> Coverage {
        let mut stretches: Vec<&Stretch> = index.stretches().iter().collect();
        let tallies = parallel::map(
            &mut stretches,
            |stretch| stretch.len(),
            |_, part| {
                let mut tally = Tally::default();
                let mut room = room();
                for stretch in part {
                    if stretch.borders == Borders::Gap {
                        tally.numbers.between += unfilled(index, stretch);
                        continue;
                    }
                    let all = match sites {
                        Sites::Entries | Sites::Returns => {
                            index.starts_in(stretch).iter().copied().filter(|va| !index.is_part(*va)).collect()
                        }
                        Sites::Instructions => instructions(index, stretch),
                    };
                    match sites {
                        Sites::Returns => {
                            all.into_iter().for_each(|va| tally.count_returns(index, stretch, va, &mut room))
                        }
                        _ => all.into_iter().for_each(|va| tally.count(index, stretch, va, &mut room)),
                    }
                }
                tally
            },
        );
        tallies.into_iter().fold(Tally::default(), Tally::plus).coverage()
    }

    /// Sites with a technique.
    #[must_use]
    pub fn of_technique(&self, technique: Technique) -> u64 {
        self.techniques.get(&technique).copied().unwrap_or(0)
    }

    /// Adds the numbers of another object, but not its reasons, which have an address of their own
    /// object as an example.
    pub fn add(&mut self, other: &Coverage) {
        for (technique, sites) in &other.techniques {
            *self.techniques.entry(*technique).or_default() += sites;
        }
        self.refused += other.refused;
        self.data += other.data;
        self.never_return += other.never_return;
        self.between += other.between;
    }

    /// All sites; data is none.
    #[must_use]
    pub fn sites(&self) -> u64 {
        self.techniques.values().sum::<u64>() + self.refused
    }

    /// Sites that get something better than a trap.
    #[must_use]
    pub fn without_trap(&self) -> u64 {
        self.sites() - self.refused - self.of_technique(Technique::Trap)
    }
}

/// What one thread counted.
#[derive(Default)]
struct Tally {
    /// Without the reasons.
    numbers: Coverage,
    /// By what was not possible and why: how often, and the first site.
    reasons: HashMap<(Option<Technique>, String), (u64, Va)>,
}

impl Tally {
    fn count(&mut self, index: &Index<'_>, stretch: &Stretch, va: Va, room: &mut dyn Room) {
        match choose(index, va, Ladder::Within(room), Placement::default()) {
            Ok(choice) => {
                *self.numbers.techniques.entry(choice.technique).or_default() += 1;
                if choice.technique == Technique::Trap {
                    for rejected in choice.rejected {
                        self.note((Some(rejected.technique), general(&rejected.reason.to_string())), 1, va);
                    }
                }
            }
            Err(_) if stretch.fault.is_some() => self.numbers.data += 1,
            Err(reason) => {
                self.numbers.refused += 1;
                self.note((None, general(&reason.to_string())), 1, va);
            }
        }
    }

    /// Counts a function by its exits.
    fn count_returns(&mut self, index: &Index<'_>, stretch: &Stretch, va: Va, room: &mut dyn Room) {
        let mut refuse = |reason: String| {
            self.numbers.refused += 1;
            self.note((None, general(&reason)), 1, va);
        };
        let found = match exits(index, va) {
            Ok(found) => found,
            Err(NoExits::NeverReturns) => return self.numbers.never_return += 1,
            Err(_) if stretch.fault.is_some() => return self.numbers.data += 1,
            Err(why) => return refuse(why.to_string()),
        };
        let mut one = |exit: Exit| plan_exit(index, exit, false, Some(&mut *room));
        let mut plan = |exit: &Exit| {
            let own = one(*exit)?;
            let ways = jumps_to(index, *exit).filter(|_| own.technique == Technique::Trap).unwrap_or_default();
            let jumps = ways.into_iter().map(&mut one).collect::<Result<Vec<Plan>, Refusal>>().unwrap_or_default();
            let better = !jumps.is_empty() && jumps.iter().all(|plan| plan.technique != Technique::Trap);
            Ok(if better { jumps } else { vec![own] })
        };
        let plans: Result<Vec<Vec<Plan>>, Refusal> = found.all.iter().map(&mut plan).collect();
        match plans {
            Ok(plans) => {
                let worst = plans.into_iter().flatten().max_by_key(|plan| plan.technique);
                let Some(worst) = worst else { return };
                *self.numbers.techniques.entry(worst.technique).or_default() += 1;
                if worst.technique == Technique::Trap {
                    for rejected in worst.rejected {
                        self.note((Some(rejected.technique), general(&rejected.reason.to_string())), 1, worst.asked);
                    }
                }
            }
            Err(refusal) => refuse(refusal.reason.to_string()),
        }
    }

    fn note(&mut self, reason: (Option<Technique>, String), sites: u64, example: Va) {
        let entry = self.reasons.entry(reason).or_insert((0, example));
        *entry = (entry.0 + sites, entry.1.min(example));
    }

    fn plus(mut self, other: Tally) -> Tally {
        self.numbers.add(&other.numbers);
        for (reason, (sites, example)) in other.reasons {
            self.note(reason, sites, example);
        }
        self
    }

    fn coverage(self) -> Coverage {
        let reason = |((rejected, text), (sites, example))| Reason { rejected, text, sites, example };
        let mut reasons: Vec<Reason> = self.reasons.into_iter().map(reason).collect();
        reasons.sort_by(|a, b| (b.sites, a.rejected, &a.text).cmp(&(a.sites, b.rejected, &b.text)));
        Coverage { reasons, ..self.numbers }
    }
}

/// Bytes of a gap behind the filler that it begins with.
fn unfilled(index: &Index<'_>, gap: &Stretch) -> u64 {
    let bytes = index.code().text_at(gap.start, gap.end).unwrap_or_default();
    let filler = sweep(index.code().isa, bytes, gap.start).map_while(Result::ok).take_while(|insn| insn.is_filler());
    let rest = &bytes[filler.map(|insn| insn.len()).sum()..];
    if rest.iter().all(|byte| *byte == 0) { 0 } else { rest.len() as u64 }
}

/// The instructions of a function. Behind one without a size may be padding, which is none of it.
fn instructions(index: &Index<'_>, function: &Stretch) -> Vec<Va> {
    let mut all: Vec<Va> = function.insns().collect();
    if function.borders == Borders::Guessed {
        let filler = |va: &Va| index.code().insn_at(*va).is_some_and(|insn| insn.is_filler());
        let padding = all.iter().rev().take_while(|va| filler(va)).count();
        all.truncate(all.len() - padding);
    }
    all
}

/// A reason without what differs from site to site: addresses, and instructions with operands,
/// which stand in backquotes.
fn general(reason: &str) -> String {
    let mut text = String::with_capacity(reason.len());
    for (i, part) in reason.split('`').enumerate() {
        match i % 2 {
            0 => without_addresses(part, &mut text),
            _ if part.contains(' ') => text.push('…'),
            _ => text.push_str(part),
        }
    }
    text
}

fn without_addresses(text: &str, out: &mut String) {
    let mut parts = text.split("0x");
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        out.push('X');
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_without_addresses() {
        for (reason, want) in [
            ("a call at 0x12 goes to 0x1f3", "a call at X goes to X"),
            (
                "`mov %rsp,0x8(%rax)` has 3 of 5 bytes, and execution goes on behind it",
                "… has 3 of 5 bytes, and execution goes on behind it",
            ),
            ("`ret` has 1 of 5 bytes", "ret has 1 of 5 bytes"),
            ("0x10, which 0x7 refers to, is in", "X, which X refers to, is in"),
        ] {
            assert_eq!(general(reason), want);
        }
    }
}
