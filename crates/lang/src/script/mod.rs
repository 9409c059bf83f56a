//! The bpftrace language: scripts → eBPF programs and a description of what they print.

pub mod ast;
pub mod c;
pub mod check;
pub mod checked;
pub mod config;
pub mod ctype;
pub mod diagnostic;
pub mod failure;
pub mod fmt;
pub mod lexer;
pub mod lower;
pub mod near;
pub mod number;
pub mod parser;
pub mod printf;
pub mod program;
pub mod token;
pub mod tree;
pub mod types;
