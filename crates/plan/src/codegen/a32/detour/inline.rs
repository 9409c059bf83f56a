//! Counts in the detour: programs that only add to cells. They save what is live of three
//! registers, and of a fourth one for the flags if those are live. All other programs go through
//! the thunk.
//!
//! ```text
//!   save what is live, find the cells, count, restore
//!   done:
//!   …
//!   cold:    restore, call the thunk, b done              where the thread has no cells
//! ```

use sidestep_isa::a32::emit::{Asm, Label};
use sidestep_isa::live::Dead;
use sidestep_isa::patch::OutOfReach;

use crate::codegen::a32::thunk;
use crate::codegen::handler::Program;
use crate::codegen::thunk::{Env, Places};

/// Registers that a count may use.
const ORDER: [u8; 14] = [12, 3, 2, 1, 0, 14, 4, 5, 6, 8, 10, 11, 7, 9];

/// What is emitted behind the detour.
pub(super) struct Cold {
    probe: u32,
    thunk: Places,
    slow: Label,
    done: Label,
    saved: Saved,
}

impl Cold {
    pub fn emit(self, asm: &mut Asm) -> Result<(), OutOfReach> {
        asm.bind(self.slow);
        self.saved.restore(asm);
        super::call(asm, self.probe, self.thunk)?;
        asm.b(self.done);
        Ok(())
    }
}

/// Emits a program; what is left goes behind the detour.
pub(super) fn count(
    asm: &mut Asm,
    dead: Dead,
    program: &Program,
    thunk: Places,
    env: &Env,
) -> Result<Option<Cold>, OutOfReach> {
    let Some(additions) = program.additions() else {
        super::call(asm, program.probe, thunk)?;
        return Ok(None);
    };
    let is_dead = |number: u8| dead.regs >> number & 1 == 1;
    let mut order = ORDER;
    order.sort_by_key(|number| !is_dead(*number));
    let [first, second, third, fourth, ..] = order;
    let used = [first, second, third, fourth];
    let used = &used[..if dead.flags { 3 } else { 4 }];
    let registers = used.iter().filter(|number| !is_dead(**number)).fold(0, |list, number| list | 1 << number);
    let saved = Saved { registers, flags: (!dead.flags).then_some(fourth) };
    let (slow, done) = (asm.label(), asm.label());
    saved.save(asm);
    thunk::count(asm, env, &additions, [first, second, third], slow);
    saved.restore(asm);
    asm.bind(done);
    Ok(Some(Cold { probe: program.probe, thunk, slow, done, saved }))
}

/// What a count saves. The registers are stored by one instruction: where the stack has no room, it
/// faults, and nothing has changed yet.
#[derive(Clone, Copy)]
struct Saved {
    /// A bit each.
    registers: u16,
    /// The register in which the flags are meanwhile.
    flags: Option<u8>,
}

impl Saved {
    fn save(self, asm: &mut Asm) {
        if self.registers != 0 {
            asm.push(self.registers);
        }
        if let Some(register) = self.flags {
            asm.mrs(register);
        }
    }

    fn restore(self, asm: &mut Asm) {
        if let Some(register) = self.flags {
            asm.msr(register);
        }
        if self.registers != 0 {
            asm.pop(self.registers);
        }
    }
}
