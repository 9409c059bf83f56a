//! `sidestep`: probes in live programs, from the command line.

mod cmd;
mod flags;
mod input;
mod out;
mod signals;

use std::process::ExitCode;

fn main() -> ExitCode {
    if is_calibration() {
        sidestep_engine::calibration_target();
        return ExitCode::SUCCESS;
    }
    let code = cmd::run(flags::parse(std::env::args_os().collect())).unwrap_or_else(|error| {
        out::sink::say(&format!("sidestep: {}", message(&error)));
        ExitCode::FAILURE
    });
    out::outlet::end();
    code
}

/// Was this program started by another one that measures what a hit costs?
fn is_calibration() -> bool {
    let mut args = std::env::args_os().skip(1);
    args.next().is_some_and(|arg| arg == flags::CALIBRATION) && args.next().is_none()
}

/// An error and its causes, without those that it has named already.
fn message(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| {
        let cause = cause.to_string();
        match text.as_str() {
            "" => cause,
            said if said.contains(&cause) => text,
            said => format!("{said}: {cause}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    #[test]
    fn cause_was_said_twice() {
        let error = anyhow!("No such process").context("cannot open 7: No such process; is /proc there?");
        assert_eq!(super::message(&error), "cannot open 7: No such process; is /proc there?");
        let error = Err::<(), _>(anyhow!("b")).context("cannot read").unwrap_err();
        assert_eq!(super::message(&error), "cannot read: b");
    }
}
