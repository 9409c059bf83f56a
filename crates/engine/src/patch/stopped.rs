//! Changing sites while all threads stand, in pauses that are not long ([`crate::target::hold`]).

use std::collections::BTreeSet;
use std::time::Duration;

use sidestep_isa::Va;
use sidestep_sys::{Process, Stopped};
use sidestep_wire::JournalEntry;

use crate::error::SessionError;
use crate::patch::order::Order;
use crate::patch::pages::{Stretch, pages, write_all};
use crate::patch::semaphore;
use crate::patch::switch::Work;
use crate::patch::thread_state::{Ground, LOOKS, Scene};
use crate::target::discovery::{self, Found, Text, text_of};
use crate::target::hold::{Hold, Turn};
use crate::target::remote::stopped_mappings;
use crate::target::thread_positions::{self, Position};

/// Changes sites. Those of a function change in one pause, except paired exits. Those that are not
/// ours any more are `gone`. Gives the longest time that a thread stood.
pub(crate) fn change(
    process: &Process,
    found: &Found,
    sites: &[&Work],
    order: Order,
    ground: &Ground,
    gone: &mut BTreeSet<u64>,
) -> Result<Duration, SessionError> {
    let mut hold = Hold::running(process);
    let pieces = order.pieces(sites.to_vec(), |w| w.rank.page(), |w| w.site());
    let look = |stopped: &mut Stopped| {
        let maps = stopped_mappings(stopped)?;
        Ok((Scene::new(stopped, &maps, ground)?, maps))
    };
    let mut waited = 0;
    let purpose = |_: &Vec<&Work>| "sites";
    hold.in_turns(purpose, &pieces, look, |stopped, (scene, maps), piece| {
        if waited < LOOKS && is_early(stopped, scene, piece) {
            waited += 1;
            return Ok(Turn::Later);
        }
        let mut texts = Vec::new();
        let mut there = Vec::new();
        for page in pages(piece, |w| w.site()) {
            let mut text = Stretch::read(process, page.iter().map(|w| (w.site(), w.len())));
            for w in page {
                if matches!(text_of(text.at(w.site(), w.len()), maps, &w.entry), Text::Foreign | Text::Disturbed) {
                    gone.insert(w.site());
                } else {
                    there.push(*w);
                    text.put(w.site(), w.goal.as_deref().unwrap_or_default());
                }
            }
            texts.push(text);
        }
        leave_regions(stopped, scene, &there)?;
        let raises = |w: &Work| w.goal.as_deref() != Some(&w.entry.old[..w.len()]);
        let of = |raised: bool| there.iter().filter(move |w| raises(w) == raised).map(|w| (w.index, w.entry.semaphore));
        set_semaphores(stopped, found, of(false), false)?;
        write_all(process, &texts)?;
        set_semaphores(stopped, found, of(true), true)?;
        Ok(Turn::Done)
    })?;
    Ok(hold.longest())
}

/// Raises or lowers the semaphores of sites, given by index and address (0: it has none), where
/// that is not so already.
pub(crate) fn set_semaphores(
    stopped: &mut Stopped,
    found: &Found,
    sites: impl Iterator<Item = (usize, u64)>,
    raised: bool,
) -> Result<(), SessionError> {
    let mut changes = Vec::new();
    for (index, semaphore) in sites.filter(|(_, semaphore)| *semaphore != 0) {
        let at = found.entry(index);
        let entry: JournalEntry = discovery::read_one(stopped.process(), at)?;
        if entry.is_raised() != raised {
            changes.push(semaphore::Change { entry: at, semaphore: Va(semaphore), raised });
        }
    }
    semaphore::change(stopped, &found.room(), &changes)
}

/// Moves the threads that stand where a patch is about to be, behind its first byte, to the copies
/// of their instructions.
pub(crate) fn leave_regions(stopped: &mut Stopped, scene: &Scene, work: &[&Work]) -> Result<(), SessionError> {
    for position in &scene.positions {
        let Some(w) = in_the_way(stopped, position, work) else { continue };
        let copy = w.entry.copies().iter().find(|(from, _)| w.site() + u64::from(*from) == position.ip.0);
        if let (Some((_, to)), false) = (copy, scene.comes_back(stopped, position)) {
            thread_positions::move_to(stopped, position, Va(w.entry.detour + u64::from(*to)))?;
        }
    }
    Ok(())
}

/// Is a thread where a patch is about to be that can neither be moved nor stay? See
/// [`Scene::is_early`].
pub(crate) fn is_early(stopped: &Stopped, scene: &Scene, work: &[&Work]) -> bool {
    scene.is_early(stopped, |position| in_the_way(stopped, position, work).is_some())
}

/// The site of which a position is inside, where a patch is about to be.
fn in_the_way<'w>(stopped: &Stopped, position: &Position, work: &[&'w Work]) -> Option<&'w Work> {
    let ip = position.ip.0;
    let index = work.partition_point(|w| w.site() < ip);
    let w = work[index.checked_sub(1)?];
    let inside = w.covers() && ip < w.site() + w.len() as u64;
    (inside && !comes_from_trap(stopped, position, w)).then_some(w)
}

/// Has it executed a trap of ours in front of it, for which the handler has yet to look at where it
/// was?
fn comes_from_trap(stopped: &Stopped, position: &Position, w: &Work) -> bool {
    let before = (position.ip.0 - 1).wrapping_sub(w.site());
    let is_trap = |offsets: &[usize]| offsets.contains(&(before as usize));
    (is_trap(&w.traps) || is_trap(&w.inside)) && thread_positions::has_trapped(stopped, position)
}
