//! Generated code: from a plan and its handlers to bytes. Each instruction set has a folder with
//! files of equal names.

pub mod handler;
pub mod x86;
