//! The signals that displaced instructions may raise.

use crate::planning::Planned;
use crate::target::signals;

/// The signals that displaced instructions of a site may raise.
pub(crate) fn raised(p: &Planned) -> u64 {
    let Ok(plan) = &p.plan else { return 0 };
    let on_purpose = if plan.stops_on_purpose() { signals::FAULTS | signals::TRAPS } else { 0 };
    on_purpose | if plan.may_fault() { signals::FAULTS } else { 0 }
}

/// The signals that any site may raise at the end of a stack: by what its handlers save, by the
/// copy of a `push` or `call`, or by a trap, whose own signal finds no room there (`signal::handle`
/// in the agent).
pub(crate) const AT_END: u64 = signals::READS;

/// Would a fault at an address of ours do harm? Where an instruction faults on purpose, the program
/// goes by its address. Go's runtime makes a panic of a fault only if it knows the function, and
/// gives up otherwise (`sighandler` in runtime/signal_unix.go).
pub(crate) fn must_show(p: &Planned) -> bool {
    let Ok(plan) = &p.plan else { return false };
    plan.stops_on_purpose() || p.matched.object.is_go() && plan.may_fault()
}
