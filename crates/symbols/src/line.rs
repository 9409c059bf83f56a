//! From lines of source files to addresses: the line number tables of DWARF (DWARF 5, section 6.2;
//! versions 2 to 5).

use std::collections::BTreeSet;

use gimli::{
    ColumnType, DebugLine, DebugLineOffset, DebugLineStr, DebugStr, EndianSlice, Format, LineProgramHeader,
    LittleEndian,
};
use sidestep_isa::Va;

use crate::dwarf::{Place, Sections};
use crate::elf::Elf;
use crate::error::LineError;
use crate::nearest::nearest;

type Slice<'d> = EndianSlice<'d, LittleEndian>;

/// A place in source text.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The end of a path.
    pub file: &'a str,
    pub line: u64,
    /// Any if it is not said.
    pub column: Option<u64>,
}

/// Addresses at which a line begins, or what is at a column of it, ascending.
pub(crate) fn addresses(place: &Place, elf: &Elf, wanted: Wanted<'_>) -> Result<Vec<Va>, LineError> {
    let Wanted { file, line, column } = wanted;
    let path = || place.path.clone();
    let sections = place
        .open(elf, ".debug_line", is_wanted)
        .map_err(|looked| LineError::NoTable { path: path(), looked: places(&looked) })?;
    let corrupt = |what: String| LineError::Corrupt { path: path(), what };
    let found = read(&sections, wanted).map_err(corrupt)?;
    if !found.addresses.is_empty() {
        return Ok(found.addresses.into_iter().map(Va).collect());
    }
    Err(match (found.has_file, column) {
        (true, Some(column)) if !found.columns.is_empty() => {
            let columns = found.columns.into_iter().collect();
            LineError::NoColumn { path: path(), file: file.to_owned(), line, column, columns }
        }
        (true, _) => LineError::NoCode { path: path(), file: file.to_owned(), line, next: found.next },
        (false, _) => {
            let near = nearest(file, found.names.iter().map(String::as_str), 3);
            LineError::NoFile { path: path(), file: file.to_owned(), nearest: near }
        }
    })
}

/// The first ones stand for all.
fn places(looked: &[String]) -> String {
    match looked.split_at_checked(2) {
        Some((first, rest)) if !rest.is_empty() => format!("{} and {} other places", first.join(", "), rest.len()),
        _ => looked.join(", "),
    }
}

fn is_wanted(section: &[u8]) -> bool {
    section.starts_with(b".debug_line") || section == b".debug_str" || section.starts_with(b".note")
}

#[derive(Default)]
struct Found {
    addresses: BTreeSet<u64>,
    has_file: bool,
    /// Columns of the line that have code.
    columns: BTreeSet<u64>,
    /// The first line behind that has code.
    next: Option<u64>,
    /// Names of all source files, without their directories.
    names: BTreeSet<String>,
}

fn read(sections: &Sections, wanted: Wanted<'_>) -> Result<Found, String> {
    let Wanted { file, line, column } = wanted;
    let (table, strings, line_strings) =
        (sections.get(".debug_line")?, sections.get(".debug_str")?, sections.get(".debug_line_str")?);
    let strings = DebugStr::new(&strings, LittleEndian);
    let line_strings = DebugLineStr::from(Slice::new(&line_strings, LittleEndian));
    let lines = DebugLine::new(&table, LittleEndian);
    let mut found = Found::default();
    let mut at = 0;
    while at < table.len() {
        let invalid = |error: gimli::Error| format!("the line table at {at:#x}: {error}");
        let program = lines.program(DebugLineOffset(at), sections.isa().word() as u8, None, None).map_err(invalid)?;
        let header = program.header();
        let length = match header.format() {
            Format::Dwarf32 => 4,
            Format::Dwarf64 => 12,
        };
        let next = at + length + header.unit_length();
        let wanted = wanted_files(header, &strings, &line_strings, file, &mut found.names);
        if !wanted.is_empty() {
            found.has_file = true;
            let mut rows = program.rows();
            while let Some((_, row)) = rows.next_row().map_err(invalid)? {
                let Some(of_row) = row.line().filter(|_| wanted.contains(&row.file_index())) else { continue };
                // What the linker has dropped is at 0 (or 1).
                if row.end_sequence() || !row.is_stmt() || row.address() < 2 {
                    continue;
                }
                if of_row.get() == line {
                    let at = match row.column() {
                        ColumnType::LeftEdge => 0,
                        ColumnType::Column(at) => at.get(),
                    };
                    if column.is_none_or(|column| column == at) {
                        found.addresses.insert(row.address());
                    } else if at > 0 {
                        found.columns.insert(at);
                    }
                } else if of_row.get() > line && found.next.is_none_or(|next| of_row.get() < next) {
                    found.next = Some(of_row.get());
                }
            }
        }
        at = next;
    }
    Ok(found)
}

/// The numbers of the files whose paths end in `file`.
fn wanted_files<'d>(
    header: &LineProgramHeader<Slice<'d>>,
    strings: &DebugStr<Slice<'d>>,
    line_strings: &DebugLineStr<Slice<'d>>,
    file: &str,
    names: &mut BTreeSet<String>,
) -> Vec<u64> {
    let text = |value: gimli::AttributeValue<Slice<'d>>| -> Option<String> {
        let slice = match value {
            gimli::AttributeValue::String(slice) => slice,
            gimli::AttributeValue::DebugStrRef(at) => strings.get_str(at).ok()?,
            gimli::AttributeValue::DebugLineStrRef(at) => line_strings.get_str(at).ok()?,
            _ => return None,
        };
        Some(slice.to_string_lossy().into_owned())
    };
    // Until version 4, files are numbered from 1.
    let first = u64::from(header.version() < 5);
    let entries = (first..).zip(header.file_names());
    let numbers = entries.filter_map(|(number, entry)| {
        let name = text(entry.path_name())?;
        names.insert(name.rsplit('/').next().unwrap_or(&name).to_owned());
        let directory = entry.directory(header).and_then(text).unwrap_or_default();
        let path = if name.starts_with('/') { name } else { format!("{directory}/{name}") };
        is_end(&path, file).then_some(number)
    });
    numbers.collect()
}

/// Whether a path ends in these names.
fn is_end(path: &str, end: &str) -> bool {
    let end = end.strip_prefix("./").unwrap_or(end);
    path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('/') || end.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::is_end;

    #[test]
    fn files_are_named_by_the_end_of_their_paths() {
        for end in ["c.c", "b/c.c", "/a/b/c.c", "./c.c"] {
            assert!(is_end("/a/b/c.c", end), "{end}");
        }
        for end in [".c", "x/c.c", "a/c.c", "c.cc"] {
            assert!(!is_end("/a/b/c.c", end), "{end}");
        }
    }
}
