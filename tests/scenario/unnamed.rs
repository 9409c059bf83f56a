//! Functions without a symbol: the names that are made of their addresses, in stripped programs.
//! What their symbols were is known from the program before it was stripped.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::target;
use sidestep_tests::tool::{Tracing, is_32_bit, sidestep};

use crate::errors::refused;

/// A copy of a program without its symbols, and without `more` sections.
struct Stripped(PathBuf);

impl Stripped {
    fn new(file: &Path, test: &str, more: &[&str]) -> Stripped {
        let name = format!("unnamed-{test}-{}-{}-{}", more.len(), is_32_bit(), std::process::id());
        let copy = sidestep_tests::build::target_dir().join("test-targets").join(name);
        run(Command::new("strip").args(more).arg("-o").arg(&copy).arg(file), LIMIT).ok();
        Stripped(copy)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for Stripped {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// As nm has them: addresses of functions, without zeros in front, and names.
fn functions(file: &Path) -> Vec<(String, String)> {
    let nm = run(Command::new("nm").arg("--defined-only").arg(file), LIMIT).ok();
    let function = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_own = words[1].eq_ignore_ascii_case("t") && !words[2].contains(['_', '.']);
        is_own.then(|| (words[0].trim_start_matches('0').to_owned(), words[2].to_owned()))
    };
    nm.stdout.lines().filter_map(function).collect()
}

fn address(file: &Path, name: &str) -> String {
    functions(file).into_iter().find(|(_, known)| known == name).map(|(va, _)| va).expect("nm lists it")
}

fn listed(pattern: &str) -> BTreeSet<String> {
    run(&mut sidestep(&["-l", pattern]), LIMIT).ok().stdout.lines().map(str::to_owned).collect()
}

#[test]
fn functions_of_a_stripped_program_are_listed_by_their_addresses() {
    let Some(file) = target("symbols") else { return };
    let (copy, wanted) = (Stripped::new(&file, "listed", &[]), functions(&file));
    let path = copy.path();
    let found = listed(&format!("u:{path}:sub_*"));
    assert!(wanted.len() > 3, "{wanted:?}");
    for (va, name) in &wanted {
        assert!(found.contains(&format!("uprobe:{path}:sub_{va}")), "{name}: {found:?}");
    }
    for line in &found {
        assert_eq!(listed(line), BTreeSet::from([line.clone()]));
    }
    // With symbols there are others, which are not meant by a star.
    let all = listed(&format!("u:{}:*", file.display()));
    assert!(!all.is_empty() && !all.iter().any(|line| line.contains(":sub_")), "{all:?}");
    let va = &wanted[0].0;
    refused(&["-l", &format!("u:{path}:sub_{va}ffffff")], &["no function `sub_"]);
}

/// Without unwind information, too: then the code is walked.
#[test]
fn functions_of_a_stripped_program_are_probed_and_named() {
    let Some(file) = target("symbols") else { return };
    for more in [&[][..], &["--remove-section=.eh_frame", "--remove-section=.eh_frame_hdr"]] {
        let copy = Stripped::new(&file, "probed", more);
        let (path, visit) = (copy.path(), address(&file, "visit"));
        let script = format!(
            "u:{path}:sub_{visit} {{ @hits[func, probe] = count(); @stack[ustack(1)] = count() }} \
             u:{path}:sub_{visit}+* /probe == \"uprobe:{path}:sub_{visit}\"/ {{ @first = count() }} \
             ur:{path}:sub_{visit} {{ @sum = sum(retval) }}"
        );
        let output = run(&mut sidestep(&["-q", "-e", &script, "--", path, "visits", "3"]), LIMIT).ok();
        let wanted = format!(
            "@first: 3\n@hits[sub_{visit}, uprobe:{path}:sub_{visit}]: 3\n@stack[\n        sub_{visit}\n]: 3\n@sum: 126\n"
        );
        let printed = output.stdout.lines().map(|line| line.replace("+0", "") + "\n").collect::<String>();
        assert!(printed.ends_with(&wanted), "{printed}\n{wanted}");
    }
}

/// After Ctrl-C there is no time to index an object for the start of a session; for names there is.
#[test]
fn a_stack_that_was_printed_after_ctrl_c_had_no_names() {
    let Some(file) = target("symbols") else { return };
    let copy = Stripped::new(&file, "ended", &["--remove-section=.eh_frame", "--remove-section=.eh_frame_hdr"]);
    let (path, visit) = (copy.path(), address(&file, "visit"));
    let mut program = Program::start(&mut Command::new(path));
    // By its number: nothing asks for a name before the end.
    let script = format!("u:{path}:0x{visit} {{ @[ustack(1)] = count() }}");
    let tracing = Tracing::start(&["-f", "json", "-e", &script, "-p", &program.pid().to_string()]);
    assert_eq!(program.ask("visits 3"), 126);
    tracing.signal(libc::SIGINT);
    let output = tracing.output();
    assert_eq!(output.code(), 0, "{output}");
    assert!(output.stdout.replace("+0", "").contains(&format!("sub_{visit}\\n\": 3}}")), "{output}");
}

/// Indexes of one object are made once: what each of several patterns means is the same as alone.
#[test]
fn several_addresses_in_one_command() {
    let Some(file) = target("symbols") else { return };
    let copy = Stripped::new(&file, "several", &["--remove-section=.eh_frame", "--remove-section=.eh_frame_hdr"]);
    let (path, names) = (copy.path(), ["visit", "visits"].map(|name| address(&file, name)));
    let each = names.clone().map(|va| listed(&format!("u:{path}:0x{va}+*")));
    let [a, b] = &names;
    let both = listed(&format!("u:{path}:0x{a}+*,u:{path}:0x{b}+*"));
    assert!(each.iter().all(|one| one.len() > 1), "{each:?}");
    assert_eq!(both, each[0].union(&each[1]).cloned().collect());
}

/// Debian's git exports one function, and has 5,888 more.
#[test]
fn a_star_meant_one_function_of_a_stripped_program_without_a_word() {
    let Some(file) = target("symbols") else { return };
    let copy = Stripped::new(&file, "few", &["--keep-symbol=visit"]);
    let path = copy.path();
    let said = |pattern: &str| {
        let output = run(&mut sidestep(&["funccount", pattern, "--", path, "visits", "3"]), LIMIT).ok();
        assert!(output.stdout.contains("visit "), "{output}");
        output
            .stderr
            .contains(&format!("most functions of {path} have no symbols: the pattern '{path}:sub_*' matches them"))
    };
    assert!(said(&format!("{path}:v*")));
    assert!(!said(&format!("{path}:visit")));
    // What touches no process says the same.
    let note = format!("most functions of {path} have no symbols: the pattern '{path}:sub_*' matches them");
    let pattern = |name: &str| format!("{path}:{name}");
    let script = |name: &str| format!("u:{path}:{name} {{ }}");
    for (name, is_said) in [("v*", true), ("visit", false), ("sub_*", false)] {
        for flags in [&["list", &pattern(name)], &["explain", &pattern(name)], &["-l", &format!("u:{path}:{name}")]] {
            let output = run(&mut sidestep(flags.as_slice()), LIMIT).ok();
            assert_eq!(output.stderr.matches(&note).count(), usize::from(is_said), "{flags:?}: {output}");
        }
        let output = run(&mut sidestep(&["--dry-run", "-e", &script(name), "--", path]), LIMIT).ok();
        assert_eq!(output.stderr.matches(&note).count(), usize::from(is_said), "{name}: {output}");
    }
}
