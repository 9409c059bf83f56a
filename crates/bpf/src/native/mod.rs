//! Native code of programs. The same file names in each ISA.

pub mod x86_64;

use sidestep_isa::Isa;

/// Is there native code for an instruction set? If not, programs are interpreted.
#[must_use]
pub fn is_for(isa: Isa) -> bool {
    isa == Isa::X64
}
