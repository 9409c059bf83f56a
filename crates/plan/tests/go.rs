//! Go programs: the handler runs behind the stack check, and nothing else is displaced with a neighbour.

mod elf;

use std::process::Command;

use sidestep_isa::x86::{Flow, sweep};
use sidestep_isa::{Isa, Len, Va};
use sidestep_plan::{Index, Technique, plan};

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
    // The compiler and the linker say which functions check their stack: those that call one of these.
    let names = ["runtime.morestack.abi0", "runtime.morestack_noctxt.abi0", "runtime.morestackc.abi0"];
    let more: Vec<Va> = names.into_iter().filter_map(address).collect();
    assert!(!more.is_empty());

    let (mut checked, mut jumps) = (0, 0);
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
        if !restarts {
            assert_eq!(plan.before_handler, 0, "{name}");
            assert_ne!(plan.technique, Technique::JumpOverSeveral, "{name}");
            continue;
        }
        checked += 1;
        assert!(plan.before_handler >= 2, "{name}: the stack check was not recognised");
        let last = plan.displaced.last().expect("instructions");
        let bytes = &last.bytes[..usize::from(last.len)];
        let branch = sidestep_isa::x86::decode(Isa::X64, bytes, last.va).expect("an instruction");
        let Flow::Branch(target) = branch.flow() else { panic!("{name}: {branch} ends the check") };
        assert!(target > last.va && target < end, "{name}: {branch}");
        jumps += usize::from(plan.technique == Technique::JumpOverSeveral);
    }
    println!("{checked} functions with a stack check, {jumps} by a jump");
    assert!(checked > 500, "only {checked} functions check their stack");
    assert!(jumps * 100 >= checked * 95, "{jumps} of {checked}");
}
