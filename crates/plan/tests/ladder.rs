//! What becomes of sites that no ordinary jump fits on, with all techniques.

mod elf;

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use elf::{Elf, compile, parse};
use sidestep_isa::{Flow, Isa, Va, decode, sweep};
use sidestep_plan::handler::{Handler, Program};
use sidestep_plan::room::STUB;
use sidestep_plan::thunk::{Context, Env, thunks};
use sidestep_plan::{Fixed, Index, Patch, Placement, Plan, Reason, Room, SiteKind, Technique, detour, plan, plan_in};
use sidestep_wire::{TrapEntry, TrapRecord};

/// Everything is free but the object, and what other sites need.
#[derive(Default)]
struct Space {
    image: Range<u64>,
    others: BTreeSet<Va>,
    claims: Vec<(Va, Range<Va>)>,
    full: bool,
}

impl Room for Space {
    fn is_free(&self, site: Va, range: Range<Va>) -> Result<(), Reason> {
        let meets =
            |(owner, claim): &&(Va, Range<Va>)| *owner != site && claim.start < range.end && range.start < claim.end;
        match self.others.range(range.clone()).find(|other| **other != site) {
            Some(other) => Err(Reason::OtherProbe { at: *other }),
            None => match self.claims.iter().find(meets) {
                Some((owner, claim)) => Err(Reason::Claimed { owner: *owner, at: claim.start }),
                None => Ok(()),
            },
        }
    }

    fn claim(&mut self, site: Va, range: Range<Va>) {
        self.claims.push((site, range));
    }

    fn stub(&mut self, end: Va, fixed: Fixed) -> Option<Va> {
        let free = |at: i64| !(self.image.start as i64 - STUB as i64..self.image.end as i64).contains(&at);
        let at = fixed.highs().find_map(|high| {
            let base = end.0 as i64 + (i64::from(high) << 16);
            let (first, last, step) = fixed.low(high)?;
            (i64::from(first)..=i64::from(last)).step_by(step.into()).map(|low| base + low).find(|at| free(*at))
        })?;
        (!self.full).then_some(Va(at as u64))
    }
}

const SHARED: [&str; 4] = ["-shared", "-nostdlib", "-fPIC", "-Wl,-z,noexecstack"];

fn function(name: &str, body: &str) -> String {
    format!(".globl {name}\n.type {name},@function\n{name}:\n{body}\n.size {name},.-{name}\n")
}

fn image(elf: &Elf<'_>) -> Range<u64> {
    let end = |b: &sidestep_plan::object::Bytes<'_>| b.va.0 + b.data.len() as u64;
    0..elf.code.text.iter().chain(&elf.code.data).map(end).max().unwrap_or(0)
}

/// The plan for the function `f` of assembly; `space` says what is free.
fn planned(source: &str, space: impl FnOnce(&Elf<'_>, &mut Space)) -> Plan {
    let data = compile("ladder.s", source, &SHARED);
    let elf = parse(&data);
    let index = Index::new(elf.code.clone());
    let mut room = Space { image: image(&elf), ..Space::default() };
    space(&elf, &mut room);
    let plan = plan_in(&index, elf.symbol("f"), &mut room, Placement::First).expect("a plan");
    fits(&index, &plan);
    plan
}

fn f(body: &str) -> Plan {
    planned(&(function("f", body) + &function("next", "mov $1,%eax\nret")), |_, _| {})
}

/// Whether the bytes, once they are written, lead where the plan says, and nobody is led astray.
fn fits(index: &Index<'_>, plan: &Plan) {
    let env = Env { hash_shift: 32, bucket_count: 1, ..Env::default() };
    // Run-time addresses: the object is loaded where there is room on both sides.
    let bias = 0x7000_0000_0000;
    let slab = Va(0x7000_4000_0000);
    let thunks = thunks(slab, &env, Va(0x9000), &[], &[], None).1;
    let at = slab.offset(0x1000);
    let built = detour::build(plan, &[Handler::Agent { probe: 0 }], at, bias, &thunks, &env).expect("a detour");
    let site = plan.site.offset(bias);
    let before = index.code().text_from(plan.site).expect("text");
    let mut after = before.to_vec();
    after[..built.patch.len()].copy_from_slice(&built.patch);
    assert!(after[built.patch.len()..].starts_with(&built.relies_on), "{plan:?}");
    assert!(built.patch.len() as u64 <= plan.region.0);
    let goes = |bytes: &[u8], at: Va| decode(Isa::X64, bytes, at).map(|insn| insn.flow());
    match plan.patch {
        Patch::Trap => assert_eq!((after[0], &built.traps[..]), (0xcc, &[(0, 0)][..])),
        Patch::Jump { stub: None, .. } => assert_eq!(goes(&after, site), Ok(Flow::Jump(at))),
        Patch::Jump { stub: Some(stub), .. } => {
            let stub = stub.offset(bias);
            assert_eq!(goes(&after, site), Ok(Flow::Jump(stub)));
            let (there, code) = built.stub.as_ref().expect("a stub");
            assert!(*there == stub && code.len() as u64 <= STUB);
            let direct = goes(code, stub) == Ok(Flow::Jump(at));
            assert!(direct || code[6..] == at.0.to_le_bytes(), "{code:x?}");
        }
        Patch::Short { island } => {
            assert_eq!(goes(&after, site), Ok(Flow::Jump(island.offset(bias))));
            let (there, code) = built.island.as_ref().expect("an island");
            assert_eq!(goes(code, *there), Ok(Flow::Jump(at)));
        }
    }
    // Where an instruction began and the jump is now, there is a trap, or nobody comes.
    for insn in plan.displaced.iter().skip(1) {
        let offset = insn.va.since(plan.site) as usize;
        if plan.technique == Technique::GuardedJump && offset < built.patch.len() {
            assert_eq!(after[offset], 0xcc);
            let copy = built.copies.iter().find(|(from, _)| usize::from(*from) == offset);
            assert!(built.traps.contains(copy.expect("a copy")));
        }
    }
}

#[test]
fn a_loop_into_the_jump_leaves_a_pun() {
    for (first, len) in [("push %rdi", 1), ("xor %eax,%eax", 2), ("lea (%rdi),%rax", 3), ("lea 8(%rdi),%rax", 4)] {
        let plan = f(&format!("{first}\n1: add %rdi,%rax\ndec %rdi\njnz 1b\nret"));
        assert_eq!((plan.technique, plan.region.0, plan.displaced.len()), (Technique::Pun, len, 1), "{first}");
        assert!(plan.relies_on().0 >= 5);
        assert_eq!(plan.resume, Some(Va(plan.site.0 + len)));
    }
}

#[test]
fn prefixes_move_the_displacement() {
    // The bytes behind the first instruction say where its jump goes: into the object itself. One
    // prefix later they say something else.
    let plan = f("xor %eax,%eax\n1: .byte 0x05,0x00,0x00,0x40,0x12\ndec %rdi\njnz 1b\nret");
    assert_eq!((plan.technique, plan.patch), (Technique::Pun, Patch::Jump { prefixes: 1, stub: plan_stub(&plan) }));
}

fn plan_stub(plan: &Plan) -> Option<Va> {
    match plan.patch {
        Patch::Jump { stub, .. } => stub,
        _ => None,
    }
}

#[test]
fn where_knowledge_ends_the_guarded_jump_takes_over() {
    let plan = f("push %rbp\nmov %rsp,%rbp\npush %rbx\nlea 1f(%rip),%rax\nadd %rdi,%rax\njmp *%rax\n1: ret");
    assert_eq!((plan.technique, plan.displaced.len()), (Technique::GuardedJump, 3));
    assert!(plan.has_traps());
    // A call comes back to the trap behind it.
    let plan = f("push %rbx\ncall *%rsi\ninc %eax\npop %rbx\nret");
    assert_eq!(plan.technique, Technique::GuardedJump);
    // Go stops threads between any two instructions.
    let data = compile(
        "go.s",
        &function("f", "push %rbp\nmov %rsp,%rbp\npush %rbx\nlea 1f(%rip),%rax\nadd %rdi,%rax\njmp *%rax\n1: ret"),
        &SHARED,
    );
    let elf = parse(&data);
    let mut code = elf.code.clone();
    code.go = true;
    let index = Index::new(code);
    let mut room = Space { image: image(&elf), ..Space::default() };
    assert_eq!(plan_in(&index, elf.symbol("f"), &mut room, Placement::First).map(|p| p.technique), Ok(Technique::Pun));
}

/// There the check would have been behind the handler, and a call that makes its stack grow would
/// have been two hits.
#[test]
fn a_stack_check_of_go_that_is_jumped_into_stays_in_front_of_the_handler() {
    let body = "cmp 0x10(%r14),%rsp\n.Lmiddle: jbe 1f\nsub $8,%rsp\nadd $8,%rsp\nret\n1: call next\njmp f1";
    let jumps_in = function("g", "test %eax,%eax\nje .Lmiddle\nret");
    let source = function("f", &format!("f1:\n{body}")) + &function("next", "ret");
    for (source, technique) in [(source.clone(), Technique::JumpOverSeveral), (source + &jumps_in, Technique::Trap)] {
        let data = compile("check.s", &source, &SHARED);
        let elf = parse(&data);
        let mut code = elf.code.clone();
        code.go = true;
        let index = Index::new(code);
        let mut room = Space { image: image(&elf), ..Space::default() };
        let plan = plan_in(&index, elf.symbol("f"), &mut room, Placement::First).expect("a plan");
        assert_eq!((plan.technique, plan.before_handler, plan.displaced.len()), (technique, 2, 2));
    }
}

#[test]
fn without_address_space_padding_nearby_takes_a_short_jump() {
    let body = "xor %eax,%eax\n1: add %rdi,%rax\ndec %rdi\njnz 1b\nret\n";
    let padded = function("f", body) + ".p2align 4,0xcc\n.p2align 5,0xcc\n" + &function("next", "ret");
    let plan = planned(&padded, |_, room| room.full = true);
    let Patch::Short { island } = plan.patch else { panic!("{plan:?}") };
    assert_eq!((plan.technique, plan.relies_on().0), (Technique::ShortJump, 2));
    assert!(island.since(plan.site) > 0);
    // No padding, padding that execution runs into, and a first instruction of one byte.
    let close = function("f", body) + &function("next", "ret");
    let open = function("f", &body.replace("ret", "")) + ".p2align 4\n.p2align 5\n" + &function("next", "ret");
    let short = padded.replace("xor %eax,%eax", "push %rdi");
    for source in [close, open, short] {
        assert_eq!(planned(&source, |_, room| room.full = true).technique, Technique::Trap, "{source}");
    }
}

#[test]
fn no_plan_touches_another_site() {
    let body = "push %rbp\nmov %rsp,%rbp\nmov %rdi,%rbx\nret";
    let source = function("f", body) + &function("next", "ret");
    assert_eq!(planned(&source, |_, _| {}).technique, Technique::JumpOverSeveral);
    let near = planned(&source, |elf, room| room.others.extend([elf.symbol("f").offset(4)]));
    assert_eq!(near.technique, Technique::Trap);
    let reasons: Vec<_> =
        near.rejected.iter().map(|r| (r.technique, matches!(r.reason, Reason::OtherProbe { .. }))).collect();
    assert!(reasons.contains(&(Technique::JumpOverSeveral, true)), "{reasons:?}");
    let far = planned(&source, |elf, room| room.others.extend([elf.symbol("f").offset(7)]));
    assert_eq!(far.technique, Technique::JumpOverSeveral);
}

/// All instructions of a real program: each plan fits, and one without room is the same or a trap.
#[test]
fn every_instruction_of_bash() {
    let data = elf::installed("/bin/bash").expect("bash is installed");
    let elf = parse(&data);
    let index = Index::new(elf.code.clone());
    let mut room = Space { image: image(&elf), ..Space::default() };
    let mut seen = [0; 7];
    for extent in elf.code.extents.iter().step_by(7) {
        let text = index.code().text_at(extent.start, extent.start.plus(extent.len)).unwrap_or_default();
        for insn in sweep(Isa::X64, text, extent.start).map_while(Result::ok) {
            room.claims.clear();
            let Ok(all) = plan_in(&index, insn.va(), &mut room, Placement::First) else { continue };
            fits(&index, &all);
            let few = plan(&index, insn.va(), false).expect("a plan");
            assert!(few.technique == all.technique || few.technique == Technique::Trap);
            assert!(all.kind == SiteKind::Inside || all.kind == few.kind);
            seen[all.technique as usize] += 1;
        }
    }
    println!("{seen:?}");
    assert!(seen[Technique::Pun as usize] > 100 && seen[Technique::GuardedJump as usize] > 10, "{seen:?}");
    assert!(seen[Technique::Trap as usize] * 100 < seen.iter().sum::<usize>(), "{seen:?}");
}

/// A handler that does nothing but count.
fn counter(probe: u32) -> Handler {
    let (context, adds) = (Context::default(), Some(Rc::default()));
    let (cookie, func_ip, inline, filter) = (0, Va(0), None, None);
    Handler::Program(Program { probe, thunk: 0, adds, context, cookie, func_ip, inline, filter })
}

/// Where hits are only counted, the trap handler does that, and what it needs to know stands in
/// front of the copy.
#[test]
fn a_trap_that_only_counts_begins_with_a_record() {
    let env = Env { hash_shift: 32, bucket_count: 1, ..Env::default() };
    let thunks = thunks(Va(0x3000), &env, Va(0x9000), &[], &[], None).1;
    let built = |body: &str, handlers: &[Handler]| {
        let data = compile("trap.s", &function("f", body), &SHARED);
        let elf = parse(&data);
        let plan = plan(&Index::new(elf.code.clone()), elf.symbol("f"), true).expect("a plan");
        assert_eq!(plan.technique, Technique::Trap);
        let detour = detour::build(&plan, handlers, Va(0x2000), 0, &thunks, &env).expect("a detour");
        (plan.emulated, detour)
    };
    let (op, push) = built("push %rbx\npop %rbx\nret", &[counter(3), counter(5)]);
    let record = TrapRecord { op: op.expect("it is known").0, newest: 6, pad: 0 };
    assert_eq!((&push.bytes[..24], push.bytes[24]), (&record.to_bytes()[..], 0x53));
    assert_eq!(push.copies, [(0, 24), (1, 25)]);
    let entries: Vec<_> = push.trap_entries().collect();
    assert_eq!(entries, [TrapEntry { site: push.site.0, detour: 0x2000 | TrapEntry::RECORD }]);
    // Without an operation the copy always runs.
    let (op, xor) = built("xor %eax,%eax\nret", &[counter(3)]);
    assert!(op.is_none() && xor.recorded && xor.bytes[..16] == [0; 16] && xor.bytes[24..26] == [0x31, 0xc0]);
    // Anything else is done in the detour.
    let (_, other) = built("push %rbx\npop %rbx\nret", &[Handler::Agent { probe: 4 }]);
    assert!(!other.recorded && other.trap_entries().all(|entry| entry.detour == 0x2000));
}
