//! arm64: detours, and the code that they share.

pub(crate) mod detour;
pub(crate) mod faults;
pub(crate) mod thunk;
