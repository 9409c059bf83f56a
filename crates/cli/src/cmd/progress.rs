//! `Attaching 3120/5364`, on a terminal only, when attaching takes longer than a second.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::out::outlet::Outlet;

const PATIENCE: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_millis(100);

/// The counter on stderr.
pub struct Line {
    /// When the next state is worth showing; `None` = never.
    next: Option<Instant>,
    shown: bool,
}

impl Line {
    /// Starts the clock. `quiet`: nothing will be shown.
    pub fn new(quiet: bool) -> Line {
        let wanted = !quiet && std::io::stderr().is_terminal();
        Line { next: wanted.then(|| Instant::now() + PATIENCE), shown: false }
    }

    /// Shows how far the attach has come, unless it is too early for it.
    pub fn show(&mut self, progress: sidestep_engine::Progress) {
        let now = Instant::now();
        if self.next.is_some_and(|next| now >= next) {
            say(&format!("\rAttaching {}/{}", progress.done, progress.total));
            self.next = Some(now + PERIOD);
            self.shown = true;
        }
    }
}

impl Drop for Line {
    /// Makes room for the next message, also when the attach has failed.
    fn drop(&mut self) {
        if self.shown {
            say("\r\x1b[K");
        }
    }
}

/// The target may stand still meanwhile: no reader is waited for.
fn say(text: &str) {
    if let Some(mut stderr) = Outlet::stderr() {
        let _ = stderr.write_all(text.as_bytes());
    }
}
