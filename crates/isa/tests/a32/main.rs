//! A32 and T32, checked against LLVM's assembler and disassembler, and against qemu as the
//! processor.

mod answers;
mod decode;
mod emit;
mod emulate;
mod machine;
mod oracle;
mod relocate;
