//! Flags that users of bcc's tools know, on programs that say themselves what they did.

use std::process::Command;

use sidestep_tests::build::have;
use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::target;
use sidestep_tests::tool::{Tracing, sidestep, with_command};

use crate::tools::{numbers, serve_page};

fn script(args: &[&str]) -> String {
    run(&mut sidestep(&[args, &["--print"]].concat()), LIMIT).ok().stdout
}

#[test]
fn what_there_is_anyway_may_be_asked_for() {
    let plain = script(&["stackcount", "-d", "5", "c:malloc"]);
    assert_eq!(script(&["stackcount", "-U", "-D", "5", "c:malloc"]), plain);
    let spec = ["-C", "p:c:malloc(size_t n):size_t:n"];
    assert_eq!(
        script(&[&["argdist", "-I", "linux/time.h"], &spec[..]].concat()),
        script(&[&["argdist"], &spec[..]].concat())
    );
    for tool in ["stackcount", "funcslower"] {
        let output = run(&mut sidestep(&[tool, "-K", "c:malloc", "--", "true"]), LIMIT);
        assert_eq!(output.code(), 2, "{output}");
        let said = output.stderr.lines().next().unwrap_or_default();
        assert_eq!(said, "error: -K: stacks of the kernel need the kernel: not available in this tool");
    }
}

#[test]
fn what_funccount_cannot_do_is_one_line() {
    for (flags, said) in
        [(&["-D"][..], "error: -D: "), (&["--debug"], "error: -D: "), (&["--cpu", "0"], "error: --cpu: ")]
    {
        let output = run(&mut sidestep(&[&["funccount"], flags, &["c:malloc", "--", "true"]].concat()), LIMIT);
        assert_eq!((output.code(), output.stderr.starts_with(said)), (2, true), "{output}");
    }
}

/// What `explain` says, and the command is not run.
#[test]
fn a_dry_run_touches_nothing() {
    let plan = run(&mut sidestep(&["explain", "libc:write"]), LIMIT).ok().stdout;
    let (place, script) = ("libc:write", "u:libc:write { @++ }");
    let commands: [&[&str]; 4] = [&["funccount", place], &["funclatency", place], &["trace", place], &["-e", script]];
    for command in commands {
        let output = run(&mut sidestep(&[command, &["--dry-run", "--", "sh", "-c", "echo run"]].concat()), LIMIT);
        assert_eq!((output.code(), &output.stdout), (0, &plan), "{output}");
    }
}

/// What does not exist is left out, as in the run, and `warn` says so.
#[test]
fn a_dry_run_knew_nothing_of_missing_probes() {
    let plan = run(&mut sidestep(&["explain", "libc:write"]), LIMIT).ok().stdout;
    for (value, code, said) in [("error", 1, "ERROR"), ("warn", 0, "WARNING"), ("ignore", 0, "")] {
        let script =
            format!("config = {{ missing_probes = \"{value}\" }} u:libc:never_heard_of {{ }} u:libc:write {{ @++ }}");
        let output = run(&mut sidestep(&["--dry-run", "-e", &script]), LIMIT);
        assert_eq!((output.code(), output.stdout == plan), (code, code == 0), "{output}");
        assert_eq!(output.stderr.is_empty(), said.is_empty(), "{output}");
        assert!(output.stderr.contains(said), "{output}");
    }
}

/// `explain` and `list` take what scripts and `trace` have.
#[test]
fn the_word_in_front_of_a_place_was_taken_for_its_object() {
    for command in ["explain", "list"] {
        let expected = run(&mut sidestep(&[command, "libc:write"]), LIMIT).ok().stdout;
        for word in ["uprobe", "uretprobe", "u", "ur", "p", "r"] {
            let output = run(&mut sidestep(&[command, &format!("{word}:libc:write")]), LIMIT).ok();
            assert_eq!(output.stdout, expected, "{output}");
        }
    }
}

#[test]
fn seconds_behind_the_d_of_scripts_are_said_to_be_none() {
    let script = ["-e", "u:libc:write { @++ }"];
    let said = |args: &[&str]| run(&mut sidestep(args), LIMIT).ok().stderr.contains("interval:s:5 { exit() }");
    assert!(said(&[&["-d", "5"], &script[..], &["--", "true"]].concat()));
    assert!(!said(&[&["-d"], &script[..], &["--", "true"]].concat()));
}

/// The program has one thread, whose number is that of the process.
#[test]
fn argdist_counts_one_thread() {
    let Some(path) = target("script") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let (pid, spec) = (program.pid(), format!("p:{}:size(long n):long:n", path.display()));
    let mut counted = |tid: i32| {
        let (pid, tid) = (pid.to_string(), tid.to_string());
        let tracing = Tracing::start(&["argdist", "-p", &pid, "-t", &tid, "-i", "1000", "-f", "json", "-C", &spec]);
        program.ask("sizes 40");
        let report = tracing.stop().0.stdout;
        let map = report.lines().find(|line| line.contains("\"map\"")).unwrap_or_default();
        map.matches("\": 1").count()
    };
    assert_eq!((counted(pid), counted(pid + 1)), (40, 0));
    program.finish().ok();
}

#[test]
fn deadlock_takes_lists_of_functions_and_the_process_alone() {
    let Some(path) = target("locks") else { return };
    let locks = ["--binary", "c", "--lock-symbols", "pthread_mutex_lock,pthread_mutex_trylock"];
    let unlock = ["--unlock-symbols", "pthread_mutex_unlock"];
    let program = path.to_str().expect("UTF-8");
    let (_, report) = with_command(&[&["deadlock"], &locks[..], &unlock].concat(), &[program, "inverted", "20"]);
    assert_eq!(report.0.stdout.matches("Potential Deadlock").count(), 1, "{}", report.0);
    assert_eq!(script(&["deadlock", "1"]), script(&["deadlock", "-p", "1"]));
    let output = run(&mut sidestep(&["deadlock", "4194304"]), LIMIT);
    assert_eq!((output.code(), output.stderr.contains("no process with pid 4194304")), (1, true), "{output}");
}

#[test]
fn allocators_have_prefixes() {
    let own = script(&["memleak", "-O", "jemalloc", "--symbols-prefix", "je_"]);
    assert!(own.contains("uprobe:jemalloc:je_malloc ") && own.contains("uprobe:jemalloc:je_free,"), "{own}");
}

/// Python reads the graph.
#[test]
fn deadlock_writes_its_graph() {
    let Some(path) = target("locks") else { return };
    if !have(&["python3"]) {
        return;
    }
    let graph = std::env::temp_dir().join(format!("sidestep-graph.{}", std::process::id()));
    let file = graph.to_str().expect("UTF-8");
    let program = [path.to_str().expect("UTF-8"), "inverted", "20"];
    let (_, report) = with_command(&["deadlock", "-v", "-t", "100", "-e", "50", "--dump-graph", file], &program);
    assert!(report.0.stdout.contains("Mutexes: 2, Edges: 2\n"), "{}", report.0);
    let read = "import json, sys; g = json.load(open(sys.argv[1]))
for l in g['links']: print(l['source'], l['target'], l['thread_comm'], l['second_mutex_stack'][0].split('+')[0])
print(len(set(n['id'] for n in g['nodes'])), g['directed'], g['multigraph'])";
    let said = run(Command::new("python3").args(["-c", read, file]), LIMIT).ok().stdout;
    let mut lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.pop(), Some("2 True False"), "{said}");
    let link = |by: &str| lines.iter().find(|line| line.contains(by)).map(|line| &line[..3]);
    let (forth, back) = (link(" forth "), link(" back "));
    assert!(matches!((forth, back), (Some("0 1"), Some("1 0")) | (Some("1 0"), Some("0 1"))), "{said}");
    let _ = std::fs::remove_file(&graph);
    let output = run(&mut sidestep(&["deadlock", "--dump-graph", "/nonexistent/graph", "-p", "1"]), LIMIT);
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stderr.starts_with("sidestep: cannot write /nonexistent/graph: "), "{output}");
    assert!(script(&["deadlock", "-t", "100", "-e", "50"]).contains("hash(100)"));
}

#[test]
fn memleak_names_other_allocators() {
    let (Some(library), Some(path)) = (target("libmallocs.so"), target("script")) else { return };
    let program = Program::start(Command::new(path).env("LD_PRELOAD", &library));
    let pid = program.pid().to_string();
    let said = |flags: &[&str]| {
        let args = [&["memleak", "-p", &pid, "-i", "0.1", "-n", "1"], flags].concat();
        run(&mut sidestep(&args), LIMIT).ok().stderr.lines().filter(|line| line.contains("has a malloc")).count()
    };
    assert_eq!((said(&[]), said(&["-q"]), said(&["-O", library.to_str().expect("UTF-8")])), (1, 0, 0));
    program.finish().ok();
    let program = Program::start(&mut Command::new(target("script").expect("built")));
    let pid = program.pid().to_string();
    let output = run(&mut sidestep(&["memleak", "-p", &pid, "-i", "0.1", "-n", "1"]), LIMIT).ok();
    assert!(!output.stderr.contains("has a malloc"), "{output}");
    program.finish().ok();
}

#[test]
fn memleak_sorts_by_allocations() {
    let Some(path) = target("tools") else { return };
    let file = std::env::temp_dir().join(format!("sidestep-sorted.{}", std::process::id()));
    let names = |sort: &str, top: &str| {
        let output = file.to_str().expect("UTF-8");
        let args = ["memleak", "-i", "1000", "-o", "0", "--sort", sort, "-T", top, "--output", output, "--"];
        let program = [path.to_str().expect("UTF-8"), "leaks", "40"];
        run(&mut sidestep(&[&args[..], &program].concat()), LIMIT).ok();
        let report = std::fs::read_to_string(&file).expect("written");
        let leaks = report.lines().skip_while(|line| !line.ends_with(" from stack"));
        leaks.map(|line| line.trim().split('+').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    // The largest is one allocation.
    assert_eq!(names("size", "1")[..2], ["1048576 bytes in 1 allocations from stack", "leak_large"]);
    let most = names("count", "4");
    for leak in ["leak_small", "leak_zeroed", "leak_grown", "leak_aligned"] {
        assert!(most.iter().any(|name| name == leak), "{most:?}");
    }
    assert!(!most.iter().any(|name| name == "leak_large"), "{most:?}");
    let _ = std::fs::remove_file(&file);
    assert_eq!(script(&["memleak", "--wa-missing-free", "-z", "9"]), script(&["memleak", "-z", "9"]));
    for (flags, said) in
        [(&["--percpu"][..], "--percpu: allocations of the kernel"), (&["-z", "9", "-Z", "8"], "-z must not")]
    {
        let output = run(&mut sidestep(&[&["memleak"], flags].concat()), LIMIT);
        assert_eq!((output.code(), output.stderr.contains(said)), (2, true), "{output}");
    }
}

#[test]
fn static_probes_are_counted() {
    let Some(path) = target("usdt") else { return };
    let program = path.to_str().expect("UTF-8");
    for pattern in [format!("u:{program}:fired"), format!("u:{program}:demo:fired")] {
        let (_, report) = with_command(&["funccount", &pattern], &[program, "fire", "7"]);
        let row = report.0.stdout.lines().find(|line| line.contains("fired")).unwrap_or_default();
        assert_eq!(row.split_whitespace().last(), Some("7"), "{}", report.0);
    }
}

#[test]
fn stacks_of_one_cpu() {
    let Some(path) = target("tools") else { return };
    if !have(&["taskset"]) {
        return;
    }
    for (cpu, expected) in [("0", 16), ("4000", 0)] {
        let mut program = Program::start(&mut Command::new(&path));
        let pid = program.pid().to_string();
        run(Command::new("taskset").args(["-cp", "0", &pid]), LIMIT).ok();
        let tracing = Tracing::start(&["stackcount", "-p", &pid, "--cpu", cpu, "inner"]);
        program.ask("calls 2");
        let report = tracing.stop().0.stdout;
        let counts = report.lines().filter_map(|line| line.trim().parse::<u64>().ok());
        assert_eq!(counts.sum::<u64>(), expected, "{report}");
        program.finish().ok();
    }
}

/// The library is named by its file, and looked at because of that alone.
#[test]
fn another_library_with_tls_and_its_handshakes() {
    if !have(&["curl", "openssl"]) {
        return;
    }
    serve_page(|url, page, dir| {
        let libraries = run(Command::new("ldd").arg("/usr/bin/curl"), LIMIT).ok().stdout;
        let library = libraries.split_whitespace().find(|word| word.starts_with('/') && word.contains("libssl"));
        let extra = format!("openssl:{}", library.expect("curl has OpenSSL"));
        let (uid, got) = (user(), dir.join("got"));
        let sniff = |flags: &[&str]| {
            let args = [&["sslsniff", "-f", "json", "--no-openssl", "--extra-lib", &extra], flags].concat();
            let (said, report) =
                with_command(&args, &["/usr/bin/curl", "-sk", "-o", got.to_str().expect("UTF-8"), url]);
            said.ok();
            report.0.stdout
        };
        let report = sniff(&["--handshake", "-u", &uid]);
        assert_eq!(report.matches("HANDSHAKE").count(), 1, "{report}");
        assert!(numbers(&report, "len").iter().sum::<u64>() > page.len() as u64, "{report}");
        assert!(!sniff(&["-u", "4000000"]).contains("len"), "another user's");
    });
    let output = run(&mut sidestep(&["sslsniff", "--extra-lib", "boringssl:x", "--", "true"]), LIMIT);
    assert!(output.stderr.starts_with("error: --extra-lib boringssl:x: expected openssl:FILE"), "{output}");
}

#[test]
fn a_library_that_is_not_there_is_named_as_it_was_given() {
    for kind in ["openssl", "gnutls"] {
        let extra = format!("{kind}:/nonexistent");
        let output = run(&mut sidestep(&["sslsniff", "--extra-lib", &extra, "--", "true"]), LIMIT);
        assert!(output.code() == 1 && output.stderr.contains("no object `/nonexistent` (no such file)"), "{output}");
        assert!(!output.stderr.contains("libssl"), "{output}");
    }
}

/// Of whoever runs this.
fn user() -> String {
    run(Command::new("id").arg("-u"), LIMIT).ok().stdout.trim().to_owned()
}
