//! A set of addresses in the text of an object: a bit per byte.

use sidestep_isa::object::Bytes;
use sidestep_isa::{Len, Va};

use crate::analysis::boundaries::Boundaries;
use crate::object::ObjectCode;

/// Addresses in text. Asking for one takes a constant time in an object with few sections.
pub(crate) struct Marks {
    /// Sections, with the offsets that are in the set; sorted.
    sections: Vec<(Va, usize, Boundaries)>,
}

impl Marks {
    /// An empty set.
    pub fn new(code: &ObjectCode<'_>) -> Marks {
        let section = |bytes: &Bytes<'_>| (bytes.va, bytes.data.len(), Boundaries::new(bytes.data.len()));
        Marks { sections: code.text.iter().map(section).collect() }
    }

    /// Adds an address; nothing happens if it is not in text.
    pub fn set(&mut self, va: Va) {
        if let Some((number, offset)) = self.place(va) {
            self.sections[number].2.set(offset);
        }
    }

    /// Whether an address is in the set; `None`: it is not in text.
    pub fn get(&self, va: Va) -> Option<bool> {
        let (number, offset) = self.place(va)?;
        Some(self.sections[number].2.get(offset))
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Va> {
        self.sections.iter().flat_map(|(start, _, set)| set.iter().map(|offset| start.plus(Len(offset as u64))))
    }

    fn place(&self, va: Va) -> Option<(usize, usize)> {
        let number = self.sections.partition_point(|(start, ..)| *start <= va).checked_sub(1)?;
        let (start, len, _) = &self.sections[number];
        let offset = va.since(*start) as usize;
        (offset < *len).then_some((number, offset))
    }
}
