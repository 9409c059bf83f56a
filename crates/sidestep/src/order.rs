//! What a session asks of its controller, and what that answers.

use std::path::PathBuf;

use sidestep_engine::{Entry, ExitStatus, FuncPattern, Pattern, Record, Value, pattern};
use sidestep_isa::FileOff;

use crate::codec::{Message, message};

/// Where probes are to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `[OBJECT:]FUNC`.
    Text(String),
    /// A file and an offset in it.
    File(PathBuf, u64),
}
message!(
    enum Place {
        Text(text),
        File(path, offset),
    }
);

impl Place {
    /// As the engine wants it.
    pub fn pattern(&self) -> Result<Pattern, String> {
        match self {
            Place::Text(text) => pattern::place(text, false),
            Place::File(path, offset) => Ok(Pattern {
                text: format!("{}+{offset:#x}", path.display()),
                object: Some(path.display().to_string()),
                func: FuncPattern::FileOffset(FileOff(*offset)),
            }),
        }
    }
}

/// A function of the target with its second argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    pub address: u64,
    pub data: u64,
    /// It is compiled for general registers only.
    pub general_only: bool,
}
message!(Function { address, data, general_only });

/// What happens at a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Does {
    /// Programs of the bundle run at the entry and at the return; hits are counted.
    Programs(Option<u32>, Option<u32>),
    /// Functions of the target, at the entry and at the return.
    Functions(Option<Function>, Option<Function>),
    /// A function runs instead, and a word leads to the original: addresses of both.
    Replace(u64, u64),
}
message!(
    enum Does {
        Programs(entry, exit),
        Functions(enter, leave),
        Replace(function, original),
    }
);

/// A probe that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub place: Place,
    pub does: Does,
}
message!(Wanted { place, does });

/// An order. Numbers are those of registrations, or of maps.
#[derive(Debug)]
pub enum Order {
    Register(Vec<Wanted>),
    Enable(u32),
    Disable(u32),
    Optimize(u32, bool),
    Unregister(u32),
    List,
    Refused,
    Entries(u32),
    Records,
    Wait,
    Detach,
}
message!(
    enum Order {
        Register(wanted),
        Enable(id),
        Disable(id),
        Optimize(id, on),
        Unregister(id),
        List,
        Refused,
        Entries(map),
        Records,
        Wait,
        Detach,
    }
);

/// An answer, if there was no error.
#[derive(Debug)]
pub enum Answer {
    Done,
    /// The number of the first new registration, and those of old ones whose handlers nobody is in
    /// any more.
    Registered(u32, Vec<u32>),
    Probes(Vec<Listed>),
    Refused(Vec<Refused>),
    Entries(Vec<Entry>),
    Records(Vec<Record>),
    Ended(Ended),
}
message!(
    enum Answer {
        Done,
        Registered(first, left),
        Probes(all),
        Refused(all),
        Entries(all),
        Records(all),
        Ended(how),
    }
);

/// What went wrong, where it can be told from other things that did.
#[derive(Debug)]
pub enum Fault {
    NoRegistration(u32),
    Engine(String),
}
message!(
    enum Fault {
        NoRegistration(id),
        Engine(message),
    }
);

impl From<sidestep_engine::SessionError> for Fault {
    fn from(error: sidestep_engine::SessionError) -> Fault {
        Fault::Engine(error.to_string())
    }
}

/// A probe of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Number of the registration it came from.
    pub registration: u32,
    /// The function, demangled, with `+0xOFF` where asked for.
    pub name: String,
    /// Path of the object as the target sees it.
    pub object: PathBuf,
    /// Run-time address of the site.
    pub address: u64,
    /// How it was put in: `jump`, `trap`, … as `sidestep explain` has it.
    pub technique: String,
    /// What is at the site now.
    pub state: State,
    /// A hit takes a jump now; if not, a trap, which is slow. False where no hit is possible.
    pub optimized: bool,
    /// Hits that were handled.
    pub hits: u64,
    /// Hits that were not: see the contract in the crate's documentation.
    pub missed: u64,
}
message!(Listed { registration, name, object, address, technique, state, optimized, hits, missed });

/// What is at the site of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The probe.
    Enabled,
    /// The original code, or the handlers of other probes, until the probe is enabled.
    Disabled,
    /// Something else: the object was unloaded, or somebody has changed its code, or the process is
    /// gone.
    Gone,
}
message!(
    enum State {
        Enabled,
        Disabled,
        Gone,
    }
);

/// A place that could not be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The function.
    pub name: String,
    /// Path of its object.
    pub object: PathBuf,
    /// The reason, a clause.
    pub reason: String,
}
message!(Refused { name, object, reason });

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By `exit`, with this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// It was no command of this session.
    Unknown,
}
message!(
    enum Ended {
        Exited(code),
        Killed(signal),
        Unknown,
    }
);

impl From<Option<ExitStatus>> for Ended {
    fn from(status: Option<ExitStatus>) -> Ended {
        match status {
            Some(ExitStatus::Code(code)) => Ended::Exited(code),
            Some(ExitStatus::Signal(signal)) => Ended::Killed(signal),
            None => Ended::Unknown,
        }
    }
}

message!(
    enum Value {
        One(bytes),
        PerThread(all),
    }
);
message!(Entry { key, value });

impl Message for Record {
    fn put(&self, to: &mut Vec<u8>) {
        self.map.map(|map| map as u64).put(to);
        self.pid.put(to);
        self.tid.put(to);
        self.time_ns.put(to);
        self.bytes.put(to);
    }

    fn get(from: &mut &[u8]) -> Option<Record> {
        let map = Option::<u64>::get(from)?.map(|map| map as usize);
        let (pid, tid) = (u32::get(from)?, u32::get(from)?);
        Some(Record { map, pid, tid, time_ns: u64::get(from)?, bytes: Vec::get(from)? })
    }
}
