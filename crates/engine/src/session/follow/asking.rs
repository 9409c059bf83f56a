//! What a process asks of the controller, by its own memory. The bell says only that it asks: each
//! process of the session can write there.

use std::mem::offset_of;

use sidestep_isa::Va;
use sidestep_sys::Process;
use sidestep_wire::{Asked, Private};

use crate::session::follow::family::innermost_pid;
use crate::target::discovery::{self, Found};

/// A question that has no answer yet.
pub(super) struct Asking {
    process: Process,
    /// Where [`Asked`] is there.
    at: Va,
    number: u32,
    /// What the process calls itself.
    pub pid: i32,
    /// A [`sidestep_wire::Question`], if it is one.
    pub question: u32,
    /// The thread, in its own pid namespace.
    pub tid: i32,
    /// Run-time address of a path.
    pub path: Va,
}

impl Asking {
    /// The question of a process; `None`: it has none.
    pub fn of(host: i32) -> Option<Asking> {
        let process = Process::look_at(host).ok()?;
        let found = discovery::all(&process, &process.maps().ok()?).into_iter().find(Found::is_mine)?;
        let at = Va(found.private_va.0.wrapping_add(offset_of!(Private, asked) as u64));
        let word = |offset: usize| process.read_pod::<u32>(Va(at.0.wrapping_add(offset as u64))).ok();
        let number = word(offset_of!(Asked, number))?;
        if number == word(offset_of!(Asked, answered))? {
            return None;
        }
        let pid = word(offset_of!(Asked, pid))? as i32;
        if pid != host && innermost_pid(host) != Some(pid) {
            return None;
        }
        let (question, tid) = (word(offset_of!(Asked, question))?, word(offset_of!(Asked, tid))? as i32);
        let path = Va(process.read_pod(Va(at.0.wrapping_add(offset_of!(Asked, path) as u64))).ok()?);
        Some(Asking { process, at, number, pid, question, tid, path })
    }

    /// The process that asks, as the controller knows it.
    pub fn host(&self) -> i32 {
        self.process.pid()
    }

    /// Tells the process that this was done. It may have ended meanwhile.
    pub fn answer(self) {
        let at = Va(self.at.0.wrapping_add(offset_of!(Asked, answered) as u64));
        let _ = self.process.write(at, &self.number.to_ne_bytes());
    }
}
