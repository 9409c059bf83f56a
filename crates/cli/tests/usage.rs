//! What the program says before it touches any process.

use std::process::{Command, Output, Stdio};

fn sidestep(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sidestep")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A usage error: status 2, nothing on stdout, and the text on stderr.
#[track_caller]
fn refuses(args: &[&str], text: &str) {
    let output = sidestep(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    assert!(stderr(&output).contains(text), "{args:?}: {}", stderr(&output));
}

#[test]
fn help_has_an_example_for_each_command() {
    let help = sidestep(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = String::from_utf8(help.stdout).unwrap();
    for command in ["funccount", "funclatency", "trace", "explain", "list", "coverage", "status", "disable", "enable"] {
        assert!(help.contains(&format!("\n  sidestep {command} ")), "no example of {command} in:\n{help}");
        let own = sidestep(&[command, "-h"]);
        assert_eq!(own.status.code(), Some(0));
        let own = String::from_utf8(own.stdout).unwrap();
        assert!(own.contains(&format!("Usage: sidestep {command}")), "{own}");
        assert!(own.contains(&format!("\n  sidestep {command} ")), "no example in:\n{own}");
    }
}

#[test]
fn version() {
    let output = sidestep(&["-V"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("sidestep {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn pid_must_be_a_number() {
    for command in ["funccount", "funclatency", "trace", "explain", "list"] {
        refuses(&[command, "-p", "a1111", "malloc"], "Failed to parse pid: invalid integer: a1111");
        refuses(&[command, "-p", "0", "malloc"], "Failed to parse pid: not positive: 0");
    }
    for command in ["status", "disable", "enable"] {
        refuses(&[command, "-p", "x"], "Failed to parse pid: invalid integer: x");
        refuses(&[command], "--pid");
    }
    refuses(&["disable", "-p", "1", "usdt:libc:setjmp"], "is not usdt:OBJECT:PROVIDER:NAME");
}

#[test]
fn target_must_be_clear() {
    for command in ["funccount", "funclatency", "trace"] {
        refuses(&[command, "malloc"], if command == "trace" { "add -p PID" } else { "--pid" });
        refuses(&[command, "-p", "1", "malloc", "--", "true"], "cannot be used with");
        refuses(&[command, "malloc", "-c", " "], "the command is empty");
        refuses(&[command, "malloc", "-c", "echo 'x"], "a ' is not closed");
    }
    // The command was never run, and nobody said so.
    let script = "u:libc:malloc { @ = count() }";
    refuses(&["-p", "1", "-c", "true", "-e", script], "cannot be used with");
    refuses(&["-p", "1", "-e", script, "--", "true"], "cannot be used with");
    refuses(&["-c", "true", "-e", script, "--", "true"], "cannot be used with");
    refuses(&["list", "malloc"], "libc:malloc");
    refuses(&["explain", "main+0x4"], "write OBJECT:FUNC");
    refuses(&["coverage"], "<BINARY>");
}

#[test]
fn patterns_specs_and_seconds_are_checked() {
    refuses(&["funccount", "-p", "1", "libc:"], "names no function");
    refuses(&["funclatency", "-p", "1", "-i", "0", "libc:read"], "expected seconds");
    refuses(&["trace", "-p", "1", "libc:open \"%s\""], "the format takes 1 value, but 0 are given");
    refuses(&["trace", "-p", "1", "-M", "0", "libc:open"], "--max-events");
    refuses(&["funccount", "-p", "1", "-f", "xml", "libc:open"], "xml");
    refuses(&[], "Usage");
    refuses(&["strace"], "strace");
}

#[test]
fn output_file_that_cannot_be_written() {
    let output = sidestep(&["funccount", "-o", "/nonexistent/counts", "libc:malloc", "--", "true"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.starts_with("sidestep: cannot write /nonexistent/counts: "), "{text}");
    assert_eq!(text.lines().count(), 1);
}

#[test]
fn process_that_does_not_exist() {
    // The largest pid that Linux gives out is below PID_MAX_LIMIT, 2^22.
    let output = sidestep(&["funccount", "-p", "4194304", "libc:malloc"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let text = stderr(&output);
    assert!(text.starts_with("sidestep: ") && text.lines().count() == 1, "{text}");
    let output = sidestep(&["funccount", "-p", "4194305", "libc:malloc"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("Pid out of range: 4194305"), "{}", stderr(&output));
}

/// Runs a program with a text on its standard input, if it is there.
fn filter(program: &str, args: &[&str], input: &[u8]) -> Option<Output> {
    use std::io::Write;
    let mut command = Command::new(program);
    let mut child =
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    // A reader that ends early is judged by what it says.
    let _ = child.stdin.take().unwrap().write_all(input);
    Some(child.wait_with_output().unwrap())
}

#[test]
fn manual_page_is_right_for_groff() {
    let page = sidestep(&["man"]);
    assert_eq!(page.status.code(), Some(0));
    let Some(shown) = filter("groff", &["-man", "-ww", "-Tascii", "-P-cbou"], &page.stdout) else { return };
    assert_eq!(stderr(&shown), "");
    let shown = String::from_utf8(shown.stdout).unwrap();
    for text in
        ["sidestep(1)", "NAME", "  -p, --pid <PID>", "  --no-optimize", "sidestep-funclatency(1)", "EXIT STATUS"]
    {
        assert!(shown.contains(text), "no {text} in:\n{shown}");
    }
    // An example, with its quotes and backslashes.
    assert!(shown.contains(r#"sidestep trace -p 1234 'libc:open "%s %d", arg0, arg1'"#), "{shown}");
}

#[test]
fn all_manual_pages_are_right_for_groff() {
    let dir = std::env::temp_dir().join(format!("sidestep-man-{}", std::process::id()));
    let written = sidestep(&["man", "--dir", dir.to_str().unwrap()]);
    assert_eq!((written.status.code(), stderr(&written)), (Some(0), String::new()));
    let mut count = 0;
    for section in ["man1", "man7"] {
        for entry in std::fs::read_dir(dir.join(section)).unwrap().flatten() {
            let page = std::fs::read(entry.path()).unwrap();
            let Some(shown) = filter("groff", &["-man", "-ww", "-Tascii", "-P-cbou"], &page) else { return };
            assert_eq!(stderr(&shown), "", "{}", entry.path().display());
            count += 1;
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(count > 20, "{count} pages");
    let page = sidestep(&["man", "funccount"]);
    assert!(String::from_utf8_lossy(&page.stdout).contains("sidestep\\-funccount"), "{page:?}");
    let page = sidestep(&["man", "no-such"]);
    assert_eq!(page.status.code(), Some(2));
    assert!(stderr(&page).contains("language"), "{page:?}");
}

/// What bash offers when the last word is being typed.
fn completed(words: &[&str]) -> Option<String> {
    let script = sidestep(&["completions", "bash"]);
    assert_eq!(script.status.code(), Some(0));
    let (last, before) = words.split_last()?;
    let call = format!(
        "\nCOMP_WORDS=({}); COMP_CWORD={}; _sidestep sidestep '{last}' '{}'; echo \"${{COMPREPLY[@]}}\"\n",
        words.join(" "),
        before.len(),
        before.last()?
    );
    let output = filter("bash", &["--norc"], &[&script.stdout[..], call.as_bytes()].concat())?;
    assert_eq!(stderr(&output), "");
    Some(String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
}

#[test]
fn bash_completes_commands_flags_and_values() {
    for (words, expected) in [
        (&["sidestep", "funcl"][..], "funclatency"),
        (&["sidestep", "funccount", "--l"], "--live"),
        (&["sidestep", "funclatency", "--mil"], "--milliseconds"),
        (&["sidestep", "--dr"], "--dry-run"),
        (&["sidestep", "funccount", "-f", "j"], "json"),
        (&["sidestep", "optimize", "of"], "off"),
    ] {
        assert_eq!(completed(words).as_deref(), Some(expected), "{words:?}");
    }
}

#[test]
fn other_shells_get_completions() {
    for shell in ["zsh", "fish"] {
        let script = sidestep(&["completions", shell]);
        let text = String::from_utf8(script.stdout).unwrap();
        assert!(script.status.success() && text.contains("no-optimize") && text.contains("funclatency"), "{shell}");
        // Where the shell is there, it reads it.
        if let Some(read) = filter(shell, &["-n"], text.as_bytes()) {
            assert!(read.status.success() && read.stderr.is_empty(), "{shell}: {read:?}");
        }
    }
    refuses(&["completions", "csh"], "csh");
}

#[test]
fn debug_output_is_a_tree_and_programs() {
    let output = sidestep(&["-d", "-e", "u:a:b /pid/ { @x = 1 + arg0 * 3 }"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let tree = "uprobe:a:b\n  predicate\n    pid\n  =\n    @x\n    +\n      1\n      *\n        arg0\n        3\n";
    assert!(text.starts_with(tree), "{text}");
    assert!(text.contains("\nuprobe:a:b: program 0\n    0: ") && text.ends_with(": exit\n"), "{text}");
    assert!(text.contains(": @x, "), "{text}");
}
