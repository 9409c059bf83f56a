//! The bpftrace language: scripts → eBPF programs and a description of what they print.
pub mod ast;
pub mod diagnostic;
pub mod lexer;
pub mod parser;
pub mod token;
