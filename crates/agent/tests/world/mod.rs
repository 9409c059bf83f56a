//! The regions of a target, laid out in the test's own process, and calls into the agent as the
//! thunks make them.
#![allow(dead_code)] // each test binary uses its part

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use sidestep_agent::{agent_hit, agent_return, agent_slot};
use sidestep_wire::lookup::LOOKUP_MARKER;
use sidestep_wire::*;

/// What stands for the return trampoline; no test ever executes it.
pub const TRAMPOLINE: u64 = 0x7ead_0000_1000;
const MAPS: u64 = 64;

/// One set of regions; leaked, as a target's are until the detach.
#[derive(Clone, Copy)]
pub struct World {
    pub private: *mut Private,
}

// SAFETY: the regions are shared between threads the way the agent shares them.
unsafe impl Send for World {}
// SAFETY: what threads change of the regions are atomics, or words of one thread.
unsafe impl Sync for World {}

pub struct Setup {
    pub slots: u32,
    pub ring_len: u64,
    pub probes: Vec<ProbeDesc>,
    pub cells: u64,
    pub tsc: bool,
    /// They are given memory behind the slots, and cells behind `cells`.
    pub maps: Vec<MapDesc>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { slots: 8, ring_len: 4096, probes: Vec::new(), cells: 2048, tsc: true, maps: Vec::new() }
    }
}

pub fn map(len: u64, flags: i32) -> *mut u8 {
    // SAFETY: a new mapping.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

pub fn flow(flow: Flow) -> ProbeDesc {
    ProbeDesc { flow: flow as u32, flags: ProbeDesc::COUNT_ENTRY, ..ProbeDesc::default() }
}

/// What stands for native code of programs.
pub type Program = unsafe extern "C" fn(*mut Regs, u64, u64, u64, u64, *mut ThreadState) -> u64;

pub fn program(flow: Flow, code: Program) -> ProbeDesc {
    ProbeDesc { entry: code as *const () as u64, ..self::flow(flow) }
}

/// First cell of the histogram that [`latency`] fills.
pub const HISTOGRAM: u64 = 8;

/// Measures calls: how often in cell `hits`, how long in the histogram.
pub fn latency(hits: u32) -> ProbeDesc {
    ProbeDesc { hits, exit: measure as *const () as u64, ..program(Flow::Return, remember) }
}

unsafe extern "C" fn remember(regs: *mut Regs, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the program gets the registers of a hit, and the word behind them is its cookie.
    unsafe { regs.add(1).cast::<u64>().write(helper(state, 5, [0; 5])) };
    0
}

unsafe extern "C" fn measure(regs: *mut Regs, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the program gets the registers of a hit, and the word behind them is its cookie. The
    // cells are large enough.
    unsafe {
        let passed = helper(state, 5, [0; 5]).saturating_sub(regs.add(1).cast::<u64>().read());
        let cells = ((*state).cells as *mut u64).add(HISTOGRAM as usize);
        for (cell, by) in [(helper(state, 256, [passed, 0, 0, 0, 0]), 1), (Histogram::SUM as u64, passed)] {
            // One instruction, as generated code has it: a handler may come at any moment.
            std::arch::asm!("add qword ptr [{}], {}", in(reg) cells.add(cell as usize), in(reg) by, options(nostack));
        }
    }
    0
}

/// Calls a helper as generated code does.
///
/// # Safety
/// `state` is prepared, the arguments are what the helper wants.
pub unsafe fn helper(state: *mut ThreadState, number: usize, [a, b, c, d, e]: [u64; 5]) -> u64 {
    // SAFETY: the caller promises that `state` is prepared and that the arguments are what the
    // helper wants (section "Safety" above).
    unsafe {
        let code = ptr::addr_of!((*state).helpers[number]).read();
        let code: unsafe extern "C" fn(u64, u64, u64, u64, u64, *mut ThreadState) -> u64 = std::mem::transmute(code);
        code(a, b, c, d, e, state)
    }
}

impl World {
    pub fn new(setup: &Setup) -> World {
        let probes = setup.probes.len() as u64;
        let cells_off = size_of::<Slot>() as u64;
        let mut cells = setup.cells * 8;
        let places: Vec<u64> = setup
            .maps
            .iter()
            .map(|map| {
                cells += map.cells_len();
                cells - map.cells_len()
            })
            .collect();
        let ring_off = (cells_off + cells).next_multiple_of(64);
        let slot_stride = (ring_off + setup.ring_len).next_multiple_of(4096);
        let (common_off, missed_off, maps_off, slots_off) = (4096, 4096 + 1024, 8192, 16384);
        assert!(probes * 8 <= 3072 && MAPS * 24 <= 8192);
        let map_descs_off = slots_off + u64::from(setup.slots) * slot_stride;
        let mut total = map_descs_off + 128 * setup.maps.len() as u64;
        let data: Vec<u64> = setup
            .maps
            .iter()
            .map(|map| {
                total = (total + map.data_len()).next_multiple_of(64);
                (total - map.data_len()) & !63
            })
            .collect();
        let shared = map(total, libc::MAP_SHARED);

        let state_stride = private::STATE_LEN.next_multiple_of(4096) as u64;
        let descs_off = (size_of::<Private>() as u64).next_multiple_of(64);
        let shapes_off = (descs_off + probes * size_of::<ProbeDesc>() as u64).next_multiple_of(64);
        let states_off = (shapes_off + 128 * setup.maps.len() as u64).next_multiple_of(4096);
        let private = map(states_off + u64::from(setup.slots) * state_stride, libc::MAP_PRIVATE);
        let lookup = map(size_of::<LookupTable>() as u64, libc::MAP_PRIVATE);
        // SAFETY: fresh mappings of sufficient size that nobody else knows yet.
        unsafe {
            let wiped = libc::madvise(lookup.cast(), size_of::<LookupTable>(), libc::MADV_WIPEONFORK);
            assert_eq!(wiped, 0);
            lookup.cast::<u64>().write(LOOKUP_MARKER);
            let head = &mut *private.cast::<Private>();
            let layout = &mut head.layout;
            layout.slots_off = slots_off;
            layout.slot_stride = slot_stride;
            layout.slots_max = setup.slots;
            layout.cells_off = cells_off;
            layout.cells = cells / 8;
            layout.map_descs_off = map_descs_off;
            layout.map_descs = setup.maps.len() as u64;
            for (i, desc) in setup.maps.iter().enumerate() {
                let to = shared.add(map_descs_off as usize).cast::<MapDesc>().add(i);
                ptr::copy_nonoverlapping(desc, to, 1);
                (*to).data = data[i];
                (*to).cells = places[i];
                ptr::copy_nonoverlapping(to, private.add(shapes_off as usize).cast::<MapDesc>().add(i), 1);
            }
            layout.ring_off = ring_off;
            layout.ring_len = setup.ring_len;
            layout.common_off = common_off;
            layout.missed_off = missed_off;
            layout.probes_max = probes;
            layout.maps_off = maps_off;
            layout.maps_cap = MAPS as u32;
            let p = private as u64;
            head.shapes = p + shapes_off;
            head.shared = shared as u64;
            head.lookup = lookup as u64;
            head.trampoline = TRAMPOLINE;
            head.probes = p + descs_off;
            head.states = p + states_off;
            head.state_stride = state_stride;
            head.pid = std::process::id().into();
            head.tsc = u32::from(setup.tsc);
            head.tsc_mult = 1 << 31;
            head.tsc_shift = 31;
            for (i, desc) in setup.probes.iter().enumerate() {
                (head.probes as *mut ProbeDesc).add(i).write(*desc);
            }
        }
        World { private: private.cast() }
    }

    pub fn head(&self) -> &'static Private {
        // SAFETY: the regions that `new` has made are leaked, so this one stays mapped.
        unsafe { &*self.private }
    }

    /// From now on forked children are followed.
    pub fn follow(&self) {
        // SAFETY: the regions that `new` has made are leaked, so this one stays mapped. Nobody else
        // looks at the field meanwhile.
        unsafe { ptr::addr_of_mut!((*self.private).follow).write(1) };
    }

    pub fn layout(&self) -> &'static SharedLayout {
        &self.head().layout
    }

    pub fn header(&self) -> &'static Header {
        // SAFETY: the regions that `new` has made are leaked, so this one stays mapped. `new` has
        // put its address there.
        unsafe { &*(self.head().shared as *const Header) }
    }

    pub fn common(&self) -> &'static Common {
        // SAFETY: the regions that `new` has made are leaked, so this one stays mapped. The offset
        // is the one that `new` has chosen.
        unsafe { &*((self.head().shared + self.layout().common_off) as *const Common) }
    }

    /// The address of a map's shape: what programs are given.
    pub fn shape(&self, index: u64) -> u64 {
        self.head().shapes + index * 128
    }

    /// A map, as the controller sees it.
    pub fn map(&self, index: u64) -> &'static MapDesc {
        let at = self.head().shared + self.layout().map_descs_off + index * 128;
        // SAFETY: the regions that `new` has made are leaked, so this one stays mapped. Tests pass
        // an index below the number of maps.
        unsafe { &*(at as *const MapDesc) }
    }

    /// Its memory.
    pub fn data(&self, index: u64) -> &'static [AtomicU64] {
        let map = self.map(index);
        let at = (self.head().shared + map.data) as *const AtomicU64;
        // SAFETY: the regions that `new` has made are leaked, so this one stays mapped. `new` has
        // reserved as much memory for the map.
        unsafe { std::slice::from_raw_parts(at, map.data_len() as usize / 8) }
    }

    pub fn slot(&self, index: u64) -> &'static Slot {
        let layout = self.layout();
        // SAFETY: the regions that `new` has made are leaked, so this one stays mapped. Tests pass
        // an index below `slots_max`.
        unsafe { &*((self.head().shared + layout.slots_off + index * layout.slot_stride) as *const Slot) }
    }

    pub fn word(&self, at: u64) -> &'static AtomicU64 {
        // SAFETY: tests pass addresses of aligned words within the regions, which are leaked.
        unsafe { AtomicU64::from_ptr(at as *mut u64) }
    }

    /// A cell, added up over all slots.
    pub fn cell(&self, cell: u64) -> u64 {
        let layout = self.layout();
        let of = |slot: u32| ptr::from_ref(self.slot(u64::from(slot))) as u64 + layout.cells_off + cell * 8;
        (0..layout.slots_max).map(|slot| self.word(of(slot)).load(Ordering::Relaxed)).sum()
    }

    pub fn missed(&self, probe: u64) -> u64 {
        self.word(self.head().shared + self.layout().missed_off + probe * 8).load(Ordering::Relaxed)
    }

    pub fn dropped(&self) -> u64 {
        let at = |probe: u64| self.head().shared + self.layout().dropped_off() + probe * 8;
        (0..self.layout().probes_max).map(|probe| self.word(at(probe)).load(Ordering::Relaxed)).sum()
    }

    pub fn maps(&self) -> Vec<MapEntry> {
        let header = self.header();
        let maps = (self.head().shared + self.layout().maps_off) as *const MapEntry;
        // SAFETY: the regions that `new` has made are leaked, so this one stays mapped. No thread
        // is in the agent while a test reads the list.
        (0..header.maps_len.load(Ordering::Relaxed)).map(|i| unsafe { maps.add(i as usize).read() }).collect()
    }

    /// The thread's entry, as a detour finds it.
    pub fn enter(&self, fs_base: u64) -> Option<Thread> {
        // SAFETY: the private region is filled. A made-up `fs` base is only looked at through safe
        // reads.
        let entry = unsafe { agent_slot(self.private, fs_base) };
        // SAFETY: the address is null or that of an entry of the lookup table, which is leaked.
        let entry = unsafe { entry.as_ref() }?;
        assert_eq!(entry.key, fs_base);
        Some(Thread { world: *self, cells: entry.cells, state: entry.state as *mut ThreadState })
    }
}

/// A thread that has its entry.
#[derive(Clone, Copy)]
pub struct Thread {
    pub world: World,
    pub cells: u64,
    pub state: *mut ThreadState,
}

// SAFETY: a thread's state is a part of the regions, which are shared the way the agent shares
// them.
unsafe impl Send for Thread {}

/// A return address: `n` bytes behind the first one.
pub fn behind_call(n: u64) -> u64 {
    /// Bytes with which calls begin, so that each address in there is behind one.
    static CALLS: OnceLock<Vec<u8>> = OnceLock::new();
    let calls = CALLS.get_or_init(|| vec![0xe8; 1 << 20]);
    &raw const calls[16 + n as usize] as u64
}

impl Thread {
    pub fn hit(&self, frame: &mut Regs, probe: u32) -> bool {
        let mut hit = Hit { regs: *frame, ..Hit::default() };
        let regs = ptr::from_mut(&mut hit).wrapping_byte_add(8).cast();
        // SAFETY: the region is filled, the state is one of its own, and the registers are those of
        // a hit.
        let watched = unsafe { agent_hit(regs, self.state, self.world.private, probe) };
        *frame = hit.regs;
        watched != 0
    }

    /// Calls a helper.
    ///
    /// # Safety
    /// The arguments are what the helper wants.
    pub unsafe fn helper(&self, number: usize, args: [u64; 5]) -> u64 {
        // SAFETY: the caller promises that the arguments are what the helper wants (section
        // "Safety" above). The state was prepared when the thread got its entry.
        unsafe { helper(self.state, number, args) }
    }

    /// A call: the return address is stored, the function's probe is hit.
    pub fn call(&self, slot: &mut u64, ret: u64, probe: u32) {
        *slot = ret;
        assert!(self.tail_call(slot, probe));
    }

    /// A jump to a probed function: the return address is whatever the caller left. True: this hit
    /// has replaced it.
    pub fn tail_call(&self, slot: &mut u64, probe: u32) -> bool {
        let replaced = self.hit(&mut Regs { rsp: ptr::from_mut(slot) as u64, ..Regs::default() }, probe);
        assert_eq!(*slot, TRAMPOLINE);
        replaced
    }

    /// `ret` through a slot: what the processor does, and if that leads to the trampoline, what the
    /// agent says.
    pub fn ret(&self, slot: &mut u64) -> u64 {
        match *slot {
            TRAMPOLINE => {
                let rsp = ptr::from_mut(slot) as u64 + 8;
                let mut hit = Hit { regs: Regs { rsp, rax: 0x7e7, ..Regs::default() }, ..Hit::default() };
                let regs = ptr::from_mut(&mut hit).wrapping_byte_add(8).cast();
                // SAFETY: the region is filled, the state is one of its own, and the registers are
                // those of a hit.
                unsafe { agent_return(regs, self.state, self.world.private) }
            }
            real => real,
        }
    }

    pub fn state(&self) -> ThreadState {
        // SAFETY: the state lies in a leaked region. This is a plain copy of it.
        unsafe { ptr::read_volatile(self.state) }
    }

    /// Entries that nobody has declared dead.
    pub fn live(&self) -> u64 {
        let shadow = self.state().shadow as *const ShadowEntry;
        // SAFETY: the thread's shadow stack has `depth` entries in use.
        (0..self.depth()).filter(|i| unsafe { (*shadow.add(*i as usize)).slot } != 0).count() as u64
    }

    pub fn depth(&self) -> u64 {
        self.state().shadow_len.load(Ordering::Relaxed)
    }
}

/// A small generator with a fixed seed (Knuth's MMIX constants), so that a failure can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}
