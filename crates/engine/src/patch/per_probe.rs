//! Probes that share a site, switched one by one. In front of each handler in the detour is a jump
//! by a word, which leads to the handler or behind it (`wire::HandlerSwitch`). The words are the
//! truth. A site whose probes are all off gets its original code.

use std::collections::HashSet;
use std::mem::offset_of;

use sidestep_isa::Va;
use sidestep_sys::Process;
use sidestep_wire::{Private, ProbeDesc};

use crate::error::SessionError;
use crate::patch::switch::Switched;
use crate::target::discovery::{Found, Site};

/// Is a probe off, whatever is at its site?
pub(crate) fn is_off(process: &Process, desc: &ProbeDesc) -> bool {
    desc.switch.word != 0 && process.read_pod::<u64>(Va(desc.switch.word)).is_ok_and(|word| word == desc.switch.off)
}

/// Can the probes of a site be switched one by one?
pub(crate) fn can(site: &Site) -> bool {
    site.users().all(|(_, desc)| desc.switch.word != 0)
}

/// Sets the switches of the probes of a site, as far as they have any, to what is wanted by number.
/// Gives how many changed.
pub(crate) fn set(process: &Process, site: &Site, wanted: impl Fn(u32) -> Option<bool>) -> Result<usize, SessionError> {
    let mut changed = 0;
    for (number, desc) in site.users().filter(|(_, desc)| desc.switch.word != 0) {
        let Some(on) = wanted(*number) else { continue };
        if is_off(process, desc) == on {
            let word = if on { desc.switch.on } else { desc.switch.off };
            process.write(Va(desc.switch.word), &word.to_ne_bytes())?;
            changed += usize::from(desc.is_first(*number));
        }
    }
    Ok(changed)
}

/// Before a site is enabled for some of its probes: the others stay off.
pub(crate) fn enable(
    process: &Process,
    site: &Site,
    numbers: &HashSet<u32>,
    switched: &mut Switched,
) -> Result<(), SessionError> {
    let others = |number| numbers.contains(&number).then_some(true);
    if site.entry.disabled == 1 {
        set(process, site, |number| Some(numbers.contains(&number)))?;
    } else {
        let named = site.users().filter(|(number, desc)| desc.is_first(*number) && numbers.contains(number)).count();
        let changed = set(process, site, others)?;
        switched.probes += changed;
        switched.unchanged += named - changed;
    }
    Ok(())
}

/// Disables some probes of a site. Gives whether all are off now.
pub(crate) fn disable(
    process: &Process,
    site: &Site,
    numbers: &HashSet<u32>,
    switched: &mut Switched,
) -> Result<bool, SessionError> {
    let named = site.users().filter(|(number, desc)| desc.is_first(*number) && numbers.contains(number)).count();
    if site.entry.disabled == 1 {
        switched.unchanged += named;
        return Ok(false);
    }
    let changed = set(process, site, |number| numbers.contains(&number).then_some(false))?;
    switched.probes += changed;
    switched.unchanged += named - changed;
    Ok(site.users().all(|(_, desc)| is_off(process, desc)))
}

/// Probes that were switched off are nobody's any more; others of their sites stay.
pub(crate) fn retire(
    process: &Process,
    found: &Found,
    site: &Site,
    numbers: &HashSet<u32>,
) -> Result<(), SessionError> {
    let descs: u64 = process.read_pod(Va(found.private_va.0 + offset_of!(Private, probes) as u64))?;
    for (number, desc) in site.users().filter(|(number, _)| numbers.contains(number)) {
        let at = descs + u64::from(*number) * size_of::<ProbeDesc>() as u64 + offset_of!(ProbeDesc, flags) as u64;
        process.write(Va(at), &(desc.flags | ProbeDesc::RETIRED).to_ne_bytes())?;
    }
    Ok(())
}
