//! Putting real return addresses back into the stacks of a target: a session's trampoline goes from
//! wherever it is.
//!
//! Where several sessions watch a frame, the stack has the trampoline of the one that came last,
//! and its shadow stack has that of the one before in place of the real address, and so on. The
//! trampoline of the session that goes is taken out of such a chain.

use std::collections::HashMap;
use std::ops::Range;

use sidestep_isa::Va;
use sidestep_sys::Stopped;
use sidestep_sys::arch::{ISA, Word};
use sidestep_wire::{MapKind, ShadowEntry};

use crate::error::SessionError;
use crate::memory::layout::PAGE;
use crate::target::discovery::{Found, shadow_entries};
use crate::target::thread_positions::{Place, Position};

/// So far above the stack pointer the code of a session may have put an address that it works with.
const DEEP: u64 = 16 << 10;
/// No more of a stack is read than this: the program may say that it is as large as all memory.
const STACK: u64 = 64 << 20;

/// The frames that a session watches, by the stack slot of the return address: its entries, the
/// newest last.
struct Watched {
    trampoline: u64,
    slots: HashMap<u64, Vec<(Va, ShadowEntry)>>,
}

impl Watched {
    fn by(stopped: &Stopped, found: &Found) -> Result<Watched, SessionError> {
        let mut slots: HashMap<u64, Vec<(Va, ShadowEntry)>> = HashMap::new();
        for (at, entry) in shadow_entries(stopped.process(), found.private_va)? {
            slots.entry(entry.slot).or_default().push((at, entry));
        }
        // Several entries may name one stack slot: probes on one frame, or a dead one and its
        // successor.
        slots.values_mut().for_each(|entries| entries.sort_by_key(|(_, entry)| entry.time));
        Ok(Watched { trampoline: found.trampoline, slots })
    }
}

/// Takes the trampoline of a session out of all stack slots, and out of the shadow stacks of the
/// others. May be repeated.
pub(crate) fn restore(stopped: &Stopped, found: &Found, others: &[Found]) -> Result<(), SessionError> {
    if found.trampoline == 0 {
        return Ok(());
    }
    let watched = Watched::by(stopped, found)?;
    if watched.slots.is_empty() {
        return Ok(());
    }
    let others: Vec<Watched> = others.iter().map(|other| Watched::by(stopped, other)).collect::<Result<_, _>>()?;
    for slot in watched.slots.keys() {
        let Ok(word) = stopped.process().read_word(Va(*slot)) else { continue };
        restore_slot(stopped, &watched, &others, *slot, word)?;
    }
    Ok(())
}

/// Follows the chain of a slot, which has `word`, to the real address.
fn restore_slot(
    stopped: &Stopped,
    going: &Watched,
    others: &[Watched],
    slot: u64,
    word: u64,
) -> Result<(), SessionError> {
    let sessions: Vec<&Watched> = std::iter::once(going).chain(others).collect();
    let mut left: Vec<&[(Va, ShadowEntry)]> =
        sessions.iter().map(|of| of.slots.get(&slot).map_or(&[][..], Vec::as_slice)).collect();
    // Where the word is: in the stack, or in an entry of another session.
    let (mut word, mut of_entry, mut is_new) = (word, None, false);
    loop {
        let whose = sessions.iter().position(|session| session.trampoline == word);
        if whose == Some(0) {
            let Some(((_, newest), rest)) = left[0].split_last() else { return Ok(()) };
            (word, is_new, left[0]) = (newest.ret, true, rest);
            continue;
        }
        if is_new {
            match of_entry {
                None => stopped.process().write_word(Va(slot), word)?,
                Some(entry) => put_ret(stopped, entry, word)?,
            }
        }
        let Some((whose, ((entry, newest), rest))) = whose.and_then(|i| Some((i, left[i].split_last()?))) else {
            return Ok(());
        };
        (word, of_entry, is_new, left[whose]) = (newest.ret, Some(*entry), false, rest);
    }
}

fn put_ret(stopped: &Stopped, entry: Va, ret: u64) -> Result<(), SessionError> {
    let at = Va(entry.0 + std::mem::offset_of!(ShadowEntry, ret) as u64);
    Ok(stopped.write(at, &ret.to_ne_bytes())?)
}

/// A thread in the code of another session that may be about to remember the trampoline of this
/// one, to return to it, or to call what is in `code`, which is this one's.
pub(crate) fn in_flight(
    stopped: &Stopped,
    trampoline: u64,
    code: &[Range<u64>],
    others: &[Found],
    positions: &[Position],
) -> Result<Option<i32>, SessionError> {
    let is_code = |kind: u32| kind == MapKind::Agent as u32 || kind == MapKind::Slab as u32;
    let ours = |word: u64| code.iter().any(|range| range.contains(&word));
    let mut theirs = Vec::new();
    for other in others {
        theirs.extend(other.mappings(stopped.process())?.into_iter().filter(|m| is_code(m.kind)));
    }
    for position in positions.iter().filter(|p| theirs.iter().any(|m| m.range().contains(&p.ip.0))) {
        let (tid, top) = match position.place {
            Place::Thread { tid } => (tid, None),
            Place::SignalFrame { tid, frame } => (tid, Some(frame.sp.0)),
        };
        let Some(thread) = stopped.threads().iter().find(|thread| thread.tid == tid) else { continue };
        let sp = thread.regs.sp().0;
        let in_registers = (0..ISA.limits().registers.len() as u8).any(|n| thread.regs.gpr(n).is_some_and(ours));
        // A session that watches no returns has none.
        let may_return =
            || trampoline != 0 && has_word(stopped, sp, top.unwrap_or(sp).saturating_add(DEEP), trampoline);
        if in_registers || may_return() {
            return Ok(Some(tid));
        }
    }
    Ok(None)
}

/// Is a word on a stack, as far as that can be read? It may be, if there is more than a stack has.
fn has_word(stopped: &Stopped, from: u64, to: u64, word: u64) -> bool {
    let mut at = from;
    while at < to {
        if at - from > STACK {
            return true;
        }
        let end = (at / PAGE + 1) * PAGE;
        let mut bytes = vec![0; (end.min(to) - at) as usize];
        if stopped.read(Va(at), &mut bytes).is_err() {
            return false;
        }
        let mut words = bytes.chunks_exact(size_of::<Word>());
        if words.any(|bytes| bytes == &word.to_le_bytes()[..size_of::<Word>()]) {
            return true;
        }
        at = end;
    }
    false
}
