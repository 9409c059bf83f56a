//! The plans of an object, compared with what binutils say of its code: the rules of
//! `docs/internals/soundness.md`, judged by somebody who decodes instructions on their own.

mod facts;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

pub use facts::Facts;

use crate::process::Running;
use crate::random::Rng;
use crate::tool::sidestep;

/// For how long the tool may look at an object.
const LONG: Duration = Duration::from_secs(300);

/// What was compared.
#[derive(Default, Debug)]
pub struct Compared {
    /// Plans.
    pub plans: usize,
    /// Of those: jumps over several instructions, guarded or not.
    pub several: usize,
    /// Functions whose returns are watched at their exits.
    pub returns: usize,
    /// The exits of these.
    pub exits: usize,
    /// Addresses that somebody may come to.
    pub arrivals: usize,
    /// Rules that a plan breaks.
    pub broken: Vec<Broken>,
}

/// A plan that breaks a rule.
#[derive(Debug)]
pub struct Broken {
    /// The probed address.
    pub at: u64,
    /// Which rule the plan breaks, with the addresses, in one sentence.
    pub how: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}: {}", self.at, self.how)
    }
}

/// What `sidestep explain` says of a site.
#[derive(Default)]
struct Plan {
    asked: u64,
    technique: String,
    region: Range<u64>,
    /// Address and bytes of what is displaced.
    displaced: Vec<(u64, Vec<u8>)>,
    /// `None`: returns are not watched at exits.
    exits: Option<Vec<u64>>,
}

/// Compares the plans of all function entries of an object and of `inside` other instructions.
/// `None`: it is no 64-bit object with code.
pub fn compare(object: &Path, inside: usize) -> Option<Compared> {
    let facts = Facts::of(object)?;
    let mut compared = Compared { arrivals: facts.arrivals.len(), ..Compared::default() };
    let text = explain(object, "*");
    let known: Vec<u64> = facts.insns.keys().copied().collect();
    let mut rng = Rng::new(known.len() as u64);
    let mut plans = parse(&text);
    for _ in 0..inside.min(known.len()) {
        let at = rng.of(&known);
        plans.extend(parse(&explain(object, &format!("{at:#x}"))));
    }
    for plan in &plans {
        compared.plans += 1;
        compared.several += usize::from(plan.displaced.len() > 1);
        compared.returns += usize::from(plan.exits.is_some());
        compared.exits += plan.exits.as_ref().map_or(0, Vec::len);
        let broken = check(plan, &facts);
        compared.broken.extend(broken.into_iter().map(|how| Broken { at: plan.asked, how }));
    }
    Some(compared)
}

/// What cannot be probed is said, and the status is 1.
///
/// # Panics
/// If it takes too long.
fn explain(object: &Path, function: &str) -> String {
    let pattern = format!("{}:{function}", object.display());
    Running::start(&mut sidestep(&["explain", &pattern])).finish(LONG).stdout
}

fn number(word: &str) -> Option<u64> {
    u64::from_str_radix(word.trim_end_matches(',').strip_prefix("0x")?, 16).ok()
}

/// Plans by their lines: names in a column, which an instruction that follows another leaves out.
fn parse(text: &str) -> Vec<Plan> {
    let mut plans: Vec<Plan> = Vec::new();
    let mut last = "";
    for line in text.lines().filter(|line| line.starts_with("  ")) {
        let Some((name, value)) = line.split_at_checked(14) else { continue };
        last = if name.trim().is_empty() { last } else { name.trim() };
        let words: Vec<&str> = value.split_whitespace().collect();
        let first = words.first().and_then(|word| number(word));
        if last == "address" {
            plans.push(Plan { asked: first.unwrap_or(0), ..Plan::default() });
        }
        let Some(plan) = plans.last_mut() else { continue };
        match (last, &words[..]) {
            ("technique", _) => plan.technique = value.trim().to_owned(),
            ("replaces", [start, "to", end, ..]) => {
                plan.region = number(start).unwrap_or(0)..number(end).unwrap_or(0);
            }
            ("displaces", [_, bytes @ ..]) => {
                let two = |word: &&&str| word.len() == 2;
                let bytes = bytes.iter().take_while(two).map_while(|b| u8::from_str_radix(b, 16).ok()).collect();
                plan.displaced.extend(first.map(|at| (at, bytes)));
            }
            ("returns", ["at", "its", ..]) => plan.exits = Some(Vec::new()),
            ("exit", _) => plan.exits.get_or_insert_default().extend(first),
            _ => {}
        }
    }
    plans.retain(|plan| !plan.region.is_empty());
    plans
}

/// The rules that a plan breaks.
fn check(plan: &Plan, facts: &Facts) -> Vec<String> {
    let mut broken = Vec::new();
    // What is displaced are whole instructions. Where objdump takes data for code it may be out of
    // step, so the first one decides whether it is in step.
    let in_step = plan.displaced.first().is_some_and(|(at, _)| facts.insns.contains_key(at));
    for (at, bytes) in plan.displaced.iter().filter(|_| in_step) {
        match facts.insns.get(at) {
            Some(insn) if insn.bytes == *bytes => {}
            Some(insn) => broken.push(format!("displaces {bytes:02x?} at {at:#x}, which is {}", insn.text)),
            None => broken.push(format!("displaces {at:#x}, which is inside an instruction")),
        }
    }
    // Nobody comes to the middle of what a jump replaces; to a guarded one, only to instructions.
    if plan.technique != "trap" {
        let is_guarded = plan.technique.starts_with("guarded jump");
        for (at, who) in facts.arrivals.range(plan.asked + 1..plan.region.end.max(plan.asked + 1)) {
            if !is_guarded || !plan.displaced.iter().any(|(copied, _)| copied == at) {
                broken
                    .push(format!("a {} to {:#x} is over {at:#x}: {who} leads there", plan.technique, plan.region.end));
            }
        }
    }
    // Each return of a function is an exit, or the branches to it are.
    let frame = facts.frames.iter().find(|frame| frame.start == plan.asked);
    if let (Some(exits), Some(frame)) = (&plan.exits, frame) {
        let executed = facts.executed(frame);
        let returns = facts.insns.range(frame.clone()).filter(|(at, insn)| insn.is_return() && executed.contains(at));
        let missed = returns.filter(|(at, _)| !exits.contains(at) && !facts.only_by(**at, exits));
        broken.extend(missed.map(|(at, _)| format!("the return at {at:#x} is no exit")));
    }
    broken
}
