//! Developer commands: `cargo xtask setup`, `test`, `bench` and `coverage`.
#![forbid(unsafe_code)]

mod bench;
mod coverage;
mod handlers;
mod machine;
mod scripts;
mod setup;
mod test;
mod usdt;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  setup               install the Debian packages that the tests need (says so first; sudo if not root)
  test [--quick]      everything that must hold: format, lints, build, all tests, the oldest compiler
                      --quick: neither setup nor the oldest compiler
  bench [--write]     what a probe hit costs, as a table; --write puts it into docs/bench.md
  bench scripts       of that, the tables about scripts alone
  bench usdt          the same about static probes
  coverage [--write]  which sites of Debian's programs get which technique; --write puts it into docs/coverage.md";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["setup"] => setup::setup().map(|()| true),
        ["test"] => test::test(false),
        ["test", "--quick"] => test::test(true),
        ["bench"] => bench::bench(false).map(|()| true),
        ["bench", "scripts"] => bench::scripts_alone().map(|()| true),
        ["bench", "usdt"] => bench::usdt_alone().map(|()| true),
        ["bench", "--write"] => bench::bench(true).map(|()| true),
        ["coverage"] => coverage::coverage(false).map(|()| true),
        ["coverage", "--write"] => coverage::coverage(true).map(|()| true),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
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
