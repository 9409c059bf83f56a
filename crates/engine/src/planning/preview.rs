//! What a pattern means, and what would be done about it: nothing is touched.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;

use sidestep_isa::Va;
use sidestep_plan::{Needs, Plan, explain};
use sidestep_sys::Process;

use crate::api::{Explained, FuncPattern, Options, Pattern};
use crate::error::SessionError;
use crate::planning::placement::There;
use crate::planning::surroundings::{self, Surroundings};
use crate::planning::{Planned, Returns, Wish, plan_all};
use crate::programs::{Ends, Part};
use crate::refusal::Refusal;
use crate::resolve;
use crate::resolve::objects::Objects;
use crate::resolve::unnamed::finds_only_few;
use crate::target::remote::{mappings, used};

/// One function that `list` shows.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Object path.
    pub object: PathBuf,
    /// Raw symbol name.
    pub name: String,
    /// Demangled name, where it differs; with parameters if others have the same one, or the
    /// pattern has some.
    pub demangled: Option<String>,
    /// Link-time address.
    pub va: Va,
    /// Size in bytes, 0 = unknown.
    pub size: u64,
    /// A USDT probe: its name is `PROVIDER:NAME`.
    pub is_usdt: bool,
    /// Most functions of the object have no symbols, and the pattern, which is for many, does not
    /// mean those.
    pub is_few: bool,
}

fn matches(pattern: &Pattern, pid: Option<i32>, objects: &mut Objects) -> Result<Vec<resolve::Match>, SessionError> {
    match pid {
        Some(pid) => resolve::in_process(pattern, &Process::open(pid)?, objects),
        None => resolve::in_files(pattern, objects),
    }
}

/// All functions that a pattern matches: in the mappings of `pid`, or in files (a short library
/// name is looked up like the dynamic loader does). Sorted by object, then name.
pub fn list(pattern: &Pattern, pid: Option<i32>, options: &Options) -> Result<Vec<Listed>, SessionError> {
    let mut all = Vec::new();
    let found = matches(pattern, pid, &mut Objects::new(options))?;
    let few = finds_few(pattern, &found);
    for m in found {
        let listed = |raw: &str, name: &str| Listed {
            object: m.object.path().to_owned(),
            name: if raw.is_empty() { name.to_owned() } else { raw.to_owned() },
            demangled: (!raw.is_empty() && raw != name).then(|| name.to_owned()),
            va: m.va.unwrap_or(m.symbol_va),
            size: m.size,
            is_usdt: m.usdt.is_some(),
            is_few: few.contains(m.object.path()),
        };
        all.push(listed(&m.raw, &m.name));
        all.extend(m.aliases.iter().map(|(raw, name)| listed(raw, name)));
    }
    let is_told = matches!(&pattern.func, FuncPattern::Name(name) if name.contains('('));
    tell_overloads(&mut all, is_told);
    all.sort_by(|a, b| (&a.object, &a.name, a.va).cmp(&(&b.object, &b.name, b.va)));
    Ok(all)
}

/// The objects of whose functions a pattern means only the few that have symbols.
fn finds_few(pattern: &Pattern, found: &[resolve::Match]) -> HashSet<PathBuf> {
    let objects = found.chunk_by(|a, b| Rc::ptr_eq(&a.object, &b.object)).map(|all| &all[0].object);
    objects.filter(|object| finds_only_few(&pattern.func, object)).map(|object| object.path().to_owned()).collect()
}

/// Gives names of C++ their parameters where several functions of an object have the name, or
/// `always`.
fn tell_overloads(all: &mut [Listed], always: bool) {
    let mut signatures: HashMap<(PathBuf, String), HashSet<String>> = HashMap::new();
    for listed in all.iter() {
        if let (Some(name), Some(full)) = (&listed.demangled, sidestep_symbols::demangled(&listed.name)) {
            signatures.entry((listed.object.clone(), name.clone())).or_default().insert(full);
        }
    }
    for listed in all {
        let Some(name) = &listed.demangled else { continue };
        let is_overloaded = |of: &HashSet<String>| always || of.len() > 1;
        if signatures.get(&(listed.object.clone(), name.clone())).is_some_and(is_overloaded) {
            listed.demangled = sidestep_symbols::demangled(&listed.name);
        }
    }
}

/// What would be written where, and why, for every match of a pattern. Touches no process.
pub fn explain(pattern: &Pattern, pid: Option<i32>, options: &Options) -> Result<Vec<Explained>, SessionError> {
    let mut objects = Objects::new(options);
    let found: Vec<_> = matches(pattern, pid, &mut objects)?.into_iter().map(|m| (0, m)).collect();
    let all: Vec<_> = found.iter().map(|(_, m)| m.clone()).collect();
    let few = finds_few(pattern, &all);
    let needs = Some(Needs::default());
    let wish = Wish { returns: None, post: false, trap_only: options.no_optimize, more: false, leaves: false, needs };
    let process = pid.map(Process::open).transpose()?;
    let there = process.as_ref().map(|process| There { process, others: None, keeps_returns: false, may_trap: true });
    let room = || -> Result<Surroundings, SessionError> {
        let mut surroundings = Surroundings::default();
        surroundings.look(&match &process {
            Some(process) => used(&mappings(process)?),
            None => found.iter().flat_map(|(_, m)| surroundings::assumed(m.image(), m.bias() == 0)).collect(),
        });
        Ok(surroundings)
    };
    let analyses = &mut objects.analyses.borrow_mut();
    let entries = plan_all(found.clone(), &[wish], &mut room()?, analyses, there, &mut || {})?;
    let returns = Wish { returns: Some(Returns { result: false, entry: false }), ..wish };
    let mut returns = returns_of(plan_all(found.clone(), &[returns], &mut room()?, analyses, there, &mut || {})?);
    let explained = |p: Planned| {
        let none = || explain::Returns::Not { why: "it is not the start of a function".into() };
        Explained {
            name: p.matched.name.clone(),
            object: p.matched.object.path().to_owned(),
            is_few: few.contains(p.matched.object.path()),
            returns: returns.remove(&whose(&p)).unwrap_or_else(none),
            plan: p.plan.map_err(|reason| Refusal { asked: p.matched.symbol_va, reason }),
        }
    };
    Ok(entries.into_iter().map(explained).collect())
}

/// A function: its object, where that is, and its link-time address.
type Whose = (PathBuf, i64, Va);

fn whose(p: &Planned) -> Whose {
    whose_of(&p.matched, p.of)
}

fn whose_of(matched: &resolve::Match, of: Va) -> Whose {
    (matched.object.path().to_owned(), matched.bias(), of)
}

/// How the returns of each function are watched.
fn returns_of(planned: Vec<Planned>) -> HashMap<Whose, explain::Returns> {
    let mut all = HashMap::new();
    for p in planned {
        match (p.part, p.plan) {
            (Part::Whole, Err(why)) => {
                _ = all.insert(whose_of(&p.matched, p.of), explain::Returns::Not { why: why.to_string() });
            }
            (Part::Whole, Ok(_)) => {
                let why = p.unproven.map_or(String::new(), |why| why.to_string());
                all.insert(whose_of(&p.matched, p.of), explain::Returns::ByAddress { why });
            }
            (Part::Enter | Part::Exit { ends: Ends::Not, .. }, _) | (_, Err(_)) => {}
            (Part::Exit { before, .. }, Ok(plan)) => {
                let asked = plan.displaced.get(before).map_or(plan.asked, |insn| insn.va);
                let entry = all.entry(whose_of(&p.matched, p.of)).or_insert(explain::Returns::AtExits(Vec::new()));
                if let explain::Returns::AtExits(exits) = entry {
                    exits.push(Plan { asked, ..plan });
                }
            }
        }
    }
    all
}
