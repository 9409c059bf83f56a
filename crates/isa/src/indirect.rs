//! Where do the jumps of a function go that jump through a register?
//!
//! Compilers make them for `switch` (a table of 32-bit offsets from a base, or of pointers),
//! computed `goto` and tail calls through function pointers. A value that was stored, passed in or
//! returned as a pointer can only be one that some instruction, relocation or data word names;
//! those sets are known for the whole object. An offset from a table, added to a base, is read from
//! that table: of each jump, which table belongs to which base is known ([`Table`]). Any other
//! arithmetic on a code address is [`Origin::Computed`]: its targets are unknown.

use crate::insn::Insn;
#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, Len, Va, a32, a64, x86};

/// Where the target of an indirect jump comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A whole pointer: loaded from memory, passed in, returned, or an address named in the code.
    Pointer,
    /// `base + table[i]`, of one of these.
    Table(Vec<Table>),
    /// Something else.
    Computed,
}

/// A table of distances, and what they are added to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Table {
    /// What the distances are from.
    pub base: Va,
    /// Its first entry.
    pub start: Va,
    /// The function names both for this jump. Else the base was kept on the stack, or may be
    /// another one of the function: then one of several is meant.
    pub certain: bool,
    /// What its entries are.
    pub entries: Entries,
}

/// What the entries of a table are, and how a distance comes of one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entries {
    /// Bytes of each: 1, 2 or 4.
    pub bytes: u8,
    /// They are numbers with a sign.
    pub signed: bool,
    /// By how many bits they are shifted to the left.
    pub shift: u8,
}

impl Entries {
    /// Distances in bytes, with a sign: 32 bits each.
    pub const WORDS: Entries = Entries { bytes: 4, signed: true, shift: 0 };
}

impl Table {
    /// Where its entries lead, if these bytes are the table. Nothing says where it ends, unless its
    /// distances have no sign and are from its start: no entry leads into the table, so it ends
    /// where the first case begins.
    ///
    /// ```
    /// use sidestep_isa::{Va, indirect::{Entries, Table}};
    /// let entries = Entries { bytes: 1, signed: true, shift: 2 };
    /// let table = Table { base: Va(0x1000), start: Va(0x2000), certain: true, entries };
    /// assert_eq!(table.targets(&[1, 0xff]).collect::<Vec<_>>(), [Va(0x1004), Va(0xffc)]);
    /// // `tbb`: two entries, and the code behind them.
    /// let entries = Entries { bytes: 1, signed: false, shift: 1 };
    /// let table = Table { base: Va(0x1000), start: Va(0x1000), certain: true, entries };
    /// let targets: Vec<Va> = table.targets(&[2, 1, 0x70, 0x47]).collect();
    /// assert_eq!(targets, [Va(0x1004), Va(0x1002)]);
    /// ```
    pub fn targets<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = Va> + use<'a> {
        let Table { base, start, entries, .. } = *self;
        let size = usize::from(entries.bytes.clamp(1, 4));
        let is_behind = !entries.signed && base == start;
        let mut end = Va(u64::MAX);
        bytes.chunks_exact(size).enumerate().map_while(move |(at, entry)| {
            if is_behind && start.plus(Len((at * size) as u64)) >= end {
                return None;
            }
            let mut number = [0; 8];
            number[..size].copy_from_slice(entry);
            // The sign is that of the highest bit.
            let unused = 64 - 8 * size;
            let number = u64::from_le_bytes(number) << unused;
            let number = if entries.signed { number as i64 >> unused } else { (number >> unused) as i64 };
            let target = base.offset(number << entries.shift);
            end = end.min(target);
            Some(target)
        })
    }
}

/// All indirect jumps of a function, with the origin of their targets. `insns` are the instructions
/// of all of its parts in ascending order of address; gaps between parts are fine. `got`: as in
/// [`ObjectCode`](crate::ObjectCode). `insn`: the instruction at an address, also outside of the
/// function.
pub fn indirect_jumps(
    isa: Isa,
    insns: Vec<Insn>,
    got: Option<Va>,
    insn: &dyn Fn(Va) -> Option<Insn>,
) -> Vec<(Va, Origin)> {
    match isa {
        Isa::X86 | Isa::X64 => {
            let thunk = |at| x86::thunk::thunk(at, |va| insn(va).and_then(Insn::x86));
            let insns = insns.into_iter().filter_map(Insn::x86).collect();
            x86::indirect::Body::new(insns, got, &thunk).indirect_jumps().collect()
        }
        Isa::A64 => {
            let thunk = |at| a64::thunk::thunk(at, |va| insn(va).and_then(Insn::a64));
            a64::indirect::Body::new(insns.into_iter().filter_map(Insn::a64).collect(), &thunk)
                .indirect_jumps()
                .collect()
        }
        Isa::A32 | Isa::T32 => {
            let thunk = |at| a32::thunk::thunk(at, |va| insn(va).and_then(Insn::a32));
            a32::indirect::indirect_jumps(&insns.into_iter().filter_map(Insn::a32).collect::<Vec<_>>(), &thunk)
        }
        #[cfg(feature = "toy")]
        Isa::Toy => toy::indirect_jumps(&insns),
    }
}
