//! Where functions end: all exits of hand-written functions, and what is not proven.

mod elf;

use elf::{function, with};
use sidestep_isa::Len;
use sidestep_plan::object::Extent;
use sidestep_plan::{Exit, ExitKind, Exits, Index, NoExits, Technique, exits, jumps_to, plan, plan_exit, results};

/// The exits of `f`, by their distance from its start.
fn of(source: &str) -> Result<(Vec<(i64, ExitKind)>, bool), NoExits> {
    with(source, |elf, index| {
        let start = elf.symbol("f");
        exits(index, start).map(|Exits { all, exclusive, .. }| {
            (all.iter().map(|exit| (exit.va.since(start), exit.kind)).collect(), exclusive)
        })
    })
}

fn of_f(body: &str) -> Result<(Vec<(i64, ExitKind)>, bool), NoExits> {
    of(&(function("f", body) + &function("other", "mov $1,%eax\nret")))
}

const RETURN: ExitKind = ExitKind::Return { drops: 0 };

#[test]
fn every_return_is_an_exit() {
    assert_eq!(
        of_f("test %edi,%edi\nje 1f\nmov $1,%eax\nret\n1: xor %eax,%eax\nret"),
        Ok((vec![(9, RETURN), (12, RETURN)], true))
    );
    assert_eq!(of_f("push %rbx\ncall other\npop %rbx\nrep ret"), Ok((vec![(7, RETURN)], true)));
}

/// Such a jump may come back to a label of the function: its hits are no returns.
#[test]
fn a_jump_to_a_thunk_was_taken_for_a_tail_call() {
    let call = "call 1f\n2: pause\nlfence\njmp 2b\n1: mov %rax,(%rsp)\nret";
    for thunk in ["jmp *%rax", "push %rax\nret", call] {
        let thunk = [".hidden thunk\n", &function("thunk", thunk)].concat();
        let body = "lea 1f(%rip),%rax\nlea (%rax,%rdi,4),%rax\njmp thunk\n1: add $1,%rax\nret";
        assert!(matches!(of(&(function("f", body) + &thunk)), Err(NoExits::UnknownJumps { .. })), "{thunk}");
        let pointer = of(&(function("f", "mov (%rdi),%rax\njmp thunk") + &thunk));
        assert!(matches!(pointer.expect("a tail call").0[..], [(3, ExitKind::TailCall { .. })]), "{thunk}");
    }
}

/// A part that nobody calls, and that the jump table alone leads to, returns for its function.
#[test]
fn returns_of_a_part_behind_a_table_were_not_seen() {
    let body = "lea 3f(%rip),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\njmp *%rax\n1: ret";
    let part = [".hidden part\n", &function("part", "mov $1,%eax\n2: add $1,%eax\nret")].concat();
    let table = ".section .rodata\n.balign 4\n3: .long 1b-3b, part-3b, 2b-3b\n.text\n";
    with(&[&function("f", body), &*part, table].concat(), |elf, _| {
        let mut code = elf.code.clone();
        code.nameless.push(elf.symbol("part"));
        code.labels.retain(|label| *label != elf.symbol("part"));
        let index = Index::new(code);
        let found = exits(&index, elf.symbol("f")).expect("exits").all;
        assert_eq!(found.iter().map(|exit| exit.kind).collect::<Vec<_>>(), [RETURN, RETURN]);
        // Nothing may jump over a label in there, either.
        let plan = plan(&index, elf.symbol("part").plus(Len(5)), false).expect("a plan");
        assert_eq!(plan.technique, Technique::Trap, "three bytes, a return, and the end");
    });
}

/// A handler of exceptions in OCaml: its address is on the stack, and other functions jump there.
#[test]
fn returns_of_a_handler_that_nothing_but_its_address_leads_to_were_not_seen() {
    let body = "lea 1f(%rip),%r11\npush %r11\ncall other\npop %r11\nret\n1: mov $1,%eax\nret";
    let (all, exclusive) = of_f(body).expect("exits");
    assert_eq!(all, [(16, RETURN), (22, RETURN)]);
    assert!(!exclusive, "others go to the handler");
}

#[test]
fn tail_calls_are_exits() {
    let (all, exclusive) = of_f("test %edi,%edi\njne other\njmp *(%rsi)").expect("exits");
    let kinds: Vec<&ExitKind> = all.iter().map(|(_, kind)| kind).collect();
    assert!(matches!(kinds[..], [ExitKind::ConditionalTailCall { .. }, ExitKind::TailCall { to: None }]), "{kinds:?}");
    assert!(exclusive);
    // A jump to its own start begins another call.
    let (all, _) = of_f("dec %edi\njne f\nret").expect("exits");
    assert!(matches!(all[..], [(_, ExitKind::ConditionalTailCall { .. }), (_, RETURN)]), "{all:?}");
}

#[test]
fn a_shared_tail_belongs_to_nobody_alone() {
    let shared =
        function("f", "mov $1,%eax\njmp 1f\nnop\n2: ret") + &function("other", "xor %eax,%eax\n1: inc %eax\nret");
    let (all, exclusive) = of(&shared).expect("exits");
    assert_eq!((all.len(), exclusive), (1, false));
    // The other one runs on into it, without a jump.
    let (_, exclusive) =
        of(&(function("g", "mov $1,%eax") + ".p2align 4\n" + &function("f", "1: inc %eax\nret"))).expect("exits");
    assert!(exclusive, "the start of a function is where its calls begin");
}

#[test]
fn what_is_not_proven_is_said() {
    assert_eq!(
        of_f("push %rbx\nret"),
        Err(NoExits::Unbalanced {
            at: with(&function("f", "push %rbx\nret"), |elf, _| elf.symbol("f").plus(Len(1))),
            depth: -8
        })
    );
    assert_eq!(of_f("ud2"), Err(NoExits::NeverReturns));
    let inner = of_f("call 1f\n1: add $1,%eax\njmp 2f\nnop\n2: call 1b\nret");
    assert!(matches!(inner, Err(NoExits::InnerCall { .. })), "{inner:?}");
    assert_eq!(of_f("call 1f\nret\n1: ret"), Ok((vec![(5, RETURN)], true)), "a subroutine of its own");
    assert!(matches!(of_f("lretq"), Err(NoExits::Far { .. })));
    let counted = function("f", "jrcxz 1f\nret") + &function("other", "1: mov $1,%eax\nret");
    assert!(matches!(of(&counted), Err(NoExits::CountedBranch { .. })), "{:?}", of(&counted));
    with(&function("f", "nop\nret"), |elf, index| {
        assert_eq!(exits(index, elf.symbol("f").plus(Len(1))), Err(NoExits::NotAFunction));
    });
}

#[test]
fn results_are_where_the_last_function_returns() {
    let source = function("f", "mov $1,%edi\njmp other") + &function("other", "mov %edi,%eax\nret");
    with(&source, |elf, index| {
        let found = results(index, elf.symbol("f")).expect("returns");
        assert_eq!((found.all.len(), found.exclusive), (1, true));
        assert_eq!(found.all[0].va, elf.symbol("other").plus(Len(2)));
        assert!(found.foreign.contains(&found.all[0].va));
        assert_eq!(found.jumps.iter().map(|jump| jump.va).collect::<Vec<_>>(), [elf.symbol("f").plus(Len(5))]);
    });
    with(&function("f", "jmp *(%rdi)"), |elf, index| {
        assert_eq!(results(index, elf.symbol("f")), Err(NoExits::ForeignResult { at: elf.symbol("f") }));
    });
}

/// A return has one byte: the jump begins at what stands before it.
#[test]
fn the_jump_begins_before_the_return() {
    // No padding behind the function.
    let source = function("f", "sub $8,%rsp\ncall other\nadd $8,%rsp\nret") + &function("other", "mov $1,%eax\nret");
    with(&source, |elf, index| {
        let found = exits(index, elf.symbol("f")).expect("exits");
        let plan = plan_exit(index, found.all[0], false, None).expect("a plan");
        assert_eq!((plan.technique, plan.site), (Technique::JumpOverSeveral, elf.symbol("f").plus(Len(9))));
        assert_eq!((plan.displaced.len(), plan.resume), (2, None));
        let trap = plan_exit(index, found.all[0], true, None).expect("a plan");
        assert_eq!((trap.technique, trap.site), (Technique::Trap, elf.symbol("f").plus(Len(13))));
    });
    // The jump of a loop in front of it leads elsewhere where it is taken.
    let behind = function("other", "mov $1,%eax\nret");
    let source = function("f", "mov %edi,%eax\n1: add $2,%eax\nsub $1,%esi\njne 1b\nret") + &behind;
    with(&source, |elf, index| {
        let found = exits(index, elf.symbol("f")).expect("exits");
        let plan = plan_exit(index, found.all[0], false, None).expect("a plan");
        assert_eq!((plan.technique, plan.site), (Technique::JumpOverSeveral, elf.symbol("f").plus(Len(5))));
        assert_eq!((plan.displaced.len(), plan.resume), (3, None));
    });
    // But not a tail call, nor a jump that stands for a return.
    for jump in ["je other\nret", "je 1f\nret\nnop\n1: ret"] {
        let source = function("f", &format!("sub $1,%esi\n{jump}")) + &behind;
        with(&source, |elf, index| {
            let found = exits(index, elf.symbol("f")).expect("exits");
            let last = found.all.iter().find(|exit| exit.va == elf.symbol("f").plus(Len(5))).or(found.all.last());
            let plan = plan_exit(index, *last.expect("an exit"), false, None).expect("a plan");
            assert_eq!(plan.technique, Technique::Trap, "{jump}");
        });
    }
    // Others jump to the return itself: nothing in front of it may be displaced.
    let source = function("f", "test %edi,%edi\nje 1f\nadd $8,%edi\n1: ret") + &function("other", "mov $1,%eax\nret");
    with(&source, |elf, index| {
        let found = exits(index, elf.symbol("f")).expect("exits");
        let plan = plan_exit(index, found.all[0], false, None).expect("a plan");
        assert_eq!(plan.technique, Technique::Trap);
    });
}

/// Compiled functions that others share code with are found as such: `extents` may overlap.
#[test]
fn inner_symbols_are_other_entries() {
    let source = function(
        "f",
        "mov %rdi,%rax\n.globl inner\n.type inner,@function\ninner: add $1,%rax\nret\n.size inner,.-inner",
    );
    with(&source, |elf, index| {
        assert!(elf.code.extents.contains(&Extent { start: elf.symbol("inner"), len: Len(5) }));
        assert!(!exits(index, elf.symbol("f")).expect("exits").exclusive);
        // `f` runs on into it.
        assert!(exits(index, elf.symbol("inner")).expect("exits").exclusive);
    });
}

/// A return that only jumps lead to is left where they are: they have more bytes.
#[test]
fn jumps_to_a_return_stand_for_it() {
    let jumps = |before: &str, label: &str| {
        let body =
            format!("test %edi,%edi\nje 1f\nmov $1,%eax\njns 1f\n{before}\n{label}\n1: ret\n2: mov $2,%eax\nret");
        with(&function("f", &body), |elf, index| {
            let start = elf.symbol("f");
            let all = exits(index, start).expect("exits").all;
            let found = jumps_to(index, all[0]);
            found.map(|all| all.iter().map(|Exit { va, kind }| (va.since(start), *kind)).collect::<Vec<_>>())
        })
    };
    let found = jumps("jmp 2f\nnop", "").expect("jumps");
    assert_eq!(found.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [2, 9]);
    assert!(found.iter().all(|(_, kind)| matches!(kind, ExitKind::ConditionalTailCall { .. })), "{found:?}");
    assert_eq!(jumps("inc %eax", ""), None, "the code in front runs into it");
    assert_eq!(jumps("jmp 2f", "inner:"), None, "others may know its symbol");
    assert_eq!(jumps("lea 1f(%rip),%rax\njmp 2f", ""), None, "others may know its address");
}
