//! Scripts as users type them, on real programs that say themselves what they did.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use sidestep_tests::build::have;
use sidestep_tests::process::{LIMIT, Running, eventually, kill, run};
use sidestep_tests::tool::{rows, sidestep, with_command};
use sidestep_tests::{skip, target};

/// Runs a script on a command: what the command wrote, and the script.
#[track_caller]
fn on(args: &[&str], script: &str, command: &[&str]) -> (String, String) {
    let (output, report) = with_command(&[&["-q"], args, &["-e", script]].concat(), command);
    (output.ok().stdout, report.0.stdout)
}

/// A directory with a short name, as sockets need it; removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = PathBuf::from(format!("/tmp/sidestep-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("/tmp is writable");
        Scratch(dir)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn python() -> Option<String> {
    match std::fs::canonicalize("/usr/bin/python3") {
        Ok(python) => Some(python.to_str().expect("UTF-8").to_owned()),
        Err(_) => {
            skip("no python3");
            None
        }
    }
}

/// Each worker writes its process id into nginx's log, once for a request. Half of them are forked
/// while we watch.
#[test]
fn requests_of_a_server_that_forks_are_counted_per_process() {
    if !have(&["nginx", "curl"]) {
        return;
    }
    let dir = Scratch::new("nginx");
    let (conf, log, pid, socket) = (dir.file("conf"), dir.file("log"), dir.file("pid"), dir.file("socket"));
    let at = dir.file("");
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {at}{name};"))
        .concat();
    let text = format!(
        "daemon off; worker_processes 3; pid {pid}; error_log {at}error; events {{ accept_mutex off; }}
         http {{ log_format who '$pid'; access_log {log} who; {temporary}
         server {{ listen unix:{socket}; location / {{ return 200 \"hello\\n\"; }} }} }}"
    );
    std::fs::write(&conf, text).expect("writable");
    let get = |requests: usize| {
        let mut clients: Vec<_> = (0..requests)
            .map(|_| {
                let url = ["http://localhost/", "http://localhost/"];
                Running::start(Command::new("curl").args(["-s", "--unix-socket", &socket]).args(url))
            })
            .collect();
        clients.drain(..).for_each(|client| assert_eq!(client.finish(LIMIT).ok().stdout, "hello\nhello\n"));
    };
    let (results, script) = (dir.file("results"), "u:nginx:ngx_http_process_request { @[pid] = count() }");
    let args = ["-q", "--follow", "-o", &results, "-e", script, "--", "/usr/sbin/nginx", "-p", &at, "-c", &conf];
    let tracing = Running::start(&mut sidestep(&args));
    let answers = || {
        let mut curl = Command::new("curl");
        curl.args(["-so", "/dev/null", "--unix-socket", &socket, "http://localhost/"]);
        curl.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    assert!(eventually(LIMIT, answers), "nginx does not answer");
    get(20);
    let master: i32 = std::fs::read_to_string(&pid).ok().and_then(|pid| pid.trim().parse().ok()).expect("a process id");
    let children = || std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
    let before = children();
    kill(master, libc::SIGHUP);
    let others = || {
        let now = children();
        now.split_whitespace().count() == 3 && now.split_whitespace().all(|pid| !before.contains(pid))
    };
    assert!(eventually(LIMIT, others), "no new workers");
    get(20);
    kill(master, libc::SIGQUIT);
    let output = tracing.finish(LIMIT).ok();
    let mut logged = BTreeMap::new();
    for pid in std::fs::read_to_string(&log).expect("nginx logs").lines() {
        *logged.entry(pid.to_owned()).or_insert(0) += 1;
    }
    let results = std::fs::read_to_string(&results).expect("written");
    assert!(logged.len() >= 2 && logged.values().sum::<u64>() >= 81, "{logged:?}");
    assert_eq!(rows(&results, "@"), logged, "{results}{output}");
}

/// A shell runs the commands of a file one by one. Neither another shell nor what it forks is
/// counted.
#[test]
fn commands_of_one_shell() {
    let dir = Scratch::new("bash");
    let other = Running::start(Command::new("bash").args(["-c", "while :; do :; done"]));
    let count = |commands: usize| {
        let file = dir.file("commands");
        let text = format!("{}(true; true)\n/bin/true\necho $$\n", "true\n".repeat(commands));
        std::fs::write(&file, text).expect("writable");
        let script = "u:bash:execute_command { @[pid] = count() }";
        let (said, report) = on(&[], script, &["/bin/bash", &file]);
        let counted = rows(&report, "@");
        assert_eq!(counted.keys().map(String::as_str).collect::<Vec<_>>(), [said.trim()], "{report}");
        counted.into_values().sum::<u64>()
    };
    assert_eq!((count(5), count(25)), (5 + 3, 25 + 3));
    drop(other);
}

/// Python counts the blocks in use by their size.
#[test]
fn objects_of_python_by_size() {
    let Some(python) = python() else { return };
    let program = "
import ctypes, os, sys, tempfile
malloc = ctypes.pythonapi.PyObject_Malloc
malloc.restype, malloc.argtypes = None, [ctypes.c_size_t]
def blocks():
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        sys._debugmallocstats()
        os.dup2(before, 2)
        file.seek(0)
        rows = [line.split() for line in file.read().decode().splitlines()]
    return {int(row[1]): int(row[3]) for row in rows if len(row) == 5 and all(map(str.isdigit, row))}
before = blocks()
malloc(7777)
for n in range(3000): malloc(200 + n * 7 % 313)
malloc(8888)
after = blocks()
print({size: after[size] - before.get(size, 0) for size in after if size > 200})
";
    let script = "
        u:python3*:PyObject_Malloc /arg0 == 7777/ { @on = 1 }
        u:python3*:PyObject_Malloc /arg0 == 8888/ { @on = 0 }
        u:python3*:PyObject_Malloc /@on && arg0 >= 200 && arg0 <= 512/ {
            @size[(arg0 + 15) / 16 * 16] = count();
            @h = hist(arg0);
        }";
    let (said, report) = on(&[], script, &[&python, "-c", program]);
    let blocks: BTreeMap<u64, u64> = said
        .trim()
        .trim_matches(['{', '}'])
        .split(", ")
        .filter_map(|entry| entry.split_once(": "))
        .map(|(size, count)| (size.parse().expect("a size"), count.parse().expect("a count")))
        .collect();
    let sizes: BTreeMap<u64, u64> =
        rows(&report, "@size").into_iter().map(|(size, count)| (size.parse().expect("a size"), count)).collect();
    // What else python allocates in between, for its files, is a few blocks; what is compared first
    // is all ours.
    assert_eq!(sizes.values().sum::<u64>(), 3000, "{report}");
    for (size, count) in &sizes {
        let in_use = blocks.get(size).copied().unwrap_or(0);
        assert!(in_use.abs_diff(*count) <= 8, "{size}: {count}, and {in_use} in use: {said}{report}");
    }
    assert!(report.contains("@h:\n[128, 256) ") && report.contains("\n[256, 512) "), "{report}");
}

/// Two matches of an empty line belong to the start; then there is one for each line.
#[test]
fn matches_of_grep_are_lines() {
    if !have(&["grep"]) {
        return;
    }
    let dir = Scratch::new("grep");
    let matches = |lines: u64| {
        let file = dir.file("lines");
        std::fs::write(&file, (0..lines).map(|n| format!("{n}\n")).collect::<String>()).expect("writable");
        let script = "u:libpcre2-8:pcre2_match_* { @[func] = count() }";
        let (_, report) = on(&[], script, &["/bin/grep", "-cP", "7|(?<=4)2", &file]);
        rows(&report, "@").get("pcre2_match_8").copied().unwrap_or(0)
    };
    let few = matches(1000);
    assert!((1000..1010).contains(&few), "{few}");
    assert_eq!(matches(5000) - few, 4000);
}

#[test]
fn host_names_of_python() {
    let Some(python) = python() else { return };
    let hosts = ["localhost", "127.0.0.1", "::1", "localhost"];
    let program = format!("import socket\nfor host in {hosts:?}: socket.getaddrinfo(host, 80)");
    let script = "u:libc:getaddrinfo { printf(\"%s\\n\", str(arg0)) }";
    let (_, report) = on(&[], script, &[&python, "-c", &program]);
    assert_eq!(report.lines().take(hosts.len()).collect::<Vec<_>>(), hosts);
    // The same through a wrapper that executes it.
    let file = Scratch::new("hosts");
    std::fs::write(file.file("hosts.py"), program).expect("writable");
    let shell = format!("exec {python} {}", file.file("hosts.py"));
    let (_, report) = on(&["--follow"], script, &["/bin/sh", "-c", &shell]);
    assert_eq!(report.lines().take(hosts.len()).collect::<Vec<_>>(), hosts);
}

#[test]
fn texts_of_a_static_program_are_never_empty() {
    let Some(program) = target("words-musl") else { return };
    let program = program.to_str().expect("UTF-8");
    for script in ["u:words-musl:say { printf(\"%s\\n\", str(arg0)) }", "u:*:say { printf(\"%s\\n\", str(arg0)) }"] {
        let (said, report) = on(&[], script, &[program]);
        assert_eq!(said, "first\nsecond\nthird\nfourth\n");
        assert_eq!(report.trim_end(), said.trim_end());
    }
}

/// Under both ways to make names of them. The older one leaves out types: instances are one
/// function then.
#[test]
fn generic_functions_of_rust_by_thread() {
    for version in ["legacy", "v0"] {
        let Some(program) = target(&format!("generics-{version}")) else { return };
        let program = program.to_str().expect("UTF-8");
        let script = format!("u:{program}:*twice*,u:{program}:*Queue*run* {{ @[comm, func] = count() }}");
        let (said, report) = on(&[], &script, &[program]);
        let mut expected = BTreeMap::new();
        for line in said.lines() {
            let [thread, ty, calls] = *line.split(' ').collect::<Vec<_>>() else { panic!("{said}") };
            let queue = if ty == "u64" { "u32" } else { ty };
            let (twice, run) = match version {
                "legacy" => ("twice".to_owned(), "<generics::Queue<T> as generics::Job>::run".to_owned()),
                _ => (format!("twice::<{ty}>"), format!("<generics::Queue<{queue}> as generics::Job>::run")),
            };
            for name in [format!("{thread}, generics::{twice}"), format!("{thread}, {run}")] {
                *expected.entry(name).or_insert(0) += calls.parse::<u64>().expect("a number");
            }
        }
        assert_eq!(rows(&report, "@"), expected, "{report}");
    }
}

/// A function's name is one key, wherever it was hit.
#[test]
fn entries_and_returns_have_one_name() {
    let Some(program) = target("words-musl") else { return };
    let program = program.to_str().expect("UTF-8");
    let script =
        "u:*:say { @f[func] = count(); @p[probe] = count() } ur:*:say { @f[func] = count(); @p[probe] = count() }";
    let (_, report) = on(&[], script, &[program]);
    assert_eq!(rows(&report, "@f"), BTreeMap::from([("say".to_owned(), 8)]));
    assert_eq!(rows(&report, "@p").into_values().collect::<Vec<_>>(), [4, 4], "{report}");
}

/// As `ur:libc:{read,write}`, of which a shell makes two words, and the parser none.
#[test]
fn a_misspelt_point_is_one_line() {
    let said = |script: &str| run(&mut sidestep(&["-e", script, "-p", "1"]), LIMIT);
    for provider in ["uprobe", "uretprobe", "usdt"] {
        let output = said(&format!("{provider}:libc:{{ @ = count() }}"));
        assert_eq!(output.code(), 1, "{output}");
        assert!(output.stderr.contains(&format!("{provider} probe has no name behind the last colon")), "{output}");
    }
}
