//! Assembler and disassembler: each other's inverse, and what LLVM writes and reads.

mod generate;

use std::io::Write;
use std::process::{Command, Stdio};

use generate::any_insn;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use sidestep_bpf::{Imm64, Insn, Program, assemble};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn text_means_the_instruction_it_was_made_of(insn in any_insn()) {
        let text = insn.to_string();
        let program = assemble(&text).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        prop_assert_eq!(program.insn(0), Ok(insn), "{}", text);
        prop_assert_eq!(program.slots.len(), insn.slots());
    }

    #[test]
    fn no_text_makes_the_assembler_panic(text in "[rw0-9 =*()u+<>&s:;/a-z#-]{0,40}") {
        let _ = assemble(&text);
    }

    #[test]
    fn what_decodes_survives_the_text(bytes in any::<[u8; 16]>()) {
        if let Ok(program) = Program::from_bytes(&bytes) {
            let text: Vec<String> = program.iter().map(|i| i.unwrap().1.to_string()).collect();
            prop_assert_eq!(assemble(&text.join("\n")).unwrap().slots, program.slots);
        }
    }
}

/// Instructions for LLVM, which knows no maps in text and writes all calls alike.
fn sample() -> Vec<Insn> {
    let mut runner = TestRunner::deterministic();
    let strategy = any_insn().prop_filter("text of LLVM", |insn| match insn {
        Insn::LoadImm64 { imm, .. } => matches!(imm, Imm64::Value(_)),
        Insn::CallLocal(_) => false,
        _ => true,
    });
    (0..5000).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// Our text, but for calls.
fn llvm_text(insn: &Insn) -> String {
    match insn {
        // Its operand of calls is signed.
        Insn::CallHelper(n) => format!("call {}", *n as i32),
        other => other.to_string(),
    }
}

fn llvm_mc(args: &[&str], input: &str) -> String {
    let mut child = Command::new("llvm-mc-19")
        .args(["-triple=bpfel", "-mcpu=v4"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("llvm-mc-19 is the oracle of this test: install Debian's llvm-19");
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn llvm_disassembles_to_the_same_text() {
    let insns = sample();
    let mut hex = String::new();
    for insn in &insns {
        for byte in Program::from_insns(&[*insn]).unwrap().to_bytes() {
            hex += &format!("{byte:#04x} ");
        }
        hex.push('\n');
    }
    let text = llvm_mc(&["--disassemble"], &hex);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty() && *l != ".text").collect();
    assert_eq!(lines.len(), insns.len());
    for (line, insn) in lines.iter().zip(&insns) {
        assert_eq!(*line, llvm_text(insn), "{insn:?}");
    }
}

#[test]
fn llvm_assembles_our_text_to_the_same_bytes() {
    let mut insns = sample();
    // Its assembler takes numbers of 16 bits there, and labels for the rest.
    insns.retain(|insn| !matches!(insn, Insn::Goto { off, .. } if i16::try_from(*off).is_err()));
    let text: Vec<String> = insns.iter().map(llvm_text).collect();
    let listing = llvm_mc(&["--show-encoding"], &(text.join("\n") + "\n"));
    let encodings: Vec<Vec<u8>> = listing
        .lines()
        .filter_map(|line| line.split_once("encoding: [")?.1.split_once(']'))
        .map(|(bytes, _)| bytes.split(',').map(|b| u8::from_str_radix(&b[2..], 16).unwrap()).collect())
        .collect();
    assert_eq!(encodings.len(), insns.len());
    for (encoding, insn) in encodings.iter().zip(&insns) {
        assert_eq!(*encoding, Program::from_insns(&[*insn]).unwrap().to_bytes(), "{insn}");
    }
}

#[test]
fn labels_and_spellings() {
    let program = assemble(
        "// a comment, then a label of its own
entry:
            r6=*(u64*)(r1+0) ; and another
            r2 = *(u32 *)(r10 -4)       // as the kernel writes it
         3: if w2 s< 0xffffffff goto out
            call 14
            call sub
            r1 = func(sub) ll
            goto entry
            *(u8 *)(r10 - 1) = w0
            *(u8 *)(r10 - 1) = r0
            lock *(u32 *)(r1 + 0) += r2
            w3 = be16 w3
     out: done: exit
     sub:   r0 = -0x1
            gotol out",
    );
    let text: Vec<String> = program.unwrap().iter().map(|insn| insn.unwrap().1.to_string()).collect();
    let want = [
        "r6 = *(u64 *)(r1 + 0)",
        "w2 = *(u32 *)(r10 - 4)",
        "if w2 s< -1 goto +9",
        "call helper#14",
        "call pc+8",
        "r1 = func(pc+7) ll",
        "goto -8",
        "*(u8 *)(r10 - 1) = w0",
        "*(u8 *)(r10 - 1) = w0",
        "lock *(u32 *)(r1 + 0) += w2",
        "r3 = be16 r3",
        "exit",
        "r0 = -1",
        "gotol -3",
    ];
    assert_eq!(text, want);
}

#[test]
fn errors_point_at_what_is_wrong() {
    let error = |text| assemble(text).unwrap_err().to_string();
    assert_eq!(error("r0 = 1\n  r11 = 1"), "line 2, column 3: expected an instruction");
    assert_eq!(error("r0 += w1"), "line 1, column 7: w and r registers are mixed; use one width for all operands");
    assert_eq!(error("r0 = 0x80000000"), "line 1, column 6: 2147483648 is out of range; use -2147483648 to 2147483647");
    assert_eq!(
        error("w0 = 0x100000000"),
        "line 1, column 6: 4294967296 is out of range; use -2147483648 to 4294967295"
    );
    assert_eq!(
        error("goto nowhere"),
        "line 1, column 6: there is no label nowhere; define it or use an offset such as +3"
    );
    assert_eq!(error("a: exit\na: exit"), "line 2, column 1: the label a is defined twice; rename one");
    assert_eq!(error("goto +40000"), "line 1, column 6: 40000 is out of range; use -32768 to 32767");
    assert_eq!(error("exit now"), "line 1, column 6: expected the end of the line");
    assert_eq!(error("w1 = (s32)w2"), "line 1, column 7: expected a signed type that is shorter than the register");
    assert_eq!(error("r1 = -r2"), "line 1, column 6: expected the same register on both sides");
    assert_eq!(
        error("w1 = *(u64 *)(r2 + 0)"),
        "line 1, column 6: w and r registers are mixed; use one width for all operands"
    );
    assert_eq!(error("if r1 = 3 goto +1"), "line 1, column 7: expected a condition such as == or s>");
    assert_eq!(
        error("lock *(u16 *)(r1 + 0) += r2"),
        "line 1, column 7: expected u32 or u64: atomics have 4 or 8 bytes"
    );
    assert_eq!(error("*(s8 *)(r1 + 0) = 1"), "line 1, column 2: expected an unsigned type: stores have no sign");
    assert_eq!(
        error("r3 = cmpxchg_64(r1 + 0, r0, r2)"),
        "line 1, column 6: expected r0 as result and second operand of cmpxchg"
    );
}
