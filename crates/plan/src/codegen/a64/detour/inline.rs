//! Counts in the detour: programs that only add to cells. They save what is live of three
//! registers, and change no flags. All other programs go through the thunk.
//!
//! ```text
//!   save what is live, find the cells, count, restore
//!   done:
//!   …
//!   cold:    restore, call the thunk, b done              where the thread has no cells
//! ```

use sidestep_isa::a64::emit::{Address, Asm, Label, Reg, Size, ldp, ldr, stp, str};
use sidestep_isa::live::Dead;

use crate::codegen::a64::thunk::{self, SKIPPED, x};
use crate::codegen::handler::Program;
use crate::codegen::thunk::{Env, Places};

/// Registers that a count may use. x18 may belong to the platform, x28 to Go.
const ORDER: [u8; 18] = [16, 17, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0];

/// What is emitted behind the detour.
pub(super) struct Cold {
    probe: u32,
    thunk: Places,
    slow: Label,
    done: Label,
    saved: Saved,
}

impl Cold {
    pub fn emit(self, asm: &mut Asm) {
        asm.bind(self.slow);
        self.saved.restore(asm);
        super::call(asm, self.probe, self.thunk);
        asm.b(self.done);
    }
}

/// Emits a program; what is left goes behind the detour.
pub(super) fn count(asm: &mut Asm, dead: Dead, program: &Program, thunk: Places, env: &Env) -> Option<Cold> {
    let Some(additions) = program.additions() else {
        super::call(asm, program.probe, thunk);
        return None;
    };
    let is_dead = |number: u8| dead.regs >> number & 1 == 1;
    let mut order = ORDER;
    order.sort_by_key(|number| !is_dead(*number));
    let [first, second, third, ..] = order;
    let used = [first, second, third];
    let saved = Saved(used.into_iter().filter(|number| !is_dead(*number)).map(x).collect());
    let (slow, done) = (asm.label(), asm.label());
    saved.save(asm);
    thunk::count(asm, env, &additions, used.map(x), slow);
    saved.restore(asm);
    asm.bind(done);
    Some(Cold { probe: program.probe, thunk, slow, done, saved })
}

/// Up to three registers that are saved. The first store is at the lowest address: where the stack
/// has no room, it faults, and nothing has changed yet.
struct Saved(Vec<Reg>);

impl Saved {
    fn save(&self, asm: &mut Asm) {
        let below = |room: i64| Address::before(Reg::SP, -SKIPPED - room);
        match self.0[..] {
            [] => {}
            [a] => asm.push(str(Size::Double, a, below(16))),
            [a, b] => asm.push(stp(a, b, below(16))),
            [a, b, c, ..] => {
                asm.push(stp(a, b, below(32)));
                asm.push(str(Size::Double, c, Address::with(Reg::SP, 16)));
            }
        }
    }

    fn restore(&self, asm: &mut Asm) {
        let above = |room: i64| Address::after(Reg::SP, SKIPPED + room);
        match self.0[..] {
            [] => {}
            [a] => asm.push(ldr(Size::Double, a, above(16))),
            [a, b] => asm.push(ldp(a, b, above(16))),
            [a, b, c, ..] => {
                asm.push(ldr(Size::Double, c, Address::with(Reg::SP, 16)));
                asm.push(ldp(a, b, above(32)));
            }
        }
    }
}
