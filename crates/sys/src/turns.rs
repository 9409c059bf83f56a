//! Work on a process that goes on running: its threads are stopped one at a time, each for a
//! moment. And who may do such work: one at a time, too.
#![allow(unsafe_code, reason = "flock")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::news::{self, News};
use crate::patience::Limit;
use crate::process::Process;
use crate::procfs;
use crate::stopped::{RETURN_TRIES, StopError, Stopped};
use crate::urgent::Urgent;

/// The right to change a process, until it is dropped: who has it excludes everybody else who asks
/// for it. The kernel takes it back from a controller that dies.
#[derive(Debug)]
pub struct Turn {
    _memory: File,
}

impl Process {
    /// Waits for the right to change the process, up to `timeout`; `None`: somebody else has it all
    /// the time.
    ///
    /// It is a lock of `/proc/PID/mem`, which only those can open who may trace the process, and of
    /// which there is one as long as anybody has it open.
    pub fn turn(&self, timeout: Duration) -> io::Result<Option<Turn>> {
        const LONGEST: Duration = Duration::from_millis(2);
        let memory = File::open(format!("/proc/{}/mem", self.pid()))?;
        let limit = Limit::after(timeout);
        let mut pause = Duration::from_micros(100);
        loop {
            // SAFETY: no memory is involved.
            if unsafe { libc::flock(memory.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(Some(Turn { _memory: memory }));
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EWOULDBLOCK | libc::EINTR) if !limit.is_over() => {}
                Some(libc::EWOULDBLOCK) => return Ok(None),
                _ => return Err(error),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Stops each thread for a moment, by itself (those of other processes that execute in the same
    /// memory, too), until none is left that has not been; `look` sees
    /// each of them. Those that wait in the kernel are left out if `awake`: they come back from
    /// there by themselves, and execute nothing that they have read before.
    ///
    /// A thread that was made meanwhile is stopped, too, unless the one that made it had been
    /// already. Where threads come faster than they are stopped, all are stopped together in the
    /// end. Gives the longest time that a thread stood.
    pub fn each_thread<E: From<StopError>>(
        &self,
        awake: bool,
        mut look: impl FnMut(&mut Stopped) -> Result<(), E>,
    ) -> Result<Duration, E> {
        const ROUNDS: u32 = 20;
        let exited = || StopError::Exited { pid: self.pid() };
        self.look_for_sharers();
        let mut done = BTreeSet::new();
        let mut longest = Duration::ZERO;
        for _ in 0..ROUNDS {
            let own = self.threads().map_err(|_| exited())?;
            let mut new: Vec<(i32, i32)> = own.iter().map(|tid| (self.pid(), *tid)).collect();
            let others = self.sharers();
            // One that has ended has no threads.
            let tids = |pid: &i32| procfs::threads(*pid).unwrap_or_default();
            let listed: Vec<(i32, Vec<i32>)> = others.iter().map(|pid| (*pid, tids(pid))).collect();
            new.extend(listed.iter().flat_map(|(pid, tids)| tids.iter().map(|tid| (*pid, *tid))));
            new.retain(|(_, tid)| done.insert(*tid));
            if new.is_empty() {
                if !self.is_alive() {
                    return Err(exited().into());
                }
                let all = listed.iter().all(|(pid, tids)| are_all(*pid, tids));
                if are_all(self.pid(), &own) && all && self.sharers() == others {
                    return Ok(longest);
                }
            }
            let urgent = (Urgent::new(), News::new());
            let mut called = Called::default();
            for (pid, tid) in new {
                let waits = || matches!(procfs::thread_state(pid, tid), Some('S' | 'D' | 'T' | 'I'));
                if !(awake && waits() || procfs::is_worker(pid, tid)) {
                    called.call(self, pid, tid)?;
                }
            }
            called.all(&mut |stopped| {
                let looked = look(stopped);
                // Dead, or on its way back by itself.
                let _ = stopped.let_go();
                longest = longest.max(stopped.stood());
                looked
            })?;
            drop(urgent);
        }
        let mut stopped = self.stop()?;
        let looked = look(&mut stopped);
        // Dead, or on its way back by itself.
        let _ = stopped.let_go();
        looked.map(|()| longest.max(stopped.stood()))
    }
}

/// Were these all threads of a process at some moment behind the look that has found them? A list
/// may miss threads ([`procfs::threads`]), but those that are in two lists were there in between,
/// and if the kernel counted no more then, nobody else was.
fn are_all(pid: i32, listed: &[i32]) -> bool {
    let counted = procfs::thread_count(pid);
    counted.is_ok_and(|count| count == listed.len()) && procfs::threads(pid).is_ok_and(|again| again == listed)
}

/// Threads that have been told to stop, and have not. All are told at once: most of the time it
/// takes is until each gets a CPU.
#[derive(Default)]
struct Called(Vec<(i32, Stopped, u32)>);

impl Called {
    fn call(&mut self, process: &Process, pid: i32, tid: i32) -> Result<(), StopError> {
        if let Some(stopped) = Stopped::begin_thread(process.clone(), pid, tid)? {
            self.0.push((tid, stopped, RETURN_TRIES));
        }
        Ok(())
    }

    /// Waits for all of them; `each` lets them go on.
    fn all<E: From<StopError>>(&mut self, each: &mut dyn FnMut(&mut Stopped) -> Result<(), E>) -> Result<(), E> {
        const TIMEOUT: Duration = Duration::from_secs(2);
        const YIELDS: u32 = 200;
        // As long as some do, the others only wait for a CPU.
        let mut limit = Limit::after(TIMEOUT);
        for round in 0u32.. {
            let late = limit.is_over();
            let mut i = 0;
            while i < self.0.len() {
                let (tid, stopped, leftover) = &mut self.0[i];
                if !stopped.has_stopped(*tid, leftover)? {
                    i += 1;
                    continue;
                }
                limit = Limit::after(TIMEOUT);
                let (_, mut stopped, _) = self.0.swap_remove(i);
                stopped.release_strangers();
                if !stopped.threads().is_empty() {
                    each(&mut stopped)?;
                }
            }
            match self.0.first() {
                None => break,
                Some((tid, stopped, _)) if late && limit.is_over() => {
                    return Err(stopped.timed_out(*tid, limit.waited()).into());
                }
                Some(_) if round < YIELDS => news::wait(),
                Some(_) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        Ok(())
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        for (tid, stopped, _) in &self.0 {
            stopped.give_up(*tid);
        }
    }
}
