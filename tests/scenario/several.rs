//! What several processes have in common, and what they have not: names of their code, libraries
//! that one of them loads, addresses of their memory.

use std::process::Command;

use sidestep_tests::build::have;
use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, during, sidestep, with_command};
use sidestep_tests::{Snapshot, target};

use super::tools::{numbers, serve_page};

/// Two programs with different functions at the same addresses.
fn alike() -> Option<[Program; 2]> {
    let [left, right] = [target("alike-left")?, target("alike-right")?];
    Some([left, right].map(|path| Program::start(&mut Command::new(path))))
}

fn pids(programs: &[Program; 2]) -> String {
    format!("{},{}", programs[0].pid(), programs[1].pid())
}

#[test]
fn code_has_the_names_of_its_process() {
    let Some(mut programs) = alike() else { return };
    let both = pids(&programs);
    let mut work = |n: [i64; 2]| {
        for (program, n) in programs.iter_mut().zip(n) {
            assert_eq!(program.ask(&format!("work {n}")), 3 * n * (n - 1) / 2 + 2 * n);
        }
    };
    let (report, ()) = during(&["stackcount", "-p", &both, "leaf"], || work([10, 20]));
    let blocks: Vec<&str> = report.0.stdout.split("\n\n").collect();
    let count = |by: &str| -> Vec<&str> {
        let blocks = blocks.iter().filter(|block| block.contains(&format!("  leaf\n  {by}\n")));
        blocks.filter_map(|block| block.rsplit(' ').next()).collect()
    };
    assert_eq!((count("left"), count("right")), (vec!["10"], vec!["20"]), "{}", report.0);
    let script = "u:*:leaf { @called[caller] = count(); @is[func, usym(reg(\"ip\")), pid] = count() }
        u:*:left, u:*:right { @here[usym(reg(\"ip\"))] = count() }";
    let script = format!("config = {{ missing_probes = \"ignore\" }} {script}");
    let (report, ()) = during(&["-f", "json", "-p", &both, "-e", &script], || work([30, 40]));
    let report = report.0.stdout;
    let names = ["\"left+", "\": 30", "\"right+", "\": 40"].iter().all(|part| report.contains(part));
    assert!(names && report.contains(r#"{"@here": {"left": 30, "right": 40}}"#), "{report}");
    let is = |at: usize, n: u64| format!("\"leaf,leaf,{}\": {n}", both.split(',').nth(at).unwrap_or_default());
    assert!(report.contains(&is(0, 30)) && report.contains(&is(1, 40)), "{report}");
    // Lines of calls, too.
    let (report, ()) = during(&["trace", "-p", &both, "*:leaf \"%d\", arg1", "left", "right"], || work([2, 3]));
    let report = report.0.stdout;
    let lines = |name: &str| report.lines().filter(|line| line.split_whitespace().any(|word| word == name)).count();
    assert_eq!((lines("left"), lines("right")), (2, 3), "{report}");
    programs.into_iter().for_each(|program| drop(program.finish().ok()));
}

/// The entry of a function that is one jump is its exit, too. In the second process the entry was
/// counted where the exits of the first one were.
#[test]
fn an_exit_at_the_entry_had_the_number_of_the_entry_in_another_process() {
    let Some(path) = target("short") else { return };
    let mut programs = [20, 10].map(|n| (Program::start(&mut Command::new(&path)), n));
    let pids = format!("{},{}", programs[0].0.pid(), programs[1].0.pid());
    let path = path.display();
    let script = format!(
        "u:{path}:jumps_away {{ @in = count() }} ur:{path}:jumps_away {{ @out = count(); @ns = stats(latency()) }}"
    );
    let (report, ()) = during(&["-f", "json", "-p", &pids, "-e", &script], || {
        programs.iter_mut().for_each(|(program, n)| assert_eq!(program.ask(&format!("check {n}")), 0));
    });
    let (stdout, stderr) = (&report.0.stdout, &report.0.stderr);
    let has = |part: &str| assert!(stdout.contains(part), "{stdout}");
    [r#"{"@in": 30}"#, r#"{"@out": 30}"#, r#""count": 30"#].into_iter().for_each(has);
    assert!(!stderr.contains("had not returned"), "{stderr}");
    programs.into_iter().for_each(|(program, _)| drop(program.finish().ok()));
}

/// Both have ended when their stacks are printed.
#[test]
fn what_was_executed_has_its_names() {
    let (Some(left), Some(right)) = (target("alike-left"), target("alike-right")) else { return };
    let [left, right] = [&left, &right].map(|path| path.to_str().expect("UTF-8"));
    let commands = format!("{left} work 10 >&2; sleep 0.3; {right} work 20 >&2; sleep 0.3; exit 0");
    let script = format!("u:{left}:leaf, u:{right}:leaf {{ @[ustack(2)] = count() }}");
    let (output, report) = with_command(&["--follow", "-e", &script], &["sh", "-c", &commands]);
    assert_eq!(output.code(), 0, "{}", output.stderr);
    let report = report.0.stdout;
    let has = |by: &str, n: u64| {
        let entries =
            report.split("@[\n").filter(|entry| entry.contains("leaf+0") && entry.contains(&format!(" {by}+")));
        entries.filter(|entry| entry.trim_end().ends_with(&format!("]: {n}"))).count() == 1
    };
    assert!(has("left", 10) && has("right", 20), "{report}");
}

/// Workers of one parent have one layout: their stacks are one.
#[test]
fn stacks_of_workers_are_one() {
    let Some(path) = target("spawn") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let script = "u:spawn:leaf { @[ustack(2)] = count() }";
    let (report, answer) = during(&["-f", "json", "--follow", "-p", &pid, "-e", script], || program.ask("fork 25"));
    assert_eq!(answer, 25);
    let stdout = &report.0.stdout;
    assert_eq!(stdout.matches("leaf+0").count(), 2, "{stdout}");
    assert!(stdout.contains("\": 25,") && stdout.contains("\": 625}"), "{stdout}");
    program.finish().ok();
}

/// A server whose workers load a library themselves, as their parent does later, each at a place of
/// its own.
#[test]
fn libraries_of_forked_children() {
    let program = "import ctypes, os, sys
def work(n):
    z = ctypes.CDLL('libz.so.1')
    for i in range(n): z.crc32(0, b'abc', 3)
print('ready', flush=True)
sys.stdin.readline()
pids = []
for n in range(1, 6):
    pid = os.fork()
    if pid == 0:
        os.getppid()
        if n == 3: ctypes.CDLL('libbz2.so.1.0')
        work(n * 10)
        os.getppid()
        if n == 5:
            grandchild = os.fork()
            work(7)
            if grandchild == 0: os._exit(0)
            os.waitpid(grandchild, 0)
        os._exit(0)
    pids.append(pid)
first = sum(os.waitpid(pid, 0)[1] for pid in pids[:2])
work(1000)
print(first + sum(os.waitpid(pid, 0)[1] for pid in pids[2:]), flush=True)
sys.stdin.readline()";
    let mut server = Program::start(Command::new("/usr/bin/python3").args(["-c", program]));
    let pid = server.pid().to_string();
    let script = "u:libz:crc32 { @sums = count() } u:libc:getppid { @parents = count() }";
    let (report, answer) = during(&["-f", "json", "--follow", "-p", &pid, "-e", script], || server.ask("go"));
    assert_eq!(answer, 0, "{}", report.0);
    let sums = 10 + 20 + 30 + 40 + 50 + 2 * 7 + 1000;
    let has = |line: &str| report.0.stdout.contains(line);
    assert!(has(&format!("{{\"@sums\": {sums}}}")) && has("{\"@parents\": 10}"), "{}", report.0);
    server.finish().ok();
}

/// Without `--follow` there was no room for the probes of a library that comes later.
#[test]
fn libraries_that_come_later_have_room() {
    let program = "import ctypes, sys
print('ready', flush=True)
sys.stdin.readline()
ctypes.CDLL('libbz2.so.1.0').BZ2_bzlibVersion()
print(1, flush=True)
sys.stdin.readline()";
    let mut server = Program::start(Command::new("/usr/bin/python3").args(["-c", program]));
    let pid = server.pid().to_string();
    let script = "config = { missing_probes = \"warn\" }
        u:libc:getppid { @parents = count() } u:libbz2:BZ2_bzlibVersion { @late = count() }";
    let (report, _) = during(&["-f", "json", "-p", &pid, "-e", script], || server.ask("go"));
    assert!(report.0.stdout.contains("{\"@late\": 1}"), "{}", report.0);
    server.finish().ok();
}

/// They are clean when the session ends, and go on.
#[test]
fn children_with_libraries_of_their_own_are_clean() {
    let program = "import ctypes, os, signal, sys
there, done = os.pipe()
print('ready', flush=True)
sys.stdin.readline()
pid = os.fork()
if pid == 0:
    z = ctypes.CDLL('libz.so.1')
    z.crc32(0, b'abc', 3)
    os.write(done, b'1')
    while True: z.crc32(0, b'abc', 3)
os.read(there, 1)
print(pid, flush=True)
sys.stdin.readline()
os.kill(pid, 9)";
    let mut server = Program::start(Command::new("/usr/bin/python3").args(["-c", program]));
    let before = Snapshot::of(server.pid());
    let pid = server.pid().to_string();
    let (report, child) = during(&["funclatency", "--follow", "-p", &pid, "libz:crc32"], || {
        let child = server.ask("go");
        std::thread::sleep(std::time::Duration::from_millis(300));
        child
    });
    assert!(report.latencies() > 1, "{}", report.0);
    let maps = std::fs::read_to_string(format!("/proc/{child}/maps")).expect("the child is there");
    assert!(!maps.contains("sidestep"), "{maps}");
    // What is at the function now is what is in the file.
    let again = run(&mut sidestep(&["funccount", "-d", "0.3", "-p", &child.to_string(), "libz:crc32"]), LIMIT).ok();
    assert!(again.stdout.contains("crc32"), "{again}");
    before.assert_same(&Snapshot::of(server.pid()));
    server.finish().ok();
}

/// Addresses of two processes are not one allocation.
#[test]
fn leaks_are_those_of_each_process() {
    let Some(path) = target("alike-left") else { return };
    let path = path.to_str().expect("UTF-8");
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    // It has a `malloc` of its own.
    let args = ["memleak", "-O", path, "-i", "1000", "-o", "0", "-T", "100", "--follow", "-p", &pid];
    let (report, answer) = during(&args, || program.ask("inherits 50"));
    assert_eq!(answer, 1, "{}", report.0);
    let report = report.0.stdout;
    for (function, bytes) in [("before", 5000), ("in_child", 3000), ("in_parent", 4000)] {
        let head = format!("\t{bytes} bytes in 50 allocations from stack\n");
        let frames = report.split(&head).nth(1).unwrap_or_default().lines().take(2).collect::<String>();
        assert!(frames.contains(function), "{function}: {report}");
    }
    program.finish().ok();
}

/// wget is a program of GnuTLS.
#[test]
fn plain_text_of_gnutls() {
    if !have(&["wget", "openssl"]) {
        return;
    }
    serve_page(|url, page, _| {
        let (output, report) = with_command(
            &["sslsniff", "-f", "json", "--max-buffer-size", "16384"],
            &["/usr/bin/wget", "-q", "--no-check-certificate", "-O", "-", url],
        );
        assert_eq!(output.ok().stdout, page);
        let report = report.0.stdout;
        let lens = |name: &str| -> u64 {
            let lines = report.lines().filter(|line| line.contains(name));
            lines.flat_map(|line| numbers(line, "len")).sum()
        };
        // The head of the answer ends with an empty line.
        let head = lens("READ/RECV") - page.len() as u64;
        assert!((20..200).contains(&head), "{head}: {report}");
        assert!(report.contains("GET /page HTTP/1.1"), "{report}");
        assert!(lens("WRITE/SEND") > 40, "{report}");
        assert!(report.contains("700: plain text"), "{report}");
    });
}

/// What the processes of a session share was taken for something that a controller had left:
/// whoever came next unmapped it in the second process, which crashed at its next hit.
#[test]
fn another_session_unmapped_what_the_processes_of_one_share() {
    let Some(path) = target("counts") else { return };
    let mut programs = [(); 2].map(|()| Program::start(&mut Command::new(&path)));
    let before = [0, 1].map(|i: usize| Snapshot::of(programs[i].pid()));
    let both = pids(&programs);
    let tracing = Tracing::start(&["funccount", "-p", &both, "leaf"]);
    for program in &mut programs {
        let pid = program.pid().to_string();
        let (report, sum) = during(&["funccount", "-p", &pid, "leaf"], || program.ask("work 10"));
        assert_eq!(sum, 145);
        report.assert_count("leaf", 10);
        let refused = run(&mut sidestep(&["detach", "-p", &pid]), LIMIT);
        assert!(refused.stderr.contains("is probed by process"), "{refused}");
        assert_eq!(program.ask("work 10"), 145);
    }
    tracing.stop().assert_count("leaf", 40);
    for (program, before) in programs.iter().zip(&before) {
        before.assert_same(&Snapshot::of(program.pid()));
    }
    programs.into_iter().for_each(|program| drop(program.finish().ok()));
}
