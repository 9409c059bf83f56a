//! Which instructions may fault. That no other does is seen by running them: `differential.rs`.

mod gas;

use sidestep_isa::{Isa, Va, decode, sweep};

const NEVER: &[&str] = &[
    "push %rbp",
    "push $1",
    "pop %r12",
    "pushf",
    "ret",
    "ret $8",
    "call t",
    "jmp t",
    "je t",
    "loop .",
    "mov %rsp,%rbp",
    "sub $0x18,%rsp",
    "mov t(%rip),%rax",
    "mov %eax,t(%rip)",
    "lock incl t(%rip)",
    "movaps t(%rip),%xmm1",
    "call *t(%rip)",
    "lea 8(%rax,%rbx,2),%rcx",
    "endbr64",
    "nopw 0(%rax,%rax,1)",
    "pause",
    "xor %eax,%eax",
    "imul %rsi,%rdi",
    "mul %rsi",
    "bt $3,%rax",
    "cmove %rax,%rbx",
    "xchg %rax,%rbx",
    "movq %rax,%xmm0",
    "pxor %xmm0,%xmm0",
    "mfence",
    "syscall",
];

const SOMETIMES: &[&str] = &[
    "mov (%rax),%eax",
    "mov %fs:0x28,%rax",
    "mov %fs:t(%rip),%rax",
    "mov 8(%rsp),%eax",
    "push 8(%rsp)",
    "pop (%rax)",
    "leave",
    "jmp *%rax",
    "jmp *(%rax)",
    "call *%rax",
    "call *8(%rbx)",
    "div %rcx",
    "idivl t(%rip)",
    "movsb",
    "rep stosq",
    "lodsb",
    "xlat",
    "lock incl (%rdi)",
    "bts %rax,t(%rip)",
    "int3",
    "int $0x80",
    "ud2",
    "hlt",
    "cli",
    "in $1,%al",
    "rdmsr",
    "rdtsc",
    "cpuid",
    "smsw %eax",
    "mov %eax,%ds",
    "lret",
    "iretq",
    "sysenter",
    "xbegin t",
    "fld1",
    "fwait",
    "divsd %xmm1,%xmm2",
    "cvttsd2si %xmm0,%eax",
    "cvttsd2si t(%rip),%eax",
    "ldmxcsr t(%rip)",
    "vpxor %ymm0,%ymm0,%ymm0",
    "popcnt %eax,%eax",
    "maskmovdqu %xmm1,%xmm2",
];

const NEVER_32: &[&str] = &[
    "push %ebp",
    "pushal",
    "pop %edi",
    "ret",
    "call t",
    "jmp t",
    "jecxz .",
    "mov %esp,%ebp",
    "sub $0x18,%esp",
    "lea 8(%eax,%ebx,2),%ecx",
    "inc %eax",
    "daa",
    "endbr32",
    "movd %eax,%xmm0",
    "pxor %xmm0,%xmm0",
];

const SOMETIMES_32: &[&str] = &[
    "mov t,%eax",
    "mov 8(%esp),%eax",
    "mov %gs:0,%eax",
    "leave",
    "into",
    "bound %eax,(%ecx)",
    "aam $0",
    "les (%eax),%ecx",
    "push %es",
    "pop %ds",
    "arpl %ax,(%ecx)",
    "int $0x80",
    "sysenter",
    "syscall",
    "call *%gs:0x10",
    "lcall $0x23,$0x402000",
    "enter $8,$0",
    "xlat",
    "fld1",
];

#[test]
fn what_may_fault_and_what_never_does() {
    for (isa, sources, expected) in [
        (Isa::X64, NEVER, false),
        (Isa::X64, SOMETIMES, true),
        (Isa::X86, NEVER_32, false),
        (Isa::X86, SOMETIMES_32, true),
    ] {
        let code = gas::assemble_for(isa, &sources.join("\n"), 0x40_1000);
        let insns: Vec<_> = sweep(isa, &code, Va(0x40_1000)).map(|insn| insn.expect("an instruction")).collect();
        assert_eq!(insns.len(), sources.len());
        for (insn, source) in insns.iter().zip(sources) {
            assert_eq!(insn.may_fault(), expected, "{source}");
        }
    }
}

#[test]
fn traps_say_the_address_behind_them() {
    for (source, trap) in
        [("int3", true), (".byte 0xf1", true), (".byte 0xcd, 3", true), ("int $0x80", false), ("ud2", false)]
    {
        let insn = decode(Isa::X64, &gas::assemble(source, 0x1000), Va(0x1000)).expect(source);
        assert_eq!(insn.is_trap(), trap, "{source}");
    }
}
