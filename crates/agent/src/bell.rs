//! Asking the controller, which sees it at once and answers when it has done what was asked for.
//! Nobody waits for ever: a controller that neither answers nor says that it is at work is not
//! asked again.

use core::sync::atomic::Ordering;

use sidestep_wire::{Bell, Question, Regs};

use crate::arch::{self, argument, nr};
use crate::blocked;
use crate::kernel::{self, wake};
use crate::memory::Agent;

/// How long a wait is before it is looked whether there is any use in it, in nanoseconds.
const LOOK: u64 = 100_000_000;
/// After so many looks without a sign of life the controller is not there.
const LOOKS: u32 = 50;
/// After looks of so much nobody waits any longer: another process of the session can give signs of
/// life, too. One for which the time was waited counts [`WAITED`]: 36,000 of them are an hour.
const MOST: u64 = 36_000 * WAITED;
/// See [`MOST`].
const WAITED: u64 = 1000;

/// The process is about to execute another program, if it does: the controller follows it there, if
/// it follows children, and the program gets its mask back.
/// Comes back only if that fails; the program then makes the same call once more, and gets the
/// error.
#[cold]
pub fn execute(agent: Agent, frame: &mut Regs) {
    let bell = &agent.common().bell;
    let mut arg = |index| *argument(frame, index);
    let args = [arg(0), arg(1), arg(2), arg(3), arg(4), arg(5)];
    let path = if frame.call_number() == nr::EXECVE { args[0] } else { args[1] };
    let follows = agent.private().follow != 0 && ask(bell, Question::Exec, path);
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
        ask(bell, Question::NoExec, 0);
    }
}

/// The dynamic loader has changed what is mapped. False: the controller has not looked at that.
#[cold]
pub fn mapped(agent: Agent) -> bool {
    !agent.counts() || ask(&agent.common().bell, Question::Mapped, 0)
}

/// Has the controller done what it was asked for?
fn ask(bell: &Bell, question: Question, path: u64) -> bool {
    if bell.listens.load(Ordering::Acquire) == 0 {
        return false;
    }
    let (pid, tid) = (kernel::process_id(), kernel::thread_id());
    if !take_turn(bell, tid) {
        return false;
    }
    bell.pid.store(pid, Ordering::Relaxed);
    bell.question.store(question as u32, Ordering::Relaxed);
    bell.path.store(path, Ordering::Relaxed);
    let number = bell.rung.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    wake(&bell.rung);
    let (mut looks, mut sign, mut all) = (0, 0, 0);
    let answered = loop {
        let answered = bell.answered.load(Ordering::Acquire);
        if answered == number {
            break true;
        }
        if looks == LOOKS {
            bell.listens.store(0, Ordering::Release);
        }
        if bell.listens.load(Ordering::Acquire) == 0 || all > MOST {
            break false;
        }
        all += 1;
        if !kernel::wait(&bell.answered, answered, LOOK) {
            all += WAITED;
            looks = if works(bell, &mut sign) { 0 } else { looks + 1 };
        }
    };
    let _ = bell.turn.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
    wake(&bell.turn);
    answered
}

/// One thread asks at a time. One that was killed meanwhile has had its turn.
fn take_turn(bell: &Bell, tid: u32) -> bool {
    let (mut looks, mut last, mut sign, mut all) = (0, 0, 0, 0);
    while all <= MOST {
        all += 1;
        let holder = match bell.turn.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(holder) => holder,
        };
        if holder != last {
            (looks, last) = (0, holder);
        }
        if looks > LOOKS {
            return bell.turn.compare_exchange(holder, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        }
        if bell.listens.load(Ordering::Acquire) == 0 {
            return false;
        }
        if !kernel::wait(&bell.turn, holder, LOOK) {
            all += WAITED;
            looks = if works(bell, &mut sign) { 0 } else { looks + 1 };
        }
    }
    false
}

/// Has the controller given a sign of life since the last look, whose count is in `sign`?
fn works(bell: &Bell, sign: &mut u32) -> bool {
    let now = bell.working.load(Ordering::Acquire);
    core::mem::replace(sign, now) != now
}
