//! Developer commands: `cargo xtask setup`, `test`, `arm64`, `arm32`, `bench`, `coverage`,
//! `random`, `rules`, `rack`, `fuzz` and `guest`.
#![forbid(unsafe_code)]

mod arm;
mod bench;
mod coverage;
mod dependencies;
mod fuzz;
mod guest;
#[cfg(test)]
mod house;
mod machine;
mod rack;
mod random;
mod rules;
mod setup;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  setup               install the Debian packages that the tests need (says so first; sudo if not root)
  test [--quick]      everything that must hold: format, lints, build, all tests, the oldest compiler
                      --quick: neither setup nor the oldest compiler
  test --only TOPIC   the tests of a crate (`--only lang`), or the scenario tests whose names contain TOPIC
  arm64|arm32 [--all] [FILTER]...
                      the scenario tests in the guest of that architecture: those whose names contain a FILTER.
                      SIDESTEP_BIN_ARM64 and SIDESTEP_BIN_ARM32 name a tool to test. --all: also those that are left
                      out, see arm/arm64.rs and arm/arm32.rs
  bench [PART]... [--write]
                      what a probe hit costs, as tables; --write puts them into docs/bench.md. Parts:
                      hits        by the first instruction of the function, with kernel probes and bpftrace
                      handlers    by the handler, compiled and interpreted
                      scripts     by the script, and the time until it traces
                      usdt        static probes
                      trigger     hits per second, 1 and 2 threads, 64 and 32 bit, with kernel probes
                      techniques  by the technique of the site, optimized and not; a push by one trap and by two
                      redis       how much slower redis-server is with all its functions probed
                      attach      the time of an attach to many functions
  coverage [--write]  which sites of Debian's programs get which technique; --write puts it into docs/coverage.md
  random [--programs N] [--seed S] [--minutes M] [--jobs J]
                      random programs, built in many ways: a probe at each instruction must change nothing that they
                      print, and count as often as callgrind does. Folders of those that differ stay in target/random
  rules [OBJECT]...   the plans for objects (300 of /usr/bin and /usr/lib), compared with what binutils say of their code:
                      nobody comes to the middle of a jump, whole instructions are displaced, no return is missed
  rack [--minutes M] [--seed S] [--rounds R] [--operations O] [--jobs J]
                      servers and programs that check themselves, under load, with everything that can be done to them
                      at random. A round is a program and O operations (12); what failed stays in target/rack
  fuzz [PART]... [--inputs N] [--seed S]
                      damaged inputs: objects, debug information, eBPF objects, scripts, lines, what a target shares.
                      Inputs that fail stay in target/fuzz
  guest arm64|arm32 [--cpus N] [--memory MIB] [--timeout S] [--programs] [--tests] [--add HOSTPATH[:GUESTPATH]]... -- COMMAND...
                      runs a command for sh in a kernel of that architecture under qemu, which prints what it prints and
                      has its status. What is added is in /root, where the command starts, or at GUESTPATH.
                      --programs: with redis-server, redis-cli, redis-benchmark and grep of Debian; --tests: bash, python3,
                      binutils, strace, procps and util-linux";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["setup"] => setup::setup().map(|()| true),
        ["test"] => test::test(false),
        ["test", "--quick"] => test::test(true),
        ["test", "--only", topic] => test::only(topic),
        ["timed", ref command @ ..] => test::timed(command),
        [name @ ("arm64" | "arm32"), ref words @ ..] => {
            let Some(wanted) = arm::Wanted::parse(words) else { return usage() };
            arm::test(if name == "arm64" { &arm::ARM64 } else { &arm::ARM32 }, &wanted)
        }
        ["bench", ref parts @ ..] => {
            let names: Vec<&str> = parts.iter().copied().filter(|word| *word != "--write").collect();
            let Some(result) = bench::bench(&names, names.len() < parts.len()) else { return usage() };
            result.map(|()| true)
        }
        ["coverage"] => coverage::coverage(false).map(|()| true),
        ["coverage", "--write"] => coverage::coverage(true).map(|()| true),
        ["random", ref flags @ ..] => {
            let Some(wanted) = random::Wanted::parse(flags) else { return usage() };
            random::random(&wanted)
        }
        ["rules", ref objects @ ..] => rules::rules(objects),
        ["guest", ref words @ ..] => {
            let Some(guest) = guest::Guest::parse(words) else { return usage() };
            match guest.run(&mut std::io::stdout()) {
                Ok(ended) => {
                    eprintln!("guest: booted in {:.1} s", ended.boot.as_secs_f64());
                    return ExitCode::from(ended.status);
                }
                Err(error) => Err(error),
            }
        }
        ["fuzz", ref flags @ ..] => fuzz::fuzz(flags),
        ["rack", ref flags @ ..] => {
            let Some(wanted) = rack::Wanted::parse(flags) else { return usage() };
            rack::rack(&wanted)
        }
        _ => return usage(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}
