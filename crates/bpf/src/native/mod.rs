//! Native code of programs. The same file names in each ISA.

pub mod x86_64;
