//! What detours consist of, as LLVM's disassembler reads it; and what does not depend on addresses.

use std::process::Command;

use sidestep_isa::{Flow, Isa, Len, Va, decode};
use sidestep_plan::detour::{Detour, DetourError, build};
use sidestep_plan::faults::places;
use sidestep_plan::handler::{AtExit, Handler};
use sidestep_plan::object::{Bytes, Extent, ObjectCode};
use sidestep_plan::thunk::{Context, Env, Place, Thunks, globals, thunks};
use sidestep_plan::{Index, Needs, Placement, Plan, Technique, plan_at, plan_exit};
use sidestep_wire::arch::a32::{BREAKPOINT, BREAKPOINT_T32, TRAMPOLINE_MARK};
use sidestep_wire::{CopyPair, TrapEntry, TrapRecord};

use super::handlers::nothing;
use super::machine::{Scratch, has_tools};
use super::{ISAS, agent, program};

const BASE: Va = Va(0x40_0000);
const SLAB: Va = Va(0x80_0000);
const DETOUR: Va = Va(0x80_1000);

fn env() -> Env {
    Env {
        isa: Isa::A32,
        private: Va(0x1234_7000),
        buckets: Va(0x1234_5040),
        descs: Va(0x1234_8000),
        agent_slot: Va(0x5000_1000),
        agent_hit: Va(0x5000_2001),
        agent_signal: Va(0x5000_3000),
        hash_multiplier: 0x1e37_79b1,
        hash_shift: 32,
        bucket_count: 8192,
        ..Env::default()
    }
}

fn shared(at: Va, env: &Env) -> Thunks {
    let program = sidestep_plan::thunk::Program {
        code: Va(0),
        inside: Va(0),
        context: Context::default(),
        changes: Context::default(),
        exclusive: false,
        overrides: false,
        goroutine: None,
    };
    thunks(at, env, at, &[Some(program)], &[], None).1
}

/// Words of A32, or halfwords of T32.
fn bytes(isa: Isa, code: &[u32]) -> Vec<u8> {
    let len = if isa == Isa::T32 { 2 } else { 4 };
    code.iter().flat_map(|word| word.to_le_bytes()[..len].to_vec()).collect()
}

fn object(isa: Isa, text: &[u8]) -> ObjectCode<'_> {
    ObjectCode {
        text: vec![Bytes { name: ".text", va: BASE, data: text }],
        extents: vec![Extent { start: BASE, len: Len(text.len() as u64) }],
        labels: vec![BASE],
        ..ObjectCode::new(isa)
    }
}

fn planned(isa: Isa, code: &[u32], offset: u64, trap: bool) -> Plan {
    let text = bytes(isa, code);
    let index = Index::new(object(isa, &text));
    plan_at(&index, BASE.plus(Len(offset)), trap, Placement::First).expect("a plan")
}

fn built(plan: &Plan, handlers: &[Handler], env: &Env) -> Detour {
    build(plan, handlers, DETOUR, 0, &shared(SLAB, env), env).expect("a detour")
}

/// The text of code, as LLVM reads it; empty: LLVM is missing.
fn disassembled(isa: Isa, code: &[u8], at: Va) -> Vec<String> {
    if !has_tools(&["llvm-objcopy-19", "llvm-objdump-19"]) {
        return Vec::new();
    }
    let dir = Scratch::new();
    let (raw, object) = (dir.0.join("raw"), dir.0.join("o"));
    std::fs::write(&raw, code).expect("a file");
    let copied = Command::new("llvm-objcopy-19")
        .args(["-I", "binary", "-O", "elf32-littlearm", "--rename-section", ".data=.text,alloc,readonly,code"])
        .args([&raw, &object])
        .status();
    assert!(copied.expect("llvm-objcopy").success());
    let triple = if isa == Isa::T32 { "thumbv8a-linux-gnueabihf" } else { "armv8a-linux-gnueabihf" };
    let output = Command::new("llvm-objdump-19")
        .args(["-d", "--no-show-raw-insn", "--no-leading-addr", "-z", "--triple", triple])
        .arg(format!("--adjust-vma={:#x}", at.0))
        .arg(&object)
        .output()
        .expect("llvm-objdump");
    let listing = String::from_utf8(output.stdout).expect("text");
    let lines = listing.lines().filter_map(|line| line.strip_prefix(['\t', ' ']));
    // Without symbols and comments.
    let text = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    text.map(|line| line.split(['<', '@']).next().unwrap_or_default().trim().to_owned()).collect()
}

/// Compares with LLVM's text, if LLVM is there.
fn check(detour: &Detour, expected: &[&str]) {
    let text = disassembled(detour.isa, &detour.bytes, detour.at);
    assert!(text.is_empty() || text == expected, "{text:#?}");
}

/// mov r0, #1; mov r1, #2; mov r2, #3; mov r3, #4; cmp r0, r1; add r0, r0, r1; bx lr
const DEAD_A32: [u32; 7] = [0xe3a0_0001, 0xe3a0_1002, 0xe3a0_2003, 0xe3a0_3004, 0xe150_0001, 0xe080_0001, 0xe12f_ff1e];
/// add r0, r0, #1; bx lr
const LIVE_A32: [u32; 2] = [0xe280_0001, 0xe12f_ff1e];
/// add.w r0, r0, #1; bx lr
const LIVE_T32: [u32; 3] = [0xf100, 0x0001, 0x4770];

fn live(isa: Isa) -> &'static [u32] {
    if isa == Isa::T32 { &LIVE_T32 } else { &LIVE_A32 }
}

#[test]
fn a_count_saves_nothing_where_registers_and_flags_are_dead() {
    let plan = planned(Isa::A32, &DEAD_A32, 0, false);
    assert!(plan.dead_flags && plan.dead_regs & 0xf == 0xf, "{:x}", plan.dead_regs);
    let detour = built(&plan, &[nothing(5)], &env());
    let expected = [
        "mrc p15, #0x0, r3, c13, c0, #0x3",
        "movw r2, #0x79b1",
        "movt r2, #0x1e37",
        "umull r1, r2, r3, r2",
        "ubfx r2, r2, #0x0, #0xd",
        "movw r1, #0x5040",
        "movt r1, #0x1234",
        "add r2, r1, r2, lsl #5",
        "ldr r1, [r2]",
        "cmp r1, r3",
        "bne 0x80106c",
        "ldr r2, [r2, #0x8]",
        "cmp r2, #0",
        "beq 0x80106c",
        "add r2, r2, #40",
        "ldrex r3, [r2]",
        "add r3, r3, #1",
        "strex r1, r3, [r2]",
        "cmp r1, #0",
        "bne 0x80103c",
        "cmp r3, #1",
        "bhs 0x801064",
        "ldr r3, [r2, #0x4]",
        "add r3, r3, #1",
        "str r3, [r2, #0x4]",
        "mov r0, #1",
        "b 0x400004",
        "sub sp, sp, #256",
        "stm sp, {r12, lr}",
        "movw r12, #0x5",
        "bl 0x800000",
        "ldm sp, {r12, lr}",
        "add sp, sp, #256",
        "b 0x801064",
    ];
    check(&detour, &expected);
    // Only that needs the stack.
    let saves: Vec<_> =
        places(&plan, &detour).into_iter().filter(|pair| pair.original & CopyPair::SAVES != 0).collect();
    assert_eq!(saves, [CopyPair { original: 256 | CopyPair::SAVES, copy: 27 * 4 + 4 }]);
}

#[test]
fn a_count_saves_what_is_live() {
    for isa in ISAS {
        let plan = planned(isa, live(isa), 0, false);
        assert_eq!(plan.technique, Technique::Jump);
        let looks = Env { context: Context(u64::MAX), ..env() };
        // A later handler looks at all registers and flags.
        for (handlers, env) in [(vec![nothing(5), agent(1)], &looks), (vec![nothing(5)], &env())] {
            let detour = built(&plan, &handlers, env);
            let text = disassembled(isa, &detour.bytes, DETOUR);
            if text.is_empty() {
                return;
            }
            let list = text[0].strip_prefix("push").map(|rest| rest.trim_start_matches(".w").trim().to_owned());
            assert!(
                handlers.len() == 1
                    || list.as_deref() == Some("{r0, r2, r3, r12}")
                    || list.as_deref() == Some("{r1, r2, r3, r12}"),
                "{text:#?}"
            );
            let saved = usize::from(list.is_some());
            assert!(text[saved].starts_with("mrs") == (handlers.len() == 2 || !plan.dead_flags), "{text:#?}");
            let last = text.iter().position(|line| line.starts_with("str")).expect("a count");
            assert!(saved == 0 || text[last..].iter().any(|line| line.starts_with("pop")), "{text:#?}");
        }
    }
}

#[test]
fn lengths_do_not_depend_on_addresses() {
    let env = env();
    for isa in ISAS {
        let plan = planned(isa, live(isa), 0, false);
        let near = Handler::Replace { count: program(5), function: Va(0x41_0000) };
        let far = Handler::Replace { count: program(5), function: Va(0x7fff_1234) };
        let handlers = [vec![nothing(5)], vec![agent(5)], vec![near], vec![far]];
        for handlers in &handlers {
            let build = |at: u64, thunks: u64| {
                build(&plan, handlers, Va(at), 0, &shared(Va(thunks), &env), &env).expect("a detour").bytes.len()
            };
            let len = build(0x80_1000, 0x80_0000);
            assert_eq!(len, build(0x7f_1000, 0x7f_0000));
            assert_eq!(len, build(0x10_0108, 0x60_0000));
        }
        let [near, far] = [&handlers[2], &handlers[3]].map(|handlers| built(&plan, handlers, &env).bytes.len());
        assert_eq!(near, far, "near and far functions");
        let low = Env { buckets: Va(0x1000), private: Va(0), agent_hit: Va(0), descs: Va(0), ..env.clone() };
        assert_eq!(thunks(SLAB, &env, SLAB, &[], &[], None).0.len(), thunks(SLAB, &low, SLAB, &[], &[], None).0.len());
        assert_eq!(globals(SLAB, &env).0.len(), globals(SLAB, &low).0.len());
        assert_eq!(built(&plan, &handlers[0], &env).bytes.len(), built(&plan, &handlers[0], &low).bytes.len());
    }
}

#[test]
fn what_is_too_far_away_is_refused() {
    let env = env();
    for (isa, reach) in [(Isa::A32, 1 << 25), (Isa::T32, 1 << 24)] {
        let plan = planned(isa, live(isa), 0, false);
        let build =
            |at: u64, thunks: u64| build(&plan, &[agent(5)], Va(at), 0, &shared(Va(thunks), &env), &env).map(|_| ());
        let far = BASE.0 + reach + 0x100;
        assert!(matches!(build(far, far), Err(DetourError::OutOfReach(_))), "the jump at the site");
        assert!(matches!(build(far - 0x200, far), Ok(())));
        assert!(matches!(build(DETOUR.0, DETOUR.0 + 2 * reach), Err(DetourError::OutOfReach(_))), "the thunk");
        // A trap may have its detour there, but it has to come back.
        let trap = planned(isa, live(isa), 0, true);
        let far = sidestep_plan::detour::build(&trap, &[], Va(BASE.0 + 2 * reach), 0, &shared(SLAB, &env), &env);
        assert!(matches!(far, Err(DetourError::OutOfReach(error)) if error.to == BASE.plus(Len(4))));
        let unknown = Handler::Program(sidestep_plan::handler::Program { thunk: 3, ..program(5) });
        let error = sidestep_plan::detour::build(&plan, &[unknown], DETOUR, 0, &shared(SLAB, &env), &env).unwrap_err();
        assert_eq!(error, DetourError::NoThunk { program: 3 });
    }
}

#[test]
fn a_trap_that_only_counts_has_a_record() {
    for (isa, breakpoint) in [(Isa::A32, &BREAKPOINT[..]), (Isa::T32, &BREAKPOINT_T32)] {
        let plan = planned(isa, live(isa), 0, true);
        let detour = built(&plan, &[nothing(4), nothing(5)], &env());
        assert!(detour.recorded && detour.patch == breakpoint && detour.traps == [(0, 0)]);
        let op = plan.emulated.expect("an operation").0;
        assert_eq!(detour.bytes[..24], TrapRecord { op, newest: 6, pad: 0 }.to_bytes());
        assert_eq!(detour.trap_entries().next().expect("an entry").detour, DETOUR.0 | TrapEntry::RECORD);
        assert_eq!(detour.copies, [(0, 24), (4, 28)]);
        let detour = built(&plan, &[nothing(4), agent(5)], &env());
        assert!(!detour.recorded && detour.trap_entries().count() == 1);
    }
}

#[test]
fn several_instructions_of_t32_are_displaced_together() {
    // adds r0, #1; adds r1, #2; bx lr
    let plan = planned(Isa::T32, &[0x3001, 0x3102, 0x4770], 0, false);
    assert_eq!(plan.technique, Technique::JumpOverSeveral);
    let detour = built(&plan, &[agent(1)], &env());
    let call = ["subw sp, sp, #0x100", "stm.w sp, {r12, lr}", "movw r12, #0x1", "blx 0x800000", "ldm.w sp, {r12, lr}"];
    let ends = ["addw sp, sp, #0x100", "adds r0, #0x1", "adds r1, #0x2", "b.w 0x400004"];
    check(&detour, &[&call[..], &ends].concat());
    assert_eq!((detour.copies.clone(), detour.patch.len()), (vec![(0, 24), (2, 26), (4, 28)], 4));
    let saves = places(&plan, &detour).into_iter().find(|pair| pair.original & CopyPair::SAVES != 0);
    assert_eq!(saves, Some(CopyPair { original: 256 | CopyPair::SAVES, copy: 4 }));
    // Where others may come inside, there is a gate behind the first copy.
    let mut gated = plan;
    gated.add_gate();
    let detour = built(&gated, &[agent(1)], &env());
    let word = usize::from(detour.gate.expect("a gate"));
    assert_eq!(detour.bytes[word..word + 8], (DETOUR.0 + word as u64 + 8).to_le_bytes(), "open");
    assert!(word % 8 == 0 && places(&gated, &detour).iter().any(|pair| pair.original == 2 | CopyPair::GATE));
}

#[test]
fn guards_come_right_before_the_call() {
    // mov r7, #1; svc #0; bx lr
    for (isa, code) in [(Isa::A32, &[0xe3a0_7001, 0xef00_0000, 0xe12f_ff1e][..]), (Isa::T32, &[0x2701, 0xdf00, 0x4770])]
    {
        let plan = planned(isa, code, if isa == Isa::T32 { 2 } else { 4 }, isa == Isa::T32);
        let detour = built(&plan, &[agent(1), Handler::Guard { probe: 3, before: 0 }], &env());
        // Behind the first handler: its call has 6 instructions.
        assert_eq!((detour.guards.clone(), detour.copies[0]), (vec![(0, 24)], (0, 48)));
        assert!(!detour.leads && places(&plan, &detour).iter().all(|pair| pair.original & CopyPair::SAVES == 0));
    }
}

#[test]
fn a_branch_is_an_exit_only_if_it_is_taken() {
    // cmp r0, #4; bhi 0x401000 (another function); bx lr
    let text = bytes(Isa::A32, &[0xe350_0004, 0x8a00_03fd, 0xe12f_ff1e]);
    let other = bytes(Isa::A32, &[0xe12f_ff1e]);
    let mut object = object(Isa::A32, &text);
    object.text.push(Bytes { name: ".other", va: Va(0x40_1000), data: &other });
    object.extents.push(Extent { start: Va(0x40_1000), len: Len(4) });
    object.labels.push(Va(0x40_1000));
    let index = Index::new(object);
    let found = sidestep_plan::exits(&index, BASE).unwrap_or_else(|why| panic!("{why}"));
    let branch = found.all.iter().find(|exit| exit.va == BASE.plus(Len(4))).expect("the branch");
    let plan = plan_exit(&index, *branch, false, None).expect("a plan");
    let detour = built(&plan, &[Handler::Exit { before: 0, run: AtExit::Agent { probe: 2 } }], &env());
    let text = disassembled(Isa::A32, &detour.bytes, DETOUR);
    assert!(text.is_empty() || text[0] == "bls 0x80101c" && text[1] == "sub sp, sp, #256", "{text:#?}");
}

#[test]
fn a_return_takes_its_address_off_the_stack_in_front_of_the_handlers() {
    for (isa, code, load) in [
        (Isa::A32, &[0xe92d_4010, 0xe1a0_4000, 0xe8bd_8010][..], "pop {r4, lr}"),
        (Isa::T32, &[0xb510, 0x4604, 0xbd10], "pop.w {r4, lr}"),
    ] {
        let text = bytes(isa, code);
        let index = Index::new(object(isa, &text));
        let found = sidestep_plan::exits(&index, BASE).unwrap_or_else(|why| panic!("{why}"));
        let [exit] = found.all[..] else { panic!("{:?}", found.all) };
        let plan = plan_exit(&index, exit, false, None).expect("a plan");
        let before = plan.displaced.iter().take_while(|insn| insn.va != exit.va).count();
        let run = AtExit::Agent { probe: 2 };
        // Two handlers need one load.
        let exits = [Handler::Exit { before, run: run.clone() }, Handler::Exit { before, run }];
        let detour = built(&plan, &exits, &env());
        let text = disassembled(isa, &detour.bytes, DETOUR);
        let loads = text.iter().filter(|line| *line == load).count();
        let ends = text.iter().filter(|line| *line == "bx lr").count();
        assert!(text.is_empty() || (loads, ends) == (1, 1), "{text:#?}");
        assert!(text.is_empty() || text.iter().all(|line| !line.contains("pc}")), "{text:#?}");
        assert_eq!(detour.copies.len(), plan.displaced.len());
    }
}

#[test]
fn the_lead_is_undone_for_who_sees_the_stack() {
    // push {r4, lr}; mov r4, r0; pop {r4, pc}
    let text = bytes(Isa::A32, &[0xe92d_4010, 0xe1a0_4000, 0xe8bd_8010]);
    let index = Index::new(object(Isa::A32, &text));
    let plan = plan_at(&index, BASE, false, Placement::Forced(Needs::default())).expect("a plan");
    assert_eq!((plan.site, plan.hit_at()), (BASE.plus(Len(4)), BASE));
    let detour = built(&plan, &[agent(1)], &env());
    let text = disassembled(Isa::A32, &detour.bytes, DETOUR);
    assert!(text.is_empty() || text[0] == "add sp, sp, #8" && text[7] == "push {r4, lr}", "{text:#?}");
    assert!(!detour.leads);
}

#[test]
fn process_wide_code_has_its_places() {
    let (code, globals) = globals(SLAB, &env());
    assert_eq!(code[..8], env().private.0.to_le_bytes());
    let at = |va: Va| &code[va.since(SLAB) as usize..];
    assert_eq!((globals.trampoline, &at(globals.trampoline)[..8]), (SLAB.plus(Len(16)), &TRAMPOLINE_MARK[..]));
    // The mark is a jump over itself.
    let mark = decode(Isa::A32, &TRAMPOLINE_MARK, SLAB).expect("an instruction");
    assert_eq!(mark.flow(), Flow::Jump(SLAB.plus(Len(8))));
    let restorer = disassembled(Isa::A32, &at(globals.restorer)[..8], globals.restorer);
    assert!(restorer.is_empty() || restorer == ["movw r7, #0xad", "svc #0x0"], "{restorer:?}");
    for place in [Place::Entry, Place::Bare, Place::Inside, Place::Exit] {
        assert_eq!(shared(SLAB, &env()).agent.at(place), SLAB);
    }
}
