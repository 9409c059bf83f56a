//! Which sites of Debian's programs get which technique, against the targets that Sidestep has set
//! itself.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::tool::{path, sidestep};

use crate::{machine, setup};

/// What `sidestep` is asked about.
const BINARIES: [&str; 7] =
    ["libc", "libcrypto", "/usr/bin/redis-server", "/usr/bin/python3", "/bin/bash", "/usr/bin/git", "/bin/busybox"];
/// The same of arm64: parts of the guest, and where files are in these.
const BINARIES_ARM64: [(&str, &str); 4] = [
    ("programs", "lib/aarch64-linux-gnu/libc.so.6"),
    ("programs", "usr/lib/aarch64-linux-gnu/libcrypto.so.3"),
    ("programs", "usr/bin/redis-server"),
    ("tests", "usr/bin/python3.11"),
];

/// Entries and instructions without a trap, in percent: at least.
const LEAST: (f64, f64) = (99.9, 97.0);
const LEAST_ARM64: (f64, f64) = (100.0, 99.5);
/// The binary that must be done in [`IN_TIME`].
const LARGE: &str = "libcrypto";
const IN_TIME: Duration = Duration::from_secs(5);
/// Reasons that are shown.
const REASONS: usize = 20;

/// Counts and prints; `write`: also into `docs/coverage.md`.
pub fn coverage(write: bool) -> Result<()> {
    println!("counting with {}", path().display());
    let binaries = BINARIES.map(str::to_owned);
    let entries = Table::count(&[], &binaries)?;
    let instructions = Table::count(&["--all-instructions"], &binaries)?;
    let files = BINARIES_ARM64
        .iter()
        .map(|(part, file)| Ok(setup::guest("arm64", part)?.join(part).join(file).display().to_string()));
    let files: Vec<String> = files.collect::<Result<_>>()?;
    let entries_arm64 = Table::count(&[], &files)?;
    let instructions_arm64 = Table::count(&["--all-instructions"], &files)?;
    let mut text = String::from("# How many sites get a jump\n\n");
    writeln!(text, "{} Debian's packages as installed there.", machine::made_by("coverage --write"))?;
    writeln!(
        text,
        "`sidestep coverage` decides for each site as an attach would that finds the loader's address space and no other\n\
         probe. Entries: the starts of all functions of symbol tables and unwind information, and of those that neither\n\
         describes and that were found by walking the code; not of parts that the compiler moved away from their functions:\n\
         no symbol names them, nobody calls them, and the unwind information has a frame at once, or other functions branch\n\
         there. Instructions: all of these functions, decoded from their start; of those that hold data, what is not certain\n\
         to be an instruction stands in a column of its own.\n"
    )?;
    text += &entries.render("entries")?;
    text += &instructions.render("instructions")?;
    text += &targets(&entries, &instructions, LEAST)?;
    text += &large(&instructions)?;
    text += &instructions.reasons()?;
    text += "\n## arm64\n\nDebian's packages for arm64, counted on the same machine. What a jump does not reach directly gets it by an\n\
             island; that is decided at the attach.\n\n";
    text += &entries_arm64.render("entries")?;
    text += &instructions_arm64.render("instructions")?;
    text += &targets(&entries_arm64, &instructions_arm64, LEAST_ARM64)?;
    text.push('\n');
    text += &instructions_arm64.reasons()?;
    println!("{text}");
    if write { machine::write_doc("docs/coverage.md", &text) } else { Ok(()) }
}

/// A row per binary.
struct Table(Vec<Row>);

/// What `sidestep coverage -f json` said of one binary.
struct Row {
    name: String,
    json: String,
    time: Duration,
}

impl Table {
    fn count(flags: &[&str], binaries: &[String]) -> Result<Table> {
        let mut rows = Vec::new();
        for binary in binaries {
            let begin = Instant::now();
            let output = run(&mut sidestep(&[&["coverage", "-f", "json"], flags, &[binary]].concat()), LIMIT);
            let time = begin.elapsed();
            anyhow::ensure!(output.code() == 0, "{binary}: {output}\nIs its package installed (`cargo xtask setup`)?");
            let name = binary.rsplit('/').next().unwrap_or(binary).split(".so").next().unwrap_or_default().to_owned();
            rows.push(Row { name, json: output.stdout, time });
        }
        Ok(Table(rows))
    }

    fn sum(&self, name: &str) -> Result<u64> {
        self.0.iter().map(|row| row.number(name)).sum()
    }

    fn render(&self, sites: &str) -> Result<String> {
        let techniques = self.0.first().context("no binaries")?.techniques()?;
        let columns: Vec<String> = techniques.iter().map(|name| name.replace('_', " ")).collect();
        let columns = format!("sites | {} | refused | data in text | without a trap | time", columns.join(" | "));
        let count = columns.matches('|').count() + 1;
        let mut text = format!("| {sites} | {columns} |\n|---|{}\n", "---:|".repeat(count));
        for row in &self.0 {
            write!(text, "| {} | {}", row.name, row.number("sites")?)?;
            for name in techniques.iter().map(String::as_str).chain(["refused", "instructions"]) {
                write!(text, " | {}", row.number(name)?)?;
            }
            let share = percent(row.number("without_trap")?, row.number("sites")?);
            writeln!(text, " | {share} | {:.2} s |", row.time.as_secs_f64())?;
        }
        write!(text, "| all together | {}", self.sum("sites")?)?;
        for name in techniques.iter().map(String::as_str).chain(["refused", "instructions"]) {
            write!(text, " | {}", self.sum(name)?)?;
        }
        writeln!(text, " | {} | |\n", percent(self.sum("without_trap")?, self.sum("sites")?))?;
        Ok(text)
    }

    /// Why sites of all binaries are refused or get a trap, most frequent first.
    fn reasons(&self) -> Result<String> {
        let mut all: BTreeMap<(String, String, String), (u64, String)> = BTreeMap::new();
        for row in &self.0 {
            let list = row.json.split_once("\"reasons\": [").context("no reasons")?.1;
            for item in list.split("{\"technique\"").skip(1) {
                let item = format!("\"technique\"{item}");
                // A refusal has no technique that was not possible.
                let rejected = text_of(&item, "rejected").unwrap_or_default().replace('_', " ");
                let key = (text_of(&item, "technique")?, rejected, text_of(&item, "reason")?);
                let example = format!("{}:{}", row.name, text_of(&item, "example")?);
                all.entry(key).or_insert((0, example)).0 += number_of(&item, "sites")?;
            }
        }
        // Why the first two are not possible says only how long the instruction is.
        all.retain(|(_, rejected, _), _| !["nop site", "jump"].contains(&rejected.as_str()));
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(_, (sites, _))| std::cmp::Reverse(*sites));
        let mut text =
            String::from("| gets a | and no | because | instructions | for example |\n|---|---|---|---:|---|\n");
        for ((technique, rejected, reason), (sites, example)) in all.iter().take(REASONS) {
            writeln!(text, "| {technique} | {rejected} | {reason} | {sites} | `{example}` |")?;
        }
        Ok(text)
    }
}

impl Row {
    fn number(&self, name: &str) -> Result<u64> {
        number_of(&self.json, name).with_context(|| self.name.clone())
    }

    /// The names of all techniques.
    fn techniques(&self) -> Result<Vec<String>> {
        let list = self.json.split_once("\"techniques\": {").and_then(|(_, rest)| rest.split_once('}'));
        let list = list.context("no techniques")?.0;
        Ok(list.split(", ").filter_map(|member| Some(member.split('"').nth(1)?.to_owned())).collect())
    }
}

/// The first number of that name.
fn number_of(json: &str, name: &str) -> Result<u64> {
    let key = format!("\"{name}\": ");
    let digits = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    json.split(&key).skip(1).find_map(digits).with_context(|| format!("no number {name}"))
}

/// The first string of that name. Quotes in it are not expected.
fn text_of(json: &str, name: &str) -> Result<String> {
    let rest = json.split_once(&format!("\"{name}\": \"")).and_then(|(_, rest)| rest.split_once('"'));
    Ok(rest.with_context(|| format!("no text {name}"))?.0.to_owned())
}

/// Rounded down, as the tool does.
fn percent(part: u64, all: u64) -> String {
    let thousandths = part * 100_000 / all.max(1);
    format!("{}.{:03} %", thousandths / 1000, thousandths % 1000)
}

/// What was to be reached, and what was.
fn targets(entries: &Table, instructions: &Table, least: (f64, f64)) -> Result<String> {
    let mut text = String::from("| target | | found | |\n|---|---:|---:|---|\n");
    for (target, table, least) in
        [("entries without a trap", entries, least.0), ("instructions without a trap", instructions, least.1)]
    {
        let (part, all) = (table.sum("without_trap")?, table.sum("sites")?);
        let met = part as f64 * 100.0 >= least * all as f64;
        text += &target_row(target, &format!("≥ {least} %"), &percent(part, all), met);
    }
    Ok(text)
}

/// The same of the time for a large one, and of what is refused.
fn large(instructions: &Table) -> Result<String> {
    let refused = instructions.sum("refused")?;
    let row = instructions.0.iter().find(|row| row.name == LARGE).context(LARGE)?;
    let (found, limit) = (format!("{:.2} s", row.time.as_secs_f64()), format!("< {} s", IN_TIME.as_secs()));
    Ok(target_row("refused", "0", &refused.to_string(), refused == 0)
        + &target_row(&format!("instructions of {LARGE}"), &limit, &found, row.time < IN_TIME)
        + "\n")
}

fn target_row(target: &str, limit: &str, found: &str, met: bool) -> String {
    format!("| {target} | {limit} | {found} | {} |\n", if met { "met" } else { "not met" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_tool_prints() {
        let json = r#"{"type": "coverage", "data": {"sites": 12, "techniques": {"nop_site": 1, "trap": 10}, "data_in_text": {"instructions": 3}, "reasons": [{"technique": "trap", "reason": "a call", "sites": 10}]}}"#;
        let row = Row { name: "a".to_owned(), json: json.to_owned(), time: Duration::ZERO };
        assert_eq!(row.techniques().unwrap(), ["nop_site", "trap"]);
        assert_eq!(["sites", "trap", "instructions"].map(|name| row.number(name).unwrap()), [12, 10, 3]);
        assert!(row.number("no_such").is_err());
        assert_eq!(text_of(json, "reason").unwrap(), "a call");
        assert_eq!(percent(99_999, 100_000), "99.999 %");
    }
}
