//! Which USDT probes are there?

use std::path::PathBuf;

use sidestep_isa::Va;
use sidestep_symbols::resolve_object;
use sidestep_symbols::usdt::Probe;
use sidestep_sys::Process;

use crate::api::Options;
use crate::error::SessionError;
use crate::resolve;
use crate::resolve::objects::Objects;

/// A site of a USDT probe.
#[derive(Clone, Debug)]
pub struct StaticProbe {
    /// Path of the object.
    pub object: PathBuf,
    /// What its note says.
    pub probe: Probe,
}

/// The sites of all USDT probes whose provider and name match these globs: of a process, or of one
/// of its objects, or of a file (a short library name is looked up like the dynamic loader does).
/// Sorted by object, provider, name and address.
///
/// # Errors
/// There is no such process or object, or it cannot be read. It is none if nothing matches.
pub fn static_probes(
    object: Option<&str>,
    pid: Option<i32>,
    (provider, name): (&str, &str),
    options: &Options,
) -> Result<Vec<StaticProbe>, SessionError> {
    let mut objects = Objects::new(options);
    let mut found = Vec::new();
    match pid {
        None => found.push(objects.open_file(&resolve::file(object.unwrap_or_default())?)?),
        Some(pid) => {
            let process = Process::open(pid)?;
            let mapped = Objects::mapped(&process)?;
            match object {
                Some(name) => match resolve_object(name, &mapped).first() {
                    Some(one) => found.push(objects.load(&process, one)?.object),
                    None => return Err(resolve::no_object(name, pid)),
                },
                // What is no object that can be read has no probes that could be used.
                None => found.extend(mapped.iter().filter_map(|one| Some(objects.load(&process, one).ok()?.object))),
            }
        }
    }
    let mut probes = Vec::new();
    for object in found {
        let path = object.path().to_owned();
        let matching = object.usdt_probes()?.into_iter().filter(|probe| probe.matches(provider, name));
        probes.extend(matching.map(|probe| StaticProbe { object: path.clone(), probe }));
    }
    fn key(p: &StaticProbe) -> (&PathBuf, &str, &str, Va) {
        (&p.object, &p.probe.provider, &p.probe.name, p.probe.va)
    }
    probes.sort_by(|a, b| key(a).cmp(&key(b)));
    Ok(probes)
}
