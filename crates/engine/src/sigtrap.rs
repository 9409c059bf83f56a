//! The target's SIGTRAP action: ours while there are trap probes, the old one afterwards.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use sidestep_isa::Va;
use sidestep_sys::Stopped;
use sidestep_wire::{Header, Private, SigAction};

use crate::error::SessionError;
use crate::raw::{bytes_of, from_bytes};
use crate::regions::Regions;
use crate::remote::Remote;

const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_NODEFER: u64 = 0x4000_0000;

/// Installs our handler, once.
///
/// On the alternate stack, as Go demands; not deferred, since the handler of a signal that arrives meanwhile may hit a
/// trap probe, too.
pub(crate) fn install(regions: &Regions, stopped: &mut Stopped) -> Result<(), SessionError> {
    let installed = regions.shared.u32(offset_of!(Header, sigtrap_installed) as u64);
    if installed.load(Ordering::Acquire) == 1 {
        return Ok(());
    }
    let buffer = regions.scratch();
    let ours = SigAction {
        handler: regions.globals.sigtrap.0,
        flags: SA_SIGINFO | SA_RESTORER | SA_ONSTACK | SA_NODEFER,
        restorer: regions.globals.restorer.0,
        mask: 0,
    };
    stopped.write(buffer, bytes_of(&ours))?;
    let old_at = Va(buffer.0 + 64);
    Remote(stopped).sigtrap_action(Va(0), old_at)?;
    let mut old = [0; size_of::<SigAction>()];
    stopped.read(old_at, &mut old)?;
    // Both must know the old action before ours is in force.
    regions.shared.write(offset_of!(Header, old_sigtrap) as u64, &old);
    stopped.write(Va(regions.private.0 + offset_of!(Private, old_sigtrap) as u64), &old)?;
    installed.store(1, Ordering::Release);
    Remote(stopped).sigtrap_action(buffer, Va(0))?;
    Ok(())
}

/// Puts the old action back, if ours is still the one in force. `buffer`: 128 bytes of the target.
pub(crate) fn restore(stopped: &mut Stopped, buffer: Va, ours: std::ops::Range<u64>, old: &SigAction) -> Result<(), SessionError> {
    let now_at = Va(buffer.0 + 64);
    Remote(stopped).sigtrap_action(Va(0), now_at)?;
    let mut now = [0; size_of::<SigAction>()];
    stopped.read(now_at, &mut now)?;
    if from_bytes::<SigAction>(&now).is_some_and(|a| ours.contains(&a.handler)) {
        stopped.write(buffer, bytes_of(old))?;
        Remote(stopped).sigtrap_action(buffer, Va(0))?;
    }
    Ok(())
}
