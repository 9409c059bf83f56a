//! Times of day, and the clock that records carry.
#![allow(unsafe_code, reason = "clock_gettime and localtime_r have no counterpart in std")]

use std::mem::MaybeUninit;

use sidestep_lang::script::lower::Clock;

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of [`sidestep_engine::Record::time_ns`].
pub fn monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970.
pub fn realtime() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

/// What programs know of time, if they begin now: `start` of the monotonic clock.
pub fn clock_of_scripts(start: u64) -> Clock {
    Clock {
        start,
        since_1970: ahead(libc::CLOCK_REALTIME),
        boot: ahead(libc::CLOCK_BOOTTIME),
        tai: ahead(libc::CLOCK_TAI),
    }
}

/// By how much a clock is ahead of the monotonic one. The three looks may be interrupted, so the
/// attempt counts in which the least time passed between them. The answer is the largest that is
/// possible: `nsecs(boot)` is never before an `nsecs` that was read earlier.
fn ahead(id: libc::clockid_t) -> u64 {
    const ATTEMPTS: usize = 10;
    let attempt = |_| {
        let (before, time) = (monotonic(), clock(id));
        (monotonic() - before, time.wrapping_sub(before))
    };
    (0..ATTEMPTS).map(attempt).min().map_or(0, |(_, ahead)| ahead)
}

/// `HH:MM:SS` of a time in nanoseconds since 1970, in the local time zone.
pub fn of_day(realtime_ns: u64) -> String {
    let seconds = (realtime_ns / 1_000_000_000) as libc::time_t;
    let mut fields = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid for the call; localtime_r fills `fields` or leaves the zeros,
    // which are valid.
    let fields = unsafe {
        libc::localtime_r(&seconds, fields.as_mut_ptr());
        fields.assume_init()
    };
    format!("{:02}:{:02}:{:02}", fields.tm_hour, fields.tm_min, fields.tm_sec)
}

/// A time in nanoseconds since 1970 as `strftime(3)` prints it, in the local time zone; `%f` is
/// microseconds.
pub fn format(format: &str, realtime_ns: u64) -> String {
    let seconds = (realtime_ns / 1_000_000_000) as libc::time_t;
    let format = format.replace("%f", &format!("{:06}", realtime_ns % 1_000_000_000 / 1_000));
    let Ok(c_format) = std::ffi::CString::new(format.as_bytes()) else { return format };
    let mut fields = MaybeUninit::<libc::tm>::zeroed();
    let mut text = vec![0_u8; 64 + 32 * format.len()];
    // SAFETY: all pointers are valid for the calls; localtime_r fills `fields` or leaves the zeros,
    // which are valid; strftime writes at most `text.len()` bytes.
    let len = unsafe {
        libc::localtime_r(&seconds, fields.as_mut_ptr());
        libc::strftime(text.as_mut_ptr().cast(), text.len(), c_format.as_ptr(), fields.as_ptr())
    };
    text.truncate(len);
    String::from_utf8_lossy(&text).into_owned()
}

/// `HH:MM:SS` now.
pub fn now() -> String {
    of_day(realtime())
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call. Both clocks exist on every Linux, so it cannot fail.
    unsafe { libc::clock_gettime(id, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The boot clock was looked at first, so it seemed to be behind the monotonic one: by the time
    /// between the two looks.
    #[test]
    fn the_boot_clock_was_behind_the_monotonic_clock() {
        let least = (0..1000).map(|_| ahead(libc::CLOCK_BOOTTIME) as i64).min();
        assert!(least >= Some(0), "{least:?}");
    }

    /// `date` of coreutils is the oracle.
    #[test]
    fn time_of_day_is_local() {
        for seconds in [0_u64, 1_700_000_000, 1_720_000_000] {
            let date = std::process::Command::new("date").args(["-d", &format!("@{seconds}"), "+%T"]).output().unwrap();
            assert_eq!(of_day(seconds * 1_000_000_000 + 999), String::from_utf8(date.stdout).unwrap().trim());
        }
    }

    #[test]
    fn monotonic_is_the_clock_of_uptime() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        // Boot time counts suspends, too.
        assert!(monotonic() as f64 / 1e9 <= uptime + 1.0);
        assert!(monotonic() <= monotonic());
    }
}
