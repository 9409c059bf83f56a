//! Data whose meaningless bits become 0.

use sidestep_bpf::{AluOp, Cond, Operand, Reg, Size, Width};

use super::super::checked::Meaning;
use super::Lower;
use super::text::At;

impl Lower<'_, '_> {
    /// Clears all other bits of data in our own memory.
    pub(super) fn clear_meaningless(&mut self, at: At, meaning: &Meaning) {
        for (index, mask) in meaning.words.iter().enumerate().filter(|(_, mask)| **mask != u64::MAX) {
            self.address(Reg::R1, at.plus(8 * index));
            self.out.load(Size::Dw, Reg::R0, Reg::R1, 0);
            self.out.alu_value(AluOp::And, Reg::R0, *mask, Reg::R2);
            self.out.put(Reg::R1, 0, Reg::R0);
        }
        for choice in &meaning.choices {
            let (size, mask) = match choice.bytes {
                1 => (Size::B, u64::from(u8::MAX)),
                2 => (Size::H, u64::from(u16::MAX)),
                4 => (Size::W, u64::from(u32::MAX)),
                _ => (Size::Dw, u64::MAX),
            };
            let end = self.out.label();
            for (number, meaning) in &choice.variants {
                let Some(number) = number else { continue };
                let next = self.out.label();
                self.address(Reg::R1, at.plus(choice.tag));
                self.out.load(size, Reg::R0, Reg::R1, 0);
                self.out.set(Reg::R2, number & mask);
                self.out.branch(Width::W64, Cond::Ne, Reg::R0, Operand::Reg(Reg::R2), next);
                self.clear_meaningless(at, meaning);
                self.out.goto(end);
                self.out.bind(next);
            }
            for (_, meaning) in choice.variants.iter().filter(|(number, _)| number.is_none()) {
                self.clear_meaningless(at, meaning);
            }
            self.out.bind(end);
        }
    }
}
