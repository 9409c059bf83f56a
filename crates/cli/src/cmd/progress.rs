//! `Attaching 3120/5364`, on a terminal only, when attaching takes longer than a second. Where
//! nothing is counted yet, `Attaching...`: the code of a very large program takes half a minute.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::out::outlet::Outlet;

const PATIENCE: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_millis(100);

/// The counter on stderr.
pub struct Line {
    /// When the next state is worth showing; `None` = never.
    next: Option<Instant>,
    shown: bool,
    first: Option<First>,
}

/// What is shown as long as there is nothing to count.
struct First {
    stop: Sender<()>,
    thread: JoinHandle<bool>,
}

impl First {
    fn start() -> First {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let is_late = stopped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
            if is_late {
                say("\rAttaching...");
            }
            is_late
        });
        First { stop, thread }
    }

    /// Whether it was shown. From now on it is not.
    fn end(self) -> bool {
        drop(self.stop);
        self.thread.join().unwrap_or(false)
    }
}

impl Line {
    /// Starts the clock. `quiet`: nothing will be shown.
    pub fn new(quiet: bool) -> Line {
        let wanted = !quiet && std::io::stderr().is_terminal();
        let next = wanted.then(|| Instant::now() + PATIENCE);
        Line { next, shown: false, first: wanted.then(First::start) }
    }

    /// Shows how far the attach has come, unless it is too early for it.
    pub fn show(&mut self, progress: sidestep_engine::Progress) {
        let now = Instant::now();
        if self.next.is_some_and(|next| now >= next) {
            self.end_first();
            say(&format!("\rAttaching {}/{}", progress.done, progress.total));
            self.next = Some(now + PERIOD);
            self.shown = true;
        }
    }

    fn end_first(&mut self) {
        self.shown |= self.first.take().is_some_and(First::end);
    }
}

impl Drop for Line {
    /// Makes room for the next message, also when the attach has failed.
    fn drop(&mut self) {
        self.end_first();
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
