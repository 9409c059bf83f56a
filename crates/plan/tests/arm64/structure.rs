//! What detours consist of, as LLVM's disassembler reads it; and what does not depend on addresses.

use std::process::Command;

use sidestep_isa::{Isa, Len, Va, decode, sweep};
use sidestep_plan::detour::{Detour, DetourError, build};
use sidestep_plan::faults::places;
use sidestep_plan::handler::{AtExit, Handler};
use sidestep_plan::object::{Bytes, Extent, ObjectCode};
use sidestep_plan::thunk::{self, Context, Env, Place, Thunks, globals, thunks};
use sidestep_plan::{Index, Placement, Plan, Reason, plan, plan_at, plan_exit};
use sidestep_wire::arch::a64::{BREAKPOINT, TRAMPOLINE_MARK};
use sidestep_wire::{CopyPair, TrapEntry, TrapRecord};

use super::handlers::nothing;
use super::machine::{Scratch, has_tools};

const BASE: Va = Va(0x40_0000);
const SLAB: Va = Va(0x80_0000);
const DETOUR: Va = Va(0x80_1000);

fn env() -> Env {
    Env {
        isa: Isa::A64,
        private: Va(0x7f12_3456_7000),
        buckets: Va(0x7f00_1234_5040),
        descs: Va(0x7f12_3456_8000),
        agent_slot: Va(0x7fff_0000_1000),
        agent_hit: Va(0x7fff_0000_2000),
        agent_signal: Va(0x7fff_0000_3000),
        hash_multiplier: 0x1e37_79b1,
        hash_shift: 32,
        bucket_count: 8192,
        ..Env::default()
    }
}

fn shared(at: Va, env: &Env) -> Thunks {
    let program = thunk::Program {
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

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn code(text: &[u8]) -> ObjectCode<'_> {
    ObjectCode {
        text: vec![Bytes { name: ".text", va: BASE, data: text }],
        extents: vec![Extent { start: BASE, len: Len(text.len() as u64) }],
        labels: vec![BASE],
        ..ObjectCode::new(Isa::A64)
    }
}

/// The plan of the instruction with this number.
fn planned(words: &[u32], number: u64, trap: bool) -> Plan {
    let text = bytes(words);
    let index = Index::new(code(&text));
    plan_at(&index, BASE.plus(Len(4 * number)), trap, Placement::First).expect("a plan")
}

fn built(plan: &Plan, handlers: &[Handler], env: &Env) -> Detour {
    build(plan, handlers, DETOUR, 0, &shared(SLAB, env), env).expect("a detour")
}

/// The text of code, as LLVM reads it; empty: LLVM is missing.
fn disassembled(code: &[u8], at: Va) -> Vec<String> {
    if !has_tools(&["llvm-objcopy-19", "llvm-objdump-19"]) {
        return Vec::new();
    }
    let dir = Scratch::new();
    let (raw, object) = (dir.0.join("raw"), dir.0.join("o"));
    std::fs::write(&raw, code).expect("a file");
    let copied = Command::new("llvm-objcopy-19")
        .args(["-I", "binary", "-O", "elf64-littleaarch64", "--rename-section", ".data=.text,alloc,readonly,code"])
        .args([&raw, &object])
        .status();
    assert!(copied.expect("llvm-objcopy").success());
    let output = Command::new("llvm-objdump-19")
        .args(["-d", "--no-show-raw-insn", "--no-leading-addr", "--mattr=+all", "-z"])
        .arg(format!("--adjust-vma={:#x}", at.0))
        .arg(&object)
        .output()
        .expect("llvm-objdump");
    let listing = String::from_utf8(output.stdout).expect("text");
    let lines = listing.lines().filter_map(|line| line.strip_prefix(['\t', ' ']));
    // Without symbols and comments.
    let text = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    text.map(|line| line.split(['<', '/']).next().unwrap_or_default().trim().to_owned()).collect()
}

/// Compares with LLVM's text, if LLVM is there.
fn check(detour: &Detour, expected: &[&str]) {
    let text = disassembled(&detour.bytes, detour.at);
    assert!(text.is_empty() || text == expected, "{text:#?}");
}

/// mov x16, #1; mov x17, #2; mov x9, #3; add x0, x16, x17; ret
const DEAD: [u32; 5] = [0xd280_0030, 0xd280_0051, 0xd280_0069, 0x8b11_0200, 0xd65f_03c0];
/// add x0, x0, #1; ret
const LIVE: [u32; 2] = [0x9100_0400, 0xd65f_03c0];
/// What finds the cell of probe 5 by x16, x17 and another register.
fn finds(third: &str, slow: &str) -> Vec<String> {
    let text = "mrs x16, TPIDR_EL0\nmov x17, #0x79b1\nmovk x17, #0x1e37, lsl #16\nmul x17, x16, x17\nubfx x17, x17, #32, #13\n\
                mov T, #0x5040\nmovk T, #0x1234, lsl #16\nmovk T, #0x7f00, lsl #32\nadd x17, T, x17, lsl #5\n\
                ldr T, [x17]\nsub T, T, x16\ncbnz T, SLOW\nldr x17, [x17, #0x8]\ncbz x17, SLOW\nadd x17, x17, #0x28";
    text.lines()
        .map(|line| line.trim().replace('T', third).replace("SLOW", slow).replace(&format!("{third}PIDR"), "TPIDR"))
        .collect()
}

#[test]
fn a_count_saves_nothing_where_three_registers_are_dead() {
    let plan = planned(&DEAD, 0, false);
    assert_eq!(plan.dead_regs & 0x3_0200, 0x3_0200);
    let detour = built(&plan, &[nothing(5)], &env());
    let mut expected = finds("x9", "0x801054");
    let rest = "ldxr x16, [x17]\nadd x16, x16, #0x1\nstxr w9, x16, [x17]\ncbnz x9, 0x80103c\nmov x16, #0x1\nb 0x400004\n\
                stp x16, x30, [sp, #-0x200]!\nmov x16, #0x5\nbl 0x800000\nldp x16, x30, [sp]\nadd sp, sp, #0x200\nb 0x80104c";
    expected.extend(rest.lines().map(|line| line.trim().to_owned()));
    check(&detour, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    // Only the way to the thunk needs the stack.
    let saves: Vec<_> =
        places(&plan, &detour).into_iter().filter(|pair| pair.original & CopyPair::SAVES != 0).collect();
    assert_eq!(saves, [CopyPair { original: CopyPair::SAVES, copy: 0x54 }]);
}

#[test]
fn a_count_saves_what_is_live_and_changes_no_flags() {
    let plan = planned(&LIVE, 0, false);
    let detour = built(&plan, &[nothing(5)], &env());
    let mut expected = vec!["stp x16, x17, [sp, #-0xa0]!".to_owned(), "str x15, [sp, #0x10]".to_owned()];
    expected.extend(finds("x15", "0x801064"));
    let rest = "ldxr x16, [x17]\nadd x16, x16, #0x1\nstxr w15, x16, [x17]\ncbnz x15, 0x801044\nldr x15, [sp, #0x10]\n\
                ldp x16, x17, [sp], #0xa0\nadd x0, x0, #0x1\nb 0x400004\nldr x15, [sp, #0x10]\nldp x16, x17, [sp], #0xa0\n\
                stp x16, x30, [sp, #-0x200]!\nmov x16, #0x5\nbl 0x800000\nldp x16, x30, [sp]\nadd sp, sp, #0x200\nb 0x80105c";
    expected.extend(rest.lines().map(|line| line.trim().to_owned()));
    check(&detour, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    let saves = [(0, 0), (0, 0x6c)].map(|(depth, copy)| CopyPair { original: depth | CopyPair::SAVES, copy });
    let found: Vec<_> =
        places(&plan, &detour).into_iter().filter(|pair| pair.original & CopyPair::SAVES != 0).collect();
    assert_eq!(found, saves);
    assert_eq!(detour.copies, [(0, 0x5c), (4, 0x60)]);
    // A later handler looks at the registers that are dead for the function.
    let plan = planned(&DEAD, 0, false);
    let looks = Env { context: Context(u64::MAX), ..env() };
    let detour = built(&plan, &[nothing(5), Handler::Agent { probe: 1 }], &looks);
    assert_eq!(disassembled(&detour.bytes[..4], DETOUR), ["stp x16, x17, [sp, #-0xa0]!"]);
}

#[test]
fn flags_are_not_touched_by_counts() {
    for words in [&DEAD[..], &LIVE] {
        let detour = built(&planned(words, 0, false), &[nothing(7)], &env());
        for insn in sweep(Isa::A64, &detour.bytes, DETOUR) {
            let insn = insn.expect("an instruction");
            assert_eq!(insn.usage().flags_killed, 0, "{insn}");
        }
    }
}

#[test]
fn lengths_do_not_depend_on_addresses() {
    let env = env();
    let plan = planned(&LIVE, 0, false);
    let Handler::Program(count) = nothing(5) else { panic!("a program") };
    let near = Handler::Replace { count: count.clone(), function: Va(0x41_0000) };
    let far = Handler::Replace { count, function: Va(0x7fff_1234_5678) };
    let handlers = [vec![nothing(5)], vec![Handler::Agent { probe: 5 }], vec![near], vec![far]];
    for handlers in &handlers {
        let build = |at: u64, thunks: u64| {
            build(&plan, handlers, Va(at), 0, &shared(Va(thunks), &env), &env).expect("a detour").bytes.len()
        };
        let len = build(0x80_1000, 0x80_0000);
        assert_eq!(len, build(0x7ff_1000, 0x7ff_0000));
        assert_eq!(len, build(0x10_0100, 0x600_0000));
    }
    assert_eq!(
        built(&plan, &handlers[2], &env).bytes.len(),
        built(&plan, &handlers[3], &env).bytes.len(),
        "near and far functions"
    );
    let low =
        Env { buckets: Va(0x1000), private: Va(0), agent_hit: Va(0), agent_slot: Va(0), descs: Va(0), ..env.clone() };
    assert_eq!(thunks(SLAB, &env, SLAB, &[], &[], None).0.len(), thunks(SLAB, &low, SLAB, &[], &[], None).0.len());
    assert_eq!(globals(SLAB, &env).0.len(), globals(SLAB, &low).0.len());
    assert_eq!(built(&plan, &handlers[0], &env).bytes.len(), built(&plan, &handlers[0], &low).bytes.len());
}

#[test]
fn what_is_too_far_away_is_refused() {
    let env = env();
    let plan = planned(&LIVE, 0, false);
    let build = |at: u64, thunks: u64| {
        build(&plan, &[Handler::Agent { probe: 5 }], Va(at), 0, &shared(Va(thunks), &env), &env).map(|_| ())
    };
    let reach = 1 << 27;
    assert!(matches!(build(BASE.0 + reach, BASE.0 + reach), Err(DetourError::OutOfReach(_))), "the jump at the site");
    assert!(matches!(build(BASE.0 + reach - 0x100, BASE.0 + reach), Ok(())));
    assert!(matches!(build(DETOUR.0, DETOUR.0 + 2 * reach), Err(DetourError::OutOfReach(_))), "the thunk");
    // A trap may have its detour there, but it has to come back.
    let trap = planned(&LIVE, 0, true);
    let far = sidestep_plan::detour::build(&trap, &[], Va(BASE.0 + 2 * reach), 0, &shared(SLAB, &env), &env);
    assert!(matches!(far, Err(DetourError::OutOfReach(error)) if error.to == BASE.plus(Len(4))));
    let unknown = match nothing(5) {
        Handler::Program(program) => Handler::Program(sidestep_plan::handler::Program { thunk: 3, ..program }),
        other => other,
    };
    let error = sidestep_plan::detour::build(&plan, &[unknown], DETOUR, 0, &shared(SLAB, &env), &env).unwrap_err();
    assert_eq!(error, DetourError::NoThunk { program: 3 });
}

#[test]
fn a_trap_that_only_counts_has_a_record() {
    let plan = planned(&LIVE, 0, true);
    let detour = built(&plan, &[nothing(4), nothing(5)], &env());
    assert!(detour.recorded && detour.patch == BREAKPOINT && detour.traps == [(0, 0)]);
    let op = plan.emulated.expect("an operation").0;
    assert_eq!(detour.bytes[..24], TrapRecord { op, newest: 6, pad: 0 }.to_bytes());
    assert_eq!(detour.trap_entries().next().expect("an entry").detour, DETOUR.0 | TrapEntry::RECORD);
    assert_eq!(detour.copies, [(0, 24), (4, 28)]);
    assert_eq!(disassembled(&detour.bytes[24..], DETOUR.plus(Len(24))), ["add x0, x0, #0x1", "b 0x400004"]);
    assert_eq!(places(&plan, &detour).len(), 1, "there are no handlers");
    let detour = built(&plan, &[nothing(4), Handler::Agent { probe: 5 }], &env());
    assert!(!detour.recorded && detour.trap_entries().count() == 1);
}

#[test]
fn guards_come_right_before_the_call() {
    // mov x8, #64; svc #0; ret
    let words = [0xd280_0808, 0xd400_0001, 0xd65f_03c0];
    let plan = planned(&words, 1, false);
    let guard = Handler::Guard { probe: 3, before: 0 };
    let detour = built(&plan, &[Handler::Agent { probe: 1 }, guard], &env());
    // Behind the first handler: its call has 5 words.
    assert_eq!((detour.guards.clone(), detour.copies[0]), (vec![(0, 20)], (0, 40)));
    let call =
        ["stp x16, x30, [sp, #-0x200]!", "mov x16, #N", "bl 0x800000", "ldp x16, x30, [sp]", "add sp, sp, #0x200"];
    let numbered = |number: &str| call.map(|line| line.replace('N', number));
    let rest = ["svc #0".to_owned(), "b 0x400008".to_owned()];
    let expected = [&numbered("0x1")[..], &numbered("0x3"), &rest].concat();
    check(&detour, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(!detour.leads && places(&plan, &detour).iter().all(|pair| pair.original & CopyPair::SAVES == 0));
}

#[test]
fn a_branch_is_an_exit_only_if_it_is_taken() {
    // cmp x0, #4; b.hi 0x401000 (another function); ret
    let text = bytes(&[0xf100_101f, 0x5400_7fe8, 0xd65f_03c0]);
    let other = bytes(&[0xd65f_03c0]);
    let mut object = code(&text);
    object.text.push(Bytes { name: ".other", va: Va(0x40_1000), data: &other });
    object.extents.push(Extent { start: Va(0x40_1000), len: Len(4) });
    object.labels.push(Va(0x40_1000));
    let index = Index::new(object);
    let found = sidestep_plan::exits(&index, BASE).unwrap_or_else(|why| panic!("{why}"));
    let branch = found.all.iter().find(|exit| exit.va == BASE.plus(Len(4))).expect("the branch");
    let plan = plan_exit(&index, *branch, false, None).expect("a plan");
    let detour = built(&plan, &[Handler::Exit { before: 0, run: AtExit::Agent { probe: 2 } }], &env());
    let call =
        ["stp x16, x30, [sp, #-0x200]!", "mov x16, #0x2", "bl 0x800000", "ldp x16, x30, [sp]", "add sp, sp, #0x200"];
    let ends = ["b.ls 0x801024", "b 0x401000", "b 0x400008"];
    check(&detour, &[&["b.hi 0x801008", "b 0x80101c"][..], &call, &ends].concat());
}

#[test]
fn the_lead_is_undone_for_who_sees_the_stack() {
    // stp x29, x30, [sp, #-32]!; mov x29, sp; ldp x29, x30, [sp], #32; ret
    let text = bytes(&[0xa9be_7bfd, 0x9100_03fd, 0xa8c2_7bfd, 0xd65f_03c0]);
    let index = Index::new(code(&text));
    let plan = plan_at(&index, BASE, false, Placement::Forced(sidestep_plan::Needs::default())).expect("a plan");
    assert_eq!((plan.site, plan.hit_at()), (BASE.plus(Len(4)), BASE));
    let detour = built(&plan, &[Handler::Agent { probe: 1 }], &env());
    let call =
        ["stp x16, x30, [sp, #-0x200]!", "mov x16, #0x1", "bl 0x800000", "ldp x16, x30, [sp]", "add sp, sp, #0x200"];
    let ends = ["stp x29, x30, [sp, #-0x20]!", "mov x29, sp", "b 0x400008"];
    check(&detour, &[&["add sp, sp, #0x20"][..], &call, &ends].concat());
    assert!(!detour.leads);
    let counted = built(&plan, &[nothing(1)], &env());
    assert!(counted.leads && disassembled(&counted.bytes[..4], DETOUR) != ["add sp, sp, #0x20"]);
}

#[test]
fn a_jump_of_one_instruction_needs_no_gate() {
    let mut plan = planned(&LIVE, 0, false);
    plan.add_gate();
    let detour = built(&plan, &[nothing(5)], &env());
    assert_eq!((detour.gate, detour.relies_on.len(), &detour.stub, &detour.island), (None, 0, &None, &None));
    assert!(places(&plan, &detour).iter().all(|pair| pair.original & CopyPair::GATE != CopyPair::GATE));
}

#[test]
fn indirect_calls_push_nothing() {
    // blr x1; ret
    let plan = planned(&[0xd63f_0020, 0xd65f_03c0], 0, false);
    let detour = built(&plan, &[nothing(5)], &env());
    assert!(places(&plan, &detour).iter().all(|pair| pair.original & CopyPair::PUSHED == 0));
}

#[test]
fn process_wide_code_has_its_places() {
    let (code, globals) = globals(SLAB, &env());
    assert_eq!(code[..8], env().private.0.to_le_bytes());
    let at = |va: Va| &code[va.since(SLAB) as usize..];
    assert_eq!((globals.trampoline, &at(globals.trampoline)[..8]), (SLAB.plus(Len(16)), &TRAMPOLINE_MARK[..]));
    // The mark is a jump over itself.
    let mark = decode(Isa::A64, &TRAMPOLINE_MARK, SLAB).expect("an instruction");
    assert_eq!(mark.flow(), sidestep_isa::Flow::Jump(SLAB.plus(Len(8))));
    let restorer = disassembled(&at(globals.restorer)[..8], globals.restorer);
    assert!(restorer.is_empty() || restorer == ["mov x8, #0x8b", "svc #0"], "{restorer:?}");
    for place in [Place::Entry, Place::Bare, Place::Inside, Place::Exit] {
        assert_eq!(shared(SLAB, &env()).agent.at(place), SLAB);
    }
}

#[test]
fn go_programs_are_refused() {
    let text = bytes(&LIVE);
    let refused = |go| {
        let index = Index::new(ObjectCode { go, ..code(&text) });
        plan(&index, BASE, true).map(|plan| plan.technique).map_err(|refusal| refusal.reason)
    };
    assert!(refused(false).is_ok() && refused(true) == Err(Reason::GoStacks));
}
