//! A Redis of one's own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::Snapshot;
use crate::build::installed;
use crate::process::{LIMIT, Running, eventually, run};

/// A server: a socket in /tmp, no port, nothing saved.
pub struct Redis {
    server: Running,
    socket: PathBuf,
}

/// The first of the programs of Redis that is not in `PATH`.
pub fn missing() -> Option<&'static str> {
    ["redis-server", "redis-cli", "redis-benchmark"].into_iter().find(|program| !installed(program))
}

impl Redis {
    /// Starts one, and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    pub fn start() -> Redis {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Short: a socket's path has at most 107 bytes.
        let socket = PathBuf::from(format!("/tmp/sidestep-redis-{}-{number}", std::process::id()));
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--dir", "/tmp", "--unixsocket"]);
        let redis = Redis { server: Running::start(command.arg(&socket)), socket };
        assert!(
            eventually(LIMIT, || redis.try_cli(&["PING"]).is_some_and(|o| o == "PONG\n")),
            "redis-server is not up"
        );
        redis
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process id.
    pub fn pid(&self) -> String {
        self.server.pid().to_string()
    }

    fn try_cli(&self, args: &[&str]) -> Option<String> {
        let output = run(Command::new("redis-cli").arg("-s").arg(&self.socket).args(args), LIMIT);
        (output.code() == 0).then_some(output.stdout)
    }

    /// What a command answers.
    ///
    /// # Panics
    /// If it fails.
    pub fn cli(&self, args: &[&str]) -> String {
        self.try_cli(args).unwrap_or_else(|| panic!("redis-cli {args:?} failed"))
    }

    /// Runs `redis-benchmark` with SET and GET to its end; what it printed.
    pub fn benchmark(&self, args: &[&str]) -> String {
        let mut command = Command::new("redis-benchmark");
        run(command.arg("-s").arg(&self.socket).args(["-q", "-t", "set,get"]).args(args), LIMIT).ok().stdout
    }

    /// Waits until it has closed the connections of its benchmark; then its state.
    ///
    /// # Panics
    /// If they stay.
    pub fn at_rest(&self) -> Snapshot {
        let rest = eventually(LIMIT, || self.cli(&["INFO", "clients"]).contains("connected_clients:1\r\n"));
        assert!(rest, "clients stay");
        // The connection that asked closes after its answer.
        let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count);
        let still = || {
            let before = descriptors();
            std::thread::sleep(Duration::from_millis(20));
            before == descriptors()
        };
        assert!(eventually(LIMIT, still), "descriptors come and go");
        Snapshot::of(self.server.pid())
    }

    /// A field of a command's line in `INFO commandstats`.
    ///
    /// # Panics
    /// If there is none.
    pub fn stat(&self, command: &str, field: &str) -> f64 {
        let info = self.cli(&["INFO", "commandstats"]);
        let line = info.lines().find_map(|l| l.strip_prefix(&format!("cmdstat_{command}:")));
        let mut fields = line.unwrap_or_default().trim_end().split(',');
        let value = fields.find_map(|f| f.strip_prefix(field)?.strip_prefix('='));
        value.and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("no {command} {field} in {info}"))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}
