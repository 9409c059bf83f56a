//! Native code of arm64: calls, the stack, the thread's memory, what is computed in place, and long
//! programs. Operations are compared in `native.rs` and `opcodes.rs`.

mod generate;
mod run;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use run::a64::{agree, function, has_tools};
use run::{Buffer, CELLS, STAMP, listing, mix};
use sidestep_bpf::native::{self, Clock, Code, CompileError, Env, a64};
use sidestep_bpf::verify::{Facts, Memory};
use sidestep_bpf::{Imm64, Insn, Program, assemble};
use sidestep_isa::vectors::vectors_used;
use sidestep_isa::{Isa, Va, sweep};
use sidestep_wire::Histogram;

const ZEROS: Buffer = [0; 32];

fn case(text: &str) -> (Program, Buffer) {
    (assemble(text).unwrap_or_else(|error| panic!("{text}: {error}")), ZEROS)
}

fn words(code: &Code) -> Vec<u32> {
    code.bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn helpers_get_all_arguments_and_preserve_what_they_must() {
    if !has_tools() {
        return;
    }
    let text = "r6 = 6\n r7 = 7\n r8 = 8\n r9 = 9\n r1 = 1\n r2 = 2\n r3 = 3\n r4 = 4\n r5 = 5\n call 11\n
        *(u64 *)(r10 - 8) = r0\n r1 = r6\n r2 = r7\n r3 = r8\n r4 = r9\n r5 = *(u64 *)(r10 - 8)\n call helper#11\n exit";
    // The callback calls a helper itself, and a function, so it needs the table, too.
    let callback = "r6 = r1\n r1 = 10\n r2 = func(each) ll\n r3 = r6\n call 9\n exit\n
        each: r6 = r1\n r7 = r2\n call square\n r3 = *(u64 *)(r7 + 0)\n r3 += r0\n *(u64 *)(r7 + 0) = r3\n
        r1 = r6\n r2 = 0\n r3 = 0\n r4 = 0\n r5 = 0\n call 11\n exit\n
        square: r0 = r1\n r0 *= r1\n exit";
    let outcomes = agree(&[case(text), case(callback)]);
    assert_eq!(outcomes[0].0, mix([6, 7, 8, 9, mix([1, 2, 3, 4, 5])]));
    assert_eq!(outcomes[1].1[0], (0..10).map(|i| i * i).sum::<u64>());
}

#[test]
fn the_stack_is_aligned_for_helpers_and_as_deep_as_said() {
    if !has_tools() {
        return;
    }
    let (mut cases, mut wanted) = (Vec::new(), Vec::new());
    for (saved, stack) in (0..=4).flat_map(|saved| [0, 8, 16, 24, 500].map(|stack| (saved, stack))) {
        let mut text: String = (6..6 + saved).map(|reg| format!("r{reg} = 0\n")).collect();
        if stack != 0 {
            text += &format!("*(u8 *)(r10 - {stack}) = 1\n");
        }
        // Helper 10 gives the stack pointer.
        let deepest = format!("{text} call 10\n exit");
        let outer = function(&assemble(&deepest).unwrap()).unwrap().stack as u64;
        let nested = format!(
            "call 10\n *(u64 *)(r10 - 504) = r0\n call again\n r1 = *(u64 *)(r10 - 504)\n r1 -= r0\n r0 = r1\n exit\n
             again: {deepest}"
        );
        for text in [&deepest, &nested] {
            cases.push((function(&assemble(text).unwrap()).unwrap(), ZEROS));
        }
        wanted.push(outer);
    }
    let outcomes = run::a64::run(&cases);
    for (pair, outer) in outcomes.chunks(2).zip(wanted) {
        assert_eq!((pair[0].result % 16, pair[1].result), (0, outer));
    }
}

#[test]
fn memory_of_the_thread_and_times_are_at_the_table() {
    if !has_tools() {
        return;
    }
    let thread = "r6 = thread(16) ll\n r1 = 5\n *(u64 *)(r6 + 0) = r1\n r7 = thread(16777232) ll\n r7 -= r6\n r0 = r7\n
        exit";
    let after_a_call = "call 11\n r6 = thread(24) ll\n r1 = 6\n *(u64 *)(r6 + 0) = r1\n r0 = 0\n exit";
    let clocks = [(1, 0), (1 << 40, 40), (1 << 63, 63), (!0, 64), (!0, 66)].map(|(mult, shift)| {
        let clock = Clock { mult, shift, base: 1 << 62, stamp: Some(STAMP) };
        let env = Env { cells: CELLS, clock: Some(clock), ..Env::default() };
        let program = assemble("r6 = 1\n r1 = 2\n call 5\n r6 += r1\n *(u64 *)(r10 - 8) = r6\n exit").unwrap();
        a64::compile(&program, &Facts::default(), &env).unwrap()
    });
    let mut cases: Vec<(Code, Buffer)> =
        [thread, after_a_call].iter().map(|text| (function(&assemble(text).unwrap()).unwrap(), ZEROS)).collect();
    cases.extend(clocks.map(|code| (code, ZEROS)));
    let outcomes = run::a64::run(&cases);
    assert_eq!((outcomes[0].result, outcomes[0].buffer[2]), (1 << 24, 5));
    assert_eq!(outcomes[1].buffer[3], 6);
    let times = &outcomes[2..];
    assert!(times.iter().all(|time| time.result == time.stamp && time.result > 1 << 62), "{times:?}");
    // All give the ticks, rounded down, in the order in which they ran; the last one a quarter.
    let ticks: Vec<u64> = times.iter().map(|time| time.result - (1 << 62)).collect();
    assert!(ticks[..4].windows(2).all(|pair| pair[1] + 1 >= pair[0] && pair[1] < pair[0] + (10 << 30)), "{ticks:?}");
    assert!(ticks[4] < ticks[3] && ticks[4] >= ticks[3] / 4 - 1, "{ticks:?}");
}

#[test]
fn buckets_are_those_of_histograms() {
    if !has_tools() {
        return;
    }
    let values: Vec<u64> = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, 0xb5 << bit]).chain([u64::MAX]).collect();
    let cases: Vec<(Program, Buffer)> =
        values.iter().map(|value| case(&format!("r1 = {value} ll\n call 256\n exit"))).collect();
    for ((bucket, _), value) in agree(&cases).iter().zip(values) {
        assert_eq!(*bucket, Histogram::bucket(value) as u64, "{value}");
    }
}

/// Conditional jumps over more than 16,000 instructions, and a function that is behind them.
#[test]
fn long_programs_jump_far() {
    if !has_tools() {
        return;
    }
    let filler = "r3 /= 12345678\n".repeat(30_000);
    let text = |value: i64| {
        format!(
            "r6 = r1\n r0 = 0\n r3 = {value}\n if r3 == 0 goto out\n if r3 s> 5 goto out\n {filler} r0 = 1\n
             out: r0 += 1\n *(u64 *)(r6 + 0) = r0\n r1 = 3\n r2 = func(each) ll\n r3 = 7\n call 9\n exit\n
             each: r0 = r2\n exit"
        )
    };
    let outcomes = agree(&[0, 6, 3, -1].map(|value| case(&text(value))));
    let words: Vec<(u64, u64)> = outcomes.iter().map(|(result, buffer)| (*result, buffer[0])).collect();
    assert_eq!(words, [(21, 1), (21, 1), (21, 2), (21, 2)]);
}

#[test]
fn leaves_save_nothing() {
    let text = "r0 = *(u64 *)(r1 + 0)\n if r0 s> 10 goto out\n r6 = *(u32 *)(r1 + 8)\n *(u64 *)(r10 - 8) = r6\n
        r0 = *(u8 *)(r10 - 8)\n out: exit";
    let code = function(&assemble(text).unwrap()).unwrap();
    let want = [
        0xd100_43ff, // sub sp, sp, #16
        0xf940_0007, // ldr x7, [x0]
        0xf100_28ff, // cmp x7, #10
        0x5400_008c, // b.gt .+16
        0xb940_0808, // ldr w8, [x0, #8]
        0xf900_07e8, // str x8, [sp, #8]
        0x3940_23e7, // ldrb w7, [sp, #8]
        0xaa07_03e0, // mov x0, x7
        0x9100_43ff, // add sp, sp, #16
        0xd65f_03c0, // ret
    ];
    assert_eq!(words(&code), want, "{:08x?}", words(&code));
    assert_eq!((code.clobbers, code.stack), (1 | 1 << 7 | 1 << 8, 16));
    assert_eq!((code.slot_at(0), code.slot_at(4), code.slot_at(24)), (None, Some(0), Some(4)));
}

/// No vector register is touched, and no register is changed that is not said to be.
#[test]
fn code_changes_what_it_says() {
    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(generate::arithmetic(10), 1..20);
    for _ in 0..2000 {
        let mut insns = strategy.new_tree(&mut runner).unwrap().current();
        insns.push(Insn::Exit);
        let program = Program::from_insns(&insns).unwrap();
        let code = function(&program).unwrap();
        assert_eq!(vectors_used(Isa::A64, &code.bytes), 0);
        for insn in sweep(Isa::A64, &code.bytes, Va(0)) {
            let insn = insn.unwrap_or_else(|error| panic!("{error}\n{}", listing(&program)));
            let written = insn.usage().writes & !(1 << 31);
            assert_eq!(written & !code.clobbers, 0, "{insn}\n{}", listing(&program));
        }
    }
}

/// Whatever the instructions are, the compiler does not panic.
#[test]
fn no_code_harms_the_compiler() {
    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(generate::any_insn(), 1..20);
    for _ in 0..3000 {
        let insns = strategy.new_tree(&mut runner).unwrap().current();
        let _ = function(&Program::from_insns(&insns).unwrap());
    }
}

/// Where other threads see the memory, what gives the old value orders all memory around it.
#[test]
fn atomic_operations_order_memory_that_is_shared() {
    let text = "r2 = 1\n r2 = atomic_fetch_add((u64 *)(r1 + 0), r2)\n r0 = 0\n exit";
    let program = assemble(text).unwrap();
    let with = |facts: &Facts| words(&a64::compile(&program, facts, &Env::default()).unwrap());
    let mut facts = Facts::default();
    facts.accesses.insert(1, Memory::Map(0));
    let barrier = 0xd503_3bbf;
    assert!(with(&facts).contains(&barrier) && with(&Facts::default()).contains(&barrier));
    facts.accesses.insert(1, Memory::ThreadMap(0));
    assert!(!with(&facts).contains(&barrier));
}

#[test]
fn what_is_no_program_is_refused() {
    let error = |text: &str| function(&assemble(text).unwrap()).unwrap_err();
    assert_eq!(error("goto +1\nexit"), CompileError::Target { at: 0 });
    assert_eq!(error("r0 = 0"), CompileError::Target { at: 0 });
    assert_eq!(error("r10 += 8\nexit"), CompileError::FramePointer { at: 0 });
    assert_eq!(error("r0 *= r10\nexit"), CompileError::FramePointer { at: 0 });
    assert_eq!(error("call 512\nexit"), CompileError::Helper { at: 0, number: 512 });
    assert_eq!(error("call pc+1\nexit\ncall pc-1\nexit"), CompileError::Recursion { at: 2 });
    assert_eq!(error("r0 = map(3) ll\nexit"), CompileError::Unlinked { at: 0, imm: Imm64::Map(3) });
    let nothing = Program::from_insns(&[Insn::Exit]).unwrap();
    let on = |isa| native::function(isa, &nothing, &Facts::default(), &Env::default());
    assert!(on(Isa::X64).is_ok() && on(Isa::A64).is_ok());
    assert_eq!(on(Isa::X86), Err(CompileError::Isa));
}
