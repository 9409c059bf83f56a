//! The head of the shared region: who is attached, where everything is, and how to undo it.

use crate::arch;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::bell::Bell;

/// First word of the shared region: `"SIDESTEP"` in memory order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SIDESTEP");
/// Layout version; a controller touches only regions of its own version.
pub const VERSION: u32 = 22;
/// Name given to `memfd_create`: the mapping shows as `/memfd:sidestep (deleted)` in
/// `/proc/PID/maps`.
pub const MEMFD_NAME: &str = "sidestep";
/// Longest patch of a site, in bytes.
pub const PATCH_MAX: usize = 16;

/// The head of the shared region, at offset 0.
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`], written when the layout below is there. Addresses follow as soon as they are
    /// known; 0 = not yet.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: u32,
    /// Padding.
    pub pad1: u32,
    /// Process id of the controller, as the controller sees it.
    pub controller_pid: i32,
    /// Process id of the target, as the controller sees it.
    pub target_pid: i32,
    /// Start time of the controller (field 22 of `/proc/PID/stat`), to tell a reused pid.
    pub controller_start: u64,
    /// Length of the shared region.
    pub total_len: u64,
    /// Run-time address of the shared region in the target.
    pub shared_va: u64,
    /// Run-time address of the [`crate::Private`] region.
    pub private_va: u64,
    /// Run-time address of the [`crate::LookupTable`].
    pub lookup_va: u64,
    /// Address range of the agent image: start.
    pub agent_va: u64,
    /// Address range of the agent image: length.
    pub agent_len: u64,
    /// Run-time address of the return trampoline (what a replaced return address points to), or 0.
    pub trampoline_va: u64,

    /// Where everything in the shared region is.
    pub layout: SharedLayout,
    /// Entries of the journal in use. An entry is complete before this count covers it, and covered
    /// before its site is written.
    pub journal_len: AtomicU32,
    /// Entries of the mapping list in use; the agent appends too ([`MapKind::Grown`]): it
    /// counts an entry, then fills it, `kind` last.
    pub maps_len: AtomicU32,

    /// Set of the signals that are ours, so that sites may rely on them: those that the session
    /// owns ([`crate::Signals`]), or uses of another one.
    pub signals: AtomicU64,
    /// 1: somebody has begun to take the probes out. Written before the first site is restored.
    pub detaching: AtomicU32,
    /// Padding.
    pub pad2: u32,
    /// Run-time address of the code that makes several system calls for the controller, or 0.
    pub batch_va: u64,
}

/// Where everything in the shared region is. Offsets are in bytes from its start. The agent has a
/// copy of its own ([`crate::Private::layout`]): whoever shares the memory could change this one.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct SharedLayout {
    /// First [`crate::Slot`].
    pub slots_off: u64,
    /// Distance between slots.
    pub slot_stride: u64,
    /// First cell (`u64`) within a slot.
    pub cells_off: u64,
    /// Number of cells in a slot.
    pub cells: u64,
    /// First byte of the ring within a slot.
    pub ring_off: u64,
    /// Bytes in a ring, a power of two; 0 = no rings.
    pub ring_len: u64,
    /// `[AtomicU64; probes_max]`: hits of each probe that no slot could take (more threads than
    /// slots). Behind them is [`SharedLayout::dropped_off`].
    pub missed_off: u64,
    /// `[AtomicU64; probes_max]`: the share of the target's CPU time that each probe takes, as the
    /// controller found it last: 1 + parts per million; 0 = it does not know.
    pub shares_off: u64,
    /// Capacity of these arrays and of the probe descriptors.
    pub probes_max: u64,
    /// `[MapDesc; map_descs]`: what changes in them. Their shapes are in the private region.
    pub map_descs_off: u64,
    /// The number of map descriptions.
    pub map_descs: u64,
    /// `[JournalEntry; journal_cap]`.
    pub journal_off: u64,
    /// `[MapEntry; maps_cap]`: every mapping that belongs to us.
    pub maps_off: u64,
    /// [`Common`]: from here on to the end, the region is the same memory in all processes of a
    /// session.
    pub common_off: u64,
    /// How many slots this process has mapped.
    pub slots_max: u32,
    /// Capacity of the journal.
    pub journal_cap: u32,
    /// Capacity of the mapping list.
    pub maps_cap: u32,
    /// Padding.
    pub pad: u32,
}

impl SharedLayout {
    /// `[AtomicU64; probes_max]`: return addresses that were replaced for each probe and never seen
    /// again (longjmp, exit of a thread).
    #[must_use]
    pub fn dropped_off(&self) -> u64 {
        self.missed_off.wrapping_add(self.probes_max.wrapping_mul(8))
    }
}

/// Head of what all processes of a session share: slots, maps, and what was missed. A multiple of
/// the page size from the start of the region.
#[repr(C, align(64))]
pub struct Common {
    /// How many slots were handed out so far, counted from the first. A process that has mapped
    /// fewer ([`SharedLayout::slots_max`]) takes one of those that it has.
    pub slots_used: AtomicU32,
    /// Slots among them whose process has ended, so that others may have them
    /// ([`crate::Slot::owner`]).
    pub slots_free: AtomicU32,
    /// The sum of [`SharedLayout::dropped_off`] for probes that have gone.
    pub returns_dropped: AtomicU64,
    /// Lines of `trace_printk` that did not fit into a ring.
    pub lines_dropped: AtomicU64,
    /// By which a thread says that it asks something of the controller: [`crate::bell`].
    pub bell: Bell,
}

/// `struct sigaction` of the x86-64 kernel (`include/linux/signal_types.h`), as `rt_sigaction`
/// takes it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct SigAction {
    /// Handler address, 0 = default, 1 = ignore.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// Restorer address.
    pub restorer: u64,
    /// Signals blocked while the handler runs.
    pub mask: u64,
}

impl SigAction {
    /// As the kernel has it for 32-bit programs.
    #[must_use]
    pub const fn short(&self) -> SigAction32 {
        let mask = [self.mask as u32, (self.mask >> 32) as u32];
        SigAction32 { handler: self.handler as u32, flags: self.flags as u32, restorer: self.restorer as u32, mask }
    }
}

/// [`SigAction`] as the kernel has it for 32-bit programs (`struct compat_sigaction`).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // as there
pub struct SigAction32 {
    pub handler: u32,
    pub flags: u32,
    pub restorer: u32,
    pub mask: [u32; 2],
}

impl SigAction32 {
    /// In the layout that all memory of ours has.
    #[must_use]
    pub const fn wide(&self) -> SigAction {
        SigAction {
            handler: self.handler as u64,
            flags: self.flags as u64,
            restorer: self.restorer as u64,
            mask: self.mask[0] as u64 | (self.mask[1] as u64) << 32,
        }
    }
}

/// In [`JournalEntry::own`]: no site, but padding that became a jump to the detour of the site in
/// [`JournalEntry::detour`].
pub const ISLAND: u8 = 2;

/// One patched site: enough to recognise and undo the patch.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Run-time address of the site.
    pub site: u64,
    /// Run-time address of its detour.
    pub detour: u64,
    /// Bytes of `detour`, all of them.
    pub detour_len: u32,
    /// 1 + the number of the newest probe of the site; the others follow by
    /// [`crate::ProbeDesc::older`].
    pub newest: u32,
    /// How many bytes of `old` and `new` count.
    pub len: u8,
    /// Number of displaced instructions in use in `insns`.
    pub insns_len: u8,
    /// 1: a site of our own, without which others do harm. Restored last. [`ISLAND`].
    pub own: u8,
    /// 1: the site is to be a jump; 0: a trap, even if `new` is a jump. Cleared before the jump is
    /// taken away, and set after it is back.
    pub optimized: u8,
    /// 1: the site was disabled. Written before its bytes are restored, and cleared after they are
    /// written again.
    pub disabled: u32,
    /// What was there.
    pub old: [u8; PATCH_MAX],
    /// What we wrote.
    pub new: [u8; PATCH_MAX],
    /// Per displaced instruction: (offset from the site, offset of its copy from the start of the
    /// detour).
    pub insns: [(u16, u16); 16],
    /// Run-time address of the `u16` that counts who listens at a USDT probe, or 0. It is raised by
    /// 1 after the site is written, and lowered before the site is restored.
    pub semaphore: u64,
    /// What is known of the semaphore: a [`SemaphoreState`].
    pub semaphore_state: u32,
    /// Padding.
    pub pad_semaphore: u32,
    /// The file that the site is mapped from: inode number, 0 = none.
    pub inode: u64,
    /// Where the site is in that file, in bytes.
    pub file_offset: u64,
    /// Offset in the detour of the word that its gate goes by: the address where execution goes on
    /// behind the first displaced instruction. 0 = it has no gate. With a gate, the last pair of
    /// `insns` is the gate itself.
    pub gate: u16,
    /// Whether other sites keep a jump away: a [`BlockState`].
    pub blocked: u16,
    /// 1: nothing else comes to the place of its code while the process lives, or somebody has said
    /// so. 0: its library may be unloaded, and another one mapped there.
    pub stays: u32,
    /// The first bytes of the first copy. A jump to the detour of another session takes their place
    /// where both have a probe.
    pub resume: [u8; 8],
}

/// Whether a jump is kept away by sites inside it. While it is, the entry's patch is a trap; see
/// [`JournalEntry::for_now`].
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// No.
    No = 0,
    /// Yes.
    Yes = 1,
    /// Not any more, or soon: there is a trap, or the jump, and all sites inside are disabled. The
    /// gates may lead to the copies.
    Changing = 2,
}

/// Whether a site counts in its semaphore. The target itself changes this right behind the
/// semaphore, by additions, and whatever becomes of the controller.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SemaphoreState {
    /// Not raised.
    Low = 0,
    /// Raised.
    High = 1,
}

impl JournalEntry {
    /// As it was read from memory that the target can write: an empty entry in place of one that no
    /// controller has written. What a checked entry says of its site and its detour does not go
    /// beyond the last address.
    #[must_use]
    pub fn checked(self) -> JournalEntry {
        /// Bytes from a site to the last instruction that has a copy, and its patch, at most.
        const REACH: u64 = u16::MAX as u64 + PATCH_MAX as u64;
        let counts = usize::from(self.len) <= PATCH_MAX && usize::from(self.insns_len) <= self.insns.len();
        let site = self.site.checked_add(REACH);
        let detour = self.detour.checked_add(REACH.max(self.detour_len.into()));
        if counts && site.is_some() && detour.is_some() { self } else { JournalEntry::default() }
    }

    /// The run-time addresses in the first `len` bytes of the site, but for the first of them.
    #[must_use]
    pub const fn inner(&self, len: u64) -> Range<u64> {
        let start = self.site.saturating_add(1);
        let end = self.site.saturating_add(len);
        start..if end > start { end } else { start }
    }

    /// The pairs of `insns` in use.
    #[must_use]
    pub fn copies(&self) -> &[(u16, u16)] {
        &self.insns[..(self.insns_len as usize).min(self.insns.len())]
    }

    /// Whether there may be a trap to the detour instead of `new`, with any of the old and the new
    /// bytes behind it.
    #[must_use]
    pub const fn may_be_trap(&self) -> bool {
        self.disabled == 1 || self.optimized == 0 || self.blocked == BlockState::Changing as u16
    }

    /// As the site is treated for now: where a jump is blocked, as a trap. It needs one byte.
    #[must_use]
    pub fn for_now(&self) -> JournalEntry {
        if self.blocked == BlockState::Yes as u16 { self.trap() } else { *self }
    }

    /// Run-time address of the first copy: where the detour goes on when its handlers are done.
    #[must_use]
    pub fn resumes_at(&self) -> u64 {
        self.detour.wrapping_add(self.copies().first().map_or(0, |(_, to)| u64::from(*to)))
    }

    /// The entry as that of a trap.
    #[must_use]
    pub fn trap(&self) -> JournalEntry {
        let (mut new, breakpoint) = ([0; PATCH_MAX], arch::breakpoint_like(&self.new));
        new[..breakpoint.len()].copy_from_slice(breakpoint);
        JournalEntry { len: breakpoint.len() as u8, new, ..*self }
    }

    /// Whether it is one that other sites may block: a jump with a gate behind its first
    /// instruction, or one whose displacement goes on in the next instruction.
    #[must_use]
    pub const fn is_promotable(&self) -> bool {
        let gated = self.gate != 0 && self.len > 1 && !self.is_trap() && self.insns_len > 2;
        self.own == 0 && (gated || self.is_pun())
    }

    /// Whether its jump needs bytes that are not written. Nobody who comes back to them has to go
    /// elsewhere: they are as they were.
    #[must_use]
    pub const fn is_pun(&self) -> bool {
        self.reach() > self.len as u64
    }

    /// Whether a jump is written there, as far as its displacement.
    #[must_use]
    pub const fn is_jump(&self) -> bool {
        arch::jump_end(&self.new).is_some()
    }

    /// Whether a trap is written there.
    #[must_use]
    pub const fn is_trap(&self) -> bool {
        let (mut at, breakpoint) = (0, arch::breakpoint_like(&self.new));
        while at < breakpoint.len() && self.new[at] == breakpoint[at] {
            at += 1;
        }
        at == breakpoint.len()
    }

    /// How many bytes its jump needs: those that are written, and those behind them in which its
    /// displacement goes on.
    #[must_use]
    pub const fn reach(&self) -> u64 {
        match arch::jump_end(&self.new) {
            Some(end) => end as u64,
            None => self.len as u64,
        }
    }

    /// Whether a site at this run-time address would be inside its jump.
    #[must_use]
    pub const fn is_around(&self, site: u64) -> bool {
        self.site < site && site - self.site < self.reach()
    }

    /// Run-time address to which the gate leads when it is closed: behind the first displaced
    /// instruction.
    #[must_use]
    pub fn gate_closed(&self) -> Option<u64> {
        let (from, _) = self.copies().last().filter(|_| self.gate != 0)?;
        Some(self.site.wrapping_add(u64::from(*from)))
    }

    /// Run-time address of the instruction that has its copy at a run-time address.
    #[must_use]
    pub fn original_of(&self, copy: u64) -> Option<u64> {
        let pair = self.copies().iter().find(|(_, to)| self.detour.wrapping_add(u64::from(*to)) == copy);
        pair.map(|(from, _)| self.site.wrapping_add(u64::from(*from)))
    }

    /// Whether a run-time address is in the detour, behind its gate: what executes there does not
    /// go by the gate any more.
    #[must_use]
    pub fn is_behind_gate(&self, ip: u64) -> bool {
        let gate = self.copies().last().filter(|_| self.gate != 0);
        let offset = ip.wrapping_sub(self.detour);
        gate.is_some_and(|(_, to)| offset > u64::from(*to) && offset < u64::from(self.detour_len))
    }

    /// Run-time address of the copy of the instruction that was at a run-time address.
    #[must_use]
    pub fn copy_of(&self, original: u64) -> Option<u64> {
        let pair = self.copies().iter().find(|(from, _)| self.site.wrapping_add(u64::from(*from)) == original);
        pair.map(|(_, to)| self.detour.wrapping_add(u64::from(*to)))
    }

    /// Whether the site counts in its semaphore.
    #[must_use]
    pub const fn is_raised(&self) -> bool {
        self.semaphore_state == SemaphoreState::High as u32
    }
}

/// A mapping of ours in the target.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// Run-time start address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// A [`MapKind`] as a number; 0 = not filled yet.
    pub kind: u32,
    /// Padding.
    pub pad: u32,
}

impl MapEntry {
    /// Run-time addresses of the mapping, as far as there are addresses: the numbers may come from
    /// the target.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.addr..self.addr.saturating_add(self.len)
    }
}

/// What a mapping is for.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// The agent's text.
    Agent = 1,
    /// Detours and thunks.
    Slab = 2,
    /// The private region and trap tables.
    Private = 3,
    /// The lookup table.
    Lookup = 4,
    /// The shared region; unmapped last.
    Shared = 5,
    /// What the agent has mapped: shadow stacks that had to grow, stacks for programs.
    Grown = 6,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_leads_beyond_the_last_address_is_blank() {
        let entry =
            JournalEntry { site: 0x1000, detour: 0x2000, detour_len: 64, len: 5, newest: 1, ..Default::default() };
        assert_eq!(entry.checked(), entry);
        for made_up in [
            JournalEntry { site: u64::MAX - 2, ..entry },
            JournalEntry { site: u64::MAX - u64::from(u16::MAX), ..entry },
            JournalEntry { detour: u64::MAX - 2, ..entry },
            JournalEntry { detour: u64::MAX - (1 << 20), detour_len: 2 << 20, ..entry },
            JournalEntry { len: PATCH_MAX as u8 + 1, ..entry },
            JournalEntry { insns_len: 17, ..entry },
        ] {
            assert_eq!(made_up.checked(), JournalEntry::default(), "{made_up:?}");
        }
    }

    #[test]
    fn a_patch_of_one_byte_or_none_has_nothing_inside() {
        let entry = JournalEntry { site: 0x1000, ..JournalEntry::default() };
        assert_eq!(entry.inner(5), 0x1001..0x1005);
        assert!(entry.inner(1).is_empty() && entry.inner(0).is_empty());
        let last = JournalEntry { site: u64::MAX, ..entry };
        // Such a range is one that a map takes: it does not end before it starts.
        assert_eq!(last.inner(5), u64::MAX..u64::MAX);
        assert_eq!(entry.inner(0), 0x1001..0x1001);
    }
}
