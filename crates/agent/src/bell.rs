//! Asking the controller, which sees it at once and answers when it has done what was asked for.
//! Nobody waits for ever: a controller that neither answers nor says that it is at work is not
//! asked again.

use core::sync::atomic::{AtomicU32, Ordering};

use sidestep_wire::{Bell, PATIENCE, Question, Regs};

use crate::arch::{self, argument, nr};
use crate::blocked;
use crate::kernel::{self, wake};
use crate::memory::Agent;

/// How long a wait is before it is looked whether there is any use in it, in nanoseconds.
const LOOK: u64 = 100_000_000;
/// After so many looks without a sign of life the controller is not there.
const LOOKS: u32 = 50;
/// After so many rings that the controller has heard and not answered, it cannot read this process.
const RINGS: u32 = 10;

/// The process is about to execute another program, if it does: the controllers that follow
/// children follow it there, of all sessions that use the signals of this one, and the program gets
/// its mask back.
/// Comes back only if that fails; the program then makes the same call once more, and gets the
/// error.
#[cold]
pub fn execute(agent: Agent, frame: &mut Regs) {
    let following = || agent.sharing().filter(|session| session.private().follow != 0);
    let mut arg = |index| *argument(frame, index);
    let args = [arg(0), arg(1), arg(2), arg(3), arg(4), arg(5)];
    let path = if frame.call_number() == nr::EXECVE { args[0] } else { args[1] };
    let mut follows = false;
    for session in following() {
        follows |= ask(session, Question::Exec, path);
    }
    let mask = blocked::give_back(agent);
    if !follows && mask.is_none() {
        return;
    }
    // SAFETY: the program's own call, with its own arguments.
    unsafe { arch::syscall(frame.call_number(), args) };
    if let Some(mask) = mask {
        kernel::set_mask(mask);
    }
    if follows {
        for session in following() {
            ask(session, Question::NoExec, 0);
        }
    }
}

/// The dynamic loader has changed what is mapped. False: the controller has not looked at that.
#[cold]
pub fn mapped(agent: Agent) -> bool {
    !agent.counts() || ask(agent, Question::Mapped, 0)
}

/// Has the controller done what it was asked for? Another process of the session may have written
/// anything to the bell: what counts is the answer in memory of this process.
fn ask(agent: Agent, question: Question, path: u64) -> bool {
    let (bell, asked) = (&agent.common().bell, &agent.private().asked);
    if bell.listens.load(Ordering::Acquire) == 0 || asked.given_up.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let (pid, tid) = (kernel::process_id(), kernel::thread_id());
    let until = agent.monotonic().wrapping_add(PATIENCE);
    if !take_turn(agent, tid, until) {
        return false;
    }
    asked.pid.store(pid, Ordering::Relaxed);
    asked.tid.store(tid, Ordering::Relaxed);
    asked.question.store(question as u32, Ordering::Relaxed);
    asked.path.store(path, Ordering::Relaxed);
    let number = asked.number.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    let (mut rung, mut rings, mut last) = (ring(bell, pid), 0, agent.monotonic());
    let mut wait = Wait::new(until);
    let answered = loop {
        let heard = bell.heard.load(Ordering::Acquire);
        if asked.answered.load(Ordering::Acquire) == number {
            break true;
        }
        if bell.listens.load(Ordering::Acquire) == 0 || wait.is_over(agent) {
            break false;
        }
        if wait.looks > LOOKS {
            bell.listens.store(0, Ordering::Release);
            break false;
        }
        if rings > RINGS {
            asked.given_up.store(1, Ordering::Relaxed);
            break false;
        }
        // Heard without an answer, or not heard: another process may have written to the bell.
        let now = agent.monotonic();
        if (heard == rung || wait.looks > 0) && now.wrapping_sub(last) > LOOK {
            rings += u32::from(heard == rung);
            (rung, last) = (ring(bell, pid), now);
        }
        wait.look(bell, &bell.heard, heard);
    };
    let _ = bell.turn.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
    wake(&bell.turn);
    answered
}

/// Tells the controller that a process asks; the number of this ring.
fn ring(bell: &Bell, pid: u32) -> u32 {
    bell.pid.store(pid, Ordering::Relaxed);
    let rung = bell.rung.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    wake(&bell.rung);
    rung
}

/// One thread asks at a time. One that was killed meanwhile has had its turn.
fn take_turn(agent: Agent, tid: u32, until: u64) -> bool {
    let bell = &agent.common().bell;
    let (mut wait, mut last) = (Wait::new(until), 0);
    loop {
        let holder = match bell.turn.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(holder) => holder,
        };
        if holder != last {
            (wait.looks, last) = (0, holder);
        }
        if wait.looks > LOOKS {
            return bell.turn.compare_exchange(holder, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        }
        if bell.listens.load(Ordering::Acquire) == 0 || wait.is_over(agent) {
            return false;
        }
        wait.look(bell, &bell.turn, holder);
    }
}

/// A wait for the controller.
struct Wait {
    /// When it ends, whatever signs of life there are: another process of the session can give
    /// them, too.
    until: u64,
    /// Looks since the last sign of life.
    looks: u32,
    /// The last value of [`Bell::working`].
    sign: u32,
}

impl Wait {
    fn new(until: u64) -> Wait {
        Wait { until, looks: 0, sign: 0 }
    }

    fn is_over(&self, agent: Agent) -> bool {
        agent.monotonic() > self.until
    }

    /// Waits as long as a word has this value, for one look at most.
    fn look(&mut self, bell: &Bell, word: &AtomicU32, value: u32) {
        if kernel::wait(word, value, LOOK) {
            return;
        }
        let now = bell.working.load(Ordering::Acquire);
        let works = core::mem::replace(&mut self.sign, now) != now;
        self.looks = if works { 0 } else { self.looks + 1 };
    }
}
