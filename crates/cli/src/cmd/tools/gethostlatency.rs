//! `gethostlatency`: look-ups of host names.

use super::Tool;
use crate::flags::Output;
use crate::flags::tools::{Gethostlatency, Run};
use crate::out::script::{Layout, Shown};

impl Tool for Gethostlatency {
    const NAME: &'static str = "gethostlatency";

    fn flags(&self) -> &Run {
        &self.run
    }

    fn output(&self) -> Output {
        self.output.clone()
    }

    fn script(&self) -> Result<String, String> {
        Ok(include_str!("gethostlatency.bt").to_owned())
    }

    fn layout(&self) -> Box<dyn Layout> {
        Box::new(Lookups)
    }
}

struct Lookups;

impl Layout for Lookups {
    fn heading(&self) -> String {
        format!("{:<9} {:<7} {:<16} {:>10} HOST", "TIME", "PID", "COMM", "LATms")
    }

    fn columns(&self) -> &[&str] {
        &["time", "pid", "comm", "latency_us", "host"]
    }

    fn line(&mut self, values: &[Shown], _json: bool) -> Option<String> {
        let [time, pid, comm, Shown::Int(us), host] = values else { return None };
        let ms = *us as f64 / 1e3;
        let (time, pid, comm, host) = (time.text(), pid.text(), comm.text(), host.text());
        Some(format!("{time:<9} {pid:<7} {comm:<16} {ms:>10.2} {host}\n"))
    }
}
