//! A process that cannot end: the kernel keeps its first thread.
//!
//! A read of the target's memory waits for whoever has to give that memory: a file system that
//! never answers, or a thread of the target that serves page faults and stands still. Only SIGKILL
//! ends such a wait (`TASK_KILLABLE` in include/linux/sched.h). Handlers of other signals do not
//! run meanwhile.

use std::time::{Duration, Instant};

use crate::procfs;
use crate::sigmask::pending;

/// How often it is looked.
const PERIOD: Duration = Duration::from_millis(500);

/// Returns when one of `signals` has been asking this process to end, and the kernel has kept the
/// first thread for `time` since. Otherwise this never returns, so it is for a thread of its own.
///
/// `was_asked`: whether a handler has taken such a signal.
pub fn until_stuck(signals: &[i32], was_asked: impl Fn() -> bool, time: Duration) {
    let own = std::process::id() as i32;
    let mask = signals.iter().fold(0u64, |mask, signal| mask | 1 << (signal - 1));
    let (mut since, mut before) = (Instant::now(), None);
    loop {
        std::thread::sleep(PERIOD);
        let used = procfs::user_time(own, own);
        let is_kept = procfs::thread_state(own, own) == Some('D') && used == before;
        before = used;
        if !is_kept || !was_asked() && pending(own) & mask == 0 {
            since = Instant::now();
        } else if since.elapsed() >= time {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that waits by itself is not stuck, whoever asks.
    #[test]
    fn a_thread_that_sleeps_is_not_stuck() {
        let (to, from) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            until_stuck(&[], || true, Duration::ZERO);
            let _ = to.send(());
        });
        assert!(from.recv_timeout(3 * PERIOD).is_err());
    }
}
