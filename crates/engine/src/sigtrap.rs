//! The target's SIGTRAP: our handler while there are trap probes, and nothing that blocks the signal. The kernel kills a
//! process whose `int3` finds SIGTRAP blocked. What the target does about masks and actions later on is taken care of
//! by probes of our own on its system calls ([`CALLS`], `agent::guard`).

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use sidestep_isa::Va;
use sidestep_sys::{Mapping, Stopped, arch};
use sidestep_wire::{Header, Private, SigAction};

use crate::error::SessionError;
use crate::raw::{bytes_of, from_bytes};
use crate::regions::Regions;
use crate::remote::Remote;
use crate::survey::{self, Place};

const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_NODEFER: u64 = 0x4000_0000;

const TRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);
const SIGNALS: i32 = 64;

/// System calls by which a program could block SIGTRAP or take it over.
pub(crate) const CALLS: [u32; 6] = [
    libc::SYS_rt_sigaction as u32,
    libc::SYS_rt_sigprocmask as u32,
    libc::SYS_rt_sigsuspend as u32,
    libc::SYS_ppoll as u32,
    libc::SYS_epoll_pwait as u32,
    libc::SYS_epoll_pwait2 as u32,
];

/// Installs our handler and opens the signal everywhere, once.
///
/// On the alternate stack, as Go demands; not deferred, since the handler of a signal that arrives meanwhile may hit a
/// trap probe, too.
pub(crate) fn install(regions: &Regions, stopped: &mut Stopped, mappings: &[Mapping]) -> Result<(), SessionError> {
    let installed = regions.shared.u32(offset_of!(Header, sigtrap_installed) as u64);
    if installed.load(Ordering::Acquire) == 1 {
        return Ok(());
    }
    let buffer = regions.scratch();
    let old = action(stopped, libc::SIGTRAP, buffer)?;
    // Both must know the old action before ours is in force.
    regions.shared.write(offset_of!(Header, old_sigtrap) as u64, bytes_of(&old));
    stopped.write(Va(regions.private.0 + offset_of!(Private, old_sigtrap) as u64), bytes_of(&old))?;
    installed.store(1, Ordering::Release);
    let ours = SigAction {
        handler: regions.globals.sigtrap.0,
        flags: SA_SIGINFO | SA_RESTORER | SA_ONSTACK | SA_NODEFER,
        restorer: regions.globals.restorer.0,
        mask: 0,
    };
    set_action(stopped, libc::SIGTRAP, buffer, &ours)?;
    open_actions(regions, stopped, buffer)?;
    open_threads(regions, stopped, mappings)
}

fn action(stopped: &mut Stopped, signal: i32, buffer: Va) -> Result<SigAction, SessionError> {
    Remote(stopped).sigaction(signal, Va(0), buffer)?;
    let mut bytes = [0; size_of::<SigAction>()];
    stopped.read(buffer, &mut bytes)?;
    Ok(from_bytes(&bytes).unwrap_or_default())
}

fn set_action(stopped: &mut Stopped, signal: i32, buffer: Va, action: &SigAction) -> Result<(), SessionError> {
    stopped.write(buffer, bytes_of(action))?;
    Ok(Remote(stopped).sigaction(signal, buffer, Va(0))?)
}

/// Handlers of other signals must not run with SIGTRAP blocked.
fn open_actions(regions: &Regions, stopped: &mut Stopped, buffer: Va) -> Result<(), SessionError> {
    let mut opened = 0u64;
    for signal in (1..=SIGNALS).filter(|s| ![libc::SIGKILL, libc::SIGSTOP, libc::SIGTRAP].contains(s)) {
        let mut action = action(stopped, signal, buffer)?;
        if action.mask & TRAP_BIT != 0 && action.handler > 1 {
            opened |= 1 << (signal - 1);
            regions.shared.write(offset_of!(Header, opened_actions) as u64, &opened.to_ne_bytes());
            action.mask &= !TRAP_BIT;
            set_action(stopped, signal, buffer, &action)?;
        }
    }
    Ok(())
}

/// Threads, and the masks that signal frames on their stacks will restore.
fn open_threads(regions: &Regions, stopped: &mut Stopped, mappings: &[Mapping]) -> Result<(), SessionError> {
    for position in survey::positions(stopped, mappings)? {
        if let Place::SignalFrame { at, .. } = position.place {
            let mask_at = Va(at.0 + arch::MASK_BEHIND_IP);
            let mask: u64 = stopped.read_pod(mask_at)?;
            if mask & TRAP_BIT != 0 {
                stopped.write(mask_at, &(mask & !TRAP_BIT).to_ne_bytes())?;
            }
        }
    }
    let list = offset_of!(Header, opened_threads) as u64;
    for (i, tid) in stopped.unblock(libc::SIGTRAP)?.into_iter().enumerate().take(128) {
        regions.shared.write(list + i as u64 * 4, &tid.to_ne_bytes());
    }
    Ok(())
}

/// What [`restore`] needs to know.
pub(crate) struct Installed {
    /// Range of our handler.
    pub ours: std::ops::Range<u64>,
    /// The action the program wants.
    pub old: SigAction,
    /// As in the header.
    pub opened_actions: u64,
    /// Threads that believe SIGTRAP is blocked.
    pub blocked: Vec<i32>,
}

/// Puts everything back, if ours is still the action in force. `buffer`: 128 bytes of the target.
pub(crate) fn restore(stopped: &mut Stopped, buffer: Va, installed: &Installed) -> Result<(), SessionError> {
    if installed.ours.contains(&action(stopped, libc::SIGTRAP, buffer)?.handler) {
        set_action(stopped, libc::SIGTRAP, buffer, &installed.old)?;
    }
    for signal in (1..=SIGNALS).filter(|s| installed.opened_actions >> (s - 1) & 1 == 1) {
        let mut action = action(stopped, signal, buffer)?;
        if action.handler > 1 {
            action.mask |= TRAP_BIT;
            set_action(stopped, signal, buffer, &action)?;
        }
    }
    for tid in &installed.blocked {
        stopped.block(*tid, libc::SIGTRAP)?;
    }
    Ok(())
}
