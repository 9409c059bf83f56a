//! What the kernel's probes get wrong on x86, or refuse, by the name of the defect. Each
//! instruction is run by the CPU at its place and as a copy, and by `emulate` where it is prepared.

mod cpu;
mod gas;

use cpu::judge::{difference, seen_from_original};
use cpu::state::gprs;
use cpu::{CODE, Cpu, DATA, FROM, Outcome, Rng, STACK, State, TO};
use iced_x86::Decoder;
use sidestep_isa::x86::emulate::{Memory, Next, Registers, execute, prepare};
use sidestep_isa::{Isa, Va, decode, relocate, relocated_len};

/// Zero flag, trap flag, carry flag.
const ZF: u64 = 1 << 6;
const TF: u64 = 1 << 8;

/// Runs an instruction and its copy from a random state after `set`, sees that they leave the same,
/// and gives that.
fn same(source: &str, set: impl Fn(&mut State)) -> Outcome {
    same_for(Isa::X64, source, set)
}

fn same_for(isa: Isa, source: &str, set: impl Fn(&mut State)) -> Outcome {
    let bytes = gas::assemble_for(isa, source, FROM);
    let insn = decode(isa, &bytes, Va(FROM)).expect(source);
    assert_eq!(insn.len(), bytes.len(), "{source} is one instruction");
    let mut copy = Vec::new();
    relocate(isa, &bytes, Va(FROM), Va(TO), &mut copy).expect(source);
    let mut cpu = Cpu::new(isa);
    cpu.load(&bytes, &copy);
    let mut rng = Rng(bytes.len() as u64 + 77);
    let mut state = State::random(&cpu, &mut rng, &Decoder::with_ip(isa.bits(), &bytes, FROM, 0).decode());
    set(&mut state);
    let original = cpu.run(FROM, &state);
    let copied = seen_from_original(&insn, copy.len(), cpu.run(TO, &state));
    assert_eq!(difference(&insn, &copy, &original, &copied), None, "{source}");
    if let Some(op) = prepare(isa, &bytes) {
        let mut registers = Registers { gpr: gprs(&state.regs), rip: FROM, flags: state.regs.eflags };
        let next = execute(&op, &mut registers, &mut Stack(&mut state.stack));
        if next == Next::Done {
            assert_eq!(registers.gpr, gprs(&original.regs), "{source}");
            assert_eq!(registers.rip, original.reached().unwrap_or(original.regs.rip), "{source}");
            assert_eq!(state.stack, original.stack, "{source}");
        }
    }
    copied
}

struct Stack<'a>(&'a mut [u8]);

impl Stack<'_> {
    fn word(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        let at = usize::try_from(at.checked_sub(STACK)?).ok()?;
        self.0.get_mut(at..at.checked_add(len)?)
    }
}

impl Memory for Stack<'_> {
    fn load(&mut self, at: u64) -> Option<u64> {
        Some(u64::from_le_bytes((&*self.word(at, 8)?).try_into().ok()?))
    }

    fn store(&mut self, at: u64, value: u64) -> Option<()> {
        self.word(at, 8)?.copy_from_slice(&value.to_le_bytes());
        Some(())
    }

    fn load32(&mut self, at: u64) -> Option<u32> {
        Some(u32::from_le_bytes((&*self.word(at, 4)?).try_into().ok()?))
    }

    fn store32(&mut self, at: u64, value: u32) -> Option<()> {
        self.word(at, 4)?.copy_from_slice(&value.to_le_bytes());
        Some(())
    }
}

fn word(end: &Outcome, at: u64) -> u64 {
    let at = (at - STACK) as usize;
    u64::from_le_bytes(end.stack[at..at + 8].try_into().expect("8 bytes"))
}

fn next(source: &str) -> u64 {
    FROM + gas::assemble(source, FROM).len() as u64
}

/// A uprobe on a nop of 5 bytes writes to the words below the stack pointer.
#[test]
fn a_nop_leaves_the_red_zone_alone() {
    for source in ["nopl 0(%rax,%rax,1)", ".byte 0x66; nopl 0(%rax,%rax,1)", "nop", "endbr64"] {
        let end = same(source, |state| state.stack.fill(0x5a));
        assert!(end.stack.iter().all(|byte| *byte == 0x5a), "{source}");
        assert_eq!(end.reached(), Some(next(source)));
        assert!(prepare(Isa::X64, &gas::assemble(source, FROM)).is_some(), "{source}");
    }
}

/// `pushf` is single-stepped, and pushes the trap flag that the step needs.
#[test]
fn pushf_leaks_no_trap_flag() {
    let end = same("pushf", |state| state.regs.eflags |= 1);
    let pushed = word(&end, end.regs.rsp);
    assert_eq!((pushed & TF, pushed & 1, end.regs.eflags & TF), (0, 1, 0));
}

/// After a stepped `syscall` rcx is an address of the slot.
#[test]
fn a_system_call_leaves_the_original_address_in_rcx() {
    let end = same("syscall", |state| state.regs.rax = 0xffff);
    assert_eq!((end.regs.rcx, end.regs.rax as i64), (FROM + 2, -38));
    assert_eq!(end.reached(), Some(FROM + 2));
}

/// `int $0x80` is refused.
#[test]
fn the_system_calls_of_32_bits_are_made() {
    let end = same("int $0x80", |state| state.regs.rax = 0xffff);
    assert_eq!((end.regs.rax as i64, end.reached()), (-38, Some(FROM + 2)));
}

/// The table of opcodes of two bytes is never looked at.
#[test]
fn opcodes_of_two_bytes_are_judged_for_themselves() {
    let judged = |source: &str| {
        let bytes = gas::assemble(source, FROM);
        let insn = decode(Isa::X64, &bytes, Va(FROM)).expect(source);
        (relocated_len(Isa::X64, &bytes, Va(FROM)).expect(source), insn.may_fault())
    };
    assert_eq!(judged("syscall"), (9, false));
    assert_eq!(judged("sysenter"), (2, true));
    assert_eq!(judged("ud2"), (2, true));
    assert_eq!(judged("je t"), (6, false));
    assert_eq!(judged("cmove %rax,%rbx"), (4, false));
    assert_eq!(judged("wrfsbase %rax"), (5, true));
}

/// VEX and EVEX opcodes are looked up in the table of the one-byte opcodes, where ef is `out`, and
/// 6f `outs`.
#[test]
fn vex_and_evex_opcodes_are_no_port_instructions() {
    for source in [
        "vpxor %ymm1,%ymm2,%ymm3",
        "vpxor d(%rip),%xmm2,%xmm3",
        "vmovdqa %ymm1,(%rdi)",
        "vmovdqu (%rsi),%ymm1",
        "vmovd %eax,%xmm9",
        "vpunpcklbw %xmm1,%xmm2,%xmm3",
        "vpunpckhqdq %ymm1,%ymm2,%ymm3",
        "vaddps %zmm1,%zmm2,%zmm17{%k1}{z}",
        "vpaddd 0x40(%rdi){1to16},%zmm2,%zmm17",
    ] {
        let end = same(source, |state| {
            (state.regs.rdi, state.regs.rsi) = (DATA + 0x1000, DATA + 0x1800);
        });
        // A CPU without the instruction says so for both.
        assert!(end.reached() == Some(next(source)) || end.signal.0 == libc::SIGILL, "{source}: {:x?}", end.signal);
    }
}

#[test]
fn prefixes_are_no_reason_to_refuse() {
    let set = |state: &mut State| (state.regs.rdi, state.regs.rdx) = (DATA + 0x1000, CODE + 0x80);
    assert_eq!(same("notrack jmp *%rdx", set).reached(), Some(CODE + 0x80));
    for source in [
        "lock incl (%rdi)",
        "lock cmpxchg16b (%rdi)",
        "lock xadd %rax,8(%rdi)",
        ".byte 0x2e; nopw 0(%rax,%rax,1)",
        ".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0",
        "mov %cs:(%rdi),%eax",
        "mov %ds:(%rdi),%eax",
        "mov %es:(%rdi),%eax",
        "mov %ss:(%rdi),%eax",
        "addq $1,%fs:8",
    ] {
        assert_eq!(same(source, set).reached(), Some(next(source)), "{source}");
    }
}

/// `mov` to ss holds traps back for an instruction, so that a step would be lost: refused.
#[test]
fn a_write_to_the_stack_segment_is_followed_by_the_next_instruction() {
    assert_eq!(same("mov %eax,%ss", |state| state.regs.rax = 0x2b).reached(), Some(FROM + 2));
}

/// The counter is tested before it is counted, and 32 bits of it leave the upper half as it was.
#[test]
fn loops_count_first_and_then_test() {
    let jumps = CODE + 0x1020;
    for (source, rcx, flags, taken, left) in [
        ("loop .+0x20", 0, 0, true, u64::MAX),
        ("loop .+0x20", 1, 0, false, 0),
        ("loop .+0x20", 2, 0, true, 1),
        ("loope .+0x20", 1, ZF, false, 0),
        ("loope .+0x20", 0, ZF, true, u64::MAX),
        ("loope .+0x20", 2, 0, false, 1),
        ("loopne .+0x20", 1, 0, false, 0),
        ("loopne .+0x20", 0, 0, true, u64::MAX),
        ("loopne .+0x20", 2, ZF, false, 1),
        ("addr32 loop .+0x20", 0x7_0000_0000, 0, true, 0xffff_ffff),
        ("addr32 loop .+0x20", 0x7_0000_0001, 0, false, 0),
        ("jrcxz .+0x20", 0, 0, true, 0),
        ("jrcxz .+0x20", 0x7_0000_0000, 0, false, 0x7_0000_0000),
        ("jecxz .+0x20", 0x7_0000_0000, 0, true, 0x7_0000_0000),
    ] {
        let end = same(source, |state| {
            state.regs.rcx = rcx;
            state.regs.eflags = state.regs.eflags & !ZF | flags;
        });
        assert_eq!(end.regs.rcx, left, "{source} with {rcx:#x}");
        assert_eq!(end.reached(), Some(if taken { jumps } else { next(source) }), "{source} with {rcx:#x}");
        assert!(prepare(Isa::X64, &gas::assemble(source, FROM)).is_some(), "{source}");
    }
}

/// The immediate of `ret` is ignored, and `lret` is taken for `ret`.
#[test]
fn returns_drop_what_they_say() {
    let set = |state: &mut State| {
        state.regs.rsp = STACK + 0x800;
        state.stack[0x800..0x808].copy_from_slice(&(CODE + 0x40).to_le_bytes());
        // For `lretq`: the segment of 64-bit code.
        state.stack[0x808..0x810].copy_from_slice(&0x33_u64.to_le_bytes());
    };
    for (source, dropped) in [("ret", 8), ("ret $0x18", 0x20), ("lretq", 16), ("lretq $8", 24)] {
        let end = same(source, set);
        assert_eq!((end.reached(), end.regs.rsp), (Some(CODE + 0x40), STACK + 0x800 + dropped), "{source}");
    }
    assert_eq!(prepare(Isa::X64, &gas::assemble("lretq", FROM)), None);
}

/// `call *%rsp` goes to where the stack pointer is after the push. Operands on the stack are in the
/// same danger.
#[test]
fn calls_through_the_stack_take_their_target_first() {
    let set = |state: &mut State| {
        state.regs.rsp = STACK + 0x800;
        for slot in [0x7f0, 0x7f8, 0x800, 0x808] {
            let target = CODE + slot as u64 - 0x700;
            state.stack[slot..slot + 8].copy_from_slice(&target.to_le_bytes());
        }
    };
    for (source, slot) in [
        ("call *-16(%rsp)", 0x7f0),
        ("call *-8(%rsp)", 0x7f8),
        ("call *(%rsp)", 0x800),
        ("call *8(%rsp)", 0x808),
        ("call *8(%esp)", 0x808),
    ] {
        let end = same(source, set);
        assert_eq!(end.reached(), Some(CODE + slot - 0x700), "{source}");
        assert_eq!(word(&end, STACK + 0x7f8), next(source), "{source}: the return address");
        assert_eq!(end.regs.rsp, STACK + 0x7f8);
    }
    // The stack is not executable: it gets there, and no further.
    let end = same("call *%rsp", set);
    assert_eq!((end.signal.0, end.regs.rip, end.regs.rsp), (libc::SIGSEGV, STACK + 0x800, STACK + 0x7f8));
    assert_eq!(word(&end, STACK + 0x7f8), FROM + 2);
}

/// The return address of an emulated or stepped call is that of the original.
#[test]
fn calls_push_the_original_return_address() {
    for source in ["call .+0x40", "call *%rax", ".byte 0x66, 0x66, 0x48; call .+0x3d"] {
        let end = same(source, |state| state.regs.rax = FROM + 0x40);
        assert_eq!(end.reached(), Some(FROM + 0x40), "{source}");
        assert_eq!(word(&end, end.regs.rsp), next(source), "{source}");
    }
}

/// A call that cannot push has to fault as the call, with the stack pointer where it was.
#[test]
fn a_call_onto_a_bad_stack_faults_at_its_own_address() {
    for source in ["call .+0x40", "call *%rax", "push %rbp", "call *%rsp"] {
        let end = same(source, |state| {
            (state.regs.rsp, state.regs.rax) = (STACK, CODE);
        });
        assert_eq!((end.signal.0, end.signal.2), (libc::SIGSEGV, STACK - 8), "{source}");
        assert_eq!((end.regs.rip, end.regs.rsp), (FROM, STACK), "{source}");
    }
}

/// A scratch register takes the place of rip, and the one for `mulx` and for XOP is wrong.
#[test]
fn operands_relative_to_rip_need_no_register() {
    for source in ["mulx d(%rip),%rsi,%rdi", "mulx d(%rip),%rbx,%rsi", "cmpxchg16b d(%rip)", "divl d(%rip)"] {
        let end = same(source, |state| {
            (state.regs.rax, state.regs.rdx) = (1000, 3);
            state.data[0x1000..0x1010].copy_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        });
        assert_eq!(end.reached(), Some(next(source)), "{source}: {:x?}", end.signal);
    }
}

/// A stepped string instruction is a hit for each repetition. A copy of it runs as a whole.
#[test]
fn a_repeated_string_instruction_is_executed_once() {
    let end = same("rep movsb", |state| {
        (state.regs.rsi, state.regs.rdi, state.regs.rcx) = (DATA + 0x1000, DATA + 0x2000, 20);
        state.regs.eflags &= !(1 << 10);
    });
    assert_eq!((end.reached(), end.regs.rcx, end.regs.rdi), (Some(FROM + 2), 0, DATA + 0x2014));
    assert_eq!(end.data[0x1000..0x1014], end.data[0x2000..0x2014]);
}

/// Traps and stops are refused.
#[test]
fn traps_and_stops_are_those_of_the_program() {
    // Which address it shows is the hypervisor's matter.
    assert_eq!(same("int1", |_| {}).signal.0, libc::SIGTRAP);
    for (source, signal, behind) in [
        ("int3", libc::SIGTRAP, 1),
        ("ud2", libc::SIGILL, 0),
        ("hlt", libc::SIGSEGV, 0),
        ("in $1,%al", libc::SIGSEGV, 0),
        ("int $0x29", libc::SIGSEGV, 0),
    ] {
        let end = same(source, |_| {});
        assert_eq!((end.signal.0, end.regs.rip), (signal, FROM + behind), "{source}");
    }
}

/// A stepped call of 32-bit code pushes an address of the slot, unless it is repaired.
#[test]
fn code_that_asks_for_its_own_address_gets_the_original() {
    let word = |end: &Outcome| {
        let at = (end.regs.rsp - STACK) as usize;
        u64::from(u32::from_le_bytes(end.stack[at..at + 4].try_into().expect("4 bytes")))
    };
    let set = |state: &mut State| {
        state.regs.rsp = STACK + 0x800;
        for slot in [0x7f8, 0x7fc, 0x800, 0x804] {
            let target = (CODE + slot as u64 - 0x700) as u32;
            state.stack[slot..slot + 4].copy_from_slice(&target.to_le_bytes());
        }
    };
    for (source, to, len) in [
        ("call .+5", FROM + 5, 5),
        ("call .+0x40", FROM + 0x40, 5),
        ("call *-8(%esp)", CODE + 0xf8, 4),
        ("call *-4(%esp)", CODE + 0xfc, 4),
        ("call *(%esp)", CODE + 0x100, 3),
        ("call *4(%esp)", CODE + 0x104, 4),
    ] {
        let end = same_for(Isa::X86, source, set);
        assert_eq!((end.reached(), word(&end), end.regs.rsp), (Some(to), FROM + len, STACK + 0x7fc), "{source}");
    }
    let end = same_for(Isa::X86, "call *%esp", set);
    assert_eq!((end.signal.0, end.regs.rip, word(&end)), (libc::SIGSEGV, STACK + 0x800, FROM + 2));
}

/// The ways into the kernel and far returns of 32-bit code, and what only it has.
#[test]
fn what_only_32_bit_code_has_runs_as_it_is() {
    let end = same_for(Isa::X86, "int $0x80", |state| state.regs.rax = 0xffff);
    assert_eq!((end.regs.rax as i32, end.reached()), (-38, Some(FROM + 2)));
    let set = |state: &mut State| {
        state.regs.rsp = STACK + 0x800;
        state.stack[0x800..0x804].copy_from_slice(&(CODE as u32 + 0x40).to_le_bytes());
        state.stack[0x804..0x808].copy_from_slice(&0x23_u32.to_le_bytes());
    };
    for (source, dropped) in [("ret", 4), ("ret $0x18", 0x1c), ("lret", 8), ("lret $8", 16)] {
        let end = same_for(Isa::X86, source, set);
        assert_eq!((end.reached(), end.regs.rsp), (Some(CODE + 0x40), STACK + 0x800 + dropped), "{source}");
    }
    for source in ["pushal", "popal", "daa", "aam", "aad", "push %es", "pushf", ".byte 0xd6", "lea 8(%bx,%si),%eax"] {
        assert_eq!(
            same_for(Isa::X86, source, |_| {}).reached(),
            Some(FROM + gas::assemble_for(Isa::X86, source, FROM).len() as u64),
            "{source}"
        );
    }
    // An overflow is reported behind the instruction.
    let end = same_for(Isa::X86, "into", |state| state.regs.eflags |= 1 << 11);
    assert_eq!((end.signal.0, end.regs.rip), (libc::SIGSEGV, FROM + 1));
}
