//! Stopping and resuming.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sidestep_sys::{OpenError, Process, StopError, Stopped};

use crate::target::{Build, SYSCALL, Target, kill};

#[test]
fn sixty_four_threads_stop_and_go_on_a_hundred_times() {
    let target = Target::start(Build::Worker, &["sums", "64"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..100 {
        let stopped = process.stop().unwrap();
        assert_eq!(stopped.threads().len(), 65);
        let mut tids: Vec<i32> = stopped.threads().iter().map(|t| t.tid).collect();
        tids.sort_unstable();
        assert_eq!(tids, process.threads().unwrap());
        let maps = process.maps().unwrap();
        for thread in stopped.threads() {
            assert!(maps.iter().any(|m| m.exec && m.contains(thread.regs.ip())));
            assert!(maps.iter().any(|m| m.write && m.contains(thread.regs.sp())));
        }
        stopped.resume().unwrap();
    }
    target.finish_well();
}

/// A thread was stopped between a trap and the handler of its signal. Where it was given other
/// registers for a remote call, and the controller was killed, the handler found those.
#[test]
fn threads_stood_between_a_trap_and_its_signal() {
    let target = Target::start(Build::Worker, &["traps", "2"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..1000 {
        let stopped = process.stop().unwrap();
        for thread in stopped.threads() {
            let path = format!("/proc/{}/task/{}/status", target.pid(), thread.tid);
            let status = std::fs::read_to_string(path).unwrap();
            let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:\t")).unwrap();
            assert_eq!(u64::from_str_radix(pending, 16).unwrap() & 1 << (libc::SIGTRAP - 1), 0);
        }
        stopped.resume().unwrap();
    }
    target.finish_well();
}

/// The kernel answered nothing about a thread that had executed a program and was not the first of
/// its process, and the stop waited for it for ever.
#[test]
fn other_threads_than_the_first_execute_programs() {
    let target = Target::start(Build::Worker, &["executes"]);
    let begin = Instant::now();
    let mut stops = 0;
    while stops < 200 && begin.elapsed() < Duration::from_secs(60) {
        // Where a program is executed right now, there may be nothing to open or to stop.
        let Ok(process) = Process::open(target.pid()) else { continue };
        if let Ok(stopped) = process.stop() {
            stops += 1;
            // It may be another program than the one that was opened.
            let _ = stopped.resume();
        }
    }
    assert_eq!(stops, 200);
    target.finish_well();
}

/// Whoever stops a process has it for himself; the others wait for their turn.
#[test]
fn those_who_stop_a_process_take_turns() {
    let target = Target::start(Build::Worker, &["sums", "8"]);
    let pid = target.pid();
    let inside = AtomicU32::new(0);
    // Nobody queues: on a machine with much to do, one of three may be unlucky for seconds.
    let patience = Duration::from_secs(60);
    let take_turns = || {
        let process = Process::look_at(pid).unwrap();
        for _ in 0..30 {
            let stopped = process.stop_within(patience).unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
            assert_eq!(stopped.threads().len(), 9);
            std::thread::sleep(Duration::from_millis(1));
            inside.fetch_sub(1, Ordering::SeqCst);
            stopped.resume().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| (0..3).for_each(|_| _ = scope.spawn(take_turns)));
    target.finish_well();
}

/// A system call with a timeout continues for the rest of it.
fn keeps_its_time(kind: &str) {
    let target = Target::start(Build::Worker, &[kind]);
    let process = Process::open(target.pid()).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        target.await_state('S');
        let mut stopped = process.stop().unwrap();
        assert!(stopped.threads()[0].regs.restarts());
        let code: [u8; 2] = process.read_pod(stopped.threads()[0].regs.ip()).unwrap();
        assert_eq!(code, SYSCALL, "a restarting call stands at its syscall instruction");
        assert_eq!(stopped.call(libc::SYS_getppid, [0; 6]).unwrap(), u64::from(std::process::id()));
        drop(stopped);
        std::thread::sleep(Duration::from_millis(100));
    }
    let (text, code) = target.finish();
    assert_eq!(code, Some(0));
    let (result, time) = text.trim().split_once(" after ").unwrap();
    assert_eq!(result, "returned 0");
    let ms: u64 = time.strip_suffix(" ms").unwrap().parse().unwrap();
    // Begun anew after the last stop it would take 3.5 s.
    assert!((2000..3000).contains(&ms), "{text}");
}

#[test]
fn nanosleep_sleeps_its_rest() {
    keeps_its_time("nanosleep");
}

#[test]
fn a_futex_wait_with_a_timeout_waits_its_rest() {
    keeps_its_time("futex");
}

#[test]
fn poll_waits_its_rest() {
    keeps_its_time("poll");
}

#[test]
fn epoll_wait_gets_its_event() {
    let target = Target::start(Build::Worker, &["epoll"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..20 {
        process.stop().unwrap().call(libc::SYS_getpid, [0; 6]).unwrap();
    }
    assert_eq!(target.finish(), ("epoll 1\n".to_owned(), Some(0)));
}

#[test]
fn sigsuspend_keeps_its_mask_and_returns_only_for_a_signal() {
    let target = Target::start(Build::Worker, &["sigsuspend"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..20 {
        target.await_state('S');
        process.stop().unwrap().call(libc::SYS_getpid, [0; 6]).unwrap();
    }
    let stopped = process.stop().unwrap();
    kill(target.pid(), "USR1");
    drop(stopped);
    assert_eq!(target.finish(), ("-1 1 1 mask 11\n".to_owned(), Some(0)));
}

#[test]
fn a_suspended_process_stays_suspended() {
    let target = Target::start(Build::Worker, &["sums", "3"]);
    let process = Process::open(target.pid()).unwrap();
    kill(target.pid(), "STOP");
    target.await_state('T');
    let mut stopped = process.stop().unwrap();
    assert_eq!(stopped.call(libc::SYS_getpid, [0; 6]).unwrap(), target.pid() as u64);
    stopped.resume().unwrap();
    target.await_state('T');
    let stopped = process.stop().unwrap();
    kill(target.pid(), "CONT");
    stopped.resume().unwrap();
    target.finish_well();
}

/// A thread got a few microseconds, in which others had the CPU, and stood where it had stood.
#[test]
fn a_thread_got_no_cpu_while_it_was_let_go_on() {
    let target = Target::start(Build::Worker, &["sums", "1"]);
    let process = Process::open(target.pid()).unwrap();
    if std::fs::read_to_string("/proc/self/schedstat").map_or(true, |text| text.ends_with(" 0\n")) {
        eprintln!("skipped: this kernel does not count how often a thread gets a CPU");
        return target.finish_well();
    }
    let _others = [(); 3].map(|()| Busy::on_the_cpu_of(target.pid()));
    let mut stopped = process.stop().unwrap();
    let adds = stopped.threads().iter().map(|thread| thread.tid).find(|tid| *tid != target.pid()).unwrap();
    let place = |stopped: &Stopped| stopped.threads().iter().find(|thread| thread.tid == adds).unwrap().regs;
    let mut went_on = 0;
    for _ in 0..40 {
        let before = place(&stopped);
        stopped.nudge(adds, Duration::from_micros(50)).unwrap();
        went_on += u32::from(format!("{:?}", place(&stopped)) != format!("{before:?}"));
    }
    stopped.resume().unwrap();
    assert!(went_on > 10, "{went_on} of 40");
    target.finish_well();
}

/// A program that wants a CPU all the time. Ends with this.
struct Busy(Child);

impl Busy {
    /// On the first CPU of this process, to which it also binds a process.
    fn on_the_cpu_of(pid: i32) -> Busy {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        let cpu = cpus.trim().split([',', '-']).next().unwrap();
        let bind = Command::new("taskset").args(["-a", "-p", "-c", cpu, &pid.to_string()]).output().unwrap();
        assert!(bind.status.success(), "{bind:?}");
        Busy(Command::new("taskset").args(["-c", cpu, "sh", "-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_suspended_while_it_works_for_us_is_suspended_afterwards() {
    let target = Target::start(Build::Worker, &["sums", "3"]);
    let process = Process::open(target.pid()).unwrap();
    let mut stopped = process.stop().unwrap();
    stopped.call(libc::SYS_getpid, [0; 6]).unwrap();
    kill(target.pid(), "STOP");
    stopped.call(libc::SYS_getpid, [0; 6]).unwrap();
    stopped.resume().unwrap();
    target.await_state('T');
    kill(target.pid(), "CONT");
    target.finish_well();
}

/// The kernel takes the signal of a timer for the stop that was asked for, if that is while it sets
/// the timer again: the thread then stopped at each further signal, and never for us.
#[test]
fn an_interrupt_was_lost_to_the_signal_of_a_timer() {
    let target = Target::start(Build::Worker, &["timers", "4"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..3000 {
        process.stop().unwrap().resume().unwrap();
    }
    target.finish_well();
}

#[test]
fn no_signal_of_a_storm_is_lost() {
    let target = Target::start(Build::Worker, &["signals"]);
    let pid = target.pid();
    let process = Process::open(pid).unwrap();
    let sender = std::thread::spawn(move || {
        let mut sent = 0;
        while sent < 3000 {
            let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(1) };
            #[allow(unsafe_code)]
            // SAFETY: no memory is involved.
            if unsafe { libc::sigqueue(pid, libc::SIGRTMIN(), value) } == 0 {
                sent += 1;
            } else {
                // The queue is full.
                std::thread::sleep(Duration::from_millis(1));
            }
            if sent % 50 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut stops = 0;
    while !sender.is_finished() || stops < 50 {
        let mut stopped = process.stop().unwrap();
        stopped.call(libc::SYS_getpid, [0; 6]).unwrap();
        stopped.resume().unwrap();
        stops += 1;
    }
    sender.join().unwrap();
    assert_eq!(target.finish(), ("bad 0 queued 3000 ticked 1\n".to_owned(), Some(0)));
}

#[test]
fn a_thread_moved_elsewhere_goes_on_there() {
    // The program's own exit_group call, made by hand: the tiny program's code is known.
    let target = Target::start(Build::Tiny, &[]);
    let process = Process::open(target.pid()).unwrap();
    target.await_state('S');
    let mut stopped = process.stop().unwrap();
    let thread = stopped.threads()[0].clone();
    // From the `syscall` of read to that of write (the first in the text); it restarts as read(0,
    // …) all the same.
    let text = process.maps().unwrap().iter().find(|m| m.exec).unwrap().start;
    let mut code = [0; 64];
    stopped.read(text, &mut code).unwrap();
    let first = code.windows(2).position(|w| w == SYSCALL).unwrap();
    let to = text.offset(first as i64);
    assert_ne!(thread.regs.ip(), to);
    stopped.call(libc::SYS_getpid, [0; 6]).unwrap();
    stopped.set_ip(thread.tid, to).unwrap();
    assert_eq!(stopped.threads()[0].regs.ip(), to);
    stopped.resume().unwrap();
    target.await_state('S');
    let stopped = process.stop().unwrap();
    assert_eq!(stopped.threads()[0].regs.ip(), to);
    stopped.resume().unwrap();
    assert_eq!(target.finish(), (String::new(), Some(0)));
}

#[test]
fn a_process_that_dies_is_reported() {
    let target = Target::start(Build::Worker, &["sums", "2"]);
    let process = Process::open(target.pid()).unwrap();
    let mut stopped = process.stop().unwrap();
    kill(target.pid(), "KILL");
    assert!(stopped.call(libc::SYS_getpid, [0; 6]).is_err());
    drop(stopped);
    target.await_state('Z');
    assert!(!process.is_alive());
    assert!(process.is_replaced());
    assert!(matches!(process.stop(), Err(StopError::Exited { .. })));
    assert!(matches!(Process::open(target.pid()), Err(OpenError::Zombie { .. })));
}

#[test]
fn processes_that_cannot_be_opened_are_named() {
    let message = |pid| Process::open(pid).unwrap_err().to_string();
    assert_eq!(message(0x3fff_fff0), "no process with pid 1073741808; list the running ones with ps -e");
    assert_eq!(message(-1), "no process with pid -1; list the running ones with ps -e");
    assert!(message(2).contains("is a kernel thread"), "{}", message(2));
    let target = Target::start(Build::Worker, &["blocked", "1"]);
    let process = Process::open(target.pid()).unwrap();
    let thread = *process.threads().unwrap().last().unwrap();
    assert!(message(thread).contains(&format!("is a thread of process {}", target.pid())));
    assert_eq!(process.comm().unwrap(), "Worker");
    assert!(process.exe().unwrap().ends_with("Worker"));
}

#[test]
fn a_thread_that_hangs_in_the_kernel_is_named_and_left_alone() {
    let target = Target::start(Build::Worker, &["vfork"]);
    let process = Process::open(target.pid()).unwrap();
    target.await_state('D');
    let e = process.stop_within(Duration::from_millis(100)).unwrap_err();
    assert!(matches!(e, StopError::Timeout { state: 'D', .. }), "{e}");
    // With more patience it works, and without us the thread goes on.
    let mut stopped = process.stop_within(Duration::from_secs(20)).unwrap();
    assert_eq!(stopped.call(libc::SYS_getpid, [0; 6]).unwrap(), target.pid() as u64);
    stopped.resume().unwrap();
    target.finish_well();
}

#[test]
fn a_thread_that_hung_goes_on_when_the_process_is_let_go() {
    let target = Target::start(Build::Worker, &["vfork"]);
    let process = Process::open(target.pid()).unwrap();
    target.await_state('D');
    assert!(process.stop_within(Duration::from_millis(100)).is_err());
    // Its child ends, and it stops for us.
    target.await_state('t');
    drop(process);
    target.finish_well();
}

#[test]
fn another_users_process_is_refused_with_what_to_do() {
    let target = Target::start(Build::Worker, &["blocked", "1"]);
    let pid = target.pid();
    let other = std::thread::spawn(move || {
        #[allow(unsafe_code)]
        // SAFETY: no memory is involved. The bare system call changes this thread only.
        let r = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
        assert!(r == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM));
        // If we are not root ourselves: init is not ours either.
        Process::open(if r == 0 { pid } else { 1 }).unwrap_err()
    });
    let e = other.join().unwrap();
    assert!(matches!(e, OpenError::OtherUser { uid: 0, .. }), "{e}");
    assert!(e.to_string().ends_with("belongs to user id 0; run as that user or as root"), "{e}");
    target.finish_well();
}
