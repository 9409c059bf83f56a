//! Redis counts and times its own commands: the best oracle that a server can offer.

use sidestep_tests::redis::{Redis, missing};
use sidestep_tests::skip;
use sidestep_tests::tool::{Tracing, during};

fn start() -> Option<Redis> {
    match missing() {
        Some(program) => {
            skip(&format!("no {program}"));
            None
        }
        None => Some(Redis::start()),
    }
}

#[test]
fn counts_are_those_of_commandstats() {
    let Some(redis) = start() else { return };
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

/// What a command takes by our clock lies within what commandstats measures, which cuts off less
/// than 1 us a call.
#[test]
fn a_script_sees_the_calls_of_commandstats() {
    let Some(redis) = start() else { return };
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

/// `call` runs a command and takes the time that goes into commandstats, so for a command that
/// takes long enough both are the same: SORT of a thousand strings takes some hundred microseconds,
/// against which neither the microsecond resolution of commandstats nor what `call` does around the
/// command counts. Each call does the same work, so median and mean agree, unless something else
/// takes the CPU away: then it is measured again, against the same bound.
#[test]
fn median_latency_is_that_of_commandstats() {
    let Some(redis) = start() else { return };
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
    let Some(redis) = start() else { return };
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
