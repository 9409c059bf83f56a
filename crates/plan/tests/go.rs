//! Go programs: the handler runs behind the stack check, and no jump covers several instructions
//! otherwise.

mod elf;

use std::ops::Range;
use std::process::Command;

use sidestep_isa::{Flow, Isa, Len, Va, sweep};
use sidestep_plan::{Fixed, GoCall, Index, Patch, Reason, Room, Technique, exits, go_call, plan, plan_exit};

/// Free addresses everywhere but in the lower half of what a jump reaches.
struct Above;

impl Room for Above {
    fn is_free(&self, _: Va, _: Range<Va>) -> Result<(), Reason> {
        Ok(())
    }

    fn claim(&mut self, _: Va, _: Range<Va>) {}

    fn stub(&mut self, end: Va, fixed: Fixed) -> Option<Va> {
        let high = fixed.highs().find(|high| *high >= 0)?;
        Some(end.offset((i64::from(high) << 16) + i64::from(fixed.low(high)?.0)))
    }
}

#[test]
fn handlers_run_behind_the_stack_check() {
    if Command::new("go").arg("version").output().is_err() {
        eprintln!("go is not installed");
        return;
    }
    let dir = std::env::temp_dir().join(format!("sidestep-plan-go-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let source = "package main\nimport \"fmt\"\nfunc main() { fmt.Println(\"hello\") }\n";
    std::fs::write(dir.join("main.go"), source).expect("a source file");
    let status = Command::new("go").args(["build", "-o", "out", "main.go"]).current_dir(&dir).status().expect("go");
    assert!(status.success());
    let data = std::fs::read(dir.join("out")).expect("the output");
    std::fs::remove_dir_all(&dir).expect("clean up");

    let elf = elf::parse(&data);
    assert!(elf.code.go);
    let index = Index::new(elf.code.clone());
    let text = &elf.code.text[0];
    let address = |name: &str| elf.functions.iter().find(|f| f.0 == name).map(|f| f.1);
    // The compiler and the linker say which functions check their stack: those that call one of
    // these.
    let names = ["runtime.morestack.abi0", "runtime.morestack_noctxt.abi0", "runtime.morestackc.abi0"];
    let more: Vec<Va> = names.into_iter().filter_map(address).collect();
    assert!(!more.is_empty());

    let (mut checked, mut jumps) = (0, 0);
    let (mut ends, mut end_jumps, mut by_goroutine) = (0, 0, 0);
    for (name, va, size) in &elf.functions {
        let (Ok(plan), Some(offset)) = (plan(&index, *va, false), usize::try_from(va.since(text.va)).ok()) else {
            continue;
        };
        let end = va.plus(Len(*size));
        let body = text.data.get(offset..offset + *size as usize).unwrap_or_default();
        // `call morestack; jmp start` at the end of the function itself.
        let restarts = sweep(Isa::X64, body, *va)
            .map_while(Result::ok)
            .any(|insn| matches!(insn.flow(), Flow::Call(target) if more.contains(&target)));
        assert!(plan.returns.is_err(), "{name}");
        let known = go_call(&index, *va);
        assert!(restarts || known != Ok(GoCall::ByGoroutine), "{name}: {known:?}");
        // Assembly loads its goroutine for the check.
        assert!(!restarts || known != Ok(GoCall::BySlot), "{name}: {known:?}");
        by_goroutine += usize::from(known == Ok(GoCall::ByGoroutine));
        for exit in exits(&index, *va).map(|exits| exits.all).unwrap_or_default() {
            let Ok(plan) = plan_exit(&index, exit, false, Some(&mut Above)) else { panic!("{name}: {}", exit.va) };
            // A goroutine may stand behind the first instruction: the others stay as they are,
            // or have traps.
            let first = plan.displaced[0].len;
            let guarded = plan.technique == Technique::GuardedJump;
            assert!(guarded || plan.displaced.len() == 1 || plan.region == Len(first.into()), "{name}: {plan:?}");
            assert!(plan.displaced.iter().any(|insn| insn.va == exit.va), "{name}: {plan:?}");
            ends += 1;
            end_jumps += usize::from(plan.patch != Patch::Trap);
        }
        if !restarts {
            assert_eq!(plan.before_handler, 0, "{name}");
            assert_ne!(plan.technique, Technique::JumpOverSeveral, "{name}");
            continue;
        }
        checked += 1;
        assert!(plan.before_handler >= 2, "{name}: the stack check was not recognised");
        let last = plan.displaced.last().expect("instructions");
        let bytes = &last.bytes[..usize::from(last.len)];
        let branch = sidestep_isa::decode(Isa::X64, bytes, last.va).expect("an instruction");
        let Flow::Branch(target) = branch.flow() else { panic!("{name}: {branch} ends the check") };
        assert!(target > last.va && target < end, "{name}: {branch}");
        jumps += usize::from(plan.technique == Technique::JumpOverSeveral);
    }
    assert!(by_goroutine * 100 >= checked * 95, "{by_goroutine} of {checked}");
    println!("{ends} exits, {end_jumps} by a jump");
    assert!(end_jumps * 100 >= ends * 99, "{end_jumps} of {ends}");
    println!("{checked} functions with a stack check, {jumps} by a jump");
    assert!(checked > 500, "only {checked} functions check their stack");
    assert!(jumps * 100 >= checked * 95, "{jumps} of {checked}");
}
