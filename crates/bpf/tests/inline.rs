//! Code for a place in a target: it reads the registers that it finds, and is as small as a human
//! would write it.

mod generate;
mod run;

use generate::{arithmetic, cond, operand, reg, size, value, width};
use proptest::prelude::*;
use proptest::test_runner::Config;
use run::{Buffer, CELLS, Native, STAMP, call, disassemble, function, in_slots, interpret_at, listing, run_inline};
use sidestep_bpf::map::{Map, MapKind};
use sidestep_bpf::native::x86_64::{Clock, Code, CompileError, Env, Shape, Site, compile};
use sidestep_bpf::pass::{Addition, Link, Values, additions, filter, only_keeps};
use sidestep_bpf::verify::{Rules, Verified, verify};
use sidestep_bpf::{Imm64, Insn, Operand, Program, Reg, Size, assemble};
use sidestep_isa::x86::emit::Reg as Machine;

/// 0: 16 values of 8 bytes for each thread; 1: a histogram for each thread; 2: a value that all
/// share.
fn maps() -> Vec<Map> {
    let map = |name: &str, kind, max_entries| Map {
        name: name.to_owned(),
        kind,
        key_size: 4,
        value_size: 8,
        max_entries,
        flags: 0,
        readonly: false,
        initial: Vec::new(),
    };
    vec![map("counts", MapKind::PercpuArray, 16), map("hist", MapKind::PercpuArray, 976), map("all", MapKind::Array, 1)]
}

const SHARED: u64 = 0x7fff_1234_5678;

/// Verified and linked: map 0 is the buffer, map 1 lies behind it.
fn linked(text: &str) -> Verified {
    let maps = maps();
    let rules = Rules { maps: &maps, context_writable: 168..176, ..Rules::default() };
    let verified = verify(&assemble(text).unwrap(), &rules).unwrap_or_else(|e| panic!("{text}: {e}"));
    let bases = [Imm64::Thread(0), Imm64::Thread(256), Imm64::Value(SHARED)];
    let links: Vec<Link> = maps
        .iter()
        .zip(bases)
        .map(|(map, base)| Link { map: 1, values: Some(Values { base, stride: 8, entries: map.max_entries }) })
        .collect();
    verified.link(&links).unwrap()
}

fn site() -> Site {
    let dead = Machine::R10.bit() | Machine::R11.bit() | Machine::Rax.bit();
    Site { dead, cells: Some(Machine::R9), sp: 136, ip: 0x40_1000, cookie: None }
}

fn shaped(verified: &Verified, shape: Shape) -> Result<Code, CompileError> {
    compile(&verified.program, &verified.facts, &Env::default(), shape)
}

fn inlined(text: &str) -> Vec<String> {
    let verified = linked(text);
    let code =
        shaped(&verified, Shape::Inline(site())).unwrap_or_else(|e| panic!("{e}:\n{}", listing(&verified.program)));
    disassemble(&code.bytes)
}

#[test]
fn counters_are_one_instruction() {
    let want = ["addq $1,0x18(%r9)"];
    assert_eq!(inlined("r1 = map_value(0, 24) ll\n r2 = 1\n lock *(u64 *)(r1 + 0) += r2\n r0 = 0\n exit"), want);
    // As clang compiles `(*v)++`, after a lookup.
    let lookup = "*(u32 *)(r10 - 4) = 3\n r2 = r10\n r2 += -4\n r1 = map(0) ll\n call 1\n if r0 == 0 goto out\n";
    let text = format!("{lookup} r1 = *(u64 *)(r0 + 0)\n r1 += 1\n *(u64 *)(r0 + 0) = r1\n out: r0 = 0\n exit");
    assert_eq!(inlined(&text), want);
    assert!(linked(&text).facts.reentrant);
    let text = format!("{lookup} r1 = 1\n r1 = atomic_fetch_add((u64 *)(r0 + 0), r1)\n out: r0 = 0\n exit");
    assert_eq!(inlined(&text), want);
    let code = shaped(&linked(&text), Shape::Inline(site())).unwrap();
    assert_eq!((code.clobbers, code.flags, code.cells, code.stack), (0, true, true, 0));
}

#[test]
fn programs_that_only_add_constants_are_known() {
    let add = |offset, value| Addition { offset, value };
    let count = "r1 = map_value(0, 24) ll\n r2 = 1\n lock *(u64 *)(r1 + 0) += r2\n";
    assert_eq!(additions(&linked(&format!("r6 = r1\n {count} r0 = 0\n exit"))), Some(vec![add(24, 1)]));
    let sum = "r1 = map_value(0, 32) ll\n w4 = 127\n lock *(u64 *)(r1 + 0) += r4\n";
    assert_eq!(additions(&linked(&format!("{count} {sum} r0 = 0\n exit"))), Some(vec![add(24, 1), add(32, 127)]));
    assert_eq!(additions(&linked("r0 = 0\n exit")), Some(Vec::new()));
    for other in [
        // Numbers that are large or not known, memory of all threads, a part of a word, a decision.
        format!("{count} r4 = 128\n lock *(u64 *)(r1 + 0) += r4\n r0 = 0\n exit"),
        format!("{count} r4 = -1\n lock *(u64 *)(r1 + 0) += r4\n r0 = 0\n exit"),
        format!("r3 = *(u64 *)(r1 + 104)\n {count} lock *(u64 *)(r1 + 0) += r3\n r0 = 0\n exit"),
        "r1 = map_value(2, 0) ll\n r2 = 1\n lock *(u64 *)(r1 + 0) += r2\n r0 = 0\n exit".to_owned(),
        "r1 = map_value(0, 24) ll\n r2 = 1\n lock *(u32 *)(r1 + 0) += r2\n r0 = 0\n exit".to_owned(),
        "r1 = map_value(0, 24) ll\n *(u64 *)(r1 + 0) = 1\n r0 = 0\n exit".to_owned(),
        format!("r3 = *(u64 *)(r1 + 104)\n if r3 == 5 goto out\n {count} out: r0 = 0\n exit"),
        format!("call 5\n {count} r0 = 0\n exit"),
        [count; 5].concat() + "r0 = 0\n exit",
    ] {
        assert_eq!(additions(&linked(&other)), None, "{other}");
    }
}

#[test]
fn what_all_threads_share_is_locked() {
    let text = "r1 = map_value(2, 0) ll\n r2 = 1\n lock *(u64 *)(r1 + 0) += r2\n r0 = 0\n exit";
    assert_eq!(inlined(text), ["movabs $0x7FFF12345678,%r10", "lock addq $1,(%r10)"]);
}

#[test]
fn sums_add_the_register_itself() {
    let text =
        "r2 = *(u64 *)(r1 + 104)\n r1 = map_value(0, 0) ll\n r3 = *(u64 *)(r1 + 0)\n r3 += r2\n *(u64 *)(r1 + 0) = r3\n
        r0 = 0\n exit";
    assert_eq!(inlined(text), ["add %rsi,(%r9)"]);
}

#[test]
fn histograms_are_a_dozen_instructions() {
    let text =
        "r1 = *(u64 *)(r1 + 112)\n call 256\n *(u32 *)(r10 - 4) = r0\n r2 = r10\n r2 += -4\n r1 = map(1) ll\n call 1\n
        if r0 == 0 goto out\n r1 = 1\n lock *(u64 *)(r0 + 0) += r1\n out: r0 = 0\n exit";
    let shape = |dead: u32| shaped(&linked(text), Shape::Inline(Site { dead: site().dead | dead, ..site() })).unwrap();
    // One register that is needed later is kept in one that is not, rather than saved by the
    // detour.
    let kept = shape(0);
    assert_eq!((disassemble(&kept.bytes).len(), kept.clobbers), (14, site().dead));
    let code = disassemble(&shape(Machine::Rcx.bit()).bytes);
    assert_eq!(code.len(), 12, "{code:#?}");
    assert_eq!(code[9..], ["shl $3,%rcx", "lea 0x100(%r9,%rcx),%rcx", "addq $1,(%rcx)"]);
}

/// The word that is kept from the entry of a call to its return is in a register.
#[test]
fn what_is_kept_for_the_return_is_in_a_register() {
    let kept = Site { cookie: Some(Machine::R11), dead: Machine::Rax.bit() | Machine::R10.bit(), ..site() };
    let code = |text: &str| shaped(&linked(text), Shape::Inline(kept)).map(|code| disassemble(&code.bytes));
    let entry = "r6 = r1\n r2 = *(u64 *)(r6 + 112)\n *(u64 *)(r6 + 168) = r2\n r0 = 0\n exit";
    assert_eq!(code(entry).unwrap(), ["mov %rdi,%r11"]);
    assert!(only_keeps(&linked(entry)));
    let constant = "*(u64 *)(r1 + 168) = 7\n r0 = 0\n exit";
    assert_eq!(code(constant).unwrap(), ["mov $7,%r11d"]);
    let exit = "r2 = *(u64 *)(r1 + 168)\n r3 = *(u64 *)(r1 + 80)\n r3 -= r2\n r1 = map_value(0, 0) ll\n
        r4 = *(u64 *)(r1 + 0)\n r4 += r3\n *(u64 *)(r1 + 0) = r4\n r0 = 0\n exit";
    assert!(code(exit).unwrap().iter().any(|line| line.contains("%r11")));
    // A part of the word, and where there is no register for it.
    let part = "*(u32 *)(r1 + 168) = 7\n r0 = 0\n exit";
    assert!(code(part).is_err());
    assert!(shaped(&linked(constant), Shape::Inline(site())).is_err());
}

/// What has another effect must not run twice, and a result that is not 0 means something.
#[test]
fn programs_that_do_more_than_keep_a_word_are_known() {
    for text in [
        "r0 = 1\n exit",
        "r0 = *(u64 *)(r1 + 112)\n exit",
        "r1 = map_value(0, 0) ll\n r2 = 1\n *(u64 *)(r1 + 0) = r2\n r0 = 0\n exit",
        "r1 = map_value(0, 0) ll\n r2 = 1\n lock *(u64 *)(r1 + 0) += r2\n r0 = 0\n exit",
        "r2 = *(u64 *)(r1 + 112)\n r0 = 0\n if r2 > 5 goto out\n r0 = 1\n out: exit",
    ] {
        assert!(!only_keeps(&linked(text)), "{text}");
    }
    assert!(only_keeps(&linked("r0 = 0\n exit")));
    assert!(only_keeps(&linked("r6 = r1\n call 5\n *(u64 *)(r6 + 168) = r0\n r0 = 0\n exit")));
}

#[test]
fn filters_are_a_comparison_and_a_jump() {
    for text in [
        "r2 = *(u64 *)(r1 + 112)\n if r2 > 64 goto go\n r0 = 0\n exit\n go: call 5\n r0 = 0\n exit",
        "r2 = *(u64 *)(r1 + 112)\n if r2 < 65 goto out\n call 5\n out: r0 = 0\n exit",
    ] {
        let filter = filter(&linked(text)).unwrap();
        let code = shaped(&filter, Shape::Filter(site())).unwrap();
        let text = disassemble(&code.bytes);
        assert_eq!(text.len(), 2, "{text:?}");
        assert!(
            text[0] == "cmp $0x40,%rdi" && text[1].starts_with("ja ")
                || text[0] == "cmp $0x41,%rdi" && text[1].starts_with("jae ")
        );
        assert_eq!((code.go, code.clobbers, code.flags, code.cells), (vec![code.bytes.len() - 4], 0, true, false));
    }
}

/// How many values a line has is up to its text.
#[test]
fn values_of_lines_are_not_dropped() {
    for (values, kept) in
        [("r3 = *(u64 *)(r6 + 112);", 1), ("r3 = 1; r4 = *(u64 *)(r6 + 8); r5 = *(u64 *)(r6 + 16);", 2), ("", 0)]
    {
        let text = format!("r6 = r1; *(u64 *)(r10 - 8) = 0; r1 = r10; r1 += -8; r2 = 8; {values} call 6; r0 = 0; exit");
        let loads = |insn: &Insn| matches!(insn, Insn::Load { .. });
        let program = linked(&text.replace("; ", "\n")).program;
        assert_eq!(
            program.iter().filter(|insn| insn.as_ref().is_ok_and(|(_, insn)| loads(insn))).count(),
            kept,
            "{values}"
        );
    }
}

#[test]
fn programs_without_a_decision_have_no_filter() {
    for text in [
        "call 5\n r0 = 0\n exit",
        "r2 = *(u64 *)(r1 + 112)\n r1 = map_value(0, 0) ll\n lock *(u64 *)(r1 + 0) += r2\n if r2 > 64 goto go\n r0 = 0\n exit\n
         go: call 5\n exit",
    ] {
        assert_eq!(filter(&linked(text)), None);
    }
}

#[test]
fn filters_read_values_and_end_in_loops() {
    let text = "r2 = map_value(0, 8) ll\n r3 = *(u64 *)(r2 + 0)\n r4 = *(u32 *)(r1 + 112)\n if w3 == w4 goto loop\n r0 = 7\n exit\n
        loop: r3 = 0\n again: r3 += 1\n if r3 < 5 goto again\n r0 = 0\n exit";
    let filter = filter(&linked(text)).unwrap();
    let code = shaped(&filter, Shape::Filter(site())).unwrap();
    // Not all of the register counts.
    for (arg, value, want) in [(5, 5, true), (5, 6, false), (5 | 7 << 32, 5, true)] {
        let mut buffer: Buffer = [0; 32];
        buffer[1] = value;
        assert_eq!(went(&code, &mut buffer, arg), want, "{arg} {value}");
    }
}

/// Whether a filter goes on.
fn went(code: &Code, buffer: &mut Buffer, rdi: u64) -> bool {
    // To the end: mov $0,%eax; jmp over; go: mov $1,%eax
    let mut bytes = code.bytes.clone();
    bytes.extend([0xb8, 0, 0, 0, 0, 0xeb, 5]);
    let slow = bytes.len();
    bytes.extend([0xb8, 1, 0, 0, 0]);
    for &at in &code.go {
        bytes[at..at + 4].copy_from_slice(&((slow - (at + 4)) as u32).to_le_bytes());
    }
    let mut machine = [0; 16];
    machine[Machine::Rdi as usize] = rdi;
    machine[Machine::R9 as usize] = buffer.as_mut_ptr() as u64;
    run_inline(&bytes, &mut machine);
    machine[0] == 1
}

#[test]
fn words_of_the_context_are_where_they_say() {
    use Machine::{R8, R10, R11, R12, R13, R14, R15, Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rsi};
    let order = [R15, R14, R13, R12, Rbp, Rbx, R11, R10, R8, Rax, Rcx, Rdx, Rsi, Rdi];
    let offsets = [0, 8, 16, 24, 32, 40, 48, 56, 72, 80, 88, 96, 104, 112];
    for (reg, offset) in order.into_iter().zip(offsets) {
        let text =
            format!("r2 = *(u64 *)(r1 + {offset})\n r3 = map_value(0, 8) ll\n *(u64 *)(r3 + 0) = r2\n r0 = 0\n exit");
        let code = shaped(&linked(&text), Shape::Inline(site())).unwrap();
        let mut buffer: Buffer = [0; 32];
        let mut machine: [u64; 16] = std::array::from_fn(|i| 100 + i as u64);
        machine[9] = buffer.as_mut_ptr() as u64;
        run_inline(&code.bytes, &mut machine);
        assert_eq!(buffer[1], 100 + reg as u64);
        assert_eq!(code.clobbers, 0);
    }
    let store = "r3 = map_value(0, 8) ll\n *(u64 *)(r3 + 0) = r2\n r0 = 0\n exit";
    assert_eq!(inlined(&format!("r2 = *(u64 *)(r1 + 152)\n {store}")), ["lea 0x88(%rsp),%r10", "mov %r10,8(%r9)"]);
    assert_eq!(inlined(&format!("r2 = *(u64 *)(r1 + 128)\n {store}")), ["mov $0x401000,%r10d", "mov %r10,8(%r9)"]);
}

#[test]
fn what_has_no_register_is_not_inlined() {
    for text in [
        "r2 = *(u64 *)(r1 + 64)\n r3 = map_value(0, 8) ll\n *(u64 *)(r3 + 0) = r2\n r0 = 0\n exit",
        "r2 = *(u64 *)(r1 + 144)\n r3 = map_value(0, 8) ll\n *(u64 *)(r3 + 0) = r2\n r0 = 0\n exit",
        "r2 = 1\n *(u64 *)(r1 + 168) = r2\n r0 = 0\n exit",
        "call 7\n r0 = 0\n exit",
    ] {
        let verified = linked(text);
        assert!(matches!(shaped(&verified, Shape::Inline(site())), Err(CompileError::Inline { .. })), "{text}");
        assert!(shaped(&verified, Shape::Function).is_ok());
    }
}

/// Buckets as the reader of histograms counts them, whatever the registers are.
#[test]
fn buckets_are_those_of_the_reader() {
    let text = "r1 = *(u64 *)(r1 + 112)\n r6 = *(u64 *)(r1 + 0)";
    assert!(verify(&assemble(text).unwrap(), &Rules::default()).is_err());
    let text = "r6 = *(u64 *)(r1 + 88)\n r7 = *(u64 *)(r1 + 96)\n r1 = *(u64 *)(r1 + 112)\n call 256\n r1 = map_value(0, 0) ll\n
        *(u64 *)(r1 + 0) = r0\n r1 = map_value(0, 8) ll\n *(u64 *)(r1 + 0) = r6\n r1 = map_value(0, 16) ll\n
        *(u64 *)(r1 + 0) = r7\n r0 = 0\n exit";
    let verified = linked(text);
    for dead in [0, 2, 4, 0xffff, 0xf00] {
        let site = Site { dead, ..site() };
        let code = shaped(&verified, Shape::Inline(site)).unwrap();
        let as_function = shaped_in(&verified, Env { cells: CELLS, ..Env::default() });
        for value in (0..64).flat_map(|i| [1u64 << i, (1 << i) - 1, (3u64 << i) >> 1]).chain([u64::MAX, 12_345]) {
            let want = [sidestep_wire::Histogram::bucket(value) as u64, 21, 22];
            let mut buffer: Buffer = [0; 32];
            let mut machine = [0; 16];
            (machine[1], machine[2], machine[7], machine[9]) = (21, 22, value, buffer.as_mut_ptr() as u64);
            run_inline(&code.bytes, &mut machine);
            assert_eq!(buffer[..3], want, "{value}");
            assert_eq!((machine[7], machine[9]), (value, buffer.as_ptr() as u64));
            let mut buffer: Buffer = [0; 32];
            // The context is the buffer, too.
            (buffer[11], buffer[12], buffer[14]) = (21, 22, value);
            call(&as_function, &mut buffer);
            assert_eq!(buffer[..3], want, "{value}");
        }
    }
}

fn shaped_in(verified: &Verified, env: Env) -> Code {
    compile(&verified.program, &verified.facts, &env, Shape::Function).unwrap()
}

#[test]
fn time_and_constants_need_no_call() {
    let text =
        "call 5\n r6 = r0\n call 5\n r0 -= r6\n r1 = map_value(0, 0) ll\n *(u64 *)(r1 + 0) = r0\n r0 = r6\n exit";
    let verified = linked(text);
    for (mult, shift, scale) in [(1, 0, 1.0), (1 << 33, 32, 2.0), (1 << 63, 64, 0.5)] {
        let clock = Clock { mult, shift, base: 1 << 60, stamp: Some(STAMP) };
        let code = shaped_in(&verified, Env { cells: CELLS, clock: Some(clock), ..Env::default() });
        assert!(!code.helpers);
        let mut buffer = [0; 32];
        // SAFETY: every x86-64 processor has it.
        #[allow(unsafe_code)]
        let ticks = || unsafe { core::arch::x86_64::_rdtsc() } as f64 * scale;
        let before = ticks();
        let time = call(&code, &mut buffer).wrapping_sub(1 << 60) as f64;
        assert!(before <= time && time <= ticks(), "{before} {time}");
        assert!(buffer[0] < 1 << 40);
    }
    let text = "r6 = r1\n call 174\n r7 = r0\n r1 = r6\n call 173\n r0 += r7\n exit";
    let env = Env { attach_cookie: Some(5), func_ip: Some(1 << 40), ..Env::default() };
    let code = shaped_in(&linked(text), env);
    assert_eq!((call(&code, &mut [0; 32]), code.helpers), (5 + (1 << 40), false));
}

/// Records carry it, and what watches for a return.
#[test]
fn the_time_goes_to_the_thread() {
    let clock = Clock { mult: 1, shift: 0, base: 0, stamp: Some(STAMP) };
    let env = Env { cells: CELLS, clock: Some(clock), ..Env::default() };
    let verified = verify(&assemble("call 5\n exit").unwrap(), &Rules::default()).unwrap();
    let (result, left) = Native::new(&shaped_in(&verified, env)).run(&mut [0; 32]);
    assert!(result != 0 && left == result);
    // A record that is never written.
    let maps = [Map { kind: MapKind::Ringbuf, ..maps()[0].clone() }];
    let text = "r6 = r1\n call 5\n r7 = r0\n r1 = *(u64 *)(r6 + 0)\n if r1 == 0 goto out\n r1 = map(0) ll\n r2 = r10\n r2 += -8\n
        *(u64 *)(r10 - 8) = 0\n r3 = 8\n r4 = 0\n call 130\n out: r0 = r7\n exit";
    let rules = Rules { maps: &maps, ..Rules::default() };
    let verified = verify(&assemble(text).unwrap(), &rules).unwrap().link(&[Link { map: 1, values: None }]).unwrap();
    let (result, left) = Native::new(&shaped_in(&verified, env)).run(&mut [0; 32]);
    assert!(result != 0 && left == result);
}

/// Programs on words of the context, with the thread's memory.
fn program(steps: &[Insn], loads: &[(Size, bool, usize)]) -> Program {
    let mut insns = Vec::new();
    for (dst, &(size, signed, at)) in Reg::all().skip(2).zip(loads) {
        // Not r9, which has the thread's memory.
        let word = if at / 8 == 8 { at + 8 } else { at };
        let off = (word - word % size.bytes()) as i16;
        insns.push(Insn::Load { size, signed: signed && size != Size::Dw, dst, base: Reg::R1, off });
    }
    for dst in Reg::all().take(9).filter(|&dst| dst < Reg::R2 || dst.index() >= 2 + loads.len()) {
        insns.push(Insn::LoadImm64 { dst, imm: Imm64::Value(0x1_2345_6789 << dst.number()) });
    }
    insns.extend(in_slots(steps));
    insns.push(Insn::LoadImm64 { dst: Reg::R9, imm: Imm64::Thread(0) });
    for src in Reg::all().take(9) {
        let off = 8 * i16::from(src.number());
        insns.push(Insn::Store { size: Size::Dw, base: Reg::R9, off, src: Operand::Reg(src) });
    }
    insns.push(Insn::Exit);
    Program::from_insns(&insns).unwrap()
}

/// As it is: nothing of it was verified.
fn unverified(program: Program) -> Verified {
    let origin = (0..program.slots.len()).collect();
    Verified { program, steps: 0, facts: Default::default(), origin }
}

fn steps() -> impl Strategy<Value = Vec<Insn>> {
    let branch = (width(), cond(), reg(9), operand(9), 0..5i16).prop_map(|(width, cond, dst, src, off)| Insn::Branch {
        width,
        cond,
        dst,
        src,
        off,
    });
    prop::collection::vec(prop_oneof![3 => arithmetic(9), 1 => branch], 0..10)
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(4000) })]

    #[test]
    fn inlined_programs_read_registers_as_the_context(
        steps in steps(),
        loads in prop::collection::vec((size(), any::<bool>(), 0..15 * 8usize), 0..4),
        registers in prop::collection::vec(value(), 16),
        dead in any::<u16>(),
    ) {
        let program = program(&steps, &loads);
        let mut want: Buffer = [0; 32];
        let mut machine: [u64; 16] = registers.try_into().unwrap();
        let order = [15, 14, 13, 12, 5, 3, 11, 10, 9, 8, 0, 1, 2, 6, 7];
        let context: [u64; 22] = std::array::from_fn(|i| order.get(i).map_or(0, |&reg| machine[reg]));
        prop_assert!(interpret_at(&program, context.as_ptr() as u64, &mut want, 1000).is_ok());

        // Simplified or not, interpreted or native.
        let plain = unverified(program);
        let simple = plain.link(&[]).unwrap();
        let mut same: Buffer = [0; 32];
        prop_assert!(interpret_at(&simple.program, context.as_ptr() as u64, &mut same, 1000).is_ok());
        prop_assert_eq!(same, want, "{}\n{}", listing(&plain.program), listing(&simple.program));
        for verified in [&plain, &simple] {
            let code = match shaped(verified, Shape::Inline(Site { dead: dead.into(), ..site() })) {
                Ok(code) => code,
                Err(e) => return Err(TestCaseError::fail(format!("{e}\n{}", listing(&verified.program)))),
            };
            let mut buffer: Buffer = [0; 32];
            machine[9] = buffer.as_mut_ptr() as u64;
            let mut after = machine;
            run_inline(&code.bytes, &mut after);
            prop_assert_eq!(buffer, want, "{}\n{:#?}", listing(&verified.program), disassemble(&code.bytes));
            for reg in 0..16 {
                prop_assert!(code.clobbers & 1 << reg != 0 || after[reg] == machine[reg], "{}", reg);
            }
        }
        let _ = function(&simple.program).unwrap();
    }
}
