//! The document: an introduction, and a section for each part.

use super::PARTS;
use super::program::ROUNDS;

/// The document with one section new or replaced, in the order of [`PARTS`]. What is no section of
/// ours is dropped.
pub fn with_section(old: &str, title: &str, body: &str) -> String {
    let section = |title: &str| {
        let (_, rest) = old.split_once(&format!("\n## {title}\n"))?;
        Some(rest.split("\n## ").next().unwrap_or(rest))
    };
    let mut text = introduction();
    for part in &PARTS {
        let body = if part.title == title { Some(body) } else { section(part.title) };
        if let Some(body) = body {
            text += &format!("\n## {}\n\n{}\n", part.title, body.trim());
        }
    }
    text
}

fn introduction() -> String {
    format!(
        "# What one probe hit costs\n\n\
         Each section names its command, the commit, and the machine. Cells are nanoseconds of the thread's CPU time per call above \
         the unprobed call, if nothing else is said: the median of {ROUNDS} rounds, with the unprobed call measured in the same \
         process. The kernel's probes are counted by perf, as `perf stat` does. Every count was checked to be exact. A dash stands \
         for what was not installed or not possible.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_replaces_its_old_one() {
        let [first, second] = [PARTS[0].title, PARTS[1].title];
        let one = with_section("# Old\n\ntext\n", second, "two");
        assert_eq!(one, format!("{}\n## {second}\n\ntwo\n", introduction()));
        let both = with_section(&one, first, "one\n\n### part\n");
        assert_eq!(both, format!("{}\n## {first}\n\none\n\n### part\n\n## {second}\n\ntwo\n", introduction()));
        assert_eq!(with_section(&both, second, "new"), both.replace("two", "new"));
    }
}
