//! Programs that nobody compiled, run instruction by instruction.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sidestep_bpf::alu;
use sidestep_bpf::insn::{AtomicOp, Size, Slot, Width};
use sidestep_bpf::interp::{Machine, Stop, Vm};
use sidestep_wire::watchdog::{ANY_NUMBER, Watchdog};
use sidestep_wire::{HELPERS, ThreadState};

use crate::helpers::{self, Function};

/// The helper that calls functions of the program.
const LOOP: u32 = 181;

/// Runs a program; 0 if it had to be stopped, which happens to none that is verified.
pub fn run(code: &[Slot], context: u64, stack_end: u64, stack_len: u64, state: *mut ThreadState) -> u64 {
    let mut vm = Vm::new(code, stack_end, stack_len, u64::MAX);
    enter(&mut vm, &mut Target { state }, 0, [context; 5]).unwrap_or(0)
}

/// Not inlined: frames of the agent stay small.
#[inline(never)]
fn enter(vm: &mut Vm<'_>, target: &mut Target, function: u64, args: [u64; 5]) -> Result<u64, Stop> {
    vm.call(target, function, args)
}

/// The target's memory, as it is: the program is verified.
struct Target {
    state: *mut ThreadState,
}

impl Machine for Target {
    fn load(&mut self, address: u64, size: Size) -> Result<u64, Stop> {
        // SAFETY: a verified access.
        Ok(unsafe {
            match size {
                Size::B => (address as *const u8).read_volatile().into(),
                Size::H => (address as *const u16).read_volatile().into(),
                Size::W => (address as *const u32).read_volatile().into(),
                Size::Dw => (address as *const u64).read_volatile(),
            }
        })
    }

    fn thread(&mut self, offset: u32) -> Result<u64, Stop> {
        // SAFETY: the running thread's state.
        let cells = unsafe { core::ptr::addr_of!((*self.state).cells).read_volatile() };
        Ok(cells.wrapping_add(offset.into()))
    }

    fn store(&mut self, address: u64, size: Size, value: u64) -> Result<(), Stop> {
        // SAFETY: a verified access.
        unsafe {
            match size {
                Size::B => (address as *mut u8).write_volatile(value as u8),
                Size::H => (address as *mut u16).write_volatile(value as u16),
                Size::W => (address as *mut u32).write_volatile(value as u32),
                Size::Dw => (address as *mut u64).write_volatile(value),
            }
        }
        Ok(())
    }

    fn atomic(&mut self, address: u64, width: Width, op: AtomicOp, operand: u64, r0: u64) -> Result<u64, Stop> {
        let order = Ordering::SeqCst;
        // SAFETY: a verified access, which is aligned.
        Ok(unsafe {
            match width {
                Width::W64 => {
                    let new = |old| Some(alu::atomic(width, op, old, operand, r0));
                    match AtomicU64::from_ptr(address as *mut u64).fetch_update(order, order, new) {
                        Ok(old) | Err(old) => old,
                    }
                }
                Width::W32 => {
                    let new = |old: u32| Some(alu::atomic(width, op, old.into(), operand, r0) as u32);
                    match AtomicU32::from_ptr(address as *mut u32).fetch_update(order, order, new) {
                        Ok(old) | Err(old) => old.into(),
                    }
                }
            }
        })
    }

    fn call(&mut self, vm: &mut Vm<'_>, helper: u32, args: [u64; 5]) -> Result<u64, Stop> {
        let [a, b, c, d, e] = args;
        if helper == LOOP {
            return self.repeat(vm, args);
        }
        if helper as usize >= HELPERS {
            return Err(Stop::Helper(helper));
        }
        // SAFETY: a prepared state, and verified arguments.
        unsafe {
            let at = core::ptr::addr_of!((*self.state).helpers).cast::<u64>().add(helper as usize);
            let function: Function = core::mem::transmute(at.read_volatile() as *const ());
            Ok(function(a, b, c, d, e, self.state))
        }
    }
}

impl Target {
    /// What the helper does for native code.
    fn repeat(&mut self, vm: &mut Vm<'_>, [times, callback, context, flags, _]: [u64; 5]) -> Result<u64, Stop> {
        let times = match helpers::loops(times, flags) {
            Ok(times) => times,
            Err(error) => return Ok(error),
        };
        // SAFETY: the running thread's state.
        let (agent, _) = unsafe { helpers::here(self.state) };
        let mut watchdog = Watchdog::new();
        for index in 0..times {
            if flags == ANY_NUMBER && watchdog.ends(index, || agent.nanoseconds(agent.now())) {
                return Ok(index);
            }
            if enter(vm, self, callback, [index, context, context, context, context])? != 0 {
                return Ok(index + 1);
            }
        }
        Ok(times)
    }
}
