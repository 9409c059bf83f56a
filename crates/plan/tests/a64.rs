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
        assert!(
            refusal.contains("is in an exclusive sequence, whose store at 0x1000c would always fail"),
            "{word}: {refusal}"
        );
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

#[test]
fn stores_of_exclusive_sequences_were_not_found_in_other_blocks() {
    // As LLVM expands a compare and swap of 16 bytes: one store for each of two outcomes.
    let text = bytes(&[
        0xc87f_8c02, // load: ldaxp x2, x3, [x0]
        0xeb04_005f, // cmp x2, x4
        0x5400_0081, // b.ne fail
        0xc825_9c06, // stlxp w5, x6, x7, [x0]
        0x35ff_ff85, // cbnz w5, load
        0x1400_0003, // b done
        0xc825_8c02, // fail: stlxp w5, x2, x3, [x0]
        0x35ff_ff25, // cbnz w5, load
        0xd65f_03c0, // done: ret
    ]);
    let index = Index::new(code(&text, &[]));
    for word in [1, 2, 3, 6] {
        let refusal = at(&index, word).unwrap_err();
        assert!(refusal.contains("is in an exclusive sequence"), "{word}: {refusal}");
    }
    for word in [0, 4, 5, 7, 8] {
        assert_eq!(at(&index, word).unwrap().technique, Technique::Jump, "{word}");
    }
}

#[test]
fn a_jump_was_where_indirect_branches_have_to_find_their_mark() {
    let text = bytes(&[
        0xd503_245f, // bti c
        0xf100_0400, // loop: subs x0, x0, #1
        0x54ff_ffe1, // b.ne loop
        0xd65f_03c0, // ret
    ]);
    // Behind the mark a loop begins, so the probe stays at the mark, as a trap.
    let entry = at(&Index::new(code(&text, &[])), 0).unwrap();
    assert_eq!((entry.site, entry.technique), (BASE, Technique::Trap));
}
