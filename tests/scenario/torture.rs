//! A minute of everything at once: threads in all sites, signals, children, and probes that come,
//! go, and are switched at random. `SIDESTEP_SEED` is the random numbers' seed, `SIDESTEP_SECONDS`
//! how long it takes, where a minute is not enough.

use std::process::Command;
use std::time::{Duration, Instant};

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, sidestep};
use sidestep_tests::{Snapshot, target};

const FUNCTIONS: [&str; 12] = [
    "loop_at_2",
    "loop_at_4",
    "three_bytes",
    "behind_three",
    "only_ret",
    "call_inside",
    "call_first",
    "branch_first",
    "counts_down",
    "reads_rip",
    "red_zone",
    "check",
];

/// A small generator with a fixed seed (Knuth's MMIX constants), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A number of the environment.
fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// Jumps or traps from now on. Refused where no traps are taken.
fn optimize(to: &str, pid: &str) {
    run(&mut sidestep(&["optimize", to, "-p", pid]), LIMIT);
}

#[test]
pub fn everything_at_once() {
    let Some(path) = target("torture") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    assert_eq!((program.ask("start 0"), program.ask("alone 10")), (0, 0));
    let before = Snapshot::of(program.pid());
    let seed = setting("SIDESTEP_SEED", 7);
    let mut random = Random(seed);
    let time = Duration::from_secs(setting("SIDESTEP_SECONDS", 60));
    let (start, mut sessions) = (Instant::now(), [0; 4]);
    // On a machine with much else to do, until there was some of everything.
    while start.elapsed() < time || sessions.iter().any(|n| *n < 4) {
        // A function, or each of its instructions; by jumps or traps.
        let function = random.of(&FUNCTIONS);
        let place = format!("torture:{function}{}", random.of(&["", "+*", "+*"]));
        let flags: &[&str] = random.of(&[&[][..], &["--live"], &["--no-optimize"]]);
        let kind = random.below(4);
        sessions[kind] += 1;
        match kind {
            // Its counts are known while everything else goes on.
            0 => {
                let args = [&["funccount"], flags, &["-p", &pid, "torture:mine+*"]].concat();
                let tracing = Tracing::start(&args);
                let calls = 1 + random.below(20_000) as u64;
                let (who, threads) = random.of(&[("alone", 1), ("together", 8)]);
                program.send(&format!("{who} {calls}"));
                // A hit is a hit, whether by a jump or by a trap.
                for _ in 0..random.below(4) {
                    optimize(random.of(&["off", "on"]), &pid);
                }
                assert_eq!(program.answer(), 0);
                let report = tracing.stop();
                let right = |count: &u64| *count == calls * threads;
                assert!(report.counts().values().all(right), "{seed}: {who} {calls} {flags:?}: {}", report.0);
                assert!(report.counts().len() >= 2, "{}", report.0);
            }
            1 => drop(Tracing::start(&[&["funccount"], flags, &["-p", &pid, &place]].concat()).stop()),
            // Switched while it counts.
            2 => {
                let tracing = Tracing::start(&[&["funccount"], flags, &["-p", &pid, &place]].concat());
                for _ in 0..random.below(5) {
                    for command in ["disable", "enable"] {
                        run(&mut sidestep(&[command, "-p", &pid]), LIMIT).ok();
                    }
                    optimize(random.of(&["off", "on"]), &pid);
                }
                tracing.stop();
            }
            _ => {
                let entry = format!("torture:{function}");
                let args = [&["funclatency"], flags, &["-p", &pid, &entry]].concat();
                let tracing = Tracing::start(&args);
                if random.below(3) == 0 { tracing.kill() } else { drop(tracing.stop()) }
            }
        }
        assert!(program.is_running(), "{seed}: {place} {flags:?} {kind}");
    }
    // One that was killed may be the last.
    Tracing::start(&["funccount", "-p", &pid, "torture:mine"]).stop();
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    let (signals, children) = (program.ask("signals 0"), program.ask("children 0"));
    let queued = program.ask("queued 0");
    assert_eq!(program.ask("finish 0"), 0, "{seed}");
    assert!(
        signals > 1000 && queued > 1000 && children > 100,
        "{signals} signals, {queued} in turn, {children} children"
    );
    program.finish().ok();
}
