//! One probe at a time, in a program that plays again and again.
//!
//! A session has many sites, none near another, so each is planned as if it were alone. All are
//! disabled. One after the other is enabled, for one play. So a site costs a switch and a play, not
//! a session.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use sidestep_bpf::{AluOp, Insn, Operand, Reg, Width, program};
use sidestep_engine::{Action, Bundle, Missing, Options, Request, Session, Target, pattern};

use crate::process::{Running, lines};

/// For how long a play may take.
const LONG: Duration = Duration::from_secs(20);
/// `bpf_ktime_get_ns`: a helper needs a thunk, which saves the registers of the program.
const KTIME: u32 = 5;

/// What a probe does beside counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    /// Nothing.
    Nothing,
    /// A program of arithmetic, compiled into the detour.
    Computes,
    /// A program that calls a helper.
    Calls,
}

/// What is expected of a probe.
pub struct Expected {
    /// Link-time address.
    pub va: u64,
    /// Hits of a play, if they are known.
    pub hits: Option<u64>,
}

/// What became of the sites of a session.
#[derive(Default, Debug)]
pub struct Result {
    /// Sites that were probed alone.
    pub alone: usize,
    /// Of those: probed as a trap as well, where the plan is a jump.
    pub trapped: usize,
    /// Hits that were compared.
    pub hits: u64,
    /// Plays with probes.
    pub plays: usize,
    /// Sites by technique.
    pub techniques: BTreeMap<String, u64>,
    /// Sites that were refused, by the reason, without its numbers.
    pub refused: BTreeMap<String, u64>,
    /// The addresses of sites and what was different.
    pub differences: Vec<(Vec<u64>, String)>,
}

/// A program that plays when it is told to.
struct Player {
    running: Running,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Player {
    fn start(program: &Path, rounds: &str) -> Player {
        let mut command = Command::new(program);
        let mut running = Running::start_streaming(command.args([rounds, "0"]).stdin(Stdio::piped()));
        let (stdin, lines) = (running.take_stdin(), lines(running.take_stdout()));
        Player { running, stdin, lines }
    }

    /// What it prints, or how it ended.
    fn play(&mut self) -> std::result::Result<String, String> {
        if let Some(stdin) = &mut self.stdin {
            // Whether it is still there is seen below.
            let _ = stdin.write_all(b"\n");
        }
        let mut all = String::new();
        loop {
            match self.lines.recv_timeout(LONG) {
                Ok(line) => {
                    all += &line;
                    all.push('\n');
                    if line == "end" {
                        return Ok(all);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err("it hangs".to_owned()),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.running.wait(LONG);
                    return Err(format!("it ended: {status:?} after {all:?}"));
                }
            }
        }
    }
}

/// Sites of a program that are far from each other.
pub struct Group<'a> {
    /// The program.
    pub program: &'a Path,
    /// Its first argument.
    pub rounds: &'a str,
    /// What it prints in a play.
    pub printed: &'a str,
    /// What the probes do.
    pub does: Does,
    /// Each site is probed as a trap, too.
    pub traps: bool,
}

impl Group<'_> {
    /// Probes one site after the other, and then all of them.
    pub fn check(&self, sites: &[Expected], result: &mut Result) {
        let mut rest = sites;
        // After a difference the program is another one.
        while let Some(done) = self.session(rest, result) {
            rest = &rest[done..];
        }
    }

    /// One session. `Some`: how many sites are done, because there was a difference.
    fn session(&self, sites: &[Expected], result: &mut Result) -> Option<usize> {
        if sites.is_empty() {
            return None;
        }
        let mut player = Player::start(self.program, self.rounds);
        let mut differs = |vas: Vec<u64>, what: String| result.differences.push((vas, what));
        // Addresses of libraries are looked up now.
        if let Some(what) = self.unlike(player.play()) {
            differs(Vec::new(), format!("without a probe: {what}"));
            return None;
        }
        let (bundle, action) = programs(self.does);
        let request = |site: &Expected| {
            let place = format!("{}:{:#x}", self.program.display(), site.va);
            Request::new(pattern::place(&place, false).expect("an address"), action)
        };
        let requests: Vec<Request> = sites.iter().map(request).collect();
        let options = Options { missing: Missing::Noted, ..Options::default() };
        let target = Target::Pid(player.running.pid());
        let session = match Session::start(target, &bundle, &requests, &options, &mut |_| {}) {
            Ok(session) => session,
            Err(error) => {
                let reason = without_numbers(&error.to_string());
                *result.refused.entry(reason).or_default() += sites.len() as u64;
                return None;
            }
        };
        for refused in session.refused() {
            *result.refused.entry(without_numbers(&refused.reason)).or_default() += 1;
        }
        let probes: Vec<(usize, usize)> = session.probes().iter().map(|probe| (probe.id, probe.request)).collect();
        let all: Vec<usize> = probes.iter().map(|(id, _)| *id).collect();
        let mut attempt = Attempt { group: self, player, session, result };
        if let Some(what) = attempt.switch(&all, Session::disable).or_else(|| attempt.plain()) {
            attempt.result.differences.push((sites.iter().map(|site| site.va).collect(), format!("disabled: {what}")));
            return None;
        }
        for (id, request) in &probes {
            let site = &sites[*request];
            if let Some(what) = attempt.alone(*id, site) {
                attempt.result.differences.push((vec![site.va], what));
                return Some(request + 1);
            }
        }
        let expected: Vec<(usize, Option<u64>)> = probes.iter().map(|(id, at)| (*id, sites[*at].hits)).collect();
        let what = attempt.switch(&all, Session::enable).or_else(|| attempt.hits(&expected));
        let what = what.or_else(|| attempt.session.detach().err().map(|error| format!("the detach: {error}")));
        if let Some(what) = what.or_else(|| attempt.plain()) {
            attempt.result.differences.push((sites.iter().map(|site| site.va).collect(), what));
        }
        None
    }

    fn unlike(&self, played: std::result::Result<String, String>) -> Option<String> {
        match played {
            Ok(printed) if printed == self.printed => None,
            Ok(printed) => Some(format!("{printed}--- instead of\n{}", self.printed)),
            Err(how) => Some(how),
        }
    }
}

/// A session in a program.
struct Attempt<'a, 'b> {
    group: &'a Group<'b>,
    // In front of the program: a session ends before its target does.
    session: Session,
    player: Player,
    result: &'a mut Result,
}

type Switch =
    fn(&mut Session, &[usize]) -> std::result::Result<sidestep_engine::Switched, sidestep_engine::SessionError>;

impl Attempt<'_, '_> {
    /// Switches probes. What went wrong, if anything.
    fn switch(&mut self, ids: &[usize], how: Switch) -> Option<String> {
        match how(&mut self.session, ids) {
            Ok(switched) if switched.refused.is_empty() => None,
            Ok(switched) => Some(format!("not switched: {:?}", switched.refused)),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Plays without a probe.
    fn plain(&mut self) -> Option<String> {
        let played = self.player.play();
        self.group.unlike(played)
    }

    /// Plays with these probes, and compares their hits; other probes have none.
    fn hits(&mut self, expected: &[(usize, Option<u64>)]) -> Option<String> {
        let before = self.session.counts();
        self.result.plays += 1;
        let played = self.player.play();
        if let Some(what) = self.group.unlike(played) {
            return Some(what);
        }
        let after = self.session.counts();
        for (id, (before, after)) in before.iter().zip(&after).enumerate() {
            let (hits, missed) = (after.hits - before.hits, after.missed - before.missed);
            let wanted = expected.iter().find(|(of, _)| *of == id).map_or(Some(0), |(_, hits)| *hits);
            if missed != 0 || wanted.is_some_and(|wanted| wanted != hits) {
                return Some(format!("probe {id} has {hits} hits for {wanted:?}, {missed} missed"));
            }
            self.result.hits += hits;
        }
        None
    }

    /// Plays with one probe, and leaves it disabled.
    fn alone(&mut self, id: usize, site: &Expected) -> Option<String> {
        let technique = self.session.probes()[id].technique.to_string();
        let expected = [(id, site.hits)];
        self.result.alone += 1;
        let what = self.switch(&[id], Session::enable).or_else(|| self.hits(&expected));
        let mut what = what.map(|what| format!("{technique}: {what}"));
        // Without SIGTRAP a session makes no traps.
        let trap =
            |session: &mut Session| session.optimize(&[id], false).is_ok_and(|switched| switched.refused.is_empty());
        if what.is_none() && self.group.traps && technique != "trap" && trap(&mut self.session) {
            self.result.trapped += 1;
            let trapped = self.hits(&expected).map(|what| format!("{technique} as a trap: {what}"));
            what = trapped.or_else(|| self.switch(&[id], |session, ids| session.optimize(ids, true)));
        }
        *self.result.techniques.entry(technique).or_default() += 1;
        what.or_else(|| self.switch(&[id], Session::disable))
    }
}

/// The programs of a session, and what its probes do.
fn programs(does: Does) -> (Bundle, Action) {
    let number = |dst, imm| Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src: Operand::Imm(imm) };
    let multiply = Insn::Alu { width: Width::W64, op: AluOp::Mul, dst: Reg::R3, src: Operand::Imm(-7) };
    let (mut bundle, mut action) = (Bundle::default(), Action::default());
    let insns = match does {
        Does::Nothing => return (bundle, action),
        Does::Computes => [number(Reg::R3, 5), multiply, number(Reg::R0, 0), Insn::Exit],
        Does::Calls => [Insn::CallHelper(KTIME), number(Reg::R3, 5), number(Reg::R0, 0), Insn::Exit],
    };
    let program = sidestep_bpf::Program { slots: program::encode(&insns), ..Default::default() };
    action.entry = Some(bundle.add("random", &program).expect("a program that is in order"));
    (bundle, action)
}

/// A reason that is the same for all sites.
fn without_numbers(reason: &str) -> String {
    let word = |word: &str| if word.contains(|c: char| c.is_ascii_digit()) { "N".to_owned() } else { word.to_owned() };
    reason.split(' ').map(word).collect::<Vec<_>>().join(" ")
}
