//! Programs that run in the controller, by the interpreter, on the maps of a session or on maps of
//! their own.

mod helpers;
mod memory;

use sidestep_bpf::interp::{FRAME, MAX_DEPTH, Stop, Vm};
use sidestep_bpf::map::Map;
use sidestep_bpf::verify::Verified;
use sidestep_isa::Va;

use crate::api::{Bundle, Entry, Record, Value};
use crate::error::SessionError;
use crate::memory::layout::{Layout, Needs};
use crate::memory::maps::init;
use crate::memory::view::View;
use crate::programs::Memory;
use crate::results::maps::Maps;
use memory::Space;

/// Why a program did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It refers to something that does not exist.
    #[error(transparent)]
    Link(#[from] sidestep_bpf::program::LinkError),
    /// It had to be stopped.
    #[error("instruction {at}: {stop}")]
    Stopped {
        /// The index of the instruction.
        at: usize,
        /// The reason to stop.
        stop: Stop,
    },
}

/// Maps without a target.
pub struct Local {
    shared: View,
    layout: Layout,
    maps: Vec<Map>,
    own: View,
}

impl Local {
    /// The maps of a bundle, with what they hold at the start.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(bundle: &Bundle) -> Result<Local, SessionError> {
        let maps: Vec<Map> = bundle.maps.iter().map(|m| m.map.clone()).collect();
        let needs = Needs { probes: 1, maps: maps.clone(), ring_len: 0 };
        let layout = Layout::new(&needs).ok_or(SessionError::MapsTooLarge)?;
        // No thread of a target will ever have a slot.
        let shared = View::private(layout.slots_off)?;
        init(&shared, &layout, &maps);
        let own = View::private(8 * layout.cells)?;
        let local = Local { shared, layout, maps, own };
        for (map, entry) in &bundle.entries {
            local.maps().insert(*map, entry);
        }
        Ok(local)
    }

    /// The maps.
    #[must_use]
    pub fn maps(&self) -> Maps<'_> {
        Maps { shared: &self.shared, layout: &self.layout, maps: &self.maps, own: self.own.words(0, self.layout.cells) }
    }
}

impl Maps<'_> {
    /// Runs a program that was verified with these maps, with a context of zeros. Gives the records
    /// that it wrote.
    ///
    /// # Errors
    /// It could not run to its end.
    pub fn run(&self, program: &Verified) -> Result<Vec<Record>, RunError> {
        let descs = Va(memory::SHARED + self.layout.map_desc(0));
        let memory = Memory { layout: self.layout, maps: self.maps, shared: Va(memory::SHARED), descs };
        let linked = program.link(&memory.links())?;
        let mut space = Space::new(*self, FRAME * u64::from(MAX_DEPTH));
        let code = linked.program.slots.clone();
        let mut vm = Vm::new(&code, space.stack_end(), FRAME * u64::from(MAX_DEPTH), u64::MAX);
        match vm.call(&mut space, 0, [memory::CONTEXT, 0, 0, 0, 0]) {
            Ok(_) => Ok(space.records),
            Err(stop) => Err(RunError::Stopped { at: vm.pc(), stop }),
        }
    }

    /// Sets an entry. Of a map with a value per thread, that of the controller.
    pub fn insert(&self, map: usize, entry: &Entry) {
        let value = match &entry.value {
            Value::One(bytes) => bytes,
            Value::PerThread(values) => match values.first() {
                Some((_, bytes)) => bytes,
                None => return,
            },
        };
        let _ = Space::new(*self, 0).update(map, &entry.key, value, 0);
    }

    /// Forgets all entries; values of arrays become zero.
    pub fn clear(&self, map: usize) {
        Space::new(*self, 0).clear(map);
    }

    /// Sets all values of a map to zero, and keeps its keys; not those that each thread has for
    /// itself.
    pub fn zero(&self, map: usize) {
        Space::new(*self, 0).zero(map);
    }
}
