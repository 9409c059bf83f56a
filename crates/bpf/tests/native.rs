//! Native code: agrees with the interpreter and the kernel on random programs, and changes no more
//! than it says.

mod generate;
mod run;

use generate::{arithmetic, atomic_op, cond, operand, reg, size, value, width};
use iced_x86::{Decoder, FlowControl};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestCaseError, TestRng, TestRunner};
use run::kernel::Kernel;
use run::{Buffer, agree, call, disassemble, function, in_slots, listing, run_inline};
use sidestep_bpf::interp::Stop;
use sidestep_bpf::native::x86_64::{Code, CompileError, Env, Shape, Site, compile};
use sidestep_bpf::verify::{Facts, Memory};
use sidestep_bpf::{AluOp, Imm64, Insn, Operand, Program, Reg, Size, assemble};
use sidestep_isa::x86::emit::Reg as Machine;

/// Bytes of stack that random programs use.
const STACK: i16 = 64;

/// Offsets of the buffer that random programs read and write; the words before are their registers.
const SCRATCH: i16 = 128;

/// An instruction of a random program: `r9` is the buffer, `r0` to `r8` are numbers.
fn step() -> impl Strategy<Value = Insn> + Clone {
    // Aligned, as the kernel wants it: either of the stack or of the buffer.
    let place = |bytes: i16| {
        prop_oneof![
            (0..STACK / bytes).prop_map(move |i| (Reg::R10, -STACK + i * bytes)),
            (0..STACK / bytes).prop_map(move |i| (Reg::R9, SCRATCH + i * bytes)),
        ]
    };
    let sized = size().prop_flat_map(move |size| (Just(size), place(size.bytes() as i16)));
    let load = (sized.clone(), any::<bool>(), reg(9)).prop_map(|((size, (base, off)), signed, dst)| Insn::Load {
        size,
        signed: signed && size != Size::Dw,
        dst,
        base,
        off,
    });
    let store = (sized, operand(9)).prop_map(|((size, (base, off)), src)| Insn::Store { size, base, off, src });
    let atomic = width()
        .prop_flat_map(move |width| (Just(width), atomic_op(), place(width.size().bytes() as i16), reg(9)))
        .prop_map(|(width, op, (base, off), src)| Insn::Atomic { width, op, base, off, src });
    let branch = (width(), cond(), reg(9), operand(9), 0..12i16)
        .prop_map(|(width, cond, dst, src, off)| Insn::Branch { width, cond, dst, src, off });
    prop_oneof![8 => arithmetic(9), 2 => load, 2 => store, 2 => atomic, 2 => branch].prop_map(tame)
}

/// The kernel refuses immediate divisors of 0 and immediate shifts by the width and more.
fn tame(insn: Insn) -> Insn {
    let Insn::Alu { width, op, dst, src: Operand::Imm(imm) } = insn else { return insn };
    let imm = match op {
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => imm & (width.bits() as i32 - 1),
        AluOp::Div | AluOp::Mod | AluOp::Sdiv | AluOp::Smod if imm == 0 => 1,
        _ => imm,
    };
    Insn::Alu { width, op, dst, src: Operand::Imm(imm) }
}

/// `r9` = buffer, `r0` to `r8` from it, the stack filled; then these instructions; then the
/// registers go back.
fn whole(steps: &[Insn]) -> Program {
    let word = |i: u8| i16::from(i) * 8;
    let mut insns = vec![Insn::LoadImm64 { dst: Reg::R9, imm: Imm64::MapFdValue { map: 0, offset: 0 } }];
    for off in (-STACK..0).step_by(8) {
        let src = Operand::Imm(i32::from(off) * 0x0101_0101);
        insns.push(Insn::Store { size: Size::Dw, base: Reg::R10, off, src });
    }
    for dst in Reg::all().take(9) {
        insns.push(Insn::Load { size: Size::Dw, signed: false, dst, base: Reg::R9, off: word(dst.number()) });
    }
    insns.extend(in_slots(steps));
    for src in Reg::all().take(9) {
        let src_operand = Operand::Reg(src);
        insns.push(Insn::Store { size: Size::Dw, base: Reg::R9, off: word(src.number()), src: src_operand });
    }
    for i in 0..STACK / 8 {
        insns.push(Insn::Load { size: Size::Dw, signed: false, dst: Reg::R0, base: Reg::R10, off: 8 * i - STACK });
        insns.push(Insn::Store { size: Size::Dw, base: Reg::R9, off: 192 + 8 * i, src: Operand::Reg(Reg::R0) });
    }
    insns.push(Insn::Exit);
    Program::from_insns(&insns).unwrap()
}

fn buffer() -> impl Strategy<Value = Buffer> {
    prop::collection::vec(value(), 32).prop_map(|words| words.try_into().unwrap())
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(3000) })]

    #[test]
    fn interpreter_and_native_code_agree(steps in prop::collection::vec(step(), 1..60), buffer in buffer()) {
        agree(&whole(&steps), &buffer);
    }

    #[test]
    fn inlined_programs_agree_and_change_what_they_say(
        steps in prop::collection::vec(step(), 1..6),
        buffer in buffer(),
        prefer in any::<u16>(),
    ) {
        let program = whole(&steps);
        let (_, want) = agree(&program, &buffer);
        let mut after = buffer;
        let code = inline(&on_thread(&program), prefer.into(), Machine::R12).unwrap();
        check_inline(&program, &code, &mut after)?;
        prop_assert_eq!(after, want, "{}", listing(&program));
    }

    /// Few registers, so that each stands in `rax`, `rcx`, `rdx` or a scratch register at some
    /// time.
    #[test]
    fn one_operation_in_any_shape(
        insn in arithmetic(9),
        others in prop::collection::vec(reg(9), 0..9),
        buffer in buffer(),
        prefer in any::<u16>(),
    ) {
        inlined(&insn, &others, &buffer, prefer)?;
    }
}

/// Scratch registers must never be those that divisions and shifts use without saying so.
#[test]
fn any_two_registers_may_be_dead() {
    let operations = ["r2 /= r3", "r8 s%= 3", "r7 <<= r8", "r8 = atomic_fetch_xor((u64 *)(r9 + 0), r8)"];
    let others: Vec<Reg> = Reg::all().skip(2).take(7).collect();
    let buffer: Buffer = std::array::from_fn(|i| 0x0123_4567_89ab_cdef_u64.rotate_left(7 * i as u32));
    for insn in operations.map(|text| assemble(text).unwrap().insn(0).unwrap()) {
        for (a, b) in (0..16).flat_map(|a| (0..=a).map(move |b| (a, b))) {
            inlined(&insn, &others, &buffer, 1 << a | 1 << b).unwrap();
        }
    }
}

/// Runs one operation inlined; the registers that it does not name as clobbered must stay.
fn inlined(insn: &Insn, others: &[Reg], buffer: &Buffer, prefer: u16) -> Result<(), TestCaseError> {
    // Registers that occur get their values from the buffer and go back there.
    let mut used: Vec<Reg> = others.to_vec();
    if let Insn::Alu { dst, src, .. } = *insn {
        used.extend([Some(dst), if let Operand::Reg(src) = src { Some(src) } else { None }].into_iter().flatten());
    } else if let Insn::Neg { dst, .. } | Insn::Swap { dst, .. } | Insn::LoadImm64 { dst, .. } = *insn {
        used.push(dst);
    } else if let Insn::MovSx { dst, src, .. } = *insn {
        used.extend([dst, src]);
    }
    let mut text = String::from("r9 = thread(0) ll\n");
    for reg in &used {
        text += &format!("{reg} = *(u64 *)(r9 + {})\n", 8 * reg.number());
    }
    text += &format!("{insn}\n");
    for reg in &used {
        text += &format!("*(u64 *)(r9 + {}) = {reg}\n", 8 * reg.number());
    }
    let program = assemble(&format!("{text} r0 = 0\n exit")).unwrap();
    let (_, want) = agree(&program, buffer);
    let code = inline(&program, prefer.into(), Machine::Rbp).unwrap();
    let mut after = *buffer;
    check_inline(&program, &code, &mut after)?;
    prop_assert_eq!(after, want, "{}", listing(&program));
    Ok(())
}

/// A site where these registers are dead, and this one has the address of the thread's memory.
fn site(dead: u32, cells: Machine) -> Site {
    Site { dead, cells: Some(cells), sp: 0, ip: 0x1234, cookie: None }
}

fn inline(program: &Program, dead: u32, cells: Machine) -> Result<Code, CompileError> {
    compile(program, &local(program), &Env::default(), Shape::Inline(site(dead, cells)))
}

/// The program with the buffer as memory of the thread.
fn on_thread(program: &Program) -> Program {
    let mut program = program.clone();
    let thread = |imm| if let Imm64::MapFdValue { offset, .. } = imm { Some(Imm64::Thread(offset)) } else { None };
    program.link(thread).unwrap();
    program
}

/// All memory but the stack is the thread's.
fn local(program: &Program) -> Facts {
    let mut facts = Facts::default();
    for (at, insn) in program.iter().flatten() {
        if let Insn::Load { base, .. } | Insn::Store { base, .. } | Insn::Atomic { base, .. } = insn {
            let memory = if base == Reg::R10 { Memory::Stack } else { Memory::ThreadMap(0) };
            facts.accesses.insert(at, memory);
        }
    }
    facts
}

/// Registers that tests of inlined code start with.
fn machine() -> [u64; 16] {
    std::array::from_fn(|i| 0x1234_5678_9abc_def0 ^ (i as u64) << 24)
}

/// Runs inlined code, which gets the buffer as memory of the thread, by `r12` or `rbp`. Registers
/// that it does not clobber must stay.
fn check_inline(program: &Program, code: &Code, buffer: &mut Buffer) -> Result<(), TestCaseError> {
    let mut machine = machine();
    for cells in [Machine::R12, Machine::Rbp] {
        machine[cells as usize] = buffer.as_mut_ptr() as u64;
    }
    let before = machine;
    run_inline(&code.bytes, &mut machine);
    for reg in 0..16 {
        prop_assert!(code.clobbers & 1 << reg != 0 || machine[reg] == before[reg], "{} {}", reg, listing(program));
    }
    Ok(())
}

#[test]
fn the_kernel_agrees_on_random_programs() {
    let Some(kernel) = Kernel::new() else { return };
    let config = Config { failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(Default::default()));
    let strategy = (prop::collection::vec(step(), 1..60), buffer());
    for _ in 0..1500 {
        let (steps, buffer) = strategy.new_tree(&mut runner).unwrap().current();
        let program = whole(&steps);
        let (_, want) = agree(&program, &buffer);
        let mut after = buffer;
        kernel.run(&program, &mut after).unwrap_or_else(|e| panic!("{}\n{e}", listing(&program)));
        assert_eq!(after, want, "{}", listing(&program));
    }
}

#[test]
fn arm64_agrees_on_random_programs() {
    if !run::a64::has_tools() {
        return;
    }
    let mut runner = TestRunner::deterministic();
    let strategy = (prop::collection::vec(step(), 1..60), buffer());
    let one = |_| {
        let (steps, buffer) = strategy.new_tree(&mut runner).unwrap().current();
        (whole(&steps), buffer)
    };
    let cases: Vec<(Program, Buffer)> = (0..4000).map(one).collect();
    run::a64::agree(&cases);
}

#[test]
fn helpers_get_all_arguments_and_preserve_what_they_must() {
    let text = "r6 = 6\n r7 = 7\n r8 = 8\n r9 = 9\n r1 = 1\n r2 = 2\n r3 = 3\n r4 = 4\n r5 = 5\n call 11\n
        *(u64 *)(r10 - 8) = r0\n r1 = r6\n r2 = r7\n r3 = r8\n r4 = r9\n r5 = *(u64 *)(r10 - 8)\n call helper#11\n exit";
    let (result, _) = agree(&assemble(text).unwrap(), &[0; 32]);
    assert_eq!(result, run::mix([6, 7, 8, 9, run::mix([1, 2, 3, 4, 5])]));
}

#[test]
fn helpers_call_functions_of_the_program() {
    // The callback calls a helper itself, and a function, so it needs the table, too.
    let text = "r6 = r1\n r1 = 10\n r2 = func(each) ll\n r3 = r6\n call 9\n exit\n
        each: r6 = r1\n r7 = r2\n call square\n r3 = *(u64 *)(r7 + 0)\n r3 += r0\n *(u64 *)(r7 + 0) = r3\n
        r1 = r6\n r2 = 0\n r3 = 0\n r4 = 0\n r5 = 0\n call 11\n exit\n
        square: r0 = r1\n r0 *= r1\n exit";
    let (result, after) = agree(&assemble(text).unwrap(), &[0; 32]);
    assert_eq!(after[0], (0..10).map(|i| i * i).sum::<u64>());
    assert_eq!(result, (0..10).map(|i| run::mix([i, 0, 0, 0, 0])).fold(0, u64::wrapping_add));
}

/// Helpers may use instructions that need an aligned stack.
#[test]
fn the_stack_is_aligned_for_helpers_and_as_deep_as_said() {
    for (saved, stack) in (0..=4).flat_map(|saved| [0, 8, 16, 24, 500].map(|stack| (saved, stack))) {
        let mut text: String = (6..6 + saved).map(|reg| format!("r{reg} = 0\n")).collect();
        if stack != 0 {
            text += &format!("*(u8 *)(r10 - {stack}) = 1\n");
        }
        let deepest = |calls: &str| {
            let program = assemble(&format!("{text} {calls}")).unwrap();
            let code = function(&program).unwrap();
            (call(&code, &mut [0; 32]), code.stack as u64)
        };
        let (rsp, outer) = deepest("call 10\n exit");
        assert_eq!(rsp % 16, 0, "{text}");
        // The same function once more, called by itself.
        let (rsp_below, both) = deepest(&format!("call again\n exit\n again: {text} call 10\n exit"));
        assert_eq!((rsp_below % 16, both), (0, 2 * outer + 8), "{text}");
        let (distance, _) = deepest(&format!(
            "call 10\n *(u64 *)(r10 - 504) = r0\n call again\n r1 = *(u64 *)(r10 - 504)\n r1 -= r0\n r0 = r1\n exit\n
             again: {text} call 10\n exit"
        ));
        assert_eq!(distance, outer + 8, "{text}");
    }
}

#[test]
fn leaves_save_nothing_and_jumps_are_short() {
    let text = "r0 = *(u64 *)(r1 + 0)\n if r0 s> 10 goto out\n r6 = *(u32 *)(r1 + 8)\n *(u64 *)(r10 - 8) = r6\n
        r0 = *(u8 *)(r10 - 8)\n out: exit";
    let program = assemble(text).unwrap();
    let code = function(&program).unwrap();
    let want = [
        "mov (%rdi),%rax",
        "cmp $0xA,%rax",
        "jg 0x0000000000000017",
        "mov 8(%rdi),%r9d",
        "mov %r9,-8(%rsp)",
        "movzbl -8(%rsp),%eax",
        "ret",
    ];
    assert_eq!(disassemble(&code.bytes), want);
    assert_eq!((code.clobbers, code.stack), (1 | 1 << 9, 8));
    assert_eq!(code.slot_at(0), Some(0));
    assert_eq!(code.slot_at(4), Some(1));
    assert_eq!(code.slot_at(code.bytes.len() - 2), Some(4));
}

#[test]
fn the_stack_is_what_the_verifier_found() {
    let mut program = assemble("r2 = r10\n r2 += -40\n *(u64 *)(r2 + 0) = 1\n r0 = 0\n exit").unwrap();
    let stack = |program: &Program| function(program).unwrap().stack;
    // Subtracted from rsp, and a multiple of 16 with the return address.
    assert_eq!(stack(&program), 512 + 8);
    program.functions[0].stack = 40;
    assert_eq!(stack(&program), 40);
}

/// Loads, stores and moves leave the flags of the target alone; iced says which instructions do
/// not.
#[test]
fn code_that_keeps_the_flags_says_so() {
    let mut runner = TestRunner::deterministic();
    let strategy = (prop::collection::vec(step(), 0..3), any::<u16>());
    let mut keeps = 0;
    for _ in 0..3000 {
        let (steps, prefer) = strategy.new_tree(&mut runner).unwrap().current();
        let mut program = whole(&steps);
        program = on_thread(&program);
        let code = inline(&program, prefer.into(), Machine::R12).unwrap();
        let changes = Decoder::with_ip(64, &code.bytes, 0, 0).into_iter().any(|insn| insn.rflags_modified() != 0);
        assert!(code.flags || !changes, "{}", listing(&program));
        keeps += u32::from(!code.flags);
    }
    assert!(keeps > 20, "{keeps}");
}

/// All code is within its bytes: no jump leaves it, and nothing is read from outside by rip.
#[test]
fn code_runs_at_any_address() {
    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(step(), 1..200);
    for _ in 0..300 {
        let steps = strategy.new_tree(&mut runner).unwrap().current();
        let mut program = whole(&steps);
        program.link(|_| Some(Imm64::Value(0x1000))).unwrap();
        let code = function(&program).unwrap();
        let mut starts = vec![false; code.bytes.len()];
        let mut targets = Vec::new();
        for insn in &mut Decoder::with_ip(64, &code.bytes, 0, 0) {
            assert!(!insn.is_invalid());
            starts[insn.ip() as usize] = true;
            match insn.flow_control() {
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                    targets.push(insn.near_branch_target())
                }
                flow => assert!(matches!(flow, FlowControl::Next | FlowControl::Return), "{flow:?}"),
            }
            assert!(!insn.is_ip_rel_memory_operand());
        }
        assert!(targets.iter().all(|&to| starts[to as usize]));
    }
}

#[test]
fn what_cannot_be_compiled_is_refused() {
    let inline = |text: &str| inline(&assemble(text).unwrap(), 0, Machine::Rbx).unwrap_err();
    let function = |text: &str| function(&assemble(text).unwrap()).unwrap_err();
    assert_eq!(function("r0 = 0"), CompileError::Target { at: 0 });
    assert_eq!(function(""), CompileError::Target { at: 0 });
    assert_eq!(function("goto +5\nexit"), CompileError::Target { at: 0 });
    assert_eq!(function("goto +1\nr0 = 0 ll\nexit"), CompileError::Target { at: 0 });
    assert_eq!(function("call pc+1\nexit\ngoto -2\nexit"), CompileError::Target { at: 2 });
    assert_eq!(function("call pc+9\nexit"), CompileError::Target { at: 0 });
    assert_eq!(function("r10 += 8\nexit"), CompileError::FramePointer { at: 0 });
    assert_eq!(function("r0 *= r10\nexit"), CompileError::FramePointer { at: 0 });
    assert_eq!(function("call 512\nexit"), CompileError::Helper { at: 0, number: 512 });
    assert_eq!(function("call pc+1\nexit\ncall pc-1\nexit"), CompileError::Recursion { at: 2 });
    assert_eq!(function("r0 = map(3) ll\nexit"), CompileError::Unlinked { at: 0, imm: Imm64::Map(3) });
    for text in
        ["call pc+1\nexit\nr0 = 0\nexit", "call 1\nexit", "r0 = *(u64 *)(r1 + 144)\n*(u64 *)(r10 - 8) = r0\nexit"]
    {
        assert_eq!(inline(text), CompileError::Inline { at: 0 }, "{text}");
    }
    assert_eq!(
        function("r0 = map(3) ll\nexit").to_string(),
        "insn 0: map(3) ll has no address yet; link the program first"
    );
}

#[test]
fn the_interpreter_stops_what_it_must() {
    let stop = |text: &str| run::interpret(&assemble(text).unwrap(), &mut [0; 32], 1000).unwrap_err();
    assert_eq!(stop("goto -1"), (0, Stop::Budget));
    assert_eq!(stop("r0 = 0"), (1, Stop::Outside(1)));
    assert_eq!(stop("goto -2").1, Stop::Outside(u64::MAX));
    assert_eq!(stop("r2 = 0\n r0 = *(u64 *)(r2 + 8)\n exit"), (1, Stop::Fault(8)));
    assert_eq!(stop("r0 = *(u8 *)(r1 + 256)\n exit").0, 0);
    assert_eq!(stop("call pc-1\nexit"), (0, Stop::Depth));
    assert_eq!(stop("call 99\nexit"), (0, Stop::Helper(99)));
    assert_eq!(stop("r0 = map(0) ll\nexit"), (0, Stop::Unlinked));
    assert_eq!(stop("r1 = 99999\n r2 = func(f) ll\n r3 = 0\n call 9\n exit\n f: r0 = 0\n exit").1, Stop::Budget);
}

#[test]
fn calls_are_eight_deep_and_no_deeper() {
    let nested = |functions: usize| {
        let text = "call pc+1\n exit\n".repeat(functions - 1) + "r0 = 5\n exit";
        run::interpret(&assemble(&text).unwrap(), &mut [0; 32], 1000)
    };
    assert_eq!(nested(8), Ok(5));
    assert_eq!(nested(9), Err((14, Stop::Depth)));
}

/// Random slots, not even instructions: whatever happens, it ends, and nothing panics.
#[test]
fn no_code_harms_the_interpreter_or_the_compiler() {
    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(generate::any_insn(), 1..20);
    let mut ran = 0;
    for _ in 0..3000 {
        let insns = strategy.new_tree(&mut runner).unwrap().current();
        let program = Program::from_insns(&insns).unwrap();
        ran += u32::from(run::interpret(&program, &mut [0; 32], 500).is_ok());
        let site = site(0, Machine::R12);
        for shape in [Shape::Function, Shape::Inline(site), Shape::Filter(site)] {
            let _ = compile(&program, &Facts::default(), &Env::default(), shape);
        }
    }
    assert!(ran > 50, "{ran}");
}
