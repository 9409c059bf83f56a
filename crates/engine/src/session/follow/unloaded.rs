//! Libraries that a process has unloaded: their sites are gone. When such a library is loaded
//! again, at the same place or another one, it is probed like one that was never there.

use std::collections::HashSet;

use sidestep_sys::{Mapping, Process};

use crate::error::SessionError;
use crate::patch::switch::take_turn;
use crate::session::Session;
use crate::session::installer::Installer;
use crate::target::discovery::{self, Site};
use crate::target::hold;
use crate::target::native;
use crate::target::remote::mappings;

impl Session {
    /// Forgets the sites that a process of the session has no more. `is_first`: it is the one that
    /// the session began with. A forked child becomes a process of the session for that, and so do
    /// the children of the process: these still have the library.
    pub(super) fn forget_unloaded(
        &mut self,
        pid: i32,
        is_first: bool,
        family: &mut impl FnMut() -> Vec<i32>,
    ) -> Result<(), SessionError> {
        let process = Process::look_at(pid)?;
        let maps = mappings(&process)?;
        let known = match is_first {
            true => Some(&self.installer),
            false => self.others.iter().find(|other| other.pid() == pid).map(|other| &other.installer),
        };
        let is_known = known.is_some();
        let gone =
            known.or_else(|| self.inherited(pid)).map_or(Vec::new(), |installer| installer.sites_unloaded(&maps));
        if gone.is_empty() {
            return Ok(());
        }
        self.adopt_children(pid, &family());
        if !is_known {
            self.adopt(pid)?;
        }
        let session = match is_first {
            true => Some(self),
            false => self.others.iter_mut().find(|other| other.pid() == pid),
        };
        session.map_or(Ok(()), |session| session.forget_sites(&gone, &maps))
    }

    fn forget_sites(&mut self, gone: &[u64], maps: &[Mapping]) -> Result<(), SessionError> {
        let process = &self.process;
        let _turn = take_turn(process)?;
        let found = discovery::session(process, self.installer.shared(process)?)?;
        let is_gone = |site: &Site| site.entry.newest != 0 && gone.binary_search(&site.entry.site).is_ok();
        let sites: Vec<Site> = found.sites(process)?.into_iter().filter(is_gone).collect();
        let stopped = hold::stop(process)?;
        let result = sites.iter().try_for_each(|site| native::retire_site(&stopped, &found, site));
        stopped.resume()?;
        result?;
        let numbers = sites.iter().flat_map(|site| &site.probes).map(|(number, _)| *number).collect();
        self.installer.forget_unloaded(gone, &numbers, maps);
        Ok(())
    }
}

impl Installer {
    /// The sites, in ascending order, where no code is mapped any more.
    fn sites_unloaded(&self, maps: &[Mapping]) -> Vec<u64> {
        let mut code = maps.iter().filter(|m| m.exec).peekable();
        let is_gone = |site: &u64| {
            while code.next_if(|m| m.end.0 <= *site).is_some() {}
            code.peek().is_none_or(|m| m.start.0 > *site)
        };
        self.sites().filter(is_gone).collect()
    }

    fn forget_unloaded(&mut self, gone: &[u64], numbers: &HashSet<u32>, maps: &[Mapping]) {
        self.forget(gone);
        self.forget_numbers(numbers);
        self.forget_objects(gone, |start| maps.iter().any(|m| m.start.0 <= start && start < m.end.0));
    }
}
