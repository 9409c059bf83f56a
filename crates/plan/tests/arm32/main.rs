//! Generated arm32 code, run by qemu: an arm32 program plays the agent's part. What it writes is
//! compared with what it writes without probes. Sites are A32 and T32.

mod machine;

use machine::{Machine, Probe, nothing};
use sidestep_isa::Isa;
use sidestep_plan::Technique;
use sidestep_plan::handler::Handler;
use sidestep_plan::thunk::Context;
use sidestep_wire::arch::a32::{FLAGS, Hit, INSTRUCTION_POINTER};

/// Both instruction sets.
const ISAS: [Isa; 2] = [Isa::A32, Isa::T32];
/// The functions of `functions.h` that are called with all kinds of registers.
const FUNCTIONS: [&str; 6] = ["plain", "near", "branches", "calls", "odd", "leaf"];
/// All words of a hit.
const ALL: Context = Context((1 << (Hit::CONTEXT / 8)) - 1);
/// What of `CPSR` the context has: the flags, `GE`, and which instruction set it is.
const STATUS: u64 = 0xf80f_0020;

fn agent(probe: u32) -> Handler {
    Handler::Agent { probe }
}

/// What calls a function with registers of its own each time.
fn calls(function: &str) -> String {
    format!("for (int i = 0; i < ROUNDS; i++) round(run_{function});")
}

#[test]
fn each_instruction_is_probed_and_nothing_changes() {
    for isa in ISAS {
        let (mut sites, mut hits, mut traps) = (0, 0, 0);
        for function in FUNCTIONS {
            let Some(machine) = Machine::new(isa, &calls(function), 0, ALL) else { return };
            let expected = machine.run(&[]);
            assert_eq!(expected.hits, 0);
            for va in machine.instructions(function) {
                let plan = machine.plan(va, false).unwrap_or_else(|why| panic!("{isa:?} {function} {va}: {why}"));
                let what = format!("{isa:?} {function} {va} {}", plan.technique);
                assert_eq!(plan.site, va);
                let is_trap = plan.technique == Technique::Trap;
                assert!(isa == Isa::T32 || !is_trap, "{what}: {}", plan.technique);
                // What the registers are there, says a breakpoint.
                let there = machine.stop_at(va);
                let thunk = machine.run(&[Probe::of(&plan, &[agent(1)])]);
                // The first hit finds no cells, and goes to the agent; the others are counted here. A
                // trap is counted by its handler.
                let counted = machine.run(&[Probe::of(&plan, &[nothing(6)])]);
                assert!(counted.rounds == expected.rounds, "{what}: {:?}", counted.difference(&expected));
                assert_eq!(counted.hits + counted.cells[6], thunk.hits, "{what}");
                let first = thunk.hits.min(1);
                assert_eq!(counted.hits, if is_trap { 0 } else { first }, "{what}");
                // All together.
                let all = machine.run(&[Probe::of(&plan, &[nothing(6), agent(1), nothing(7)])]);
                assert!(all.rounds == expected.rounds, "{what}: {:?}", all.difference(&expected));
                assert_eq!((all.hits, all.cells[6]), (thunk.hits + first, thunk.hits - first), "{what}");
                assert_eq!(all.cells[7], thunk.hits, "{what}");
                (sites, hits, traps) = (sites + 1, hits + thunk.hits, traps + u64::from(is_trap));
            }
        }
        println!("{isa:?}: {sites} sites, {hits} hits, {traps} traps");
        assert!(sites > 60 && hits > 250, "{isa:?}: {sites} sites, {hits} hits");
    }
}
