//! Prepared operations do what the CPU does, or leave the instruction to its displaced copy without
//! having changed anything.

mod cpu;
mod gas;
mod generate;

use std::collections::BTreeMap;

use cpu::{CODE, Cpu, DATA, DATA_LEN, FROM, Rng, STACK, STACK_LEN, State};
use generate::Cases;
use sidestep_isa::x86::emulate::{Memory, Next, Op, Registers, execute, prepare};
use sidestep_isa::{Isa, Va, decode};

/// The memory of a state, and code that can be read.
struct Ram<'a> {
    state: &'a mut State,
    code: &'a [u8],
}

/// Some bytes at an address, if all of them lie in memory that starts at `start`.
fn within(at: u64, size: usize, start: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let offset = usize::try_from(at.checked_sub(start)?).ok()?;
    (offset.checked_add(size)? <= len).then(|| offset..offset + size)
}

impl Ram<'_> {
    fn read<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let State { data, stack, .. } = &*self.state;
        let memories = [(DATA, &data[..]), (STACK, stack), (CODE, self.code)];
        memories.iter().find_map(|(start, bytes)| bytes[within(at, N, *start, bytes.len())?].try_into().ok())
    }

    fn write(&mut self, at: u64, value: &[u8]) -> Option<()> {
        let places = [(DATA, &mut self.state.data), (STACK, &mut self.state.stack)];
        places.into_iter().find_map(|(start, bytes)| {
            let word = within(at, value.len(), start, bytes.len())?;
            bytes[word].copy_from_slice(value);
            Some(())
        })
    }
}

impl Memory for Ram<'_> {
    fn load(&mut self, at: u64) -> Option<u64> {
        self.read(at).map(u64::from_le_bytes)
    }

    fn store(&mut self, at: u64, value: u64) -> Option<()> {
        self.write(at, &value.to_le_bytes())
    }

    fn load32(&mut self, at: u64) -> Option<u32> {
        self.read(at).map(u32::from_le_bytes)
    }

    fn store32(&mut self, at: u64, value: u32) -> Option<()> {
        self.write(at, &value.to_le_bytes())
    }
}

/// The six arithmetic flags and the direction.
const FLAGS: u64 = 1 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 11;

#[derive(Default, Debug)]
struct Tally {
    done: usize,
    displaced: usize,
    mnemonics: BTreeMap<String, usize>,
}

/// Compares all cases that can be prepared.
fn compare(cases: &Cases, states: usize, seed: u64) -> Tally {
    let isa = cases.isa;
    let mut cpu = Cpu::new(isa);
    let mut rng = Rng(seed);
    let mut tally = Tally::default();
    for case in &cases.cases {
        let Some(op) = prepare(isa, &case.bytes) else { continue };
        let name = format!("{:02x?} {}", case.bytes, decode(isa, &case.bytes, Va(FROM)).expect("an instruction"));
        assert_eq!(Op::from_words(op.to_words()), op);
        *tally.mnemonics.entry(format!("{:?}", case.insn.mnemonic())).or_default() += 1;
        cpu.load(&case.bytes, &[]);
        let code = cpu.code();
        for _ in 0..states {
            let mut state = State::random(&cpu, &mut rng, &case.insn);
            if rng.one_in(16) {
                // At an end of the stack, or nowhere.
                let top = STACK + STACK_LEN as u64;
                let places = [STACK, top - isa.word(), top, 0x10, 1 << (isa.bits() - 1)];
                state.regs.rsp = places[rng.below(5) as usize];
            }
            let end = cpu.run(FROM, &state);
            let before = Registers { gpr: cpu::state::gprs(&state.regs), rip: FROM, flags: state.regs.eflags };
            let mut after = before;
            let mut memory = state.clone();
            let next = execute(&op, &mut after, &mut Ram { state: &mut memory, code: &code });
            if next == Next::Displaced {
                tally.displaced += 1;
                assert_eq!(after, before, "{name}: a step that was not done has changed registers");
                assert!(memory.data == state.data && memory.stack == state.stack, "{name}: or memory");
                // Only what faults here, or at an address that is none, is left to the copy.
                let fault = end.signal.0 == libc::SIGSEGV || end.signal.0 == libc::SIGBUS;
                let mapped = end.regs.rip >> 47 == 0 && end.regs.rip != FROM;
                assert!(fault && !mapped, "{name}: {:x?} at {:#x}", end.signal, end.regs.rip);
                continue;
            }
            if (FROM..FROM + case.bytes.len() as u64).contains(&after.rip) {
                continue; // into itself: the CPU went on from there
            }
            tally.done += 1;
            let reached = end.reached().unwrap_or(end.regs.rip);
            assert_eq!(after.rip, reached, "{name}: goes elsewhere");
            assert_eq!(after.gpr, cpu::state::gprs(&end.regs), "{name}: registers");
            assert_eq!(after.flags & FLAGS, end.regs.eflags & FLAGS, "{name}: flags");
            assert_eq!((after.flags ^ before.flags) & !FLAGS, 0, "{name}: other flags");
            assert!(memory.data == end.data && memory.stack == end.stack, "{name}: memory");
        }
    }
    tally
}

#[test]
fn each_form_does_what_the_cpu_does() {
    let mut cases = Cases::new(Isa::X64, 3, 21);
    cases.legacy();
    let tally = compare(&cases, 5, 31);
    println!("{tally:?}");
    assert!(tally.done > 7000 && tally.displaced > 100, "{tally:?}");
    let kinds = [
        "Push", "Pop", "Leave", "Mov", "Lea", "Add", "Sub", "Nop", "Jmp", "Je", "Jg", "Call", "Ret", "Loop", "Loope",
        "Loopne", "Jrcxz", "Jecxz",
    ];
    for kind in kinds {
        assert!(tally.mnemonics.contains_key(kind), "no {kind} was prepared: {:?}", tally.mnemonics);
    }
}

#[test]
fn what_programs_have_does_what_the_cpu_does() {
    let mut cases = Cases::new(Isa::X64, 40, 22);
    for path in ["/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/python3"] {
        cases.program(path);
    }
    let tally = compare(&cases, 4, 32);
    println!("{tally:?}");
    assert!(tally.done > 4000 && tally.mnemonics.contains_key("Endbr64"), "{tally:?}");
}

#[test]
fn each_form_of_32_bit_code_does_what_the_cpu_does() {
    let mut cases = Cases::new(Isa::X86, 3, 25);
    cases.legacy();
    let tally = compare(&cases, 5, 35);
    println!("{tally:?}");
    assert!(tally.done > 4000 && tally.displaced > 50, "{tally:?}");
    let kinds = [
        "Push", "Pop", "Leave", "Mov", "Lea", "Add", "Sub", "Nop", "Jmp", "Je", "Jg", "Call", "Ret", "Loop", "Loope",
        "Loopne", "Jecxz",
    ];
    for kind in kinds {
        assert!(tally.mnemonics.contains_key(kind), "no {kind} was prepared: {:?}", tally.mnemonics);
    }
}

#[test]
fn what_32_bit_programs_have_does_what_the_cpu_does() {
    let mut cases = Cases::new(Isa::X86, 40, 26);
    cases.program("/usr/i686-linux-gnu/lib/libc.so.6");
    let tally = compare(&cases, 4, 36);
    println!("{tally:?}");
    assert!(tally.done > 4000 && tally.displaced > 20, "{tally:?}");
}

/// Flags at the edges of additions and subtractions, where random numbers never come.
#[test]
fn add_and_sub_leave_the_flags_of_the_cpu_at_every_edge() {
    let sources = ["add $8,{}", "sub $8,{}", "sub $-8,{}", "add $-1,{}", "add $0x12345678,{}", "sub $-0x80000000,{}"];
    for (isa, register) in [(Isa::X64, "%rsp"), (Isa::X86, "%esp")] {
        let mut cpu = Cpu::new(isa);
        let mut rng = Rng(23);
        let half = 1 << (isa.bits() - 1);
        let all = u64::MAX >> (64 - isa.bits());
        let edges = [0, 1, 7, 8, 15, 16, 0x7f, 0x80, 0xff, half - 1, half, all, all - 7];
        for source in sources.map(|source| source.replace("{}", register)) {
            let bytes = gas::assemble_for(isa, &source, FROM);
            let insn = iced_x86::Decoder::with_ip(isa.bits(), &bytes, FROM, 0).decode();
            let op = prepare(isa, &bytes).expect(&source);
            cpu.load(&bytes, &[]);
            for edge in edges {
                let mut state = State::random(&cpu, &mut rng, &insn);
                state.regs.rsp = edge;
                let mut after = Registers { gpr: cpu::state::gprs(&state.regs), rip: FROM, flags: state.regs.eflags };
                let end = cpu.run(FROM, &state);
                assert_eq!(execute(&op, &mut after, &mut Ram { state: &mut state, code: &[] }), Next::Done);
                assert_eq!(
                    (after.gpr[4], after.flags & FLAGS),
                    (end.regs.rsp, end.regs.eflags & FLAGS),
                    "{source} of {edge:#x}"
                );
            }
        }
    }
}

#[test]
fn what_is_not_prepared() {
    let sources = [
        "push %fs",
        "pushw %ax",
        "push (%rax)",
        "pop (%rax)",
        "pushf",
        "mov %ax,%bx",
        "mov %al,%bl",
        "mov %ds,%eax",
        "mov (%rax),%rbx",
        "lea 8(%rax),%bx",
        "lea t(%eip),%rax",
        "add $1,%eax",
        "add %rax,%rsp",
        "pause",
        ".byte 0x0f, 0x0d, 0xc0",
        ".byte 0x66; jmp .+0x10",
        ".byte 0x66; je .+0x10",
        ".byte 0xf2; loope .+0x10",
        "data16 ret",
        "lret",
        "jmp *(%rax)",
        "call *t(%rip)",
        "syscall",
    ];
    for source in sources {
        assert_eq!(prepare(Isa::X64, &gas::assemble(source, FROM)), None, "{source}");
    }
    let sources = [
        "push %fs",
        "pushw %ax",
        "pop (%eax)",
        "pushal",
        "leavew",
        "inc %eax",
        "add %eax,%esp",
        "lea 8(%bx),%eax",
        "addr16 loop .+0x10",
        "jcxz .+0x10",
        "lcall $7,$8",
        "retw",
        "jmp *(%eax)",
        "int $0x80",
        "sysenter",
    ];
    for source in sources {
        assert_eq!(prepare(Isa::X86, &gas::assemble_for(Isa::X86, source, FROM)), None, "{source}");
    }
    // Words from nowhere do no harm.
    let mut rng = Rng(24);
    let mut state = State {
        regs: Cpu::new(Isa::X64).initial(),
        xstate: vec![],
        data: vec![0; DATA_LEN],
        stack: vec![0; STACK_LEN],
    };
    for _ in 0..100_000 {
        let before = Registers { gpr: [STACK + 64; 16], rip: FROM, flags: rng.next() };
        let mut after = before;
        let op = Op::from_words([rng.next(), rng.next()]);
        let next = execute(&op, &mut after, &mut Ram { state: &mut state, code: &[] });
        assert!(next == Next::Done || after == before);
    }
}
