//! What scripts print: as bpftrace does, byte for byte.

mod hist;
mod map;
mod value;

pub use map::Printer;
pub use value::{Names, Shown, values};
