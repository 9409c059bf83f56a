//! `sidestep detach`: removes what a controller has left that was killed.

use std::process::ExitCode;

use sidestep_engine::Detached;

use crate::flags::{Detach, Format};
use crate::out::number;
use crate::out::sink::{Sink, say};

/// Runs the command. It fails if all that the process carries belongs to somebody who is at work.
pub fn run(flags: &Detach) -> anyhow::Result<ExitCode> {
    let detached = sidestep_engine::detach(flags.pid)?;
    if !flags.quiet {
        let mut sink = Sink::open(None, Format::Text, false)?;
        sink.line(&message(&detached))?;
        sink.flush()?;
    }
    for controller in &detached.at_work {
        let pid = flags.pid;
        say(&format!("sidestep: process {pid} is probed by process {controller}: end that one to detach it"));
    }
    let refused = detached.ended.is_empty() && !detached.at_work.is_empty();
    Ok(if refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn message(detached: &Detached) -> String {
    if detached.ended.is_empty() {
        return "nothing is left of a controller that has ended".to_owned();
    }
    let ended: Vec<String> = detached.ended.iter().filter(|pid| **pid != 0).map(i32::to_string).collect();
    let left = match &ended[..] {
        [] => "was left".to_owned(),
        [one] => format!("process {one} had left"),
        several => format!("the processes {} had left", several.join(", ")),
    };
    match detached.sites {
        0 => format!("removed what {left}"),
        sites => format!("removed what {left}: {}", number::of(sites, "site")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_removed_is_said() {
        let detached = |ended: &[i32], sites| Detached { ended: ended.to_vec(), sites, at_work: Vec::new() };
        assert_eq!(message(&detached(&[], 0)), "nothing is left of a controller that has ended");
        assert_eq!(message(&detached(&[7], 1)), "removed what process 7 had left: 1 site");
        assert_eq!(message(&detached(&[7], 0)), "removed what process 7 had left");
        assert_eq!(message(&detached(&[7, 9], 3)), "removed what the processes 7, 9 had left: 3 sites");
    }
}
