//! The kernel's own eBPF, for comparison with ours: maps, programs, uprobes, rings.
//!
//! Plain data go in: whoever has an object of clang creates its maps ([`Map::create`]), puts their
//! descriptors into the code ([`resolve_maps`]), loads it ([`Program::load`]) and attaches it
//! ([`attach`], [`attach_multi`]). Whatever was created ends with the value that stands for it:
//! nothing is pinned, so nothing outlives a killed controller.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sidestep_sys::bpf::{self, Map, MapSpec, Program, ProgramKind, ProgramSpec, Site};
//!
//! bpf::permitted()?;
//! let array = MapSpec { kind: 2, key_size: 4, value_size: 8, ..MapSpec::default() };
//! let counts = Map::create(&MapSpec { name: "counts", max_entries: 1, ..array })?;
//! # let mut code: Vec<u64> = Vec::new();
//! bpf::resolve_maps(&mut code, &[&counts])?;
//! let spec = ProgramSpec { name: "entry", kind: ProgramKind::Probe, code: &code, license: "GPL" };
//! let program = Program::load(&spec)?;
//! let path = "/usr/bin/redis-server".as_ref();
//! let site = Site { path, offset: 0x12340, pid: Some(42), ..Site::default() };
//! let _probe = bpf::attach(&program, &site)?;
//! # Ok(()) }
//! ```
//!
//! Facts: `include/uapi/linux/bpf.h`, `include/uapi/linux/perf_event.h`, `kernel/bpf/syscall.c`,
//! `kernel/events/core.c` (`perf_uprobe_event_init`), `kernel/bpf/ringbuf.c`.

mod call;
mod code;
mod map;
mod pages;
mod perf;
mod permit;
mod probe;
mod program;
mod ring;

pub use code::{ReferenceError, resolve_maps};
pub use map::{Entry, Map, MapError, MapSpec, Update, possible_cpus};
pub use perf::{PerfBuffer, PerfRecord};
pub use permit::{Refusal, permitted};
pub use probe::{AttachError, MultiSite, Probe, Site, attach, attach_multi};
pub use program::{LoadError, Program, ProgramKind, ProgramSpec};
pub use ring::{RingBuffer, RingError};
