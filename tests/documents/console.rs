//! Commands of the documents. Blocks of Markdown that are marked as `console` are what somebody
//! types in a shell, and what is printed:
//!
//! ````text
//! ```console
//! $ sidestep funccount libc:malloc -- ls crates
//! …
//! malloc    123
//! ```
//! ````
//!
//! All blocks of a page run in one shell, in an empty folder with links to the folders of the
//! checkout. A line `…` stands for any lines, `…` in a line for any text, and a number for any
//! other number. A command without output in the document may print anything. Its exit status must
//! be 0, or that of a comment at its end, `# exit status 2`. A session that ends while the target
//! runs may say which calls had not returned by then: such a line need not be in the document.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sidestep_tests::build::checkout;
use sidestep_tests::process::run;
use sidestep_tests::tool;

use crate::pages;

/// For a page.
const LIMIT: Duration = Duration::from_secs(240);
/// What the shell prints in front of the output of each command, and behind it.
const MARK: char = '\u{1e}';
/// In the shell: `cargo run` of the README is the tool under test, and background jobs end with it.
const PRELUDE: &str = r#"
cargo() { [ "$1 $2 $3 $4" = "run --release --locked --" ] || return 99; shift 4; sidestep "$@"; }
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null' EXIT
"#;

/// A command, and what it prints.
#[derive(Debug, PartialEq)]
struct Step {
    /// The line of the page, from 1.
    line: usize,
    command: String,
    /// Lines of the document; nothing if it shows none.
    expected: Vec<String>,
    status: i32,
}

/// The commands of a page.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for (number, line) in page.lines().enumerate() {
        if let Some(kind) = line.strip_prefix("```") {
            inside = kind == "console";
            continue;
        }
        if !inside {
            continue;
        }
        if let Some(command) = line.strip_prefix("$ ") {
            let status =
                command.rsplit_once("# exit status ").map_or(0, |(_, status)| status.parse().expect("a status"));
            steps.push(Step { line: number + 1, command: command.to_owned(), expected: Vec::new(), status });
            continue;
        }
        let step = steps.last_mut().unwrap_or_else(|| panic!("line {}: output without a command", number + 1));
        match line.strip_prefix("> ") {
            Some(more) if step.expected.is_empty() => step.command.push_str(&format!("\n{more}")),
            _ => step.expected.push(line.to_owned()),
        }
    }
    steps
}

/// Numbers, addresses and the blanks of a line, in the same form for all their values.
fn form(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line.trim_end();
    while let Some(c) = rest.chars().next() {
        let is_in_word = out.chars().last().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        let len = if c.is_ascii_digit() && !is_in_word {
            number(rest)
        } else if c == ' ' || c == '\t' {
            rest.len() - rest.trim_start_matches([' ', '\t']).len()
        } else {
            0
        };
        match (len, c) {
            (0, c) => out.push(c),
            (_, ' ' | '\t') => out.push(' '),
            _ => out.push('#'),
        }
        rest = &rest[len.max(c.len_utf8())..];
    }
    // Bars of histograms are as long as their numbers.
    let bar = |c: char| c == '*' || c == '@';
    match out
        .split_once('|')
        .filter(|(_, rest)| rest.ends_with('|') && rest[..rest.len() - 1].chars().all(|c| bar(c) || c == ' '))
    {
        Some((head, _)) => format!("{head}|bar|"),
        None => out,
    }
}

/// How many bytes the number at the start of a text has: `12`, `1.5`, `0x7f`.
fn number(text: &str) -> usize {
    if let Some(digits) = text.strip_prefix("0x") {
        return 2 + digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    }
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let whole = digits(text);
    match text[whole..].strip_prefix('.').map(digits) {
        Some(part) if part > 0 => whole + 1 + part,
        _ => whole,
    }
}

/// Whether a line is what the document has, in which `…` stands for any text.
fn is_line(expected: &str, printed: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(mut rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether the lines are what the document has, in which a line `…` stands for any lines.
fn are_lines(expected: &[String], printed: &[String]) -> bool {
    match (expected.split_first(), printed.split_first()) {
        (None, None) => true,
        (Some((first, more)), _) if first == "…" => {
            (0..=printed.len()).any(|skipped| are_lines(more, &printed[skipped..]))
        }
        (Some((first, more)), Some((line, rest))) => is_line(first, line) && are_lines(more, rest),
        _ => false,
    }
}

/// Whether a line says which calls had not returned: the moment of the detach decides that.
fn is_of_unfinished_calls(line: &str) -> bool {
    line.contains(" had not returned (")
}

fn same(expected: &[String], printed: &str) -> bool {
    let has_unfinished = expected.iter().any(|line| is_of_unfinished_calls(line));
    let forms = |lines: &mut dyn Iterator<Item = &str>| -> Vec<String> {
        let lines = lines.filter(|line| has_unfinished || !is_of_unfinished_calls(line));
        lines.map(form).filter(|line| !line.is_empty()).collect()
    };
    are_lines(&forms(&mut expected.iter().map(String::as_str)), &forms(&mut printed.lines()))
}

/// Runs the commands of a page; what is wrong with them.
fn check(page: &Path) -> Vec<String> {
    let steps = steps(&pages::text(page));
    if steps.is_empty() {
        return Vec::new();
    }
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let run_number = RUNS.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("sidestep-document-{}-{run_number}", std::process::id()));
    let bin = folder.join(".bin");
    std::fs::create_dir_all(&bin).expect("a folder");
    symlink(tool::path(), bin.join("sidestep")).expect("a link");
    for name in ["crates", "docs", "tests"] {
        symlink(checkout().join(name), folder.join(name)).expect("a link");
    }
    let mut script = String::from(PRELUDE);
    for (number, step) in steps.iter().enumerate() {
        script += &format!("printf '{MARK}%s{MARK}' {number}\n{}\nprintf '{MARK}%s{MARK}' $?\n", step.command);
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("exec 2>&1\n{script}")]).current_dir(&folder).env("PATH", path).env("COLUMNS", "100");
    let output = run(&mut shell, LIMIT);
    let _ = std::fs::remove_dir_all(&folder);
    // Text, number, output, status, text, number …
    let parts: Vec<&str> = output.stdout.split(MARK).collect();
    let mut wrong = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let at = format!("{}:{}: {}", page.display(), step.line, step.command);
        let (Some(printed), Some(status)) = (parts.get(number * 4 + 2), parts.get(number * 4 + 3)) else {
            wrong.push(format!("{at}\nwas not run to its end; all output:\n{output}"));
            break;
        };
        if *status != step.status.to_string() {
            wrong.push(format!("{at}\nexit status {status}, not {}; output:\n{printed}", step.status));
        } else if !step.expected.is_empty() && !same(&step.expected, printed) {
            wrong.push(format!("{at}\nprints\n{printed}\nand the document has\n{}", step.expected.join("\n")));
        }
    }
    wrong
}

/// Checks pages: of the chosen ones those that `SIDESTEP_PAGE` names by a part of their paths.
#[track_caller]
fn check_all(is_chosen: impl Fn(&Path) -> bool) {
    let part = std::env::var("SIDESTEP_PAGE").unwrap_or_default();
    let pages = pages::all();
    let chosen = pages.iter().filter(|page| is_chosen(page) && page.to_string_lossy().contains(&part));
    let wrong: Vec<String> = chosen.flat_map(|page| check(page)).collect();
    assert!(wrong.is_empty(), "{} commands:\n{}", wrong.len(), wrong.join("\n\n"));
}

#[test]
fn commands_of_the_readme_and_of_other_documents_do_what_these_say() {
    check_all(|page| !page.starts_with("docs/guide"));
}

#[test]
fn commands_of_the_guide_do_what_it_says() {
    check_all(|page| page.parent() == Some(Path::new("docs/guide")));
}

#[test]
fn commands_of_the_pages_of_tools_do_what_these_say() {
    check_all(|page| page.starts_with("docs/guide/tools"));
}

#[test]
fn examples_of_the_language_reference_do_what_it_says() {
    check_all(|page| page.starts_with("docs/guide/language"));
}

#[test]
fn numbers_may_be_others_and_words_may_not() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(same(&lines("a 1\n…\nb 0x12 of x2"), "a   22\nc\nd\nb 0xff of x2\n"));
    assert!(same(&lines("…"), ""));
    assert!(same(&lines("[1, 2) 3 |@@@   |"), "[4, 8) 77 |@@@@@@|\n"));
    assert!(!same(&lines("b 1 of x2"), "b 1 of x3"));
    assert!(!same(&lines("a 1"), "a 1\nb 2"));
    assert!(!same(&lines("a 1"), ""));
    assert!(same(&lines("a…c 5"), "a bc 6"));
    assert!(!same(&lines("a…c"), "a b"));
}

#[test]
fn a_call_that_runs_at_the_detach_made_a_command_differ_from_its_document() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let printed = "a 1\n1 call had not returned (1 of write [0x7faa6cbba340])\nb 2\n";
    assert!(same(&lines("a 1\nb 2"), printed));
    assert!(!same(&lines("a 1\n2 calls had not returned (2 of write […])\nb 2"), printed));
    assert!(same(&lines("a 1\n2 call had not returned (1 of write [0x7])\nb 2"), printed));
}

#[test]
fn commands_are_found() {
    let page = "```sh\n$ no\n```\n```console\n$ f a # exit status 3\n> b\nout\n```\n";
    let step =
        Step { line: 5, command: "f a # exit status 3\nb".to_owned(), expected: vec!["out".to_owned()], status: 3 };
    assert_eq!(steps(page), [step]);
}
