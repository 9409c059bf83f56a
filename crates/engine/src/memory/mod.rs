//! The memory that a session shares with its target: sizes, offsets, and access by values. Nothing
//! here knows of a process.
//!
//! | what | modules |
//! |---|---|
//! | sizes and offsets, decided once | [`layout`], [`maps`] |
//! | reading and writing | [`view`], [`raw`] |

pub(crate) mod layout;
pub(crate) mod maps;
pub(crate) mod raw;
pub(crate) mod view;
