//! arm32: what the policy decides. Code is given as words, with what an assembler makes them of.

use sidestep_isa::{Isa, Len, Va};
use sidestep_plan::object::{Bytes, Extent, ObjectCode};
use sidestep_plan::{Index, plan};

const BASE: Va = Va(0x1_0000);

#[test]
fn an_exclusive_sequence_goes_on_behind_a_return_with_a_condition() {
    let words: [u32; 5] = [
        0xe190_3f9f, // ldrex r3, [r0]
        0xe153_0001, // cmp r3, r1
        0x112f_ff1e, // bxne lr
        0xe180_2f91, // strex r2, r1, [r0]
        0xe12f_ff1e, // bx lr
    ];
    let text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let index = Index::new(ObjectCode {
        text: vec![Bytes { name: ".text", va: BASE, data: &text }],
        extents: vec![Extent { start: BASE, len: Len(text.len() as u64) }],
        labels: vec![BASE],
        fixed: false,
        ..ObjectCode::new(Isa::A32)
    });
    for word in [1, 2, 3] {
        let refusal = plan(&index, BASE.plus(Len(4 * word)), false).unwrap_err().to_string();
        assert!(refusal.contains("is in an exclusive sequence, whose store at 0x1000c"), "{word}: {refusal}");
    }
    for word in [0, 4] {
        assert!(plan(&index, BASE.plus(Len(4 * word)), false).is_ok(), "{word}");
    }
}
