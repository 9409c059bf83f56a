//! Processes that become a part of a session later on. Forked children need nobody: they have all
//! that is needed, and the agent counts there if [`crate::Options::follow`] says so. Here they are
//! found when the session ends. A thread that is about to execute a program, or has mapped a
//! library, asks ([`sidestep_wire::bell`]) and waits until it has its answer.

mod asking;
pub(crate) mod dlopen;
pub(crate) mod family;
mod forked_child;
mod unloaded;

use std::collections::HashSet;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sidestep_isa::Va;
use sidestep_sys::{Beat, Executed, Executing, Process, Spawned, Watch, futex_wake};
use sidestep_wire::{BEAT, Bell, Common, Private, Question, Slot};

use crate::api::TargetState;
use crate::error::SessionError;
use crate::memory::view::View;
use crate::session::Session;
use crate::session::follow::asking::Asking;
use crate::session::follow::family::Family;
use crate::session::installer::Installer;
use crate::session::remains::remove;
use crate::session::spec::SessionSpec;
use crate::session::{startup, users};
use crate::target::discovery;
use crate::target::privileges;
use crate::target::regions::Regions;

/// So long the controller waits for an answered `execve` before it does anything else.
const EXEC_TIME: Duration = Duration::from_millis(20);
/// A thread that asks waits so long at most: by then something must be wrong with us. To analyse a
/// large library takes seconds.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// So many questions are answered before something else is done: a process may ask without an end.
const ANSWERS: usize = 32;
/// Processes are not looked for more often.
const LOOK_PERIOD: Duration = Duration::from_millis(200);
/// How often children are looked for that were forked while others were let go.
const ROUNDS: usize = 20;

/// The controller's side.
pub(crate) struct Follow {
    wanted: SessionSpec,
    common: Arc<View>,
    /// Where the bell is in the shared region.
    bell: u64,
    watch: Watch,
    executing: Vec<Executing>,
    family: Family,
    /// When the family was looked at, whether anybody was there, how many slots were in use, and
    /// how many of them free again.
    looked: Option<(Instant, bool, (u64, u32))>,
    /// When all were asked last.
    searched: Option<Instant>,
}

impl Follow {
    /// From now on questions are answered, by [`Follow::serve`], if there may be any.
    /// `first`: the processes that the session begins with.
    pub fn start(wanted: SessionSpec, installer: &Installer, first: &[i32]) -> Result<Option<Follow>, SessionError> {
        match installer.regions() {
            Some(regions) if installer.listens() => Follow::new(wanted, regions, first).map(Some),
            _ => Ok(None),
        }
    }

    fn new(wanted: SessionSpec, regions: &Regions, first: &[i32]) -> Result<Follow, SessionError> {
        let common = regions.common.clone();
        let bell = regions.layout.common_off + offset_of!(Common, bell) as u64;
        let io = |source| SessionError::Watch { source };
        let watch = Watch::new(common.map().clone(), bell as usize + offset_of!(Bell, rung)).map_err(io)?;
        let inode = common.file().map(|file| file.metadata()).transpose().map_err(io)?.map_or(0, |meta| meta.ino());
        let (executing, family) = (Vec::new(), Family::new(inode, first.iter().copied()));
        let follow = Follow { wanted, common, bell, watch, executing, family, looked: None, searched: None };
        follow.word(offset_of!(Bell, listens)).store(1, Ordering::Release);
        Ok(follow)
    }

    /// The processes that are there and have the probes; empty if children are not followed.
    pub fn members(&mut self) -> Vec<i32> {
        if self.wanted.options.follow { self.family.look() } else { Vec::new() }
    }

    /// Readable when somebody has a question.
    pub fn wakes(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    fn word(&self, field: usize) -> &AtomicU32 {
        self.common.u32(self.bell + field as u64)
    }

    /// Answers what is asked, takes up programs that were executed, lets go of processes that have
    /// ended. Is there anything left besides the processes that the session knows?
    pub fn serve(&mut self, session: &mut Session) -> bool {
        self.watch.clear();
        self.answer(session);
        for index in (0..self.executing.len()).rev() {
            self.executed(index, session);
        }
        self.let_go(session);
        for pid in self.take_refused() {
            session.leave_stranger(pid);
        }
        // A process that has waited in vain has stopped it.
        self.word(offset_of!(Bell, listens)).store(1, Ordering::Release);
        !self.executing.is_empty() || self.wanted.options.listens() && self.look(session)
    }

    fn answer(&mut self, session: &mut Session) {
        for _ in 0..ANSWERS {
            let rung = self.word(offset_of!(Bell, rung)).load(Ordering::Acquire);
            if rung == self.word(offset_of!(Bell, heard)).load(Ordering::Acquire) {
                return;
            }
            let pid = self.word(offset_of!(Bell, pid)).load(Ordering::Acquire) as i32;
            // Without it, the thread waits for some seconds only.
            let working = self.bell as usize + offset_of!(Bell, working);
            let beat = Beat::new(self.common.map().clone(), working, Duration::from_nanos(BEAT), ANSWER_TIME).ok();
            let asking = self.family.find(pid).and_then(Asking::of).or_else(|| self.search());
            let begun = asking.as_ref().is_some_and(|asking| self.deal_with(asking, session));
            drop(beat);
            if self.word(offset_of!(Bell, listens)).swap(1, Ordering::AcqRel) == 0 {
                asking.iter().for_each(|asking| session.note_late(asking.host()));
            }
            if let Some(asking) = asking {
                asking.answer();
            }
            self.word(offset_of!(Bell, heard)).store(rung, Ordering::Release);
            futex_wake(self.word(offset_of!(Bell, heard)));
            if begun {
                self.await_exec(session);
            }
        }
        // There may be more of them.
        self.watch.wake();
    }

    /// Lets go of processes that have ended. What those had that have children here is kept for
    /// these.
    fn let_go(&mut self, session: &mut Session) {
        let before = session.ended.len();
        for index in (0..session.others.len()).rev() {
            if session.others[index].poll() != TargetState::Running {
                session.ended.push(session.others.remove(index));
            }
        }
        if session.ended.len() > before {
            forget_ended(session, &self.family.look());
        }
    }

    /// Any process that asks: another one of the session may have written another number to the
    /// bell. Looks now and then.
    fn search(&mut self) -> Option<Asking> {
        if self.searched.is_some_and(|when| when.elapsed() < LOOK_PERIOD) {
            return None;
        }
        self.searched = Some(Instant::now());
        self.family.look().into_iter().find_map(Asking::of)
    }

    /// Does what a process asks for. Is one of its threads traced from now on, as it executes a
    /// program?
    fn deal_with(&mut self, asking: &Asking, session: &mut Session) -> bool {
        let host = asking.host();
        match asking.question {
            question if question == Question::Exec as u32 => {
                if privileges::gained(host, asking.path) {
                    session.leave_alone(host);
                    return false;
                }
                return self.execute(session, asking);
            }
            question if question == Question::NoExec as u32 => self.executing.retain(|known| known.pid() != host),
            question if question == Question::Mapped as u32 => {
                if let Err(error) = session.look_again(host, || self.family.look(), &self.wanted) {
                    session.note(host, &error);
                }
            }
            _ => {}
        }
        false
    }

    /// Traces the thread; in another pid namespace than ours only the first of a process is known.
    fn execute(&mut self, session: &mut Session, asking: &Asking) -> bool {
        let host = asking.host();
        let tid = if host == asking.pid { asking.tid } else { host };
        if self.executing.iter().any(|known| known.tid() == tid) {
            return true;
        }
        match Executing::begin(host, tid) {
            Ok(executing) => {
                self.executing.push(executing);
                true
            }
            Err(error) => {
                if error.kind() == std::io::ErrorKind::PermissionDenied {
                    let reason =
                        "another session follows it to the program that it executes, and this one does not".to_owned();
                    session.note(host, &SessionError::Beside { pid: host, reason });
                }
                false
            }
        }
    }

    /// Most of them do it at once.
    fn await_exec(&mut self, session: &mut Session) {
        let deadline = Instant::now() + EXEC_TIME;
        let last = self.executing.len().saturating_sub(1);
        while !self.executed(last, session) && Instant::now() < deadline {
            let asked = self.word(offset_of!(Bell, rung)).load(Ordering::Acquire);
            if asked != self.word(offset_of!(Bell, heard)).load(Ordering::Acquire) {
                return; // it has failed, perhaps
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Takes up the program that a process has executed, or forgets the process if it has ended.
    /// False: neither.
    fn executed(&mut self, index: usize, session: &mut Session) -> bool {
        let Some(executing) = self.executing.get_mut(index) else { return true };
        match executing.poll() {
            Ok(None) => return false,
            Ok(Some(Executed::Program(spawned))) => {
                let pid = spawned.process().pid();
                if let Err(error) = self.take_up(*spawned, session) {
                    session.note(pid, &error);
                }
            }
            Ok(Some(Executed::Ended)) => {}
            Err(error) => {
                let pid = executing.pid();
                session.note(pid, &error.into());
            }
        }
        self.executing.remove(index);
        true
    }

    /// Probes a new program as the command is probed that a session starts.
    fn take_up(&mut self, mut spawned: Spawned, session: &mut Session) -> Result<(), SessionError> {
        let pid = spawned.process().pid();
        let others: Vec<i32> = session.pids().filter(|other| *other != pid).collect();
        if !self.wanted.options.share_across_users && !users::is_of(pid, &others) {
            session.leave_user(pid);
            let _ = spawned.into_process();
            return Ok(());
        }
        let begun = startup::follow(&mut spawned, &self.wanted, &mut |_| {});
        let (process, _) = spawned.into_process();
        match begun {
            // It may have ended by now, and has counted.
            Ok(begun) if begun.installer.regions().is_some() => {
                self.family.know(process.pid());
                session.join(Session::new(process, None, begun.installer));
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) => {
                let _ = remove(&process);
                Err(error)
            }
        }
    }

    /// Is anybody of the family there whom the session does not know? Looks now and then, if
    /// somebody came, and at once when slots run short. Slots of those who are not there any more
    /// become free.
    fn look(&mut self, session: &mut Session) -> bool {
        let running = session.is_running();
        let Some(regions) = session.installer.regions() else { return false };
        let slots = regions.slots();
        let taken = (slots, self.free(regions).load(Ordering::Acquire));
        let mapped = session.regions().map(|regions| regions.slots_mapped).min().unwrap_or(0);
        let short = (slots.saturating_sub(taken.1.into())) * 2 > mapped;
        match self.looked {
            // A slot that was free again may be taken, too.
            Some((when, any, before)) if running && (before == taken || when.elapsed() < LOOK_PERIOD && !short) => {
                return any;
            }
            // That nobody is there is only true now.
            Some((when, true, _)) if !running && when.elapsed() < LOOK_PERIOD => return true,
            _ => {}
        }
        let members = self.family.look();
        let pids: HashSet<u32> = members.iter().filter_map(|pid| own_pid(*pid)).collect();
        let any = members.iter().any(|pid| !session.knows(*pid));
        let freed = self.free_slots(regions, slots, &pids);
        self.looked = Some((Instant::now(), any, (slots, taken.1 + freed)));
        forget_ended(session, &members);
        any
    }

    /// How many slots are free that had owners.
    fn free<'r>(&self, regions: &'r Regions) -> &'r AtomicU32 {
        regions.common.u32(regions.layout.common_off + offset_of!(Common, slots_free) as u64)
    }

    /// Gives slots of processes that have ended to those that come; how many. One that cannot be
    /// looked at is there still.
    fn free_slots(&self, regions: &Regions, slots: u64, alive: &HashSet<u32>) -> u32 {
        let mut all = 0;
        for slot in 0..slots {
            let owner = self.common.u32(regions.layout.slot(slot) + offset_of!(Slot, owner) as u64);
            let pid = owner.load(Ordering::Acquire);
            let freed = pid != 0
                && !alive.contains(&pid)
                && regions.is_drained(slot)
                && !Path::new(&format!("/proc/{pid}")).exists()
                && owner.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            all += u32::from(freed);
            self.free(regions).fetch_add(u32::from(freed), Ordering::AcqRel);
        }
        all
    }

    /// Nobody waits for us from now on, or is traced.
    pub fn stop_listening(&mut self) {
        self.executing.clear();
        self.word(offset_of!(Bell, listens)).store(0, Ordering::Release);
        for field in [offset_of!(Bell, turn), offset_of!(Bell, heard)] {
            futex_wake(self.word(field));
        }
    }

    /// Processes that had the memory without being of the family, each once.
    pub fn take_refused(&mut self) -> Vec<i32> {
        self.family.take_refused()
    }

    /// Takes the probes out of all children.
    pub fn detach_children(&mut self) -> Result<(), SessionError> {
        let mut result = Ok(());
        let mut failed = HashSet::new();
        if !self.wanted.options.listens() {
            return result;
        }
        for _ in 0..ROUNDS {
            let left: Vec<i32> = self.family.look_anew().into_iter().filter(|pid| !failed.contains(pid)).collect();
            if left.is_empty() {
                break;
            }
            for pid in left {
                // Some end meanwhile, or execute something else.
                let Ok(process) = Process::open(pid) else {
                    failed.insert(pid);
                    continue;
                };
                if let Err(error) = remove(&process) {
                    failed.insert(pid);
                    if process.is_alive() && !process.is_replaced() {
                        result = result.and(Err(error));
                    }
                }
            }
        }
        result
    }
}

/// What is known of processes that have ended is needed as long as these have children of them.
fn forget_ended(session: &mut Session, members: &[i32]) {
    if !session.ended.is_empty() {
        let parents: HashSet<i32> = members.iter().filter_map(|pid| forked_child::parent_of(*pid)).collect();
        session.ended.retain(|ended| parents.contains(&ended.pid()));
    }
}

/// What a process of the family calls itself.
fn own_pid(pid: i32) -> Option<u32> {
    let process = Process::look_at(pid).ok()?;
    let all = discovery::all(&process, &process.maps().ok()?);
    let found = all.into_iter().find(discovery::Found::is_mine)?;
    process.read_pod(Va(found.private_va.0 + offset_of!(Private, pid) as u64)).ok()
}
