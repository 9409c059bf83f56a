//! Encoding and decoding of instructions.

use sidestep_bpf::{DecodeError, DecodeProblem, Insn, Program, Slot};

/// Each accepted encoding is the only one of its meaning, over all operations, register fields and
/// telling immediates.
#[test]
fn what_decodes_encodes_to_the_same_bytes() {
    let mut accepted = 0;
    for opcode in 0..=255 {
        for regs in 0..=255 {
            for off in [0, 1, 2, 8, 16, 32, 64, -1, i16::MAX] {
                for imm in [0, 1, 2, 16, 32, 64, 0x41, 0x50, 0xa1, 0xe0, 0xe1, 0xf0, 0xf1, 0x100, -1, i32::MIN] {
                    for high in [0, 7] {
                        let code = [Slot { opcode, regs, off, imm }, Slot { imm: high, ..Slot::default() }];
                        if let Ok(insn) = Insn::decode(&code) {
                            let (first, second) = insn.encode();
                            assert_eq!(first, code[0], "{insn:?}");
                            assert_eq!(second.is_some(), insn.slots() == 2, "{insn:?}");
                            assert!(second.is_none_or(|s| s == code[1]), "{insn:?}");
                            accepted += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(accepted > 100_000, "{accepted}");
}

/// Encodings as in the kernel's and LLVM's tests.
#[test]
fn bytes_are_read_as_documented() {
    let program = |hex: &str| {
        let bytes: Vec<u8> = hex.split(' ').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
        Program::from_bytes(&bytes)
    };
    let problem = |hex| program(hex).map(|_| ()).map_err(|e| (e.at, e.problem));
    assert_eq!(program("95 00 00 00 00 00 00 00").unwrap().insn(0), Ok(Insn::Exit));
    assert_eq!(problem("85 20 00 00 01 00 00 00"), Err((0, kernel_function())));
    assert_eq!(problem("b7 0b 00 00 01 00 00 00"), Err((0, DecodeProblem::Register(11))));
    assert_eq!(problem("b7 00 01 00 01 00 00 00"), Err((0, DecodeProblem::Field("off", 1))));
    assert_eq!(problem("95 00 00 00 00 00 00 00 18 00 00 00 01 00 00 00"), Err((1, DecodeProblem::Truncated)));
    assert_eq!(problem("95 00 00 00 00 00 00 00 18 00 00"), Err((1, DecodeProblem::Truncated)));
    // Bit 3 of a negation is reserved; 8-byte loads are not sign-extended; atomics have 4 or 8
    // bytes.
    for hex in ["8f 01 00 00 00 00 00 00", "99 21 00 00 00 00 00 00", "d3 21 00 00 00 00 00 00"] {
        assert_eq!(problem(hex), Err((0, DecodeProblem::Opcode)), "{hex}");
    }
}

fn kernel_function() -> DecodeProblem {
    DecodeProblem::Unsupported("kernel functions cannot be called outside the kernel; use a helper")
}

#[test]
fn errors_are_one_clear_line() {
    let error = |slot| Insn::decode(&[slot]).unwrap_err().to_string();
    let slot = Slot { opcode: 0xe5, ..Slot::default() };
    assert_eq!(error(slot), "insn 0: opcode 0xe5: may_goto is not supported; bound the loop by a counter");
    let slot = Slot { opcode: 0xb7, regs: 0x0c, ..Slot::default() };
    assert_eq!(error(slot), "insn 0: opcode 0xb7: there is no register r12; use r0 to r10");
    let at = DecodeError { at: 9, opcode: 0x95, problem: DecodeProblem::Field("imm", -3) };
    assert_eq!(at.to_string(), "insn 9: opcode 0x95: the field imm must not be -3 here");
}

#[test]
fn functions_are_what_is_called_or_referred_to() {
    let call = Slot { opcode: 0x85, regs: 0x10, imm: 3, ..Slot::default() };
    let func = Slot { opcode: 0x18, regs: 0x42, imm: 3, ..Slot::default() };
    let exit = Slot { opcode: 0x95, ..Slot::default() };
    let program = Program::new(vec![call, func, Slot::default(), exit, exit, exit]).unwrap();
    let starts: Vec<usize> = program.functions.iter().map(|f| f.start).collect();
    assert_eq!(starts, [0, 4, 5]);
    assert_eq!(program.function_of(3).unwrap().start, 0);
    assert_eq!(program.function_of(5).unwrap().start, 5);
}
