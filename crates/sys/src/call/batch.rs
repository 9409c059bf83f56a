//! Several remote system calls at one go: code in the target makes them from a list, so that its
//! thread is let run once and stopped once, and not twice for each.
//!
//! The last two calls of the list are ours: `getpid`, whose result says that all others have
//! theirs, and `ppoll`, in which the thread waits to be interrupted. We look whether that is there;
//! a stop at a system call would come at each. If we die, the wait ends, and the code returns into
//! the frame, as a single call does. It is `ppoll`, as the restart of an interrupted call that the
//! thread was in may use what the kernel keeps of it, which other waits would replace
//! (`restart_block`).

use std::time::Duration;

use sidestep_isa::{Len, Va};

use super::{Active, CallError, Stands, Waiting};
use crate::arch::{BATCH_CODE, Word};
use crate::process::Process;
use crate::ptrace::{self, Event};

/// A system call: its number and its arguments. In 32-bit processes there are five in a batch.
pub type Call = (libc::c_long, [u64; 6]);

/// The number of what is no system call: adds the second argument to the `u16` at the first one, by
/// one instruction with `lock`. It must be mapped, and writable: a fault would be the program's.
pub const ADD: libc::c_long = 0x7fff_ffff;

/// Where in the target there is what a batch needs.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// [`BATCH_CODE`], which stays for as long as its thread may return there.
    pub code: Va,
    /// Memory for the list, readable and writable.
    pub list: Va,
    /// Its length: [`Batch::len`] bytes are needed.
    pub len: Len,
}

/// A call in the list: number, arguments, result.
const ENTRY: usize = size_of::<[Word; 8]>();
const RESULT: usize = 7 * size_of::<Word>();
/// For so long a thread waits for us, at most. If we take longer, the batch fails.
const WAIT_SECONDS: Word = 1;
/// Time until the first look, and the longest between two: where there is no CPU for the thread,
/// looking takes none from it.
const FIRST_LOOK: Duration = Duration::from_micros(20);
const LAST_LOOK: Duration = Duration::from_micros(640);

impl Batch {
    /// Calls that fit into the list.
    #[must_use]
    pub const fn room(&self) -> usize {
        ((self.len.0 as usize).saturating_sub(4 * size_of::<Word>()) / ENTRY).saturating_sub(2)
    }

    /// Bytes of a list of so many calls.
    #[must_use]
    pub const fn len(calls: usize) -> usize {
        // Ours, the end, and for how long to wait.
        (calls + 2) * ENTRY + 4 * size_of::<Word>()
    }
}

/// The list as bytes, for the address at which it will be.
fn list(at: Va, calls: &[Call]) -> Vec<u8> {
    let time = at.0 + (Batch::len(calls.len()) - 2 * size_of::<Word>()) as u64;
    let ours = [(libc::SYS_getpid, [0; 6]), (libc::SYS_ppoll, [0, 0, time, 0, 8, 0])];
    let mut words: Vec<Word> = Vec::new();
    for (number, args) in calls.iter().chain(&ours) {
        words.push(*number as Word);
        words.extend(args.iter().map(|arg| *arg as Word));
        words.push(0);
    }
    words.extend([Word::MAX, 0, WAIT_SECONDS, 0]);
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Active {
    /// The results of calls, errors as the kernel gives them.
    pub(super) fn batch(&mut self, process: &Process, at: &Batch, calls: &[Call]) -> Result<Vec<Word>, CallError> {
        let needed = Batch::len(calls.len());
        if at.len.0 < needed as u64 {
            return Err(CallError::Scratch { at: at.list, len: at.len, needed: Len(needed as u64) });
        }
        process.write(at.list, &list(at.list, calls))?;
        let nr = calls.last().map_or(0, |(number, _)| *number as u64);
        self.stand(nr)?;
        let regs = self.regs.for_batch(self.gadgets, self.frame, at.code, at.list);
        self.check("set the registers of", ptrace::set_regs(self.tid, &regs))?;
        self.block_signals()?;
        self.stands = Stands::Not;
        self.check("resume", ptrace::cont(self.tid, 0))?;
        let done = at.list.plus(Len((calls.len() * ENTRY + RESULT) as u64));
        let mut waiting = Waiting::begin();
        let mut pause = FIRST_LOOK;
        loop {
            std::thread::sleep(pause);
            if process.read_pod::<Word>(done)? != 0 {
                break;
            }
            match self.check("wait for", ptrace::wait(self.tid, true))? {
                None => {
                    if pause == LAST_LOOK {
                        self.go_on_waiting(nr, &mut waiting)?;
                    }
                    pause = (pause * 2).min(LAST_LOOK);
                }
                Some(Event::Exited(_)) => return Err(CallError::Exited { pid: self.pid }),
                // Only SIGSTOP cannot be blocked; the thread goes on working for us in the stopped
                // process.
                Some(Event::Signal(signal)) => self.check("resume", ptrace::cont(self.tid, signal))?,
                Some(_) => self.check("resume", ptrace::cont(self.tid, 0))?,
            }
        }
        self.interrupt(nr)?;
        self.stands = Stands::Signal;
        let ip = self.regs_now()?.raw_ip();
        if !(at.code.0..at.code.0 + BATCH_CODE.len() as u64).contains(&ip.0) {
            // It has waited long enough, and is itself again.
            (self.ran, self.is_deaf) = (false, false);
            return Err(CallError::Astray { pid: self.pid, tid: self.tid, nr, saw: format!("{:#x}", ip.0) });
        }
        let mut bytes = vec![0; calls.len() * ENTRY];
        process.read(at.list, &mut bytes)?;
        let word = |entry: &[u8]| entry[RESULT..].try_into().map(Word::from_ne_bytes).unwrap_or_default();
        Ok(bytes.chunks_exact(ENTRY).map(word).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_behind_the_time_to_wait() {
        let bytes = list(Va(0x1000), &[(7, [1, 2, 3, 4, 5, 6])]);
        assert_eq!(bytes.len(), Batch::len(1));
        let words: Vec<Word> =
            bytes.chunks_exact(size_of::<Word>()).map(|word| Word::from_ne_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words[..8], [7, 1, 2, 3, 4, 5, 6, 0]);
        assert_eq!(words[24..], [Word::MAX, 0, WAIT_SECONDS, 0]);
        assert_eq!(words[19] as usize, 0x1000 + 26 * size_of::<Word>());
    }
}
