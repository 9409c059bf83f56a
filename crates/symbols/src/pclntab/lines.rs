//! Files and lines of a stripped Go program.

use sidestep_isa::Va;

use super::{SECTIONS, Table, number, text_at, text_start, varint};
use crate::elf::Elf;

/// The table of a program, of which addresses are looked up.
pub(crate) struct Lines {
    data: Vec<u8>,
    word: usize,
    text: Va,
}

/// Which value instructions have: a file or a line.
#[derive(Clone, Copy)]
enum Of {
    File = 4,
    Line = 5,
}

/// The number of a file in the description of a function: which of its unit.
const UNIT: usize = 7;

impl Lines {
    /// `None`: there is no table, or none that can be used.
    pub fn of(elf: &Elf) -> Option<Lines> {
        let section = SECTIONS.iter().find_map(|name| elf.section(name))?;
        let data = elf.data(section).ok()?;
        let lines = Lines { data: data.to_vec(), word: elf.word(), text: text_start(elf, section, data) };
        lines.table()?;
        Some(lines)
    }

    fn table(&self) -> Option<Table<'_>> {
        Table::parse(&self.data, self.word, self.text).ok()
    }

    /// File and line, from 1, of the instruction at a link-time address. Of code that was inlined,
    /// they are those of the inlined code.
    pub fn at(&self, va: Va) -> Option<(String, u32)> {
        let table = self.table()?;
        let (start, place) = table.around(va)?;
        let line = u32::try_from(table.value(place, Of::Line, start, va)?).ok().filter(|line| *line > 0)?;
        let file = usize::try_from(table.value(place, Of::File, start, va)?).ok()?;
        let at = table.field(place, UNIT)?.checked_add(file)?.checked_mul(4)?;
        let name = text_at(table.files, usize::try_from(number(table.units, at, 4)?).ok()?)?;
        Some((String::from_utf8_lossy(name).into_owned(), line)).filter(|(name, _)| !name.is_empty())
    }
}

impl Table<'_> {
    /// The function around an address: where its code begins, and the place of its description.
    fn around(&self, va: Va) -> Option<(u64, usize)> {
        let at = va.0.checked_sub(self.text.0)?;
        // The first function that begins behind the address.
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.pair(2 * middle)? > at { high = middle } else { low = middle + 1 }
        }
        let index = low.checked_sub(1)?;
        let end = self.pair(2 * index + 2)?;
        let start = self.pair(2 * index).filter(|_| at < end)?;
        Some((self.text.0.checked_add(start)?, usize::try_from(self.pair(2 * index + 1)?).ok()?))
    }

    /// The value that an instruction of a function has (`gosym`, `pcvalue`).
    fn value(&self, place: usize, of: Of, start: u64, va: Va) -> Option<i32> {
        let at = self.field(place, of as usize).filter(|at| *at > 0)?;
        let mut bytes = self.lines.get(at..)?.iter();
        let (mut value, mut pc, mut is_first) = (-1_i32, start, true);
        loop {
            let change = varint(&mut bytes)?;
            if change == 0 && !is_first {
                return None;
            }
            is_first = false;
            // The lowest bit is the sign.
            let half = (change >> 1) as i32;
            value = value.wrapping_add(if change & 1 == 0 { half } else { !half });
            pc = pc.checked_add(u64::from(varint(&mut bytes)?).checked_mul(self.quantum)?)?;
            if va.0 < pc {
                return Some(value);
            }
        }
    }
}
