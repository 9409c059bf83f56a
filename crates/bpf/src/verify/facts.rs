//! What a walk over all paths has learned, for those who compile the program or decide how it is
//! called.

use std::collections::{BTreeMap, BTreeSet};

use super::helpers::Arg;
use super::value::Kind;
use super::{Helper, Rules};
use crate::insn::Insn;
use crate::map::MapKind;
use crate::program::Program;

/// Which memory an instruction touches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Memory {
    /// The stack of the program.
    Stack,
    /// The context, at the offset that the instruction has.
    Context,
    /// Values of the map with this index, which all threads share.
    Map(usize),
    /// Values of the map with this index, of which each thread has its own.
    ThreadMap(usize),
    /// A reserved record of a ring.
    Record,
    /// Memory of the target that is mapped whenever the program runs ([`Source::Mapped`]).
    ///
    /// [`Source::Mapped`]: crate::pass::arguments::Source::Mapped
    Target,
    /// Not the same on all paths.
    Mixed,
}

impl Memory {
    pub(crate) fn of(kind: Kind, rules: &Rules) -> Memory {
        match kind {
            Kind::Stack { .. } => Memory::Stack,
            Kind::Context => Memory::Context,
            Kind::Record { .. } => Memory::Record,
            Kind::MapValue { map } => match rules.maps.get(map).map(|m| m.kind) {
                Some(kind) if kind.is_per_thread() => Memory::ThreadMap(map),
                _ => Memory::Map(map),
            },
            _ => Memory::Mixed,
        }
    }

    /// Whether no other thread touches it, so that one instruction is whole without `lock`.
    #[must_use]
    pub fn is_local(self) -> bool {
        matches!(self, Memory::Stack | Memory::Context | Memory::ThreadMap(_))
    }

    /// Whether what is written there outlives the program.
    #[must_use]
    pub fn is_map(self) -> bool {
        matches!(self, Memory::Map(_) | Memory::ThreadMap(_) | Memory::Mixed)
    }
}

impl MapKind {
    /// Whether each thread has values of its own: the kernel's per-CPU kinds.
    #[must_use]
    pub fn is_per_thread(self) -> bool {
        matches!(self, MapKind::PercpuArray | MapKind::PercpuHash | MapKind::LruPercpuHash)
    }

    /// Whether all entries exist, and lie one behind the other.
    #[must_use]
    pub fn is_array(self) -> bool {
        matches!(self, MapKind::Array | MapKind::PercpuArray)
    }
}

/// A call of `map_lookup_elem`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// Index of the map; none if it is not always the same.
    pub map: Option<usize>,
    /// The key, little-endian and zero-extended, if it is always the same and has at most 8 bytes.
    pub key: Option<u64>,
}

/// What is true of a program on all paths.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Words of the context that are loaded, a bit for each 8 bytes.
    pub context: u64,
    /// The address of the context is passed to a helper or function, or kept in a map or record.
    pub context_escapes: bool,
    /// The address of the context is given to a helper as a number, or kept in a map or record: it
    /// may be read as any memory.
    pub context_is_data: bool,
    /// Words of the context that are written, a bit for each 8 bytes.
    pub context_written: u64,
    /// Numbers of the helpers that may be called.
    pub helpers: BTreeSet<u32>,
    /// What each load, store and atomic operation touches, by slot. Those that no path reaches are
    /// missing.
    pub accesses: BTreeMap<usize, Memory>,
    /// Loads, stores and atomic operations that may not be aligned, by slot.
    pub unaligned: BTreeSet<usize>,
    /// Calls of `map_lookup_elem`, by slot.
    pub lookups: BTreeMap<usize, Lookup>,
    /// The program may be interrupted anywhere by itself, in a signal handler of the same thread,
    /// and neither loses what the other did: it changes maps by atomic operations only.
    ///
    /// Helpers that take part: lookups, reads, records of rings (whole, each in its own room) and
    /// stack traces (whole in themselves). Not so `map_update_elem` and `map_delete_elem`, since a
    /// key is mostly looked up before, and helpers that write into a map's value. Stores to the
    /// stack, the context and reserved records belong to one run only.
    pub reentrant: bool,
    /// A helper writes into a value of a map, byte by byte.
    pub(crate) helper_writes: bool,
}

impl Facts {
    /// Notes what an instruction touches on one more path.
    pub(crate) fn touches(&mut self, at: usize, memory: Memory) {
        self.accesses
            .entry(at)
            .and_modify(|m| *m = if *m == memory { memory } else { Memory::Mixed })
            .or_insert(memory);
    }

    /// Notes which map is looked up on one more path.
    pub(crate) fn looks_up(&mut self, at: usize, map: Option<usize>) {
        let same = |l: &mut Lookup| l.map = l.map.filter(|m| Some(*m) == map);
        self.lookups.entry(at).and_modify(same).or_insert(Lookup { map, key: None });
    }

    /// Whether a helper of this sort may be called.
    pub fn calls(&self, sort: impl Fn(&Helper) -> bool) -> bool {
        self.helpers.iter().filter_map(|number| Helper::by_number(*number)).any(sort)
    }

    /// What an instruction touches; [`Memory::Mixed`] if that is not known.
    #[must_use]
    pub fn memory(&self, at: usize) -> Memory {
        self.accesses.get(&at).copied().unwrap_or(Memory::Mixed)
    }

    /// Computes what follows from the instructions and the rest.
    pub(crate) fn settle(&mut self, program: &Program) {
        let insns = || program.iter().filter_map(Result::ok);
        self.helpers = insns().filter_map(|(_, i)| if let Insn::CallHelper(n) = i { Some(n) } else { None }).collect();
        (self.context, self.context_written) = (0, 0);
        let mut stores = false;
        for (at, insn) in insns() {
            let memory = self.accesses.get(&at).copied();
            match (insn, memory) {
                (Insn::Load { off, .. }, Some(Memory::Context)) => self.context |= 1 << (off / 8),
                // From the context on some paths: any of it.
                (Insn::Load { .. }, Some(Memory::Mixed)) => (self.context, self.context_escapes) = (u64::MAX, true),
                (Insn::Store { off, .. }, Some(Memory::Context)) => self.context_written |= 1 << (off / 8),
                (Insn::Store { .. }, Some(memory)) => {
                    stores |= memory.is_map();
                    if memory == Memory::Mixed {
                        self.context_written = u64::MAX;
                    }
                }
                _ => {}
            }
        }
        let changes = self.helpers.iter().filter_map(|n| Helper::by_number(*n)).any(Helper::changes_map);
        self.reentrant = !stores && !changes && !self.helper_writes;
    }
}

impl Helper {
    /// Whether it sets or removes entries.
    pub(crate) fn changes_map(&self) -> bool {
        matches!(self.name, "map_update_elem" | "map_delete_elem")
    }

    /// Whether it may write to memory of the program that it is given.
    pub(crate) fn writes_memory(&self) -> bool {
        self.args.iter().any(|arg| matches!(arg, Arg::Write | Arg::WriteU64 | Arg::Callback))
    }
}
