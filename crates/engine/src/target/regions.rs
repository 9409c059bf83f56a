//! The regions of a session in the target: mapped, filled, listed for removal.

/// The offset of a field of the header.
macro_rules! at {
    ($field:ident) => {
        std::mem::offset_of!(sidestep_wire::Header, $field) as u64
    };
}

mod head;
mod list;
mod shared;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use sidestep_bpf::map::Map;
use sidestep_isa::{Len, Va};

use sidestep_plan::thunk::{Context, Env, Globals, globals, prefers_low_lookup, thread_pointer_through_self};
use sidestep_sys::{Batch, CallError, Process, Stopped, TscScale, arch};
use sidestep_wire::lookup::{HASH_MULTIPLIER, HASH_SHIFT, LOOKUP_MARKER};
use sidestep_wire::{
    Blocked, ClosedThread, HandlerSwitch, LOOKUP_BUCKETS, LookupTable, MapEntry, MapKind, Private, ProbeDesc, Signals,
    TrapEntry,
};

use crate::api::{Options, Program};
use crate::error::SessionError;
use crate::memory::layout::{CALLS_OFF, LIST_LEN, Layout, PAGE, round};
use crate::memory::maps;
use crate::memory::raw::bytes_of;
use crate::memory::view::View;
use crate::programs::{Arguments, Memory, Programs};
use crate::resolve::objects::syscall_entry;
use crate::target::allocator::{Spare, Taken};
use crate::target::blob::Blob;
use crate::target::faults::Detours;
use crate::target::hold::Hold;
use crate::target::identity::{self_pointers, sets_thread_pointer, told_apart};
use crate::target::remote::{Remote, Room, stopped_mappings};
use crate::target::seccomp::{self, Extra};
use crate::target::space::LOW;
use crate::target::thread_positions;
use crate::target::unwinding::Tables;
pub(crate) use head::Head;
use list::{List, Place};
use shared::map_shared;

/// The regions of a session.
#[derive(Clone)]
pub(crate) struct Regions {
    pub layout: Layout,
    /// Slots of the layout that this process has mapped: all, or fewer where it may map little
    /// memory.
    pub slots_mapped: u64,
    /// The head of the shared region, which belongs to this process; where it is, the region is.
    pub head: Head,
    /// The rest, as the controller sees it: all processes of the session have the same memory.
    pub common: Arc<View>,
    pub private: Va,
    /// Code that makes several system calls.
    batch: Va,
    pub env: Env,
    pub globals: Globals,
    /// Programs that the session may run, and one that does nothing.
    pub programs: Programs,
    /// Their maps.
    pub maps: Vec<Map>,
    /// What each thread has, of the controller: programs run in it, too.
    pub own: View,
    /// All trap table entries so far. There is a table if SIGTRAP is ours.
    pub traps: Vec<TrapEntry>,
    /// Pages of stubs that are mapped.
    pub stubs: BTreeSet<u64>,
    /// All detours so far, and who is shown them.
    pub detours: Detours,
    /// How callers of frames are found.
    pub unwinding: Tables,
    /// What is there and nobody needs.
    pub spare: RefCell<Spare>,
    /// What was taken since somebody has asked.
    pub taken: RefCell<Taken>,
}
impl Regions {
    /// Maps and fills everything but slabs, while the target runs as long as it can. On an error
    /// the next [`crate::patch::detach::remove`] unmaps what was mapped: every mapping is listed as
    /// soon as it is there.
    pub fn map(
        hold: &mut Hold<'_>,
        (layout, maps): (Layout, Vec<Map>),
        programs: &[Program],
        options: &Options,
        calls: Extra,
        tsc: Option<TscScale>,
        common: Option<&Arc<View>>,
    ) -> Result<Regions, SessionError> {
        let interpret = options.interprets();
        let uses = |name: &str| {
            programs.iter().any(|p| p.verified().is_some_and(|v| v.facts.calls(|helper| helper.name == name)))
        };
        let silent = calls.silent;
        let extra = Extra { signals: uses("send_signal"), writes: uses("probe_write_user"), ..calls };
        let blob = Blob::new(interpret)?;
        let process = hold.process();
        if seccomp::has_filter(&process) {
            hold.stopped("seccomp filters", |stopped| seccomp::check(stopped, extra))?;
        }
        // A few calls in each pause, and none that can wait.
        let pid = process.pid();
        let part = layout.clone().in_process(sidestep_sys::room(pid));
        let part = part.map_err(|needed| CallError::NoMemory { pid, len: Len(needed) })?;
        let is_first = common.is_none();
        let (head, common) = hold.stopped("shared memory", |stopped| {
            if let Some(tid) = stopped.dispatching() {
                return Err(SessionError::Dispatch { pid: process.pid(), tid });
            }
            let (head, common) = map_shared(stopped, (&layout, &part), common)?;
            List { head: &head, layout: &layout }.add(head.at, part.shared_len, MapKind::Shared)?;
            Ok((head, common))
        })?;
        let shared_va = head.at;
        let list = List { head: &head, layout: &layout };
        let aside = Place::find(&process, shared_va.0..shared_va.0, Len(part.private_len))?;
        let private = hold.stopped("memory", |stopped| list.map(stopped, &aside, MapKind::Private))?;
        // Some programs (V8 with its sandbox) have all of the first 4 GiB reserved.
        let low = match prefers_low_lookup(arch::ISA) {
            true => Place::find(&process, LOW..LOW, Len(layout.lookup_len)).ok().filter(Place::is_below_2_gib),
            false => None,
        };
        let lookup_place = match low {
            Some(low) => low,
            None => Place::find(&process, shared_va.0..shared_va.0, Len(layout.lookup_len))?,
        };
        let changes_pointer = sets_thread_pointer(&process)?;
        let (lookup, self_pointer) = hold.stopped("memory", |stopped| {
            told_apart(stopped)?;
            let lookup = list.map(stopped, &lookup_place, MapKind::Lookup)?;
            Remote(stopped).wipe_on_fork(lookup, Len(layout.lookup_len))?;
            Ok((lookup, !changes_pointer && self_pointers(stopped)))
        })?;
        let pid = process.own_id() as u32;
        if is_first {
            maps::init(&common, &layout, &maps);
        }
        // The agent, behind it a page of process-wide code, and the programs. It has no mutable
        // statics, so all is read-execute.
        let shapes = Va(private.0 + layout.shapes_off);
        let memory = Memory { layout: &layout, maps: &maps, shared: shared_va, descs: shapes };
        let mut programs = Programs::compile(programs, &memory, options.interpret, tsc.as_ref())?;
        if options.protection.counts_rejected() {
            programs.count_rejected();
        }
        let globals_at = round(blob.len(), PAGE);
        let agent_len = globals_at + PAGE + round(programs.bytes.len() as u64, PAGE);
        let list = List { head: &head, layout: &layout };
        let aside = Place::find(&process, shared_va.0..shared_va.0, Len(agent_len))?;
        let agent = hold.stopped("code", |stopped| {
            let agent = list.map(stopped, &aside, MapKind::Agent)?;
            Remote(stopped).dont_dump(shared_va, Len(part.shared_len))?;
            Ok(agent)
        })?;

        let function = |name: &'static str| {
            blob.symbol(name).map(|offset| Va(agent.0 + offset)).ok_or(SessionError::AgentSymbol { name })
        };
        let (mut context, mut changes) = (programs.context().union(Context::GOROUTINE), programs.changes());
        if options.extensible {
            // Programs that come later may look at everything.
            context = context.union(Context::NATIVE);
            changes = changes.union(Context::native_changes(true));
        }
        let env = Env {
            isa: arch::ISA,
            private,
            buckets: Va(lookup.0 + offset_of!(LookupTable, buckets) as u64),
            missed: Va(shared_va.0 + layout.missed_off),
            descs: Va(private.0 + layout.descs_off),
            agent_slot: function("agent_slot")?,
            agent_hit: function("agent_hit")?,
            agent_return: function("agent_return")?,
            agent_busy: function("agent_busy")?,
            agent_stack: function("agent_stack")?,
            agent_real: function("agent_real")?,
            agent_signal: function("agent_signal")?,
            context,
            changes,
            native: programs.env,
            agent_vectors: blob.vectors_used(),
            self_pointer,
            hash_multiplier: HASH_MULTIPLIER as i32,
            hash_shift: HASH_SHIFT as u8,
            bucket_count: LOOKUP_BUCKETS as u32,
            singly: options.extensible,
            syscall_entry: syscall_entry(&process),
        };
        process.write(agent, &blob.place(agent.0))?;
        let globals_va = Va(agent.0 + globals_at);
        let interpreter = if interpret { Some(function("agent_interpret")?) } else { None };
        programs.place(Va(globals_va.0 + PAGE), interpreter);
        process.write(Va(globals_va.0 + PAGE), &programs.bytes)?;
        let (mut code, globals) = globals(globals_va, &env);
        let batch_va = globals_va.0 + code.len() as u64;
        code.extend(arch::BATCH_CODE);
        code.extend(arch::GADGET_CODE);
        process.write(globals_va, &code)?;
        process.use_gadgets(gadgets(Va(batch_va)));
        process.write(lookup, bytes_of(&LOOKUP_MARKER))?;
        let private_head = private_head(&part, private, shared_va, lookup, globals.trampoline, tsc.as_ref(), pid);
        let signals = Signals { handler: globals.signal.0, restorer: globals.restorer.0, ..no_signals() };
        let (follow, silent) = (u32::from(options.follow), u32::from(silent));
        let after_fault = function("agent_after_fault")?.0;
        process.write(private, bytes_of(&Private { follow, silent, after_fault, signals, ..private_head }))?;
        process.write(shapes, &maps::shapes(&maps, &layout).ok_or(SessionError::MapsTooLarge)?)?;

        head.set_u64(at!(private_va), private.0)?;
        head.set_u64(at!(lookup_va), lookup.0)?;
        head.set_u64(at!(agent_va), agent.0)?;
        head.set_u64(at!(agent_len), agent_len)?;
        head.set_u64(at!(trampoline_va), globals.trampoline.0)?;
        head.set_u64(at!(batch_va), batch_va)?;
        let (detours, unwinding) = (Detours::default(), Tables::default());
        let (traps, stubs) = (Vec::new(), BTreeSet::new());
        let own = View::private(8 * layout.cells)?;
        Ok(Regions {
            layout,
            slots_mapped: part.slots_max,
            head,
            common,
            private,
            batch: Va(batch_va),
            env,
            globals,
            programs,
            maps,
            own,
            traps,
            stubs,
            detours,
            unwinding,
            spare: RefCell::default(),
            taken: RefCell::default(),
        })
    }

    /// Compiles programs that come later, for these indices in ascending order, and puts their code
    /// into the target.
    pub fn add_programs(
        &mut self,
        hold: &mut Hold<'_>,
        programs: &[Program],
        indices: &[usize],
    ) -> Result<(), SessionError> {
        if programs.is_empty() {
            return Ok(());
        }
        let descs = Va(self.private.0 + self.layout.shapes_off);
        let memory = Memory { layout: &self.layout, maps: &self.maps, shared: self.head.at, descs };
        let mut more = self.programs.more(programs, &memory)?;
        let len = Len(round(more.bytes.len() as u64, PAGE));
        let map = || self.map_listed(hold, "code", len, MapKind::Agent);
        let at = self.room_for_code(None, len, map)?;
        // Where there is no native code, those that do more than add to cells are interpreted.
        more.place(at, self.programs.interpreter);
        hold.process().write(at, &more.bytes)?;
        self.programs.append(more, indices);
        Ok(())
    }

    /// Completes programs, by index, for sites that have their arguments at these places, and puts
    /// their code into the target.
    pub fn complete(
        &mut self,
        hold: &mut Hold<'_>,
        wanted: impl Iterator<Item = (usize, Arguments)>,
    ) -> Result<(), SessionError> {
        let mut new = self.programs.complete(wanted)?;
        if new.programs.bytes.is_empty() {
            return Ok(());
        }
        let len = Len(round(new.programs.bytes.len() as u64, PAGE));
        let map = || self.map_listed(hold, "code", len, MapKind::Agent);
        let at = self.room_for_code(None, len, map)?;
        new.programs.place(at, self.programs.interpreter);
        hold.process().write(at, &new.programs.bytes)?;
        self.programs.keep(new);
        Ok(())
    }

    /// Adds a mapping to the list of what has to be removed.
    pub fn list_mapping(&self, at: Va, len: Len, kind: MapKind) -> Result<(), SessionError> {
        self.list().add(at, len.0, kind).map(drop)
    }

    /// Takes the mapping that was added last off the list: it could not be made.
    pub fn unlist_mapping(&self) -> Result<(), SessionError> {
        let count = self.head.u32(at!(maps_len))?;
        self.head.set_u32(at!(maps_len), count.saturating_sub(1))
    }

    /// Maps memory anywhere, in a pause for `purpose`.
    pub fn map_listed(
        &self,
        hold: &mut Hold<'_>,
        purpose: &'static str,
        len: Len,
        kind: MapKind,
    ) -> Result<Va, SessionError> {
        self.map_near(hold, purpose, self.private.0..self.private.0, len, kind)
    }

    /// The same near addresses: a jump reaches it from there.
    pub fn map_near(
        &self,
        hold: &mut Hold<'_>,
        purpose: &'static str,
        near: Range<u64>,
        len: Len,
        kind: MapKind,
    ) -> Result<Va, SessionError> {
        let place = Place::for_code(&hold.process(), near, len)?;
        hold.stopped(purpose, |stopped| self.list().map(stopped, &place, kind))
    }

    fn list(&self) -> List<'_> {
        List { head: &self.head, layout: &self.layout }
    }

    /// Makes all code that was generated so far take the thread pointer from `%fs:0`, if that has
    /// become possible: a spawned program has its TLS set up now. Does nothing if a thread is in
    /// that code.
    pub fn promote_thread_pointer(&mut self, stopped: &mut Stopped) -> Result<(), SessionError> {
        if self.env.self_pointer || !self_pointers(stopped) || sets_thread_pointer(stopped.process())? {
            return Ok(());
        }
        let code = self.code()?;
        let ours = |ip: Va| code.iter().any(|range| range.contains(&ip.0));
        let maps = stopped_mappings(stopped)?;
        if thread_positions::positions(stopped, &maps)?.iter().any(|p| ours(p.ip)) {
            return Ok(());
        }
        for range in code {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            stopped.read(Va(range.start), &mut bytes)?;
            if thread_pointer_through_self(&mut bytes) {
                stopped.write(Va(range.start), &bytes)?;
            }
        }
        self.env.self_pointer = true;
        Ok(())
    }

    /// The set of the signals that are ours, or those of another session which this one shares.
    pub fn signals(&self) -> Result<u64, SessionError> {
        self.head.u64(at!(signals))
    }

    /// Where our code is in the target.
    pub fn code(&self) -> Result<Vec<Range<u64>>, SessionError> {
        let count = u64::from(self.head.u32(at!(maps_len))?).min(self.layout.maps_cap);
        let listed: Vec<MapEntry> = self.head.read_array(self.layout.maps_off, count)?;
        let code = listed.iter().filter(|m| m.kind == MapKind::Slab as u32 || m.kind == MapKind::Agent as u32);
        Ok(code.map(|m| m.addr..m.addr.saturating_add(m.len)).collect())
    }

    /// For several remote calls at one go.
    pub fn room(&self) -> Room {
        room(self.private, self.batch)
    }

    /// Tells the agent what addresses mean in this process.
    pub fn set_space(&self, process: &Process, number: u32) -> Result<(), SessionError> {
        process.write(Va(self.private.0 + offset_of!(Private, space) as u64), &number.to_ne_bytes())?;
        Ok(())
    }

    /// Writes the descriptors of probes, which say what they are.
    pub fn describe(&self, process: &Process, mut descs: Vec<ProbeDesc>) -> Result<(), SessionError> {
        descs.sort_by_key(|desc| desc.hits);
        for run in descs.chunk_by(|a, b| a.hits.checked_add(1) == Some(b.hits)) {
            let off = self.layout.descs_off + u64::from(run[0].hits) * size_of::<ProbeDesc>() as u64;
            let bytes: Vec<u8> = run.iter().flat_map(|desc| bytes_of(desc).to_vec()).collect();
            process.write(Va(self.private.0 + off), &bytes)?;
        }
        Ok(())
    }

    /// Writes into the descriptor of a probe how it is switched.
    pub fn describe_switch(&self, process: &Process, probe: u32, switch: &HandlerSwitch) -> Result<(), SessionError> {
        let off = self.layout.descs_off + u64::from(probe) * size_of::<ProbeDesc>() as u64;
        let at = self.private.0 + off + offset_of!(ProbeDesc, switch) as u64;
        process.write(Va(at), bytes_of(switch))?;
        Ok(())
    }
}

/// Where what several remote calls need lies in a private region, and their code.
pub(crate) fn room(private: Va, code: Va) -> Room {
    let list = private.plus(Len(CALLS_OFF));
    Room { batch: Batch { code, list, len: Len(LIST_LEN) }, data: list.plus(Len(LIST_LEN)) }
}

/// Where the instructions of single remote calls lie, behind the code of several. Those of the
/// program may be written over: by guards, or by probes.
pub(crate) fn gadgets(batch: Va) -> Va {
    batch.plus(Len(arch::BATCH_CODE.len() as u64))
}

fn private_head(
    layout: &Layout,
    private: Va,
    shared: Va,
    lookup: Va,
    trampoline: Va,
    tsc: Option<&TscScale>,
    pid: u32,
) -> Private {
    Private {
        shared: shared.0,
        lookup: lookup.0,
        trampoline: trampoline.0,
        probes: private.0 + layout.descs_off,
        states: private.0 + layout.states_off,
        state_stride: layout.state_stride,
        tsc_base: tsc.map_or(0, TscScale::offset),
        traps: 0.into(),
        trap_mask: 0.into(),
        detours: 0.into(),
        unwind: 0.into(),
        copies: 0.into(),
        tsc: u32::from(tsc.is_some()),
        tsc_shift: tsc.map_or(0, |t| t.shift),
        tsc_mult: tsc.map_or(0, |t| t.mult),
        goroutines: Default::default(),
        keeps_returns: 0.into(),
        layout: layout.shared(),
        shapes: private.0 + layout.shapes_off,
        states_used: 0.into(),
        child: 0.into(),
        pid: pid.into(),
        follow: 0,
        space: 0.into(),
        silent: 0,
        owner: 0.into(),
        after_fault: 0,
        signals: no_signals(),
        asked: Default::default(),
    }
}

fn no_signals() -> Signals {
    let unused = || ClosedThread { fs_base: 0.into(), blocked: Blocked::default() };
    Signals {
        ours: 0.into(),
        in_force: 0.into(),
        own: 0.into(),
        readable: 0.into(),
        shared_stack: 0.into(),
        retained: 0.into(),
        ending: 0.into(),
        handler: 0,
        restorer: 0,
        sharers_len: 0.into(),
        sharers: Default::default(),
        old: Default::default(),
        blocking: Default::default(),
        closed: std::array::from_fn(|_| unused()),
    }
}
