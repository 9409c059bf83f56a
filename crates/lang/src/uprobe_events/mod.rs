//! Lines as the kernel's `uprobe_events` takes them, and filters as its `events/*/filter` does, as
//! eBPF programs.
//!
//! Grammar, limits, texts of errors and the places they point to are the kernel's
//! (`Documentation/trace/uprobetracer.rst`, `Documentation/trace/events.rst`, and what `error_log`
//! says). What differs:
//! - `$argN` is allowed at the entry of a function: the N-th integer argument of the System V ABI.
//! - Strings are cut at [`Options::max_string`] bytes, and shorter if a record has many of them.
//! - A number that cannot be read is printed as `(fault)`, as strings are, not as what was left in
//!   the buffer.
//!
//! ```
//! use sidestep_lang::uprobe_events::{Event, Filter, Options, Probe, compile};
//!
//! let event = Event::parse("p:mem/alloc /bin/app:0x1130 size=%di name=+0(%si):string")?;
//! let filter = Filter::parse("size > 64", &event)?;
//! let compiled = compile(&[Probe { event, filter: Some(filter) }], &Options::default())?;
//! assert_eq!(compiled[0].format.fields()[0].name, "size");
//!
//! let line = "p /bin/sh:10a";
//! assert_eq!(
//!     Event::parse(line).unwrap_err().render(line),
//!     "error: Invalid uprobe offset\n  Command: p /bin/sh:10a\n                     ^\n",
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod compile;
mod error;
mod event;
mod fetch;
mod filter;
mod format;
mod line;
mod number;
mod pattern;
mod record;

pub use compile::{ArgProblem, CompileError, Compiled, Options, Probe, Submit, compile};
pub use error::{ErrorKind, ParseError};
pub use event::{Arg, Base, Event, Fetch, Kind, Register, Type};
pub use filter::Filter;
pub use line::MAXACTIVE_MAX;
pub use record::{Field, Header, RecordError, RecordFormat, Value, event_number};
