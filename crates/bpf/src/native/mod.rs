//! Native code of programs. Each instruction set that has a compiler has a folder with files of
//! equal names; the names here are the face of all of them.

pub mod x86_64;

use sidestep_isa::Isa;

pub use x86_64::{Clock, Code, CompileError, Env, Shape, Site, compile};

/// Is there native code for an instruction set? If not, programs are interpreted.
#[must_use]
pub fn is_for(isa: Isa) -> bool {
    isa == Isa::X64
}
