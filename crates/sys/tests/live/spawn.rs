//! Starting commands.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use sidestep_isa::Va;
use sidestep_sys::{ExitStatus, SpawnError, Spawned, StartupEvent, spawn};

use crate::target::{BITS32, Build, build};

fn start(argv: &[&str]) -> Result<Spawned, SpawnError> {
    let argv: Vec<OsString> = argv.iter().map(OsString::from).collect();
    spawn(&argv, std::env::vars_os())
}

/// Entry point as readelf prints it.
fn elf_entry(path: &Path) -> u64 {
    let out = Command::new("readelf").arg("-h").arg(path).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let line = text.lines().find(|l| l.contains("Entry point address")).unwrap();
    u64::from_str_radix(line.rsplit_once("0x").unwrap().1.trim(), 16).unwrap()
}

/// Runs the startup with a call at each event; the names of the code seen, in order.
fn follow(spawned: &mut Spawned) -> (Vec<String>, StartupEvent) {
    let mut seen = Vec::new();
    loop {
        let event = spawned.next_mapping_change().unwrap();
        if event != StartupEvent::Mapped {
            return (seen, event);
        }
        let pid = spawned.process().pid() as u64;
        assert_eq!(spawned.stopped().call(libc::SYS_getpid, [0; 6]).unwrap(), pid);
        for m in spawned.process().maps().unwrap() {
            let name = m.name.to_string_lossy().into_owned();
            if m.exec && !seen.contains(&name) {
                seen.push(name);
            }
        }
    }
}

#[test]
fn libraries_are_seen_one_by_one_and_then_the_entry_point() {
    let path = build(Build::Worker);
    let mut spawned = start(&[path.to_str().unwrap(), "sums", "0"]).unwrap();
    let stack_before = spawned.stopped().threads()[0].regs.sp();
    let (seen, event) = follow(&mut spawned);
    assert_eq!(event, StartupEvent::Entry);
    assert!(seen.iter().any(|n| n.contains("libc.so")), "{seen:?}");
    let process = spawned.process().clone();
    let base = process.maps().unwrap().iter().find(|m| m.name == path.as_os_str()).unwrap().start;
    let regs = spawned.stopped().threads()[0].regs;
    assert_eq!(regs.ip(), base.offset(elf_entry(&path) as i64));
    assert_eq!(regs.sp(), stack_before);
    let text = String::from_utf8(process.maps_text().unwrap()).unwrap();
    assert!(!text.lines().any(|l| l.contains("r-xp 00000000 00:00 0") && l.trim_end().ends_with(" 0")), "{text}");
    let (process, mut child) = spawned.into_process();
    assert_eq!(process.pid(), child.pid());
    // It reads our standard input; what it does with it does not matter here.
    let _ = Command::new("kill").arg("-9").arg(child.pid().to_string()).status().unwrap();
    let status = child.wait().unwrap();
    assert!(matches!(status, ExitStatus::Signal(libc::SIGKILL) | ExitStatus::Code(0)), "{status:?}");
}

#[test]
fn a_static_program_is_at_its_entry_at_once() {
    let foreign: &[Build] = if BITS32 { &[] } else { &[Build::Musl, Build::Go] };
    for what in [Build::Static, Build::Tiny].iter().chain(foreign).copied() {
        let path = build(what);
        let mut spawned = start(&[path.to_str().unwrap(), "sums", "0"]).unwrap();
        let regs = spawned.stopped().threads()[0].regs;
        assert_eq!(regs.ip(), Va(elf_entry(&path)), "{what:?}");
        assert_eq!(spawned.next_mapping_change().unwrap(), StartupEvent::Entry);
        assert_eq!(spawned.stopped().threads()[0].regs.ip(), regs.ip());
        let (_, mut child) = spawned.into_process();
        let _ = Command::new("kill").arg("-9").arg(child.pid().to_string()).status().unwrap();
        child.wait().unwrap();
    }
}

#[cfg(target_pointer_width = "64")] // what they start is the system's
#[test]
fn exit_statuses_are_passed_on() {
    for (script, want) in [
        ("exit 0", ExitStatus::Code(0)),
        ("exit 77", ExitStatus::Code(77)),
        ("kill -TERM $$", ExitStatus::Signal(libc::SIGTERM)),
        ("kill -SEGV $$", ExitStatus::Signal(libc::SIGSEGV)),
    ] {
        let mut spawned = start(&["sh", "-c", script]).unwrap();
        assert_eq!(follow(&mut spawned).1, StartupEvent::Entry);
        let (process, mut child) = spawned.into_process();
        assert_eq!(child.wait().unwrap(), want);
        assert_eq!(child.try_wait().unwrap(), Some(want));
        assert!(!process.is_alive());
    }
}

#[cfg(target_pointer_width = "64")] // what they start is the system's
#[test]
fn a_script_runs_its_interpreter() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("script");
    std::fs::write(&path, "#!/bin/sh\nexit 5\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let mut spawned = start(&[path.to_str().unwrap()]).unwrap();
    assert_eq!(follow(&mut spawned).1, StartupEvent::Entry);
    assert_eq!(spawned.into_process().1.wait().unwrap(), ExitStatus::Code(5));
}

#[cfg(target_pointer_width = "64")] // what they start is the system's
#[test]
fn a_program_that_cannot_load_its_libraries_ends_in_the_loader() {
    let argv = ["sh".into(), "-c".into(), "exit 0".into()];
    let mut env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    env.push(("LD_BIND_NOW".into(), "1".into()));
    env.push(("LD_AUDIT".into(), "".into()));
    env.push(("LD_TRACE_LOADED_OBJECTS".into(), "1".into()));
    let mut spawned = spawn(&argv, env).unwrap();
    let (_, event) = follow(&mut spawned);
    assert_eq!(event, StartupEvent::Exited(ExitStatus::Code(0)));
    assert_eq!(spawned.into_process().1.wait().unwrap(), ExitStatus::Code(0));
}

#[cfg(target_pointer_width = "64")] // what they start is the system's
#[test]
fn a_command_runs_if_we_lose_interest() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("touched");
    let _ = std::fs::remove_file(&path);
    for steps in 0..3 {
        let script = format!("echo {steps} > {}", path.display());
        let mut spawned = start(&["sh", "-c", &script]).unwrap();
        for _ in 0..steps {
            spawned.next_mapping_change().unwrap();
        }
        assert_eq!(spawned.into_process().1.wait().unwrap(), ExitStatus::Code(0));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{steps}\n"));
    }
}

#[cfg(target_pointer_width = "64")] // what they start is the system's
#[test]
fn signals_are_as_in_a_shell() {
    // Rust programs ignore SIGPIPE themselves; the command must not.
    let mut spawned = start(&["true"]).unwrap();
    assert_eq!(follow(&mut spawned).1, StartupEvent::Entry);
    let status = std::fs::read_to_string(format!("/proc/{}/status", spawned.process().pid())).unwrap();
    let set = |key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    assert_eq!(set("SigBlk:"), 0);
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGPIPE, libc::SIGCHLD, libc::SIGTERM] {
        assert_eq!(set("SigIgn:") >> (signal - 1) & 1, 0, "signal {signal}");
    }
    assert_eq!(spawned.into_process().1.wait().unwrap(), ExitStatus::Code(0));
}

#[test]
fn commands_that_cannot_be_started_are_named() {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = |name: &str, text: &[u8]| {
        let path = tmp.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let e = start(&[&file("garbage", b"\x7fELFgarbage")]).unwrap_err();
    assert!(matches!(e, SpawnError::Format { .. }), "{e}");
    let e = start(&[&file("no-interpreter", b"#!/no/such/interpreter\n")]).unwrap_err();
    assert!(matches!(e, SpawnError::NoInterpreter { .. }), "{e}");
    let e = start(&["no-such-command"]).unwrap_err();
    assert_eq!(e.to_string(), "no-such-command: command not found; check the name and PATH");
    assert!(matches!(start(&[]).unwrap_err(), SpawnError::Empty));
}
