//! Readers that do not read: a full pipe, a stopped terminal. The target is let go of all the same,
//! and so are files that block whoever opens them.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sidestep_tests::build::target_dir;
use sidestep_tests::process::{LIMIT, Program, eventually, kill, run};
use sidestep_tests::tool::sidestep;
use sidestep_tests::{Snapshot, target};

use crate::errors::refused;

/// What a tool does whose output nobody reads.
struct Unread {
    tool: Child,
    /// Open, and never read.
    reader: OwnedFd,
    program: Program,
    before: Snapshot,
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.tool.kill();
        let _ = self.tool.wait();
    }
}

/// Both ends of a pipe whose room is used up.
#[allow(unsafe_code)]
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let mut fds = [0; 2];
    // SAFETY: there is room for both descriptors, which are new and owned by nobody else.
    let (reader, writer) = unsafe {
        assert_eq!(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC), 0);
        libc::fcntl(fds[1], libc::F_SETPIPE_SZ, 4096);
        (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))
    };
    (reader, writer)
}

/// Is something in a pipe?
#[allow(unsafe_code)]
fn is_readable(pipe: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, whose descriptor is open.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

impl Unread {
    /// Attaches with a script that prints at each call. `both`: stderr is the same pipe.
    fn start(args: &[&str], both: bool) -> Option<Unread> {
        Unread::start_with("", args, both)
    }

    /// `more`: blocks of the script.
    fn start_with(more: &str, args: &[&str], both: bool) -> Option<Unread> {
        let path = target("counts")?;
        let mut program = Program::start(&mut Command::new(&path));
        program.ask("work 1");
        let before = Snapshot::of(program.pid());
        let (reader, writer) = full_pipe();
        let pid = program.pid().to_string();
        let script = format!("u:{}:leaf {{ printf(\"%64s\\n\", \"x\") }} {more}", path.display());
        let error = if both { writer.try_clone().expect("a descriptor").into() } else { Stdio::null() };
        let mut all = vec!["-p", &pid, "-e", &script];
        all.extend(args);
        let tool = sidestep(&all).stdout(writer).stderr(error).stdin(Stdio::null()).spawn().expect("starts");
        let unread = Unread { tool, reader, program, before };
        assert!(eventually(LIMIT, || unread.is_attached()));
        Some(unread)
    }

    fn is_attached(&self) -> bool {
        let maps = fs::read(format!("/proc/{}/maps", self.program.pid())).unwrap_or_default();
        maps.windows(14).any(|window| window == b"memfd:sidestep")
    }

    /// Calls until the pipe has no more room, and far beyond that.
    fn fill(&mut self) {
        let mut calls = || {
            self.program.ask("work 1");
            is_readable(&self.reader)
        };
        assert!(eventually(LIMIT, &mut calls), "nothing is printed");
        for _ in 0..20 {
            self.program.ask("work 2000");
        }
    }

    fn assert_let_go(&mut self) {
        assert!(eventually(LIMIT, || !self.is_attached()), "the target is still probed");
        self.before.assert_same_code(&Snapshot::of(self.program.pid()));
        assert_eq!(self.program.ask("work 1"), self.program.ask("work 1"));
    }
}

#[test]
fn a_full_pipe_kept_the_target_attached() {
    for both in [false, true] {
        let Some(mut unread) = Unread::start(&[], both) else { return };
        unread.fill();
        kill(unread.tool.id() as i32, libc::SIGINT);
        unread.assert_let_go();
        // The results wait for their reader, until somebody says that there is none.
        assert!(matches!(unread.tool.try_wait(), Ok(None)));
        std::thread::sleep(Duration::from_millis(200));
        kill(unread.tool.id() as i32, libc::SIGINT);
        let mut ended = || matches!(unread.tool.try_wait(), Ok(Some(_)));
        assert!(eventually(LIMIT, &mut ended), "a second signal did not end it");
    }
}

#[test]
fn results_waited_for_their_reader() {
    let Some(mut unread) = Unread::start(&[], false) else { return };
    unread.fill();
    kill(unread.tool.id() as i32, libc::SIGINT);
    unread.assert_let_go();
    let mut text = String::new();
    let mut file = File::from(unread.reader.try_clone().expect("a descriptor"));
    file.read_to_string(&mut text).expect("readable");
    assert_eq!(unread.tool.wait().expect("a child").code(), Some(0));
    // Whole lines: what was queued, and what was in the rings at the end.
    let lines = text.lines().filter(|line| line.len() == 64 && line.ends_with('x')).count();
    assert!(lines > 1000 && text.lines().all(|line| line.is_empty() || line.len() == 64), "{lines} lines");
}

/// What `-d` of the tools becomes.
#[test]
fn a_time_limit_was_not_kept_while_nobody_read() {
    let end = "interval:s:1 { printf(\"%4096s\", \"x\"); @n++; if (@n == 3) { exit() } }";
    let Some(mut unread) = Unread::start_with(end, &[], false) else { return };
    unread.fill();
    unread.assert_let_go();
}

/// What blocks whoever opens it, and what has no end.
#[test]
fn a_file_without_an_end_was_read() {
    let dir = target_dir().join("test-targets").join(format!("endless.{}", std::process::id()));
    fs::create_dir_all(&dir).expect("target directory is writable");
    let fifo = dir.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let sparse = dir.join("sparse");
    File::create(&sparse).and_then(|file| file.set_len(1 << 40)).expect("writable");
    let elf = dir.join("elf");
    fs::write(&elf, b"\x7fELF\x02\x01\x01\0").expect("writable");
    fs::OpenOptions::new().write(true).open(&elf).and_then(|file| file.set_len(1 << 40)).expect("writable");
    for path in [&fifo, &sparse, &elf] {
        let name = path.to_string_lossy();
        refused(&["list", &format!("{name}:f")], &[&name]);
        refused(&["bpf", &name, "--", "true"], &[&name]);
        refused(&[&*name], &[&name]);
        refused(&["funccount", &format!("{name}:f"), "--", "true"], &[&name]);
    }
    refused(&["bpf", "/dev/zero", "--", "true"], &["/dev/zero"]);
    refused(&["/dev/zero"], &["/dev/zero"]);
    // A file whose name may come from the target.
    let script = format!("BEGIN {{ cat(\"{}\"); exit() }}", fifo.display());
    let output = run(&mut sidestep(&["-e", &script]), LIMIT).ok();
    assert!(!output.stdout.contains("error"), "{output}");
    // The pipe of a shell has somebody who writes to it.
    let tool = sidestep(&[]);
    let tool = tool.get_program().to_string_lossy().into_owned();
    let line = format!("'{tool}' -q <(sleep 0.2; echo 'BEGIN {{ printf(\"from a pipe\\n\"); exit() }}')");
    let output = run(Command::new("bash").args(["-c", &line]), LIMIT).ok();
    assert!(output.stdout.contains("from a pipe"), "{output}");
    let _ = fs::remove_dir_all(&dir);
}

/// The debug file that an object names is somebody else's, too.
#[test]
fn a_debug_link_led_to_a_pipe() {
    let Some(path) = target("counts") else { return };
    let dir = target_dir().join("test-targets").join(format!("link.{}", std::process::id()));
    fs::create_dir_all(&dir).expect("target directory is writable");
    let (object, debug) = (dir.join("program"), dir.join("program.debug"));
    let objcopy = |args: &[&str]| {
        let output = run(Command::new("objcopy").args(args), LIMIT);
        assert_eq!(output.code(), 0, "{output}");
    };
    let (object_name, debug_name) = (object.to_string_lossy().into_owned(), debug.to_string_lossy().into_owned());
    fs::copy(&path, &debug).expect("writable");
    let build_id = "--remove-section=.note.gnu.build-id";
    objcopy(&[
        "--strip-all",
        build_id,
        &format!("--add-gnu-debuglink={debug_name}"),
        &path.to_string_lossy(),
        &object_name,
    ]);
    fs::remove_file(&debug).expect("writable");
    assert!(Command::new("mkfifo").arg(&debug).status().expect("mkfifo").success());
    refused(&["list", &format!("{object_name}:leaf")], &["leaf"]);
    // One that has no end, and no build id.
    fs::remove_file(&debug).expect("writable");
    objcopy(&[build_id, &path.to_string_lossy(), &debug_name]);
    fs::OpenOptions::new().write(true).open(&debug).and_then(|file| file.set_len(1 << 40)).expect("writable");
    refused(&["list", &format!("{object_name}:leaf")], &["leaf"]);
    let _ = fs::remove_dir_all(&dir);
}
