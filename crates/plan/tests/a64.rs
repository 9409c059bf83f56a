//! arm64: what the policy decides. Code is given as words, with what an assembler makes them of.

use sidestep_isa::{Isa, Len, Va};
use sidestep_plan::object::{Bytes, Extent, ObjectCode};
use sidestep_plan::{Index, Plan, Technique, plan};

const BASE: Va = Va(0x1_0000);

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// One function of these words, with pointers into its code.
fn code<'a>(text: &'a [u8], pointers: &[Va]) -> ObjectCode<'a> {
    ObjectCode {
        text: vec![Bytes { name: ".text", va: BASE, data: text }],
        extents: vec![Extent { start: BASE, len: Len(text.len() as u64) }],
        labels: vec![BASE],
        pointers: pointers.to_vec(),
        fixed: false,
        ..ObjectCode::new(Isa::A64)
    }
}

fn at(index: &Index<'_>, word: u64) -> Result<Plan, String> {
    plan(index, BASE.plus(Len(4 * word)), false).map_err(|refusal| refusal.to_string())
}

#[test]
fn a_probe_in_an_exclusive_sequence_kept_its_store_from_ever_succeeding() {
    let text = bytes(&[
        0xd280_0021, // mov x1, #1
        0xc85f_7c02, // again: ldxr x2, [x0]
        0x8b01_0042, // add x2, x2, x1
        0xc803_7c02, // stxr w3, x2, [x0]
        0x35ff_ffa3, // cbnz w3, again
        0xaa02_03e0, // mov x0, x2
        0xd65f_03c0, // ret
    ]);
    let index = Index::new(code(&text, &[]));
    for word in [2, 3] {
        let refusal = at(&index, word).unwrap_err();
        assert!(refusal.contains("is in the exclusive sequence that begins at 0x10004"), "{word}: {refusal}");
    }
    for word in [0, 1, 4, 5, 6] {
        assert_eq!(at(&index, word).unwrap().technique, Technique::Jump, "{word}");
    }
    let behind = at(&index, 1).unwrap().behind().unwrap_err().to_string();
    assert!(behind.contains("an exclusive sequence begins with it"), "{behind}");
}

#[test]
fn numbers_that_are_no_multiples_of_four_were_taken_for_pointers_to_code() {
    let text = bytes(&[
        0xa9be_7bfd, // stp x29, x30, [sp, #-32]!
        0x9100_03fd, // mov x29, sp
        0xa8c2_7bfd, // ldp x29, x30, [sp], #32
        0xd65f_03c0, // ret
    ]);
    let index = Index::new(code(&text, &[BASE.plus(Len(2)), BASE.plus(Len(7))]));
    for word in 0..4 {
        assert_eq!(at(&index, word).unwrap().technique, Technique::Jump, "{word}");
    }
}
