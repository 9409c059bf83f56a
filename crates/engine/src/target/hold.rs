//! A target that is being changed: running, but for the moments in which it must not.

use std::time::{Duration, Instant};

use sidestep_sys::{Limit, Process, StopError, Stopped, is_hurried};

use crate::api::{Pause, Stops};
use crate::error::SessionError;

/// After this time a pause is over, when the piece of work is that is under way.
const PAUSE: Duration = Duration::from_micros(500);
/// But so much is done in each: to stop many threads alone may take as long.
const LEAST: Duration = Duration::from_micros(200);
/// Pauses for one list of pieces at most: where to stop the threads takes longer than the pieces
/// of a pause, thousands of pauses would take half a minute.
const PAUSES: usize = 500;
/// For how long the threads run before the next pause.
const GAP: Duration = Duration::from_millis(1);

/// A machine may be too busy for a thread to get its turn, even to stop. So often it is tried, and
/// everybody runs on in between: a detach that fails leaves probes behind.
const TRIES: u32 = 5;

/// A thread may be at the end of the only stack on which there could be room for remote calls, as
/// those of programs often are that collect their garbage when the stack is used up. For so long
/// other moments are looked for.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);

/// Stops a process.
pub(crate) fn stop(process: &Process) -> Result<Stopped, StopError> {
    for _ in 1..TRIES {
        match process.stop() {
            Err(StopError::Timeout { state: 'R', .. } | StopError::Unsettled { .. }) => std::thread::sleep(GAP),
            result => return result,
        }
    }
    process.stop()
}

/// Stops a process where remote calls have room, if there is such a moment until the limit.
fn stop_with_room(process: &Process, limit: &Limit, stops: &mut Stops) -> Result<Stopped, SessionError> {
    loop {
        let stopped = stop(process)?;
        if limit.is_over() || is_hurried() || stopped.has_room() {
            return Ok(stopped);
        }
        let (time, resumed) = stopped.resume_timed();
        stops.pauses.push(Pause { time, purpose: "room" });
        resumed?;
        if process.is_suspended() {
            return Ok(stop(process)?);
        }
        std::thread::sleep(GAP);
    }
}

/// What became of a piece of work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is done.
    Done,
    /// Not as the threads stand: when they have run on.
    Later,
}

/// How the target is held.
pub(crate) enum Hold<'a> {
    /// It runs, and is stopped for each piece of work that needs it.
    Running {
        /// It.
        process: &'a Process,
        /// How long it was stopped.
        stops: Stops,
        /// Until then, moments are looked for in which remote calls have room.
        room: Limit,
    },
    /// It has not begun yet.
    Stopped(&'a mut Stopped),
}

impl<'a> Hold<'a> {
    /// Of a process that is attached to.
    pub fn running(process: &'a Process) -> Hold<'a> {
        Hold::Running { process, stops: Stops::default(), room: Limit::after(ROOM_PATIENCE) }
    }

    /// Does it run?
    pub fn is_running(&self) -> bool {
        matches!(self, Hold::Running { .. })
    }

    /// So many sites were written while it ran; no thread stood longer alone.
    pub fn note_live(&mut self, sites: usize, longest: Duration) {
        if let Hold::Running { stops, .. } = self {
            stops.note_live(sites, longest);
        }
    }

    /// These threads could not be told apart.
    pub fn note_sharing(&mut self, sharing: Option<(i32, i32)>) {
        if let Hold::Running { stops, .. } = self {
            stops.sharing = sharing;
        }
    }

    /// What it took.
    pub fn stops(self) -> Stops {
        match self {
            Hold::Running { stops, .. } => stops,
            Hold::Stopped(_) => Stops::default(),
        }
    }

    /// The longest time that it was stopped.
    pub fn longest(&self) -> Duration {
        match self {
            Hold::Running { stops, .. } => stops.longest().map_or(Duration::ZERO, |pause| pause.time),
            Hold::Stopped(_) => Duration::ZERO,
        }
    }

    /// The target.
    pub fn process(&self) -> Process {
        match self {
            Hold::Running { process, .. } => (*process).clone(),
            Hold::Stopped(stopped) => stopped.process().clone(),
        }
    }

    /// Does a piece of work while all threads are stopped, for `purpose`.
    pub fn stopped<T>(
        &mut self,
        purpose: &'static str,
        work: impl FnOnce(&mut Stopped) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        match self {
            Hold::Running { process, stops, room } => {
                let mut stopped = stop_with_room(process, room, stops)?;
                let result = work(&mut stopped);
                let (time, resumed) = stopped.resume_timed();
                stops.pauses.push(Pause { time, purpose });
                let value = result?;
                resumed?;
                Ok(value)
            }
            Hold::Stopped(stopped) => work(stopped),
        }
    }

    /// Does pieces of work, in their order, in as many pauses as it takes for none to be long. At
    /// the beginning of each, `look` sees how things are. A piece that cannot be done as they are,
    /// of which `each` says so, is for the next pause.
    pub fn in_turns<S, T>(
        &mut self,
        purpose: impl Fn(&T) -> &'static str,
        work: &[T],
        mut look: impl FnMut(&mut Stopped) -> Result<S, SessionError>,
        mut each: impl FnMut(&mut Stopped, &S, &T) -> Result<Turn, SessionError>,
    ) -> Result<(), SessionError> {
        let lasts = !self.is_running();
        let least = work.len().div_ceil(PAUSES);
        let mut left = work;
        while let [next, ..] = left {
            self.stopped(purpose(next), |stopped| {
                let since = stopped.since();
                let seen = look(stopped)?;
                let (begin, before) = (Instant::now(), left.len());
                while let [piece, rest @ ..] = left {
                    if each(stopped, &seen, piece)? == Turn::Later {
                        break;
                    }
                    left = rest;
                    let is_much = before - left.len() >= least && begin.elapsed() > LEAST;
                    if !lasts && since.elapsed() > PAUSE && is_much {
                        break;
                    }
                }
                Ok(())
            })?;
            if !left.is_empty() {
                std::thread::sleep(GAP);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The detach from a server with 64,000 probes took 7,000 pauses, and 25 seconds.
    #[test]
    fn each_piece_that_takes_longer_than_a_pause_had_one_of_its_own() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id() as i32).unwrap();
        let mut hold = Hold::running(&process);
        let mut done = 0;
        let each = |_: &mut Stopped, (): &(), _: &()| {
            std::thread::sleep(PAUSE);
            done += 1;
            Ok(Turn::Done)
        };
        hold.in_turns(|()| "test", &[(); 3 * PAUSES], |_| Ok(()), each).unwrap();
        let stops = hold.stops();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(done, 3 * PAUSES);
        assert!(stops.pauses.len() <= PAUSES, "{}", stops.pauses.len());
    }
}
