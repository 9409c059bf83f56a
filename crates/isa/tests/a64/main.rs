//! A64, checked against LLVM's assembler and disassembler, and against qemu as the processor.

mod answers;
mod decode;
mod emit;
mod emulate;
mod indirect;
mod libc;
mod machine;
mod oracle;
mod relocate;
mod usage;
