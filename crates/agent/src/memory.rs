//! Safe windows on the memory that the controller laid out.
//!
//! Everything a signal handler of the same thread may change between two lines is read and written
//! through volatile accesses: the compiler must not keep it in registers.

use core::ptr::{addr_of, addr_of_mut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sidestep_wire::private::{CALLERS, CALLS_OFF, MASKS, SHADOW_OFF, UNWOUND};
use sidestep_wire::{
    Blocked, Common, HELPERS, Header, LookupTable, MapDesc, MapEntry, MapKind, Private, ProbeDesc, SharedLayout,
    Signals, Slot, ThreadState,
};

use crate::arch::{self, nr};

mod call;
mod entry;
mod lookup;
mod sharing;
pub use call::Call;
pub use entry::Entry;
pub use lookup::{Bucket, Table};
pub use sharing::looking;

/// The agent's view of its process.
#[derive(Clone, Copy)]
pub struct Agent {
    private: *const Private,
}

impl Agent {
    /// # Safety
    /// `private` is filled as `sidestep_wire::private` says, and stays mapped with all that it
    /// points to.
    #[must_use]
    pub unsafe fn new(private: *const Private) -> Agent {
        Agent { private }
    }

    /// Where the private region is.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.private as u64
    }

    /// What changes only while all threads are stopped, and atomics.
    #[inline(always)]
    #[must_use]
    pub fn private(&self) -> &Private {
        // SAFETY: `new` demands that the region is filled and stays mapped. Plain fields that
        // change are reached through raw pointers only.
        unsafe { &*self.private }
    }

    /// Head of the shared region.
    #[inline(always)]
    #[must_use]
    pub fn header(&self) -> &Header {
        // SAFETY: `new` demands that `shared` points to the shared region, which stays mapped. The
        // fields of its head that change are atomics.
        unsafe { &*(self.private().shared as *const Header) }
    }

    /// Where everything in the shared region is, as nobody else can change it.
    #[inline(always)]
    #[must_use]
    pub fn layout(&self) -> &SharedLayout {
        &self.private().layout
    }

    /// What changes of a map whose shape this is: its description in the shared region.
    #[must_use]
    pub fn live<'a>(&self, shape: &'a MapDesc) -> &'a MapDesc {
        let private = self.private();
        let offset = core::ptr::from_ref(shape) as u64 - private.shapes;
        // SAFETY: `new` demands that the shared region stays mapped. Shapes and descriptions are in
        // the same order, and what changes in a description are atomics.
        unsafe { &*((private.shared + private.layout.map_descs_off + offset) as *const MapDesc) }
    }

    /// What all processes of the session share.
    #[must_use]
    pub fn common(&self) -> &Common {
        // SAFETY: `new` demands that the shared region stays mapped. The offset is from its layout,
        // and all fields are atomics.
        unsafe { &*((self.private().shared + self.layout().common_off) as *const Common) }
    }

    /// The lookup table.
    #[must_use]
    pub fn table(&self) -> Table {
        Table(self.private().lookup as *mut LookupTable)
    }

    /// The state with a number.
    #[must_use]
    pub fn thread(&self, index: u64) -> Option<Thread> {
        let private = self.private();
        let in_range = index < u64::from(self.layout().slots_max);
        in_range.then(|| Thread((private.states + index * private.state_stride) as *mut ThreadState))
    }

    /// The state at an address from a lookup entry; 0 = none. Callers pass no other address.
    #[must_use]
    pub fn state_at(&self, at: u64) -> Option<Thread> {
        (at != 0).then_some(Thread(at as *mut ThreadState))
    }

    /// Number of states that may be in use.
    #[must_use]
    pub fn threads(&self) -> u64 {
        u64::from(self.private().states_used.load(Ordering::Acquire).min(self.layout().slots_max))
    }

    /// A slot.
    #[must_use]
    pub fn slot(&self, index: u64) -> &'static Slot {
        let layout = self.layout();
        // SAFETY: `new` demands that the shared region stays mapped. Callers pass numbers below
        // `slots_max`, and all fields in use are atomics.
        unsafe { &*((self.private().shared + layout.slots_off + index * layout.slot_stride) as *const Slot) }
    }

    /// The description of a probe.
    #[inline(always)]
    #[must_use]
    pub fn probe(&self, probe: u32) -> Option<&ProbeDesc> {
        // SAFETY: `new` demands that the descriptions stay mapped, and the number was checked.
        // Descriptions change only while all threads are stopped.
        (u64::from(probe) < self.layout().probes_max)
            .then(|| unsafe { &*(self.private().probes as *const ProbeDesc).add(probe as usize) })
    }

    /// [`ProbeDesc::stacked`] of a probe.
    #[must_use]
    pub fn stacked(&self, probe: u32) -> Option<&AtomicU64> {
        // SAFETY: `new` demands that the descriptions stay mapped, and the number was checked.
        // Nobody reads or writes the field in another way while there are threads.
        (u64::from(probe) < self.layout().probes_max).then(|| unsafe {
            let desc = (self.private().probes as *mut ProbeDesc).add(probe as usize);
            AtomicU64::from_ptr(core::ptr::addr_of_mut!((*desc).stacked))
        })
    }

    /// Counts a hit of a probe that could not be handled.
    pub fn count_missed(&self, probe: u32) {
        self.count_at(self.layout().missed_off, probe);
    }

    /// Counts a replaced return address of a probe that will not be seen again.
    pub fn count_dropped(&self, probe: u32) {
        self.count_at(self.layout().dropped_off(), probe);
    }

    /// Adds one to a counter of an array that has one for each probe.
    fn count_at(&self, offset: u64, probe: u32) {
        if u64::from(probe) < self.layout().probes_max && self.counts() {
            let counters = (self.private().shared + offset) as *mut u64;
            // SAFETY: `new` demands that the shared region stays mapped, and the number was
            // checked. All threads count there atomically.
            unsafe { AtomicU64::from_ptr(counters.add(probe as usize)) }.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Fills an entry of the mapping list, its kind last.
    pub fn fill_map(&self, index: u32, addr: u64, len: u64, kind: MapKind) {
        let layout = self.layout();
        if index < layout.maps_cap {
            let maps = (self.private().shared + layout.maps_off) as *mut MapEntry;
            // SAFETY: `new` demands that the shared region stays mapped. The index was checked, and
            // this thread has reserved the entry.
            unsafe {
                let entry = maps.add(index as usize);
                addr_of_mut!((*entry).addr).write_volatile(addr);
                addr_of_mut!((*entry).len).write_volatile(len);
                AtomicU32::from_ptr(addr_of_mut!((*entry).kind)).store(kind as u32, Ordering::Release);
            }
        }
    }

    /// New memory, zeroed, that the detach will find in the mapping list.
    #[must_use]
    pub fn map(&self, bytes: u64) -> Option<u64> {
        const PROT_READ_WRITE: u64 = 3;
        const MAP_PRIVATE_ANONYMOUS: u64 = 0x22;
        const NO_FD: u64 = u64::MAX;

        if self.is_silent() {
            return None;
        }
        let add = |used: u32| (used < self.layout().maps_cap).then_some(used + 1);
        let index = self.header().maps_len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        // SAFETY: a new mapping anywhere.
        let at = unsafe { arch::syscall(nr::MMAP, [0, bytes, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, NO_FD, 0]) };
        if at <= 0 {
            return None; // the list entry stays empty (kind 0)
        }
        self.fill_map(index, at as u64, bytes, MapKind::Grown);
        Some(at as u64)
    }

    /// Is this a forked child?
    #[must_use]
    pub fn is_child(&self) -> bool {
        self.private().child.load(Ordering::Relaxed) != 0
    }

    /// Which meanings addresses have here.
    #[inline]
    pub fn space(&self) -> u32 {
        self.private().space.load(Ordering::Relaxed)
    }

    /// Must it make no system call? See [`Private::silent`].
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.private().silent != 0
    }

    /// Is anything counted in this process: not in a child that is not followed.
    #[must_use]
    pub fn counts(&self) -> bool {
        !self.is_child() || self.private().follow != 0
    }

    /// What the program believes about signals of ours. Its plain fields change.
    #[must_use]
    pub fn signals(&self) -> *mut Signals {
        // SAFETY: `new` demands that the region stays mapped. No reference is made.
        unsafe { addr_of_mut!((*self.private.cast_mut()).signals) }
    }

    /// A time stamp: TSC ticks or, without a usable TSC, nanoseconds.
    #[inline(always)]
    #[must_use]
    pub fn now(&self) -> u64 {
        if self.private().tsc != 0 { arch::ticks() } else { clock() }
    }

    /// Nanoseconds of `CLOCK_MONOTONIC`.
    #[inline(always)]
    #[must_use]
    pub fn monotonic(&self) -> u64 {
        let private = self.private();
        if private.tsc == 0 { clock() } else { self.nanoseconds(arch::ticks()).wrapping_add(private.tsc_base) }
    }

    /// Time stamps' distance in nanoseconds.
    #[inline(always)]
    #[must_use]
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let private = self.private();
        if private.tsc == 0 {
            return ticks;
        }
        ((u128::from(ticks) * u128::from(private.tsc_mult)) >> (private.tsc_shift & 127)) as u64
    }
}

#[cold]
fn clock() -> u64 {
    const CLOCK_MONOTONIC: u64 = 1;
    let mut time = core::mem::MaybeUninit::<[u64; 2]>::uninit();
    // SAFETY: `time` has the layout of `struct timespec`; the call fills it, or fails and leaves
    // zeros.
    unsafe {
        let words = time.as_mut_ptr().cast::<u64>();
        words.write_volatile(0);
        words.add(1).write_volatile(0);
        arch::syscall(nr::CLOCK_GETTIME, [CLOCK_MONOTONIC, words as u64, 0, 0, 0, 0]);
        words.read_volatile().wrapping_mul(1_000_000_000).wrapping_add(words.add(1).read_volatile())
    }
}

/// A thread's state: what [`Thread::new`] demands, also where an [`Agent`] gives it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Thread(*mut ThreadState);

macro_rules! fields {
    ($($(#[$doc:meta])* $get:ident $set:ident: $type:ty),*) => {
        $($(#[$doc])*
        #[inline(always)]
        #[must_use]
        pub fn $get(self) -> $type {
            // SAFETY: `Thread::new` demands that the state stays mapped.
            unsafe { addr_of!((*self.0).$get).read_volatile() }
        }
        $(#[$doc])*
        #[inline(always)]
        pub fn $set(self, value: $type) {
            // SAFETY: `Thread::new` demands that the state stays mapped.
            unsafe { addr_of_mut!((*self.0).$get).write_volatile(value) }
        })*
    };
}

impl Thread {
    /// # Safety
    /// `state` points to a state within the private region, which stays mapped with what lies
    /// behind the state: its first shadow stack and its table of calls.
    #[inline(always)]
    #[must_use]
    pub unsafe fn new(state: *mut ThreadState) -> Thread {
        Thread(state)
    }

    fields! {
        /// `fs` base of the thread.
        fs_base set_fs_base: u64,
        /// Address of its slot.
        slot set_slot: u64,
        /// Address of the private region.
        private set_private: u64,
        /// Address of the hit that the thread is in with an exclusive program, or 0.
        busy set_busy: u64,
        /// The program's last time stamp of this hit in nanoseconds, or 0.
        stamp set_stamp: u64,
        /// Address of its cells; 0 in a forked child.
        cells set_cells: u64,
        /// See [`ThreadState::counting`]; [`Thread::counts`] asks.
        counting set_counting: u64,
        /// See [`ThreadState::lent_at`].
        lent_at set_lent_at: u64,
        /// See [`ThreadState::clearing`].
        clearing set_clearing: u64,
        /// Address of its shadow stack.
        shadow set_shadow: u64,
        /// Capacity of its shadow stack.
        shadow_cap set_shadow_cap: u64,
        /// See [`ThreadState::stack`].
        stack set_stack: u64,
        /// Address of an array that may become the shadow stack, or 0.
        shadow_spare set_shadow_spare: u64,
        /// See [`ThreadState::altstack`].
        altstack set_altstack: u64,
        /// Its thread id when we last looked.
        tid set_tid: u32,
        /// Where the C library keeps the thread id.
        tid_word set_tid_word: u32,
        /// When we last looked at its name.
        comm_time set_comm_time: u64,
        /// Free-running index of the next kept pair of words.
        mask_next set_mask_next: u64
    }

    /// Sets the address of a helper.
    #[inline(always)]
    pub fn set_helper(self, number: usize, address: u64) {
        if number < HELPERS {
            // SAFETY: `new` demands that the state stays mapped, and the number is in range.
            unsafe { addr_of_mut!((*self.0).helpers).cast::<u64>().add(number).write_volatile(address) }
        }
    }

    /// What it believes about signals of ours.
    #[inline(always)]
    #[must_use]
    pub fn blocked(self) -> Blocked {
        // SAFETY: `new` demands that the state stays mapped.
        unsafe {
            let at = addr_of!((*self.0).blocked);
            Blocked {
                now: addr_of!((*at).now).read_volatile(),
                after: addr_of!((*at).after).read_volatile(),
                sp: addr_of!((*at).sp).read_volatile(),
            }
        }
    }

    /// Sets that; what is believed now goes last. Numbers: a [`Blocked`] would go through an xmm
    /// register.
    pub fn set_blocked(self, now: u64, after: u64, sp: u64) {
        // SAFETY: `new` demands that the state stays mapped.
        unsafe {
            let at = addr_of_mut!((*self.0).blocked);
            addr_of_mut!((*at).after).write_volatile(after);
            addr_of_mut!((*at).sp).write_volatile(sp);
            addr_of_mut!((*at).now).write_volatile(now);
        }
    }

    /// Keeps what a system call points to until as much more was kept as there is room for; gives
    /// its address. `from`: what the program has passed to the call in place of that.
    #[must_use]
    pub fn keep(self, words: [u64; 2], from: u64) -> u64 {
        let next = self.mask_next();
        self.set_mask_next(next.wrapping_add(1));
        // SAFETY: `new` demands that the state stays mapped. The index is in range, and each index
        // has two words of `masks`.
        unsafe {
            let index = next as usize % MASKS;
            addr_of_mut!((*self.0).mask_from).cast::<u64>().add(index).write_volatile(from);
            let at = addr_of_mut!((*self.0).masks).cast::<u64>().add(index * 2);
            at.write_volatile(words[0]);
            at.add(1).write_volatile(words[1]);
            at as u64
        }
    }

    /// What a child is given that has borrowed its memory.
    #[must_use]
    pub fn guest(self) -> Bucket {
        // SAFETY: `new` demands that the state stays mapped. `guest` has the size of a lookup
        // entry, and its cells stay 0.
        Bucket::at(unsafe { addr_of_mut!((*self.0).guest).cast() })
    }

    /// Where it keeps arguments of `clone3`.
    #[must_use]
    pub fn clone_args(self) -> *mut u64 {
        // SAFETY: `new` demands that the state stays mapped. No reference is made.
        unsafe { addr_of_mut!((*self.0).clone_args).cast() }
    }

    /// A word of the rules that it remembers; numbers go round.
    #[inline(always)]
    #[must_use]
    pub fn unwound(self, index: u64) -> *mut u64 {
        // SAFETY: `new` demands that the state stays mapped, and the index is in range.
        unsafe { addr_of_mut!((*self.0).unwound).cast::<u64>().add(index as usize % UNWOUND) }
    }

    /// Does it remember this return address?
    #[inline(always)]
    #[must_use]
    pub fn has_caller(self, ret: u64) -> bool {
        // SAFETY: a word of the state, which stays mapped. A signal handler changes it as a whole.
        (unsafe { self.caller(ret).read_volatile() }) == ret
    }

    /// Remembers a return address, in place of another one.
    #[inline(always)]
    pub fn set_caller(self, ret: u64) {
        // SAFETY: a word of the state, which stays mapped; written as a whole.
        unsafe { self.caller(ret).write_volatile(ret) }
    }

    /// The word where it remembers a return address.
    #[inline(always)]
    fn caller(self, ret: u64) -> *mut u64 {
        let index = ret.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - CALLERS.trailing_zeros());
        // SAFETY: `new` demands that the state stays mapped. The shift leaves an index below
        // `CALLERS`.
        unsafe { addr_of_mut!((*self.0).callers).cast::<u64>().add(index as usize) }
    }

    /// As generated code sees it.
    #[must_use]
    pub fn as_ptr(self) -> *mut ThreadState {
        self.0
    }

    /// Entries in use in the shadow stack.
    #[inline(always)]
    #[must_use]
    pub fn shadow_len(self) -> *mut u64 {
        // SAFETY: `new` demands that the state stays mapped. No reference is made.
        unsafe { addr_of_mut!((*self.0).shadow_len).cast() }
    }

    /// Makes another array the shadow stack, in one instruction.
    #[must_use]
    pub fn replace_shadow(self, old: u64, new: u64) -> bool {
        // SAFETY: `new` demands that the state stays mapped. Only the thread of this state writes
        // the field.
        unsafe { arch::replace(addr_of_mut!((*self.0).shadow), old, new) }
    }

    /// Takes the spare array, so that no signal handler can, too.
    #[must_use]
    pub fn take_spare(self) -> Option<u64> {
        let spare = self.shadow_spare();
        // SAFETY: `new` demands that the state stays mapped. Only the thread of this state writes
        // the field.
        (spare != 0 && unsafe { arch::replace(addr_of_mut!((*self.0).shadow_spare), spare, 0) }).then_some(spare)
    }

    /// Thread name as two words.
    #[must_use]
    pub fn comm(self) -> *mut u64 {
        // SAFETY: `new` demands that the state stays mapped. The field lies at a multiple of 8
        // (layout test in `sidestep-wire`).
        unsafe { addr_of_mut!((*self.0).comm).cast() }
    }

    /// Asks the kernel for the thread's name.
    #[cold]
    pub fn ask_name(self) {
        const PR_GET_NAME: u64 = 16;
        // SAFETY: the call writes 16 bytes, and the field has as many.
        unsafe { arch::syscall(nr::PRCTL, [PR_GET_NAME, self.comm() as u64, 0, 0, 0, 0]) };
    }

    /// What the C library has in its word for the thread id; `None`: it has none. For the running
    /// thread only.
    #[inline(always)]
    #[must_use]
    pub fn library_tid(self) -> Option<u32> {
        let at = self.fs_base().wrapping_add(u64::from(self.tid_word())) as *const u32;
        // SAFETY: in the thread control block of the running thread; it was readable when the word
        // was found.
        (self.tid_word() != 0).then(|| unsafe { at.read_volatile() })
    }

    /// Its slot in the shared region; none in a forked child.
    #[must_use]
    pub fn shared_slot(self) -> Option<&'static Slot> {
        let slot = self.slot() as *const Slot;
        // SAFETY: the agent put a slot's address there; all fields in use are atomics.
        (!slot.is_null()).then(|| unsafe { &*slot })
    }

    /// Where its first shadow stack is.
    #[must_use]
    pub fn first_array(self) -> u64 {
        self.0 as u64 + SHADOW_OFF as u64
    }

    /// The entry of its table of calls for a stack slot.
    #[inline(always)]
    #[must_use]
    pub fn call(self, slot: u64) -> Call {
        // SAFETY: `new` demands that the table of calls behind the state stays mapped. `index`
        // gives a number within the table.
        unsafe {
            Call::new(self.0.byte_add(CALLS_OFF).cast::<sidestep_wire::Call>().add(sidestep_wire::Call::index(slot)))
        }
    }

    /// Adds 1 to one of the thread's cells; in a forked child there are none.
    #[inline(always)]
    pub fn count(self, agent: Agent, cell: u64) {
        let cells = self.cells();
        if cells != 0 && cell < agent.layout().cells {
            // SAFETY: the cell is in range and only this thread adds to it.
            unsafe { arch::add((cells as *mut u64).add(cell as usize), 1) }
        }
    }
}
