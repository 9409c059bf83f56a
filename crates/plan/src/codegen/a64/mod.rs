//! arm64: what is written at sites. Detours are not generated yet.

pub(crate) mod detour;
