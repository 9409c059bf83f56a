//! What scripts print: as bpftrace does, byte for byte.

mod data;
mod hist;
mod layout;
mod map;
mod meaning;
mod series;
mod value;

pub use layout::{Layout, folded, frames, function, listed, merged};
pub use map::{Cell, Line, Print, Printer};
pub use value::{Names, Shown, values};
