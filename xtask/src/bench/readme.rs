//! The short form of the tables, for `README.md`: some rows and columns of `docs/bench.md`.

use anyhow::{Context, Result};

/// Between these lines is what is generated.
const BEGIN: &str = "<!-- From docs/bench.md, by `cargo xtask bench --write`. -->\n";
const END: &str = "<!-- End of the figures. -->\n";

/// A table of the document: the title of its section, the columns, and the rows by their names,
/// all if there are none. Of several tables of a section, the first one counts: 64-bit programs.
struct Pick {
    title: &'static str,
    columns: &'static [&'static str],
    rows: &'static [&'static str],
}

const PICKS: [Pick; 2] = [
    Pick {
        title: "By the technique",
        columns: &["technique", "entry", "return", "entry + return", "kernel uprobe", "uretprobe"],
        rows: &["jump", "jump over several", "pun", "guarded jump", "trap"],
    },
    Pick {
        title: "A server with all its functions probed",
        columns: &["all functions of redis-server", "slower by the factor"],
        rows: &[],
    },
];

/// The README with the figures of the document.
pub fn with_figures(readme: &str, doc: &str) -> Result<String> {
    let (before, rest) = readme.split_once(BEGIN).context("README.md has no place for figures")?;
    let (_, after) = rest.split_once(END).context("the figures of README.md have no end")?;
    let tables: Vec<String> = PICKS.iter().filter_map(|pick| pick.of(doc)).collect();
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", tables.join("\n")))
}

impl Pick {
    /// `None` if the document does not have it.
    fn of(&self, doc: &str) -> Option<String> {
        let (_, section) = doc.split_once(&format!("\n## {}\n", self.title))?;
        let section = section.split("\n## ").next()?;
        let is_row = |line: &&str| line.starts_with('|');
        let mut lines = section.lines().skip_while(|line| !is_row(line)).take_while(is_row);
        let heads = cells(lines.next()?);
        let columns: Vec<usize> =
            self.columns.iter().filter_map(|column| heads.iter().position(|head| head == column)).collect();
        let pick = |line: &str| {
            let cells = cells(line);
            let row: Vec<&str> = columns.iter().filter_map(|column| cells.get(*column).copied()).collect();
            format!("| {} |\n", row.join(" | "))
        };
        let wanted =
            |line: &&str| self.rows.is_empty() || cells(line).first().is_some_and(|name| self.rows.contains(name));
        let rows: String = lines.skip(1).filter(wanted).map(pick).collect();
        Some(format!(
            "| {} |\n|---|{}\n{rows}",
            columns.iter().map(|i| heads[*i]).collect::<Vec<_>>().join(" | "),
            "---:|".repeat(columns.len() - 1)
        ))
    }
}

/// Of a row of a table. A bar behind a backslash is part of a cell.
fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split(" | ").map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_are_picked() {
        let doc = "# Title\n\n## By the technique\n\nby\n\n| technique | entry | other | kernel uprobe |\n|---|---:|---:|---:|\n\
                   | jump | 1 | 2 | 3 |\n| else | 4 | 5 | 6 |\n\n| technique | entry |\n|---|---:|\n| jump | 7 |\n\n\
                   ## More\n\n| a |\n";
        let readme = format!("before\n{BEGIN}old\n{END}after\n");
        let expected = "| technique | entry | kernel uprobe |\n|---|---:|---:|\n| jump | 1 | 3 |\n";
        assert_eq!(with_figures(&readme, doc).unwrap(), format!("before\n{BEGIN}\n{expected}\n{END}after\n"));
        assert!(with_figures("", doc).is_err());
    }

    #[test]
    fn the_readme_has_the_figures_of_the_document() {
        let read = |name: &str| std::fs::read_to_string(crate::test::checkout().join(name)).unwrap();
        let readme = read("README.md");
        assert_eq!(with_figures(&readme, &read("docs/bench.md")).unwrap(), readme);
    }
}
