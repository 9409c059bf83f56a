//! The table of funccount, in bcc's layout.

/// The lines of the table: heading, then the rows by count ascending, equal counts by name. Zeros
/// are left out.
pub fn counts<'a>(rows: impl IntoIterator<Item = (&'a str, u64)>) -> Vec<String> {
    let mut lines = vec![format!("{:<36} {:>8}", "FUNC", "COUNT")];
    lines.extend(sorted(rows).into_iter().map(|(name, count)| format!("{name:<36} {count:>8}")));
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
}
