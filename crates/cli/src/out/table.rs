//! The table of funccount, in bcc's layout; its first column is wider where a name is longer, but
//! not so wide that the counts are off the screen.

/// Characters of a name, as bcc has it.
const NAME: usize = 36;
/// The most that the first column has. A longer name moves the count of its own line only.
pub const NAME_MAX: usize = 71;

/// The lines of the table: heading, then the rows by count ascending, equal counts by name. Zeros
/// are left out.
pub fn counts<'a>(rows: impl IntoIterator<Item = (&'a str, u64)>) -> Vec<String> {
    let rows = sorted(rows);
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).clamp(NAME, NAME_MAX);
    let mut lines = vec![format!("{:<width$} {:>8}", "FUNC", "COUNT")];
    lines.extend(rows.into_iter().map(|(name, count)| format!("{name:<width$} {count:>8}")));
    lines
}

/// The rows in the order in which they are shown.
pub fn sorted<'a>(rows: impl IntoIterator<Item = (&'a str, u64)>) -> Vec<(&'a str, u64)> {
    let mut rows: Vec<_> = rows.into_iter().filter(|&(_, count)| count > 0).collect();
    rows.sort_by(|a, b| a.1.cmp(&b.1).then(a.0.cmp(b.0)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the examples that bcc ships.
    #[test]
    fn layout_is_bccs() {
        let lines = counts([("write", 4), ("open", 0), ("read", 2), ("close", 4)]);
        let expected = "\
FUNC                                    COUNT
read                                        2
close                                       4
write                                       4";
        assert_eq!(lines.join("\n"), expected);
    }

    #[test]
    fn a_long_name_pushed_its_count_out_of_the_column() {
        let lines = counts([("std::vector<std::string>::emplace_back()", 1), ("main", 20)]);
        let expected = "\
FUNC                                        COUNT
std::vector<std::string>::emplace_back()        1
main                                           20";
        assert_eq!(lines.join("\n"), expected);
    }

    #[test]
    fn a_name_of_hundreds_of_characters_moved_all_counts_off_the_screen() {
        let long = "std::map<std::string, std::string>::".repeat(10);
        let lines = counts([(&*long, 1), ("main", 20)]);
        assert_eq!((lines[0].len(), lines[1].len(), lines[2].len()), (80, 369, 80));
    }
}
