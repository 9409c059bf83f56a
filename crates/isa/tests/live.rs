//! Liveness, on small programs from the assembler.

mod gas;

use sidestep_isa::live::dead_before;
use sidestep_isa::{Isa, Va};

const NAMES: [&str; 16] =
    ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

/// Code; registers that are dead before it; whether the flags are.
const CASES: &[(&str, &str, bool)] = &[
    ("ret", "", false),
    ("mov $1,%eax; ret", "rax", false),
    ("mov $1,%ax; ret", "", false),
    ("mov $1,%al; ret", "", false),
    ("xor %eax,%eax; ret", "rax", true),
    ("sub %ecx,%ecx; ret", "rcx", true),
    ("push %rbp; mov %rsp,%rbp; sub $16,%rsp; ret", "", true),
    ("mov (%rdi),%rdi; ret", "", false),
    ("lea 8(%rsi),%rdi; mov %rdi,%rsi; ret", "rdi", false),
    ("cmp $1,%edi; je 1f; mov $1,%eax; mov $2,%edx; ret; 1: mov $3,%edx; ret", "rdx", true),
    ("je 1f; mov $1,%eax; ret; 1: mov $3,%eax; ret", "rax", false),
    ("1: dec %ecx; jne 1b; ret", "", false),
    ("inc %eax; ret", "", false),
    ("inc %eax; adc $1,%eax; ret", "", false),
    ("shl %cl,%rdx; ret", "", false),
    ("shl $3,%rdx; ret", "", false),
    ("shl $1,%rdx; ret", "", true),
    ("shl $0,%rdx; ret", "", false),
    ("cmove %rsi,%rax; ret", "", false),
    ("bsf %rsi,%rax; ret", "", false),
    // Taken for a write, it cost `_Unwind_Resume` its 0 in rdx, and the program its life.
    ("rdsspq %rdx; ret", "", false),
    ("rep stosb; ret", "", false),
    ("repe cmpsb; ret", "", false),
    ("xor %eax,%eax; rep stosb; ret", "rax", true),
    ("call 1f; mov $1,%eax; 1: ret", "", false),
    ("syscall; mov $1,%edx; ret", "", false),
    ("mov $1,%r11d; jmp *%r11", "r11", false),
    // A process can have it fault (`ARCH_SET_CPUID`).
    ("cpuid; ret", "", false),
    ("popf; ret", "", true),
    ("lahf; ret", "", false),
    ("mul %rsi; ret", "rdx", false),
    ("cqto; idiv %rcx; ret", "rdx", false),
    ("test %al,%al; ret", "", true),
    ("jmp 1f; nop; 1: mov $5,%r10d; mov $6,%r15; ret", "r10 r15", false),
];

/// The same of 32-bit code.
const CASES_32: &[(&str, &str, bool)] = &[
    ("ret", "", false),
    ("mov $1,%eax; ret", "rax", false),
    ("mov 4(%esp),%eax; ret", "rax", false),
    ("push %ebp; mov %esp,%ebp; sub $16,%esp; ret", "", true),
    ("inc %edx; ret", "", false),
    ("popal; ret", "rax rcx rdx rbx rbp rsi rdi", false),
    ("pushal; mov $1,%ecx; ret", "", false),
    ("aam; ret", "", false),
    ("call 1f; 1: pop %ebx; ret", "", false),
    ("int $0x80; mov $1,%edx; ret", "", false),
    ("mov %gs:0,%ecx; ret", "rcx", false),
];

#[test]
fn what_the_next_instructions_overwrite_unread_is_dead() {
    let at = 0x40_1000;
    let cases = CASES.iter().map(|case| (Isa::X64, case)).chain(CASES_32.iter().map(|case| (Isa::X86, case)));
    for (isa, (source, regs, flags)) in cases {
        let code = gas::assemble_for(isa, source, at);
        let dead = dead_before(isa, &code, Va(at), Va(at), &|_| false);
        let names: Vec<_> = (0..16).filter(|i| dead.regs >> i & 1 == 1).map(|i| NAMES[i]).collect();
        assert_eq!((names.join(" ").as_str(), dead.flags), (*regs, *flags), "{source}");
    }
}

/// What a handler of a fault, or a landing pad, finds in the registers. Both were forgotten: the
/// value that a `catch` returns was overwritten.
#[test]
fn what_is_overwritten_behind_a_fault_was_dead_in_front_of_it() {
    let at = 0x40_1000;
    // Code; what is dead if a fault can only be skipped or tried again; and if the program may go
    // on elsewhere.
    for (source, skipped, elsewhere) in [
        ("mov (%rdi),%rax; pop %rbx; ret", "rbx", ""),
        ("mov $1,%ecx; mov (%rdi),%rax; pop %rbx; ret", "rcx rbx", "rcx"),
        ("cmpl $0,(%rdi); mov $1,%eax; ret", "rax", ""),
        ("movaps (%rdi),%xmm0; mov $1,%eax; ret", "rax", ""),
        ("idiv %ecx; mov $1,%ecx; ret", "", ""),
        ("mov 8(%rsp),%rax; mov $1,%ecx; ret", "rax rcx", "rax rcx"),
        ("mov %fs:0x28,%rax; mov $1,%ecx; ret", "rax rcx", "rax rcx"),
        ("mov %fs:(%rdx),%rax; mov $1,%ecx; ret", "rcx", ""),
        ("mov 8(%rip),%rax; mov $1,%ecx; ret", "rax rcx", "rax rcx"),
    ] {
        let code = gas::assemble(source, at);
        for (recovers, want) in [(false, skipped), (true, elsewhere)] {
            let dead = dead_before(Isa::X64, &code, Va(at), Va(at), &|_| recovers);
            let names: Vec<_> = (0..16).filter(|i| dead.regs >> i & 1 == 1).map(|i| NAMES[i]).collect();
            assert_eq!(names.join(" "), want, "{source} {recovers}");
        }
    }
    let code = gas::assemble("cmpl $0,(%rdi); ret", at);
    assert!(!dead_before(Isa::X64, &code, Va(at), Va(at), &|_| false).flags, "the comparison may be skipped");
}

#[test]
fn nothing_is_dead_where_the_code_ends() {
    let code = gas::assemble("mov %rsi,%rdi", 0x40_1000);
    let dead = dead_before(Isa::X64, &code, Va(0x40_1000), Va(0x40_1000), &|_| false);
    assert_eq!(dead.regs, 1 << 7, "rdi is overwritten, all else is live");
    assert_eq!(dead_before(Isa::X64, &code, Va(0x40_1000), Va(0x40_2000), &|_| false).regs, 0);
}
