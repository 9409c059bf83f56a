//! The instruction set of the tests.

pub(crate) mod detour;
