//! Processes that execute in the memory of another one and are no threads of it: made by `clone`
//! with `CLONE_VM` and without `CLONE_THREAD`.
//!
//! No file of the kernel's names them, but kcmp(2) says of two whether they have the same memory.
//! To ask about all processes takes some microseconds each, so that is done while the target runs.
//! In a pause only those are asked about that were made since: the kernel gives out ids in
//! ascending order (`idr_alloc_cyclic` in kernel/pid.c), and `/proc/loadavg` names the last one.
//!
//! Not found are processes of other users where we are not root, what a privileged program gives an
//! id of its choice (`set_tid` of `clone3`), and a process whose first thread has ended before we
//! came. Where a security module or a filter forbids kcmp(2), nobody is found.
#![allow(unsafe_code, reason = "kcmp")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::process::Process;
use crate::procfs;

/// For so long the ids that were given out since are those between the last one then and now: no
/// machine gives out all that there are in this time.
const FRESH: Duration = Duration::from_millis(500);
/// All processes are asked again after this time, while the target runs: a stop that begins then
/// finds fresh what it needs.
const RENEW: Duration = Duration::from_millis(200);
/// So many ids before the last one are asked about again: a process has its id before it can be
/// found by it.
const AGAIN: i32 = 64;
/// The first id behind those that are not given out again (`RESERVED_PIDS` in kernel/pid.c).
const LOWEST: i32 = 300;

/// What is known of one process.
#[derive(Debug, Default)]
pub(crate) struct Sharers {
    /// When was asked last, and the last id then.
    asked: Option<(Instant, i32)>,
    /// Processes that had the same memory.
    known: BTreeSet<i32>,
}

impl Process {
    /// Asks about all processes, unless that was done a moment ago. To be called while the target
    /// runs, so that [`Process::sharers`] is quick when it stands.
    pub(crate) fn look_for_sharers(&self) {
        let state = self.sharers_state();
        if state.borrow().new_ids(RENEW).is_none() {
            self.ask(state, None);
        }
    }

    /// The processes that have this memory, too, and are not this one, ascending.
    pub(crate) fn sharers(&self) -> Vec<i32> {
        let state = self.sharers_state();
        let new = state.borrow().new_ids(FRESH);
        self.ask(state, new);
        state.borrow().known.iter().copied().collect()
    }

    /// Asks about these ids, or about all processes.
    fn ask(&self, state: &RefCell<Sharers>, new: Option<RangeInclusive<i32>>) {
        let last = new.as_ref().map_or_else(last_id, |ids| Some(*ids.end()));
        let asked = last.map(|id| (Instant::now(), id));
        let Some(live) = self.live_thread() else { return };
        // In a pause nothing may be waited for.
        let ids: Vec<i32> = match new {
            Some(ids) => {
                // Mostly there are none.
                let mut stack = None;
                let mut has_stack = |id: &i32| stack_start(*id) == *stack.get_or_insert_with(|| stack_start(live));
                ids.filter(|id| *id != live && exists(*id)).filter(|id| has_stack(id)).collect()
            }
            None => procfs::processes(),
        };
        let mut state = state.borrow_mut();
        state.asked = asked;
        state.known.retain(|pid| share(live, *pid));
        for id in ids.into_iter().filter(|id| share(live, *id) && !procfs::is_thread(self.pid(), *id)) {
            state.known.extend(procfs::process_of(id));
        }
    }

    /// A thread that has not ended: one that has, has no memory.
    pub(crate) fn live_thread(&self) -> Option<i32> {
        let lives = |tid: &i32| !procfs::has_ended(self.pid(), *tid);
        Some(self.pid()).filter(lives).or_else(|| self.threads().ok()?.into_iter().find(lives))
    }
}

impl Sharers {
    /// The ids that were given out since; `None`: it is longer ago than `longest`, or they have
    /// begun anew.
    fn new_ids(&self, longest: Duration) -> Option<RangeInclusive<i32>> {
        let (_, last) = self.asked.filter(|(when, _)| when.elapsed() < longest)?;
        let from = last.checked_sub(AGAIN).filter(|from| *from >= LOWEST)?;
        last_id().filter(|now| *now >= last).map(|now| from..=now)
    }
}

/// Do both threads execute in the same memory? Not if one of them is gone.
pub(crate) fn share(one: i32, other: i32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0 }
}

/// Is there a thread or process with this id?
fn exists(id: i32) -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::getpgid(id) >= 0 }
}

/// Where the stack of its program begins (field 28 of `/proc/PID/stat`), which is a property of the
/// memory. To ask for it waits for nothing, while kcmp(2) waits for a process that is executing
/// another program (`exec_update_lock`), and that may have no CPU.
fn stack_start(id: i32) -> Option<String> {
    let stat = procfs::read_short(&format!("/proc/{id}/stat")).ok()?;
    procfs::stat_field(&stat, 28).map(str::to_owned)
}

/// The id that was given out last, where we are: the last word of `/proc/loadavg`.
fn last_id() -> Option<i32> {
    procfs::read_short("/proc/loadavg").ok()?.split_ascii_whitespace().last()?.parse().ok()
}
