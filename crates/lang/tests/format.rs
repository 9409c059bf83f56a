//! `--fmt` changes nothing but blanks: every script of the tests and the guide.

use std::fs;
use std::path::{Path, PathBuf};

use sidestep_lang::script::ast::Script;
use sidestep_lang::script::fmt::format;
use sidestep_lang::script::parser::parse;

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(dir: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in dir.read_dir().unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => files(&path, ending, found),
            path if path.to_string_lossy().ends_with(ending) => found.push(path),
            _ => {}
        }
    }
}

fn texts(dir: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    files(&checkout().join(dir), ending, &mut found);
    found.sort();
    found.iter().map(|file| fs::read_to_string(file).unwrap()).collect()
}

/// The scripts of a spec file: `PROG script`, or `|` lines behind it.
fn of_specs(text: &str, scripts: &mut Vec<String>) {
    let mut script: Option<String> = None;
    for line in text.lines() {
        match (line.strip_prefix("PROG"), line.strip_prefix('|'), &mut script) {
            (Some(rest), ..) => script = Some(rest.trim().to_owned()),
            (None, Some(more), Some(known)) => *known += &format!("{more}\n"),
            _ => scripts.extend(script.take()),
        }
    }
    scripts.extend(script);
}

/// What is between the quotes of `-e '…'`, and what fences hold.
fn of_guide(text: &str, scripts: &mut Vec<String>) {
    let quoted = text.split("-e '").skip(1).filter_map(|rest| rest.split_once('\'')).map(|(script, _)| script);
    scripts.extend(quoted.map(str::to_owned));
    let fenced = text.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    scripts.extend(fenced.map(|(_, block)| block.to_owned()));
}

/// The tree without places.
fn tree(script: &Script) -> String {
    let mut script = script.clone();
    script.types = Default::default();
    let text = format!("{script:?}");
    let mut out = String::new();
    for (number, part) in text.split("Span {").enumerate() {
        out += if number == 0 { part } else { part.split_once('}').unwrap().1 };
    }
    // `a ?: b` is kept in a variable that is named after its place.
    let mut parts = out.split("#either");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |out, part| out + "#either" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

fn check(source: &str) -> bool {
    let params = vec!["1".to_owned(); 9];
    let Ok(before) = parse(source, &params) else { return false };
    let text = match format(source) {
        Ok(text) => text,
        Err(error) => panic!("{source}\n{error:?}"),
    };
    let after = match parse(&text, &params) {
        Ok(after) => after,
        Err(error) => panic!("{source}\nbecomes\n{text}\n{error:?}"),
    };
    assert_eq!(tree(&before), tree(&after), "{source}\nbecomes\n{text}");
    assert!(before.types == after.types, "{source}\nbecomes\n{text}");
    assert_eq!(format(&text).unwrap(), text, "the second time");
    true
}

#[test]
fn scripts_of_the_tests_and_the_guide_stay_what_they_are() {
    let mut scripts = Vec::new();
    texts("tests/specs", ".spec").iter().for_each(|text| of_specs(text, &mut scripts));
    texts("docs/guide", ".md").iter().for_each(|text| of_guide(text, &mut scripts));
    for text in texts("tests/specs", ".txt") {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        scripts.extend(lines.map(|line| line.split_once(":::").map_or(line, |(_, script)| script).to_owned()));
    }
    scripts.extend(texts("crates/cli/src", ".bt"));
    let right = scripts.iter().filter(|script| check(script)).count();
    assert!(right >= 800, "only {right} of {} are scripts", scripts.len());
}

/// A comment, or an end of a line, at each place of a script where a blank may stand.
#[test]
fn comments_may_stand_anywhere() {
    let script = "struct s { int a ; } macro m ( $a ) { $a + 1 } begin , u:a:b / 1 == ( 2 / 1 ) / { if ( $x ) { @a [ 1 , 2 ] = \
                  - 1 * ( ( struct s * ) $p ) -> a ; } else { return } } end { $y = { 1 } ; for ( $i : 0 .. 5 ) { print ( $i ) } }";
    let blanks: Vec<usize> = script.match_indices(' ').map(|(at, _)| at).collect();
    for put in [" /* here */ ", " // here\n", "\n", "\n\n\n", " /* two\n lines */ ", "\n// alone\n"] {
        let mut right = 0;
        for at in &blanks {
            let source = format!("{}{put}{}", &script[..*at], &script[at + 1..]);
            right += usize::from(check(&source));
            if let Ok(text) = format(&source) {
                assert_eq!(text.matches("here").count(), source.matches("here").count(), "{source}");
            }
        }
        assert!(right > blanks.len() - 8, "{put:?}: {right} of {}", blanks.len());
    }
}
