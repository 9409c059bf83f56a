//! What files say about arm64 and arm32.

pub(super) mod operand;
