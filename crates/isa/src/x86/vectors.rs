//! Vector registers that x86 code uses ([`crate::vectors`]).

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};

use crate::Isa;

/// See [`crate::vectors::vectors_used`]. The upper 16 registers of AVX-512 count as the lower ones.
pub(crate) fn vectors_used(isa: Isa, code: &[u8]) -> u32 {
    let mut factory = InstructionInfoFactory::new();
    let mut used = 0;
    for insn in Decoder::new(isa.bits(), code, DecoderOptions::NONE) {
        for register in factory.info(&insn).used_registers().iter().map(|used| used.register()) {
            if register.is_vector_register() {
                used |= 1 << (register.number() & 15);
            }
        }
    }
    used
}
