//! Damaged objects and programs: an error, never a panic, in bounded time and memory. Seeds are
//! fixed.

mod cases;

use std::path::Path;
use std::process::Command;

use cases::accepted::ACCEPTED;
use cases::random::{Random, program};
use cases::{lines, maps};
use sidestep_bpf::native::x86_64::{CompileError, Env, Shape, Site, compile};
use sidestep_bpf::object::Object;
use sidestep_bpf::pass::{Link, Values, filter};
use sidestep_bpf::verify::{Problem, Rules, Verified, verify};
use sidestep_bpf::{Imm64, Program, Slot, assemble};
use sidestep_isa::x86::emit::Reg;

/// Enough for what the mutations of small programs need, little enough for thousands of them.
const STEPS: usize = 5_000;

fn object(name: &str) -> Vec<u8> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/object/{name}.c"));
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-fuzz.bpf.o"));
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-g", "-O2", "-mcpu=v3", "-c"]).arg(source);
    let status = clang.arg("-o").arg(&object).status();
    let status = status.unwrap_or_else(|e| panic!("clang does not start ({e}): install the package clang"));
    assert!(status.success());
    std::fs::read(object).unwrap()
}

/// Changes a few bytes, words or the length, near structures more often than anywhere.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = match random.below(3) {
            0 => random.below(bytes.len().min(64)),
            1 => bytes.len() - 1 - random.below(bytes.len().min(64 * 40)),
            _ => random.below(bytes.len()),
        };
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << random.below(8),
            2 | 3 => {
                let values = [0, 1, 4, 8, 0x7fff_ffff, 0x8000_0000, u32::MAX, u32::MAX - 7, bytes.len() as u32];
                let value = random.pick(&values).to_le_bytes();
                let at = at & !3;
                bytes.iter_mut().skip(at).zip(value).for_each(|(byte, v)| *byte = v);
            }
            4 => {
                let from = random.below(bytes.len());
                let copy: Vec<u8> = bytes[from..].iter().take(24).copied().collect();
                bytes.iter_mut().skip(at & !7).zip(copy).for_each(|(byte, v)| *byte = v);
            }
            _ => bytes[at] = random.next() as u8,
        }
    }
}

#[test]
fn damaged_objects_are_errors_or_objects() {
    for name in ["latency", "events"] {
        let whole = object(name);
        let (mut loaded, mut errors) = (0, std::collections::BTreeSet::new());
        for seed in 0..8000 {
            let mut bytes = whole.clone();
            damage(&mut Random::new(seed), &mut bytes);
            match Object::parse(&bytes) {
                Ok(object) => {
                    loaded += 1;
                    let maps = object.map_shapes();
                    for program in &object.programs {
                        let rules = Rules { maps: &maps, max_steps: STEPS, ..Rules::default() };
                        if let Err(e) = verify(&program.program, &rules) {
                            assert!(!e.to_string().contains('\n'));
                            let _ = program.line_of(e.insn);
                        }
                    }
                }
                Err(error) => {
                    let line = error.to_string();
                    assert!(!line.contains('\n'), "{line:?}");
                    errors.insert(line.chars().take_while(|c| c.is_alphabetic() || *c == ' ').collect::<String>());
                }
            }
        }
        // Both happen: the mutations are neither harmless nor all fatal.
        assert!(loaded > 500 && loaded < 7900, "{name}: {loaded} of 8000 load");
        assert!(errors.len() > 5, "{name}: {errors:?}");
    }
}

#[test]
fn random_bytes_are_no_objects() {
    for seed in 0..5000 {
        let mut random = Random::new(seed);
        let mut bytes: Vec<u8> = (0..random.below(400)).map(|_| random.next() as u8).collect();
        // Half of them look like one at first.
        if seed % 2 == 0 {
            let head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\xf7\0\x01\0\0\0";
            bytes.iter_mut().zip(head).for_each(|(byte, h)| *byte = *h);
        }
        assert!(Object::parse(&bytes).is_err());
    }
}

#[test]
fn every_beginning_of_an_object_is_an_error_or_an_object() {
    let whole = object("latency");
    for len in (0..whole.len()).step_by(7) {
        let _ = Object::parse(&whole[..len]);
    }
    assert!(Object::parse(&whole).is_ok());
}

#[test]
fn damaged_programs_are_verified_in_bounded_time() {
    let maps = maps();
    let rules = Rules { maps: &maps, max_steps: STEPS, ..Rules::default() };
    let mut programs: Vec<Program> = ACCEPTED.iter().map(|(_, text)| assemble(&lines(text)).unwrap()).collect();
    programs.extend((0..100).map(program));
    let (mut accepted, mut refused) = (0, 0);
    for (number, program) in programs.iter().enumerate() {
        for round in 0..150 {
            let mut random = Random::new(number as u64 * 1000 + round);
            let mut bytes = program.to_bytes();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len());
                bytes[at] = match random.below(3) {
                    0 => bytes[random.below(bytes.len())],
                    1 => bytes[at] ^ 1 << random.below(8),
                    _ => random.next() as u8,
                };
            }
            // As they come: also what Program::new refuses.
            let slots = bytes.chunks_exact(8).map(|b| Slot::from_bytes(b.try_into().unwrap())).collect();
            match verify(&Program { slots, functions: Vec::new() }, &rules) {
                Ok(verified) => {
                    accepted += 1;
                    compile_all(&verified);
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().contains('\n'), "{error}");
                }
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

/// What was accepted is linked and compiled, if not in every shape.
fn compile_all(verified: &Verified) {
    let values = |base| Some(Values { base, stride: 64, entries: 8 });
    let link = |base| Link { map: 1, values: values(base) };
    for base in [Imm64::Value(1 << 40), Imm64::Thread(64)] {
        let linked = verified.link(&[link(base); 7]).unwrap();
        let site = Site { dead: 0, cells: Some(Reg::R9), sp: 0, ip: 0, cookie: None };
        let code = |verified: &Verified, shape| compile(&verified.program, &verified.facts, &Env::default(), shape);
        assert!(code(&linked, Shape::Function).is_ok());
        let inlined = code(&linked, Shape::Inline(site));
        assert!(inlined.is_ok() || matches!(inlined, Err(CompileError::Inline { .. })));
        if let Some(filter) = filter(&linked) {
            let filter = code(&filter, Shape::Filter(site));
            assert!(filter.is_ok() || matches!(filter, Err(CompileError::Inline { .. })));
        }
    }
}

#[test]
fn random_slots_are_verified_in_bounded_time() {
    let maps = maps();
    let rules = Rules { maps: &maps, max_steps: STEPS, ..Rules::default() };
    for seed in 0..20_000 {
        let mut random = Random::new(seed);
        let opcodes = [0x18, 0x61, 0x79, 0x7b, 0x63, 0x72, 0xb7, 0xbf, 0x07, 0x0f, 0x15, 0x55, 0x05, 0x85, 0x95, 0xdb];
        let slots = (0..1 + random.below(12)).map(|_| Slot {
            opcode: random.pick(&opcodes),
            regs: (random.below(11) | random.below(11) << 4) as u8,
            off: random.below(16) as i16 - 8,
            imm: random.below(16) as i32 - 4,
        });
        let slots = slots.collect();
        let _ = verify(&Program { slots, functions: Vec::new() }, &rules);
    }
}

#[test]
fn programs_with_a_path_for_every_number_were_given_up() {
    // Which way each branch went is in r7, which decides the last one: no path is like another.
    let mut text = "r6 = r1\nr7 = 0\n".to_owned();
    for i in 0..30 {
        text += &format!("r2 = *(u64 *)(r6 + 0)\nif r2 == 0 goto l{i}\nr7 += {}\nl{i}:\n", 1u32 << i);
    }
    text += "if r7 == 12345 goto out\nout:\nr0 = 0\nexit";
    let rules = Rules { max_steps: 100_000, ..Rules::default() };
    let verified = verify(&assemble(&text).unwrap(), &rules).expect("paths are joined");
    assert!(verified.steps < 1000, "{} steps", verified.steps);
}

#[test]
fn loops_with_a_state_for_every_round_are_given_up() {
    let text = "r7 = 0\nagain:\nr7 += 1\nif r7 < 1000000 goto again\nr0 = 0\nexit";
    let rules = Rules { max_steps: 100_000, ..Rules::default() };
    let error = verify(&assemble(text).unwrap(), &rules).unwrap_err();
    assert_eq!(error.problem, Problem::TooComplex(100_000));
}
