//! The time-stamp counter as a clock.
#![allow(unsafe_code, reason = "clock_gettime")]

use std::fs;
use std::time::Duration;

use crate::arch::{ticks, ticks_usable};

/// Can time stamps be taken from the processor's counter? It must tick at a constant rate, and the
/// kernel must trust it as its own clock, which implies that the CPUs agree.
#[must_use]
pub fn tsc_usable() -> bool {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    ticks_usable(&cpuinfo, source.unwrap_or_default().trim())
}

/// How TSC ticks become nanoseconds of `CLOCK_MONOTONIC`: `(ticks * mult) >> shift`, with a product
/// of 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TscScale {
    /// Multiplier.
    pub mult: u64,
    /// Shift.
    pub shift: u32,
    /// A moment: the counter…
    pub base_tsc: u64,
    /// … and the clock, in nanoseconds.
    pub base_ns: u64,
}

impl TscScale {
    /// The shift that [`TscScale::calibrate`] uses: `mult` fits into 32 bits for counters of 1 GHz
    /// and more.
    pub const SHIFT: u32 = 32;

    /// Measures the rate of the counter over `during`. Two moments are known to some 50 ns each, so
    /// 10 ms give 10 parts in a million; [`TscScale::refined`] gets better with time.
    #[must_use]
    pub fn calibrate(during: Duration) -> TscScale {
        let (base_tsc, base_ns) = moment();
        std::thread::sleep(during.max(Duration::from_millis(1)));
        TscScale { mult: 0, shift: Self::SHIFT, base_tsc, base_ns }.refined()
    }

    /// The same base with the rate measured from then until now.
    #[must_use]
    pub fn refined(&self) -> TscScale {
        let (tsc, ns) = moment();
        let ticks = u128::from(tsc.wrapping_sub(self.base_tsc)).max(1);
        let passed = u128::from(ns.saturating_sub(self.base_ns));
        TscScale { mult: ((passed << self.shift) / ticks) as u64, ..*self }
    }

    /// A distance in ticks as nanoseconds.
    #[must_use]
    pub fn ticks_to_ns(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.mult)) >> self.shift) as u64
    }

    /// What to add, wrapping, to the nanoseconds of a value of the counter to get
    /// `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.base_ns.wrapping_sub(self.ticks_to_ns(self.base_tsc))
    }

    /// A value of the counter as nanoseconds of `CLOCK_MONOTONIC`; earlier than the base is fine,
    /// too.
    #[must_use]
    pub fn to_monotonic(&self, tsc: u64) -> u64 {
        self.ticks_to_ns(tsc).wrapping_add(self.offset())
    }
}

/// Counter and clock at the same moment: the tightest of some tries.
fn moment() -> (u64, u64) {
    let one = || {
        let before = ticks();
        let ns = monotonic();
        let after = ticks();
        (after.wrapping_sub(before), before.wrapping_add(after.wrapping_sub(before) / 2), ns)
    };
    let (_, tsc, ns) = (0..16).map(|_| one()).min().unwrap_or_else(one);
    (tsc, ns)
}

/// The CPU time that all threads of a process have used so far, those that have ended included.
/// `None`: there is no such process.
#[must_use]
pub fn cpu_time(pid: i32) -> Option<Duration> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both places are valid for writing; `clock` is used only if the first call has
    // filled it.
    let failed =
        unsafe { libc::clock_getcpuclockid(pid, &mut clock) != 0 || libc::clock_gettime(clock, &mut time) != 0 };
    (!failed).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// The CPU time that the calling thread has used so far.
#[must_use]
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[must_use]
pub fn monotonic() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is valid for writing, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_stamp_of_now_lies_between_two_readings_of_the_clock() {
        let scale = TscScale::calibrate(Duration::from_millis(20));
        // 20 ms at some 100 parts in a million, if the machine was busy: 2 us, and ten times that
        // as a margin.
        let slack = 20_000;
        let before = monotonic();
        let stamp = scale.to_monotonic(ticks());
        let after = monotonic();
        assert!(before <= stamp + slack && stamp <= after + slack, "{before} {stamp} {after} {scale:?}");
    }

    #[test]
    fn cpu_time_of_a_process_grows_while_it_computes() {
        let own = std::process::id() as i32;
        let before = cpu_time(own).unwrap();
        let deadline = before + Duration::from_millis(5);
        while cpu_time(own).unwrap() < deadline {}
        // PID_MAX_LIMIT of the kernel is 2^22.
        assert_eq!(cpu_time((1 << 22) + 1), None);
    }

    #[test]
    fn conversion_is_exact_arithmetic() {
        let s = TscScale { mult: 1 << 31, shift: 32, base_tsc: 1000, base_ns: 500 };
        assert_eq!(s.ticks_to_ns(10), 5);
        assert_eq!(s.offset(), 0);
        assert_eq!(s.to_monotonic(1010), 505);
        assert_eq!(s.to_monotonic(990), 495);
        assert_eq!(s.ticks_to_ns(u64::MAX), u64::MAX / 2);
    }
}
