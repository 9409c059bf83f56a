//! Scripts and what they must print: `tests/specs/*.spec`.
//!
//! A spec is lines of `KEYWORD value`, and lines that begin with `|`, which belong to the keyword
//! before them:
//!
//! ```text
//! NAME    a name that no other spec has
//! FLAGS   flags of the tool
//! TARGET  a program of tests/targets with its arguments; TARGET stands for its path in PROG
//! PROG    the script; or its lines
//! ARGS    its arguments
//! STATUS  exit status of the tool, if it is not 0
//! EXPECT  what it prints until the end
//! MAPS    what it prints behind the two newlines; without it, nothing may follow EXPECT
//! PRINTS  what the target prints
//! BITS    64, if what it says holds of 64-bit programs only, with the reason
//! ISA     x86, if what it says holds there only, with the reason
//! STDERR  what the tool says on stderr; without it, anything
//! ```

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use sidestep_tests::build::checkout;
use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::target;
use sidestep_tests::tool::{is_32_bit, sidestep};

#[derive(Default, Debug)]
struct Spec {
    fields: Vec<(String, String)>,
}

impl Spec {
    fn get(&self, keyword: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| name == keyword).map(|(_, value)| &**value)
    }

    fn words(&self, keyword: &str) -> Vec<&str> {
        self.get(keyword).unwrap_or_default().split_ascii_whitespace().collect()
    }

    fn name(&self) -> &str {
        self.get("NAME").unwrap_or("(no name)")
    }
}

const KEYWORDS: &[&str] =
    &["NAME", "FLAGS", "TARGET", "PROG", "ARGS", "STATUS", "EXPECT", "MAPS", "PRINTS", "STDERR", "BITS", "ISA"];

fn parse(text: &str, file: &Path) -> Vec<Spec> {
    let mut specs: Vec<Spec> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(more) = line.strip_prefix('|') {
            let fields = &mut specs.last_mut().expect("a spec begins with NAME").fields;
            let value = &mut fields.last_mut().expect("a line belongs to a keyword").1;
            value.push_str(&format!("{more}\n"));
            continue;
        }
        let (keyword, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        assert!(KEYWORDS.contains(&keyword), "{}:{}: no keyword: {line}", file.display(), number + 1);
        if keyword == "NAME" {
            specs.push(Spec::default());
        }
        let spec = specs.last_mut().expect("a spec begins with NAME");
        spec.fields.push((keyword.to_owned(), value.trim().to_owned()));
    }
    specs
}

/// What is wrong with what it does; nothing if it is right.
fn check(spec: &Spec) -> Result<(), String> {
    let targets = spec.words("TARGET");
    let program = match targets.first() {
        Some(name) => match target(name) {
            Some(path) => Some(path),
            None => return Ok(()),
        },
        None => None,
    };
    let path = program.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    let script = spec.get("PROG").unwrap_or_default().replace("TARGET", &path);
    let results = std::env::temp_dir().join(format!("sidestep-spec-{}-{}", std::process::id(), is_32_bit()));
    let mut args = spec.words("FLAGS");
    let results_arg = results.to_string_lossy().into_owned();
    args.extend(["-e", &script]);
    args.extend(spec.words("ARGS"));
    if program.is_some() {
        args.extend(["-o", &results_arg, "--", &path]);
        args.extend(&targets[1..]);
    }
    let output = run(&mut sidestep(&args), LIMIT);
    let printed = match program {
        Some(_) => std::fs::read_to_string(&results).unwrap_or_default(),
        None => output.stdout.clone(),
    };
    let _ = std::fs::remove_file(&results);
    let mut expected = spec.get("EXPECT").unwrap_or_default().to_owned();
    if let Some(maps) = spec.get("MAPS") {
        expected = format!("{expected}\n\n{maps}");
    }
    let differs = |what: &str, is: &str, wanted: &str| match is == wanted {
        true => Ok(()),
        false => Err(format!("{what} is\n{is:?}\nnot\n{wanted:?}\nstderr: {}", output.stderr)),
    };
    let path_of = |text: &str| text.replace("TARGET", &path);
    differs("output", &printed, &path_of(&expected))?;
    // What programs print are numbers that are shorter there.
    if program.is_some() && !is_32_bit() {
        differs("output of the target", &output.stdout, spec.get("PRINTS").unwrap_or_default())?;
    }
    if let Some(stderr) = spec.get("STDERR") {
        differs("stderr", &output.stderr, &path_of(stderr))?;
    }
    differs("status", &output.code().to_string(), spec.get("STATUS").unwrap_or("0"))
}

#[test]
pub fn scripts_print_what_they_must() {
    let mut failures = Vec::new();
    let mut names = BTreeSet::new();
    let mut files: Vec<_> =
        checkout().join("tests/specs").read_dir().expect("tests/specs").flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|ext| ext == "spec")) {
        for spec in parse(&std::fs::read_to_string(file).expect("a spec file is text"), file) {
            assert!(names.insert(spec.name().to_owned()), "{} is there twice", spec.name());
            if is_32_bit() && (spec.get("BITS").is_some() || spec.get("TARGET").is_none()) {
                continue;
            }
            if cfg!(target_arch = "aarch64") && spec.get("ISA").is_some() {
                continue;
            }
            if let Err(wrong) = check(&spec) {
                // Also if the test is killed before its end.
                let _ = writeln!(std::io::stderr(), "{} failed: {wrong}", spec.name());
                failures.push(format!("{} ({}): {wrong}", spec.name(), file.display()));
            }
        }
    }
    assert!(names.len() >= 400, "there are only {} specs", names.len());
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), names.len(), failures.join("\n\n"));
}

/// Each heading of the language reference is a name, which scripts of specs use.
#[test]
fn each_name_of_the_language_reference_has_a_spec() {
    let read = |path: &str| std::fs::read_to_string(checkout().join(path)).expect("it is text");
    let files = checkout().join("tests/specs").read_dir().expect("tests/specs").flatten();
    let texts: Vec<String> = files.map(|file| std::fs::read_to_string(file.path()).expect("it is text")).collect();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = texts.iter().flat_map(|text| text.split(|c| !is_part(c))).collect();
    let mut names = 0;
    for page in ["builtins", "functions", "config"] {
        let page = read(&format!("docs/guide/language/{page}.md"));
        for heading in page.lines().filter_map(|line| line.strip_prefix("### `")) {
            let name = heading.split(|c| !is_part(c)).next().unwrap_or_default();
            assert!(words.contains(name), "no spec uses `{name}`");
            names += 1;
        }
    }
    assert!(names > 90, "{names}");
}

/// What no script of a spec can make the front end say.
const WITHOUT_SPEC: &[&str] = &[
    // The parser takes no such target.
    "only variables and maps can be assigned",
    // What has no type is refused where it gets its name.
    "this expression has no value",
    // No compiler describes so large a type.
    "'{}' has more than {MEMBERS} members: name one",
    // No target has such functions: with more floating-point numbers than registers for them, with
    // arguments wider than all registers, or in places that only the compiler knows.
    "the argument {name} is in a register that is not seen",
    "the arguments have more than {WHOLE} bytes: name one, as in args.x",
    "only the compiler knows where the argument {name} of type '{of}' is, and those behind it",
    "only the compiler knows where the argument {name} of this function is passed",
    // Of 32-bit programs, and of programs for Arm.
    "{name}() knows the numbers of 64-bit programs alone",
    "where 32-bit Arm code has a value of type '{}' is not known",
    "read a register: reg(\"r0\")",
];

/// All files below a path.
fn files(path: PathBuf) -> Vec<PathBuf> {
    match path.read_dir() {
        Ok(entries) => entries.flatten().flat_map(|entry| files(entry.path())).collect(),
        Err(_) => vec![path],
    }
}

/// The literals of a source that are messages: they have several words.
fn messages(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    // A quote that is a character begins no literal.
    let code = lines.collect::<Vec<_>>().join("\n").replace("'\"'", "");
    let (mut found, mut rest) = (Vec::new(), &*code);
    while let Some(start) = rest.find('"') {
        let is_raw = rest[..start].ends_with("r#");
        let (mut text, mut chars) = (String::new(), rest[start + 1..].chars());
        while let Some(c) = chars.next() {
            match c {
                '"' if !is_raw || chars.as_str().starts_with('#') => break,
                '\\' if !is_raw => match chars.next() {
                    Some('\n') => chars = chars.as_str().trim_start().chars(),
                    Some('n') => text.push('\n'),
                    next => text.extend(next),
                },
                c => text.push(c),
            }
        }
        rest = chars.as_str();
        if text.matches(' ').count() >= 2 {
            found.push(text);
        }
    }
    found
}

/// Whether a line has a message, with anything in place of `{…}`.
fn says(line: &str, message: &str) -> bool {
    let (mut line, message) = (line, message.replace("{{", "\u{1}").replace("}}", "\u{2}"));
    message.split('{').enumerate().all(|(n, part)| {
        let text = if n == 0 { part } else { part.split_once('}').map_or(part, |(_, text)| text) };
        let text = text.replace('\u{1}', "{").replace('\u{2}', "}");
        line.find(&text).map(|at| line = &line[at + text.len()..]).is_some()
    })
}

#[test]
fn each_refusal_of_the_front_end_has_a_spec() {
    let read = |file: PathBuf| std::fs::read_to_string(file).unwrap_or_default();
    let read_all = |path: &str| files(checkout().join(path)).into_iter().map(read).collect::<Vec<_>>();
    let front = "crates/lang/src/script";
    let sources = ["parser", "check", "lexer.rs"].map(|part| read_all(&format!("{front}/{part}"))).concat();
    let said: BTreeSet<String> = sources.iter().flat_map(|source| messages(source)).collect();
    assert!(said.len() > 300, "there are only {} messages", said.len());
    let specs = read_all("tests/specs");
    let is_message = |line: &&str| ["ERROR: ", "WARNING: ", "HINT: "].iter().any(|kind| line.contains(kind));
    let lines: Vec<&str> = specs.iter().flat_map(|spec| spec.lines()).filter(is_message).collect();
    let tests = [read_all("tests/scenario"), read_all("crates/lang/tests")].concat();
    // This file has the list.
    let tests: Vec<&String> = tests.iter().filter(|test| !test.contains("\nconst WITHOUT_SPEC")).collect();
    let has = |message: &str| {
        let in_tests = || tests.iter().flat_map(|test| test.lines()).any(|line| says(line, message));
        lines.iter().any(|line| says(line, message)) || in_tests()
    };
    let lacks: Vec<&String> = said.iter().filter(|said| !WITHOUT_SPEC.contains(&&***said) && !has(said)).collect();
    assert!(lacks.is_empty(), "no spec makes the front end say {lacks:#?}");
    let old: Vec<_> = WITHOUT_SPEC.iter().filter(|listed| !said.contains(**listed) || has(listed)).collect();
    assert!(old.is_empty(), "these are said by a spec, or by nothing anymore: {old:#?}");
}

/// What the guide calls refused since only the kernel has it.
#[test]
fn what_needs_the_kernel_is_refused_as_the_guide_says() {
    let guide = include_str!("../../docs/guide/language/refused.md");
    let rows = guide.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let rows = rows.filter(|(_, why)| why.split(" | ").next().is_some_and(|why| why.contains("ernel")));
    let words: Vec<&str> = rows.flat_map(|(what, _)| what.split('`').skip(1).step_by(2)).collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.starts_with('-')).collect();
    assert!(words.len() > 20, "{words:?}");
    for word in words {
        let script = match word.strip_suffix("()") {
            Some(function) => format!("begin {{ {function}(1) }}"),
            None => format!("{word}:a:b {{ }}"),
        };
        let refused = |script: &str| {
            let output = run(&mut sidestep(&["-e", script]), LIMIT);
            output.code() == 1 && output.stderr.contains(&format!("{word} needs the kernel"))
        };
        let value = format!("begin {{ print({word}) }}");
        assert!(refused(&script) || refused(&value), "{word}");
    }
}

#[test]
fn usdt_probes_are_listed() {
    let Some(path) = target("usdt") else { return };
    let path = path.to_string_lossy();
    let output = run(&mut sidestep(&["-l", &format!("usdt:{path}:fired")]), LIMIT);
    assert_eq!((output.code(), output.stdout), (0, format!("usdt:{path}:demo:fired\n")));
    let output = run(&mut sidestep(&["-l", &format!("U:{path}:demo:*")]), LIMIT);
    assert!(output.stdout.contains(&format!("usdt:{path}:demo:twice\n")), "{output}");
}

#[test]
fn files_and_interpreter_lines() {
    let dir = std::env::temp_dir().join(format!("sidestep-script-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = dir.join("sum.bt");
    std::fs::write(&file, "#!/usr/bin/env sidestep\nBEGIN { printf(\"%d %s\\n\", $1 + $2, str($3)); exit() }\n")
        .expect("a file");
    let path = file.to_string_lossy();
    let output = run(&mut sidestep(&["-q", &path, "3", "4", "five"]), LIMIT);
    assert_eq!((output.code(), &*output.stdout), (0, "7 five\n\n\n"), "{output}");
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo 'BEGIN { printf(\"in\\n\"); exit(4) }' | \"$0\" -q -"]).arg(sidestep_tests::tool::path());
    let output = run(&mut shell, LIMIT);
    assert_eq!((output.code(), &*output.stdout), (4, "in\n\n\n"), "{output}");
    let _ = std::fs::remove_dir_all(dir);
}
