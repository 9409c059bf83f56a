//! What is done to a program.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::controller::{Begun, Controller};
use super::patience::HANGS;
use super::{Failure, Scene, Wrong};
use crate::build::{installed, target};
use crate::process::{LIMIT, Program, eventually, run};
use crate::tool::{Report, path, sidestep};

/// One of them.
pub(super) struct Operation {
    pub name: &'static str,
    pub run: fn(&mut Scene) -> Result<(), Failure>,
}

/// All of them, which are drawn with the same probability.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation { name: "count under load", run: count_under_load },
    Operation { name: "count alone", run: count_alone },
    Operation { name: "random set", run: random_set },
    Operation { name: "any instruction", run: any_instruction },
    Operation { name: "static probes", run: static_probes },
    Operation { name: "latencies", run: latencies },
    Operation { name: "switched", run: switched },
    Operation { name: "two sessions", run: two_sessions },
    Operation { name: "killed at any moment", run: killed },
    Operation { name: "killed at a system call", run: killed_at_a_call },
    Operation { name: "limits", run: limits },
    Operation { name: "scribbler", run: scribbler },
];

/// Flags that change how probes are put, but not what they see.
const WAYS: [&[&str]; 6] = [&[], &[], &["--live"], &["--no-optimize"], &["--follow"], &["--max-hits", "1000000000"]];

/// What probes do; each takes another way through the agent.
const HANDLERS: [&str; 8] = [
    "@ = count();",
    "@[probe] = count();",
    "@[tid] = count(); @h = hist(nsecs % 1000);",
    "@s[ustack(3)] = count();",
    "@last[tid] = arg0; @sum = sum(arg1);",
    "@t[str(arg0, 16)] = count();",
    "if (tid % 2 == 0) { @even = count() } else { @odd = count() }",
    "@n++; if (@n % 512 == 0) { printf(\"%d\\n\", tid) }",
];

/// Names that need no quotes.
fn is_plain(name: &&String) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Some functions of an object of the program.
fn functions(scene: &mut Scene, most: usize) -> Option<(&'static str, Vec<String>)> {
    let objects = scene.target.objects();
    let object = scene.rng.of(objects);
    let all = scene.target.functions(object).clone();
    let plain: Vec<&String> = all.iter().filter(is_plain).collect();
    if plain.is_empty() {
        return None;
    }
    // Many functions of a large object take long to be planned.
    let most = if all.len() > 20_000 { most.min(20) } else { most };
    let count = 1 + scene.rng.below(most);
    let mut some: Vec<String> = (0..count).map(|_| plain[scene.rng.below(plain.len())].clone()).collect();
    some.sort_unstable();
    some.dedup();
    Some((object, some))
}

/// A script with one handler at many places.
fn script(scene: &mut Scene, points: &[String]) -> String {
    format!("{} {{ {} }}", points.join(", "), scene.rng.of(&HANDLERS))
}

/// Attaches with a script, lets the program work, ends.
fn scripted(scene: &mut Scene, points: &[String]) -> Result<(), Failure> {
    let (text, way, pid) = (script(scene, points), scene.rng.of(&WAYS), scene.target.pid().to_string());
    let args = [way, &["-f", "json", "-p", &pid, "-e", &text]].concat();
    let (begun, _) = Controller::start(scene, &args).begin(scene, false)?;
    let Begun::Attached(controller) = begun else { return Ok(()) };
    let amount = 1 + scene.rng.below(4) as u64;
    scene.work(amount)?;
    controller.stop(scene).map(drop)
}

fn random_set(scene: &mut Scene) -> Result<(), Failure> {
    let Some((object, names)) = functions(scene, 60) else { return Ok(()) };
    let mut point = |name: &String| format!("{}:{object}:{name}", scene.rng.of(&["u", "u", "ur"]));
    let points: Vec<String> = names.iter().map(&mut point).collect();
    scripted(scene, &points)
}

fn any_instruction(scene: &mut Scene) -> Result<(), Failure> {
    let Some((object, names)) = functions(scene, 8) else { return Ok(()) };
    let points: Vec<String> = names.iter().map(|name| format!("u:{object}:{name}+*")).collect();
    scripted(scene, &points)
}

fn static_probes(scene: &mut Scene) -> Result<(), Failure> {
    let object = scene.rng.of(scene.target.objects());
    scripted(scene, &[format!("usdt:{object}:*:*")])
}

fn latencies(scene: &mut Scene) -> Result<(), Failure> {
    let Some((object, names)) = functions(scene, 30) else { return Ok(()) };
    let (pattern, pid) = (format!("{object}:^({})$", names.join("|")), scene.target.pid().to_string());
    let args = [&["funclatency"][..], scene.rng.of(&WAYS), &["-p", &pid, "-r", &pattern]].concat();
    let (begun, _) = Controller::start(scene, &args).begin(scene, false)?;
    let Begun::Attached(controller) = begun else { return Ok(()) };
    scene.work(2)?;
    controller.stop(scene).map(drop)
}

/// Counts the function whose calls the program knows. Those that it makes while the tool attaches
/// may be seen or not.
fn count(scene: &mut Scene, idle: bool) -> Result<(), Failure> {
    let Some(function) = scene.target.counted() else { return scripted(scene, &["u:libc:malloc".to_owned()]) };
    let pid = scene.target.pid().to_string();
    let args = [&["funccount"][..], scene.rng.of(&WAYS), &["-p", &pid, function]].concat();
    let (begun, before) = Controller::start(scene, &args).begin(scene, idle)?;
    let Begun::Attached(controller) = begun else {
        return Err(Failure::new(Wrong::Count, format!("{function} was not probed")));
    };
    let amount = 1 + scene.rng.below(5) as u64;
    let calls = scene.work(amount)?;
    let report = Report(controller.stop(scene)?);
    let (seen, missed) = (report.counts().values().sum::<u64>(), report.missed());
    scene.round.counts += 1;
    match (calls..=calls + before).contains(&(seen + missed)) {
        true => Ok(()),
        false => {
            let what =
                format!("{function}: {calls} calls, {before} before, {seen} seen, {missed} missed: {}", report.0);
            Err(Failure::new(Wrong::Count, what))
        }
    }
}

fn count_under_load(scene: &mut Scene) -> Result<(), Failure> {
    count(scene, false)
}

pub(super) fn count_alone(scene: &mut Scene) -> Result<(), Failure> {
    count(scene, true)
}

/// Probes are disabled, enabled, made traps and jumps.
fn switched(scene: &mut Scene) -> Result<(), Failure> {
    let Some((object, names)) = functions(scene, 40) else { return Ok(()) };
    let points: Vec<String> =
        names.iter().map(|name| format!("u:{object}:{name}{}", scene.rng.of(&["", "+*"]))).collect();
    let (text, pid) = (script(scene, &points), scene.target.pid().to_string());
    let (begun, _) = Controller::start(scene, &["-f", "json", "-p", &pid, "-e", &text]).begin(scene, false)?;
    let Begun::Attached(controller) = begun else { return Ok(()) };
    for _ in 0..1 + scene.rng.below(4) {
        let command: &[&str] =
            scene.rng.of(&[&["disable"][..], &["enable"], &["optimize", "off"], &["optimize", "on"], &["status"]]);
        let switch = Controller::start(scene, &[command, &["-p", &pid]].concat());
        scene.work(1)?;
        switch.end(scene)?;
    }
    scene.work(1)?;
    controller.stop(scene).map(drop)
}

/// Two sessions with some functions in common come and go in any order; one may be killed.
fn two_sessions(scene: &mut Scene) -> Result<(), Failure> {
    let Some((object, names)) = functions(scene, 40) else { return Ok(()) };
    let pid = scene.target.pid().to_string();
    let mut controllers = Vec::new();
    for _ in 0..2 {
        let some: Vec<&String> = names.iter().filter(|_| !scene.rng.one_in(3)).collect();
        let points: Vec<String> =
            some.iter().map(|name| format!("{}:{object}:{name}", scene.rng.of(&["u", "ur"]))).collect();
        if points.is_empty() {
            continue;
        }
        let text = script(scene, &points);
        let (begun, _) = Controller::start(scene, &["-f", "json", "-p", &pid, "-e", &text]).begin(scene, false)?;
        if let Begun::Attached(controller) = begun {
            controllers.push(controller);
        }
    }
    if scene.rng.one_in(2) {
        controllers.reverse();
    }
    for controller in controllers {
        scene.work(1)?;
        match scene.rng.one_in(4) {
            true => controller.kill(scene),
            false => drop(controller.stop(scene)?),
        }
    }
    Ok(())
}

/// SIGKILL while the tool attaches, traces or detaches.
fn killed(scene: &mut Scene) -> Result<(), Failure> {
    let Some((object, names)) = functions(scene, 40) else { return Ok(()) };
    let (pattern, pid) = (format!("{object}:^({})$", names.join("|")), scene.target.pid().to_string());
    let tool = scene.rng.of(&["funccount", "funclatency"]);
    let seconds = scene.rng.of(&["0.05", "0.3"]);
    let args = [&[tool][..], scene.rng.of(&WAYS), &["-d", seconds, "-p", &pid, "-r", &pattern]].concat();
    let delay = Duration::from_micros(scene.rng.number() % 900_000);
    let (controller, start) = (Controller::start(scene, &args), Instant::now());
    while start.elapsed() < delay {
        scene.work(1)?;
    }
    controller.kill(scene);
    Ok(())
}

/// Calls at which a controller is killed: those by which it reads, changes and waits.
const CALLS: [&str; 8] = ["ptrace", "pwrite64", "pread64", "openat", "mmap", "wait4", "process_vm_readv", "close"];

fn killed_at_a_call(scene: &mut Scene) -> Result<(), Failure> {
    let Some((object, names)) = functions(scene, 20) else { return Ok(()) };
    if !installed("strace") {
        return killed(scene);
    }
    let (pattern, pid) = (format!("{object}:^({})$", names.join("|")), scene.target.pid().to_string());
    let call = scene.rng.of(&CALLS);
    let number = 1 + scene.rng.number() % (1 << (1 + scene.rng.below(12)));
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
    command.args(["-e", &format!("inject={call}:signal=KILL:when={number}")]).arg(path());
    command.args(["funclatency"]).args(scene.rng.of(&WAYS)).args(["-d", "0.05", "-p", &pid, "-r", &pattern]);
    let mut controller = Controller::of(scene, command);
    let start = Instant::now();
    while controller.is_running() && start.elapsed() < HANGS {
        scene.work(1)?;
    }
    let still = controller.is_running();
    controller.kill(scene);
    match still {
        true => Err(Failure::new(Wrong::Tool, format!("no end after {HANGS:?}"))),
        false => Ok(()),
    }
}

/// A number of `/proc/PID/status`, in KiB.
fn kilobytes(pid: i32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":")?.trim().strip_suffix(" kB")?.parse().ok())
}

/// A limit of a process, as `prlimit` takes it.
fn limit_of(pid: i32, name: &str) -> Option<String> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next().map(str::to_owned)
}

/// A program at rest that may open or map hardly anything more, or a tool that may not.
fn limits(scene: &mut Scene) -> Result<(), Failure> {
    let pid = scene.target.pid();
    let Some((object, names)) = functions(scene, 20) else { return Ok(()) };
    let (pattern, text) = (format!("{object}:^({})$", names.join("|")), pid.to_string());
    let args = ["funclatency", "-d", "0.05", "-p", &text, "-r", &pattern];
    let (flag, name, limit) = match scene.rng.below(3) {
        0 if scene.target.may_lack_memory() => {
            let now = kilobytes(pid, "VmSize").unwrap_or(0) * 1024;
            ("--as", "Max address space", now + scene.rng.number() % (16 << 20))
        }
        0 | 1 => {
            let now = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
            ("--nofile", "Max open files", (now + scene.rng.below(4)) as u64)
        }
        _ => {
            let mut command = Command::new("prlimit");
            command.arg(format!("--nofile={}", 4 + scene.rng.below(20))).arg(path()).args(args);
            return Controller::of(scene, command).end(scene).map(drop);
        }
    };
    let set = |to: &str| run(Command::new("prlimit").args([format!("--pid={pid}"), format!("{flag}={to}:")]), LIMIT);
    let before = limit_of(pid, name).unwrap_or_else(|| "unlimited".to_owned());
    let allowed = set(&limit.to_string());
    // Not everybody may limit a process of another user.
    if allowed.code() != 0 && !allowed.stderr.contains("not permitted") {
        return Err(Failure::new(Wrong::Start, allowed.to_string()));
    }
    scene.log(&format!("{flag}={limit}"));
    let done = Controller::start(scene, &args).end(scene);
    if allowed.code() == 0 {
        set(&before).ok();
    }
    done.map(drop)
}

/// What a hostile program overwrites, and commands that read it: `F` is a function of it.
const PARTS: [&str; 10] = ["header", "journal", "list", "common", "desc", "slots", "maps", "rings", "all", "all"];
const READERS: [&[&str]; 6] = [
    &[
        "-e",
        "u:F { @[arg0] = count(); @h = hist(arg0); @s[ustack] = count(); @last[tid] = arg0; printf(\"%d %s %s\\n\", arg0, str(arg1), ustack(3)) } interval:ms:50 { print(@); clear(@h); for ($kv : @last) { @seen = count() } }",
    ],
    &["funccount", "-i", "1", "F"],
    &["funccount", "--follow", "F"],
    &["funclatency", "F"],
    &["trace", "F \"%d %s\", arg0, arg1"],
    &["stackcount", "F"],
];
/// Address space of the tool there.
const MOST: u64 = 8 << 30;

/// A program that overwrites what it shares with the tool.
fn scribbler(scene: &mut Scene) -> Result<(), Failure> {
    let Some(hostile) = target("hostile") else { return Ok(()) };
    let (part, seed) = (scene.rng.of(&PARTS), (scene.rng.number() >> 40).to_string());
    let mut program = Program::start(Command::new(&hostile).args([part, &seed]));
    let (pid, function) = (program.pid().to_string(), format!("{}:worked", hostile.display()));
    let reader: Vec<String> = scene.rng.of(&READERS).iter().map(|word| word.replace('F', &function)).collect();
    let at = usize::from(!reader[0].starts_with('-'));
    let mut args: Vec<&str> = reader.iter().map(String::as_str).collect();
    args.splice(at..at, ["-p", &pid]);
    let tool = sidestep(&args);
    let mut command = Command::new("prlimit");
    command.arg(format!("--as={MOST}")).arg(tool.get_program()).args(tool.get_args());
    scene.log(&format!("hostile {part} {seed}"));
    let mut controller = Controller::of(scene, command);
    let end = Instant::now() + Duration::from_millis(300 + scene.rng.number() % 1200);
    while Instant::now() < end && controller.is_running() {
        sleep(Duration::from_millis(5));
    }
    // On a busy machine it may not even have begun.
    eventually(LIMIT, || !controller.is_running() || controller.takes_interrupts());
    controller.signal(libc::SIGINT);
    controller.end(scene)?;
    match program.exit_code() {
        None => Ok(()),
        Some(code) => Err(Failure::new(Wrong::Start, format!("the hostile program has ended by itself: {code}"))),
    }
}
