//! A random program without probes and with them: all of its instructions at once, by the tool, and
//! one at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::alone::{Does, Expected, Group, Result as Alone};
use super::{Build, Rng, source};
use crate::callgrind;
use crate::process::{LIMIT, Output, Running, run};
use crate::tool;

/// Between two sites of a session that is for one at a time, in bytes: more than a patch has.
const APART: u64 = 24;
/// Rounds of a program.
const ROUNDS: &str = "60";
/// Differences of one group that are looked for.
const MOST: usize = 4;
/// For so few sites of an object only what is around them is decoded.
const FEW: usize = 32;

/// What was compared.
#[derive(Default, Debug)]
pub struct Checked {
    /// Instructions.
    pub sites: usize,
    /// Of those: executed at least once.
    pub executed: usize,
    /// Of those: what the tool would not probe.
    pub refused: usize,
    /// Runs with probes.
    pub runs: usize,
    /// Hits that were counted.
    pub hits: u64,
    /// Probes of these runs, by technique.
    pub techniques: BTreeMap<String, u64>,
    /// What was done one probe at a time.
    pub alone: Alone,
    /// What should not be.
    pub differences: Vec<Difference>,
}

/// A run that was not what it was without probes.
#[derive(Debug)]
pub struct Difference {
    /// The probed instructions.
    pub sites: Vec<String>,
    /// What was different.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sites[..] {
            all if all.len() > 8 => write!(f, "{} probes at once: {}", all.len(), self.what),
            some => write!(f, "{}: {}", some.join(" and "), self.what),
        }
    }
}

/// An instruction.
struct Site {
    va: u64,
    /// How often it runs, if it is known.
    hits: Option<u64>,
    /// How often it runs when the program plays once more.
    again: Option<u64>,
    text: String,
}

/// How hits are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handler {
    /// Each adds a number of its own to one sum.
    Sum,
    /// Each has a key of its own.
    Keys,
}

/// A program that was built and understood.
struct Subject {
    program: PathBuf,
    plain: Output,
    sites: Vec<Site>,
    /// Symbols, as they are and demangled.
    symbols: BTreeMap<String, u64>,
}

/// Makes the program of a seed in an empty folder and compares it.
///
/// # Errors
/// If it cannot be built, or does not do the same twice without a probe.
pub fn check(folder: &Path, seed: u64) -> Result<Checked, String> {
    let mut rng = Rng::new(seed);
    let build = Build::draw(&mut rng);
    let text = source(&mut rng, &build);
    let file = folder.join(if build.language == super::Language::Cpp { "program.cc" } else { "program.c" });
    std::fs::write(&file, text).map_err(|e| e.to_string())?;
    let program = folder.join("program");
    build.build(&file, &program)?;
    std::fs::write(folder.join("options"), format!("{build:?}\n")).map_err(|e| e.to_string())?;
    let subject = Subject::of(program, &build)?;
    let mut checked = Checked {
        sites: subject.sites.len(),
        executed: subject.sites.iter().filter(|site| site.hits.is_some_and(|hits| hits > 0)).count(),
        ..Checked::default()
    };
    let mut refused = BTreeSet::new();
    let handler = rng.of(&[Handler::Sum, Handler::Keys]);
    subject.compare(&(0..subject.sites.len()).collect::<Vec<_>>(), handler, &mut checked, &mut refused);
    // A program that dies does not play twice.
    if subject.plain.code() == 0 {
        for group in groups(&mut rng, &subject.sites) {
            subject.one_by_one(&group, &mut rng, &mut checked);
        }
        let differences = std::mem::take(&mut checked.alone.differences);
        checked.differences.extend(differences.into_iter().map(|(vas, what)| subject.difference(&vas, what)));
    }
    checked.refused = refused.len();
    Ok(checked)
}

/// All sites, in groups with distances.
fn groups(rng: &mut Rng, sites: &[Site]) -> Vec<Vec<usize>> {
    let mut apart: Vec<Vec<usize>> = Vec::new();
    for (i, site) in sites.iter().enumerate() {
        let fits = |group: &&mut Vec<usize>| group.last().is_some_and(|last| site.va - sites[*last].va >= APART);
        match apart.iter_mut().find(fits) {
            Some(group) => group.push(i),
            None => apart.push(vec![i]),
        }
    }
    let mut groups = Vec::new();
    for group in apart {
        if rng.one_in(4) {
            groups.extend(group.chunks(FEW).map(<[usize]>::to_vec));
        } else {
            groups.push(group);
        }
    }
    groups
}

impl Subject {
    fn of(program: PathBuf, build: &Build) -> Result<Subject, String> {
        let plain = run(Command::new(&program).arg(ROUNDS), LIMIT);
        let again = run(Command::new(&program).arg(ROUNDS), LIMIT);
        if plain.status != again.status || plain.stdout != again.stdout {
            return Err(format!("not the same twice without a probe: {plain}\n{again}"));
        }
        // A program that dies is one to compare, too, but nobody else counts for it.
        let counts = |times: &str| {
            let mut command = Command::new(&program);
            command.args([ROUNDS, times]);
            if plain.code() == 0 { callgrind::try_executions_in(&command, "program").ok() } else { None }
        };
        let counts = counts("1").zip(counts("2"));
        let is_static = build.options.iter().any(|option| option.starts_with("-static"));
        let mut sites = instructions(&program, is_static);
        for site in &mut sites {
            // An iteration of a string instruction is an execution for callgrind.
            let known = counts.as_ref().filter(|_| site.hits.is_some() && !site.text.starts_with("rep"));
            let of = |counts: &BTreeMap<u64, u64>| counts.get(&site.va).copied().unwrap_or(0);
            let (once, twice) = (known.map(|(once, _)| of(once)), known.map(|(_, twice)| of(twice)));
            site.hits = once;
            site.again = twice.zip(once).and_then(|(twice, once)| twice.checked_sub(once));
        }
        let faults = plain.stdout.lines().filter_map(|line| line.strip_prefix("fault "));
        for va in faults.filter_map(|at| u64::from_str_radix(at, 16).ok()) {
            forget(&mut sites, va + build.base());
        }
        // Padding is no instruction of a function.
        let is_padding = |text: &str| ["nop", "cs ", "data16", "xchg   %ax,%ax"].iter().any(|s| text.starts_with(s));
        sites.retain(|site| site.hits.is_some_and(|hits| hits > 0) || !is_padding(&site.text));
        if sites.is_empty() {
            Err("no instructions".to_owned())
        } else {
            Ok(Subject { symbols: symbols(&program), program, plain, sites })
        }
    }

    /// Compares a run with these probes. If it differs, it looks for the probes that are the cause,
    /// and goes on without them.
    fn compare(&self, group: &[usize], handler: Handler, checked: &mut Checked, refused: &mut BTreeSet<u64>) {
        let mut group = group.to_vec();
        for _ in 0..MOST {
            let Some(what) = self.attempt(&group, handler, checked, refused) else { return };
            let (cause, what) = self.fewer(group.clone(), what, handler, checked, refused);
            let vas: Vec<u64> = cause.iter().map(|i| self.sites[*i].va).collect();
            checked.differences.push(self.difference(&vas, what));
            group.retain(|site| !cause.contains(site));
        }
    }

    /// Leaves out probes as long as there is a difference.
    fn fewer(
        &self,
        mut group: Vec<usize>,
        mut what: String,
        handler: Handler,
        checked: &mut Checked,
        refused: &mut BTreeSet<u64>,
    ) -> (Vec<usize>, String) {
        let mut step = group.len() / 2;
        while step > 0 && group.len() > 1 {
            let mut from = 0;
            while from < group.len() && group.len() > 1 {
                let mut rest = group.clone();
                rest.drain(from..(from + step).min(group.len()));
                let still = if rest.is_empty() { None } else { self.attempt(&rest, handler, checked, refused) };
                match still {
                    Some(still) => (group, what) = (rest, still),
                    None => from += step,
                }
            }
            step /= 2;
        }
        (group, what)
    }

    fn difference(&self, vas: &[u64], what: String) -> Difference {
        let name = |site: &Site| format!("{:#x} {}", site.va, site.text);
        let sites = self.sites.iter().filter(|site| vas.contains(&site.va));
        Difference { sites: sites.map(name).collect(), what }
    }

    /// Probes these sites one at a time.
    fn one_by_one(&self, group: &[usize], rng: &mut Rng, checked: &mut Checked) {
        let expected = |i: &usize| Expected { va: self.sites[*i].va, hits: self.sites[*i].again };
        let sites: Vec<Expected> = group.iter().map(expected).collect();
        let does = rng.of(&[Does::Nothing, Does::Computes, Does::Calls]);
        let (program, printed, traps) = (&self.program, &*self.plain.stdout, rng.one_in(4));
        Group { program, rounds: ROUNDS, printed, does, traps }.check(&sites, &mut checked.alone);
    }

    /// Runs the program with probes at some of its sites. What was different, if anything.
    fn attempt(
        &self,
        group: &[usize],
        handler: Handler,
        checked: &mut Checked,
        refused: &mut BTreeSet<u64>,
    ) -> Option<String> {
        checked.runs += 1;
        let (script, report) = (self.program.with_extension("bt"), self.program.with_extension("report"));
        let file = self.program.display();
        let mut text = String::new();
        for i in group {
            let (va, key) = (self.sites[*i].va, weight(self.sites[*i].va));
            let does = match handler {
                Handler::Sum => format!("@ = sum({key})"),
                Handler::Keys => format!("@[{key}] = count()"),
            };
            writeln!(text, "u:{file}:{va:#x} {{ {does} }}").expect("a string");
        }
        std::fs::write(&script, text).expect("the folder is writable");
        let _ = std::fs::remove_file(&report);
        let mut command = tool::sidestep(&["-v", "-f", "json", "-o"]);
        command.arg(&report).arg(&script).arg("--").arg(&self.program).arg(ROUNDS);
        let output = match Running::start(&mut command).end(Duration::from_secs(30)) {
            Ok(output) => output,
            Err(output) => return Some(format!("it hangs\n{output}")),
        };
        let refusals = refusals(&output.stderr, &self.symbols);
        for (name, count) in techniques(&output.stderr) {
            *checked.techniques.entry(name).or_default() += count;
        }
        refused.extend(&refusals);
        let none = output.stderr.contains("nothing can be probed");
        if none || group.iter().all(|i| refusals.contains(&self.sites[*i].va)) {
            refused.extend(group.iter().map(|i| self.sites[*i].va).filter(|_| none));
            return None;
        }
        // The tool ends as a shell does after a program that was killed.
        if output.code() != self.plain.code() || output.stdout != self.plain.stdout {
            return Some(format!("{output}\n--- instead of\n{}", self.plain));
        }
        if output.stderr.contains("Total missed hit count") {
            return Some(output.stderr);
        }
        let report = std::fs::read_to_string(&report).unwrap_or_default();
        let probed = group.iter().map(|i| &self.sites[*i]).filter(|site| !refusals.contains(&site.va));
        self.counts(probed.collect(), handler, &report, checked)
    }

    /// Whether hits are as many as executions.
    fn counts(&self, probed: Vec<&Site>, handler: Handler, report: &str, checked: &mut Checked) -> Option<String> {
        let map = report.split_once("{\"@\": ").map_or("", |(_, rest)| rest);
        match handler {
            Handler::Sum => {
                let expected: Option<u64> = probed.iter().map(|site| Some(site.hits? * weight(site.va))).sum();
                let sum: u64 =
                    map.split('}').next().and_then(|number| number.trim_matches('"').parse().ok()).unwrap_or(0);
                checked.hits += probed.iter().filter_map(|site| site.hits).sum::<u64>();
                expected.filter(|expected| *expected != sum).map(|expected| format!("a sum of {sum} for {expected}"))
            }
            Handler::Keys => {
                let mut counts = BTreeMap::new();
                for member in map.trim_start_matches('{').split('}').next().unwrap_or("").split(", ") {
                    let Some((key, count)) = member.split_once(": ") else { continue };
                    if let (Ok(key), Ok(count)) = (key.trim_matches('"').parse::<u64>(), count.parse::<u64>()) {
                        counts.insert(key, count);
                    }
                }
                checked.hits += counts.values().sum::<u64>();
                probed.iter().find_map(|site| {
                    let count = counts.get(&weight(site.va)).copied().unwrap_or(0);
                    let hits = site.hits.filter(|hits| *hits != count)?;
                    Some(format!("{count} hits for {hits} at {:#x} {}", site.va, site.text))
                })
            }
        }
    }
}

/// Callgrind counts a run of instructions when it is left by a jump, not when one of them faults.
fn forget(sites: &mut [Site], fault: u64) {
    let end = sites.partition_point(|site| site.va <= fault);
    let ends_run = |text: &str| ["call", "jmp", "ret", "notrack", "bnd"].iter().any(|start| text.starts_with(start));
    for site in sites[..end].iter_mut().rev().take_while(|site| !ends_run(&site.text)) {
        (site.hits, site.again) = (None, None);
    }
}

/// A number of a site's own.
fn weight(va: u64) -> u64 {
    (Rng::new(va).number() & 0xf_ffff) << 20 | va & 0xf_ffff
}

/// What the program's file has, by objdump. Of a static one, only what was written here.
fn instructions(program: &Path, is_static: bool) -> Vec<Site> {
    let mut objdump = Command::new("objdump");
    objdump.args(["-d", "--no-show-raw-insn"]).arg(program);
    let code = run(&mut objdump, LIMIT).ok().stdout;
    let (mut all, mut inside, mut counted) = (Vec::new(), true, false);
    for line in code.lines() {
        if let Some(section) = line.strip_prefix("Disassembly of section ") {
            // Of others, callgrind does not say which file they are from.
            counted = section == ".text:";
        } else if let Some(name) = line.split_once('<').and_then(|(_, rest)| rest.strip_suffix(">:")) {
            inside = !is_static || is_own(name);
        } else if let (true, Some((va, text))) = (inside, line.split_once(":\t")) {
            let va = u64::from_str_radix(va.trim(), 16);
            let hits = counted.then_some(0);
            all.extend(va.map(|va| Site { va, hits, again: None, text: text.trim().to_owned() }));
        }
    }
    all.sort_by_key(|site| site.va);
    all.dedup_by_key(|site| site.va);
    all
}

/// The name in the source, of a mangled one: its length stands in front of it.
fn source_name(name: &str) -> &str {
    let Some(mangled) = name.strip_prefix("_Z") else { return name };
    let rest = mangled.trim_start_matches(|c: char| c.is_ascii_digit());
    let len = mangled[..mangled.len() - rest.len()].parse().ok();
    len.and_then(|len: usize| rest.get(..len)).unwrap_or(rest)
}

/// Whether a symbol is of the program and not of the C library.
fn is_own(name: &str) -> bool {
    let plain = source_name(name);
    let word: String = plain.chars().take_while(|c| c.is_ascii_alphabetic()).collect();
    let rest = plain[word.len()..].chars().next();
    match word.as_str() {
        "f" | "sum" | "wide" | "inner" | "leave" | "enter" | "sled" => rest.is_some_and(|c| c.is_ascii_digit()),
        "main" | "fail" | "mix" | "play" | "prepare" | "fault" | "call" => name.len() < 12,
        "next" => plain.starts_with("next_word"),
        _ => false,
    }
}

/// The symbols of a program. It may have none.
fn symbols(program: &Path) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for flags in [&[][..], &["-C"]] {
        let text = run(Command::new("nm").args(flags).arg(program), LIMIT).stdout;
        for line in text.lines() {
            let Some((va, rest)) = line.split_once(' ') else { continue };
            let name = rest.split_once(' ').map(|(_, name)| name.to_owned());
            let Some((name, va)) = name.zip(u64::from_str_radix(va, 16).ok()) else { continue };
            all.insert(without_parameters(&name), va);
            all.insert(name, va);
        }
    }
    all
}

/// A demangled name as the tool shows it: `f(int) [clone .cold]` is `f.cold`.
fn without_parameters(name: &str) -> String {
    match name.split_once('(') {
        Some((plain, rest)) if rest.ends_with([')', ']']) => {
            let clones = rest.split("[clone ").skip(1).map(|clone| clone.trim_end().trim_end_matches(']'));
            [plain].into_iter().chain(clones).collect()
        }
        _ => name.to_owned(),
    }
}

/// The addresses of `FILE:0xADDRESS cannot be probed` and `FILE:SYMBOL+0xDISTANCE cannot be
/// probed`.
fn refusals(notes: &str, symbols: &BTreeMap<String, u64>) -> BTreeSet<u64> {
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let before = notes.lines().filter_map(|line| line.split_once(" cannot be probed").map(|(before, _)| before));
    let place = |before: &str| {
        let (_, place) = before.split_once("/program:")?;
        let (name, distance) = place.rsplit_once('+').unwrap_or((place, "0x0"));
        number(place).or_else(|| symbols.get(name)?.checked_add(number(distance)?))
    };
    before.filter_map(place).collect()
}

/// `N by TECHNIQUE, …` of what the tool says about the attach.
fn techniques(notes: &str) -> Vec<(String, u64)> {
    let line = notes.lines().find(|line| line.contains(" in process ")).unwrap_or("");
    let list = line.split(';').next().and_then(|part| part.rsplit_once(": ")).map_or("", |(_, list)| list);
    let item = |item: &str| item.split_once(" by ").and_then(|(n, name)| Some((name.to_owned(), n.parse().ok()?)));
    list.split(", ").filter_map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_tool_says() {
        let notes = "sidestep: /t/program:0x160c cannot be probed: padding\nsidestep: 7 probes in process 19463: 5 by trap, 2 by jump over several; planned in 93.8 ms, threads";
        assert_eq!(refusals(notes, &BTreeMap::new()), [0x160c].into());
        let symbols = [("f3(unsigned long)".to_owned(), 0x1000), ("main".to_owned(), 0x2000)].into();
        let named = "sidestep: /t/program:f3(unsigned long)+0x1 cannot be probed: a\nsidestep: /t/program:main cannot be probed: b";
        assert_eq!(refusals(named, &symbols), [0x1001, 0x2000].into());
        assert_eq!(techniques(notes), [("trap".to_owned(), 5), ("jump over several".to_owned(), 2)]);
    }

    #[test]
    fn a_name_without_parameters_was_another_function() {
        for (name, shown) in [
            ("f0(unsigned long, unsigned long)", "f0"),
            ("sum4(int, ...) [clone .isra.0] [clone .cold]", "sum4.isra.0.cold"),
            ("f3(unsigned long)::to", "f3(unsigned long)::to"),
            ("main", "main"),
        ] {
            assert_eq!(without_parameters(name), shown);
        }
    }

    #[test]
    fn knows_names_of_its_own() {
        for name in ["f12", "f3.cold", "main", "_Z2f1mm", "_Z4failm", "next_word", "enter4", "f2.part.0"] {
            assert!(is_own(name), "{name}");
        }
        for name in ["fprintf", "_IO_file_write", "free", "mainstream", "summon"] {
            assert!(!is_own(name), "{name}");
        }
    }
}
