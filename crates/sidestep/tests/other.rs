//! Probes of other processes: bash, which says when it is done.

use sidestep::bpf::map::{Map, MapKind};
use sidestep::{Bundle, BundleMap, Ended, Error, Probe, Session, State, Value};
use sidestep_tests::shell::Bash;

fn at(place: &str) -> Probe {
    Probe::at(place).unwrap()
}

#[test]
fn probes_of_another_process_come_and_go() {
    let mut bash = Bash::start();
    let session = Session::attach(bash.pid()).start().unwrap();
    let echo = session.register(at("echo_builtin")).unwrap();
    bash.echo(3);
    let both = session.register(at("*printf_builtin")).unwrap();
    bash.echo(4);
    let hits = |id| session.counts(id).unwrap().0;
    assert_eq!((hits(echo), hits(both)), (7, 1));
    session.disable(echo).unwrap();
    bash.echo(5);
    session.enable(echo).unwrap();
    bash.echo(6);
    assert_eq!((hits(echo), hits(both)), (13, 3));
    session.unregister(both).unwrap();
    bash.echo(1);
    let list = session.list().unwrap();
    let [probe] = &list[..] else { panic!("{list:?}") };
    assert_eq!((probe.name.as_str(), probe.hits, probe.missed, probe.state), ("echo_builtin", 14, 0, State::Enabled));
    assert!(probe.object.ends_with("bash") && probe.registration == echo.0 && probe.address != 0);
    session.detach().unwrap();
    bash.echo(2);
}

#[test]
fn a_session_is_used_from_all_threads() {
    let mut bash = Bash::start();
    let session = Session::attach(bash.pid()).start().unwrap();
    let echo = session.register(at("echo_builtin")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..5).for_each(|_| drop(session.list().unwrap())));
        }
        for _ in 0..5 {
            session.disable(echo).unwrap();
            session.enable(echo).unwrap();
        }
    });
    bash.echo(3);
    assert_eq!(session.counts(echo).unwrap(), (3, 0));
}

#[test]
fn programs_keep_what_they_saw_in_maps() {
    let mut bash = Bash::start();
    let mut bundle = Bundle::default();
    let map = Map {
        name: "calls".to_owned(),
        kind: MapKind::Array,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        flags: 0,
        readonly: false,
        initial: Vec::new(),
    };
    bundle.maps.push(BundleMap { map, per_probe: false });
    let text = "
        *(u32 *)(r10 - 4) = 0
        r1 = map(0) ll
        r2 = r10
        r2 += -4
        call 1 // map_lookup_elem
        if r0 == 0 goto out
        r1 = 10
        lock *(u64 *)(r0 + 0) += r1
    out:
        r0 = 0
        exit
    ";
    let program = bundle.add("ten", &sidestep::bpf::assemble(text).unwrap()).unwrap();
    let probe = at("echo_builtin").programs(Some(program), None);
    let session = Session::attach(bash.pid()).bundle(bundle).probe(probe).start().unwrap();
    // Another one that comes later has the same program.
    session.register(at("printf_builtin").programs(Some(program), None)).unwrap();
    bash.echo(3);
    let [entry] = &session.entries(0).unwrap()[..] else { panic!("one entry") };
    assert_eq!(entry.value, Value::One(40u64.to_ne_bytes().to_vec()));
    assert_eq!(session.records().unwrap(), []);
}

#[test]
fn a_command_has_its_probes_from_the_start() {
    let argv = ["bash", "-c", "echo; echo >/dev/null; exit 7"];
    let session = Session::command(argv).probe(at("echo_builtin")).start().unwrap();
    assert_eq!(session.wait().unwrap(), Ended::Exited(7));
    let list = session.list().unwrap();
    assert_eq!((list.len(), list[0].hits, list[0].state), (1, 2, State::Gone));
}

#[test]
fn functions_of_this_process_are_none_of_another() {
    let bash = Bash::start();
    let session = Session::attach(bash.pid()).start().unwrap();
    #[allow(unsafe_code)]
    // SAFETY: it is refused.
    let probe = unsafe { at("echo_builtin").on_entry(|_| {}) };
    assert!(matches!(session.register(probe), Err(Error::NotOwn)));
    assert!(Session::attach(i32::MAX).probe(at("main")).start().is_err());
}
