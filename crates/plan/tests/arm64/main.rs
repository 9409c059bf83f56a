//! Generated arm64 code, run by qemu: an arm64 program plays the agent's part. What it writes is
//! compared with what it writes without probes.

#[path = "../handlers/mod.rs"]
mod handlers;
mod libc;
mod machine;
mod structure;

use std::mem::offset_of;

use handlers::{adding, nothing, program_of};
use machine::{Machine, PROBES, Probe};
use sidestep_isa::a64::{Class, decode as decode_a64};
use sidestep_isa::{Flow, Va};
use sidestep_plan::faults::places;
use sidestep_plan::handler::{AtExit, Handler};
use sidestep_plan::thunk::Context;
use sidestep_plan::{Technique, exits};
use sidestep_wire::CopyPair;
use sidestep_wire::arch::a64::{FLAGS, Hit, INSTRUCTION_POINTER, Regs};

/// The functions of `functions.h` that are called with all kinds of registers.
const FUNCTIONS: [&str; 6] = ["plain", "near", "branches", "calls", "signs", "leaf"];
/// All words of a hit.
const ALL: Context = Context((1 << (Hit::CONTEXT / 8)) - 1);

fn agent(probe: u32) -> Handler {
    Handler::Agent { probe }
}

/// What calls a function with registers of its own each time.
fn calls(function: &str) -> String {
    format!("for (int i = 0; i < ROUNDS; i++) round(run_{function});")
}

#[test]
fn each_instruction_is_probed_and_nothing_changes() {
    let (mut sites, mut hits) = (0, 0);
    for function in FUNCTIONS {
        let Some(machine) = Machine::new(&calls(function), 0, ALL) else { return };
        let expected = machine.run(&[]);
        assert_eq!(expected.hits, 0);
        for va in machine.instructions(function) {
            let plan = machine.plan(va, false).unwrap_or_else(|why| panic!("{function}: {why}"));
            if plan.site != va {
                continue; // a mark, which stays in front
            }
            assert!(plan.technique <= Technique::Jump, "{function} {va}: {}", plan.technique);
            // What the registers are there, says a breakpoint.
            let there = machine.stop_at(va);
            let thunk = machine.run(&[Probe::of(&plan, &[agent(1)])]);
            assert!(thunk.rounds == expected.rounds, "{function} {va}: {:?}", thunk.difference(&expected));
            assert_eq!(thunk.slots, u64::from(thunk.hits > 0), "{function} {va}");
            if thunk.hits > 0 {
                let (seen, there) = (thunk.first.as_ref().expect("a hit"), there.expect("a breakpoint"));
                assert_eq!((seen.probe, seen.state, seen.private), (1, 0xabcd0, 0x1234_5678_9abc));
                for (i, (seen, there)) in seen.regs.iter().zip(there.regs).enumerate() {
                    let mask = if 8 * i == FLAGS { 15 << 28 } else { u64::MAX };
                    assert_eq!(seen & mask, there & mask, "{function} {va}: word {i}");
                }
                assert_eq!(seen.regs[INSTRUCTION_POINTER / 8], va.0);
                assert_eq!(seen.floats, there.floats, "{function} {va}");
            }
            // The first hit finds no cells, and goes to the agent; the others are counted here.
            let counted = machine.run(&[Probe::of(&plan, &[nothing(6)])]);
            assert!(counted.rounds == expected.rounds, "{function} {va}: {:?}", counted.difference(&expected));
            assert_eq!(counted.hits + counted.cells[6], thunk.hits, "{function} {va}");
            assert_eq!(counted.hits, thunk.hits.min(1), "{function} {va}");
            // All together.
            let all = machine.run(&[Probe::of(&plan, &[nothing(6), agent(1), nothing(7)])]);
            assert!(all.rounds == expected.rounds, "{function} {va}: {:?}", all.difference(&expected));
            let first = thunk.hits.min(1);
            assert_eq!((all.hits, all.cells[6]), (thunk.hits + first, thunk.hits - first), "{function} {va}");
            assert_eq!(all.cells[7], thunk.hits, "{function} {va}");
            (sites, hits) = (sites + 1, hits + thunk.hits);
        }
    }
    assert!(sites > 60 && hits > 300, "{sites} sites, {hits} hits");
}

#[test]
fn all_sites_of_a_function_are_probed_at_once() {
    for function in FUNCTIONS {
        let Some(machine) = Machine::new(&calls(function), 0, ALL) else { return };
        let expected = machine.run(&[]);
        let plans: Vec<_> = machine.instructions(function).map(|va| machine.plan(va, false).expect("a plan")).collect();
        let probes = |handlers: &[Handler]| -> Vec<Probe> {
            let mut probes: Vec<Probe> = plans.iter().map(|plan| Probe::of(plan, handlers)).collect();
            probes.dedup_by_key(|probe| probe.plan.site);
            probes
        };
        let thunk = machine.run(&probes(&[agent(1)]));
        assert!(thunk.rounds == expected.rounds, "{function}: {:?}", thunk.difference(&expected));
        let counted = machine.run(&probes(&[nothing(6)]));
        assert!(counted.rounds == expected.rounds, "{function}: {:?}", counted.difference(&expected));
        assert_eq!(counted.hits + counted.cells[6], thunk.hits, "{function}");
        assert_eq!(counted.hits, 1);
    }
}

#[test]
fn vectors_that_the_agent_uses_are_saved() {
    for vectors in [0, 1 << 0 | 1 << 7 | 1 << 31, u32::MAX] {
        let Some(machine) = Machine::new(&calls("plain"), vectors, ALL) else { return };
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
    let checks = "offered = 0; round(run_plain); round(run_plain);";
    let Some(machine) = Machine::new(checks, 0, ALL) else { return };
    let plan = machine.plan(machine.symbol("plain"), false).expect("a plan");
    for handler in [agent(1), nothing(6)] {
        let outcome = machine.run(&[Probe::of(&plan, &[handler])]);
        assert_eq!((outcome.hits, outcome.slots, outcome.cells), (2, 2, [0; PROBES]));
        assert_eq!(outcome.first.expect("a hit").state, 0);
        assert!(outcome.rounds == machine.run(&[]).rounds);
    }
}

#[test]
fn what_is_not_the_threads_own_is_left_to_the_agent() {
    // Another thread has the first bucket; a forked child has no cells.
    for (key, cells) in [("self + 8", "(u64)out.cells"), ("self", "0")] {
        let checks = format!(
            "offered = 0;
            buckets[(self * 0x1e3779b1ul >> 32) & 8191] = (struct entry){{{key}, {cells}, 0xabcd0, self}};
            {}",
            calls("leaf"),
        );
        let Some(machine) = Machine::new(&checks, 0, ALL) else { return };
        let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
        for handler in [agent(1), nothing(6)] {
            let outcome = machine.run(&[Probe::of(&plan, &[handler])]);
            assert_eq!((outcome.hits, outcome.slots, outcome.cells), (4, 4, [0; PROBES]), "{key} {cells}");
        }
    }
}

#[test]
fn counts_are_exact_if_signals_interrupt_them() {
    let checks = "run_leaf(); out.cells[0] = count_with_signals(5000);";
    let checks = format!("fill(0); {checks}");
    let Some(machine) = Machine::new(&checks, 0, ALL) else { return };
    let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
    let outcome = machine.run_slowly(&[Probe::of(&plan, &[nothing(6)])]);
    assert!(outcome.hits == 1 && outcome.cells[0] > 15_000, "{}", outcome.cells[0]);
    assert_eq!(outcome.cells[6], outcome.cells[0]);
}

/// As many scripts do.
#[test]
fn programs_that_add_to_cells_are_parts_of_the_detour() {
    let checks = format!(
        "struct entry *entry = &buckets[(self * 0x1e3779b1ul >> 32) & 8191];
        *entry = (struct entry){{self, (u64)out.cells, 0xabcd0, self}}; out.cells[7] = 0xfffffffeul; {}",
        calls("leaf")
    );
    let Some(machine) = Machine::new(&checks, 0, ALL) else { return };
    let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
    let outcome = machine.run(&[Probe::of(&plan, &[adding(6, &[(7, 1), (3, 127)])])]);
    assert_eq!(outcome.cells[3..], [4 * 127, 0, 0, 4, 0x1_0000_0002]);
    assert!(outcome.rounds == machine.run(&[]).rounds && outcome.hits == 0);
}

#[test]
fn handlers_are_left_out_where_the_stack_has_no_room() {
    // The count saves x16; x9 and x10 are dead.
    for (handler, need) in [(agent(1), 512), (nothing(6), 144)] {
        for room in [16, 64, need - 16] {
            let checks = format!("no_memory_below({room}); round(run_leaf); CHECK(0);");
            let Some(machine) = Machine::new(&checks, 0, ALL) else { return };
            let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
            let probe = Probe::of(&plan, std::slice::from_ref(&handler));
            let detour = machine.detour(&probe, 0);
            let save = places(&plan, &detour).into_iter().find(|pair| pair.original == CopyPair::SAVES);
            let seen = machine.run(&[probe]).first.expect("a fault");
            let mut there = machine.stop_at(plan.site).expect("a breakpoint").regs;
            there[INSTRUCTION_POINTER / 8] = detour.at.0 + u64::from(save.expect("a save").copy);
            assert_eq!(seen.regs, there, "{room}");
        }
        // So much is enough for the save.
        let checks = format!("no_memory_below({need}); round(run_leaf);");
        let Some(machine) = Machine::new(&checks, 0, ALL) else { return };
        let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
        let detour = machine.detour(&Probe::of(&plan, std::slice::from_ref(&handler)), 0);
        let first = machine.run(&[Probe::of(&plan, &[handler])]).first;
        let ip = first.map(|seen| seen.regs[INSTRUCTION_POINTER / 8]);
        assert!(ip != Some(detour.at.0), "{need}: {ip:x?}");
    }
}

#[test]
fn functions_of_the_target_are_called() {
    let checks = "
        struct regs regs;
        u64 result, state = 1;
        asm volatile(\"mov x0,%1\\n mov x5,%2\\n blr %3\\n mov %0,x0\" : \"=&r\"(result)
            : \"r\"(&regs), \"r\"(state), \"r\"(NATIVE)
            : \"x0\", \"x1\", \"x2\", \"x3\", \"x4\", \"x5\", \"x6\", \"x7\", \"x8\", \"x9\", \"x10\", \"x11\", \"x12\", \"x13\",
              \"x14\", \"x15\", \"x16\", \"x17\", \"x18\", \"x30\", \"memory\", \"cc\");
        CHECK(result == 0 && native_regs == &regs && native_data == 0x0123456789abcdeful);
        round(run_native);";
    for vectors in [0, u32::MAX] {
        let Some(machine) = Machine::new(checks, vectors, ALL) else { return };
        let outcome = machine.run(&[]);
        let round = &outcome.rounds[0];
        // All that a function keeps, and the vectors.
        let given = machine.given(0);
        assert!((19..29).all(|i| round.x[i] == given.x[i]) && round.sp == given.sp && round.x[0] == 0);
        assert!(round.q == given.q && round.fpsr == given.fpsr, "vectors: {vectors:x}");
    }
}

#[test]
fn counts_of_all_probes_find_their_cells() {
    // 8 * 511 is the last that one addition makes, 8 * 512 and 8 * 2097152 the first that need
    // more.
    for probe in [0, 1, 511, 512, 0xffff, 0x1_0000, 0x1f_ffff, 0x20_0000, 0x7654_3210] {
        let checks = format!(
            "struct entry *entry = &buckets[(self * 0x1e3779b1ul >> 32) & 8191];
            *entry = (struct entry){{self, (u64)&out.cells[2] - 8ul * {probe}, 0xabcd0, self}};
            {}",
            calls("leaf"),
        );
        let Some(machine) = Machine::new(&checks, 0, ALL) else { return };
        let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
        let outcome = machine.run(&[Probe::of(&plan, &[nothing(probe)])]);
        assert_eq!((outcome.hits, outcome.slots, outcome.cells[2]), (0, 0, 4), "{probe}");
        assert!(outcome.rounds == machine.run(&[]).rounds, "{probe}");
    }
}

#[test]
fn programs_change_registers_and_where_it_goes_on() {
    let pc = Context(1 << (INSTRUCTION_POINTER / 8));
    for changes in [Context::default(), pc] {
        let Some(machine) = Machine::changing(&calls("leaf"), 0, ALL, changes) else { return };
        let expected = machine.run(&[]);
        let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
        let outcome = machine.run(&[Probe::of(&plan, &[agent(3)])]);
        for (round, expected) in outcome.rounds.iter().zip(&expected.rounds) {
            // leaf(1000) = (1000 - 5) ^ 1000
            assert_eq!([0, 16, 17, 19, 28].map(|i| round.x[i]), [1000 ^ 995, 16, 17, 77, 28]);
            let kept = |i: &usize| ![0, 9, 10, 16, 17, 19, 28].contains(i);
            assert!((0..31).filter(kept).all(|i| round.x[i] == expected.x[i]));
            assert_eq!((round.sp, &round.q, round.fpsr), (expected.sp, &expected.q, expected.fpsr));
        }
        // It returns from the function.
        let outcome = machine.run(&[Probe::of(&plan, &[agent(4)])]);
        let before = machine.stop_at(machine.symbol("leaf")).expect("a breakpoint").regs;
        let [first, ..] = &outcome.rounds[..] else { panic!("no round") };
        assert_eq!(first.x[0], 5);
        assert_eq!((&first.x[1..], first.sp), (&before[1..31], before[31]));
        assert_eq!(first.flags, before[FLAGS / 8] & 15 << 28);
    }
    let Some(machine) = Machine::changing(&calls("leaf"), 0, ALL, pc) else { return };
    let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
    let outcome = machine.run(&[Probe::of(&plan, &[agent(5)])]);
    let before = machine.stop_at(machine.symbol("leaf")).expect("a breakpoint").regs;
    let first = &outcome.rounds[0];
    assert_eq!(first.x[0], 4242);
    for i in (1..31).filter(|i| *i != 16) {
        assert_eq!(first.x[i], before[i], "x{i}");
    }
    assert_eq!((first.sp, first.flags), (before[31], before[FLAGS / 8] & 15 << 28));
}

#[test]
fn another_function_runs_instead() {
    let Some(machine) = Machine::new(&calls("leaf"), 0, ALL) else { return };
    let plan = machine.plan(machine.symbol("leaf"), false).expect("a plan");
    let nothing = |probe| program_of(nothing(probe));
    // One within the reach of a jump, and one that is not.
    for (name, result) in [("other", 4242), ("far_other", 1717)] {
        let replace = Handler::Replace { count: nothing(6), function: machine.symbol(name) };
        let outcome = machine.run(&[Probe::of(&plan, &[replace])]);
        assert_eq!((outcome.hits, outcome.cells[6]), (1, 3), "{name}");
        let before = machine.stop_at(machine.symbol("leaf")).expect("a breakpoint").regs;
        let first = &outcome.rounds[0];
        assert_eq!(first.x[0], result, "{name}");
        // Those two are free between caller and callee.
        for i in (1..31).filter(|i| !(16..18).contains(i)) {
            assert_eq!(first.x[i], before[i], "{name}: x{i}");
        }
        assert_eq!(first.flags, before[FLAGS / 8] & 15 << 28);
    }
}

#[test]
fn handlers_run_behind_the_instruction() {
    let Some(machine) = Machine::new(&calls("plain"), 0, ALL) else { return };
    let expected = machine.run(&[]);
    let mut posts = 0;
    for va in machine.instructions("plain") {
        let plan = machine.plan(va, false).expect("a plan");
        let program = |probe| program_of(nothing(probe));
        let mut asks = program(1);
        asks.adds = None;
        let handlers = [Handler::Post(program(6)), Handler::Post(asks)];
        if plan.behind().is_err() {
            continue;
        }
        let outcome = machine.run(&[Probe::of(&plan, &handlers)]);
        assert!(outcome.rounds == expected.rounds, "{va}: {:?}", outcome.difference(&expected));
        assert_eq!((outcome.hits, outcome.cells[6]), (5, 3), "{va}");
        // One of the count without cells, and all of the other handler. Both are behind it.
        let (seen, there) = (outcome.first.expect("a hit"), machine.stop_at(Va(va.0 + 4)).expect("a breakpoint"));
        assert_eq!(seen.regs[..32], there.regs[..32], "{va}");
        posts += 1;
    }
    assert!(posts > 10, "{posts}");
}

#[test]
fn returns_are_seen_at_the_exits() {
    for (function, many) in [("ends", 2), ("plain", 1), ("branches", 1)] {
        let Some(machine) = Machine::new(&calls(function), 0, ALL) else { return };
        let expected = machine.run(&[]);
        let found = machine.with_index(|index| exits(index, machine.symbol(function)).map(|found| found.all.clone()));
        let found = found.unwrap_or_else(|why| panic!("{function}: {why}"));
        assert_eq!(found.len(), many, "{function}: {found:?}");
        let adds = AtExit::Program(program_of(adding(6, &[(7, 1)])));
        for run in [AtExit::Agent { probe: 1 }, AtExit::Leave { probe: 1, program: 0 }, adds] {
            let probes: Vec<Probe> = found
                .iter()
                .map(|exit| Probe::of(&machine.plan_exit(*exit), &[Handler::Exit { before: 0, run: run.clone() }]))
                .collect();
            let outcome = machine.run(&probes);
            assert!(outcome.rounds == expected.rounds, "{function}: {:?}", outcome.difference(&expected));
            assert_eq!(outcome.hits + outcome.cells[6], 4, "{function}: each call ends once");
            assert_eq!(outcome.cells[6..], [outcome.cells[6]; 2], "{function}");
            assert_eq!(outcome.hits, if matches!(run, AtExit::Program(_)) { 1 } else { 4 }, "{function}");
        }
    }
}

#[test]
fn returns_are_seen_in_the_trampoline() {
    let Some(machine) = Machine::new(&calls("plain"), 0, ALL) else { return };
    let expected = machine.run(&[]);
    let plan = machine.plan(machine.symbol("plain"), false).expect("a plan");
    let outcome = machine.run(&[Probe::of(&plan, &[Handler::Return { probe: 2 }])]);
    assert_eq!((outcome.hits, outcome.returns), (4, 4));
    // The function has put the trampoline's address on the stack, below the stack pointer now.
    let mut rounds = outcome.rounds.clone();
    let mut stored = 0;
    for (round, expected) in rounds.iter_mut().zip(&expected.rounds) {
        for (word, expected) in round.stack.chunks_exact_mut(8).zip(expected.stack.chunks_exact(8)) {
            if word == machine.globals.trampoline.0.to_le_bytes() {
                word.copy_from_slice(expected);
                stored += 1;
            }
        }
    }
    assert!(rounds == expected.rounds && stored == 4, "{stored}: {:?}", outcome.difference(&expected));
}

#[test]
fn handlers_are_switched_one_by_one() {
    let Some(machine) = Machine::singly(&calls("plain"), ALL) else { return };
    let expected = machine.run(&[]);
    for va in machine.instructions("plain") {
        let plan = machine.plan(va, false).expect("a plan");
        let handlers = [nothing(6), agent(1), nothing(7)];
        for off in 0..8 {
            let probe = Probe { off: (0..3).filter(|i| off >> i & 1 == 1).collect(), ..Probe::of(&plan, &handlers) };
            let outcome = machine.run(&[probe]);
            assert!(outcome.rounds == expected.rounds, "{va} {off}: {:?}", outcome.difference(&expected));
            let on = |i: u64| 1 - (off >> i & 1);
            // Whichever is the first finds no cells.
            let firsts = u64::from(on(0) == 1 || on(1) == 0 && on(2) == 1);
            let all = [outcome.cells[6], outcome.hits, outcome.cells[7]];
            let slow = [4 * on(0) - on(0), 4 * on(1) + firsts, 4 * on(2) - u64::from(firsts == 1 && on(0) == 0)];
            assert_eq!(all, slow, "{va}, off: {off:b}");
        }
    }
}

#[test]
fn signals_go_to_the_agent_and_on_to_the_program() {
    let checks = "
        on_trap(SIGNAL, RESTORER);
        round(run_trapped); CHECK(out.signals == 1);
        wanted = (u64)&handler;
        round(run_trapped); CHECK(out.signals == 102);
        wanted = 0;
        round(run_trapped); CHECK(out.signals == 103);";
    let Some(machine) = Machine::new(checks, 0, ALL) else { return };
    let outcome = machine.run(&[]);
    for round in &outcome.rounds[..3] {
        assert_eq!(round.x[0], 9);
    }
    // Nothing but the result is different from a call that has no trap.
    let [first, second, third, ..] = &outcome.rounds[..] else { panic!("no rounds") };
    assert!(first.sp == second.sp && second.sp == third.sp);
}

#[test]
fn programs_that_are_not_compiled_are_interpreted() {
    for (stack, len) in [(16, 1), (512, 3), (4096, 0x1_0000), (8 * 512, 70_000), (4112, 5)] {
        let checks = format!(
            "u64 sp, given = 11, state = 22, result;
            asm volatile(\"mov x0,%2\\n mov x5,%3\\n mov %1,sp\\n blr %4\\n mov %0,x0\\n mov x1,sp\\n sub %1,%1,x1\"
                : \"=&r\"(result), \"=&r\"(sp) : \"r\"(given), \"r\"(state), \"r\"(INTERPRETED)
                : \"x0\", \"x1\", \"x2\", \"x3\", \"x4\", \"x5\", \"x6\", \"x7\", \"x8\", \"x9\", \"x10\", \"x11\", \"x12\", \"x13\",
                  \"x14\", \"x15\", \"x16\", \"x17\", \"x18\", \"x30\", \"memory\", \"cc\");
            CHECK(result == 4711 && sp == 0 && interpreted[0] == 11 && interpreted[5] == 22);
            CHECK(interpreted[1] == 0x123456789abcdef0ul && interpreted[2] == {len} && interpreted[4] == {stack});
            CHECK(interpreted[3] % 16 == 0 && interpreter_sp == interpreted[3] - {stack});"
        );
        let Some(machine) = Machine::interpreting(&checks, stack, len) else { return };
        machine.run(&[]);
    }
}

/// The words of the context are where the C program has them.
#[test]
fn the_context_is_that_of_the_kernel() {
    assert_eq!([offset_of!(Regs, sp), offset_of!(Regs, pc), offset_of!(Regs, pstate)], [248, 256, 264]);
    let Some(machine) = Machine::new("", 0, ALL) else { return };
    let (mut classes, mut flows) = (Vec::new(), Vec::new());
    for function in FUNCTIONS {
        for va in machine.instructions(function) {
            let insn = decode_a64(&machine.word(va).to_le_bytes(), va).expect("an instruction");
            classes.push(insn.class());
            flows.push(std::mem::discriminant(&insn.flow()));
        }
    }
    for class in [Class::Adr, Class::Adrp, Class::LoadLiteral, Class::LoadLiteralVector, Class::PrefetchLiteral] {
        assert!(classes.contains(&class), "{class:?}");
    }
    for class in [Class::CompareZero, Class::TestBit, Class::BranchCondition, Class::BranchLinkRegister, Class::Hint] {
        assert!(classes.contains(&class), "{class:?}");
    }
    for flow in [Flow::Call(Va(0)), Flow::CallIndirect, Flow::Jump(Va(0)), Flow::Branch(Va(0)), Flow::Return] {
        assert!(flows.contains(&std::mem::discriminant(&flow)), "{flow:?}");
    }
}
