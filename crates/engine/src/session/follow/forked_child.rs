//! Forked children that become processes of the session in their own right. A child has what its
//! parent had, and needs nobody, as long as neither of them changes: code, detours and tables are
//! its own copies, and so are header, journal and list of mappings. When one of them maps a library
//! that is to be probed, the header of the child is first made to name the child.

use std::mem::offset_of;

use sidestep_sys::Process;
use sidestep_wire::Header;

use crate::error::SessionError;
use crate::patch::switch::take_turn;
use crate::session::Session;
use crate::session::installer::Installer;
use crate::session::process_names::tell_names;
use crate::target::discovery::{self, Found};
use crate::target::hold::Hold;
use crate::target::regions::{Head, Regions};
use crate::target::remote::mappings;

impl Session {
    /// What the parent of a forked child has, or had, if the session knows it: what the child has,
    /// too.
    pub(crate) fn inherited(&self, child: i32) -> Option<&Installer> {
        let header = header_of(child)?;
        let all = self.others.iter().chain(&self.ended).chain([self]);
        all.filter(|session| is_of(&header, session)).map(|session| &session.installer).next()
    }

    /// Makes a forked child a process of the session.
    pub(crate) fn adopt(&mut self, child: i32) -> Result<(), SessionError> {
        let Some(inherited) = self.inherited(child) else { return Ok(()) };
        let mut installer = inherited.clone();
        // They are those of the parent.
        installer.images = None;
        let process = Process::open(child)?;
        let _turn = take_turn(&process)?;
        let names = installer.bundle.processes;
        if let Some(regions) = installer.regions_mut() {
            let mut hold = Hold::running(&process);
            regions.head = hold.stopped("memory", |stopped| own_head(stopped.process(), regions))?;
            tell_names(names, process.pid(), regions);
        }
        self.others.push(Session::new(process, None, installer));
        Ok(())
    }

    /// Before a process is changed: the children that have been forked from it keep what it had up
    /// to now.
    pub(crate) fn adopt_children(&mut self, parent: i32, family: &[i32]) {
        for pid in family {
            if !self.knows(*pid) && parent_of(*pid) == Some(parent) {
                // One that has ended meanwhile needs nothing.
                let _ = self.adopt(*pid);
            }
        }
    }
}

/// The process of the session that a forked child has its memory from.
pub(super) fn parent_of(child: i32) -> Option<i32> {
    header_of(child).map(|header| header.target_pid)
}

/// The header that a child has from its parent.
fn header_of(child: i32) -> Option<Found> {
    let process = Process::look_at(child).ok()?;
    let all = discovery::all(&process, &mappings(&process).ok()?);
    let found = all.into_iter().find(Found::is_mine)?;
    found.is_child(&process).then_some(found)
}

/// Is it that of this process? What it has executed since has its id, too, but other memory.
fn is_of(header: &Found, session: &Session) -> bool {
    let place = |regions: &Regions| (regions.head.at, regions.private) == (header.shared_va, header.private_va);
    session.pid() == header.target_pid && session.installer.regions().is_some_and(place)
}

/// Makes the head that the child has by the fork its own.
fn own_head(process: &Process, regions: &Regions) -> Result<Head, SessionError> {
    let head = Head { process: process.clone(), at: regions.head.at };
    head.set_u32(offset_of!(Header, target_pid) as u64, process.pid() as u32)?;
    Ok(head)
}
