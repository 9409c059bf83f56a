//! What happens at a hit: counts, return addresses, latencies, records.

use sidestep_wire::{Flow, Frame, Histogram, ProbeDesc};

use crate::memory::{Agent, Thread};
use crate::{guard, record, shadow};

/// `ProbeDesc::hist` of a probe without a histogram.
const NO_HISTOGRAM: u32 = u32::MAX;

const ENTRY: u32 = Flow::Entry as u32;
const RETURN: u32 = Flow::Return as u32;
const LATENCY: u32 = Flow::Latency as u32;
const UNWIND: u32 = Flow::Unwind as u32;
const CAUGHT: u32 = Flow::Caught as u32;
const SIGNAL_CALL: u32 = Flow::SignalCall as u32;

/// A hit by a thread that has no state.
#[cold]
pub fn missed(agent: Agent, probe: u32) {
    agent.count_missed(probe);
}

/// A hit at the site of a probe.
#[inline(always)]
pub fn hit(agent: Agent, thread: Thread, frame: &mut Frame, probe: u32) {
    let Some(desc) = agent.probe(probe) else { return };
    match desc.flow {
        LATENCY | RETURN => {
            if desc.flow == LATENCY {
                thread.count(agent, u64::from(desc.hits), 1);
            }
            // SAFETY: such probes are only put on function entries, where `rsp` points to the return address.
            unsafe { shadow::push(agent, thread, frame.rsp, probe, agent.now()) }
        }
        ENTRY => entered(agent, thread, desc, frame, probe),
        UNWIND => shadow::unwind(agent, thread),
        CAUGHT => shadow::caught(agent, thread, frame.rsp),
        SIGNAL_CALL => guard::system_call(agent, thread, frame),
        _ => {}
    }
}

#[inline(never)]
fn entered(agent: Agent, thread: Thread, desc: &ProbeDesc, frame: &Frame, probe: u32) {
    thread.count(agent, u64::from(desc.hits), 1);
    if desc.record != 0 {
        record::write(agent, thread, desc, probe, frame, agent.now());
    }
}

/// A return to the trampoline. Gives the real return address.
#[inline(always)]
pub fn returned(agent: Agent, thread: Option<Thread>, frame: &Frame) -> u64 {
    let now = agent.now();
    let slot = frame.rsp.wrapping_sub(8);
    let trampoline = agent.private().trampoline;
    // The thunk keeps this slot for the answer. Until then it says, as it did during the call, that the frame is alive:
    // a signal handler that makes room in the shadow stack must not take the entry for a dead one.
    // SAFETY: the slot that the thunk reserved.
    unsafe { (slot as *mut u64).write_unaligned(trampoline) };
    loop {
        let Some(entry) = shadow::take(agent, thread, slot) else { return 0 };
        match thread {
            Some(thread) => finish(agent, thread, entry.probe as u32, now.saturating_sub(entry.time), frame, now),
            None => agent.count_dropped(1),
        }
        if entry.ret != trampoline {
            return entry.ret;
        }
    }
}

#[inline(always)]
fn finish(agent: Agent, thread: Thread, probe: u32, ticks: u64, frame: &Frame, now: u64) {
    let Some(desc) = agent.probe(probe) else { return };
    if desc.flow == LATENCY {
        if desc.hist != NO_HISTOGRAM {
            let nanoseconds = agent.nanoseconds(ticks);
            let first = u64::from(desc.hist);
            thread.count(agent, first + Histogram::bucket(nanoseconds) as u64, 1);
            thread.count(agent, first + Histogram::SUM as u64, nanoseconds);
        }
    } else {
        thread.count(agent, u64::from(desc.hits), 1);
    }
    if desc.record != 0 {
        record::write(agent, thread, desc, probe, frame, now);
    }
}
