//! How many sites of an object get which technique.
//!
//! Decided by the same code as a [`crate::plan()`], which does more: what a detour need not save, for example, is not asked
//! here. That, and instruction boundaries which the [`Index`] keeps, make a million sites cheap.

use std::collections::{BTreeMap, HashMap};

use sidestep_isa::{Va, x86};

use crate::index::Index;
use crate::parallel;
use crate::plan::Technique;
use crate::strategy::choose;
use crate::sweep::{Borders, Stretch};

/// Which sites are counted. Functions are what symbols and unwind information describe; padding and whatever else lies
/// between them is no site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sites {
    /// The starts of all functions.
    Entries,
    /// Every instruction of every function, decoded from its start.
    Instructions,
}

/// The sites of an object, counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    /// Sites by technique. Techniques without a site are left out.
    pub techniques: BTreeMap<Technique, u64>,
    /// Sites that cannot be probed.
    pub refused: u64,
    /// Instructions in functions that do not decode, or not to something that makes sense: data among the code. They are no sites.
    pub data: u64,
    /// Bytes between functions that are no padding: data, or code that nothing describes.
    pub between: u64,
    /// Why sites were refused, or got a trap: most frequent first.
    pub reasons: Vec<Reason>,
}

/// Why some sites were refused, or got a trap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    /// [`Technique::Trap`], or `None` where nothing was possible.
    pub technique: Option<Technique>,
    /// A clause for the user. `X` stands for an address, `…` for an instruction with operands. Of a trap, why the last one of the better techniques
    /// was not possible.
    pub text: String,
    /// How many sites.
    pub sites: u64,
    /// The first of them.
    pub example: Va,
}

impl Coverage {
    /// Counts the sites of an object, on all processors.
    ///
    /// ```
    /// use sidestep_isa::{Len, Va};
    /// use sidestep_plan::coverage::{Coverage, Sites};
    /// use sidestep_plan::object::{Bytes, Extent, ObjectCode};
    /// use sidestep_plan::{Index, Technique};
    /// let text = [0xb8, 1, 0, 0, 0, 0xc3]; // mov $1,%eax; ret
    /// let index = Index::new(ObjectCode {
    ///     text: vec![Bytes { name: ".text", va: Va(0x1000), data: &text }],
    ///     extents: vec![Extent { start: Va(0x1000), len: Len(6) }],
    ///     ..ObjectCode::default()
    /// });
    /// let coverage = Coverage::of(&index, Sites::Instructions);
    /// assert_eq!((coverage.of_technique(Technique::Jump), coverage.of_technique(Technique::Trap)), (1, 1));
    /// ```
    #[must_use]
    pub fn of(index: &Index<'_>, sites: Sites) -> Coverage {
        let mut stretches: Vec<&Stretch> = index.stretches().iter().collect();
        let tallies = parallel::map(
            &mut stretches,
            |stretch| stretch.len(),
            |_, part| {
                let mut tally = Tally::default();
                for stretch in part {
                    if stretch.borders == Borders::Gap {
                        tally.numbers.between += unfilled(index, stretch);
                        continue;
                    }
                    match sites {
                        Sites::Entries => {
                            index.starts_in(stretch).iter().for_each(|va| tally.count(index, stretch, *va))
                        }
                        Sites::Instructions => {
                            instructions(index, stretch).into_iter().for_each(|va| tally.count(index, stretch, va))
                        }
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

    /// Adds the numbers of another object, but not its reasons, which have an address of their own object as an example.
    pub fn add(&mut self, other: &Coverage) {
        for (technique, sites) in &other.techniques {
            *self.techniques.entry(*technique).or_default() += sites;
        }
        self.refused += other.refused;
        self.data += other.data;
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
    /// How often, and the first site.
    reasons: HashMap<(Option<Technique>, String), (u64, Va)>,
}

impl Tally {
    fn count(&mut self, index: &Index<'_>, stretch: &Stretch, va: Va) {
        let (technique, reason) = match choose(index, va, false) {
            Ok(choice) => {
                *self.numbers.techniques.entry(choice.technique).or_default() += 1;
                if choice.technique != Technique::Trap {
                    return;
                }
                (Some(Technique::Trap), choice.rejected.last().map(|r| general(&r.reason)))
            }
            Err(_) if stretch.fault.is_some() => {
                self.numbers.data += 1;
                return;
            }
            Err(reason) => {
                self.numbers.refused += 1;
                (None, Some(general(&reason)))
            }
        };
        self.note((technique, reason.unwrap_or_default()), 1, va);
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
        let reason = |((technique, text), (sites, example))| Reason { technique, text, sites, example };
        let mut reasons: Vec<Reason> = self.reasons.into_iter().map(reason).collect();
        reasons.sort_by(|a, b| b.sites.cmp(&a.sites).then(a.example.cmp(&b.example)));
        Coverage { reasons, ..self.numbers }
    }
}

/// Bytes of a gap behind the filler that it begins with.
fn unfilled(index: &Index<'_>, gap: &Stretch) -> u64 {
    let bytes = index.code().text_at(gap.start, gap.end).unwrap_or_default();
    let filler = x86::sweep(bytes, gap.start).map_while(Result::ok).take_while(|insn| insn.is_nop() || insn.is_int3());
    let rest = &bytes[filler.map(|insn| insn.len()).sum()..];
    if rest.iter().all(|byte| *byte == 0) { 0 } else { rest.len() as u64 }
}

/// The instructions of a function. Behind one without a size may be padding, which is none of it.
fn instructions(index: &Index<'_>, function: &Stretch) -> Vec<Va> {
    let mut all: Vec<Va> = function.insns().collect();
    if function.borders == Borders::Guessed {
        let filler = |va: &Va| index.code().insn_at(*va).is_some_and(|insn| insn.is_nop() || insn.is_int3());
        let padding = all.iter().rev().take_while(|va| filler(va)).count();
        all.truncate(all.len() - padding);
    }
    all
}

/// A reason without what differs from site to site: addresses, and instructions with operands, which stand in backquotes.
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
