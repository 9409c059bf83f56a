//! What keeps the target from harm by the probes themselves, and a log of who has probed what.

use std::path::PathBuf;

use clap::Args;
use sidestep_engine::{Overhead, Protection};

/// From this share of the target's CPU time on, a warning says what the probes cost.
const WARNED: f64 = 0.10;

/// Limits, and the log.
#[derive(Args, Clone, Debug, Default)]
pub struct Protect {
    /// Disable the hottest probes as long as all together take more than PERCENT (2%) of the CPU
    /// time that the target uses. Without it a warning comes above 10%; off: none does.
    #[arg(long, value_name = "PERCENT", value_parser = parse_overhead)]
    pub max_overhead: Option<Most>,
    /// Disable a probe once it has had N hits; end when all have.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_hits: Option<u64>,
    /// Map no more than SIZE (64M, 1G) in each process, or do not attach.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_memory: Option<u64>,
    /// Append a JSON line for each attach and detach to FILE, or send it to syslog.
    #[arg(long, value_name = "FILE|syslog")]
    pub audit: Option<PathBuf>,
}

/// The value of `--max-overhead`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Most {
    /// Nobody looks.
    Off,
    /// A share; 1 is all.
    Share(f64),
}

impl Protect {
    /// The same for the engine.
    pub fn protection(&self) -> Protection {
        let overhead = match self.max_overhead {
            None => Overhead::Warned(WARNED),
            Some(Most::Off) => Overhead::Ignored,
            Some(Most::Share(share)) => Overhead::Limited(share),
        };
        let calibration = vec!["/proc/self/exe".into(), CALIBRATION.into()];
        Protection { overhead, max_hits: self.max_hits, max_memory: self.max_memory, calibration }
    }

    /// The first flag that was given, if any.
    pub fn first(&self) -> Option<&'static str> {
        let given = [
            (self.max_overhead.is_some(), "--max-overhead"),
            (self.max_hits.is_some(), "--max-hits"),
            (self.max_memory.is_some(), "--max-memory"),
            (self.audit.is_some(), "--audit"),
        ];
        given.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
    }
}

/// As its only argument, it makes this program the one in which the cost of a hit is measured.
pub const CALIBRATION: &str = "--calibration-target";

fn parse_overhead(text: &str) -> Result<Most, String> {
    if text == "off" {
        return Ok(Most::Off);
    }
    let percent = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
    match percent.filter(|percent| (0.01..=100.0).contains(percent)) {
        Some(percent) => Ok(Most::Share(percent / 100.0)),
        None => Err("expected a percentage from 0.01% to 100%, for example 2%, or off".to_owned()),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match text[digits.len()..].to_ascii_lowercase().trim_end_matches("ib") {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => 0,
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "expected a size in bytes, for example 64M or 1G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_checked() {
        assert_eq!(parse_overhead("2%"), Ok(Most::Share(0.02)));
        assert_eq!(parse_overhead("0.5 %"), Ok(Most::Share(0.005)));
        assert_eq!(parse_overhead("off"), Ok(Most::Off));
        for bad in ["2", "0%", "101%", "-1%", "%", "nan%", "inf%", "", "two%"] {
            assert!(parse_overhead(bad).is_err(), "{bad}");
        }
        for (text, bytes) in [("4096", 4096), ("64K", 1 << 16), ("64k", 1 << 16), ("2MiB", 2 << 20), ("1G", 1 << 30)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "0", "M", "-1", "1.5G", "1T", "99999999999G", "1Mx", "1 M"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
