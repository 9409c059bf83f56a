//! bash as a target that says when it is done, for tests that probe it by the library instead of
//! the tool.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A line is how often to run `echo`, and then one `printf` answers.
const SCRIPT: &str = "while read -r n; do for ((i = 0; i < n; i++)); do echo >/dev/null; done; printf 'done\\n'; done";

/// A running bash, killed when this is dropped.
pub struct Bash {
    child: Child,
    stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Bash {
    /// Starts it. It has run `echo` once.
    ///
    /// # Panics
    /// If there is no bash.
    pub fn start() -> Bash {
        let mut command = Command::new("bash");
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, lines) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut bash = Bash { child, stdin, lines };
        bash.echo(1);
        bash
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Runs `echo` so often, and `printf` once.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn echo(&mut self, n: u32) {
        writeln!(self.stdin, "{n}").unwrap();
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }
}

impl Drop for Bash {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
