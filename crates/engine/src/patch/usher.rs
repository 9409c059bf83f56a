//! Threads that leave the code of a session one by one, while all others stand: of many threads
//! that come back there all the time, some thread is there at each look.

use std::ops::Range;
use std::time::{Duration, Instant};

use sidestep_sys::{Stopped, is_hurried};

use crate::error::{Inside, SessionError};

/// How much longer threads go on at each try, up to so many times that; then from the beginning.
/// Between two faults a thread may have a few microseconds, and where it is stopped at the second
/// one, it has gone too far.
const ALONE: Duration = Duration::from_micros(4);
const ROUNDS: u32 = 16;
/// For how long a thread goes on in a signal handler of the program, at first; twice as long at
/// each try, up to [`DOUBLED`] times: the next signal may wait already.
const IN_HANDLER: Duration = Duration::from_millis(1);
const DOUBLED: u32 = 3;
/// The time that handlers get in a detach, in all: a handler may compute for long.
const HANDLERS: Duration = Duration::from_secs(1);
/// How much longer a pause is, about. On a busy machine a thread waits for a CPU for tens of
/// milliseconds each time, so a pause lasts until all have gone on [`TRIES`] times, or until the
/// [`LONGEST`] time is over.
const LONG: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);
const TRIES: u32 = 8;
/// How many tries a detach makes before it is given up.
const LEAST_TRIES: u32 = 10 * TRIES;

/// A thread that keeps a detach from its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct StillThere {
    pub tid: i32,
    pub how: Inside,
    /// All that the thread needs to leave is a CPU, as far as is known.
    runs: bool,
}

impl StillThere {
    /// In code of ours.
    pub fn in_code(tid: i32) -> StillThere {
        StillThere { tid, how: Inside::Code, runs: true }
    }

    /// In a function of the program that handles a probe.
    pub fn in_function(tid: i32) -> StillThere {
        StillThere { tid, how: Inside::Function, runs: false }
    }

    /// In a signal handler of the program that has interrupted a probe.
    pub fn in_handler(tid: i32) -> StillThere {
        StillThere { tid, how: Inside::SignalHandler, runs: true }
    }

    fn is_in_handler(&self) -> bool {
        self.how == Inside::SignalHandler
    }
}

/// How many tries a detach has made, and how much time handlers have got.
#[derive(Debug, Default)]
pub(super) struct Usher {
    tries: u32,
    handlers: Duration,
}

impl Usher {
    /// May more tries help a thread that stays?
    pub fn can_help(&self, thread: StillThere) -> bool {
        thread.runs && self.tries < LEAST_TRIES && !(thread.is_in_handler() && self.handlers >= HANDLERS)
    }

    /// Lets the threads go on that `stay`, and those in this `code`, until none stays or the pause
    /// is too long. `end` says which threads stay then. `suspended`: a signal has stopped the
    /// process, so its threads never leave by themselves. Threads in code get so much more time,
    /// and handlers get none.
    pub fn pass(
        &mut self,
        stopped: &mut Stopped,
        code: &[Range<u64>],
        mut stay: Vec<StillThere>,
        suspended: Option<Duration>,
        end: &mut dyn FnMut(&mut Stopped) -> Result<Vec<StillThere>, SessionError>,
    ) -> Result<Vec<StillThere>, SessionError> {
        let (begun, first) = (Instant::now(), self.tries);
        while !stay.is_empty() && !is_hurried() {
            let may_leave = suspended.is_some() || stay.iter().all(|thread| thread.runs);
            let time = begun.elapsed();
            if !may_leave || time >= LONG && (self.tries >= first + TRIES || time >= LONGEST) {
                break;
            }
            let is_handler = |thread: &&StillThere| suspended.is_none() && thread.is_in_handler();
            let mut handlers: Vec<i32> = stay.iter().filter(is_handler).map(|thread| thread.tid).collect();
            // A thread may have several handlers under way.
            handlers.dedup();
            if !handlers.is_empty() && self.handlers >= HANDLERS {
                break;
            }
            let alone = suspended.unwrap_or_default() + ALONE * (1 + self.tries % ROUNDS);
            let returns = |tid: i32| stopped.returning() == Some(tid);
            let inside = |ip: u64| code.iter().any(|range| range.contains(&ip));
            let threads = stopped.threads().iter();
            let in_code: Vec<i32> =
                threads.filter(|t| inside(t.regs.ip().0) || returns(t.tid)).map(|thread| thread.tid).collect();
            for tid in in_code {
                nudge(stopped, tid, alone)?;
            }
            let in_handler = IN_HANDLER * (1 << (self.tries - first).min(DOUBLED));
            let place = |stopped: &Stopped, tid: i32| {
                let regs = stopped.threads().iter().find(|thread| thread.tid == tid)?.regs;
                regs.waits().then(|| (regs.ip(), regs.sp()))
            };
            let mut waiting = Vec::new();
            for tid in handlers {
                if self.handlers >= HANDLERS || begun.elapsed() >= LONGEST || is_hurried() {
                    break;
                }
                let before = place(stopped, tid);
                nudge(stopped, tid, in_handler)?;
                self.handlers += in_handler;
                if before.is_some() && place(stopped, tid) == before {
                    waiting.push(tid);
                }
            }
            self.tries += 1;
            stay = end(stopped)?;
            for thread in stay.iter_mut().filter(|thread| waiting.contains(&thread.tid)) {
                thread.runs &= !thread.is_in_handler();
            }
        }
        Ok(stay)
    }
}

/// Lets a thread go on for a moment, if it is there: another one may have ended it, or the process.
pub(super) fn nudge(stopped: &mut Stopped, tid: i32, time: Duration) -> Result<(), SessionError> {
    if stopped.threads().iter().any(|thread| thread.tid == tid) {
        stopped.nudge(tid, time)?;
    }
    Ok(())
}
