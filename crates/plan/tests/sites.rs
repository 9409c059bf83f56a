//! The nasty cases, compiled on the spot: what each site becomes, and why.

mod elf;

use elf::{SHARED, compile, function, parse, with};
use sidestep_isa::{Isa, Len, Va};
use sidestep_plan::explain::{Returns, lines};
use sidestep_plan::object::{Extent, ObjectCode, Rewriter, Rewritten};
use sidestep_plan::reason::{NoReplacedReturn, NotBehind};
use sidestep_plan::{Index, Plan, Reason, Refusal, SiteKind, Technique, plan};

/// The plan for the function `f` of assembly.
fn plan_f(source: &str) -> Result<Plan, Refusal> {
    with(source, |elf, index| plan(index, elf.symbol("f"), false))
}

fn f(body: &str) -> Plan {
    // Followed by another function at once, so that there is no padding.
    plan_f(&(function("f", body) + &function("next", "mov $1,%eax\nret"))).expect("a plan")
}

fn not_watched() -> Returns {
    Returns::Not { why: String::new() }
}

/// The reason why several instructions were not displaced.
fn several(plan: &Plan) -> String {
    let rejected = plan.rejected.iter().find(|r| r.technique == Technique::JumpOverSeveral);
    rejected.map_or(String::new(), |r| r.reason.to_string())
}

fn lens(plan: &Plan) -> Vec<u8> {
    plan.displaced.iter().map(|i| i.len).collect()
}

#[test]
fn one_long_instruction() {
    let plan = f("mov $1,%eax\nret");
    assert_eq!((plan.technique, plan.region, plan.kind), (Technique::Jump, Len(5), SiteKind::FunctionEntry));
    assert_eq!(plan.resume, Some(Va(plan.site.0 + 5)));
    assert_eq!((lens(&plan), plan.dead_regs, plan.dead_flags), (vec![5], 1, false));
    assert_eq!(plan.returns, Ok(0));
}

#[test]
fn several_short_instructions() {
    let plan = f("push %rbp\nmov %rsp,%rbp\nsub $16,%rsp\nleave\nret");
    assert_eq!((plan.technique, plan.region), (Technique::JumpOverSeveral, Len(8)));
    assert_eq!((lens(&plan), plan.dead_flags), (vec![1, 3, 4], true));
}

#[test]
fn nops_and_endbr() {
    assert_eq!(f(".byte 0x0f,0x1f,0x44,0,0\nret").technique, Technique::NopSite);
    let plan = f("endbr64\n.byte 0x66,0x2e,0x0f,0x1f,0x84,0,0,0,0,0\nret");
    assert_eq!((plan.technique, plan.region), (Technique::NopSite, Len(10)));
    assert_eq!(plan.site, Va(plan.asked.0 + 4));
    assert_eq!(f("nop\nnop\nnop\nnop\nnop\nret").technique, Technique::JumpOverSeveral);
    assert_eq!(f("endbr64\nxor %eax,%eax\nadd %edi,%eax\nnop\nret").technique, Technique::JumpOverSeveral);
}

#[test]
fn what_is_behind_an_instruction() {
    for (body, len) in [
        ("push %rbp\nmov %rsp,%rbp\nsub $16,%rsp\nleave\nret", 1),
        ("endbr64\nxor %eax,%eax\nadd %edi,%eax\nnop\nret", 6),
        (".byte 0x0f,0x1f,0x44,0,0\nret", 5),
        ("rep movsb\nret", 2),
        ("syscall\nret", 2),
    ] {
        let plan = f(body);
        assert_eq!(plan.behind(), Ok(Va(plan.asked.0 + len)), "{body}");
    }
    for body in [
        "je 1f\nnop\n1: ret",
        "jmp 1f\n1: ret",
        "call 1f\n1: ret",
        "call *%rax\nret",
        "ret",
        "loop 1f\nnop\n1: ret",
        "jmp *%rax",
    ] {
        assert!(f(body).behind().is_err_and(|why| why == NotBehind::Branch), "{body}");
    }
    for body in ["int $0x80\nret", "hlt\nret", "ud2", "sysenter\nret", "xbegin 1f\n1: ret"] {
        assert!(f(body).behind().is_err_and(|why| why == NotBehind::DoesNotContinue), "{body}");
    }
}

#[test]
fn a_loop_head_at_the_third_byte() {
    let plan = f("xor %eax,%eax\n1: add %edi,%eax\ndec %edi\njnz 1b\nret");
    assert_eq!((plan.technique, plan.region), (Technique::Trap, Len(2)));
    let want = format!("the code at {} jumps back to {}", Va(plan.site.0 + 6), Va(plan.site.0 + 2));
    assert_eq!(several(&plan), want);
}

#[test]
fn a_loop_right_behind_endbr_is_no_entry() {
    let plan = f("endbr64\n1: sub $0x1234,%edi\njnz 1b\nret");
    assert_eq!((plan.technique, plan.site), (Technique::Trap, plan.asked));
}

#[test]
fn a_loop_at_the_first_instruction_may_have_live_data_below_the_stack_pointer() {
    let plan = f("sub $0x1234,%edi\njnz f\nret");
    assert_eq!((plan.technique, plan.kind), (Technique::Jump, SiteKind::Inside));
    assert!(plan.returns.is_err());
}

#[test]
fn a_function_of_three_bytes_followed_by_another() {
    let plan = f("xor %eax,%eax\nret");
    assert_eq!((plan.technique, plan.region), (Technique::Trap, Len(2)));
    assert!(several(&plan).contains("something else starts at"), "{}", several(&plan));
}

#[test]
fn a_function_of_one_ret() {
    let plan = f("ret");
    assert_eq!((plan.technique, plan.region, plan.resume), (Technique::Trap, Len(1), None));
    for padding in [".p2align 4,0x90", ".p2align 4,0xcc", ".p2align 4", ".p2align 4,0"] {
        let source = function("f", "ret") + padding + "\n" + &function("next", "ret");
        let plan = plan_f(&source).expect("a plan");
        assert_eq!((plan.technique, plan.region), (Technique::Jump, Len(5)), "{padding}");
        assert_eq!((lens(&plan), plan.resume), (vec![1], None));
    }
}

#[test]
fn what_looks_like_padding_but_is_referred_to_is_none() {
    let source = function("f", "ret") + "nop\nhidden: nop\nnop\n.p2align 4\n";
    for reference in [function("g", "lea hidden(%rip),%rax\nret"), function("g", "jmp hidden")] {
        assert_eq!(plan_f(&(source.clone() + &reference)).expect("a plan").technique, Technique::Trap);
    }
    let zeros = function("f", "ret") + "data: .long 0,0\n.p2align 4,0\n" + &function("g", "mov data(%rip),%eax\nret");
    assert_eq!(plan_f(&zeros).expect("a plan").technique, Technique::Trap);
    // Data that is no filler.
    let data = function("f", "ret") + ".byte 1,2,3,4,5,6,7,8\n" + &function("g", "ret");
    assert_eq!(plan_f(&data).expect("a plan").technique, Technique::Trap);
}

#[test]
fn a_call_among_the_first_instructions() {
    let inner = f("push %rax\npush %rax\ncall next\npop %rax\npop %rax\nret");
    assert_eq!((inner.technique, lens(&inner)), (Technique::JumpOverSeveral, vec![1, 1, 5]));
    assert_eq!(inner.resume, Some(Va(inner.site.0 + 7)));
    let early = f("call *%rax\nadd $1,%eax\npop %rcx\nret");
    assert_eq!(early.technique, Technique::Trap);
    assert!(several(&early).contains("comes back to"), "{}", several(&early));
}

#[test]
fn all_who_may_come_to_the_middle() {
    let body = "push %rbp\nmiddle: push %rbx\npush %r12\npush %r13\nret";
    let local = body.replace("middle", ".Lmiddle");
    let cases = [
        ("another symbol", String::new()),
        ("jumps to", function("g", "jmp .Lmiddle")),
        ("jumps to", function("g", "test %eax,%eax\njz .Lmiddle\nret")),
        ("a call at", function("g", "call .Lmiddle\nret")),
        ("code computes with", function("g", "lea .Lmiddle(%rip),%rax\nret")),
        ("pointer", function("g", "ret") + ".data\n.quad .Lmiddle\n"),
        ("may be code", "g: call .Lmiddle\nret\n".into()),
    ];
    for (want, rest) in cases {
        let body = if want == "another symbol" { body } else { &local };
        // The referring code is put before f as well: the direction must not matter.
        for source in [function("f", body) + &rest, rest.clone() + ".text\n" + &function("f", body)] {
            let plan = plan_f(&source).expect("a plan");
            assert_eq!(plan.technique, Technique::Trap, "{source}");
            let reason = several(&plan).replace("jumps back to", "jumps to");
            assert!(reason.contains(want), "{want}: {reason}");
        }
    }
    assert_eq!(f(&local).technique, Technique::JumpOverSeveral);
}

/// What chooses between functions, as the resolvers of `memcpy` do, seemed to compute with their
/// addresses: what lies behind its return uses the register for something else.
#[test]
fn code_behind_a_return_computed_with_what_was_returned() {
    let choice = "lea f(%rip),%rdx\nlea next(%rip),%rax\ncmovne %rdx,%rax\nret";
    let body = "push %rbp\npush %rbx\npush %r12\npush %r13\nret";
    let functions: [&str; 2] = [&function("f", body), &function("next", body)];
    let technique = |source: &str| {
        let source = [functions[0], functions[1], &function("choose", source), ".hidden f\n.hidden next\n"].concat();
        let plan = plan_f(&source).expect("a plan");
        let several = if plan.technique == Technique::Trap { several(&plan) } else { String::new() };
        (plan.technique, several)
    };
    let used_as_it_is = |source: &str| assert_eq!(technique(source).0, Technique::JumpOverSeveral, "{source}");
    let computed_with = |source: &str| {
        let (technique, reason) = technique(source);
        assert_eq!(technique, Technique::Trap, "{source}");
        assert!(reason.contains("code computes with"), "{source}: {reason}");
    };
    used_as_it_is(choice);
    used_as_it_is(&format!("test %edi,%edi\n{choice}\nother: and $32,%edx\njne other\nret"));
    // What a jump in front of the return takes along.
    let taken = "lea f(%rip),%rdx\ntest %edi,%edi\njne other\nret\nother: add %rdi,%rdx\njmp *%rdx";
    computed_with(taken);
    // What a jump takes along, or a call, though something else is chosen behind the jump.
    let chosen = "lea f(%rip),%rax\nlea next(%rip),%rdx\ntest %edi,%edi\nje other\ncmovl %rdx,%rax\nret";
    computed_with(&format!("{chosen}\nother: add %rdi,%rax\njmp *%rax"));
    computed_with("lea f(%rip),%rbx\ncall next\nret\npad: add %rax,%rbx\njmp *%rbx");
    // What was chosen, whichever register was the other one.
    for choice in ["lea next(%rip),%rax\nlea f(%rip),%rcx", "xor %eax,%eax\nlea f(%rip),%rcx", "lea f(%rip),%rax"] {
        computed_with(&format!("{choice}\ncmove %rcx,%rax\nadd %rdi,%rax\njmp *%rax"));
    }
    // A return to what was pushed is a jump.
    computed_with("lea f(%rip),%rdx\npush %rcx\nret\nother: add %rdi,%rdx\njmp *%rdx");
}

#[test]
fn nobody_calls_a_part() {
    let source = function("f", "xor %eax,%eax\nxor %ecx,%ecx\nxor %edx,%edx\nret");
    with(&source, |elf, index| {
        let site = elf.symbol("f");
        assert_eq!(plan(index, site, false).expect("a plan").kind, SiteKind::FunctionEntry);
        let mut code = elf.code.clone();
        code.parts.push(site);
        let index = Index::new(code);
        let plan = plan(&index, site, true).expect("a plan");
        assert_eq!(plan.kind, SiteKind::Inside, "the red zone may be in use");
        assert_eq!(plan.returns, Err(NoReplacedReturn::Part));
    });
}

/// A function of a language that has a stack of its own, as Haskell, goes on by jumps. What is on
/// top of the processor's stack is data, which was replaced where it looked like a return address.
#[test]
fn what_no_call_leads_to_had_its_return_address_replaced() {
    let returns = |source: &str, has_frame: bool| {
        with(source, |elf, _| {
            let site = elf.symbol("f");
            let mut code = elf.code.clone();
            code.frames.retain(|start| *start != site);
            code.frames.extend(has_frame.then_some(site));
            plan(&Index::new(code), site, false).map(|plan| plan.returns).expect("a plan")
        })
    };
    let jumps = function("f", "mov %rbx,%rax\nand $7,%eax\njmp *(%rbp)");
    assert_eq!(returns(&jumps, false), Err(NoReplacedReturn::NotCalled));
    assert_eq!(returns(&jumps, true), Ok(0));
    let called = format!(".hidden f\n{jumps}{}", function("g", "call f\nret"));
    assert_eq!(returns(&called, false), Ok(0));
}

/// What only unwind information knows may be a part that a jump table leads to, which uses what
/// its function has put below the stack pointer. To be in a table of pointers is no call.
#[test]
fn the_red_zone_of_a_part_that_only_a_table_leads_to_was_overwritten() {
    let own = function("f", "mov %rdi,-8(%rsp)\nlea table(%rip),%rax\njmp *(%rax,%rsi,8)");
    let part = [".hidden part\n", &function("part", "mov -8(%rsp),%rax\nret")].concat();
    let caller = function("caller", "call part\nret");
    let table = ".section .data.rel.ro,\"aw\"\n.balign 8\ntable: .quad part\n.text\n";
    let kind = |source: &str| {
        let data = compile("a.s", source, &SHARED);
        let mut elf = parse(&data);
        let site = elf.symbol("part");
        let mut code = std::mem::replace(&mut elf.code, ObjectCode::new(Isa::X64));
        code.nameless.push(site);
        let nameless = plan(&Index::new(code.clone()), site, false).expect("a plan").kind;
        code.nameless.clear();
        (nameless, plan(&Index::new(code), site, false).expect("a plan").kind)
    };
    for table in ["", table] {
        let alone = [own.replace("table(%rip)", "part(%rip)"), part.clone()].concat();
        let source = if table.is_empty() { alone } else { [&own, &*part, table].concat() };
        assert_eq!(kind(&source), (SiteKind::Inside, SiteKind::FunctionEntry), "{source}");
        let source = [&source, &*caller].concat();
        assert_eq!(kind(&source), (SiteKind::FunctionEntry, SiteKind::FunctionEntry), "{source}");
    }
}

/// Of a load that may throw, whatever its landing pad reads is live; so it is where something names
/// an instruction, as tables of a program's own handlers do.
#[test]
fn registers_that_a_landing_pad_reads_were_dead_in_front_of_a_load() {
    let source = function("f", "mov (%rdi),%rax\npop %rbx\nret\nmov %rbx,%rax\npop %rbx\nret");
    with(&source, |elf, _| {
        let site = elf.symbol("f");
        let pad = site.plus(Len(5));
        let dead = |code: ObjectCode<'_>| plan(&Index::new(code), site, false).expect("a plan").dead_regs;
        let mut code = elf.code.clone();
        assert_eq!(dead(code.clone()), 1 << 3, "nobody goes on at the pad");
        let mut named = code.clone();
        named.pointers.push(pad);
        assert_eq!(dead(named), 0, "a table names it");
        code.landing_pads.push(pad);
        code.protected.push(Extent { start: Va(site.0 + 3), len: Len(1) });
        assert_eq!(dead(code.clone()), 1 << 3, "another instruction");
        code.protected[0].start = site;
        assert_eq!(dead(code), 0);
    });
}

#[test]
fn landing_pads() {
    let source = function("f", "push %rbp\npush %rbx\npush %r12\npush %r13\nret");
    with(&source, |elf, _| {
        let mut code = elf.code.clone();
        let site = elf.symbol("f");
        code.landing_pads.push(Va(site.0 + 2));
        let plan = plan(&Index::new(code), site, false).expect("a plan");
        assert_eq!(plan.technique, Technique::Trap);
        assert!(several(&plan).contains("exceptions land"), "{}", several(&plan));
    });
}

#[test]
fn recognised_and_unknown_indirect_jumps() {
    let table = "lea .Lt(%rip),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\njmp *%rax\n.La: ret\n.Lb: nop\nret";
    let data = "\n.section .rodata\n.p2align 2\n.Lt: .long .La-.Lt,.Lb-.Lt\n.text\n";
    let known = format!("push %rbx\npush %rbx\npush %rbx\npop %rbx\npop %rbx\n{table}");
    assert_eq!(plan_f(&(function("f", &known) + data)).expect("a plan").technique, Technique::JumpOverSeveral);

    let hoisted =
        "lea .Lt(%rip),%r12\ncall next\n.La: mov (%rsp),%rdi\n.Lb: movslq (%r12,%rdi,4),%rcx\nadd %r12,%rcx\njmp *%rcx";
    let source = function("f", &format!("push %r12\npush %rbx\npush %rbp\nnop\nnop\n{hoisted}")) + data;
    let plan = plan_f(&(source + &function("next", "ret"))).expect("a plan");
    assert_eq!(plan.technique, Technique::JumpOverSeveral, "{}", several(&plan));

    let into = "push %rbx\n.La: push %rbx\npush %rbx\n.Lb: pop %rbx\npop %rbx\n".to_owned()
        + &table.replace(".La: ret", "ret").replace(".Lb: nop", "nop");
    let plan = plan_f(&(function("f", &into) + data)).expect("a plan");
    assert_eq!(plan.technique, Technique::Trap);
    assert!(several(&plan).contains("a jump table may lead to"), "{}", several(&plan));

    let pointer = "push %rbx\nmov %rdi,%rbx\nmov 8(%rbx),%rax\npop %rbx\njmp *%rax";
    assert_eq!(f(pointer).technique, Technique::JumpOverSeveral);

    let duff =
        "push %rbx\npop %rbx\nnop\nlea 1f(%rip),%rax\nlea (%rax,%rdi,2),%rax\njmp *%rax\n1: inc %eax\ninc %eax\nret";
    let plan = f(duff);
    assert_eq!(plan.technique, Technique::Trap);
    assert!(several(&plan).contains("computed address"), "{}", several(&plan));
}

/// Each jump has a table and a base of its own.
#[test]
fn a_table_was_read_with_the_base_of_another_jump() {
    let switch = "lea .Lt(%rip),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\njmp *%rax\n.La: nop\n.Lb: nop\n";
    let goto = "lea .Lo(%rip),%rcx\nmovslq (%rcx,%rsi,4),%rax\nlea .Lc(%rip),%rcx\nadd %rcx,%rax\njmp *%rax\n\
        .Lc: push %rbx\n.Ld: push %rbx\n.Le: pop %rbx\npop %rbx\nnop\nret";
    let tables = ".section .rodata\n.p2align 2\n.Lt: .long .La-.Lt,.Lb-.Lt\n.byte 0,0,0,0x80\n\
        .Lo: .long .Lc-.Lc,.Ld-.Lc,.Le-.Lc\n.byte 0,0,0,0x80\n.text\n";
    with(&[&function("f", &[switch, goto].concat()), tables].concat(), |elf, index| {
        let start = elf.symbol("f");
        let label = (0..64)
            .map(|at| start.plus(Len(at)))
            .find(|va| index.code().insn_at(*va).is_some_and(|i| i.len() == 1 && i.to_string().contains("push")));
        let plan = plan(index, label.expect("a push"), false).expect("a plan");
        assert_eq!(plan.technique, Technique::Trap);
        assert!(several(&plan).contains("a jump table may lead to"), "{}", several(&plan));
    });
}

/// Labels to which a distance is added somewhere lead anywhere in their function; so does the start
/// of a function.
#[test]
fn addresses_of_code_were_computed_with() {
    let body = "push %rbx\npush %rbx\npop %rbx\npop %rbx\nnop\nret";
    for (source, known) in [
        ("lea f(%rip),%rax\nmov %rax,(%rdi)\nret", true),
        ("lea f(%rip),%rax\ncmp %rax,(%rdi)\nret", true),
        ("lea f(%rip),%rax\ncall *%rax\nadd $1,%rax\nret", true),
        ("lea f(%rip),%rax\nadd %rsi,%rax\nmov %rax,(%rdi)\nret", false),
        ("lea f(%rip),%rax\nmov %rax,%rbx\nlea 1(%rbx,%rsi,2),%rcx\ncall *%rcx\nret", false),
        ("lea f+2(%rip),%rax\nmov %rax,(%rdi)\nret", false),
    ] {
        let source = [".hidden f\n", &function("f", body), &function("g", source)].concat();
        let technique = plan_f(&source).expect("a plan").technique;
        assert_eq!(technique == Technique::JumpOverSeveral, known, "{source}");
    }
}

/// Code at fixed addresses makes a label of a distance by one instruction, which names the label in
/// its immediate or displacement.
#[test]
fn fixed_addresses_to_which_a_distance_is_added_were_no_labels() {
    let body = "push %rbx\npush %rbx\npop %rbx\npop %rbx\nnop\n.Lend: ret";
    let technique = |source: &str, is_fixed: bool| {
        let data = compile("a.s", source, &["-no-pie", "-nostdlib", "-Wl,-e,f,-z,noexecstack"]);
        let elf = parse(&data);
        let mut code = elf.code.clone();
        code.fixed = is_fixed;
        plan(&Index::new(code), elf.symbol("f"), false).expect("a plan").technique
    };
    for (code, known) in [
        ("add $.Lend,%rsi\njmp *%rsi", false),
        ("add $f,%rsi\njmp *%rsi", false),
        ("add $f,%esi\njmp *%rsi", false),
        ("add $f,%rax\nmov %rax,(%rdi)\nret", false),
        ("lea .Lend(%rsi),%rax\njmp *%rax", false),
        ("lea f(%rsi),%rax\nmov %rax,(%rdi)\nret", false),
        ("lea f(,%rsi,2),%rax\njmp *%rax", false),
        ("lea f(%rdi,%rsi,2),%rax\njmp *%rax", false),
        ("mov $f,%eax\nmov %rax,(%rdi)\nret", true),
        ("cmp $f,%rax\nret", true),
        ("add $0x400,%rax\nlea 0x7ffff000(%rsi),%rax\nret", true),
    ] {
        let other = function("g", code);
        // The code that names the function may stand in front of it as well.
        for source in [[&*function("f", body), &other].concat(), [&*other, &function("f", body)].concat()] {
            let is_known = technique(&source, true) == Technique::JumpOverSeveral;
            assert_eq!(is_known, known, "{source}");
        }
    }
    // Nothing describes the code that adds the distance.
    for (code, known) in [
        ("add $.Lend,%rsi\njmp *%rsi", false),
        ("add $f,%rax\njmp *%rax", false),
        ("lea .Lend(%rsi),%rax\njmp *%rax", false),
        ("lea f(,%rsi,2),%rax\njmp *%rax", false),
        ("lea f(%r12,%rsi,2),%rax\njmp *%rax", false),
        ("cmp $f,%rax\nret", true),
    ] {
        let source = format!("{}.p2align 4\n{code}\n", function("f", body));
        assert_eq!(technique(&source, true) == Technique::JumpOverSeveral, known, "{source}");
    }
    // The same numbers are no addresses where the loader chooses these.
    let source = [&*function("f", body), &function("g", "add $0x401000,%rsi\njmp *%rsi")].concat();
    assert_eq!(technique(&source, false), Technique::JumpOverSeveral);
}

#[test]
fn a_switch_as_the_compiler_writes_it() {
    let source = "
        int g(int); int k(int);
        int f(int a, int b) {
            for (int r = 0;; r++) switch (a = g(a + b)) {
                case 0: b = k(3); break; case 1: b = g(5); break; case 2: return r; case 3: b += 7; break;
                case 4: b = k(b) * 9; break; case 5: b = -b; break; case 6: return b; default: b = k(a);
            }
        }";
    for flags in [["-O2", "-fPIC"], ["-O0", "-fPIC"], ["-Os", "-fPIC"], ["-O2", "-fno-pic"], ["-O2", "-fcf-protection"]]
    {
        let link =
            if flags[1] == "-fno-pic" { ["-no-pie", "-nostdlib", "-Wl,-e,f"] } else { ["-shared", "-nostdlib", "-g0"] };
        let all = [&flags[..], &link, &["-Wl,--unresolved-symbols=ignore-all", "-fno-stack-protector"]].concat();
        let data = compile("a.c", source, &all);
        let elf = parse(&data);
        let site = elf.symbol("f");
        let plan = plan(&Index::new(elf.code.clone()), site, false).expect("a plan");
        assert_ne!(plan.technique, Technique::Trap, "{flags:?}: {:#?}", lines(&plan, &not_watched(), false));
    }
}

#[test]
fn addresses_that_cannot_be_probed() {
    let reason = |body: &str| plan_f(&function("f", body)).expect_err(body).reason.to_string();
    assert!(reason("lcall *(%rax)\nret").contains("far call"));
    assert!(reason("int3\nret").contains("breakpoint"));
    assert!(reason(".byte 0x06").contains("no complete instruction"));
    let source = function("f", "mov $1,%eax\nret") + ".p2align 4\n" + &function("g", "ret");
    with(&source, |elf, index| {
        let site = elf.symbol("f").0;
        let reason = |at| plan(index, Va(at), false).expect_err("a refusal").reason.to_string();
        let inside = reason(site + 2);
        assert!(inside.contains(&Va(site).to_string()) && inside.contains(&Va(site + 5).to_string()), "{inside}");
        assert!(reason(site + 8).contains("no function is known"));
        assert!(reason(1).contains("no executable section"));
        assert!(reason(u64::MAX).contains("no executable section"));
    });
}

#[test]
fn inside_a_function() {
    with(&function("f", "push %rbx\nmov $1,%eax\npop %rbx\nret"), |elf, index| {
        let plan = plan(index, Va(elf.symbol("f").0 + 1), false).expect("a plan");
        assert_eq!((plan.technique, plan.kind), (Technique::Jump, SiteKind::Inside));
        assert!(plan.returns.is_err());
    });
}

#[test]
fn a_symbol_without_a_size_is_no_proof() {
    let source = "f: push %rbx\npush %rbx\npush %rbx\npop %rbx\npop %rbx\npop %rbx\nret\n.globl f\n.type f,@function\n";
    let plan = plan_f(source).expect("a plan");
    assert_eq!(plan.technique, Technique::Trap);
    assert!(several(&plan).contains("no size"), "{}", several(&plan));
    let source = "f: mov $1,%eax\nret\n.globl f\n.type f,@function\n";
    assert_eq!(plan_f(source).expect("a plan").technique, Technique::Jump);
}

#[test]
fn a_cold_part_is_no_function() {
    let cold = function("f", "add $0x1234,%eax\njmp 1f") + &function("g", "test %eax,%eax\njz f\n1: ret");
    let plan = plan_f(&cold).expect("a plan");
    assert_eq!(plan.kind, SiteKind::Inside);
    assert!(plan.returns.is_err());
}

#[test]
fn a_jump_over_a_lock_prefix_is_understood() {
    let body = "push %rbx\nmov %rdi,%rbx\nnop\ncmpl $0,%fs:0x18\nje 1f\nlock\n1: incl (%rdi)\npop %rbx\nret";
    assert_eq!(f(body).technique, Technique::JumpOverSeveral);
}

#[test]
fn only_traps_where_only_traps_are_wanted() {
    with(&function("f", "mov $1,%eax\nret"), |elf, index| {
        let plan = plan(index, elf.symbol("f"), true).expect("a plan");
        assert_eq!((plan.technique, plan.region, plan.rejected.len()), (Technique::Trap, Len(5), 0));
    });
}

#[test]
fn explanations() {
    let text = lines(&f("xor %eax,%eax\nret"), &not_watched(), false).join("\n");
    for part in
        ["technique   trap", "31 c0", "xor    %eax,%eax", "int3", "no better   jump:", "no better   jump over several:"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let text = lines(&f("endbr64\npush %rbp\nmov %rsp,%rbp\npop %rbp\nret"), &not_watched(), false).join("\n");
    for part in ["technique   jump over several", "push   %rbp", "mov    %rsp,%rbp", "jmp    detour"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

/// The program's patch and ours destroyed each other.
#[test]
fn what_a_program_changes_itself_was_overwritten() {
    let sled = "jmp 1f\n.byte 0x66,0x0f,0x1f,0x84,0,0,0,0,0\n1:";
    let exit = "ret\n.byte 0x2e,0x66,0x0f,0x1f,0x84,0,0,0,0,0";
    let body = format!("{sled} push %rbp\nmov %rdi,%rax\nadd $1,%rax\npop %rbp\n{exit}");
    let source = function("f", &body)
        + &function("before", "ret\n.skip 14,0x90")
        + &function("g", "endbr64\nnop\nnop\npush %rbp\nmov %rdi,%rax\npop %rbp\nret");
    let data = compile("a.s", &source, &SHARED);
    let elf = parse(&data);
    let mut code = elf.code.clone();
    let [f, before, g] = ["f", "before", "g"].map(|name| elf.symbol(name));
    let place = |start: Va, len, by| Rewritten { extent: Extent { start, len: Len(len) }, by };
    let all = [
        place(f, 11, Rewriter::XRay),
        place(f.offset(20), 11, Rewriter::XRay),
        place(before.offset(1), 20, Rewriter::Patchable),
    ];
    let free = Index::new(code.clone());
    assert_eq!(plan(&free, f, false).unwrap().site, f);
    assert_eq!(plan(&free, before, false).unwrap().technique, Technique::Jump);
    code.rewritten = all.to_vec();
    let index = Index::new(code);
    // Entries are behind it, and nothing of it is written.
    let entry = plan(&index, f, false).unwrap();
    assert_eq!((entry.asked, entry.site, entry.technique), (f, f.offset(11), Technique::JumpOverSeveral));
    let entry = plan(&index, g, false).unwrap();
    assert_eq!((entry.asked, entry.site, entry.technique), (g, g.offset(6), Technique::JumpOverSeveral));
    assert_eq!(plan(&index, before, false).unwrap().technique, Technique::Trap);
    for inside in [f.offset(2), f.offset(20), g.offset(5)] {
        let refusal = plan(&index, inside, false).unwrap_err();
        assert!(matches!(refusal.reason, Reason::Rewritten { .. }), "{inside}: {refusal}");
    }
}

#[test]
fn monos_runtime_no_longer_knew_its_own_calls() {
    // Such as Mono compiles ahead of time: what is called is found out by the jump in `entry`.
    let source = function("early", "sub $8,%rsp\ncall entry\nadd $8,%rsp\nret")
        + &function("late", "sub $8,%rsp\nmov %rdi,%rax\ncall *8(%rax)\nadd $8,%rsp\nret")
        + &function("named", "lea slot(%rip),%rax\nmov slot(%rip),%rdx\nret")
        + &function("entry", "jmp *slot(%rip)\n.long 7")
        + ".data\nslot: .quad early\n";
    let data = compile("a.s", &source, &SHARED);
    let elf = parse(&data);
    let [early, late, entry] = ["early", "late", "entry"].map(|name| elf.symbol(name));
    let free = Index::new(elf.code.clone());
    assert!([early, entry, late.offset(7)].into_iter().all(|at| plan(&free, at, false).is_ok()));
    let index = Index::new(ObjectCode { mono: true, ..elf.code.clone() });
    // A trap changes a byte that nobody reads; a jump would have changed the call.
    assert_eq!(plan(&index, early, false).unwrap().technique, Technique::Trap);
    assert_eq!(plan(&index, late, false).unwrap().technique, Technique::JumpOverSeveral);
    let named = elf.symbol("named");
    assert!(
        [named, named.offset(7)].into_iter().all(|at| plan(&index, at, false).unwrap().technique == Technique::Jump)
    );
    for inside in [early.offset(4), late.offset(7), entry] {
        let refusal = plan(&index, inside, false).unwrap_err();
        assert!(matches!(refusal.reason, Reason::ReadByMono { .. }), "{inside}: {refusal}");
    }
}

#[test]
fn restartable_sequences_are_left_alone() {
    // The sequence is `mov; add`; the signature in front of the abort handler is the last four
    // bytes of `ud1`.
    let body =
        "push %rbp\nmov %rdi,%rax\nadd $1,%rax\nmov %rax,%rcx\nadd %rdi,%rcx\nret\nud1 0x53053053(%rip),%edi\nret";
    let source = function("f", body) + &function("next", "ret");
    let data = compile("a.s", &source, &SHARED);
    let elf = parse(&data);
    let mut code = elf.code.clone();
    let f = elf.symbol("f");
    let extent = |from: i64, len| sidestep_plan::object::Extent { start: f.offset(from), len: Len(len) };
    let at = |index: &Index<'_>, offset: i64| plan(index, f.offset(offset), false);
    let free = Index::new(code.clone());
    assert_eq!(at(&free, 0).unwrap().technique, Technique::JumpOverSeveral);
    code.restartable = vec![extent(1, 7), extent(18, 4)];
    let index = Index::new(code);
    let entry = at(&index, 0).unwrap();
    assert_eq!(entry.technique, Technique::Trap);
    assert!(several(&entry).contains("restartable sequence"), "{}", several(&entry));
    for inside in [1, 4, 15] {
        assert!(at(&free, inside).is_ok(), "{inside}");
        let refusal = at(&index, inside).unwrap_err();
        assert!(matches!(refusal.reason, Reason::RestartableSequence { .. }), "{inside}: {refusal}");
    }
    assert_eq!(at(&index, 8).unwrap().technique, Technique::JumpOverSeveral);
}
