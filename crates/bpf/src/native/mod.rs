//! Native code of programs. Each instruction set that has a compiler has a folder with files of
//! equal names; the names here are the face of all of them.

pub mod a64;
mod code;
mod functions;
mod intrinsic;
pub mod x86_64;

use sidestep_isa::Isa;

pub use code::{Clock, Code, CompileError, Env, MAX_HELPERS};
pub use x86_64::{Shape, Site, compile};

use crate::program::Program;
use crate::verify::Facts;

/// Is there native code for an instruction set? If not, programs are interpreted.
#[must_use]
pub fn is_for(isa: Isa) -> bool {
    matches!(isa, Isa::X64 | Isa::A64)
}

/// Compiles a program of which `facts` are known as a function.
///
/// # Errors
/// If it was not verified or linked, or there is no compiler.
pub fn function(isa: Isa, program: &Program, facts: &Facts, env: &Env) -> Result<Code, CompileError> {
    match isa {
        Isa::X64 => x86_64::compile(program, facts, env, Shape::Function),
        Isa::A64 => a64::compile(program, facts, env),
        _ => Err(CompileError::Isa),
    }
}
