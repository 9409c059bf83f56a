//! Redis counts and times its own commands: the best oracle that a server can offer.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sidestep_tests::build::installed;
use sidestep_tests::process::{LIMIT, Running, eventually, run};
use sidestep_tests::tool::{Tracing, during};
use sidestep_tests::{Snapshot, skip};

/// A server of its own: a socket in /tmp, no port, nothing saved.
struct Redis {
    server: Running,
    socket: PathBuf,
}

impl Redis {
    fn start() -> Option<Redis> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        for program in ["redis-server", "redis-cli", "redis-benchmark"] {
            if !installed(program) {
                skip(&format!("no {program}"));
                return None;
            }
        }
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
        Some(redis)
    }

    fn pid(&self) -> String {
        self.server.pid().to_string()
    }

    fn try_cli(&self, args: &[&str]) -> Option<String> {
        let output = run(Command::new("redis-cli").arg("-s").arg(&self.socket).args(args), LIMIT);
        (output.code() == 0).then_some(output.stdout)
    }

    fn cli(&self, args: &[&str]) -> String {
        self.try_cli(args).unwrap_or_else(|| panic!("redis-cli {args:?} failed"))
    }

    fn benchmark(&self, args: &[&str]) -> String {
        let mut command = Command::new("redis-benchmark");
        run(command.arg("-s").arg(&self.socket).args(["-q", "-t", "set,get"]).args(args), LIMIT).ok().stdout
    }

    /// Waits until it has closed the connections of its benchmark; then its state.
    fn at_rest(&self) -> Snapshot {
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
    fn stat(&self, command: &str, field: &str) -> f64 {
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

#[test]
fn counts_are_those_of_commandstats() {
    let Some(redis) = Redis::start() else { return };
    redis.benchmark(&["-n", "1000"]);
    let before = redis.at_rest();
    for flags in [&[][..], &["--no-optimize"]] {
        redis.cli(&["CONFIG", "RESETSTAT"]);
        let pid = redis.pid();
        let args = [&["funccount"], flags, &["-p", &pid, "-r", "^(set|get)Command$"]].concat();
        let (report, _) = during(&args, || redis.benchmark(&["-n", "20000"]));
        report.assert_count("setCommand", 20_000);
        report.assert_count("getCommand", 20_000);
        assert_eq!((redis.stat("set", "calls"), redis.stat("get", "calls")), (20_000.0, 20_000.0));
    }
    assert_eq!(redis.cli(&["PING"]), "PONG\n");
    before.assert_same_but_data(&redis.at_rest());
}

/// What a command takes by our clock lies within what commandstats measures, which cuts off less than 1 us a call.
#[test]
fn a_script_sees_the_calls_of_commandstats() {
    let Some(redis) = Redis::start() else { return };
    redis.benchmark(&["-n", "1000"]);
    redis.at_rest();
    redis.cli(&["CONFIG", "RESETSTAT"]);
    let pid = redis.pid();
    let script = "
        u:redis-server:*Command { @calls[func] = count() }
        ur:redis-server:*Command { @ns[func] = sum(latency()); @us = hist(latency() / 1000) }
        interval:ms:50 { printf(\"Tracing on\\n\") }";
    let (report, _) = during(&["-p", &pid, "-e", script], || redis.benchmark(&["-n", "20000"]));
    let number = |map: &str, command: &str| {
        let row = format!("@{map}[{command}Command]: ");
        let number = report.0.stdout.lines().find_map(|line| line.strip_prefix(&row)?.parse::<f64>().ok());
        number.unwrap_or_else(|| panic!("no {row}: {}", report.0))
    };
    for command in ["set", "get"] {
        let (calls, us) = (redis.stat(command, "calls"), redis.stat(command, "usec"));
        assert_eq!((number("calls", command), calls), (20_000.0, 20_000.0));
        let ns = number("ns", command);
        assert!(ns > 0.0 && ns / 1000.0 <= us + calls, "{ns} ns, {us} us");
    }
    assert!(report.0.stdout.contains("@us:\n"), "{}", report.0);
}

/// `call` runs a command and takes the time that goes into commandstats, so for a command that takes long enough both
/// are the same: SORT of a thousand strings takes some hundred microseconds, against which neither the microsecond
/// resolution of commandstats nor what `call` does around the command counts. Each call does the same work, so median
/// and mean agree, unless something else takes the CPU away: then it is measured again, against the same bound.
#[test]
fn median_latency_is_that_of_commandstats() {
    let Some(redis) = Redis::start() else { return };
    let numbers: Vec<String> = (0..1000).map(|i| format!("{:05}", i * 7919 % 10_007)).collect();
    let push: Vec<&str> = ["RPUSH", "list"].into_iter().chain(numbers.iter().map(String::as_str)).collect();
    redis.cli(&push);
    let pid = redis.pid();
    let mut seen = Vec::new();
    for _ in 0..5 {
        redis.cli(&["CONFIG", "RESETSTAT"]);
        let (report, _) = during(&["funclatency", "-p", &pid, "call"], || {
            redis.cli(&["-r", "1000", "SORT", "list", "ALPHA", "LIMIT", "0", "1"])
        });
        assert!(report.latencies() >= 1000, "{}", report.0);
        let (median, mean) = (report.median() as f64 / 1000.0, redis.stat("sort", "usec_per_call"));
        assert!(mean > 50.0, "SORT is too fast to compare: {mean} us");
        if (median / mean - 1.0).abs() <= 0.15 {
            return;
        }
        seen.push((median, mean));
    }
    panic!("median of call and usec_per_call of commandstats, in microseconds: {seen:?}");
}

#[test]
fn attaching_and_detaching_under_load() {
    let Some(redis) = Redis::start() else { return };
    redis.benchmark(&["-n", "1000"]);
    let before = redis.at_rest();
    redis.cli(&["CONFIG", "RESETSTAT"]);
    let pid = redis.pid();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| redis.benchmark(&["-n", "100000", "-P", "4"]));
        for tool in ["funccount", "funclatency"].iter().cycle().take(20) {
            Tracing::start(&[tool, "-p", &pid, "-r", "^(process|lookup|dict|call|addReply|read|write)"]).stop();
        }
        load.join().expect("redis-benchmark runs to its end");
    });
    assert_eq!((redis.stat("set", "calls"), redis.stat("get", "calls")), (100_000.0, 100_000.0));
    before.assert_same_but_data(&redis.at_rest());
}
