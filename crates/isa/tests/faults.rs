//! Which instructions may fault.

mod gas;

use sidestep_isa::Va;
use sidestep_isa::x86::{Insn, decode};

fn insn(source: &str) -> Insn {
    decode(&gas::assemble(source, 0x1000), Va(0x1000)).expect(source)
}

#[test]
fn what_may_be_caught_by_a_handler() {
    let faults = [
        "mov (%rdi),%rax",
        "mov %eax,8(%rbp)",
        "mov 8(%rsp,%rax,8),%rcx",
        "push (%rax)",
        "lock incl (%rdx)",
        "rep movsb",
        "stosq",
        "div %rcx",
        "idivl (%rsp)",
        "call *%rax",
        "jmp *(%rax)",
        "vmovdqu (%rsi),%ymm0",
        "mov %fs:(%rax),%rax",
        "int3",
        "int $0x80",
        "ud2",
        "hlt",
        "in %dx,%al",
    ];
    for source in faults {
        assert!(insn(source).may_fault(), "{source}");
    }
    let safe = [
        "mov %rdi,%rax",
        "push %rbx",
        "pop %rbx",
        "ret",
        "call 0x2000",
        "jne 0x2000",
        "lea (%rdi),%rax",
        "nopl 8(%rax,%rax)",
        "endbr64",
        "mov 8(%rsp),%rax",
        "movq $1,-8(%rsp)",
        "mov 0x2000(%rip),%rax",
        "call *0x2000(%rip)",
        "mov %fs:0x28,%rax",
        "imul %rcx",
        "syscall",
    ];
    for source in safe {
        assert!(!insn(source).may_fault(), "{source}");
    }
}

#[test]
fn traps_say_the_address_behind_them() {
    for (source, trap) in
        [("int3", true), (".byte 0xf1", true), (".byte 0xcd, 3", true), ("int $0x80", false), ("ud2", false)]
    {
        assert_eq!(insn(source).is_trap(), trap, "{source}");
    }
}
