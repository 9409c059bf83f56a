//! What others have written (names of functions, files and threads, strings) does not act on a
//! terminal, and makes no rows of its own.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sidestep_tests::build::{have, target_dir};
use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, sidestep};
use sidestep_tests::{skip, target};

/// As long as the name that it replaces: the end of a line, the start of a row, sequences of a
/// terminal in one byte and in two, a change of direction, and a byte that is no UTF-8.
const NAME: &[u8; 32] = b"e\nFORGED 777\x1b[31m\xc2\x9b1m\xe2\x80\xae\xff_at_end";
const REPLACED: &[u8; 32] = b"name_that_the_test_replaces_0001";
/// What `names.c` passes.
const TEXT: &[u8] = b"t\x1b[2Jx\nFORGED 7\r\xe2\x80\xae\xff";

/// A program whose names are such, in a directory whose name is, too.
struct Evil(PathBuf);

impl Evil {
    fn new(name: &str) -> Option<Evil> {
        let program = fs::read(target("names")?).expect("readable");
        let dir = target_dir().join("test-targets").join(format!("{name}\nFORGED\x1b[1m.{}", std::process::id()));
        fs::create_dir_all(&dir).expect("target directory is writable");
        let mut bytes = program.clone();
        let places: Vec<usize> =
            program.windows(32).enumerate().filter(|(_, w)| *w == REPLACED).map(|(at, _)| at).collect();
        assert!(!places.is_empty());
        places.iter().for_each(|at| bytes[*at..*at + 32].copy_from_slice(NAME));
        let path = dir.join("program");
        fs::write(&path, bytes).expect("writable");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permitted");
        Some(Evil(path))
    }

    fn start(&self) -> Program {
        Program::start(&mut Command::new(&self.0))
    }
}

impl Drop for Evil {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.parent().expect("a directory"));
    }
}

/// Nothing in it acts on a terminal, and no row was forged.
#[track_caller]
fn assert_harmless(what: &str, text: &str) {
    let acts = |c: char| c.is_control() && c != '\n' && c != '\t' || c == '\u{202e}';
    assert!(!text.contains(acts), "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.trim_start().starts_with("FORGED")), "{what}: {text:?}");
    assert!(text.contains("FORGED"), "{what}: {text:?}");
}

/// Runs a tool while the program calls its function, and gives both outputs.
fn traced(evil: &Evil, args: &[&str]) -> String {
    let mut program = evil.start();
    let pid = program.pid().to_string();
    let at = usize::from(!args[0].starts_with('-'));
    let mut all = args.to_vec();
    all.splice(at..at, ["-p", &pid]);
    let tracing = Tracing::launch(&all);
    // The text of the program is written as soon as its probes are in.
    let path = format!("/proc/{pid}/maps");
    let is_in = || fs::read(&path).is_ok_and(|maps| maps.windows(14).any(|w| w == b"memfd:sidestep"));
    assert!(sidestep_tests::process::eventually(LIMIT, is_in));
    let mut hits = 0;
    let seen = || run(&mut sidestep(&["status", "-p", &pid]), LIMIT).stdout;
    assert!(sidestep_tests::process::eventually(LIMIT, || !seen().is_empty()));
    while hits < 3 {
        program.ask("call 1");
        hits += 1;
    }
    tracing.signal(libc::SIGINT);
    let output = tracing.output();
    assert_eq!(output.code(), 0, "{args:?}: {output}");
    format!("{}\n{}", output.stdout, output.stderr)
}

#[test]
fn a_name_forged_a_row() {
    let Some(evil) = Evil::new("rows") else { return };
    for args in [
        &["funccount", "*_at_end"][..],
        &["funclatency", "-F", "*_at_end"],
        &["trace", "*_at_end \"%s\", arg2"],
        &["stackcount", "*_at_end"],
        &["stackcount", "-f", "*_at_end"],
        &[
            "-e",
            "u:*:*_at_end { @[str(arg1), comm, func, probe] = count(); @s[ustack] = count(); @a = usym(reg(\"ip\")) }",
        ],
        &["-e", "u:*:*_at_end { printf(\"%s %s\\n\", ustack, usym(reg(\"ip\"))); print((comm, str(arg1))) }"],
        &["-v", "-e", "u:*:*_at_end { @[ustack(perf)] = count() }"],
    ] {
        let text = traced(&evil, args);
        assert_harmless(&format!("{args:?}"), &text);
    }
}

#[test]
fn json_acted_on_a_terminal() {
    let Some(evil) = Evil::new("json") else { return };
    for args in [
        &["-f", "json", "-e", "u:*:*_at_end { @[str(arg1), comm, func] = count(); printf(\"%s\\n\", str(arg1)) }"][..],
        &["funccount", "-f", "json", "*_at_end"],
    ] {
        assert_harmless(&format!("{args:?}"), &traced(&evil, args));
    }
}

#[test]
fn what_is_listed_forged_a_row() {
    let Some(evil) = Evil::new("lists") else { return };
    let program = evil.start();
    let pid = program.pid().to_string();
    for args in [
        &["list", "-p", &pid, "*_at_end"][..],
        &["list", "-v", "-p", &pid, "*_at_end"],
        &["explain", "-p", &pid, "*_at_end"],
        &["-l", "-p", &pid, "u:*:*_at_end"],
        &["-lv", "-p", &pid, "u:*:*_at_end"],
        &["funccount", "--dry-run", "-p", &pid, "*_at_end"],
    ] {
        let output = run(&mut sidestep(args), LIMIT).ok();
        assert_harmless(&format!("{args:?}"), &format!("{}{}", output.stdout, output.stderr));
    }
    let tracing = Tracing::start(&["funccount", "-p", &pid, "*_at_end"]);
    for args in [&["status", "-p", &pid][..], &["status", "-f", "json", "-p", &pid]] {
        let output = run(&mut sidestep(args), LIMIT).ok();
        assert_harmless(&format!("{args:?}"), &output.stdout);
    }
    tracing.stop();
}

#[test]
fn an_error_named_what_acts_on_a_terminal() {
    let nowhere = "/nowhere/\x1b[31m\nFORGED\u{202e}";
    for args in [
        &["list", &format!("{nowhere}:f")][..],
        &["funccount", &format!("{nowhere}:f"), "--", "true"],
        &["bpf", nowhere, "--", "true"],
    ] {
        let output = run(&mut sidestep(args), LIMIT);
        assert_eq!(output.code(), 1, "{output}");
        assert_harmless(&format!("{args:?}"), &output.stderr);
    }
    // A script that somebody has passed on.
    let dir = target_dir().join("test-targets");
    let path = dir.join(format!("acts.{}.bt", std::process::id()));
    fs::write(&path, "BEGIN { print(\x1b[2J) }").expect("writable");
    let output = run(&mut sidestep(&[&path.to_string_lossy()]), LIMIT);
    let _ = fs::remove_file(&path);
    assert!(output.code() == 1 && !output.stderr.contains('\x1b') && output.stderr.contains("\\x1b"), "{output:?}");
}

const PRINTS: &str = r#"u:*:*_at_end { printf("\033[1m%s|%4c|\033[0m\n", str(arg1), 27); exit() }"#;

/// A file gets the bytes of the target as they are, as from bpftrace.
#[test]
fn printf_changed_bytes_on_their_way_to_a_file() {
    let Some(evil) = Evil::new("bytes") else { return };
    let file = target_dir().join("test-targets").join(format!("bytes.{}", std::process::id()));
    let name = file.to_string_lossy().into_owned();
    traced_to_the_end(&evil, sidestep(&["-o", &name, "-e", PRINTS]));
    let bytes = fs::read(&file).expect("written");
    let _ = fs::remove_file(&file);
    let expected = [b"\x1b[1m", TEXT, b"|   \x1b|\x1b[0m\n"].concat();
    assert!(bytes.starts_with(&expected), "{:?}", String::from_utf8_lossy(&bytes));
}

/// On a terminal, the script's own format has its colours, and the target none.
#[test]
fn strings_of_the_target_acted_on_a_terminal() {
    if !have(&["script"]) {
        return skip("script(1) of util-linux is missing");
    }
    let Some(evil) = Evil::new("terminal") else { return };
    let output = traced_to_the_end(&evil, sidestep(&["-q", "-e", PRINTS]));
    let shown = "\x1b[1mt\\x1b[2Jx\\nFORGED 7\\r\\u{202e}\\xff|\\x1b|\x1b[0m";
    assert!(output.contains(shown), "{output:?}");
    assert!(!output.replace(shown, "").contains('\x1b'), "{output:?}");
}

/// Runs a command in a terminal of its own while the program calls its function; what it printed.
fn traced_to_the_end(evil: &Evil, tool: Command) -> String {
    let mut program = evil.start();
    let quoted =
        |text: &std::ffi::OsStr| format!("'{}'", String::from_utf8_lossy(text.as_bytes()).replace('\'', "'\\''"));
    let words: Vec<String> = std::iter::once(tool.get_program()).chain(tool.get_args()).map(quoted).collect();
    let line = format!("{} -p {}", words.join(" "), program.pid());
    let mut controller = sidestep_tests::process::Running::start(
        Command::new("script").args(["-qefc", &line]).arg(Path::new("/dev/null")),
    );
    while controller.is_running() {
        program.ask("call 1");
    }
    controller.finish(LIMIT).ok().stdout
}
