//! Following a command from its first instruction to its entry point, library by library.
//!
//! To see the entry point without a change of code, the dynamic loader is told another one: the
//! auxiliary vector's `AT_ENTRY` (on the stack) points to a stub that makes a system call, at which
//! we stop, and jumps to the entry point. If we die the stub does no more than that.

use std::io;

use sidestep_isa::Va;

use crate::ExitStatus;
use crate::access::OpenError;
use crate::arch::{ENTRY_STUB_LEN, MMAP, Regs, Word, entry_stub, first_byte};
use crate::call::CallError;
use crate::memory::MemoryError;
use crate::news::News;
use crate::patience::{LEAST, Limit};
use crate::process::Process;
use crate::procfs::Mapping;
use crate::ptrace::{self, Event};
use crate::spawn::{Spawned, stop_after_exec};
use crate::stopped::{StopError, Stopped, wait_until};

/// What has happened in the startup of a command, which stands still again if it is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupEvent {
    /// Code was mapped or unmapped, and nothing of it has run: the loader makes its next system
    /// call.
    Mapped,
    /// The loader is done; initialisers of libraries have run; the next instruction is the
    /// program's first.
    Entry,
    /// The process has executed another program and stands before its first instruction. Take
    /// [`Spawned::process`] anew.
    Executed,
    /// The process has ended.
    Exited(ExitStatus),
}

/// Why a command could not be followed. It stands still, or has ended: [`Spawned::kill`] ends it,
/// [`Spawned::into_process`] lets it go on.
#[derive(Debug, thiserror::Error)]
pub enum StartupError {
    /// A remote call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The memory could not be read or written.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Threads could not be stopped.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The program executed by the command cannot be probed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stack has no `AT_ENTRY`.
    #[error("process {pid} has no AT_ENTRY in its auxiliary vector; attach to it with -p instead")]
    NoEntry {
        /// Process id.
        pid: i32,
    },
    /// The user has asked for the end.
    #[error("process {pid} has not come to its first instruction: interrupted")]
    Interrupted {
        /// Process id.
        pid: i32,
    },
    /// Anything else.
    #[error("cannot {what} process {pid}: {source}; attach to it with -p instead")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Process id.
        pid: i32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// How far the startup has come.
#[derive(Debug, Default)]
pub(crate) struct Startup {
    state: State,
    /// Executable mappings at the last event.
    code: Vec<Mapping>,
}

#[derive(Debug, Default)]
enum State {
    /// Before the first instruction.
    #[default]
    Fresh,
    /// The loader runs and will jump to the stub.
    Loading { stub: Va, entry: Va, auxv: Va },
    /// At the entry point or behind.
    Entered,
}

impl Spawned {
    /// Runs the command to the next change of its executable mappings (all changes of one library
    /// are one event), to its entry point, or to its end. At the entry point once more: returns
    /// [`StartupEvent::Entry`] again.
    pub fn next_mapping_change(&mut self) -> Result<StartupEvent, StartupError> {
        if matches!(self.startup.state, State::Fresh) {
            self.prepare()?;
        }
        if matches!(self.startup.state, State::Entered) {
            return Ok(StartupEvent::Entry);
        }
        self.stopped.end_calls()?;
        self.stopped.release_others();
        let pid = self.process.pid();
        let io = |what| move |source| StartupError::Io { what, pid, source };
        let mut changed = false;
        let mut signal = 0;
        let _news = News::new();
        loop {
            ptrace::cont_to_syscall(pid, signal).map_err(io("resume"))?;
            signal = 0;
            // An initialiser may take any time.
            match wait_until(pid, Limit::none(), || {}).map_err(io("wait for"))? {
                None => {
                    self.stop_again().map_err(io("interrupt"))?;
                    return Err(StartupError::Interrupted { pid });
                }
                Some(Event::Syscall) => {
                    let regs = ptrace::get_regs(pid).map_err(io("read the registers of"))?;
                    if !ptrace::at_entry(pid).map_err(io("inspect"))? {
                        continue;
                    }
                    if let Some(regs) = self.entry_reached(&regs)? {
                        return self.park(regs, StartupEvent::Entry);
                    }
                    if regs.maps_code() {
                        changed = true;
                    } else if changed && !regs.changes_maps() {
                        changed = false;
                        let code = code_mappings(&self.process)?;
                        if code != self.startup.code {
                            self.startup.code = code;
                            return self.park(regs.before_syscall(), StartupEvent::Mapped);
                        }
                    }
                }
                Some(Event::Signal(s)) => signal = s,
                Some(Event::Exec) => return self.executed(),
                Some(Event::Exited(status)) => return Ok(self.exited(status)),
                Some(Event::Stop | Event::Clone | Event::Other) => {}
            }
        }
    }

    /// From the entry of a system call, which is not made, to a stop of the signal kind with these
    /// registers. They are set at once, so that the command goes on rightly without us.
    fn park(&mut self, regs: Regs, event: StartupEvent) -> Result<StartupEvent, StartupError> {
        let pid = self.process.pid();
        let io = |what| move |source| StartupError::Io { what, pid, source };
        ptrace::set_regs(pid, &regs).map_err(io("set the registers of"))?;
        match stop_after_exec(pid).map_err(io("stop"))? {
            Err(status) => return Ok(self.exited(status)),
            Ok(regs) => self.stopped.set_main_regs(regs),
        }
        // An initialiser of a library may have started threads.
        self.stopped.catch_threads()?;
        if event == StartupEvent::Entry {
            self.remove_stub()?;
        }
        Ok(event)
    }

    /// Stops the command wherever it runs, so that it can be let go.
    fn stop_again(&mut self) -> io::Result<()> {
        let pid = self.process.pid();
        ptrace::interrupt(pid)?;
        let limit = Limit::after(LEAST);
        loop {
            match wait_until(pid, limit, || {})? {
                Some(Event::Stop) => {
                    self.stopped.set_main_regs(ptrace::get_regs(pid)?);
                    return Ok(());
                }
                Some(Event::Exited(_)) => {
                    self.stopped.forget_threads();
                    return Ok(());
                }
                None => return Ok(()),
                Some(Event::Signal(signal)) => ptrace::cont(pid, signal)?,
                Some(_) => ptrace::cont(pid, 0)?,
            }
        }
    }

    fn exited(&mut self, status: ExitStatus) -> StartupEvent {
        self.stopped.forget_threads();
        StartupEvent::Exited(status)
    }

    fn executed(&mut self) -> Result<StartupEvent, StartupError> {
        let pid = self.process.pid();
        let regs = stop_after_exec(pid).map_err(|source| StartupError::Io { what: "stop", pid, source })?;
        self.stopped.forget_threads();
        match regs {
            Err(status) => Ok(StartupEvent::Exited(status)),
            Ok(regs) => {
                // A program that cannot be probed stands still, too: the caller kills it or lets it
                // go.
                let opened = Process::open(pid);
                let process = opened.as_ref().unwrap_or(&self.process).clone();
                self.stopped = Stopped::adopt(process, regs);
                self.process = opened?;
                self.startup = Startup::default();
                Ok(StartupEvent::Executed)
            }
        }
    }

    /// At the first instruction: finds the entry point and makes the loader jump to a stub.
    fn prepare(&mut self) -> Result<(), StartupError> {
        let pid = self.process.pid();
        self.startup.code = code_mappings(&self.process)?;
        let regs = self.stopped.threads().first().map(|t| t.regs).ok_or(CallError::Exited { pid })?;
        let (auxv, entry) = find_entry(&self.process, regs.sp())?.ok_or(StartupError::NoEntry { pid })?;
        if regs.ip() == first_byte(entry) {
            // Static: nobody else runs before.
            self.startup.state = State::Entered;
            return Ok(());
        }
        let prot = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let args = [0, ENTRY_STUB_LEN, prot, flags, u64::MAX, 0];
        let stub = Va(self.stopped.call(MMAP, args)?);
        self.process.write(stub, &entry_stub(entry))?;
        self.process.write_word(auxv, stub.0)?;
        self.startup.state = State::Loading { stub, entry, auxv };
        Ok(())
    }

    /// If this system call is the stub's: the registers at the entry point.
    fn entry_reached(&self, regs: &Regs) -> Result<Option<Regs>, MemoryError> {
        match self.startup.state {
            State::Loading { stub, entry, .. } if (0..ENTRY_STUB_LEN as i64).contains(&regs.raw_ip().since(stub)) => {
                let saved = self.process.read_pod(regs.sp())?;
                Ok(Some(regs.after_stub(saved, entry)))
            }
            _ => Ok(None),
        }
    }

    fn remove_stub(&mut self) -> Result<(), StartupError> {
        if let State::Loading { stub, entry, auxv } = self.startup.state {
            self.startup.state = State::Entered;
            self.process.write_word(auxv, entry.0)?;
            self.stopped.call(libc::SYS_munmap, [stub.0, ENTRY_STUB_LEN, 0, 0, 0, 0])?;
            self.stopped.end_calls()?;
        }
        Ok(())
    }
}

fn code_mappings(process: &Process) -> Result<Vec<Mapping>, StartupError> {
    let io = |source| StartupError::Io { what: "read the mappings of", pid: process.pid(), source };
    Ok(process.maps().map_err(io)?.into_iter().filter(|m| m.exec).collect())
}

/// The stack of a new program from `sp`: argc, argv…, 0, envp…, 0, then pairs of the auxiliary
/// vector (System V ABI, figure 3.9). Returns the address of the value of `AT_ENTRY`, and the
/// value.
fn find_entry(process: &Process, sp: Va) -> Result<Option<(Va, Va)>, MemoryError> {
    const WORD: u64 = size_of::<Word>() as u64;
    let word = |at: Va| process.read_word(at);
    let argc = word(sp)?;
    let mut at = Va(sp.0.wrapping_add((argc.wrapping_add(2)).wrapping_mul(WORD)));
    while word(at)? != 0 {
        at = at.offset(WORD as i64);
    }
    at = at.offset(WORD as i64);
    loop {
        match word(at)? as libc::c_ulong {
            libc::AT_NULL => return Ok(None),
            libc::AT_ENTRY => {
                let value = at.offset(WORD as i64);
                return Ok(Some((value, Va(word(value)?))));
            }
            _ => at = at.offset(2 * WORD as i64),
        }
    }
}
