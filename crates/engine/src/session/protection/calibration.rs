//! What a hit costs on this machine: measured with the handlers of the session, at functions of a
//! process of our own, which is probed as any target is.
//!
//! The costs are estimates. A handler may cost more in the target, where caches are shared with
//! the program, and more or less where the arguments decide what it does.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use sidestep_isa::Va;
use sidestep_plan::Technique;
use sidestep_sys::Limit;

use crate::api::{Action, Bundle, FuncPattern, Missing, Options, Pattern, Request, Target};
use crate::session::Session;

/// Functions of the process: one for each handler, and the last one without.
const FUNCTIONS: usize = 8;
/// How long one function is measured at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// While it is, records are taken out of the rings this often: who finds a full ring costs less.
const DRAIN: Duration = Duration::from_micros(500);
/// Bytes of the rings, each thread that may come counted.
const RING: usize = if size_of::<usize>() == 4 { 1 << 20 } else { 1 << 22 };
/// Nothing costs less than this many nanoseconds: less cannot be measured.
const LEAST: f64 = 0.1;

/// What hits cost, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    /// By what a hit does.
    handlers: Vec<(Action, f64)>,
    /// Of a trap, above a jump.
    trap: f64,
}

impl Costs {
    /// For the user: what the handler of each of these requests costs, by its index, and a trap.
    pub fn by_request(&self, requests: &[Request]) -> (Vec<(usize, f64)>, f64) {
        let index = |action: &Action| requests.iter().position(|request| is_same(&request.action, action));
        let known = self.handlers.iter().filter_map(|(action, cost)| Some((index(action)?, *cost)));
        (known.collect(), self.trap)
    }

    /// What a hit of a probe costs, or a call, if its returns are watched. Handlers that could not
    /// be measured, as they need what only their own places have, cost what the dearest one does.
    pub fn of(&self, action: &Action, technique: Technique) -> f64 {
        let known = self.handlers.iter().find(|(known, _)| is_same(known, action)).map(|(_, cost)| *cost);
        let cost = known.unwrap_or_else(|| self.handlers.iter().map(|(_, cost)| *cost).fold(LEAST, f64::max));
        if technique == Technique::Trap { cost + self.trap } else { cost }
    }
}

/// Does the same happen at a hit?
fn is_same(a: &Action, b: &Action) -> bool {
    (a.entry, a.exit, a.post) == (b.entry, b.exit, b.post)
}

/// Measures what the handlers of these requests cost. Takes some 0.3 s, and is done in the thread
/// that calls it.
///
/// # Errors
/// A clause for the user.
pub(crate) fn measure(
    command: &[OsString],
    bundle: &Bundle,
    requests: &[Request],
    options: &Options,
) -> Result<Costs, String> {
    let mut actions = vec![Action::default()];
    for request in requests {
        if !actions.iter().any(|known| is_same(known, &request.action)) {
            actions.push(request.action);
        }
    }
    let mut costs = Costs { handlers: Vec::new(), trap: 0.0 };
    for actions in actions.chunks(FUNCTIONS - 1) {
        let mut process = Process::start(command)?;
        process.add_costs(bundle, actions, options, &mut costs)?;
    }
    Ok(costs)
}

/// The process that is measured in.
struct Process {
    child: Child,
    questions: Option<ChildStdin>,
    answers: Receiver<String>,
    functions: Vec<Va>,
}

impl Process {
    fn start(command: &[OsString]) -> Result<Process, String> {
        let (program, args) = command.split_first().ok_or("there is no command for it")?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A Ctrl-C is not for it.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}", program.to_string_lossy()))?;
        let (sender, answers) = mpsc::channel();
        let questions = child.stdin.take();
        let stdout = child.stdout.take();
        let mut process = Process { child, questions, answers, functions: Vec::new() };
        let stdout = stdout.ok_or("it has no output")?;
        let lines = move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            let _ = lines.map(|line| sender.send(line)).take_while(Result::is_ok).count();
        };
        std::thread::Builder::new().spawn(lines).map_err(|error| format!("cannot start a thread: {error}"))?;
        let first = process.answer(None)?;
        process.functions = first.split(' ').filter_map(|word| u64::from_str_radix(word, 16).ok().map(Va)).collect();
        if process.functions.len() == FUNCTIONS { Ok(process) } else { Err(format!("it says {first:?}")) }
    }

    /// Nanoseconds of a call of a function, above those of the function without a handler; `plain`:
    /// with addresses of memory as arguments, and with no others.
    fn call(&mut self, function: usize, plain: bool, session: &mut Session) -> Result<f64, String> {
        let question = format!("{function} {}\n", u8::from(plain));
        let pipe = self.questions.as_mut().ok_or("it has no input")?;
        pipe.write_all(question.as_bytes()).map_err(|error| format!("it has ended: {error}"))?;
        let answer = self.answer(Some(session))?;
        answer.parse().map_err(|_| format!("it says {answer:?}"))
    }

    fn answer(&mut self, mut session: Option<&mut Session>) -> Result<String, String> {
        let limit = Limit::after(PATIENCE);
        loop {
            match self.answers.recv_timeout(DRAIN) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => return Err("the process for it has ended".to_owned()),
                Err(RecvTimeoutError::Timeout) if limit.is_over() => {
                    return Err(format!("it took more than {:?}", limit.waited()));
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(session) = session.as_mut() {
                        session.records();
                    }
                }
            }
        }
    }

    fn add_costs(
        &mut self,
        bundle: &Bundle,
        actions: &[Action],
        options: &Options,
        costs: &mut Costs,
    ) -> Result<(), String> {
        let plain = |action: &Action| reads_memory(bundle, action);
        let request = |(action, va): (&Action, &Va)| {
            Request::new(Pattern { text: va.to_string(), object: None, func: FuncPattern::Addr(*va) }, *action)
        };
        let requests: Vec<Request> = actions.iter().zip(&self.functions).map(request).collect();
        let options = Options {
            interpret: options.interpret,
            frame_pointers: options.frame_pointers,
            ring_bytes: RING,
            missing: Missing::Noted,
            ..Options::default()
        };
        let target = Target::Pid(self.child.id() as i32);
        let mut session =
            Session::start(target, bundle, &requests, &options, &mut |_| {}).map_err(|e| e.to_string())?;
        let probes: Vec<(usize, usize)> = session.probes().iter().map(|probe| (probe.id, probe.request)).collect();
        let mut cost_of_first = None;
        for (id, index) in probes {
            let action = &actions[index];
            let jump = self.call(index, plain(action), &mut session)?;
            costs.handlers.push((*action, jump.max(LEAST)));
            cost_of_first = cost_of_first.or(Some((id, index, jump)));
        }
        let (id, index, jump) = cost_of_first.ok_or("its functions cannot be probed")?;
        if costs.trap == 0.0 {
            session.optimize(&[id], false).map_err(|error| error.to_string())?;
            let trap = self.call(index, plain(&actions[index]), &mut session)?;
            costs.trap = (trap - jump).max(LEAST);
        }
        session.detach().map_err(|error| error.to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It is ours alone, and has nothing to lose.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Do programs of an action take what they are given for an address?
fn reads_memory(bundle: &Bundle, action: &Action) -> bool {
    let mut programs = [action.entry, action.exit].into_iter().flatten().filter_map(|index| bundle.programs.get(index));
    programs.any(|program| {
        program.verified().is_some_and(|v| v.facts.calls(|helper| helper.name.starts_with("probe_read")))
    })
}

/// What a process does that is measured in: it says where its functions are, and then, for each
/// line with the number of a function, how much longer a call takes than one of the last function.
/// Until its input ends.
pub fn target() {
    let functions: [Probed; FUNCTIONS] =
        [probed::<0>, probed::<1>, probed::<2>, probed::<3>, probed::<4>, probed::<5>, probed::<6>, probed::<7>];
    let bias = bias(functions[0] as usize);
    let mut line = String::new();
    for function in functions {
        let _ = write!(line, "{:x} ", function as usize - bias);
    }
    println!("{}", line.trim_end());
    // Wherever a pointer is read from here, it leads here again.
    let mut memory = vec![0_usize; 16 * 1024];
    let middle = &raw const memory[8 * 1024] as usize;
    memory.fill(middle);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let Some((function, plain)) = line.split_once(' ') else { return };
        let Some(function) = function.parse().ok().and_then(|index: usize| functions.get(index)) else { return };
        let numbers = [middle, 0, 1, 64, usize::MAX];
        let arguments = if plain == "1" { &numbers[..1] } else { &numbers };
        println!("{:.3}", above(*function, functions[FUNCTIONS - 1], arguments));
    }
    black_box(&memory);
}

type Probed = extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;

/// No two of them are the same code. Each is a small function as there are many: some instructions
/// that keep the processor as busy as it can be for a few nanoseconds. What a hit costs is hidden
/// behind a long wait for a result or for memory, and is largest behind nothing at all.
#[inline(never)]
extern "C" fn probed<const N: usize>(a: usize, b: usize, c: usize, d: usize, _: usize, _: usize) -> usize {
    let (mut x, mut y) = (a ^ c, b ^ d ^ N);
    for round in 0..6 {
        x = x.rotate_left(7).wrapping_add(y);
        y ^= (x >> 3).wrapping_add(round);
    }
    x ^ y
}

/// By how many nanoseconds a call takes longer than one of another function, with the argument
/// for which it takes longest. Both are timed in turns, since what else the machine does changes.
fn above(function: Probed, other: Probed, arguments: &[usize]) -> f64 {
    const TURNS: usize = 9;
    let calls = enough(function, arguments[0]);
    let timed = arguments.iter().map(|argument| (time(function, *argument, calls), *argument));
    let dearest = timed.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(0, |(_, argument)| argument);
    let calls_of_other = enough(other, dearest);
    let turn = |_| time(function, dearest, calls) - time(other, dearest, calls_of_other);
    let mut turns: Vec<f64> = (0..TURNS).map(turn).collect();
    turns.sort_by(f64::total_cmp);
    turns[TURNS / 2]
}

/// So many calls that their time can be told.
fn enough(function: Probed, argument: usize) -> u32 {
    const ENOUGH: f64 = 400_000.0;
    let mut calls = 128;
    while time(function, argument, calls) * f64::from(calls) < ENOUGH && calls < 1 << 24 {
        calls *= 2;
    }
    calls
}

/// Nanoseconds of CPU time of a call.
fn time(function: Probed, argument: usize, calls: u32) -> f64 {
    let (function, argument) = (black_box(function), black_box(argument));
    let before = sidestep_sys::thread_time();
    for _ in 0..calls {
        black_box(function(argument, argument, argument, argument, argument, argument));
    }
    (sidestep_sys::thread_time() - before).as_nanos() as f64 / f64::from(calls)
}

/// What the addresses of this program are above those in its file.
fn bias(address: usize) -> usize {
    const DYNAMIC: u16 = 3;
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let maps = sidestep_sys::parse_maps(&maps);
    let own = maps.iter().find(|mapping| mapping.contains(Va(address as u64))).map(|mapping| mapping.inode);
    let start = maps.iter().filter(|mapping| Some(mapping.inode) == own).map(|mapping| mapping.start.0).min();
    let mut head = [0; 18];
    let is_read = std::fs::File::open("/proc/self/exe").and_then(|mut f| std::io::Read::read_exact(&mut f, &mut head));
    let is_dynamic = is_read.is_ok() && u16::from_le_bytes([head[16], head[17]]) == DYNAMIC;
    if is_dynamic { start.unwrap_or(0) as usize } else { 0 }
}
