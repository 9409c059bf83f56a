//! Remote system calls.

use sidestep_isa::{Len, Va};
use sidestep_sys::{ADD, Batch, CallError, MemoryError, Process, SharedMap, arch};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::target::{Build, Target};

const RW: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const RX: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
const ANON: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;

/// Maps, uses and unmaps memory in the target, and shares some with it.
fn maps_and_unmaps(target: &Target) {
    let process = Process::open(target.pid()).unwrap();
    let before = process.maps_text().unwrap();
    for _ in 0..5 {
        let mut stopped = process.stop().unwrap();
        let data = Va(stopped.call(arch::MMAP, [0, 8192, RW, ANON, u64::MAX, 0]).unwrap());
        let code = Va(stopped.call(arch::MMAP, [0, 4096, RX, ANON, u64::MAX, 0]).unwrap());
        stopped.write(code, b"\xc3text").unwrap();
        stopped.write(data, b"memory\0").unwrap();
        assert_eq!(stopped.read_pod::<[u8; 5]>(code).unwrap(), *b"\xc3text");

        // Frames elsewhere from now on, and a descriptor made with a name out of the target's own
        // memory.
        stopped.use_scratch(data.plus(Len(0)), Len(8192)).unwrap();
        let fd = stopped.call(libc::SYS_memfd_create, [data.0, libc::MFD_ALLOW_SEALING.into(), 0, 0, 0, 0]).unwrap();
        let args = [0, 4096, RW, libc::MAP_SHARED as u64, fd, 0];
        let shared = Va(stopped.call(arch::MMAP, args).unwrap());
        let ours = SharedMap::from_target_fd(target.pid(), fd as i32, 4096).unwrap();
        stopped.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]).unwrap();
        ours.get::<AtomicU32>(12).unwrap().store(0x1234_5678, Ordering::Relaxed);
        assert_eq!(stopped.read_pod::<u32>(shared.plus(Len(12))).unwrap(), 0x1234_5678);

        // Several calls at one go, with single ones around them.
        stopped.write(code, arch::BATCH_CODE).unwrap();
        let batch = Batch { code, list: data, len: Len(1024) };
        let calls =
            [(libc::SYS_getpid, [0; 6]), (libc::SYS_madvise, [data.0, 8192, libc::MADV_DONTDUMP as u64, 0, 0, 0])];
        for n in 1..=2 {
            assert_eq!(stopped.batch(&batch, &calls[..n]).unwrap(), [target.pid() as u64, 0][..n]);
        }
        // Additions between them.
        let counter = data.plus(Len(4096));
        stopped.write(counter, &[0xff, 0xff, 7, 7]).unwrap();
        for (by, expected) in [(2, [1, 0, 7, 7]), (u64::MAX, [0, 0, 7, 7]), (u64::MAX, [0xff, 0xff, 7, 7])] {
            let results = stopped.batch(&batch, &[calls[0], (ADD, [counter.0, by, 0, 0, 0, 0]), calls[0]]).unwrap();
            assert_eq!(results, [target.pid() as u64, 0, target.pid() as u64]);
            assert_eq!(stopped.read_pod::<[u8; 4]>(counter).unwrap(), expected);
        }
        assert!(Batch::len(batch.room()) <= 1024 && Batch::len(batch.room() + 1) > 1024);
        let bad = stopped.batch(&batch, &[(libc::SYS_close, [fd, 0, 0, 0, 0, 0]), calls[0]]);
        assert!(matches!(bad, Err(CallError::Errno { errno: libc::EBADF, .. })), "{bad:?}");
        let bad = stopped.batch(&Batch { len: Len(8), ..batch }, &calls);
        assert!(matches!(bad, Err(CallError::Scratch { .. })), "{bad:?}");

        let bad = stopped.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        assert!(matches!(bad, Err(CallError::Errno { errno: libc::EBADF, .. })), "{bad:?}");
        stopped.resume().unwrap();

        let mut stopped = process.stop().unwrap();
        for (at, len) in [(data, 8192), (code, 4096), (shared, 4096)] {
            stopped.call(libc::SYS_munmap, [at.0, len, 0, 0, 0, 0]).unwrap();
        }
        stopped.resume().unwrap();
    }
    // The heap and thread stacks of a running program may change; its code may not.
    let code = |text: &[u8]| sidestep_sys::parse_maps(text).into_iter().filter(|m| m.exec).collect::<Vec<_>>();
    assert_eq!(code(&before), code(&process.maps_text().unwrap()));
}

#[test]
fn a_dynamic_program_maps_memory_for_us() {
    let target = Target::start(Build::Worker, &["mixed"]);
    maps_and_unmaps(&target);
    target.finish_well();
}

#[test]
fn a_static_program_maps_memory_for_us() {
    let target = Target::start(Build::Static, &["mixed"]);
    maps_and_unmaps(&target);
    target.finish_well();
}

#[cfg(target_pointer_width = "64")]
#[test]
fn a_musl_program_maps_memory_for_us() {
    let target = Target::start(Build::Musl, &["mixed"]);
    maps_and_unmaps(&target);
    target.finish_well();
}

#[cfg(target_pointer_width = "64")]
#[test]
fn a_go_program_maps_memory_for_us() {
    let target = Target::start(Build::Go, &[]);
    maps_and_unmaps(&target);
    target.finish_well();
}

#[test]
fn a_program_without_any_library_maps_memory_for_us() {
    let target = Target::start(Build::Tiny, &[]);
    let process = Process::open(target.pid()).unwrap();
    let vdso = process.maps().unwrap().into_iter().find(|m| m.name == "[vdso]").unwrap();
    let mut before = vec![0; (vdso.end.0 - vdso.start.0) as usize];
    process.read(vdso.start, &mut before).unwrap();
    maps_and_unmaps(&target);
    let mut after = vec![1; before.len()];
    process.read(vdso.start, &mut after).unwrap();
    assert_eq!(before, after, "our own gadgets are gone again");
    assert_eq!(target.finish(), (String::new(), Some(0)));
}

#[test]
fn all_registers_survive_calls() {
    let target = Target::start(Build::Worker, &["vectors", "2"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..100 {
        let mut stopped = process.stop().unwrap();
        for _ in 0..3 {
            stopped.call(libc::SYS_getpid, [0; 6]).unwrap();
        }
        stopped.resume().unwrap();
    }
    target.finish_well();
}

#[test]
fn the_stack_is_as_it_was_after_calls() {
    let target = Target::start(Build::Worker, &["blocked", "4"]);
    let process = Process::open(target.pid()).unwrap();
    let stack = process.maps().unwrap().into_iter().find(|m| m.name == "[stack]").unwrap();
    let image = || {
        let mut bytes = vec![0; (stack.end.0 - stack.start.0) as usize];
        process.read(stack.start, &mut bytes).unwrap();
        bytes
    };
    // In its last system call, so that nothing but us changes its stack.
    target.await_state('S');
    let before = image();
    let mut stopped = process.stop().unwrap();
    stopped.call(libc::SYS_getpid, [0; 6]).unwrap();
    assert!(before != image(), "the frame lies on the stack");
    stopped.resume().unwrap();
    assert!(before == image());
    target.finish_well();
}

#[test]
fn a_restartable_sequence_is_aborted_as_by_a_preemption() {
    let target = Target::start(Build::Worker, &["one-sequence"]);
    let process = Process::open(target.pid()).unwrap();
    for _ in 0..100 {
        let mut stopped = process.stop().unwrap();
        stopped.call(libc::SYS_getpid, [0; 6]).unwrap();
        stopped.resume().unwrap();
    }
    target.finish_well();
}

#[test]
fn a_seccomp_filter_does_not_kill_for_our_calls() {
    let target = Target::start(Build::Worker, &["confined"]);
    let process = Process::open(target.pid()).unwrap();
    assert_eq!(process.seccomp().unwrap(), 2);
    let mut stopped = process.stop().unwrap();
    // Depends on our privilege and on the kernel's configuration.
    match stopped.call(libc::SYS_getppid, [0; 6]) {
        Ok(parent) => assert_eq!(parent, u64::from(std::process::id())),
        Err(e) => assert!(matches!(e, CallError::Seccomp { .. }), "{e}"),
    }
    stopped.resume().unwrap();
    target.finish_well();
}

/// The end of a first thread is reported when all other threads have ended. They stood because of
/// us, so it was waited for as long as for anything, and once more to put the thread back.
#[test]
fn a_first_thread_that_was_killed_in_our_call_was_waited_for() {
    let target = Target::start(Build::Worker, &["mixed"]);
    let process = Process::open(target.pid()).unwrap();
    let mut stopped = process.stop().unwrap();
    assert!(stopped.threads().len() > 1, "it has other threads");
    let list = Va(stopped.call(arch::MMAP, [0, 4096, RW, ANON, u64::MAX, 0]).unwrap());
    let nowhere = Batch { code: Va(16), list, len: Len(1024) };
    let error = stopped.batch(&nowhere, &[(libc::SYS_getpid, [0; 6])]).unwrap_err();
    let is_gone = matches!(error, CallError::Exited { .. } | CallError::Memory(MemoryError::Gone { .. }));
    assert!(is_gone, "{error}");
    let error = stopped.resume().unwrap_err();
    assert!(matches!(error, CallError::Exited { .. }), "{error}");
    assert!(!process.is_alive());
}

/// It was waited for as if it slept, for ten seconds, and the message spoke of a frozen group.
#[test]
fn a_thread_that_loops_where_a_call_should_be_was_waited_for() {
    const LOOP: &[u8] = match () {
        () if cfg!(target_arch = "aarch64") => &[0x00, 0x00, 0x00, 0x14],
        () if cfg!(target_arch = "arm") => &[0xfe, 0xff, 0xff, 0xea],
        () => &[0xeb, 0xfe],
    };
    let target = Target::start(Build::Worker, &["mixed"]);
    let process = Process::open(target.pid()).unwrap();
    let mut stopped = process.stop().unwrap();
    let list = Va(stopped.call(arch::MMAP, [0, 4096, RW, ANON, u64::MAX, 0]).unwrap());
    let code = Va(stopped.call(arch::MMAP, [0, 4096, RX, ANON, u64::MAX, 0]).unwrap());
    stopped.write(code, LOOP).unwrap();
    let error = stopped.batch(&Batch { code, list, len: Len(1024) }, &[(libc::SYS_getpid, [0; 6])]).unwrap_err();
    assert!(matches!(error, CallError::Busy { nr, .. } if nr == libc::SYS_getpid as u64), "{error}");
    stopped.call(libc::SYS_munmap, [code.0, 4096, 0, 0, 0, 0]).unwrap();
    stopped.call(libc::SYS_munmap, [list.0, 4096, 0, 0, 0, 0]).unwrap();
    stopped.resume().unwrap();
    target.finish_well();
}
