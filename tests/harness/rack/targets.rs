//! The programs of the rack: each works when asked to, and checks what it has computed.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use super::servers::{Http, Keys, Queries};
use super::{Failure, Wrong, patience};
use crate::build::{installed, target, target_dir};
use crate::process::{LIMIT, Program, run};
use crate::tool::sidestep;

/// A program under load.
pub(super) trait Target {
    /// The process that is probed.
    fn pid(&self) -> i32;

    /// Works so many rounds; gives how often it has called [`Target::counted`].
    fn work(&mut self, amount: u64) -> Result<u64, Failure>;

    /// `OBJECT:FUNCTION` that is called as often as [`Target::work`] says.
    fn counted(&self) -> Option<&'static str>;

    /// The objects that are probed.
    fn objects(&self) -> &'static [&'static str];

    /// The functions of one of them.
    fn functions(&mut self, object: &'static str) -> &Vec<String>;

    /// May it be short of memory while it does not work?
    fn may_lack_memory(&self) -> bool {
        false
    }

    /// The last check.
    fn finish(&mut self) -> Result<(), Failure>;
}

/// A program of the rack.
pub(super) struct Kind {
    pub name: &'static str,
    /// The program that is not installed.
    pub missing: fn() -> Option<String>,
    pub start: fn(&Path) -> Result<Box<dyn Target>, Failure>,
}

fn lacks(programs: &[&str]) -> Option<String> {
    programs.iter().find(|program| !installed(program)).map(|program| (*program).to_owned())
}

/// All of them.
pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "redis",
        missing: || crate::redis::missing().map(str::to_owned),
        start: |_| Ok(Box::new(Keys::start()?)),
    },
    Kind { name: "python3", missing: || lacks(&["python3"]), start: |_| talker(Told::PYTHON) },
    Kind { name: "nginx", missing: || lacks(&["nginx"]), start: |dir| Ok(Box::new(Http::start(dir)?)) },
    Kind { name: "torture", missing: || lacks(&["cc"]), start: |_| talker(Told::TORTURE) },
    Kind { name: "go", missing: || lacks(&["go"]), start: |_| talker(Told::GO) },
    Kind { name: "postgres", missing: Queries::missing, start: |_| Ok(Box::new(Queries::start()?)) },
    Kind { name: "reload", missing: || lacks(&["cc"]), start: |_| talker(Told::RELOAD) },
    Kind { name: "node", missing: || lacks(&["node"]), start: |_| talker(Told::NODE) },
    Kind { name: "java", missing: || lacks(&["java", "javac"]), start: |_| talker(Told::JAVA) },
];

/// Names of functions, asked for once.
#[derive(Default)]
pub(super) struct Names(HashMap<&'static str, Vec<String>>);

impl Names {
    /// Of an object of a process.
    pub fn of(&mut self, pid: i32, object: &'static str) -> &Vec<String> {
        self.0.entry(object).or_insert_with(|| {
            let pattern = format!("{object}:*");
            let mut listed = run(&mut sidestep(&["list", "-p", &pid.to_string(), &pattern]), LIMIT).stdout;
            // A library that comes and goes.
            if listed.is_empty() {
                listed = run(&mut sidestep(&["list", &pattern]), LIMIT).stdout;
            }
            let name = |line: &str| line.rsplit(':').next().map(str::to_owned);
            listed.lines().filter_map(name).collect()
        })
    }
}

/// How to talk to a program that takes commands.
struct Told {
    command: fn() -> Command,
    /// Before the work, once: commands that answer 0 or what is given.
    first: &'static [(&'static str, i64)],
    /// Commands of a round of work: their answers are the same each time.
    work: &'static [&'static str],
    /// A command that calls the counted function as often as its number says, which is added.
    calls: Option<(&'static str, u64, u64)>,
    counted: Option<&'static str>,
    objects: &'static [&'static str],
    may_lack_memory: bool,
    /// The last command, which answers 0.
    last: Option<&'static str>,
}

const PYTHON: &str = r"
import sys, os, json, re, zlib, signal, threading
signal.signal(signal.SIGALRM, lambda *a: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
def parts(n):
    out = []
    def one(k): out.append(zlib.crc32(b'x' * k) & 0xffff)
    threads = [threading.Thread(target=one, args=(k,)) for k in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    return sum(out)
def work(n):
    data = [{str(i): [i * 1.5, 'a' * (i % 7)]} for i in range(300)]
    text = json.dumps(data)
    assert json.loads(text) == data
    return zlib.crc32(re.sub('[13579]', '-', text).encode()) + parts(n) + len(zlib.decompress(zlib.compress(text.encode())))
def ids(n):
    for i in range(n): os.getppid()
    return n
def child(n):
    pid = os.fork()
    if pid == 0: os._exit(work(n) % 100)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print('ready', flush=True)
for line in sys.stdin:
    name, n = line.split()
    print({'work': work, 'ids': ids, 'child': child}[name](int(n)), flush=True)
";

const NODE: &str = r"
const readline = require('readline'), zlib = require('zlib'), crypto = require('crypto');
function work(n) {
  const data = Array.from({length: 300}, (_, i) => ({k: i, v: 'a'.repeat(i % 7), f: i * 1.5}));
  const text = JSON.stringify(data).replace(/[13579]/g, '-');
  const packed = zlib.gunzipSync(zlib.gzipSync(text)).toString();
  if (packed !== text) return -1;
  return parseInt(crypto.createHash('sha256').update(text).digest('hex').slice(0, 8), 16);
}
function ids(n) { for (let i = 0; i < n; i++) process.getegid(); return n; }
console.log('ready');
readline.createInterface({input: process.stdin}).on('line', line => {
  const [name, n] = line.split(' ');
  console.log(String({work, ids}[name](Number(n))));
});
";

impl Told {
    const PYTHON: Told = Told {
        // Not one from PATH: that may be a script that starts another.
        command: || {
            let mut command = Command::new("/usr/bin/python3");
            command.args(["-S", "-E", "-c", PYTHON]);
            command
        },
        first: &[],
        work: &["work 1", "child 1"],
        calls: Some(("ids", 500, 0)),
        counted: Some("libc:getppid"),
        objects: &["python3", "libc", "libz"],
        may_lack_memory: true,
        last: None,
    };
    const NODE: Told = Told {
        command: || {
            let mut command = Command::new("node");
            command.args(["-e", NODE]);
            command
        },
        first: &[],
        work: &["work 1"],
        calls: Some(("ids", 500, 0)),
        counted: Some("libc:getegid"),
        objects: &["node", "libc"],
        may_lack_memory: false,
        last: None,
    };
    /// Signals at 1 kHz, threads, children that execute programs.
    const TORTURE: Told = Told {
        command: || built("torture"),
        first: &[("start 0", 0)],
        work: &["together 50"],
        calls: Some(("alone", 2000, 400)),
        counted: Some("torture:mine"),
        objects: &["torture", "torture", "libc"],
        may_lack_memory: false,
        last: Some("finish 0"),
    };
    /// A library that comes and goes.
    const RELOAD: Told = Told {
        command: || built("reload"),
        first: &[],
        work: &["load 0", "sums 500", "unload 0"],
        calls: None,
        counted: None,
        objects: &["reload", "libc", "libz"],
        may_lack_memory: true,
        last: None,
    };
    /// A server and its clients in one process.
    const GO: Told = Told {
        command: || built("served"),
        first: &[],
        work: &["work 20"],
        calls: Some(("calls", 1000, 0)),
        counted: Some("served:main.counted"),
        objects: &["served"],
        may_lack_memory: false,
        last: None,
    };
    const JAVA: Told = Told {
        command: || {
            let classes = target_dir().join("test-targets/busy");
            let source = crate::build::checkout().join("tests/targets/Busy.java");
            run(Command::new("javac").arg("-d").arg(&classes).arg(source), LIMIT).ok();
            let mut command = Command::new("java");
            command.arg("-Xmx64m").arg("-cp").arg(classes).arg("Busy");
            command
        },
        first: &[],
        work: &["run 200"],
        calls: None,
        counted: None,
        objects: &["libjvm", "libc", "libjava"],
        may_lack_memory: false,
        last: None,
    };
}

/// One of the test programs.
fn built(name: &str) -> Command {
    Command::new(target(name).unwrap_or_else(|| panic!("{name} was not built")))
}

/// A program that takes commands.
struct Talker {
    told: Told,
    program: Program,
    names: Names,
    answers: HashMap<&'static str, i64>,
}

fn talker(told: Told) -> Result<Box<dyn Target>, Failure> {
    let mut program = Program::start(&mut (told.command)());
    for (command, answer) in told.first {
        program.send(command);
        let pid = program.pid();
        let said = patience::answer(&mut program, pid);
        if said.as_ref() != Ok(answer) {
            return Err(Failure::new(Wrong::Start, format!("{command}: {said:?}, not {answer}")));
        }
    }
    Ok(Box::new(Talker { told, program, names: Names::default(), answers: HashMap::new() }))
}

impl Talker {
    fn ask(&mut self, command: &str) -> Result<i64, Failure> {
        let crash = |why: String| Failure::new(Wrong::Crash, format!("{command}: {why}"));
        if !self.program.is_running() {
            return Err(crash("the program has ended".to_owned()));
        }
        self.program.send(command);
        let pid = self.program.pid();
        patience::answer(&mut self.program, pid).map_err(crash)
    }
}

impl Target for Talker {
    fn pid(&self) -> i32 {
        self.program.pid()
    }

    fn work(&mut self, amount: u64) -> Result<u64, Failure> {
        let mut calls = 0;
        for _ in 0..amount {
            for command in self.told.work {
                let answer = self.ask(command)?;
                let expected = *self.answers.entry(command).or_insert(answer);
                if answer != expected {
                    return Err(Failure::new(Wrong::Result, format!("{command}: {answer}, not {expected}")));
                }
            }
            if let Some((command, number, more)) = self.told.calls {
                self.ask(&format!("{command} {number}"))?;
                calls += number + more;
            }
        }
        Ok(calls)
    }

    fn counted(&self) -> Option<&'static str> {
        self.told.counted
    }

    fn objects(&self) -> &'static [&'static str] {
        self.told.objects
    }

    fn functions(&mut self, object: &'static str) -> &Vec<String> {
        self.names.of(self.program.pid(), object)
    }

    fn may_lack_memory(&self) -> bool {
        self.told.may_lack_memory
    }

    fn finish(&mut self) -> Result<(), Failure> {
        let Some(last) = self.told.last else { return Ok(()) };
        match self.ask(last)? {
            0 => Ok(()),
            wrong => Err(Failure::new(Wrong::Result, format!("{last}: {wrong} results are wrong"))),
        }
    }
}
