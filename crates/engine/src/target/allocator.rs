//! Memory of ours in the target, of what comes and goes while a session lasts: who has taken it,
//! and what nobody needs any more, which is taken before more is mapped. Who gives it back:
//! [`crate::session::reclaim`].

use std::ops::Range;

use sidestep_isa::{Isa, Len, Va};
use sidestep_wire::MapKind;

use crate::error::SessionError;
use crate::target::hold::Hold;
use crate::target::regions::Regions;
use crate::target::space;

/// What one installation has taken.
#[derive(Clone, Default)]
pub(crate) struct Taken {
    /// Slabs, and code of programs.
    pub code: Vec<Range<u64>>,
    /// Addresses of stubs.
    pub stubs: Vec<u64>,
    /// Indices of journal entries.
    pub entries: Vec<u64>,
}

/// What nobody needs.
#[derive(Clone, Default)]
pub(crate) struct Spare {
    /// Mapped as code.
    pub code: Vec<Range<u64>>,
    /// Indices of journal entries, which are blank.
    pub entries: Vec<u64>,
    /// Mapped as data.
    tables: Vec<Range<u64>>,
    /// Tables that are not in use any more, but that somebody may still look at.
    replaced: Vec<Range<u64>>,
    /// Those that are in use.
    current: [Option<Range<u64>>; 3],
}

/// A table that is replaced as a whole.
#[derive(Clone, Copy)]
pub(crate) enum Table {
    Traps,
    Copies,
    Frames,
}

impl Spare {
    /// Code of at least this length that reaches all of `near`, and is reached from there.
    pub fn code(&mut self, isa: Isa, near: Option<&Range<u64>>, len: Len) -> Option<Range<u64>> {
        let fits = |free: &Range<u64>| {
            free.end - free.start >= len.0 && near.is_none_or(|near| space::reaches(isa, near, free))
        };
        let index = self.code.iter().position(fits)?;
        Some(self.code.swap_remove(index))
    }

    /// A table is in use from now on, and the one before is not.
    pub fn put_into_use(&mut self, table: Table, range: Range<u64>) {
        self.replaced.extend(self.current[table as usize].replace(range));
    }

    /// Nobody looks at tables that were replaced.
    pub fn release_tables(&mut self) {
        self.tables.append(&mut self.replaced);
    }
}

impl Regions {
    /// Memory for a table, which [`Spare::put_into_use`] is told of.
    pub fn room_for_table(&self, hold: &mut Hold<'_>, len: Len) -> Result<Range<u64>, SessionError> {
        let mut spare = self.spare.borrow_mut();
        if let Some(index) = spare.tables.iter().position(|free| free.end - free.start >= len.0) {
            return Ok(spare.tables.swap_remove(index));
        }
        let at = self.map_listed(hold, "tables", len, MapKind::Private)?;
        Ok(at.0..at.0 + len.0)
    }

    /// Memory for code near `near`, or anywhere, which is noted as taken: mapped by `map`, if there
    /// is none to spare.
    pub fn room_for_code(
        &self,
        near: Option<&Range<u64>>,
        len: Len,
        map: impl FnOnce() -> Result<Va, SessionError>,
    ) -> Result<Va, SessionError> {
        let spare = self.spare.borrow_mut().code(space::least_reach(), near, len);
        let range = match spare {
            Some(range) => range,
            None => {
                let at = map()?;
                at.0..at.0 + len.0
            }
        };
        self.taken.borrow_mut().code.push(range.clone());
        Ok(Va(range.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_taken_where_it_reaches_and_fits() {
        let mut spare = Spare { code: vec![0x1000..0x2000, 0x5500_0000_0000..0x5500_0000_4000], ..Spare::default() };
        let near = 0x5500_1000_0000..0x5500_1001_0000;
        assert_eq!(spare.code(Isa::X64, Some(&near), Len(0x8000)), None);
        assert_eq!(spare.code(Isa::X64, Some(&near), Len(0x1000)), Some(0x5500_0000_0000..0x5500_0000_4000));
        assert_eq!(spare.code(Isa::X64, Some(&near), Len(0x1000)), None);
        assert_eq!(spare.code(Isa::X64, None, Len(0x1000)), Some(0x1000..0x2000));
    }

    #[test]
    fn a_table_is_free_when_another_is_in_use_and_nobody_looks_at_it() {
        let mut spare = Spare::default();
        spare.put_into_use(Table::Traps, 0x1000..0x2000);
        spare.release_tables();
        assert!(spare.tables.is_empty());
        spare.put_into_use(Table::Traps, 0x3000..0x4000);
        assert!(spare.tables.is_empty());
        spare.release_tables();
        assert_eq!((spare.tables.len(), spare.tables.first()), (1, Some(&(0x1000..0x2000))));
    }
}
