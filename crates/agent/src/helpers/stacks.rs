//! Call stacks: 27, 67 (`kernel/bpf/stackmap.c`).

use core::ptr::addr_of;

use sidestep_wire::stacks::{DEPTH, Digest, FAST_COMPARE, REUSE};
use sidestep_wire::{Flow, Hit, MapError, ProbeDesc, Regs, ThreadState};

use super::{EFAULT, EINVAL, here, map, maps, memory};
use crate::arch;
use crate::hit::Place;
use crate::memory::{Agent, Thread};
use crate::{safe_read, shadow};

/// `BPF_F_SKIP_FIELD_MASK`: innermost addresses that are left out.
const SKIP: u64 = 0xff;
/// `BPF_F_USER_STACK`. Without it the kernel gives its own stack, which is empty at a probe of a user program.
const USER_STACK: u64 = 1 << 8;

/// Return addresses, innermost first: by frame pointers.
#[derive(Clone, Copy)]
struct Frames {
    agent: Agent,
    thread: Thread,
    next: Next,
    frame: u64,
}

#[derive(Clone, Copy)]
enum Next {
    /// The probed instruction, and the return address in this stack slot, or 0.
    Here { ip: u64, slot: u64 },
    /// The return address in a stack slot.
    Slot(u64),
    /// What the frame pointer leads to.
    Frame,
}

impl Frames {
    /// # Safety
    /// `context` is verified.
    unsafe fn new(agent: Agent, thread: Thread, context: u64) -> Frames {
        let regs = context as *mut Regs;
        // SAFETY: the caller's.
        let (probe, ip, stack, frame) = unsafe {
            let word = |at: *const u64| at.read_volatile();
            let probe = Place::around(regs).probe();
            (probe, word(addr_of!((*regs).rip)), word(addr_of!((*regs).rsp)), word(addr_of!((*regs).rbp)))
        };
        let is_entry = |desc: &ProbeDesc| desc.flow == Flow::Return as u32 || desc.flags & ProbeDesc::FUNCTION != 0;
        let entered = probe & Hit::RETURNED == 0 && agent.probe(probe as u32).is_some_and(is_entry);
        let next = Next::Here { ip, slot: if entered { stack } else { 0 } };
        Frames { agent, thread, next, frame }
    }

    fn read(&mut self, at: u64) -> Option<u64> {
        safe_read::word(self.agent, at)
    }

    /// The return address in a stack slot, also if it was replaced.
    fn return_address(&mut self, slot: u64) -> Option<u64> {
        let word = self.read(slot)?;
        if word != self.agent.private().trampoline {
            return Some(word);
        }
        shadow::real_return(self.agent, Some(self.thread), slot)
    }
}

impl Iterator for Frames {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match self.next {
            Next::Here { ip, slot } => {
                self.next = if slot == 0 { Next::Frame } else { Next::Slot(slot) };
                Some(ip)
            }
            Next::Slot(slot) => {
                self.next = Next::Frame;
                self.return_address(slot)
            }
            Next::Frame => {
                let frame = self.frame;
                if frame == 0 || frame % arch::WORD != 0 {
                    return None;
                }
                let outer = self.read(frame)?;
                // Frames of callers lie higher.
                self.frame = if outer > frame { outer } else { 0 };
                self.return_address(frame + arch::WORD).filter(|address| *address != 0)
            }
        }
    }
}

/// 27: the number of the stack in the map.
pub unsafe extern "C" fn get_stackid(
    context: u64,
    desc: u64,
    flags: u64,
    _: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    if flags & !(SKIP | USER_STACK | FAST_COMPARE | REUSE) != 0 {
        return EINVAL;
    }
    if flags & USER_STACK == 0 {
        return EFAULT;
    }
    // SAFETY: verified.
    let (desc, (agent, thread)) = unsafe { (map(desc), here(state)) };
    let stacks = maps::stacks(agent, desc);
    // SAFETY: verified.
    let frames = unsafe { Frames::new(agent, thread, context) };
    // Walked more than once: there is no room here to keep it.
    let addresses = || frames.skip((flags & SKIP) as usize).take(stacks.depth() as usize);
    let digest = addresses().fold(Digest::EMPTY, Digest::with);
    if digest.is_empty() {
        return EFAULT;
    }
    match stacks.insert(digest, flags, addresses) {
        Ok(id) => id,
        Err(error) => {
            if error == MapError::Exists {
                desc.dropped.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
            }
            error.errno() as u64
        }
    }
}

/// 67: the stack itself; how many bytes. Build ids are not known here.
pub unsafe extern "C" fn get_stack(
    context: u64,
    to: u64,
    len: u64,
    flags: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    // SAFETY: verified; the running thread's.
    unsafe {
        memory::clear(to, len);
        if flags & !(SKIP | USER_STACK) != 0 || len % 8 != 0 {
            return EINVAL;
        }
        if flags & USER_STACK == 0 {
            return if flags & SKIP == 0 { 0 } else { EFAULT };
        }
        let (agent, thread) = here(state);
        let mut frames = Frames::new(agent, thread, context);
        for _ in 0..flags & SKIP {
            if frames.next().is_none() {
                return EFAULT;
            }
        }
        let mut at = to;
        let end = to + len.min(DEPTH * 8);
        while at < end {
            let Some(address) = frames.next() else { break };
            (at as *mut u64).write_unaligned(address);
            at += 8;
        }
        at - to
    }
}
