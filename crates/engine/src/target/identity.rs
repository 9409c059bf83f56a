//! Who executes in the memory of a target, and what threads are told apart by: their thread
//! pointers.

use sidestep_isa::Va;
use sidestep_plan::thunk::{self, SETS_THREAD_POINTER_LEN};
use sidestep_sys::{Process, Stopped, arch};

use crate::error::SessionError;
use crate::target::remote::mappings;

/// Has every thread its thread pointer at its thread pointer? C libraries see to it before a thread
/// begins; programs of other runtimes, and those whose C library has not started yet, are told by
/// the one thread that lacks it.
pub(crate) fn self_pointers(stopped: &Stopped) -> bool {
    stopped.threads().iter().all(|t| {
        let base = t.regs.thread_pointer();
        base.0 != 0 && stopped.process().read_word(base).is_ok_and(|word| word == base.0)
    })
}

/// May a thread have another thread pointer for moments, or none? Then there is nothing at the
/// thread pointer that could be relied on, and it is read from its register. What sets it is
/// `wrfsbase`: a system call does it only where a thread begins.
pub(crate) fn sets_thread_pointer(process: &Process) -> Result<bool, SessionError> {
    const CHUNK: u64 = 1 << 20;
    if !arch::SETS_THREAD_POINTER {
        return Ok(false);
    }
    let mut bytes = Vec::new();
    for mapping in mappings(process)?.iter().filter(|m| m.exec) {
        let mut at = mapping.start.0;
        while at < mapping.end.0 {
            // An instruction may lie across two chunks.
            let end = mapping.end.0.min(at + CHUNK + SETS_THREAD_POINTER_LEN as u64 - 1);
            bytes.resize((end - at) as usize, 0);
            if process.read(Va(at), &mut bytes).is_ok() && thunk::sets_thread_pointer(&bytes) {
                return Ok(true);
            }
            at += CHUNK;
        }
    }
    Ok(false)
}

/// Two threads with one thread pointer, if there are such: they were made by `clone` without
/// `CLONE_SETTLS`. One may be of another process that executes in the same memory.
pub(crate) fn sharing(stopped: &Stopped) -> Option<(i32, i32)> {
    let mut threads: Vec<_> = stopped.threads().iter().map(|t| (t.regs.thread_pointer(), t.tid)).collect();
    threads.sort_unstable();
    threads.windows(2).find(|pair| pair[0].0 == pair[1].0).map(|pair| (pair[0].1, pair[1].1))
}

/// Refuses a program that has such threads, or shares its memory with another process.
pub(crate) fn told_apart(stopped: &Stopped) -> Result<(), SessionError> {
    if let Some(other) = stopped.others().first() {
        return Err(SessionError::SharedMemory { pid: stopped.process().pid(), other: *other });
    }
    match sharing(stopped) {
        Some((first, second)) => Err(SessionError::SharedThreadPointer { first, second }),
        None => Ok(()),
    }
}
