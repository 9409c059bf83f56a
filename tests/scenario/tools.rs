//! The tools that are scripts, on programs that know themselves what they did.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sidestep_tests::build::{have, target_dir};
use sidestep_tests::process::{LIMIT, Program, Running, eventually, run};
use sidestep_tests::tool::{Tracing, sidestep, with_command};
use sidestep_tests::{skip, target};

/// Runs a tool on a command: the command's output and the tool's.
#[track_caller]
fn on(args: &[&str], command: &[&str]) -> (String, String) {
    let (output, report) = with_command(args, command);
    let output = output.ok();
    (output.stdout, report.0.stdout)
}

fn scratch(name: &str) -> PathBuf {
    let dir = target_dir().join("test-targets").join(format!("{name}.{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("target directory is writable");
    dir
}

/// The numbers behind a name in JSON lines: `"len": 87`.
pub fn numbers(text: &str, name: &str) -> Vec<u64> {
    let name = format!("\"{name}\": ");
    let digits = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
    text.split(&name).skip(1).filter_map(digits).collect()
}

#[test]
pub fn stacks_are_counted_and_folded() {
    let Some(program) = target("tools") else { return };
    let program = program.to_str().expect("UTF-8");
    let (said, report) = on(&["stackcount", "-f", "inner"], &[program, "calls", "7"]);
    assert_eq!(said.trim(), "28");
    let mut ways = BTreeMap::new();
    for line in report.lines() {
        let (stack, count) = line.rsplit_once(' ').expect("STACK COUNT");
        let frames: Vec<&str> = stack.split(';').collect();
        let [.., caller, by, "inner"] = *frames else { panic!("{report}") };
        assert_eq!(caller, "calls", "{report}");
        *ways.entry(by).or_insert(0) += count.parse::<u64>().expect("a number");
    }
    assert_eq!(ways, BTreeMap::from([("left", 21), ("right", 35)]), "{report}");
    // As text, with the thread's name; the function by a regular expression.
    let (_, report) = on(&["stackcount", "-Pr", "^inn.r$"], &[program, "calls", "2"]);
    let blocks: Vec<&str> = report.split("\n\n").collect();
    let block = |by: &str| blocks.iter().find(|block| block.contains(&format!("  inner\n  {by}\n"))).copied();
    assert!(block("left").is_some_and(|b| b.contains("    tools [") && b.ends_with("\n    6")), "{report}");
    assert!(block("right").is_some_and(|b| b.ends_with("\n    10")), "{report}");
}

/// What a library that counts says of the same run.
#[test]
fn sizes_of_malloc_are_those_of_a_preloaded_library() {
    let Some(library) = target("libmallocs.so") else { return };
    if !have(&["grep", "env"]) {
        return;
    }
    let dir = scratch("argdist");
    let lines: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
    std::fs::write(dir.join("numbers"), lines).expect("writable");
    let (results, file, counts) = (dir.join("results"), dir.join("numbers"), dir.join("mallocs-of"));
    let (results, file) = (results.to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
    let args = ["argdist", "-f", "json", "-i", "1000", "-C", "c:malloc(size_t n):size_t:n", "-o", results, "--"];
    let mut tool = sidestep(&[&args[..], &["/bin/grep", "-c", "-E", "(7|ne 4).*[0-9]", file]].concat());
    let output = run(tool.env("LD_PRELOAD", &library).env("MALLOCS", &counts), LIMIT).ok();
    let report = std::fs::read_to_string(results).expect("written");
    let said = std::fs::read_to_string(dir.join("mallocs-of-grep")).expect("said by the library");
    let grep: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
    let map = report.split("size_t:n\": {").nth(1).expect("a map");
    let (mut calls, mut bytes) = (0, 0);
    for entry in map.trim_end_matches(['}', '\n']).split(", ") {
        let (size, count) = entry.split_once(": ").expect("\"SIZE\": COUNT");
        let count: u64 = count.parse().expect("a number");
        calls += count;
        bytes += size.trim_matches('"').parse::<u64>().expect("a number") * count;
    }
    assert_eq!([calls, bytes], grep[..], "{report}{output}");
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
pub fn specifications_of_argdist() {
    let Some(program) = target("tools") else { return };
    let program = program.to_str().expect("UTF-8");
    let specs = [
        "p::inner(long n, char *text):char*:text",
        "r::inner(long n, char *text):long,char*:$entry(n),$entry(text):$retval > 0 && $entry(n) > 2#late",
        "p::inner(long n, char *text):long:n:STRCMP(\"left\", text)#lefts",
        "p::left()",
    ];
    let args = [&["argdist", "-i", "1000", "-C"], &specs[..], &["-H", "p::inner(long n):long:n"]].concat();
    let (_, report) = on(&args, &[program, "calls", "10"]);
    let rows: Vec<&str> = report.lines().map(str::trim).collect();
    for row in [
        "30         text = left",
        "50         text = right",
        "10         $entry(n) = 3, $entry(text) = right",
        "10         $entry(n) = 4, $entry(text) = right",
        "10         n = 0",
        "30         total calls",
        "0 -> 1          : 40       |****************************************|",
        "2 -> 3          : 30       |******************************          |",
        "4 -> 7          : 10       |**********                              |",
    ] {
        assert!(rows.contains(&row), "no {row:?} in\n{report}");
    }
    assert_eq!(rows.iter().filter(|row| row.starts_with("10         n = ")).count(), 3, "{report}");
    // Structs are those of the program's debug information.
    let specs =
        ["p::visit(struct node *n):int,char*:n->id,n->name", "p::visit(struct node *n):int:n->next->id:n->next != 0"];
    let (_, report) = on(&[&["argdist", "-i", "1000", "-C"], &specs[..]].concat(), &[program, "visits", "3"]);
    for row in [
        "1          n->id = 7, n->name = second",
        "3          n->id = 5, n->name = first",
        "3          n->next->id = 7",
    ] {
        assert!(report.contains(&format!("\t{row}\n")), "no {row:?} in\n{report}");
    }
    let Some(usdt) = target("usdt") else { return };
    let usdt = usdt.to_str().expect("UTF-8");
    let spec = format!("u:{usdt}:demo:fired():long:arg1#n");
    let (_, report) = on(&["argdist", "-i", "1000", "-C", &spec], &[usdt, "fire", "3"]);
    assert!(report.contains("\tCOUNT      EVENT\n\t1          arg1 = 1\n"), "{report}");
    assert_eq!(report.lines().filter(|line| line.starts_with("\t1          arg1 = ")).count(), 3, "{report}");
}

#[test]
pub fn slow_calls_are_those_that_sleep() {
    let Some(program) = target("tools") else { return };
    let program = program.to_str().expect("UTF-8");
    let (_, report) = on(&["funcslower", "-f", "json", "-m", "50", "-a", "1", "-U", "nap"], &[program, "naps", "8"]);
    assert_eq!(numbers(&report, "retval"), [120; 4], "{report}");
    assert_eq!(numbers(&report, "arg0"), [60; 4], "{report}");
    assert_eq!(report.matches("[\"naps+").count(), 4, "{report}");
    let (_, report) = on(&["funcslower", "-m", "49.5", "-a", "1", "nap"], &[program, "naps", "6"]);
    assert_eq!(report.lines().filter(|line| line.ends_with("              78 nap 0x3c")).count(), 3, "{report}");
    let (_, report) = on(&["funcslower", "-f", "-m", "50", "nap"], &[program, "naps", "4"]);
    let (stack, ms) = report.trim().rsplit_once(' ').expect("STACK MS");
    assert!(stack.starts_with("tools;") && stack.ends_with(";naps;nap"), "{report}");
    assert!(ms.parse::<u64>().is_ok_and(|ms| ms >= 120), "{report}");
}

#[test]
fn lines_that_are_typed_into_bash() {
    if !have(&["bash", "script"]) {
        return;
    }
    let mut command = Command::new("script");
    command.args(["-qc", "exec bash --norc --noprofile -i", "/dev/null"]).stdin(Stdio::piped());
    let mut terminal = Running::start(command.env("HISTFILE", "/dev/null"));
    let mut keys = terminal.take_stdin().expect("piped");
    let children = format!("/proc/{0}/task/{0}/children", terminal.pid());
    let bash = || std::fs::read_to_string(&children).ok()?.trim().parse::<i32>().ok();
    let is_bash = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "bash\n");
    assert!(eventually(LIMIT, || bash().is_some_and(is_bash)), "no bash");
    let pid = bash().expect("just seen").to_string();
    let tracing = Tracing::start(&["bashreadline", "-p", &pid]);
    // Nobody sees the return of a call that had begun before: the first line may be missing.
    keys.write_all(b"true\necho one 'two  three'\nfalse | true\nexit\n").expect("bash reads");
    let report = tracing.end().0.stdout;
    let typed: Vec<&str> =
        report.lines().skip(1).map(|line| line.splitn(3, ' ').nth(2).unwrap_or_default().trim_start()).collect();
    let typed: Vec<&str> = typed.into_iter().map(|line| line.trim_start_matches(&*pid).trim_start()).collect();
    let typed = typed.strip_prefix(&["true"]).unwrap_or(&typed);
    assert_eq!(typed, ["echo one 'two  three'", "false | true", "exit"], "{report}");
    drop(keys);
    terminal.finish(LIMIT).ok();
}

#[test]
fn host_names_that_python_looks_up() {
    let Ok(python) = std::fs::canonicalize("/usr/bin/python3") else { return skip("no python3") };
    let hosts = ["localhost", "127.0.0.1", "::1", "localhost"];
    let script = format!("import socket\nfor h in {hosts:?}: socket.getaddrinfo(h, 80)");
    let python = python.to_str().expect("UTF-8");
    let (_, report) = on(&["gethostlatency"], &[python, "-c", &script]);
    let seen: Vec<&str> = report.lines().filter_map(|line| line.split_whitespace().nth(4)).collect();
    assert_eq!(seen, hosts, "{report}");
    let (_, report) = on(&["gethostlatency", "-f", "json"], &[python, "-c", &script]);
    assert_eq!(report.matches("\"host\": \"localhost\"}").count(), 2, "{report}");
}

/// Serves a page by TLS while `visit` runs, which is given its address, its text, and a directory.
pub fn serve_page(visit: impl FnOnce(&str, &str, &Path)) {
    let dir = scratch("tls");
    let file = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    let page: String = (0..1500).map(|n| format!("{n}: plain text\n")).collect();
    std::fs::write(file("page"), &page).expect("writable");
    let (key, cert) = (file("key"), file("cert"));
    let new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout"];
    run(Command::new("openssl").args(new).args([&key, "-out", &cert]), LIMIT).ok();
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let port = free.port().to_string();
    let mut server = Command::new("openssl");
    server.args(["s_server", "-quiet", "-WWW", "-accept", &port, "-key", &key, "-cert", &cert]).current_dir(&dir);
    let server = Running::start(&mut server);
    assert!(eventually(LIMIT, || TcpStream::connect(free).is_ok()), "no server");
    visit(&format!("https://127.0.0.1:{port}/page"), &page, &dir);
    drop(server);
    let _ = std::fs::remove_dir_all(dir);
}

/// Bytes as curl counts them, and the text of the page.
#[test]
fn plain_text_of_tls() {
    if have(&["curl", "openssl"]) {
        serve_page(visit_by_curl);
    }
}

fn visit_by_curl(url: &str, page: &str, dir: &Path) {
    let got = dir.join("got");
    let (got, sizes) = (got.to_str().expect("UTF-8"), "%{size_request} %{size_header} %{size_download}");
    let curl = ["/usr/bin/curl", "-sk", "-o", got, "-w", sizes, url];
    let (said, report) = on(&["sslsniff", "-f", "json"], &curl);
    let sizes: Vec<u64> = said.split(' ').map(|size| size.parse().expect("a number")).collect();
    let sum = |name: &str| -> u64 {
        report.lines().filter(|line| line.contains(name)).flat_map(|line| numbers(line, "len")).sum()
    };
    assert_eq!((sum("WRITE/SEND"), sum("READ/RECV")), (sizes[0], sizes[1] + sizes[2]), "{report}");
    let script = "u:libssl:SSL_write { @sent = sum(arg2); printf(\"%s\", str(arg1, arg2 + 1)) }
        u:libssl:SSL_read { self.to = arg1 }
        ur:libssl:SSL_read /(int32)retval > 0/ { @got = sum((int32)retval); printf(\"%s\", str(self.to, (int32)retval)) }";
    let script = format!("config = {{ max_strlen = 16384 }} {script}");
    let (said, report) = on(&["-q", "-e", &script], &curl);
    let sizes: Vec<u64> = said.split(' ').map(|size| size.parse().expect("a number")).collect();
    let sums = format!("@got: {}\n@sent: {}\n", sizes[1] + sizes[2], sizes[0]);
    assert!(report.starts_with("GET /page HTTP/1.1\r\n") && report.contains(&sums), "{report}");
    assert!(report.contains("\n700: plain text\n701: plain text\n"), "{report}");
    let (_, report) = on(&["sslsniff", "--max-buffer-size", "16384"], &curl);
    let read: String = report
        .split("----- DATA -----\n")
        .skip(2)
        .map(|rest| rest.split("\n----- END DATA").next().unwrap_or(""))
        .collect();
    assert!(read.replace('\r', "").ends_with(page), "{report}");
    assert!(report.contains("GET /page HTTP/1.1"), "{report}");
    let (_, report) = on(&["sslsniff", "--hexdump", "--max-buffer-size", "20"], &curl);
    assert!(
        report.contains("----- DATA -----\n474554202f7061676520485454502f31\n2e310d0a\n----- END DATA (TRUNCATED, "),
        "{report}"
    );
}

/// Of what goes through NSPR, only what goes through TLS: its clients read and write files by the
/// same functions.
#[test]
fn plain_text_of_nss() {
    if !have(&["selfserv", "tstclnt", "certutil"]) {
        return;
    }
    let dir = scratch("nss");
    let file = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    let (keys, request) = (format!("sql:{}", dir.display()), "GET / HTTP/1.0\r\n\r\n");
    let noise: String = (0..100).map(|n| format!("{n},")).collect();
    for (name, text) in [("password", "\n"), ("noise", &noise), ("request", request)] {
        std::fs::write(file(name), text).expect("writable");
    }
    run(Command::new("certutil").args(["-N", "-d", &keys, "--empty-password"]), LIMIT).ok();
    let own = ["-S", "-d", &keys, "-n", "own", "-s", "CN=localhost", "-x", "-t", "CTu,u,u", "-z", &file("noise")];
    run(Command::new("certutil").args(own).args(["-f", &file("password")]), LIMIT).ok();
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let port = free.port().to_string();
    let mut server = Command::new("selfserv");
    server.args(["-d", &keys, "-n", "own", "-p", &port, "-f", &file("password")]);
    let server = Running::start(&mut server);
    assert!(eventually(LIMIT, || TcpStream::connect(free).is_ok()), "no server");
    let client = ["tstclnt", "-h", "localhost", "-p", &port, "-d", &keys, "-o", "-A", &file("request")];
    let (said, report) = on(&["sslsniff", "-f", "json"], &client);
    let lengths = |name: &str| -> Vec<u64> {
        report.lines().filter(|line| line.contains(name)).flat_map(|line| numbers(line, "len")).collect()
    };
    assert_eq!(lengths("WRITE/SEND"), [request.len() as u64], "{report}");
    let page = said.find("HTTP/1.0 200 OK").map(|start| said.len() - start);
    assert_eq!(Some(lengths("READ/RECV").iter().sum()), page.map(|bytes| bytes as u64), "{said} {report}");
    drop(server);
    let _ = std::fs::remove_dir_all(dir);
}

/// Bytes and allocations by stack, as `memleak` prints them.
fn leaked(report: &str) -> BTreeMap<String, (u64, u64)> {
    let mut leaks = BTreeMap::new();
    let lines: Vec<&str> = report.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if let (true, [bytes, count]) = (line.ends_with(" allocations from stack"), &*numbers) {
            let frame = lines.get(at + 1).map_or("", |frame| frame.trim());
            let function = frame.split('+').next().unwrap_or_default();
            leaks.insert(function.to_owned(), (*bytes, *count));
        }
    }
    leaks
}

/// Runs `memleak`, whose `-o` is something else.
#[track_caller]
fn memleak(args: &[&str], command: &[&str]) -> (String, String) {
    let thread = std::thread::current().name().unwrap_or("main").replace(':', "-");
    let file = std::env::temp_dir().join(format!("sidestep-{thread}.{}", std::process::id()));
    let path = file.to_str().expect("UTF-8");
    let all = [&["memleak", "-i", "1000", "-o", "0", "--output", path], args, &["--"], command].concat();
    let output = run(&mut sidestep(&all), LIMIT).ok();
    let report = std::fs::read_to_string(&file).expect("written");
    let _ = std::fs::remove_file(file);
    (output.stdout, report)
}

#[test]
pub fn leaks_are_what_the_program_did_not_free() {
    let Some(program) = target("tools") else { return };
    let program = program.to_str().expect("UTF-8");
    let (said, report) = memleak(&["-T", "100"], &[program, "leaks", "40"]);
    let mut leaks = leaked(&report);
    leaks.retain(|function, _| function.starts_with("leak_"));
    let expected =
        [("aligned", 300, 40), ("grown", 700, 40), ("large", 1 << 20, 1), ("small", 100, 40), ("zeroed", 60, 40)];
    let expected = expected.map(|(name, size, count)| (format!("leak_{name}"), (size * count, count)));
    assert_eq!(leaks, BTreeMap::from(expected), "{report}");
    let sum: u64 = leaks.values().map(|(bytes, _)| bytes).sum();
    assert_eq!(said.trim(), sum.to_string());
    assert!(!report.contains("no_leak"), "{report}");
}

#[test]
fn leaks_of_python() {
    let Ok(python) = std::fs::canonicalize("/usr/bin/python3") else { return skip("no python3") };
    let script = "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.malloc.restype = libc.free.argtypes = None\n\
                  for i in range(9): libc.malloc(12345)\n";
    let args = ["-f", "json", "-z", "12345", "-Z", "12345"];
    let (_, report) = memleak(&args, &[python.to_str().expect("UTF-8"), "-c", script]);
    assert!(report.ends_with("\"], \"bytes\": 111105, \"allocations\": 9}}\n"), "{report}");
}

#[test]
pub fn locks_in_two_orders() {
    let Some(program) = target("locks") else { return };
    let program = program.to_str().expect("UTF-8");
    let (said, report) = on(&["deadlock"], &[program, "ordered", "20"]);
    assert_eq!((said.trim(), report.contains("Deadlock")), ("120", false), "{report}");
    let (said, report) = on(&["deadlock"], &[program, "inverted", "20"]);
    assert_eq!((said.trim(), report.matches("Potential Deadlock").count()), ("40", 1), "{report}");
    let names = ["=> Mutex M1 (a 0x", "=> Mutex M1 (b 0x", "Mutex M0 (a 0x", "Mutex M0 (b 0x"];
    assert_eq!(names.into_iter().filter(|name| report.contains(name)).count(), 2, "{report}");
    for words in ["(forth)", "(back)", "@ with_both+", "@ forth+", "@ back+"] {
        assert!(report.contains(words), "no {words}: {report}");
    }
    for name in ["forth", "back"] {
        let thread =
            report.lines().find_map(|line| line.split_once(" in Thread ")?.1.strip_suffix(&format!(" ({name}):")));
        let (_, created) =
            report.split_once(&format!("\nThread {} created by Thread ", thread.expect(name))).expect(name);
        let here: Vec<&str> = created.lines().take_while(|line| !line.is_empty()).collect();
        assert!(
            here[0].ends_with(" (locks) here:") && here[1..].iter().any(|at| at.starts_with("@ inverted+")),
            "{report}"
        );
    }
    let (_, report) = on(&["deadlock", "-f", "json"], &[program, "inverted", "2"]);
    assert_eq!(report.matches("\"comm\": \"back\"").count(), 1, "{report}");
    assert_eq!(report.matches("\"acquired_name\": \"a\"").count(), 1, "{report}");
    assert_eq!(report.matches("\"creator_comm\": \"locks\"").count(), 2, "{report}");
}

#[test]
pub fn who_created_a_thread_that_was_there_before_is_not_known() {
    let Some(path) = target("locks") else { return };
    let mut program = Program::start(&mut Command::new(path));
    program.ask("begin 20");
    let tracing = Tracing::start(&["deadlock", "-p", &program.pid().to_string()]);
    assert_eq!(program.ask("end 0"), 40);
    let report = tracing.stop().0.stdout;
    program.finish().ok();
    assert_eq!(report.matches("\nCould not find stack trace where Thread ").count(), 2, "{report}");
    assert!(!report.contains(" created by "), "{report}");
}

/// `readelf -n` says the same.
#[test]
fn static_probes_are_those_of_readelf() {
    let Some(program) = target("usdt") else { return };
    if !have(&["readelf"]) {
        return;
    }
    let program = program.to_str().expect("UTF-8");
    let notes = run(Command::new("readelf").args(["-n", program]), LIMIT).ok().stdout;
    let field = |line: &str, name: &str| Some(line.trim().strip_prefix(name)?.trim().to_owned());
    let values = |name: &str| notes.lines().filter_map(|line| field(line, name)).collect::<Vec<_>>();
    let names =
        values("Provider:").into_iter().zip(values("Name:")).map(|(provider, name)| format!("{provider}:{name}"));
    let locations =
        values("Location:").into_iter().filter_map(|line| u64::from_str_radix(line[2..].split(',').next()?, 16).ok());
    let mut expected: Vec<(String, String)> = names.zip(locations.map(|va| format!("{va:#x}"))).collect();
    expected.sort();
    let listed = run(&mut sidestep(&["tplist", "-v", "-l", program]), LIMIT).ok().stdout;
    let (mut found, mut name) = (Vec::new(), String::new());
    for line in listed.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words {
            ["location", _, _, address] => found.push((name.clone(), address.to_owned())),
            [_, probe, "[sema", _] => name = probe.to_owned(),
            _ => assert!(line.starts_with("    argument #"), "{listed}"),
        }
    }
    found.sort();
    assert!(!expected.is_empty());
    assert_eq!(found, expected, "{listed}{notes}");
    let register = if cfg!(target_arch = "aarch64") { "x" } else { "%e" };
    assert!(listed.contains(&format!("    argument #2 4 signed   bytes @ {register}")), "{listed}");
    let listed = run(&mut sidestep(&["tplist", "-l", program, "demo:tw*"]), LIMIT).ok().stdout;
    assert_eq!(listed, format!("{program} demo:twice\n"));
}

/// Each script is one: it can be printed, changed, and run by itself.
#[test]
fn scripts_can_be_printed() {
    let tools: [(&str, &[&str]); 8] = [
        ("stackcount", &["-Ti", "1", "-d", "5", "c:malloc"]),
        ("argdist", &["--cumulative", "-C", "r:c:read(int fd):int:$entry(fd):$latency > 1000"]),
        ("funcslower", &["-UT", "-a", "6", "c:read", "c:write"]),
        ("bashreadline", &[]),
        ("gethostlatency", &["-d", "1"]),
        ("sslsniff", &["-xl", "--comm", "a \"b\""]),
        ("memleak", &["-at", "-s", "5", "-z", "1", "-Z", "9", "-n", "2"]),
        ("deadlock", &[]),
    ];
    let listed = run(&mut sidestep(&["tools"]), LIMIT).ok().stdout;
    for (name, flags) in tools {
        assert!(listed.lines().any(|line| line.split(' ').next() == Some(name)), "no {name}: {listed}");
        let script = run(&mut sidestep(&[&["tools", "--print", name], flags].concat()), LIMIT).ok().stdout;
        assert_eq!(script, run(&mut sidestep(&[&[name], flags, &["--print"]].concat()), LIMIT).ok().stdout);
        let output = run(&mut sidestep(&["-e", &script]), LIMIT);
        assert!(output.stderr.contains("the script probes a process"), "{name}: {script}{output}");
    }
}

#[test]
fn interval_and_count_of_memleak_stand_alone_as_in_bcc() {
    let script = |args: &[&str]| run(&mut sidestep(&[&["memleak", "--print"], args].concat()), LIMIT).ok().stdout;
    assert_eq!(script(&["7", "2"]), script(&["-i", "7", "-n", "2"]));
    assert_ne!(script(&["7", "2"]), script(&["7"]));
}

/// An output and the end that are due at the same moment.
#[test]
fn the_last_output_is_printed_once() {
    let Some(path) = target("script") else { return };
    let program = Program::start(&mut Command::new(&path));
    let spec = format!("p:{}:size(long n):long:n", path.display());
    let args = ["argdist", "-p", &program.pid().to_string(), "-i", "1", "-d", "1", "-C", &spec];
    let output = run(&mut sidestep(&args), LIMIT).ok();
    assert_eq!(output.stdout.lines().filter(|line| line.starts_with('[')).count(), 1, "{output}");
    program.finish().ok();
}

#[test]
fn mistakes_are_one_line() {
    let said = |args: &[&str], code: i32| {
        let output = run(&mut sidestep(args), LIMIT);
        assert_eq!((output.code(), &*output.stdout), (code, ""), "{output}");
        output.stderr.lines().next().unwrap_or_default().to_owned()
    };
    for tool in ["bashreadline", "gethostlatency", "sslsniff", "memleak", "deadlock"] {
        assert_eq!(said(&[tool], 2), format!("error: {tool} probes a process: add -p PID, -c CMD or -- CMD"));
    }
    assert_eq!(said(&["tplist"], 2), "error: where to look? add -p PID or -l OBJECT");
    assert!(said(&["argdist", "-p", "1"], 2).contains("add -C SPEC or -H SPEC"));
    assert!(
        said(&["argdist", "-C", "p:c:malloc(size_t n):size_t:m", "--", "true"], 2).contains("the signature has no 'm'")
    );
    assert!(said(&["tools", "--print", "nothing"], 2).contains("no tool \"nothing\""));
    assert!(said(&["stackcount", "c:mallocc", "--", "/bin/sh", "-c", ":"], 1).contains("did you mean `malloc`"));
}
