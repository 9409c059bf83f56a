//! Why something cannot be printed.

use crate::object::{BtfError, TypeId};

/// Why bytes cannot be printed by their type.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DumpError {
    /// The types are broken.
    #[error("the object's types: {0}; compile it anew with -g")]
    Btf(BtfError),
    /// There are fewer bytes than the type has.
    #[error("type {ty} needs {needs} bytes, but there are {has}; name another type")]
    Short {
        /// The type.
        ty: TypeId,
        /// In bytes.
        needs: usize,
        /// In bytes.
        has: usize,
    },
    /// There is no such section of variables.
    #[error("the object's types know no section '{0}'; compile it with -g")]
    NoSection(String),
    /// What comes out is endless.
    #[error("the value is too long to be printed; print it as bytes")]
    TooLong,
    /// The file is not what [`super::placed_types`] can read.
    #[error("no ELF object: {0}; compile with clang -target bpf")]
    Elf(String),
}

impl From<BtfError> for DumpError {
    fn from(error: BtfError) -> Self {
        DumpError::Btf(error)
    }
}
