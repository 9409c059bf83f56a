//! `sidestep`: probes in live programs, from the command line.

mod cmd;
mod flags;
mod out;
mod signals;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cmd::run(flags::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            out::sink::say(&format!("sidestep: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
