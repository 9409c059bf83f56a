//! Scripts that come with bpftrace run as they are: those about programs, on programs. Those about
//! the kernel are refused with the reason. The package has them; none is copied here.

use std::path::{Path, PathBuf};
use std::process::Command;

use sidestep_tests::build::have;
use sidestep_tests::process::{LIMIT, Output, run};
use sidestep_tests::skip;
use sidestep_tests::tool::{path, sidestep};

use crate::tools::serve_page;

/// Where Debian has them.
const FOLDER: &str = "/usr/sbin";
/// Those about programs.
const OF_PROGRAMS: [&str; 5] = ["bashreadline", "gethostlatency", "ssllatency", "sslsnoop", "threadsnoop"];

fn script(name: &str) -> Option<String> {
    let file = Path::new(FOLDER).join(format!("{name}.bt"));
    if file.exists() {
        return Some(file.display().to_string());
    }
    skip(&format!("{} is missing, one of {} scripts of bpftrace", file.display(), OF_PROGRAMS.len()));
    None
}

/// As functions may be missing that only other releases of a library have.
fn traced(script: &str, flags: &[&str], command: &[&str]) -> Output {
    let mut tool = sidestep(&[flags, &[script, "--"], command].concat());
    run(tool.env("BPFTRACE_MISSING_PROBES", "warn"), LIMIT)
}

/// The lines behind the heading, each in words.
fn rows(output: &Output, heading: &str) -> Vec<Vec<String>> {
    let lines = output.stdout.lines().skip_while(|line| !line.starts_with(heading)).skip(1);
    let rows = lines.filter(|line| !line.is_empty());
    rows.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn those_about_the_kernel_are_refused_with_the_reason() {
    if script(OF_PROGRAMS[0]).is_none() {
        return;
    }
    let is_script = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "bt");
    let files = Path::new(FOLDER).read_dir().expect("a folder").flatten().map(|entry| entry.path());
    let mut refused = 0;
    for file in files.filter(is_script) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if OF_PROGRAMS.contains(&&*name) {
            continue;
        }
        let output = run(&mut sidestep(&["--dry-run", &file.display().to_string(), "--", "true"]), LIMIT);
        // Types of the kernel are not known.
        let why = ["needs the kernel", "this header is not found", "has incomplete type"];
        assert!(output.code() == 1 && why.iter().any(|why| output.stderr.contains(why)), "{name}: {output}");
        refused += 1;
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn commands_that_are_typed_into_bash() {
    let Some(file) = script("bashreadline") else { return };
    if !have(&["script"]) {
        return;
    }
    let dry = traced(&file, &["--dry-run"], &["/bin/bash"]).ok();
    assert!(dry.stdout.starts_with("readline in "), "{dry}");
    let results = std::env::temp_dir().join(format!("sidestep-readline-{}", std::process::id()));
    let tool = format!("{} -o {} {file} -- /bin/bash --norc -i", path().display(), results.display());
    let typed = format!("printf 'echo one two\\nexit\\n' | script -qefc '{tool}' /dev/null");
    run(Command::new("sh").args(["-c", &typed]).env("HISTFILE", "/dev/null"), LIMIT).ok();
    let printed = std::fs::read_to_string(&results).unwrap_or_default();
    let _ = std::fs::remove_file(&results);
    let words = |line: &str| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ");
    let typed: Vec<String> = printed.lines().skip(2).filter(|line| !line.is_empty()).map(words).collect();
    assert_eq!(typed, ["echo one two", "exit"], "{printed}");
    assert!(
        printed.starts_with("Tracing bash commands... Hit Ctrl-C to end.\nTIME      PID    COMMAND\n"),
        "{printed}"
    );
}

#[test]
fn host_names_that_are_looked_up() {
    let Some(file) = script("gethostlatency") else { return };
    let dry = traced(&file, &["--dry-run"], &["/usr/bin/getent"]).ok();
    assert!(dry.stdout.contains("gethostbyname2 in "), "{dry}");
    let output = traced(&file, &[], &["getent", "ahosts", "localhost"]).ok();
    // The rows of getent stand between.
    let own = rows(&output, "TIME").into_iter().find(|row| row.len() == 5).expect("a row");
    assert_eq!((&*own[2], &*own[4]), ("getent", "localhost"), "{output}");
    assert!(own[3].parse::<u64>().is_ok_and(|millis| millis < 60_000), "{output}");
}

/// How long each read and write of a client took.
#[test]
fn calls_of_tls() {
    let (Some(snoop), Some(latency)) = (script("sslsnoop"), script("ssllatency")) else { return };
    if !have(&["curl", "openssl"]) {
        return;
    }
    serve_page(|url, _, dir| {
        let got = dir.join("got").display().to_string();
        let curl = ["/usr/bin/curl", "-sk", "-o", &got, url];
        let output = traced(&snoop, &[], &curl).ok();
        let all = rows(&output, "TIME");
        let calls = |name: &str| all.iter().filter(|row| row.last().is_some_and(|last| last == name)).count();
        assert!(calls("SSL_do_handshake") >= 1 && calls("SSL_read") > 1 && calls("SSL_write") >= 1, "{output}");
        assert!(all.iter().all(|row| row[2] == "curl" && row[3].parse::<u64>().is_ok()), "{output}");
        assert!(output.stderr.contains("No matches for uprobe libcrypto:rsa_ossl_public_encrypt"), "{output}");
        let output = traced(&latency, &[], &curl).ok();
        for line in ["Latency distribution in microsecond:", "[SSL_read]:", "@stat[SSL_write]: { .count = 1, "] {
            assert!(output.stdout.contains(line), "{line}: {output}");
        }
    });
}

/// Since 2.34, threads are in glibc's libc: the function is where the script looks only before.
#[test]
fn threads_that_are_made() {
    let Some(file) = script("threadsnoop") else { return };
    let threads =
        "import threading\nfor n in range(2):\n t = threading.Thread(target=len, args=('',)); t.start(); t.join()";
    let output = traced(&file, &[], &["/usr/bin/python3", "-c", threads]);
    let is_missing = output.stderr.contains("No matches for uprobe libpthread:pthread_create");
    assert_eq!(rows(&output, "TIME(ms)").len(), if is_missing { 0 } else { 2 }, "{output}");
    assert!(output.stdout.starts_with("TIME(ms)   PID    COMM             FUNC\n"), "{output}");
}
