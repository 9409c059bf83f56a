//! How threads stand when sites are about to change: who has to be moved out of the way, who comes
//! to the copy by itself, and for whom to wait.

use std::mem::offset_of;
use std::ops::Range;

use sidestep_isa::Va;
use sidestep_sys::{Mapping, Process, Stopped};
use sidestep_wire::{MapEntry, MapKind, Private};

use crate::error::SessionError;
use crate::target::discovery::{self, Found};
use crate::target::remote::mappings;
use crate::target::thread_positions::{self, Place, Position};

/// For so many looks in all, sites wait for threads that are on their way to or from a handler.
pub(crate) const LOOKS: u32 = 100;

/// What has to be known of a session to judge how threads stand.
#[derive(Clone)]
pub(crate) struct Ground {
    /// Our own code, and the agents of other sessions, which may act for this one.
    pub ours: Vec<Range<u64>>,
    /// A handler sees its fault at the original, and comes back to the copy by itself.
    pub shown: bool,
}

/// How stopped threads stand.
pub(crate) struct Scene {
    pub positions: Vec<Position>,
    ground: Ground,
}

impl Ground {
    /// As the target's memory says.
    pub fn of(process: &Process, found: &Found) -> Result<Ground, SessionError> {
        let code = |kind: u32| kind == MapKind::Slab as u32 || kind == MapKind::Agent as u32;
        let listed = found.mappings(process)?;
        let own = listed.iter().filter(|m| code(m.kind)).map(MapEntry::range);
        let ours = own.chain(discovery::agents(&discovery::all(process, &mappings(process)?))).collect();
        let table = found.private_va.0 + offset_of!(Private, detours) as u64;
        let shown = found.has_private(process) && process.read_pod::<u64>(Va(table))? != 0;
        Ok(Ground { ours, shown })
    }
}

impl Scene {
    /// Looks at all that stand.
    pub fn new(stopped: &Stopped, mappings: &[Mapping], ground: &Ground) -> Result<Scene, SessionError> {
        Ok(Scene { positions: thread_positions::positions(stopped, mappings)?, ground: ground.clone() })
    }

    /// Will a guard bring it to the copy? Not one that may have gone by it already, with an older
    /// table of copies.
    pub fn comes_back(&self, stopped: &Stopped, position: &Position) -> bool {
        self.ground.shown && thread_positions::has_faulted(stopped, position) && !self.is_inside(stopped, position)
    }

    /// Is there a fault inside a site, whose thread is in our code? It may be about to show the
    /// original address to the program's handler, or have gone by the guard behind that: it can
    /// neither be moved nor left where it is. `is_in_the_way`: is it behind the first byte of a
    /// site that is about to change?
    pub fn is_early(&self, stopped: &Stopped, is_in_the_way: impl Fn(&Position) -> bool) -> bool {
        self.positions.iter().any(|position| {
            is_in_the_way(position)
                && self.is_inside(stopped, position)
                && thread_positions::has_faulted(stopped, position)
        })
    }

    /// A frame whose thread executes our own code.
    fn is_inside(&self, stopped: &Stopped, position: &Position) -> bool {
        let Place::SignalFrame { tid, .. } = position.place else { return false };
        let ip = stopped.threads().iter().find(|t| t.tid == tid).map(|t| t.regs.ip().0);
        ip.is_none_or(|ip| self.ground.ours.iter().any(|range| range.contains(&ip)))
    }
}
