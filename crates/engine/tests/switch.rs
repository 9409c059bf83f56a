//! Probes switched by the session that they belong to, on bash.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use sidestep_engine::{
    Action, Bundle, FuncPattern, Options, Pattern, ProbeKind, Request, Session, SessionError, SiteState, Target, status,
};
use sidestep_tests::shell::Bash;

fn attach(bash: &Bash, functions: &[&str]) -> Session {
    attach_with(bash, functions, &Options::default())
}

fn attach_with(bash: &Bash, functions: &[&str], options: &Options) -> Session {
    let request = |name: &&str| {
        let func = FuncPattern::Name((*name).to_owned());
        Request::new(Pattern { text: (*name).to_owned(), object: None, func }, Action::default())
    };
    let requests: Vec<Request> = functions.iter().map(request).collect();
    let target = Target::Pid(bash.pid());
    Session::start(target, &Bundle::default(), &requests, options, &mut |_| {}).unwrap()
}

fn hits(session: &Session) -> Vec<u64> {
    session.counts().iter().map(|counts| counts.hits).collect()
}

#[test]
fn probes_are_switched_by_their_ids() {
    let mut bash = Bash::start();
    let mut session = attach(&bash, &["echo_builtin", "printf_builtin"]);
    bash.echo(3);
    let switched = session.disable(&[0]).unwrap();
    assert_eq!((switched.probes, switched.sites, switched.unchanged, switched.refused.len()), (1, 1, 0, 0));
    bash.echo(5);
    assert_eq!(hits(&session), [3, 2]);
    let [found] = &status(bash.pid(), &Options::default()).unwrap()[..] else { panic!("one session") };
    assert!(found.controller == std::process::id() as i32 && found.controller_alive);
    for probe in session.probes() {
        let seen = found.probes.iter().find(|seen| seen.va == probe.va).unwrap();
        assert_eq!(seen.kind, ProbeKind::Instruction);
        assert_eq!(seen.symbol.as_ref().map(|(name, _)| name.as_str()), Some(probe.name.as_str()));
        assert_eq!(seen.object.as_ref(), Some(&probe.object));
        assert_eq!(seen.counts, session.counts()[probe.id]);
        let state = if probe.id == 0 { SiteState::Disabled } else { SiteState::Enabled };
        assert_eq!((seen.state, seen.optimized), (state, probe.id != 0));
    }
    let switched = session.enable(&[0, 1]).unwrap();
    assert_eq!((switched.probes, switched.unchanged), (1, 1));
    bash.echo(7);
    assert_eq!(hits(&session), [10, 3]);
    session.detach().unwrap();
    assert!(matches!(session.enable(&[0]), Err(SessionError::NotProbed { .. })));
    assert!(matches!(status(bash.pid(), &Options::default()), Err(SessionError::NotProbed { .. })));
    bash.echo(1);
}

/// What is at a site is there for all probes of it, or for none.
#[test]
fn one_of_several_at_a_site_stays() {
    let mut bash = Bash::start();
    let mut session = attach(&bash, &["echo_builtin", "echo_builtin"]);
    let va = session.probes()[0].site;
    let switched = session.disable(&[1]).unwrap();
    assert_eq!((switched.probes, &*switched.refused), (0, &[(va, "another probe is at the same place")][..]));
    bash.echo(4);
    assert_eq!(hits(&session), [4, 4]);
    let switched = session.disable(&[1, 0]).unwrap();
    assert_eq!((switched.probes, switched.sites), (2, 1));
    bash.echo(4);
    assert_eq!(hits(&session), [4, 4]);
    session.detach().unwrap();
    bash.echo(1);
}

/// The code at a site.
struct Code {
    memory: File,
    at: u64,
}

impl Code {
    fn of(bash: &Bash, session: &Session) -> Code {
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", bash.pid())).unwrap();
        Code { memory, at: session.probes()[0].site.0 }
    }

    fn now(&self) -> [u8; 5] {
        let mut bytes = [0; 5];
        self.memory.read_exact_at(&mut bytes, self.at).unwrap();
        bytes
    }

    fn set(&self, bytes: [u8; 5]) {
        self.memory.write_all_at(&bytes, self.at).unwrap();
    }
}

/// Who switches probes may be killed between any two writes. What it leaves then works, and whoever
/// comes next goes on from there.
#[test]
fn each_step_of_a_switch_is_a_state_that_works() {
    const TRAP: u8 = 0xcc;
    let mut bash = Bash::start();
    let live = Options { live: true, ..Options::default() };
    for next in ["enable", "disable", "optimize", "detach"] {
        // How many bytes of the jump are there, behind a trap. A site may lie on two pages.
        for written in [1, 2, 4, 5] {
            let mut session = attach_with(&bash, &["echo_builtin"], &live);
            let code = Code::of(&bash, &session);
            let new = code.now();
            // In the journal, disabled: as before its patch is back, and as after it is about to
            // go.
            session.disable(&[0]).unwrap();
            let old = code.now();
            code.set(std::array::from_fn(|i| match i {
                0 => TRAP,
                i if i < written => new[i],
                i => old[i],
            }));
            let seen = status(bash.pid(), &Options::default()).unwrap();
            let seen = seen
                .iter()
                .flat_map(|session| &session.probes)
                .find(|probe| probe.kind == ProbeKind::Instruction)
                .unwrap();
            assert_eq!((seen.state, seen.optimized), (SiteState::Enabled, false), "{written}");
            bash.echo(3);
            assert_eq!(hits(&session), [3], "{written}");
            let switched = match next {
                "enable" => session.enable(&[0]),
                "disable" => session.disable(&[0]),
                "optimize" => session.optimize(&[0], true),
                _ => {
                    session.detach().unwrap();
                    assert_eq!(code.now(), old, "{written}");
                    bash.echo(1);
                    continue;
                }
            };
            let switched = switched.unwrap();
            assert!(switched.sites == 1 && switched.stopped == 0, "{next} {written}: {switched:?}");
            assert_eq!(code.now(), if next == "disable" { old } else { new }, "{next} {written}");
            bash.echo(2);
            assert_eq!(hits(&session), [if next == "disable" { 3 } else { 5 }], "{next} {written}");
            session.detach().unwrap();
            assert_eq!(code.now(), old, "{next} {written}");
            bash.echo(1);
        }
    }
}

/// A breakpoint that somebody else has set at a probe that is not being switched is not ours.
#[test]
fn a_breakpoint_of_a_debugger_is_not_taken_for_a_step() {
    let bash = Bash::start();
    let mut session = attach_with(&bash, &["echo_builtin"], &Options { live: true, ..Options::default() });
    let code = Code::of(&bash, &session);
    let new = code.now();
    code.set([0xcc, new[1], new[2], new[3], new[4]]);
    let switched = session.disable(&[0]).unwrap();
    assert_eq!((switched.sites, switched.refused.len()), (0, 1));
    code.set(new);
    session.detach().unwrap();
}
