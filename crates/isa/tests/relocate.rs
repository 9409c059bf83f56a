//! Relocation, checked against the GNU tools: what the assembler makes of the same meaning at the
//! new address, and what `objdump` reads in copies of real code.

mod gas;

use proptest::prelude::*;
use sidestep_isa::{Flow, Insn, Isa, RelocateError, Va, decode, relocate, relocated_len, sweep};

const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const FROM: u64 = 0x40_1000;
const TO: u64 = 0x4321_0000;

/// Original at `FROM`, and what the copy at `TO` must be. `t` is 0x402000, `back` the address
/// behind the original.
const COPIES: &[(&str, &str)] = &[
    ("push %rbp", "push %rbp"),
    ("ret", "ret"),
    ("ret $8", "ret $8"),
    ("endbr64", "endbr64"),
    ("int3", "int3"),
    ("int $0x80", "int $0x80"),
    ("ud2", "ud2"),
    ("hlt", "hlt"),
    ("rep movsb", "rep movsb"),
    ("jmp *%rax", "jmp *%rax"),
    ("notrack jmp *%rdx", "notrack jmp *%rdx"),
    ("jmp *8(%rsp)", "jmp *8(%rsp)"),
    ("jmp *t(%rip)", "jmp *t(%rip)"),
    ("lea t(%rip),%r9", "lea t(%rip),%r9"),
    ("mov t(%rip),%al", "mov t(%rip),%al"),
    ("cmpl $1,t(%rip)", "cmpl $1,t(%rip)"),
    ("movq $0x12345678,t(%rip)", "movq $0x12345678,t(%rip)"),
    ("cmpw $0x1234,t(%rip)", "cmpw $0x1234,t(%rip)"),
    ("lock incl t(%rip)", "lock incl t(%rip)"),
    ("pshufd $3,t(%rip),%xmm1", "pshufd $3,t(%rip),%xmm1"),
    ("vpblendd $3,t(%rip),%ymm1,%ymm12", "vpblendd $3,t(%rip),%ymm1,%ymm12"),
    ("vpaddd t(%rip){1to16},%zmm17,%zmm1", "vpaddd t(%rip){1to16},%zmm17,%zmm1"),
    ("push t(%rip)", "push t(%rip)"),
    ("jmp 0x401010", "{disp32} jmp 0x401010"),
    ("jmp t", "jmp t"),
    ("je 0x401010", "{disp32} je 0x401010"),
    ("jnp t", "jnp t"),
    ("jg,pt 0x401010", "{disp32} jg 0x401010"),
    ("loop .+0x20", "loop 1f; jmp 2f; 1: {disp32} jmp 0x401020; 2:"),
    ("loope .+0x20", "loope 1f; jmp 2f; 1: {disp32} jmp 0x401020; 2:"),
    ("loopne .-0x10", "loopne 1f; jmp 2f; 1: {disp32} jmp 0x400ff0; 2:"),
    (".byte 0xf2; loope .+0x20", ".byte 0xf2; loope 1f; jmp 2f; 1: {disp32} jmp 0x401021; 2:"),
    ("jrcxz .+0x20", "jrcxz 1f; jmp 2f; 1: {disp32} jmp 0x401020; 2:"),
    ("jecxz .+0x20", "jecxz 1f; jmp 2f; 1: {disp32} jmp 0x401020; 2:"),
    ("call t", "push 1f(%rip); {disp32} jmp t; 1: .quad back"),
    ("call *%rax", "push 1f(%rip); jmp *%rax; 1: .quad back"),
    ("call *%r11", "push 1f(%rip); jmp *%r11; 1: .quad back"),
    ("notrack call *%r11", "push 1f(%rip); notrack jmp *%r11; 1: .quad back"),
    ("call *(%rbx)", "push 1f(%rip); jmp *(%rbx); 1: .quad back"),
    ("call *(%r12)", "push 1f(%rip); jmp *(%r12); 1: .quad back"),
    ("call *0x10(%r13,%rcx,8)", "push 1f(%rip); jmp *0x10(%r13,%rcx,8); 1: .quad back"),
    ("call *t(%rip)", "push 1f(%rip); jmp *t(%rip); 1: .quad back"),
    ("call *%fs:0x28", "push 1f(%rip); jmp *%fs:0x28; 1: .quad back"),
    ("call *(%rsp)", "push 1f(%rip); {disp32} jmp *8(%rsp); 1: .quad back"),
    ("call *-16(%rsp)", "push 1f(%rip); {disp32} jmp *-8(%rsp); 1: .quad back"),
    ("call *0x18(%rsp)", "push 1f(%rip); {disp32} jmp *0x20(%rsp); 1: .quad back"),
    ("call *0x1000(%rsp,%r14,8)", "push 1f(%rip); jmp *0x1008(%rsp,%r14,8); 1: .quad back"),
    ("call *8(%esp)", "push 1f(%rip); {disp32} jmp *16(%esp); 1: .quad back"),
    ("call *0x7ffffffc(%esp)", "push 1f(%rip); {disp32} jmp *-0x7ffffffc(%esp); 1: .quad back"),
    ("call *t(%eip)", "push 1f(%rip); jmp *t(%eip); 1: .quad back"),
    ("call *%rsp", ".byte 0xff, 0xf4; pop -16(%rsp); push 1f(%rip); jmp *-8(%rsp); 1: .quad back"),
    ("call *-1(%rsp)", "push -1(%rsp); pop -16(%rsp); push 1f(%rip); jmp *-8(%rsp); 1: .quad back"),
    ("call *-8(%rsp)", "push -8(%rsp); pop -16(%rsp); push 1f(%rip); jmp *-8(%rsp); 1: .quad back"),
    ("call *0x7ffffffc(%rsp)", "push 0x7ffffffc(%rsp); pop -16(%rsp); push 1f(%rip); jmp *-8(%rsp); 1: .quad back"),
    ("mov t(%eip),%eax", "mov t(%eip),%eax"),
    ("movl $0x12345678,%fs:t(%eip)", "movl $0x12345678,%fs:t(%eip)"),
    ("ljmp *t(%rip)", "ljmp *t(%rip)"),
    ("ljmp *(%rax)", "ljmp *(%rax)"),
    ("ud1 t(%rip),%eax", "ud1 t(%rip),%eax"),
    ("xbegin t", "xbegin t"),
    (".byte 0x66, 0xc7, 0xf8, 0x20, 0", "xbegin 0x401025"),
    ("xend", "xend"),
    ("int3", "int3"),
    (".byte 0xcd, 3", ".byte 0xcd, 3"),
    ("int $0x80", "int $0x80"),
    ("int1", "int1"),
    ("ud2", "ud2"),
    ("hlt", "hlt"),
    ("lret", "lret"),
    ("iretq", "iretq"),
    ("sysenter", "sysenter"),
    // lea back(%rip),%rcx
    ("syscall", "syscall; .byte 0x48, 0x8d, 0x0d; .long back - 0x43210009"),
    (".byte 0x48; syscall", ".byte 0x48; syscall; .byte 0x48, 0x8d, 0x0d; .long back - 0x4321000a"),
    (".byte 0x66, 0x66, 0x48; call t", "push 1f(%rip); {disp32} jmp t; 1: .quad back"),
    (".byte 0x66, 0x48; call *t(%rip)", "push 1f(%rip); .byte 0x66, 0x48; jmp *t(%rip); 1: .quad back"),
    ("data16 ret", "data16 ret"),
    (".byte 0x66; jmp *t(%rip)", ".byte 0x66; jmp *t(%rip)"),
];

/// The same of 32-bit code.
const COPIES_32: &[(&str, &str)] = &[
    ("push %ebp", "push %ebp"),
    ("pushal", "pushal"),
    ("inc %eax", "inc %eax"),
    ("into", "into"),
    ("bound %eax,(%ecx)", "bound %eax,(%ecx)"),
    ("les (%eax),%ecx", "les (%eax),%ecx"),
    ("aam", "aam"),
    ("mov t,%eax", "mov t,%eax"),
    ("incl t", "incl t"),
    ("vpaddd t,%ymm1,%ymm2", "vpaddd t,%ymm1,%ymm2"),
    ("mov %gs:0,%eax", "mov %gs:0,%eax"),
    ("call *%gs:0x10", "push $back; jmp *%gs:0x10"),
    ("ret", "ret"),
    ("ret $4", "ret $4"),
    ("retw", "retw"),
    ("lret", "lret"),
    ("iret", "iret"),
    ("int $0x80", "int $0x80"),
    ("sysenter", "sysenter"),
    ("syscall", "syscall"),
    ("jmp t", "jmp t"),
    ("jmp .+0x10", "{disp32} jmp 0x401010"),
    ("notrack jmp *%edx", "notrack jmp *%edx"),
    ("jmp *8(%esp)", "jmp *8(%esp)"),
    ("jmp *t(,%eax,4)", "jmp *t(,%eax,4)"),
    ("ljmp *(%eax)", "ljmp *(%eax)"),
    ("ljmp $0x23,$0x402000", "ljmp $0x23,$0x402000"),
    ("je .+0x10", "{disp32} je 0x401010"),
    ("jg t", "jg t"),
    ("bnd je t", "je t"),
    ("loop .+0x10", ".byte 0xe2, 2, 0xeb, 5; {disp32} jmp 0x401010"),
    ("jecxz .+0x10", ".byte 0xe3, 2, 0xeb, 5; {disp32} jmp 0x401010"),
    ("jcxz .+0x10", ".byte 0x67, 0xe3, 2, 0xeb, 5; {disp32} jmp 0x401010"),
    ("call t", "push $back; {disp32} jmp t"),
    ("call .+5", "push $back; {disp32} jmp 0x401005"),
    ("call *%eax", "push $back; jmp *%eax"),
    ("call *t", "push $back; jmp *t"),
    ("call *t(,%ecx,4)", "push $back; jmp *t(,%ecx,4)"),
    ("call *8(%ebx)", "push $back; jmp *8(%ebx)"),
    ("call *(%bx,%si)", "push $back; jmp *(%bx,%si)"),
    ("call *(%esp)", "push $back; {disp32} jmp *4(%esp)"),
    ("call *-8(%esp)", "push $back; {disp32} jmp *-4(%esp)"),
    ("call *0x18(%esp)", "push $back; {disp32} jmp *0x1c(%esp)"),
    ("call *0x1000(%esp,%edi,8)", "push $back; jmp *0x1004(%esp,%edi,8)"),
    ("call *0x7ffffffe(%esp)", "push $back; {disp32} jmp *-0x7ffffffe(%esp)"),
    ("call *%esp", ".byte 0xff, 0xf4; pop -8(%esp); push $back; jmp *-4(%esp)"),
    ("call *-4(%esp)", "push -4(%esp); pop -8(%esp); push $back; jmp *-4(%esp)"),
    ("call *-1(%esp)", "push -1(%esp); pop -8(%esp); push $back; jmp *-4(%esp)"),
    ("xbegin t", "xbegin t"),
];

fn assembled(isa: Isa, source: &str, at: u64, back: u64) -> Vec<u8> {
    gas::assemble_for(isa, &format!(".set back, {back:#x}\n{source}"), at)
}

#[test]
fn copies_are_what_the_assembler_would_write_there() {
    let cases = COPIES.iter().map(|case| (Isa::X64, case)).chain(COPIES_32.iter().map(|case| (Isa::X86, case)));
    for (isa, (original, copy)) in cases {
        let bytes = assembled(isa, original, FROM, 0);
        let expected = assembled(isa, copy, TO, FROM + bytes.len() as u64);
        let mut out = Vec::new();
        relocate(isa, &bytes, Va(FROM), Va(TO), &mut out).unwrap_or_else(|e| panic!("{original}: {e}"));
        assert_eq!(hex(&out), hex(&expected), "{original}");
        assert_eq!(relocated_len(isa, &bytes, Va(FROM)), Ok(out.len()), "{original}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x} ")).collect()
}

#[test]
fn what_cpus_disagree_about_is_refused() {
    let refused = [
        "lcall *(%rax)",
        "lcall *t(%rip)",
        ".byte 0x66; jmp t",
        ".byte 0x66; jmp .+0x10",
        ".byte 0x66; je .+0x10",
        ".byte 0x66; loop .+0x10",
        ".byte 0x66; je t",
        ".byte 0x66; call t",
        ".byte 0x66; call *%rax",
        ".byte 0x66; call *t(%rip)",
        ".byte 0x48, 0x66; call t",
    ];
    let refused_32 = [
        "lcall *(%eax)",
        "lcall $0x23,$0x402000",
        ".byte 0x66; jmp .+0x10",
        ".byte 0x66; je .+0x10",
        ".byte 0x66, 0xe8, 0x10, 0",
        ".byte 0x66; call *%eax",
    ];
    let cases = refused.iter().map(|case| (Isa::X64, case)).chain(refused_32.iter().map(|case| (Isa::X86, case)));
    for (isa, original) in cases {
        let bytes = assembled(isa, original, FROM, 0);
        let mut out = vec![1, 2, 3];
        let error = relocate(isa, &bytes, Va(FROM), Va(TO), &mut out).expect_err(original);
        assert!(matches!(error, RelocateError::Unsupported { .. }), "{original}: {error:?}");
        assert_eq!(out, [1, 2, 3], "{original}");
        assert_eq!(relocated_len(isa, &bytes, Va(FROM)).expect_err(original), error);
        assert_eq!(error.to_string().lines().count(), 1);
    }
}

#[test]
fn what_is_too_far_away_is_an_error_and_not_a_wrapped_displacement() {
    for original in
        ["lea t(%rip),%rax", "jmp t", "je t", "call t", "call *t(%rip)", "loop .+0x20", "syscall", "xbegin t"]
    {
        let bytes = assembled(Isa::X64, original, FROM, 0);
        let mut out = Vec::new();
        let error = relocate(Isa::X64, &bytes, Va(FROM), Va(0x7fff_0000_0000), &mut out).expect_err(original);
        assert!(matches!(error, RelocateError::OutOfReach { .. }), "{original}: {error:?}");
        assert!(out.is_empty(), "{original}");
    }
    // Addresses of 32 bits are reached from everywhere.
    let bytes = assembled(Isa::X64, "lea t(%eip),%rax", FROM, 0);
    let (to, mut out) = (Va(0x7fff_1234_5678), Vec::new());
    relocate(Isa::X64, &bytes, Va(FROM), to, &mut out).expect("a copy");
    assert_eq!(decode(Isa::X64, &out, to).expect("an instruction").pc_target(), Some(Va(0x40_2000)));
}

/// `objdump`'s text with rip-relative operands as absolute addresses.
fn absolute(line: &str) -> String {
    let (insn, comment) = line.split_once('#').unwrap_or((line, ""));
    let mut text = insn.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(end) = text.find("(%rip)") {
        let start = text[..end].rfind([' ', ',', '*']).map_or(0, |i| i + 1);
        text.replace_range(start..end, comment.trim());
    }
    text
}

#[test]
fn objdump_reads_the_same_in_copies_of_libc() {
    objdump_reads_the_same(Isa::X64, LIBC, "i386:x86-64");
}

#[test]
fn objdump_reads_the_same_in_copies_of_a_32_bit_libc() {
    objdump_reads_the_same(Isa::X86, "/usr/i686-linux-gnu/lib/libc.so.6", "i386");
}

fn objdump_reads_the_same(isa: Isa, library: &str, machine: &str) {
    let (va, text) = gas::text_of(library);
    let to = va + 0x1234_5000;
    let (mut originals, mut copies) = (Vec::new(), Vec::new());
    let mut kinds = [0; 3];
    for insn in sweep(isa, &text, Va(va)).map_while(Result::ok).step_by(37) {
        let offset = insn.va().since(Va(va)) as usize;
        let bytes = &text[offset..offset + insn.len()];
        let kind = match insn.flow() {
            // `loop` and `jecxz` reach no further: their copies are several instructions.
            Flow::Branch(_) if matches!(bytes[0], 0xe0..=0xe3) => continue,
            Flow::Jump(_) | Flow::Branch(_) => 1,
            Flow::Next | Flow::Return | Flow::JumpIndirect => usize::from(insn.pc_target().is_some()) * 2,
            _ => continue,
        };
        // Two places, both filled with nops behind the instruction, so that each is disassembled on
        // its own.
        let at = copies.len() as u64;
        if relocate(isa, bytes, insn.va(), Va(to + at), &mut copies).is_err() {
            continue;
        }
        kinds[kind] += 1;
        copies.resize(copies.len().next_multiple_of(16) + 16, 0x90);
        originals.push((insn.va(), bytes.to_vec(), at));
    }
    // No operand is relative to the instruction in 32-bit code.
    let kinds = if isa == Isa::X86 { &kinds[..2] } else { &kinds };
    assert!(kinds.iter().all(|n| *n > 200), "too few of a kind: {kinds:?}");

    // One listing of libc, one of all copies.
    let dir = gas::Scratch::new();
    let raw = dir.path("raw");
    let listing = |bytes: &[u8], at: u64| {
        std::fs::write(&raw, bytes).expect("a file");
        gas::run(
            std::process::Command::new("objdump")
                .args(["-D", "-b", "binary", "-m", machine, "--no-show-raw-insn"])
                .arg(format!("--adjust-vma={at:#x}"))
                .arg(&raw),
        )
        .lines()
        .filter_map(|line| line.split_once(":\t"))
        .filter_map(|(at, insn)| Some((u64::from_str_radix(at.trim(), 16).ok()?, absolute(insn))))
        .collect::<std::collections::HashMap<_, _>>()
    };
    let before = listing(&text, va);
    let after = listing(&copies, to);
    let mut compared = 0;
    for (from, bytes, at) in originals {
        let (Some(old), Some(new)) = (before.get(&from.0), after.get(&(to + at))) else { continue };
        let old = old.replace(",pt", "").replace(",pn", "").replace("bnd ", "");
        assert_eq!(&old, new, "{from}: {}", hex(&bytes));
        compared += 1;
    }
    assert!(compared > 5000, "only {compared} instructions were compared");
}

/// Where the kernel's half begins, there is nothing: distances wrap, and every copy reaches.
#[test]
fn distances_wrap_in_32_bit_code() {
    let mut out = Vec::new();
    relocate(Isa::X86, &[0xe8, 0xfb, 0xef, 0xff, 0xff], Va(0x1000), Va(0xf7f0_0000), &mut out).expect("a copy");
    assert_eq!(decode(Isa::X86, &out[5..], Va(0xf7f0_0005)).expect("a jump").flow(), Flow::Jump(Va(0)));
    assert_eq!(&out[..5], [0x68, 0x05, 0x10, 0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_meaning_is_kept_and_the_length_does_not_depend_on_the_place(
        pick in any::<prop::sample::Index>(),
        to in 0x10_0000_u64..0x7000_0000,
    ) {
        static TEXT: std::sync::OnceLock<(u64, Vec<u8>, Vec<Insn>)> = std::sync::OnceLock::new();
        let (va, text, insns) = TEXT.get_or_init(|| {
            let (va, text) = gas::text_of(LIBC);
            let insns = sweep(Isa::X64, &text, Va(va)).map_while(Result::ok).collect();
            (va, text, insns)
        });
        let insn = pick.get(insns);
        let bytes = &text[insn.va().since(Va(*va)) as usize..];
        let mut copy = Vec::new();
        match relocate(Isa::X64, bytes, insn.va(), Va(to), &mut copy) {
            Err(error) => prop_assert_eq!(relocated_len(Isa::X64, bytes, insn.va()), Err(error)),
            Ok(()) => {
                prop_assert_eq!(relocated_len(Isa::X64, bytes, insn.va()), Ok(copy.len()));
                let parts: Vec<_> = sweep(Isa::X64, &copy, Va(to)).map_while(Result::ok).collect();
                match insn.flow() {
                    Flow::Call(target) => {
                        prop_assert_eq!(parts[0].pc_target(), Some(Va(to + copy.len() as u64 - 8)));
                        prop_assert_eq!(parts[1].flow(), Flow::Jump(target));
                        prop_assert_eq!(&copy[copy.len() - 8..], &insn.next().0.to_le_bytes());
                    }
                    Flow::CallIndirect => {
                        prop_assert_eq!(parts[1].flow(), Flow::JumpIndirect);
                        prop_assert_eq!(parts[1].pc_target(), insn.pc_target());
                        prop_assert_eq!(&copy[copy.len() - 8..], &insn.next().0.to_le_bytes());
                    }
                    Flow::Branch(target) if parts.len() > 1 => {
                        prop_assert_eq!(parts[0].flow(), Flow::Branch(parts[2].va()));
                        prop_assert_eq!(parts[1].flow(), Flow::Jump(Va(to + copy.len() as u64)));
                        prop_assert_eq!(parts[2].flow(), Flow::Jump(target));
                    }
                    Flow::Syscall => {
                        prop_assert_eq!(parts[0].flow(), Flow::Syscall);
                        // lea back(%rip),%rcx
                        prop_assert_eq!(parts[1].pc_target(), Some(insn.next()));
                    }
                    flow => {
                        prop_assert_eq!(parts.len(), 1);
                        prop_assert_eq!(parts[0].flow(), flow);
                        prop_assert_eq!(parts[0].pc_target(), insn.pc_target());
                        prop_assert_eq!(parts[0].usage(), insn.usage());
                    }
                }
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..20), to in any::<u64>()) {
        let mut out = Vec::new();
        let done = relocate(Isa::X64, &bytes, Va(FROM), Va(to), &mut out);
        match relocated_len(Isa::X64, &bytes, Va(FROM)) {
            Ok(len) => prop_assert!(done.is_err() || out.len() == len),
            Err(error) => prop_assert_eq!(done, Err(error)),
        }
        if let Ok(insn) = decode(Isa::X64, &bytes, Va(FROM)) {
            let _ = (insn.to_string(), insn.usage(), insn.flow(), insn.address_candidate());
        }
        out.clear();
        let done = relocate(Isa::X86, &bytes, Va(FROM), Va(to), &mut out);
        match relocated_len(Isa::X86, &bytes, Va(FROM)) {
            Ok(len) => prop_assert_eq!((done, out.len()), (Ok(()), len)),
            Err(error) => prop_assert_eq!(done, Err(error)),
        }
    }
}
