//! Forked children that become processes of the session in their own right. A child has what its
//! parent had, and needs nobody, as long as neither of them changes: code, detours and tables are
//! its own copies, and the journal says the same of both. When one of them maps a library that is
//! to be probed, the child gets a header, a journal and a mapping list of its own first.

use std::mem::offset_of;
use std::sync::Arc;

use sidestep_isa::{Len, Va};
use sidestep_sys::{Process, Stopped};
use sidestep_wire::header::MEMFD_NAME;
use sidestep_wire::{Header, JournalEntry, MapEntry, MapKind, Private};

use crate::error::SessionError;
use crate::memory::view::View;
use crate::patch::switch::take_turn;
use crate::session::Session;
use crate::session::installer::Installer;
use crate::session::process_names::tell_names;
use crate::target::discovery::{self, Found};
use crate::target::hold::Hold;
use crate::target::regions::Regions;
use crate::target::remote::{Remote, mappings};

impl Session {
    /// What the parent of a forked child has, or had, if the session knows it: what the child has,
    /// too.
    pub(crate) fn inherited(&self, child: i32) -> Option<&Installer> {
        let header = header_of(child)?;
        let all = self.others.iter().chain([self]);
        all.filter(|session| is_of(&header, session)).map(|session| &session.installer).next()
    }

    /// Makes a forked child a process of the session.
    pub(crate) fn adopt(&mut self, child: i32) -> Result<(), SessionError> {
        let Some(inherited) = self.inherited(child) else { return Ok(()) };
        let mut installer = inherited.clone();
        let process = Process::open(child)?;
        let _turn = take_turn(&process)?;
        let names = installer.bundle.processes;
        if let Some(regions) = installer.regions_mut() {
            let mut hold = Hold::running(&process);
            regions.shared = Arc::new(hold.stopped("memory", |stopped| own_head(stopped, regions))?);
            tell_names(names, process.pid(), regions);
        }
        self.others.push(Session::new(process, None, installer));
        Ok(())
    }

    /// Before a process is changed: the children that have been forked from it keep what it had up
    /// to now.
    pub(crate) fn adopt_children(&mut self, parent: i32, family: &[i32]) {
        for pid in family {
            let is_child = || header_of(*pid).is_some_and(|header| header.target_pid == parent);
            if !self.knows(*pid) && is_child() {
                // One that has ended meanwhile needs nothing.
                let _ = self.adopt(*pid);
            }
        }
    }
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
    let place = |regions: &Regions| (regions.shared_va, regions.private) == (header.shared_va, header.private_va);
    session.pid() == header.target_pid && session.installer.regions().is_some_and(place)
}

/// Maps new memory over what the child has of its parent: the same, but of this process.
fn own_head(stopped: &mut Stopped, regions: &Regions) -> Result<View, SessionError> {
    let (pid, layout, at) = (stopped.process().pid(), &regions.layout, regions.shared_va);
    let name = [MEMFD_NAME.as_bytes(), &[0]].concat();
    stopped.write(regions.room().data, &name)?;
    let fd = Remote(stopped).memfd(regions.room().data)?;
    let own = View::from_target_fd(pid, fd, layout.common_off)
        .map_err(SessionError::from)
        .and_then(|view| copy_head(stopped, regions, &view).map(|()| view))
        .and_then(|view| {
            let mut remote = Remote(stopped);
            remote.map_over(at, fd, 0, Len(layout.common_off))?;
            remote.dont_dump(at, Len(layout.common_off))?;
            Ok(view)
        });
    Remote(stopped).close(fd)?;
    let own = own?;
    let child = Va(regions.private.0 + offset_of!(Private, child) as u64);
    stopped.write(child, &Private::ADOPTED.to_ne_bytes())?;
    Ok(own)
}

fn copy_head(stopped: &Stopped, regions: &Regions, to: &View) -> Result<(), SessionError> {
    let (layout, process, at) = (&regions.layout, stopped.process(), regions.shared_va.0);
    let count = |field: usize| process.read_pod::<u32>(Va(at + field as u64)).map(u64::from);
    let sites = count(offset_of!(Header, journal_len))?.min(layout.journal_cap);
    let parts = [(0, size_of::<Header>() as u64), (layout.journal_off, sites * size_of::<JournalEntry>() as u64)];
    for (offset, len) in parts {
        let mut bytes = vec![0; len as usize];
        process.read(Va(at + offset), &mut bytes)?;
        to.write(offset, &bytes);
    }
    let listed = count(offset_of!(Header, maps_len))?.min(layout.maps_cap);
    let entries: Vec<MapEntry> = discovery::read_array(process, Va(at + layout.maps_off), listed)?;
    // Shadow stacks that the parent had to grow may have come later.
    for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.kind != MapKind::Grown as u32) {
        to.write(layout.maps_off + (index * size_of::<MapEntry>()) as u64, crate::memory::raw::bytes_of(entry));
    }
    to.write(offset_of!(Header, target_pid) as u64, &process.pid().to_ne_bytes());
    Ok(())
}
