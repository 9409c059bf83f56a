//! x86-64 and x86-32: detours, and the code that they share.

pub mod detour;
pub mod faults;
pub mod thunk;
