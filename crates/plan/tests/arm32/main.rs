//! Generated arm32 code, run by qemu: an arm32 program plays the agent's part. What it writes is
//! compared with what it writes without probes. Sites are A32 and T32.

#[path = "../handlers/mod.rs"]
mod handlers;
mod libc;
mod machine;
mod structure;

use std::mem::offset_of;

use handlers::{adding, nothing, program_of};
use machine::{Machine, PROBES, Probe, Seen};
use sidestep_isa::a32::{Class, decode};
use sidestep_isa::{Flow, Isa, Va};
use sidestep_plan::faults::places;
use sidestep_plan::handler::{AtExit, Handler, Program};
use sidestep_plan::thunk::Context;
use sidestep_plan::{Plan, Technique, exits};
use sidestep_wire::CopyPair;
use sidestep_wire::arch::a32::{FLAGS, Hit, INSTRUCTION_POINTER, Regs};

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

/// The registers of a hit, as a call leaves them.
fn registers(seen: &Seen) -> [u32; 15] {
    std::array::from_fn(|i| seen.regs[i] as u32)
}

/// The flags of a hit, as a call leaves them.
fn flags(seen: &Seen) -> u32 {
    seen.regs[FLAGS / 8] as u32 & 0xf80f_0000
}

fn program(probe: u32) -> Program {
    program_of(nothing(probe))
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
                assert!(thunk.rounds == expected.rounds, "{what}: {:?}", thunk.difference(&expected));
                assert_eq!(thunk.slots, u64::from(thunk.hits > 0), "{what}");
                if thunk.hits > 0 {
                    let (seen, there) = (thunk.first.as_ref().expect("a hit"), there.expect("a breakpoint"));
                    assert_eq!((seen.probe, seen.state, seen.private), (1, 0xabcd0, 0x1234_5678));
                    for (i, (seen, there)) in seen.regs.iter().zip(there.regs).enumerate() {
                        let mask = if 8 * i == FLAGS { STATUS } else { u64::MAX };
                        assert_eq!(seen & mask, there & mask, "{what}: word {i}");
                    }
                    assert_eq!(seen.regs[INSTRUCTION_POINTER / 8], va.0);
                    assert_eq!(seen.floats, there.floats, "{what}");
                }
                // The first hit finds no cells, and goes to the agent; the others are counted
                // here. A trap is counted by its handler.
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

#[test]
fn all_sites_of_a_function_are_probed_at_once() {
    for (isa, function) in ISAS.into_iter().flat_map(|isa| FUNCTIONS.map(|function| (isa, function))) {
        let Some(machine) = Machine::new(isa, &calls(function), 0, ALL) else { return };
        let expected = machine.run(&[]);
        // Of sites inside a jump over several instructions, the first one has it.
        let mut plans: Vec<Plan> = Vec::new();
        for va in machine.instructions(function) {
            let plan = machine.plan(va, false).expect("a plan");
            if plans.last().is_none_or(|last| last.site.0 + last.region.0.max(1) <= va.0) {
                plans.push(plan);
            }
        }
        let probes =
            |handlers: &[Handler]| -> Vec<Probe> { plans.iter().map(|plan| Probe::of(plan, handlers)).collect() };
        let thunk = machine.run(&probes(&[agent(1)]));
        assert!(thunk.rounds == expected.rounds, "{isa:?} {function}: {:?}", thunk.difference(&expected));
        let counted = machine.run(&probes(&[nothing(6)]));
        assert!(counted.rounds == expected.rounds, "{isa:?} {function}: {:?}", counted.difference(&expected));
        assert_eq!(counted.hits + counted.cells[6], thunk.hits, "{isa:?} {function}");
        assert!(counted.hits == 1 && plans.len() > 4, "{isa:?} {function}");
    }
}

#[test]
fn vectors_that_the_agent_uses_are_saved() {
    for (isa, vectors) in ISAS.into_iter().flat_map(|isa| [0, 1 << 0 | 1 << 7 | 1 << 31, u32::MAX].map(|v| (isa, v))) {
        let Some(machine) = Machine::new(isa, &calls("plain"), vectors, ALL) else { return };
        let expected = machine.run(&[]);
        for va in machine.instructions("plain") {
            let plan = machine.plan(va, false).expect("a plan");
            let outcome = machine.run(&[Probe::of(&plan, &[agent(1)])]);
            assert!(outcome.hits > 0 && outcome.rounds == expected.rounds, "{:?}", outcome.difference(&expected));
        }
    }
}

#[test]
fn a_thread_without_a_state_is_missed() {
    for isa in ISAS {
        let checks = "offered = 0; round(run_plain); round(run_plain);";
        let Some(machine) = Machine::new(isa, checks, 0, ALL) else { return };
        let plan = machine.plan(machine.symbol("plain"), false).expect("a plan");
        for handler in [agent(1), nothing(6)] {
            let outcome = machine.run(&[Probe::of(&plan, &[handler])]);
            assert_eq!((outcome.hits, outcome.slots, outcome.cells), (2, 2, [0; PROBES]));
            assert_eq!(outcome.first.expect("a hit").state, 0);
            assert!(outcome.rounds == machine.run(&[]).rounds);
        }
    }
}

#[test]
fn what_is_not_the_threads_own_is_left_to_the_agent() {
    // Another thread has the first bucket; a forked child has no cells.
    for (key, cells) in [("self + 8", "(u32)out.cells"), ("self", "0")] {
        let checks =
            format!("offered = 0; *bucket() = (struct entry){{{key}, {cells}, 0xabcd0, self}}; {}", calls("leaf"));
        for isa in ISAS {
            let Some(machine) = Machine::new(isa, &checks, 0, ALL) else { return };
            let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
            for handler in [agent(1), nothing(6)] {
                let outcome = machine.run(&[Probe::of(&plan, &[handler])]);
                assert_eq!((outcome.hits, outcome.slots, outcome.cells), (4, 4, [0; PROBES]), "{key} {cells}");
            }
        }
    }
}

#[test]
fn counts_are_exact_if_signals_interrupt_them() {
    let checks = "fill(0); run_leaf(); out.cells[0] = count_with_signals(5000);";
    for isa in ISAS {
        let Some(machine) = Machine::new(isa, checks, 0, ALL) else { return };
        let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
        let outcome = machine.run_slowly(&[Probe::of(&plan, &[nothing(6)])]);
        assert!(outcome.hits == 1 && outcome.cells[0] > 15_000, "{}", outcome.cells[0]);
        assert_eq!(outcome.cells[6], outcome.cells[0]);
    }
}

#[test]
fn counts_go_beyond_32_bits() {
    let checks = format!(
        "*bucket() = (struct entry){{self, (u32)out.cells, 0xabcd0, self}}; out.cells[6] = 0x7fffffffeull; {}",
        calls("leaf")
    );
    for isa in ISAS {
        let Some(machine) = Machine::new(isa, &checks, 0, ALL) else { return };
        let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
        let outcome = machine.run(&[Probe::of(&plan, &[nothing(6)])]);
        assert_eq!(outcome.cells[6], 0x8_0000_0002);
        assert!(outcome.rounds == machine.run(&[]).rounds);
    }
}

/// As many scripts do.
#[test]
fn programs_that_add_to_cells_are_parts_of_the_detour() {
    let checks = format!(
        "*bucket() = (struct entry){{self, (u32)out.cells, 0xabcd0, self}}; out.cells[7] = 0xfffffffeull;
        out.cells[3] = 0x1ffffff00ull; {}",
        calls("leaf")
    );
    for isa in ISAS {
        let Some(machine) = Machine::new(isa, &checks, 0, ALL) else { return };
        let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
        let outcome = machine.run(&[Probe::of(&plan, &[adding(6, &[(7, 1), (3, 127)])])]);
        assert_eq!(outcome.cells[3..], [0x1_ffff_ff00 + 4 * 127, 0, 0, 4, 0x1_0000_0002], "{isa:?}");
        assert!(outcome.rounds == machine.run(&[]).rounds && outcome.hits == 0);
    }
}

#[test]
fn handlers_are_left_out_where_the_stack_has_no_room() {
    // The count saves what is live of four registers.
    for (isa, (handler, need)) in
        ISAS.into_iter().flat_map(|isa| [(agent(1), 256), (nothing(6), 16)].map(|of| (isa, of)))
    {
        for room in [4, need / 2, need - 4] {
            let checks = format!("no_memory_below({room}); round(run_leaf); CHECK(0);");
            let Some(machine) = Machine::new(isa, &checks, 0, ALL) else { return };
            let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
            let probe = Probe::of(&plan, std::slice::from_ref(&handler));
            let detour = machine.detour(&probe, 0);
            let save = places(&plan, &detour).into_iter().find(|pair| pair.original & CopyPair::SAVES != 0);
            let Some(save) = save else { panic!("no save") };
            let seen = machine.run(&[probe]).first.expect("a fault");
            if handler == nothing(6) && seen.regs[INSTRUCTION_POINTER / 8] != detour.at.0 + u64::from(save.copy) {
                continue; // It saves fewer registers.
            }
            let mut there = machine.stop_at(plan.site).expect("a breakpoint").regs;
            there[INSTRUCTION_POINTER / 8] = detour.at.0 + u64::from(save.copy);
            there[13] -= u64::from(save.original & CopyPair::OFFSET);
            assert_eq!(seen.regs, there, "{isa:?} {room}");
        }
        // So much is enough for the save.
        let checks = format!("no_memory_below({need}); round(run_leaf);");
        let Some(machine) = Machine::new(isa, &checks, 0, ALL) else { return };
        let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
        let detour = machine.detour(&Probe::of(&plan, std::slice::from_ref(&handler)), 0);
        let save =
            places(&plan, &detour).into_iter().find(|pair| pair.original & CopyPair::SAVES != 0).expect("a save");
        let first = machine.run(&[Probe::of(&plan, &[handler])]).first;
        let ip = first.map(|seen| seen.regs[INSTRUCTION_POINTER / 8]);
        assert!(ip != Some(detour.at.0 + u64::from(save.copy)), "{need}: {ip:x?}");
    }
}

#[test]
fn functions_of_the_target_are_called() {
    let checks = "
        struct regs regs;
        u32 result;
        asm volatile(\"mov r0,%1\\n mov r1,#0\\n blx %2\\n mov %0,r0\" : \"=&r\"(result) : \"r\"(&regs), \"r\"(NATIVE)
            : \"r0\", \"r1\", \"r2\", \"r3\", \"r12\", \"lr\", \"memory\", \"cc\");
        CHECK(result == 0 && native_regs == &regs && native_data == 0x89abcdefu);
        round(run_native);";
    for (isa, vectors) in ISAS.into_iter().flat_map(|isa| [0, u32::MAX].map(|vectors| (isa, vectors))) {
        let Some(machine) = Machine::new(isa, checks, vectors, ALL) else { return };
        let outcome = machine.run(&[]);
        let round = &outcome.rounds[0];
        // All that a function keeps, and the vectors.
        let given = machine.given(0);
        assert!((4..12).all(|i| round.r[i] == given.r[i]) && round.r[13] == given.r[13] && round.r[..2] == [0, 0]);
        assert!(round.d == given.d && round.fpscr == given.fpscr, "vectors: {vectors:x}");
    }
}

#[test]
fn counts_of_all_probes_find_their_cells() {
    // 8 * 31 is the last that one addition of A32 makes, 8 * 511 that one of T32.
    for probe in [0, 1, 31, 33, 511, 512, 0xffff, 0x1_0000, 0x1f_ffff, 0x0654_3210] {
        let checks = format!(
            "*bucket() = (struct entry){{self, (u32)&out.cells[2] - 8u * {probe}, 0xabcd0, self}};
            {}",
            calls("leaf"),
        );
        for isa in ISAS {
            let Some(machine) = Machine::new(isa, &checks, 0, ALL) else { return };
            let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
            let outcome = machine.run(&[Probe::of(&plan, &[nothing(probe)])]);
            assert_eq!((outcome.hits, outcome.slots, outcome.cells[2]), (0, 0, 4), "{probe}");
            assert!(outcome.rounds == machine.run(&[]).rounds, "{probe}");
        }
    }
}

#[test]
fn programs_change_registers_and_where_it_goes_on() {
    let pc = Context(1 << (INSTRUCTION_POINTER / 8));
    for (isa, changes) in ISAS.into_iter().flat_map(|isa| [Context::default(), pc].map(|changes| (isa, changes))) {
        let Some(machine) = Machine::changing(isa, &calls("leaf"), 0, ALL, changes) else { return };
        let expected = machine.run(&[]);
        let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
        let outcome = machine.run(&[Probe::of(&plan, &[agent(3)])]);
        for (round, expected) in outcome.rounds.iter().zip(&expected.rounds) {
            // leaf(1000) = (995 + 1 + carry) ^ 1000
            assert_eq!([0, 1, 3, 4, 11, 12].map(|i| round.r[i]), [997 ^ 1000, 11, 995, 77, 28, 997]);
            let kept = |i: &usize| ![0, 1, 3, 4, 11, 12].contains(i);
            assert!((0..15).filter(kept).all(|i| round.r[i] == expected.r[i]));
            assert_eq!((&round.d, round.fpscr), (&expected.d, expected.fpscr));
        }
        // It returns from the function.
        let outcome = machine.run(&[Probe::of(&plan, &[agent(4)])]);
        let before = machine.stop_at(machine.symbol("leaf")).expect("a breakpoint");
        let [first, ..] = &outcome.rounds[..] else { panic!("no round") };
        assert_eq!((first.r[0], &first.r[1..]), (5, &registers(&before)[1..]));
        assert_eq!(first.flags & 0xf80f_0000, flags(&before));
    }
    // As a pointer to a function, and as an address of the site's instruction set.
    for (isa, pointer) in ISAS.into_iter().flat_map(|isa| ["", "redirect &= ~1;"].map(|pointer| (isa, pointer))) {
        let checks = format!("{pointer} {}", calls("leaf"));
        let Some(machine) = Machine::changing(isa, &checks, 0, ALL, pc) else { return };
        let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
        let outcome = machine.run(&[Probe::of(&plan, &[agent(5)])]);
        let before = machine.stop_at(machine.symbol("leaf")).expect("a breakpoint");
        let first = &outcome.rounds[0];
        assert_eq!(first.r[0], 4242);
        for i in (1..15).filter(|i| *i != 12) {
            assert_eq!(first.r[i], registers(&before)[i], "r{i}");
        }
        assert_eq!(first.flags & 0xf80f_0000, flags(&before));
    }
}

#[test]
fn another_function_runs_instead() {
    for isa in ISAS {
        let Some(machine) = Machine::new(isa, &calls("leaf"), 0, ALL) else { return };
        let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
        // One within the reach of a jump, and one that is not; that one is A32.
        for (name, result) in [("other", 4242), ("far_other", 1717)] {
            if isa == Isa::T32 && name == "far_other" {
                continue;
            }
            let replace = Handler::Replace { count: program(6), function: machine.symbol(name) };
            let outcome = machine.run(&[Probe::of(&plan, &[replace])]);
            assert_eq!((outcome.hits, outcome.cells[6]), (1, 3), "{name}");
            let before = machine.stop_at(machine.symbol("leaf")).expect("a breakpoint");
            let first = &outcome.rounds[0];
            assert_eq!(first.r[0], result, "{name}");
            // r12 is free between caller and callee, and so are the flags.
            for i in (1..15).filter(|i| *i != 12) {
                assert_eq!(first.r[i], registers(&before)[i], "{name}: r{i}");
            }
        }
    }
}

#[test]
fn handlers_run_behind_the_instruction() {
    for isa in ISAS {
        let Some(machine) = Machine::new(isa, &calls("plain"), 0, ALL) else { return };
        let expected = machine.run(&[]);
        let mut posts = 0;
        for va in machine.instructions("plain") {
            let plan = machine.plan(va, false).expect("a plan");
            let asks = Program { adds: None, ..program(1) };
            let handlers = [Handler::Post(program(6)), Handler::Post(asks)];
            let Ok(behind) = plan.behind() else { continue };
            let outcome = machine.run(&[Probe::of(&plan, &handlers)]);
            assert!(outcome.rounds == expected.rounds, "{va}: {:?}", outcome.difference(&expected));
            assert_eq!((outcome.hits, outcome.cells[6]), (5, 3), "{va}");
            // One of the count without cells, and all of the other handler. Both are behind it.
            let (seen, there) = (outcome.first.expect("a hit"), machine.stop_at(behind).expect("a breakpoint"));
            assert_eq!(seen.regs[..15], there.regs[..15], "{va}");
            posts += 1;
        }
        assert!(posts > 8, "{isa:?}: {posts}");
    }
}

#[test]
fn returns_are_seen_at_the_exits() {
    for (isa, (function, many)) in ISAS
        .into_iter()
        .flat_map(|isa| [("ends", 2), ("plain", 1), ("branches", 1), ("odd", 1), ("calls", 1)].map(|f| (isa, f)))
    {
        let Some(machine) = Machine::new(isa, &calls(function), 0, ALL) else { return };
        let expected = machine.run(&[]);
        let found = machine.with_index(|index| exits(index, machine.symbol(function)).map(|found| found.all.clone()));
        let found = found.unwrap_or_else(|why| panic!("{isa:?} {function}: {why}"));
        assert_eq!(found.len(), many, "{function}: {found:?}");
        let adds = AtExit::Program(program_of(adding(6, &[(7, 1)])));
        for run in [AtExit::Agent { probe: 1 }, AtExit::Leave { probe: 1, program: 0 }, adds] {
            let probes: Vec<Probe> = found
                .iter()
                .map(|exit| Probe::of(&machine.plan_exit(*exit), &[Handler::Exit { before: 0, run: run.clone() }]))
                .collect();
            let outcome = machine.run(&probes);
            let mut rounds = outcome.rounds.clone();
            // What a return takes off the stack is in the link register, which means nothing then.
            rounds.iter_mut().zip(&expected.rounds).for_each(|(round, expected)| round.r[14] = expected.r[14]);
            assert!(rounds == expected.rounds, "{isa:?} {function}: {:?}", outcome.difference(&expected));
            assert_eq!(outcome.hits + outcome.cells[6], 4, "{isa:?} {function}: each call ends once");
            assert_eq!(outcome.cells[6..], [outcome.cells[6]; 2], "{isa:?} {function}");
            assert_eq!(outcome.hits, if matches!(run, AtExit::Program(_)) { 1 } else { 4 }, "{isa:?} {function}");
            // The stack pointer is that of the entry, and the return address is in its register.
            let (seen, entry) = (outcome.first.expect("a hit"), machine.stop_at(machine.symbol(function)));
            let entry = entry.expect("a breakpoint");
            assert_eq!(seen.regs[13..15], entry.regs[13..15], "{isa:?} {function}");
        }
    }
}

#[test]
fn returns_are_seen_in_the_trampoline() {
    for isa in ISAS {
        let Some(machine) = Machine::new(isa, &calls("plain"), 0, ALL) else { return };
        let expected = machine.run(&[]);
        let plan = machine.plan(machine.symbol("plain"), false).expect("a plan");
        let outcome = machine.run(&[Probe::of(&plan, &[Handler::Return { probe: 2 }])]);
        assert_eq!((outcome.hits, outcome.returns), (4, 4));
        let mut rounds = outcome.rounds.clone();
        // A return leaves the link register as the function has it.
        rounds.iter_mut().zip(&expected.rounds).for_each(|(round, expected)| round.r[14] = expected.r[14]);
        assert!(rounds == expected.rounds, "{:?}", outcome.difference(&expected));
    }
}

#[test]
fn handlers_are_switched_one_by_one() {
    for isa in ISAS {
        let Some(machine) = Machine::singly(isa, &calls("plain"), ALL) else { return };
        let expected = machine.run(&[]);
        for va in machine.instructions("plain") {
            let plan = machine.plan(va, false).expect("a plan");
            let handlers = [nothing(6), agent(1), nothing(7)];
            for off in 0..8 {
                let probe =
                    Probe { off: (0..3).filter(|i| off >> i & 1 == 1).collect(), ..Probe::of(&plan, &handlers) };
                let outcome = machine.run(&[probe]);
                assert!(outcome.rounds == expected.rounds, "{va} {off}: {:?}", outcome.difference(&expected));
                let on = |i: u64| 1 - (off >> i & 1);
                // Whichever is the first finds no cells.
                let firsts = u64::from(on(0) == 1 || on(1) == 0 && on(2) == 1);
                let all = [outcome.cells[6], outcome.hits, outcome.cells[7]];
                let slow = [4 * on(0) - on(0), 4 * on(1) + firsts, 4 * on(2) - u64::from(firsts == 1 && on(0) == 0)];
                assert_eq!(all, slow, "{isa:?} {va}, off: {off:b}");
            }
        }
    }
}

#[test]
fn gates_lead_to_the_copies_or_to_the_original() {
    for isa in ISAS {
        let Some(machine) = Machine::new(isa, &calls("plain"), 0, ALL) else { return };
        let expected = machine.run(&[]);
        let mut gates = 0;
        for va in machine.instructions("plain") {
            let mut plan = machine.plan(va, false).expect("a plan");
            plan.add_gate();
            let probe = Probe::of(&plan, &[agent(1)]);
            gates += u64::from(machine.detour(&probe, 0).gate.is_some());
            let outcome = machine.run(&[probe]);
            assert!(outcome.rounds == expected.rounds, "{va}: {:?}", outcome.difference(&expected));
            assert_eq!(outcome.hits, 4, "{isa:?} {va}");
        }
        assert!(gates > 8, "{isa:?}: {gates}");
    }
}

#[test]
fn signals_go_to_the_agent_and_on_to_the_program() {
    let checks = "
        on_trap(SIGNAL, RESTORER);
        round(run_trapped); CHECK(out.signals == 1);
        wanted = (u32)&handler;
        round(run_trapped); CHECK(out.signals == 102);
        wanted = 0;
        round(run_trapped); CHECK(out.signals == 103);";
    for isa in ISAS {
        let Some(machine) = Machine::new(isa, checks, 0, ALL) else { return };
        let outcome = machine.run(&[]);
        for (number, round) in outcome.rounds[..3].iter().enumerate() {
            // Nothing but the result is different from a call that has no trap.
            let given = machine.given(number);
            assert_eq!((round.r[0], &round.r[1..14]), (9, &given.r[1..14]));
            assert_eq!((round.flags, &round.d), (given.flags, &given.d));
        }
    }
}

#[test]
fn programs_that_are_not_compiled_are_interpreted() {
    for (stack, len) in [(16, 1), (512, 3), (4096, 0x1_0000), (8 * 512, 70_000), (4112, 5)] {
        // The context, four numbers, and the state of the thread behind three of them.
        let checks = format!(
            "u32 sp, result;
            asm volatile(\"mov r6,sp\\n sub sp,sp,#32\\n mov r0,#22\\n str r0,[sp,#24]\\n mov r0,#11\\n mov r1,#0\\n mov r5,sp\\n blx %2\\n\"
                \" sub %1,r5,sp\\n mov sp,r6\\n mov %0,r0\"
                : \"=&r\"(result), \"=&r\"(sp) : \"r\"(INTERPRETED)
                : \"r0\", \"r1\", \"r2\", \"r3\", \"r5\", \"r6\", \"r12\", \"lr\", \"memory\", \"cc\");
            CHECK(result == 4711 && sp == 0 && interpreted[0] == 11 && interpreted[5] == 22);
            CHECK(interpreted[1] == 0x12345678u && interpreted[2] == {len} && interpreted[4] == {stack});
            CHECK(interpreted[3] % 16 == 0 && interpreter_sp + 24 == interpreted[3] - {stack});"
        );
        let Some(machine) = Machine::interpreting(&checks, stack, len) else { return };
        machine.run(&[]);
    }
}

/// The words of the context are where the C program has them, and its functions have the
/// instructions that are copied in their own ways.
#[test]
fn the_context_is_that_of_the_kernel() {
    assert_eq!([offset_of!(Regs, cpsr), offset_of!(Regs, orig_r0)], [128, 136]);
    for isa in ISAS {
        let Some(machine) = Machine::new(isa, "", 0, ALL) else { return };
        let (mut classes, mut flows, mut blocks) = (Vec::new(), Vec::new(), 0);
        for va in FUNCTIONS.into_iter().flat_map(|function| machine.instructions(function)) {
            let insn = decode(isa, machine.bytes(va), va).expect("an instruction");
            classes.extend(insn.ops().map(|op| op.class));
            flows.push(std::mem::discriminant(&insn.flow()));
            blocks += usize::from(insn.it().is_some());
        }
        for class in [Class::Address, Class::Load, Class::VectorLoad, Class::BranchExchange, Class::BranchLinkRegister]
        {
            assert!(classes.contains(&class), "{class:?}");
        }
        for flow in [Flow::Call(Va(0)), Flow::CallIndirect, Flow::Jump(Va(0)), Flow::Branch(Va(0)), Flow::Return] {
            assert!(flows.contains(&std::mem::discriminant(&flow)), "{flow:?}");
        }
        assert_eq!(
            (blocks, classes.contains(&Class::CompareZero)),
            if isa == Isa::T32 { (3, true) } else { (0, false) }
        );
    }
}
