//! Programs that ask for arguments of static probes, completed for their sites.

use std::collections::HashMap;

use sidestep_bpf::pass::arguments;

use super::Installer;
use crate::api::Program;
use crate::error::SessionError;
use crate::planning::Planned;
use crate::programs::Arguments;
use crate::resolve::usdt;
use crate::target::hold::Hold;
use crate::target::regions::Regions;

/// Of each planned probe: the index of the program that is for its site alone, if there is one, or
/// why it cannot be probed.
pub(super) type Completed = Vec<Result<Option<usize>, String>>;

impl Installer {
    /// Does the program of a probe ask for an argument that its site has in memory?
    pub(super) fn have_arguments_in_memory(&self, planned: &[Planned]) -> bool {
        let mut asked: HashMap<usize, Vec<u64>> = HashMap::new();
        planned.iter().any(|p| {
            let (Some(probe), Some(entry)) = (&p.matched.usdt, self.requests[p.request].action.entry) else {
                return false;
            };
            let numbers = asked.entry(entry).or_insert_with(|| {
                let program = self.bundle.programs.get(entry).and_then(Program::verified);
                program.and_then(|verified| arguments::asked(verified).ok()).unwrap_or_default()
            });
            usdt::are_in_memory(&p.matched.object, probe, numbers)
        })
    }

    /// Completes programs for the sites of static probes: one for all sites that have the arguments
    /// at the same places.
    pub(super) fn complete_programs(
        &self,
        regions: &mut Regions,
        hold: &mut Hold<'_>,
        planned: &[Planned],
    ) -> Result<Completed, SessionError> {
        let found: Vec<Result<Option<(usize, Arguments)>, String>> =
            planned.iter().map(|p| self.arguments_of_site(regions, p)).collect();
        regions.complete(hold, found.iter().filter_map(|found| found.clone().ok().flatten()))?;
        let programs = &regions.programs;
        let index = |found: Option<(usize, Arguments)>| found.and_then(|(entry, at)| programs.completed(entry, at));
        Ok(found.into_iter().map(|found| found.map(index)).collect())
    }

    /// The program of a probe, and where its site has what the program asks for.
    fn arguments_of_site(&self, regions: &Regions, p: &Planned) -> Result<Option<(usize, Arguments)>, String> {
        let (Some(probe), Some(loaded)) = (&p.matched.usdt, &p.matched.loaded) else { return Ok(None) };
        let Some(entry) = self.requests[p.request].action.entry else { return Ok(None) };
        let asked = regions.programs.asked(entry);
        if asked.is_empty() {
            return Ok(None);
        }
        let found = usdt::arguments(&p.matched.object, probe, asked, loaded.bias).map_err(|error| error.to_string())?;
        Ok(Some((entry, found)))
    }
}
