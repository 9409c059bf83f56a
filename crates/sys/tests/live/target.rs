//! The programs that are probed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock};

/// How to build a target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Build {
    /// `worker.c`, dynamic.
    Worker,
    /// `worker.c`, with `-static`.
    Static,
    /// `worker.c` with musl, static.
    Musl,
    /// `worker.go`.
    Go,
    /// `tiny.s`, no library at all.
    Tiny,
}

/// Is this the build for 32-bit targets? There are no Go and no musl for those here.
pub const BITS32: bool = cfg!(target_pointer_width = "32");
/// The instruction that makes a system call.
pub const SYSCALL: [u8; 2] = if BITS32 { [0xcd, 0x80] } else { [0x0f, 0x05] };
/// Where the loader and the libraries of 32-bit programs are.
const DYNAMIC32: &[&str] =
    &["-Wl,--dynamic-linker=/usr/i686-linux-gnu/lib/ld-linux.so.2", "-Wl,-rpath,/usr/i686-linux-gnu/lib"];

/// Path of a built target; each is built once.
pub fn build(what: Build) -> PathBuf {
    static BUILT: OnceLock<Mutex<HashMap<Build, PathBuf>>> = OnceLock::new();
    let mut built = BUILT.get_or_init(Mutex::default).lock().unwrap();
    built.entry(what).or_insert_with(|| compile(what)).clone()
}

fn compile(what: Build) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/targets");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{what:?}"));
    let mut command = match what {
        Build::Worker if BITS32 => c("i686-linux-gnu-gcc", &[DYNAMIC32, &["-O1", "-pthread", "-msse2"]].concat()),
        Build::Static if BITS32 => c("i686-linux-gnu-gcc", &["-O1", "-pthread", "-msse2", "-static"]),
        Build::Tiny if BITS32 => c("i686-linux-gnu-gcc", &["-nostdlib", "-static"]),
        Build::Worker => c("cc", &["-O1", "-pthread"]),
        Build::Static => c("cc", &["-O1", "-pthread", "-static"]),
        Build::Musl => c(
            "musl-gcc",
            &[
                "-O1",
                "-pthread",
                "-static",
                "-idirafter",
                "/usr/include",
                "-idirafter",
                "/usr/include/x86_64-linux-gnu",
            ],
        ),
        Build::Tiny => c("cc", &["-nostdlib", "-static"]),
        Build::Go => c("go", &["build"]),
    };
    let source = match what {
        Build::Go => "worker.go",
        Build::Tiny if BITS32 => "tiny32.s",
        Build::Tiny => "tiny.s",
        _ => "worker.c",
    };
    let status = command.arg("-o").arg(&out).arg(sources.join(source)).status().unwrap();
    assert!(status.success(), "building {what:?}: {status}");
    out
}

fn c(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// A running target.
pub struct Target {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Target {
    /// Starts it and waits until it says that it is ready.
    pub fn start(what: Build, args: &[&str]) -> Target {
        let mut child =
            Command::new(build(what)).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Target { child, stdin, stdout }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Ends its input and returns what it prints, and its exit code.
    pub fn finish(mut self) -> (String, Option<i32>) {
        self.stdin = None;
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        (text, self.child.wait().unwrap().code())
    }

    /// Finishes it; nothing may have gone wrong in it.
    pub fn finish_well(self) {
        assert_eq!(self.finish(), ("bad 0\n".to_owned(), Some(0)));
    }

    /// The state letter of the main thread.
    pub fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    /// Waits until the main thread has this state.
    pub fn await_state(&self, state: char) {
        for _ in 0..5000 {
            if self.state() == state {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("state is {} and not {state}", self.state());
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal by kill(1).
pub fn kill(pid: i32, signal: &str) {
    let status = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status().unwrap();
    assert!(status.success());
}
