//! `sidestep status`: what a process carries, as others see it: symbols as nm has them, counts as
//! the program and the tool have them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use sidestep_tests::build::installed;
use sidestep_tests::process::{LIMIT, Output, Program, Running, eventually, run};
use sidestep_tests::tool::{Tracing, path, sidestep};
use sidestep_tests::{Snapshot, skip, target};

/// A line of `sidestep status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub address: u64,
    pub kind: String,
    pub symbol: String,
    object: String,
    pub state: String,
    pub hits: u64,
    pub missed: u64,
}

impl Line {
    fn parse(text: &str) -> Option<Line> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (state, counts) = match words.get(4)? {
            state if state.starts_with('[') => (*state, words.get(5..)?),
            _ => ("", words.get(4..)?),
        };
        let [hits, missed, _share] = counts else { return None };
        Some(Line {
            address: u64::from_str_radix(words[0].strip_prefix("0x")?, 16).ok()?,
            kind: words[1].to_owned(),
            symbol: words[2].to_owned(),
            object: words[3].to_owned(),
            state: state.to_owned(),
            hits: hits.parse().ok()?,
            missed: missed.parse().ok()?,
        })
    }
}

/// The lines of `sidestep status -p PID ARGS`, and the last one on stderr.
#[track_caller]
pub fn status(pid: &str, args: &[&str]) -> (Vec<Line>, String) {
    let output = run(&mut sidestep(&[&["status", "-p", pid], args].concat()), LIMIT).ok();
    let line = |line: &str| Line::parse(line).unwrap_or_else(|| panic!("{line:?} of {output}"));
    (output.stdout.lines().map(line).collect(), output.stderr.trim_end().to_owned())
}

/// Asserts one line on stderr that contains all of `words`, nothing on stdout, exit code 1.
#[track_caller]
pub fn refused(args: &[&str], words: &[&str]) {
    assert_refused(&run(&mut sidestep(args), LIMIT), words);
}

#[track_caller]
fn assert_refused(output: &Output, words: &[&str]) {
    assert_eq!((output.code(), output.stdout.as_str()), (1, ""), "{output}");
    assert_eq!(output.stderr.lines().count(), 1, "not one line: {output}");
    for word in words {
        assert!(output.stderr.contains(word), "no {word:?}: {output}");
    }
}

/// Run-time address of a symbol of the main program, by nm and the kernel.
fn address_of(pid: i32, program: &Path, symbol: &str) -> u64 {
    let nm = run(Command::new("nm").arg(program), LIMIT).ok().stdout;
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
    let words = nm.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let value = words.into_iter().find(|words| words.last() == Some(&symbol)).map(|words| hex(words[0]));
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let name = program.to_str().expect("UTF-8");
    let base = maps.lines().find(|line| line.ends_with(name)).and_then(|line| line.split('-').next()).map(hex);
    let value = value.unwrap_or_else(|| panic!("no {symbol} in {nm}"));
    // Programs that are not position-independent are linked at their addresses.
    if value > 0x40_0000 { value } else { value + base.expect("it is mapped") }
}

fn start(name: &str) -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target(name)?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

#[test]
pub fn a_probe_is_where_nm_says_and_counts_what_the_program_did() {
    for (build, mode, state) in [
        ("counts", None, "[OPTIMIZED]"),
        ("counts-no-pie", None, "[OPTIMIZED]"),
        ("counts-static", None, "[OPTIMIZED]"),
        ("counts", Some("--no-optimize"), ""),
    ] {
        let (Some(file), Some((mut program, pid))) = (target(build), start(build)) else { return };
        let args: Vec<&str> = ["funccount", "-p", &pid, "leaf"].into_iter().chain(mode).collect();
        let tracing = Tracing::start(&args);
        program.ask("work 1000");
        program.ask("threads 10");
        let (lines, summary) = status(&pid, &[]);
        let expected = Line {
            address: address_of(program.pid(), &file, "leaf"),
            kind: "p".to_owned(),
            symbol: "leaf+0x0".to_owned(),
            object: format!("[{build}]"),
            state: state.to_owned(),
            hits: 1640,
            missed: 0,
        };
        assert_eq!(lines, [expected], "{build}");
        assert!(summary.starts_with("sidestep: 1 probe at 1 site, "), "{summary}");
        let (all, _) = status(&pid, &["-v"]);
        let own = all.iter().filter(|line| line.kind == "-").count();
        assert_eq!(all.len(), own + 1, "{all:?}");
        assert!(own > 0, "what traps need, by which sites are switched: {all:?}");
        let controller = format!("controlled by process {}", tracing.pid());
        assert!(summary.ends_with(&controller), "{summary}");
        tracing.stop().assert_count("leaf", 1640);
        refused(&["status", "-p", &pid], &[&pid, "carries no probes"]);
        program.finish().ok();
    }
}

#[test]
pub fn probes_of_one_place_are_in_order_of_registration() {
    let Some((mut program, pid)) = start("counts") else { return };
    let (entry, exit) = ("leaf \"%d\", arg0", "r:leaf \"%d\", retval");
    for (specs, kinds) in [([entry, exit], ["p", "r"]), ([exit, entry], ["r", "p"])] {
        let tracing = Tracing::start(&["trace", "-p", &pid, specs[0], "seven", specs[1]]);
        program.ask("work 7");
        program.ask("seven 3");
        let (lines, summary) = status(&pid, &[]);
        assert!(lines.windows(2).all(|pair| pair[0].address <= pair[1].address), "{lines:?}");
        let of = |symbol: &str| lines.iter().filter(|line| line.symbol == symbol).collect::<Vec<_>>();
        assert_eq!(
            of("leaf+0x0").iter().map(|line| (&*line.kind, line.hits)).collect::<Vec<_>>(),
            kinds.map(|k| (k, 7))
        );
        assert_eq!(of("seven+0x0").iter().map(|line| (&*line.kind, line.hits)).collect::<Vec<_>>(), [("p", 3)]);
        // Where the exit has a site of its own, there are three.
        assert!(summary.starts_with("sidestep: 3 probes at "), "{summary}");
        tracing.stop();
    }
    program.finish().ok();
}

#[test]
pub fn instructions_returns_and_usdt_probes_are_told_apart() {
    let (Some((mut program, pid)), Some(object)) = (start("usdt"), target("usdt.bpf.o")) else { return };
    let object = object.to_str().expect("UTF-8");
    let tracing = Tracing::start(&["bpf", object, "-p", &pid, "-a", "on_twice=usdt:usdt:demo:twice"]);
    program.ask("twice 10");
    let (lines, _) = status(&pid, &[]);
    let twice: Vec<_> = lines.iter().filter(|line| line.symbol.starts_with("twice+0x")).collect();
    assert_eq!(twice.iter().map(|line| (&*line.kind, line.hits)).collect::<Vec<_>>(), [("u", 10), ("u", 10)]);
    tracing.stop();
    let tracing = Tracing::start(&["funclatency", "-p", &pid, "twice"]);
    program.ask("twice 4");
    let (lines, _) = status(&pid, &[]);
    assert_eq!((lines.len(), &*lines[0].kind, lines[0].hits), (1, "r", 4), "{lines:?}");
    tracing.stop();
    program.finish().ok();
}

#[test]
pub fn json_says_the_same() {
    let Some((mut program, pid)) = start("counts") else { return };
    let tracing = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
    program.ask("work 5");
    let (lines, _) = status(&pid, &[]);
    let output = run(&mut sidestep(&["status", "-f", "json", "-p", &pid]), LIMIT).ok();
    let json: Vec<&str> = output.stdout.lines().collect();
    assert_eq!((json.len(), output.stderr.as_str()), (2, ""), "{output}");
    let probe =
        format!("\"address\": \"{:#x}\", \"kind\": \"p\", \"symbol\": \"leaf\", \"offset\": 0", lines[0].address);
    assert!(json[0].contains(&probe), "{output}");
    let state = "\"state\": \"enabled\", \"optimized\": true, \"blocked_by\": [], \"hits\": 5, \"missed\": 0}}";
    assert!(json[0].ends_with(state), "{output}");
    assert!(json[1].contains(&format!("\"controller\": {}, \"alive\": true, \"sites\": 1", tracing.pid())), "{output}");
    tracing.stop();
    program.finish().ok();
}

#[test]
pub fn a_killed_controllers_probes_are_listed() {
    let Some((mut program, pid)) = start("counts") else { return };
    let before = Snapshot::of(program.pid());
    let tracing = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
    let controller = tracing.pid();
    tracing.kill();
    program.ask("work 12");
    let (lines, summary) = status(&pid, &[]);
    assert_eq!(lines.iter().map(|line| line.hits).collect::<Vec<_>>(), [12]);
    assert!(summary.contains(&format!("process {controller}, which controlled them, is gone")), "{summary}");
    Tracing::start(&["funccount", "-p", &pid, "fib"]).stop();
    refused(&["status", "-p", &pid], &["carries no probes"]);
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// Looking needs no tracing; switching does.
#[test]
pub fn a_process_under_a_debugger_can_be_looked_at() {
    if !installed("strace") {
        return skip("no strace");
    }
    let Some((mut program, pid)) = start("counts") else { return };
    let tracing = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
    let strace = Running::start(Command::new("strace").args(["-f", "-o", "/dev/null", "-p", &pid]));
    let file = format!("/proc/{pid}/status");
    let traced = || std::fs::read_to_string(&file).is_ok_and(|s| !s.contains("TracerPid:\t0\n"));
    assert!(eventually(LIMIT, traced), "strace does not attach");
    program.ask("work 3");
    assert_eq!(status(&pid, &[]).0[0].hits, 3);
    refused(&["disable", "-p", &pid], &["strace"]);
    drop(strace);
    assert!(eventually(LIMIT, || !traced()), "strace does not let go");
    tracing.stop().assert_count("leaf", 3);
    program.finish().ok();
}

#[test]
pub fn what_carries_no_session_is_said() {
    let Some((program, pid)) = start("counts") else { return };
    let before = Snapshot::of(program.pid());
    for command in ["status", "disable", "enable"] {
        refused(&[command, "-p", &pid], &[&pid, "carries no probes"]);
        refused(&[command, "-p", "4194304"], &["no process with pid 4194304"]);
    }
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
    let (Some((mut program, pid)), Some(object)) = (start("usdt"), target("usdt.bpf.o")) else { return };
    let object = object.to_str().expect("UTF-8");
    let tracing = Tracing::start(&["bpf", object, "-p", &pid, "-a", "on_twice=usdt:usdt:demo:twice"]);
    let child = program.ask("stay 0");
    for command in ["status", "disable", "enable"] {
        refused(&[command, "-p", &child.to_string()], &[&format!("was forked from process {pid}")]);
    }
    tracing.stop();
    program.ask(&format!("reap {child}"));
    program.finish().ok();
}

/// As `nobody`, on a process of root.
#[test]
pub fn who_may_not_trace_a_process_may_not_look_at_its_probes() {
    let Some((mut program, pid)) = start("counts") else { return };
    if !std::fs::read_to_string("/proc/self/status").is_ok_and(|s| s.contains("\nUid:\t0\t0")) || !installed("setpriv")
    {
        return skip("not root, or no setpriv");
    }
    let tracing = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
    // The checkout may lie where nobody cannot go.
    let copy = std::env::temp_dir().join(format!("sidestep-status-{}", std::process::id()));
    std::fs::copy(path(), &copy).expect("/tmp is writable");
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).expect("own file");
    for command in ["status", "disable", "enable"] {
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).current_dir("/");
        assert_refused(&run(nobody.args([command, "-p", &pid]), LIMIT), &["not permitted", "root"]);
    }
    std::fs::remove_file(copy).expect("own file");
    program.ask("work 3");
    tracing.stop().assert_count("leaf", 3);
    program.finish().ok();
}
