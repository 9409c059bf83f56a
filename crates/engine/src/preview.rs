//! What a pattern means, and what would be done about it: nothing is touched.

use std::path::PathBuf;

use sidestep_isa::Va;
use sidestep_plan::Needs;
use sidestep_sys::Process;

use crate::api::{Explained, Options, Pattern};
use crate::error::SessionError;
use crate::objects::Objects;
use crate::placement::There;
use crate::planning::{Wish, plan_all};
use crate::remote::{mappings, used};
use crate::resolve;
use crate::surroundings::{self, Surroundings};

/// One function that `list` shows.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Object path.
    pub object: PathBuf,
    /// Raw symbol name.
    pub name: String,
    /// Demangled name, where it differs.
    pub demangled: Option<String>,
    /// Link-time address.
    pub va: Va,
    /// Size in bytes, 0 = unknown.
    pub size: u64,
    /// A USDT probe: its name is `PROVIDER:NAME`.
    pub is_usdt: bool,
}

fn matches(pattern: &Pattern, pid: Option<i32>, objects: &mut Objects) -> Result<Vec<resolve::Match>, SessionError> {
    match pid {
        Some(pid) => resolve::in_process(pattern, &Process::open(pid)?, objects),
        None => resolve::in_files(pattern, objects),
    }
}

/// All functions that a pattern matches: in the mappings of `pid`, or in files (a short library name is looked up
/// like the dynamic loader does). Sorted by object, then name.
pub fn list(pattern: &Pattern, pid: Option<i32>, options: &Options) -> Result<Vec<Listed>, SessionError> {
    let mut all = Vec::new();
    for m in matches(pattern, pid, &mut Objects::new(options))? {
        let listed = |raw: &str, name: &str| Listed {
            object: m.object.path().to_owned(),
            name: if raw.is_empty() { name.to_owned() } else { raw.to_owned() },
            demangled: (!raw.is_empty() && raw != name).then(|| name.to_owned()),
            va: m.va.unwrap_or(m.symbol_va),
            size: m.size,
            is_usdt: m.usdt.is_some(),
        };
        all.push(listed(&m.raw, &m.name));
        all.extend(m.aliases.iter().map(|(raw, name)| listed(raw, name)));
    }
    all.sort_by(|a, b| (&a.object, &a.name, a.va).cmp(&(&b.object, &b.name, b.va)));
    Ok(all)
}

/// What would be written where, and why, for every match of a pattern. Touches no process.
pub fn explain(pattern: &Pattern, pid: Option<i32>, options: &Options) -> Result<Vec<Explained>, SessionError> {
    let mut objects = Objects::new(options);
    let found: Vec<_> = matches(pattern, pid, &mut objects)?.into_iter().map(|m| (0, m)).collect();
    let needs = Some(Needs::default());
    let wish = Wish { returns: false, post: false, trap_only: options.no_optimize, more: false, leaves: false, needs };
    let mut surroundings = Surroundings::default();
    let process = pid.map(Process::open).transpose()?;
    surroundings.look(&match &process {
        Some(process) => used(&mappings(process)?),
        None => found.iter().flat_map(|(_, m)| surroundings::assumed(m.image(), m.bias() == 0)).collect(),
    });
    let there = process.as_ref().map(|process| There { process, others: None });
    Ok(plan_all(found, &[wish], &mut surroundings, &mut objects.analyses.borrow_mut(), there, &mut || {})?
        .into_iter()
        .map(|p| Explained {
            name: p.matched.name.clone(),
            object: p.matched.object.path().to_owned(),
            plan: p.plan.map_err(|reason| sidestep_plan::Refusal { asked: p.matched.symbol_va, reason }),
        })
        .collect())
}
