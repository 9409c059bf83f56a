//! Changing sites while the threads run. A site is a trap while it changes, which its handler leads
//! to the detour:
//!
//! 1. The first byte becomes a trap. Where the patch is a guarded jump, so do the first bytes of
//!    the other instructions, which have their own entries in the trap table. From here on nobody
//!    begins to execute what is there, and nobody comes to the inside.
//! 2. Each thread is stopped for a moment, by itself. Afterwards it executes nothing that it has
//!    read before; and if it stood inside, or a signal frame of its stack does, it goes on at the
//!    copy. So nobody is inside, and nobody gets there.
//! 3. The other bytes are written.
//! 4. Each thread that is not waiting in the kernel is stopped for a moment, so that none has read
//!    any of the old ones.
//! 5. The bytes that are traps get their values, the first one last. Each of these is a step from
//!    one valid state to another.
//!
//! That is how the kernel changes its own code (`smp_text_poke_batch_finish` in
//! arch/x86/kernel/alternative.c), with two differences. A stop takes the place of an interrupt on
//! each CPU: `membarrier` would have to be registered first, which waits for tens of milliseconds,
//! and would not show where the threads are. And there is nothing to wait for at the end, since our
//! traps are answered for as long as the session lasts.
//!
//! A probe that is enabled counts from step 1 on, and one that is disabled until step 5. Within
//! these steps the sites of functions change in an order ([`super::order`]).
//!
//! A patch of one byte needs step 1 alone to be enabled, and step 5 alone to be disabled. So does
//! that of a whole instruction where [`is_one_write`](sidestep_isa::patch::is_one_write) allows
//! that. Where neither is the case and no breakpoint may be written first (arm64), sites are
//! changed while all threads stand. A child that is forked meanwhile has traps, and their handler.
//!
//! What is at a site is compared right before each write, and `/proc/PID/mem` refuses what is not
//! mapped. What that could not see is a library that takes the place of another between the two, in
//! a microsecond. So this is for code that stays: of the program, and of libraries that it was
//! started with ([`crate::target::permanent`]).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use sidestep_isa::Va;
use sidestep_sys::{Mapping, MemoryError, Process};
use sidestep_wire::JournalEntry;

use crate::error::SessionError;
use crate::patch::order::Order;
use crate::patch::pages::{Stretch, pages};
use crate::patch::stopped::{is_early, leave_regions};
use crate::patch::switch::Work;
use crate::patch::thread_state::{Ground, LOOKS, Scene};
use crate::target::discovery::{Text, text_of, trap_of};
use crate::target::remote::{mappings, stopped_mappings};

/// Bytes to write, and their offset from a site.
type Piece = (usize, Vec<u8>);

/// Changes sites, given in the order of their addresses. Those that are not ours any more are
/// `gone`. Gives the longest time that a thread stood.
pub(crate) fn change(
    process: &Process,
    group: &[&Work],
    order: Order,
    ground: &Ground,
    gone: &mut BTreeSet<u64>,
) -> Result<Duration, SessionError> {
    if group.is_empty() {
        return Ok(Duration::ZERO);
    }
    let maps = mappings(process)?;
    let mut sites = Sites { process, maps, group, gone };
    let inside = Cell::new(false);
    sites.write_in(order, |w, now| {
        if !changes_inside(w, now) {
            return if order == Order::Enable { firsts(w, now) } else { Vec::new() };
        }
        inside.set(true);
        let traps = w.traps.iter().filter(|o| !now[**o..].starts_with(trap_of(&w.entry)));
        traps.map(|o| (*o, trap_of(&w.entry).to_vec())).collect()
    })?;
    let mut longest = Duration::ZERO;
    if inside.get() {
        longest = leave(process, group, ground)?;
    }
    let written = sites.write(
        |_| true,
        |w, now| {
            let (mut goal, trap) = (goal(w).to_vec(), trap_of(&w.entry));
            w.traps.iter().for_each(|o| goal[start(w, *o)].copy_from_slice(trap));
            if changes_inside(w, now) && now != goal {
                vec![(trap.len(), goal.split_off(trap.len()))]
            } else {
                Vec::new()
            }
        },
    )?;
    if written {
        longest = longest.max(process.each_thread(true, |_| Ok::<(), SessionError>(()))?);
    }
    sites.write_in(order, firsts)?;
    Ok(longest)
}

fn goal(w: &Work) -> &[u8] {
    w.goal.as_deref().unwrap_or_default()
}

/// The bytes of an instruction that a trap takes.
fn start(w: &Work, at: usize) -> Range<usize> {
    at..at + trap_of(&w.entry).len()
}

/// The bytes that are traps as long as a site changes, the first one last.
fn firsts(w: &Work, now: &[u8]) -> Vec<Piece> {
    let traps = w.traps.iter().rev().filter(|o| now[start(w, **o)] != goal(w)[start(w, **o)]);
    traps.map(|o| (*o, goal(w)[start(w, *o)].to_vec())).collect()
}

/// A single trap has no inside.
fn changes_inside(w: &Work, now: &[u8]) -> bool {
    let len = trap_of(&w.entry).len();
    now[len..] != goal(w)[len..]
}

/// Nobody is inside afterwards, nor executes what it has read before. Those of whom one is on its
/// way to a handler or back wait.
fn leave(process: &Process, group: &[&Work], ground: &Ground) -> Result<Duration, SessionError> {
    const WAIT: Duration = Duration::from_millis(1);
    if !group.iter().any(|w| w.covers()) {
        return process.each_thread(true, |_| Ok(()));
    }
    let mut longest = Duration::ZERO;
    for round in 0..=LOOKS {
        let mut waits = false;
        let stood = process.each_thread(false, |thread| {
            let maps = stopped_mappings(thread)?;
            let scene = Scene::new(thread, &maps, ground)?;
            if round < LOOKS && is_early(thread, &scene, group) {
                waits = true;
                return Ok(());
            }
            leave_regions(thread, &scene, group)
        });
        longest = longest.max(stood?);
        if !waits {
            break;
        }
        std::thread::sleep(WAIT);
    }
    Ok(longest)
}

/// Sites that change together.
struct Sites<'w> {
    process: &'w Process,
    maps: Vec<Mapping>,
    group: &'w [&'w Work],
    gone: &'w mut BTreeSet<u64>,
}

impl Sites<'_> {
    /// Writes what a step wants of each site, one kind of sites after the other.
    fn write_in(&mut self, order: Order, step: impl Fn(&Work, &[u8]) -> Vec<Piece>) -> Result<(), SessionError> {
        for kind in order.kinds() {
            self.write(|w| w.rank.kind() == kind, &step)?;
        }
        Ok(())
    }

    /// Writes what a step wants of each of the sites that `which` chooses. Was there anything?
    fn write(
        &mut self,
        which: impl Fn(&Work) -> bool,
        step: impl Fn(&Work, &[u8]) -> Vec<Piece>,
    ) -> Result<bool, SessionError> {
        let mut written = false;
        let chosen: Vec<&Work> = self.group.iter().copied().filter(|w| which(w)).collect();
        for page in pages(&chosen, |w| w.site()) {
            let text = Stretch::read(self.process, page.iter().map(|w| (w.site(), w.len())));
            let mut pieces: Vec<(u64, Va, Vec<u8>)> = Vec::new();
            for w in page {
                if self.gone.contains(&w.site()) {
                    continue;
                }
                // Any step of a change may be there, whatever the journal said before.
                let changing = JournalEntry { disabled: 1, ..w.entry };
                let now = text.at(w.site(), w.len());
                let (Some(bytes), true) = (now, text_of(now, &self.maps, &changing) != Text::Foreign) else {
                    self.gone.insert(w.site());
                    continue;
                };
                let all = step(w, bytes).into_iter();
                pieces.extend(all.map(|(offset, piece)| (w.site(), Va(w.site() + offset as u64), piece)));
            }
            let places: Vec<(Va, &[u8])> = pieces.iter().map(|(_, at, piece)| (*at, &piece[..])).collect();
            for ((site, ..), outcome) in pieces.iter().zip(self.process.write_each(&places)) {
                match outcome {
                    Ok(()) => written = true,
                    Err(gone @ MemoryError::Gone { .. }) => return Err(gone.into()),
                    // Unmapped, or somebody else writes there.
                    Err(_) => _ = self.gone.insert(*site),
                }
            }
        }
        Ok(written)
    }
}
