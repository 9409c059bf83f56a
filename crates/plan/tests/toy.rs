//! A tiny instruction set goes through analysis, policy and code generation: what is needed for a
//! port is a folder in `isa` and one in `codegen`, and nothing in between.
//!
//! A machine of a few lines runs random programs, as they are and with all of their instructions
//! probed one after the other: registers, memory and the order of system calls are the same, and
//! each execution of a probed instruction is a hit.
#![cfg(feature = "toy")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use sidestep_isa::object::{Bytes, Extent};
use sidestep_isa::toy::{FP, LINK, SP, WORD, decode, op, word, word_16, word_24};
use sidestep_isa::{Isa, Len, ObjectCode, Va};
use sidestep_plan::detour::build;
use sidestep_plan::handler::Handler;
use sidestep_plan::thunk::{Env, Thunks};
use sidestep_plan::{Index, Patch, Placement, Plan, Technique, exits, plan, plan_at, plan_exit};

/// Link-time address of the program.
const TEXT: Va = Va(0x1000);
/// Run-time minus link-time address.
const BIAS: i64 = 0x40_0000;
/// Where detours are.
const DETOURS: Va = Va(0x80_0000);
/// Where the stack is.
const STACK: u64 = 0x9000_0000;
/// What `main` returns to.
const END: u64 = 0xdead_0000;
/// Instructions that a program may execute.
const STEPS: usize = 4000;

/// What has happened when a program is at its end.
#[derive(PartialEq, Eq, Debug, Default)]
struct Outcome {
    registers: [u64; 16],
    memory: BTreeMap<u64, u64>,
    /// Register 0 at each system call.
    calls: Vec<u64>,
    hits: usize,
    /// How often each original instruction was executed.
    executed: BTreeMap<u64, usize>,
}

/// Code by address, a word each.
#[derive(Clone, Default)]
struct Code(BTreeMap<u64, [u8; WORD]>);

impl Code {
    fn write(&mut self, at: Va, bytes: &[u8]) {
        let words = bytes.chunks_exact(WORD).enumerate();
        self.0.extend(words.map(|(i, word)| (at.0 + (i * WORD) as u64, word.try_into().unwrap())));
    }

    fn read(&self, at: u64) -> u64 {
        let half = |at| u64::from(u32::from_le_bytes(self.0.get(&at).copied().unwrap_or_default()));
        half(at) | half(at + 4) << 32
    }

    /// Runs from an address to [`END`], or as long as it may. `traps` says where traps go on.
    fn run(&self, start: u64, traps: &BTreeMap<u64, u64>) -> Option<Outcome> {
        let mut out = Outcome::default();
        let (mut pc, mut equal) = (start, false);
        (out.registers[usize::from(SP)], out.registers[usize::from(LINK)]) = (STACK, END);
        for _ in 0..STEPS {
            if pc == END {
                return Some(out);
            }
            *out.executed.entry(pc).or_default() += 1;
            let insn = decode(self.0.get(&pc)?, Va(pc)).ok()?;
            let (rd, rs) = (usize::from(insn.rd()), usize::from(insn.rs()));
            let (source, number) = (out.registers[rs], insn.number() as u64);
            let slot = source.wrapping_add(number.wrapping_mul(8));
            let mut next = insn.next().0;
            match insn.op() {
                op::LOAD_NUMBER => out.registers[rd] = number,
                op::COPY => out.registers[rd] = source,
                op::ADD => out.registers[rd] = source.wrapping_add(number),
                op::ADDRESS => out.registers[rd] = insn.target().0,
                op::LOAD_HERE => out.registers[rd] = self.read(insn.target().0),
                op::LOAD => {
                    out.registers[rd] = match out.memory.get(&slot) {
                        Some(value) => *value,
                        None => self.read(slot),
                    }
                }
                op::STORE => drop(out.memory.insert(slot, out.registers[rd])),
                op::COMPARE => equal = out.registers[rd] == source,
                op::JUMP => next = insn.target().0,
                op::JUMP_EQUAL if equal => next = insn.target().0,
                op::JUMP_ZERO if out.registers[rd] == 0 => next = insn.target().0,
                op::CALL | op::CALL_REGISTER => {
                    out.registers[usize::from(LINK)] = next;
                    next = if insn.op() == op::CALL { insn.target().0 } else { source };
                }
                op::JUMP_REGISTER => next = source,
                op::RETURN => next = out.registers[usize::from(LINK)],
                op::TRAP => next = *traps.get(&pc)?,
                op::SYSCALL => out.calls.push(out.registers[0]),
                op::HIT => out.hits += 1,
                _ => {}
            }
            pc = next;
        }
        None
    }
}

fn assembled(words: &[[u8; WORD]]) -> Vec<u8> {
    words.concat()
}

/// The index of a program, of which each function begins at one of these words.
fn index<'a>(text: &'a [u8], functions: &[usize]) -> Index<'a> {
    let ends = functions.iter().skip(1).copied().chain([text.len() / WORD]);
    let extent = |(start, end): (usize, usize)| Extent {
        start: TEXT.plus(Len((start * WORD) as u64)),
        len: Len(((end - start) * WORD) as u64),
    };
    let extents: Vec<Extent> = functions.iter().copied().zip(ends).map(extent).collect();
    Index::new(ObjectCode {
        text: vec![Bytes { name: ".text", va: TEXT, data: text }],
        labels: extents.iter().map(|extent| extent.start).collect(),
        extents,
        fixed: false,
        ..ObjectCode::new(Isa::Toy)
    })
}

/// Writes a probe with this plan.
fn probe(code: &mut Code, traps: &mut BTreeMap<u64, u64>, plan: &Plan) {
    let handlers = [Handler::Agent { probe: 7 }];
    let detour = build(plan, &handlers, DETOURS, BIAS, &Thunks::default(), &Env::default()).unwrap();
    code.write(detour.at, &detour.bytes);
    code.write(detour.site, &detour.patch);
    traps
        .extend(detour.traps.iter().map(|(from, to)| (detour.site.0 + u64::from(*from), detour.at.0 + u64::from(*to))));
}

/// `f` calls `g` in a loop; there are a mark, a literal, a table in the text and a tail call.
fn program() -> (Vec<u8>, Vec<usize>) {
    let words = [
        word(op::MARK, 0, 0, 0),      // 0: f
        word(op::ADD, SP, SP, 0xf0),  //    sp -= 16
        word(op::STORE, LINK, SP, 0), //    save the return address
        word(op::STORE, FP, SP, 1),
        word_16(op::LOAD_NUMBER, 1, 5).unwrap(), // 4: r1 = 5
        word(op::COPY, 0, 1, 0),                 // 5: r0 = r1
        word_24(op::CALL, 9).unwrap(),           //    call g (15)
        word(op::ADD, 1, 1, 0xff),               //    r1 -= 1
        word_16(op::JUMP_ZERO, 1, 2).unwrap(),   //    to 10
        word_24(op::JUMP, -4).unwrap(),          //    to 5
        word(op::LOAD, LINK, SP, 0),             // 10
        word(op::LOAD, FP, SP, 1),
        word(op::ADD, SP, SP, 0x10),
        word_24(op::JUMP, 8).unwrap(), //    tail call of h (21)
        word(op::NOP, 0, 0, 0),
        word_16(op::LOAD_HERE, 2, 4).unwrap(), // 15: g: r2 = the words at 19
        word_16(op::ADDRESS, 3, -1).unwrap(),  //    r3 = g
        word(op::SYSCALL, 0, 0, 0),
        word(op::RETURN, 0, 0, 0),
        [1, 2, 3, 4], // 19: a literal
        [5, 6, 7, 8],
        word(op::COMPARE, 1, 2, 0), // 21: h
        word_24(op::JUMP_EQUAL, 2).unwrap(),
        word(op::COPY, 4, 2, 0),
        word(op::RETURN, 0, 0, 0),
    ];
    (assembled(&words), vec![0, 15, 19, 21])
}

#[test]
fn each_instruction_of_a_program_is_probed() {
    let (text, functions) = program();
    let index = index(&text, &functions);
    let mut original = Code::default();
    original.write(TEXT.offset(BIAS), &text);
    let start = TEXT.offset(BIAS).0;
    let expected = original.run(start, &BTreeMap::new()).expect("the program ends");
    assert_eq!(expected.calls, [5, 4, 3, 2, 1]);
    let (mut jumps, mut probed) = (0, 0);
    for (at, executed) in &expected.executed {
        let asked = Va(*at).offset(-BIAS);
        let plan = plan_at(&index, asked, false, Placement::First).unwrap_or_else(|refusal| panic!("{refusal}"));
        jumps += usize::from(plan.technique != Technique::Trap);
        let (mut code, mut traps) = (original.clone(), BTreeMap::new());
        probe(&mut code, &mut traps, &plan);
        let outcome = code.run(start, &traps).expect("the probed program ends");
        assert_eq!((outcome.hits, outcome.registers), (*executed, expected.registers), "{asked}");
        assert_eq!((&outcome.memory, &outcome.calls), (&expected.memory, &expected.calls), "{asked}");
        probed += 1;
    }
    assert_eq!((probed, jumps), (22, 22), "each instruction has the length of a jump");
}

#[test]
fn returns_are_seen_at_the_exits() {
    let (text, functions) = program();
    let index = index(&text, &functions);
    let mut original = Code::default();
    original.write(TEXT.offset(BIAS), &text);
    let start = TEXT.offset(BIAS).0;
    // `g` is called five times, and has one exit.
    let found = exits(&index, TEXT.plus(Len(15 * WORD as u64))).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(found.all.len(), 1, "{:?}", found.all);
    let plan = plan_exit(&index, found.all[0], false, None).unwrap();
    let (mut code, mut traps) = (original.clone(), BTreeMap::new());
    probe(&mut code, &mut traps, &plan);
    assert_eq!(code.run(start, &traps).unwrap().hits, 5);
}

#[test]
fn a_trap_is_a_trap_and_a_breakpoint_is_refused() {
    let (mut text, functions) = program();
    {
        let index = index(&text, &functions);
        let plan = plan(&index, TEXT, true).unwrap();
        assert_eq!((plan.technique, plan.patch), (Technique::Trap, Patch::Trap));
        assert_eq!(plan.site, TEXT.plus(Len(WORD as u64)), "the mark stays where it is");
        let (mut code, mut traps) = (Code::default(), BTreeMap::new());
        code.write(TEXT.offset(BIAS), &text);
        probe(&mut code, &mut traps, &plan);
        assert_eq!(code.run(TEXT.offset(BIAS).0, &traps).unwrap().hits, 1);
    }
    text[4 * WORD..5 * WORD].copy_from_slice(&word(op::TRAP, 0, 0, 0));
    let refusal = plan(&index(&text, &functions), TEXT.plus(Len(4 * WORD as u64)), false).unwrap_err();
    assert_eq!(refusal.reason.to_string(), "there is a breakpoint already");
}

/// Instructions of a straight line: none jumps, and r12 to r15 stay.
fn straight() -> impl Strategy<Value = [u8; WORD]> {
    let register = 0u8..12;
    prop_oneof![
        (register.clone(), any::<i16>()).prop_map(|(rd, n)| word_16(op::LOAD_NUMBER, rd, n.into()).unwrap()),
        (register.clone(), register.clone(), any::<u8>()).prop_map(|(rd, rs, n)| word(op::ADD, rd, rs, n)),
        (register.clone(), register.clone()).prop_map(|(rd, rs)| word(op::COPY, rd, rs, 0)),
        (register.clone(), -9i64..9).prop_map(|(rd, n)| word_16(op::ADDRESS, rd, n).unwrap()),
        (register.clone(), -9i64..9).prop_map(|(rd, n)| word_16(op::LOAD_HERE, rd, n).unwrap()),
        (register.clone(), register.clone()).prop_map(|(rd, rs)| word(op::COMPARE, rd, rs, 0)),
        (register, 0u8..8).prop_map(|(rd, n)| word(op::STORE, rd, SP, n)),
        Just(word(op::NOP, 0, 0, 0)),
        Just(word(op::SYSCALL, 0, 0, 0)),
        // Over the next instruction.
        Just(word_24(op::JUMP_EQUAL, 2).unwrap()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn random_programs_do_the_same(body in prop::collection::vec(straight(), 1..24)) {
        let mut words = body;
        // A jump over the last one leads here.
        words.extend([word(op::NOP, 0, 0, 0), word(op::RETURN, 0, 0, 0)]);
        let text = assembled(&words);
        let index = index(&text, &[0]);
        let mut original = Code::default();
        original.write(TEXT.offset(BIAS), &text);
        let start = TEXT.offset(BIAS).0;
        let expected = original.run(start, &BTreeMap::new()).expect("the program ends");
        for (at, executed) in &expected.executed {
            let asked = Va(*at).offset(-BIAS);
            let Ok(plan) = plan_at(&index, asked, false, Placement::First) else { continue };
            let (mut code, mut traps) = (original.clone(), BTreeMap::new());
            probe(&mut code, &mut traps, &plan);
            // What the program reads of its own code is not the same.
            let own = TEXT.offset(BIAS - 7).0..TEXT.offset(BIAS).0 + text.len() as u64;
            let reads = expected.executed.keys().any(|at| {
                let insn = decode(&original.0[at], Va(*at)).unwrap();
                insn.op() == op::LOAD_HERE && own.contains(&insn.target().0)
            });
            let outcome = code.run(start, &traps).expect("the probed program ends");
            prop_assert_eq!(outcome.hits, *executed);
            if !reads {
                prop_assert_eq!(&outcome.registers, &expected.registers);
                prop_assert_eq!((&outcome.memory, &outcome.calls), (&expected.memory, &expected.calls));
            }
        }
    }
}
