//! Maps, and programs that run without a probe.

use sidestep_sys::bpf::{
    Map, MapError, MapSpec, Program, ProgramKind, ProgramSpec, ReferenceError, RingBuffer, RingError, Update,
    possible_cpus, resolve_maps,
};

use crate::code::{NOTHING, count, load, map, value};
use crate::permitted;

fn spec(name: &str, kind: u32, value_size: u32) -> MapSpec<'_> {
    MapSpec { name, kind, key_size: 4, value_size, max_entries: 8, ..MapSpec::default() }
}

#[test]
fn keys_come_and_go() {
    if !permitted() {
        return;
    }
    let map = Map::create(&spec("hash", 1, 3)).unwrap();
    assert_eq!(map.lookup(b"key1").unwrap(), None);
    assert!(!map.delete(b"key1").unwrap());
    map.update(b"key2", b"two", Update::New).unwrap();
    map.update(b"key1", b"one", Update::Any).unwrap();
    let again = map.update(b"key1", b"eno", Update::New).unwrap_err();
    assert!(again.to_string().starts_with("cannot update map 'hash': File exists"), "{again}");
    map.update(b"key1", b"eno", Update::Existing).unwrap();
    assert_eq!(map.lookup(b"key1").unwrap().unwrap(), b"eno");
    let all = [(b"key1".to_vec(), b"eno".to_vec()), (b"key2".to_vec(), b"two".to_vec())];
    assert_eq!(map.entries().unwrap(), all);
    assert!(map.delete(b"key1").unwrap());
    assert_eq!(map.entries().unwrap(), all[1..]);
    assert_eq!(map.next_key(Some(b"key2")).unwrap(), None);
    let wrong = map.lookup(b"key").unwrap_err();
    assert!(matches!(wrong, MapError::Length { what: "a key", given: 3, expected: 4, .. }), "{wrong}");
    let wrong = map.update(b"key1", b"four", Update::Any).unwrap_err();
    assert!(matches!(wrong, MapError::Length { what: "a value", given: 4, expected: 3, .. }), "{wrong}");
}

#[test]
fn a_value_per_cpu() {
    if !permitted() {
        return;
    }
    let cpus = possible_cpus().unwrap().len();
    for kind in [5, 6, 10] {
        // Three bytes: between the CPUs the kernel pads to eight.
        let map = Map::create(&spec("percpu", kind, 3)).unwrap();
        assert_eq!(map.copies(), cpus);
        let values: Vec<u8> = (0..3 * cpus as u8).collect();
        map.update(&2u32.to_ne_bytes(), &values, Update::Any).unwrap();
        assert_eq!(map.lookup(&2u32.to_ne_bytes()).unwrap().unwrap(), values, "kind {kind}");
        assert!(map.entries().unwrap().contains(&(2u32.to_ne_bytes().to_vec(), values)), "kind {kind}");
    }
}

#[test]
fn constants_are_frozen() {
    if !permitted() {
        return;
    }
    let spec = MapSpec { max_entries: 1, initial: b"sidestep", readonly: true, ..spec(".rodata", 2, 8) };
    let map = Map::create(&spec).unwrap();
    assert_eq!(map.lookup(&[0; 4]).unwrap().unwrap(), b"sidestep");
    let frozen = map.update(&[0; 4], b"endstead", Update::Any).unwrap_err();
    assert!(frozen.to_string().contains("Operation not permitted"), "{frozen}");
    let mut code = count();
    resolve_maps(&mut code, &[&map]).unwrap();
    let spec = ProgramSpec { name: "writes", kind: ProgramKind::Probe, code: &code, license: "GPL" };
    let refused = Program::load(&spec).unwrap_err();
    assert!(refused.reason().iter().any(|line| line.contains("write into map forbidden")), "{refused}");
}

#[test]
fn kinds_that_we_do_not_know_are_refused() {
    let Err(MapError::Kind { kind: 21, .. }) = Map::create(&spec("cgroup", 21, 8)) else { panic!("it was made") };
    if !permitted() {
        return;
    }
    let array = Map::create(&spec("array", 2, 8)).unwrap();
    let Err(RingError::Kind { kind: 2, expected: 27, .. }) = RingBuffer::new(&array) else { panic!("no ring") };
}

#[test]
fn a_program_runs_and_counts() {
    if !permitted() {
        return;
    }
    let counts = Map::create(&MapSpec { max_entries: 1, ..spec("counts", 2, 8) }).unwrap();
    let program = load(ProgramKind::SocketFilter, count(), &[&counts]);
    for _ in 0..3 {
        assert_eq!(program.run().unwrap(), 0);
    }
    assert_eq!(counts.lookup(&[0; 4]).unwrap().unwrap(), 3u64.to_ne_bytes());
}

#[test]
fn what_the_verifier_says_is_handed_on() {
    if !permitted() {
        return;
    }
    let code = &NOTHING[1..];
    let spec = ProgramSpec { name: "nothing", kind: ProgramKind::Probe, code, license: "GPL" };
    let refused = Program::load(&spec).unwrap_err();
    assert!(refused.reason().contains(&"R0 !read_ok"), "{refused}");
    assert!(refused.to_string().starts_with("the kernel refuses program 'nothing': "), "{refused}");
}

#[test]
fn references_to_maps_become_descriptors() {
    if !permitted() {
        return;
    }
    let (one, two) = (Map::create(&spec("one", 2, 8)).unwrap(), Map::create(&spec("two", 2, 8)).unwrap());
    let number = |map: &Map| std::os::fd::AsRawFd::as_raw_fd(map) as u64;
    let constant = [0x0505_0505_0000_0618, 0x18];
    let mut code = [&constant[..], &map(3, 1), &value(4, 0, 16), &NOTHING].concat();
    resolve_maps(&mut code, &[&one, &two]).unwrap();
    let expected = [number(&two) << 32 | 0x1318, 0, number(&one) << 32 | 0x2418, 16 << 32];
    assert_eq!(code, [&constant[..], &expected, &NOTHING].concat());
    let missing = resolve_maps(&mut map(1, 2), &[&one, &two]);
    assert_eq!(missing, Err(ReferenceError::Map { at: 0, index: 2, maps: 2 }));
    assert_eq!(resolve_maps(&mut map(1, 0)[..1], &[&one]), Err(ReferenceError::Truncated { at: 0 }));
}
