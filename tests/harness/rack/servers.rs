//! Servers, with clients that know what they must answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::patience::{self, Connection};
use super::targets::{Names, Target};
use super::{Failure, Wrong};
use crate::postgres;
use crate::process::{LIMIT, Program, Running, eventually};
use crate::redis::Redis;

fn crash(error: impl std::fmt::Display) -> Failure {
    Failure::new(Wrong::Crash, format!("the server does not answer: {error}"))
}

fn wrong(what: impl Into<String>) -> Failure {
    Failure::new(Wrong::Result, what)
}

/// Redis: what was set is there, and its scripts compute what they must.
pub(super) struct Keys {
    server: Redis,
    client: BufReader<Connection>,
    names: Names,
    round: u64,
}

impl Keys {
    pub fn start() -> Result<Keys, Failure> {
        let server = Redis::start();
        let pid = server.pid().parse().unwrap_or(0);
        let client = BufReader::new(Connection::to(server.socket(), pid).map_err(crash)?);
        Ok(Keys { server, client, names: Names::default(), round: 0 })
    }

    /// The answer to a command: a line, or the string behind it.
    fn ask(&mut self, words: &[&str]) -> Result<String, Failure> {
        let mut command = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| command += &format!("${}\r\n{word}\r\n", word.len()));
        self.client.get_mut().write_all(command.as_bytes()).map_err(crash)?;
        let mut line = String::new();
        self.client.read_line(&mut line).map_err(crash)?;
        let line = line.trim_end();
        let Some(len) = line.strip_prefix('$') else {
            return if line.is_empty() { Err(crash("it has closed the connection")) } else { Ok(line.to_owned()) };
        };
        let mut bytes = vec![0; len.parse::<usize>().map_err(|_| wrong(line))? + 2];
        self.client.read_exact(&mut bytes).map_err(crash)?;
        bytes.truncate(bytes.len() - 2);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn expect(&mut self, words: &[&str], answer: &str) -> Result<(), Failure> {
        match self.ask(words)? {
            same if same == answer => Ok(()),
            other => Err(wrong(format!("{words:?}: {other}, not {answer}"))),
        }
    }
}

/// A script that sorts and adds.
const SUMS: &str = "local t = {} for i = 1, 300 do t[i] = (i * 7919) % 1009 end table.sort(t) local s = 0 \
                    for i = 1, 300 do s = (s * 31 + t[i]) % 1000003 end return s";

impl Target for Keys {
    fn pid(&self) -> i32 {
        self.server.pid().parse().unwrap_or(0)
    }

    fn work(&mut self, amount: u64) -> Result<u64, Failure> {
        let sum = {
            let mut all: Vec<u64> = (1..=300).map(|i| i * 7919 % 1009).collect();
            all.sort_unstable();
            all.iter().fold(0, |sum, n| (sum * 31 + n) % 1_000_003)
        };
        for _ in 0..amount {
            self.round += 1;
            for key in 0..20 {
                let (name, value) =
                    (format!("key:{key}"), format!("{}", self.round * 1000 + key).repeat(1 + key as usize * 3));
                self.expect(&["SET", &name, &value], "+OK")?;
                self.expect(&["GET", &name], &value)?;
                self.expect(&["RPUSH", "list", &value], &format!(":{}", key + 1))?;
            }
            self.expect(&["LINDEX", "list", "0"], &format!("{}", self.round * 1000))?;
            self.expect(&["SORT", "list", "ALPHA", "STORE", "sorted"], ":20")?;
            self.expect(&["DEL", "list"], ":1")?;
            self.expect(&["EVAL", SUMS, "0"], &format!(":{sum}"))?;
        }
        Ok(20 * amount)
    }

    fn counted(&self) -> Option<&'static str> {
        Some("redis-server:getCommand")
    }

    fn objects(&self) -> &'static [&'static str] {
        &["redis-server", "redis-server", "libc"]
    }

    fn functions(&mut self, object: &'static str) -> &Vec<String> {
        self.names.of(self.pid(), object)
    }

    fn may_lack_memory(&self) -> bool {
        true
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.expect(&["PING"], "+PONG")
    }
}

/// nginx: one process, which sends a file.
pub(super) struct Http {
    server: Running,
    client: BufReader<Connection>,
    names: Names,
    file: Vec<u8>,
}

impl Http {
    pub fn start(dir: &Path) -> Result<Http, Failure> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Short: a socket's path has at most 107 bytes.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = std::env::temp_dir().join(format!("sidestep-nginx-{}-{number}", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let (at, socket_text) = (dir.display(), socket.display());
        let file: Vec<u8> = (0..30_000u32).map(|i| b'a' + (i * i % 26) as u8).collect();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {at}/{name};"))
            .concat();
        let conf = format!(
            "daemon off; master_process off; pid {at}/pid; error_log {at}/error; user root; events {{ }}
             http {{ access_log off; keepalive_requests 1000000000; {temporary}
             server {{ listen unix:{socket_text}; location / {{ root {at}; }} }} }}"
        );
        std::fs::write(dir.join("file"), &file).map_err(crash)?;
        std::fs::write(dir.join("conf"), conf).map_err(crash)?;
        let mut command = Command::new("nginx");
        let server = Running::start(command.arg("-p").arg(dir).arg("-c").arg(dir.join("conf")));
        if !eventually(LIMIT, || UnixStream::connect(&socket).is_ok()) {
            return Err(Failure::new(Wrong::Start, "nginx does not answer"));
        }
        let client = BufReader::new(Connection::to(&socket, server.pid()).map_err(crash)?);
        let _ = std::fs::remove_file(&socket);
        Ok(Http { server, client, names: Names::default(), file })
    }

    fn get(&mut self) -> Result<(), Failure> {
        let request = b"GET /file HTTP/1.1\r\nHost: localhost\r\n\r\n";
        self.client.get_mut().write_all(request).map_err(crash)?;
        let mut len = None;
        loop {
            let mut line = String::new();
            self.client.read_line(&mut line).map_err(crash)?;
            match line.trim_end() {
                "" if line.is_empty() => return Err(crash("it has closed the connection")),
                "" => break,
                line => len = line.strip_prefix("Content-Length: ").and_then(|n| n.parse().ok()).or(len),
            }
        }
        let mut body = vec![0; len.ok_or_else(|| wrong("an answer without a length"))?];
        self.client.read_exact(&mut body).map_err(crash)?;
        if body == self.file { Ok(()) } else { Err(wrong("the file was sent wrong")) }
    }
}

impl Target for Http {
    fn pid(&self) -> i32 {
        self.server.pid()
    }

    fn work(&mut self, amount: u64) -> Result<u64, Failure> {
        (0..20 * amount).try_for_each(|_| self.get())?;
        Ok(20 * amount)
    }

    fn counted(&self) -> Option<&'static str> {
        Some("nginx:ngx_http_process_request")
    }

    fn objects(&self) -> &'static [&'static str] {
        &["nginx", "nginx", "libc"]
    }

    fn functions(&mut self, object: &'static str) -> &Vec<String> {
        self.names.of(self.server.pid(), object)
    }

    fn may_lack_memory(&self) -> bool {
        true
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.get()
    }
}

/// PostgreSQL: a process that answers queries, some of which fail.
pub(super) struct Queries {
    server: Running,
    client: Program,
    pid: i32,
    data: String,
    names: Names,
    expected: Option<i64>,
}

/// Sums over rows, with an error that is caught; and a function in its own language.
const QUERY: &str = "with t as (select i, md5(i::text) m from generate_series(1, 1000) i) \
                     select sum(length(m) * (i % 7) + ascii(m)) from t where m like '%a%';";
const CAUGHT: &str = "do $$ declare k int; begin for j in 1..20 loop begin k := 1 / 0; \
                      exception when division_by_zero then k := j; end; end loop; end $$;";

impl Queries {
    pub fn missing() -> Option<String> {
        postgres::programs().is_none().then(|| "postgres".to_owned())
    }

    pub fn start() -> Result<Queries, Failure> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let bin = postgres::programs().ok_or_else(|| Failure::new(Wrong::Start, "no postgres"))?;
        let data = postgres::database(&bin, &format!("rack-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let server = Running::start(&mut postgres::server(&bin, &data));
        if !postgres::is_up(&data) {
            return Err(Failure::new(Wrong::Start, "no server"));
        }
        let mut client = Program::start(&mut postgres::client(&data));
        let pid = client.ask("select pg_backend_pid();") as i32;
        Ok(Queries { server, client, pid, data, names: Names::default(), expected: None })
    }
}

impl Target for Queries {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn work(&mut self, amount: u64) -> Result<u64, Failure> {
        for _ in 0..amount {
            if !self.client.is_running() {
                return Err(crash("the client has ended"));
            }
            self.client.send(CAUGHT);
            self.client.send(QUERY);
            let answer = patience::answer(&mut self.client, self.pid).map_err(crash)?;
            let expected = *self.expected.get_or_insert(answer);
            if answer != expected {
                return Err(wrong(format!("{QUERY}: {answer}, not {expected}")));
            }
        }
        Ok(2 * amount)
    }

    fn counted(&self) -> Option<&'static str> {
        Some("postgres:pg_parse_query")
    }

    fn objects(&self) -> &'static [&'static str] {
        &["postgres", "postgres", "libc"]
    }

    fn functions(&mut self, object: &'static str) -> &Vec<String> {
        self.names.of(self.pid, object)
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.work(1).map(drop)
    }
}

impl Drop for Queries {
    fn drop(&mut self) {
        self.server.signal(libc::SIGINT);
        let server = &mut self.server;
        eventually(LIMIT, || !server.is_running());
        let _ = std::fs::remove_dir_all(&self.data);
    }
}
