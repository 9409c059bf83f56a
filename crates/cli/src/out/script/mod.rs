//! What scripts print: as bpftrace does, byte for byte.

mod data;
mod hist;
mod map;
mod value;

pub use map::{Print, Printer};
pub use value::{Names, Shown, values};
