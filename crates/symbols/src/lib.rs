//! What is in an object file, and which object file is meant: symbols, debug files, code facts,
//! process maps.
//!
//! - [`Object`]: one ELF file with its functions from all symbol tables and debug files, its
//!   segments, relocations and code facts. Opened once, immutable, `Send + Sync`; holds no file
//!   open.
//! - [`usdt`]: the USDT probes of an object, with their arguments.
//! - [`Matcher`]: a name, glob or regular expression for functions.
//! - [`maps`]: `/proc/PID/maps` as data. [`locate`]: from `libc`, `ssl` or a path to a mapped
//!   object or a file.
//!
//! All addresses of an [`Object`] are link-time (as the file states them); [`Object::load_bias`]
//! leads to run-time ones. Input is hostile until proven otherwise: a corrupt file gives an
//! [`ObjectError`], never a panic or a huge allocation.
//!
//! ```
//! use sidestep_symbols::{Matcher, Object};
//! let exe = std::env::current_exe().unwrap();
//! let object = Object::open(&exe, &[]).unwrap();
//! let main = object.find(&Matcher::name("main"));
//! assert_eq!(main[0].name.as_ref(), "main");
//! ```
#![forbid(unsafe_code)]

mod arch;
mod code;
mod compiled;
mod debugfile;
mod demangle;
mod dwarf;
mod eh;
mod elf;
mod error;
mod executable;
mod exidx;
mod function;
mod go;
mod image;
pub mod inlined;
mod line;
pub mod locate;
mod lsda;
pub mod maps;
mod matcher;
mod nearest;
mod object;
mod pclntab;
mod reloc;
mod rewritten;
mod symtab;
mod types;
mod unnamed;
mod unwind;
pub mod usdt;
mod variable;
pub mod zip;

pub use compiled::CompiledNames;
pub use debugfile::{DebugSearch, Outcome, Searched};
pub use demangle::{full as demangled, is_rust};
pub use elf::{Kind, Segment};
pub use error::{LineError, ObjectError, PatternError, SymbolError, TypeError};
pub use executable::Executable;
pub use function::{Binding, Function, FunctionKind, Source, by_address};
pub use locate::{
    MappedObject, find_object, mapped_objects, matching_objects, resolve_object, search_in, with_members,
};
pub use maps::{Mapping, parse_maps};
pub use matcher::{Matcher, glob};
pub use object::Object;
pub use types::{
    Argument, Convention, DataType, DebugInfo, Enumeration, FunctionParameter, FunctionType, Language, Part, Passed,
    Piece, RecordLayout, RecordMember, Variants,
};
pub use unnamed::{address_of_unnamed, asks_for_unnamed, unnamed};
pub use unwind::{Cfa, Row, Rule, Saved, Unwinding};
