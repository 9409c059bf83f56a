//! A32 and T32. Detours are written in the instruction set of their site, all shared code is A32.

pub(crate) mod detour;
pub(crate) mod faults;
pub(crate) mod thunk;
