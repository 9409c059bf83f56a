//! Uprobes in this very program.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use sidestep_sys::bpf::{
    self, Map, MapSpec, MultiSite, PerfBuffer, PerfRecord, ProgramKind, RingBuffer, Site, possible_cpus,
};

use crate::code::{count, load, perf_output, ring_discard, ring_output, store_result};
use crate::permitted;

/// Functions of their own for each test, as tests run side by side. They differ, so that they are
/// not made one.
macro_rules! probed {
    ($($name:ident adds $number:literal)*) => {
        $(#[inline(never)]
        extern "C" fn $name(n: u64) -> u64 {
            black_box(n).wrapping_add($number)
        })*
    };
}

probed! {
    counted adds 1
    other adds 2
    returned adds 3
    baked adds 4
    first adds 5
    second adds 6
    output adds 7
    discarded adds 8
    kept adds 10
    filled adds 9
}

type Function = extern "C" fn(u64) -> u64;

/// The file that a function is from, and where in it.
fn place(function: Function) -> (PathBuf, u64) {
    let address = function as usize as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (start, end) = fields[0].split_once('-').unwrap();
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        if (hex(start)..hex(end)).contains(&address) {
            return (PathBuf::from(fields[5]), address - hex(start) + hex(fields[2]));
        }
    }
    panic!("{address:#x} is not mapped");
}

fn me() -> Option<i32> {
    Some(std::process::id() as i32)
}

/// One value of 8 bytes.
fn variable() -> Map {
    let spec = MapSpec { name: "var", kind: 2, key_size: 4, value_size: 8, max_entries: 1, ..MapSpec::default() };
    Map::create(&spec).unwrap()
}

fn read(map: &Map) -> u64 {
    u64::from_ne_bytes(map.lookup(&[0; 4]).unwrap().unwrap().try_into().unwrap())
}

fn ring(pages: u32) -> Map {
    Map::create(&MapSpec { name: "ring", kind: 27, max_entries: 4096 * pages, ..MapSpec::default() }).unwrap()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().unwrap())
}

// Offsets in struct pt_regs of x86-64.
const AX: i16 = 80;
const DI: i16 = 112;

#[test]
fn hits_are_counted_until_the_probe_ends() {
    if !permitted() {
        return;
    }
    for pid in [me(), None] {
        let counts = variable();
        let program = load(ProgramKind::Probe, count(), &[&counts]);
        let (path, offset) = place(counted);
        let probe = bpf::attach(&program, &Site { path: &path, offset, pid, ..Site::default() }).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|n| assert_eq!(counted(n), n + 1)));
            }
        });
        assert_eq!(other(1), 3);
        assert_eq!(read(&counts), 100);
        drop(probe);
        assert_eq!(counted(0), 1);
        assert_eq!(read(&counts), 100);
    }
}

#[test]
fn what_a_function_returns_comes_through_the_ring() {
    if !permitted() {
        return;
    }
    let ring = ring(1);
    let program = load(ProgramKind::Probe, ring_output(AX), &[&ring]);
    let (path, offset) = place(returned);
    let site = Site { path: &path, offset, pid: me(), on_return: true, ..Site::default() };
    let _probe = bpf::attach(&program, &site).unwrap();
    let mut reader = RingBuffer::new(&ring).unwrap();
    assert!(!reader.wait(Duration::ZERO).unwrap());
    let mut seen = Vec::new();
    // More than fit at once: the ring goes round.
    for round in 0..10 {
        (0..100).for_each(|n| assert!(returned(100 * round + n) > n));
        assert!(reader.wait(Duration::from_secs(10)).unwrap());
        assert_eq!(reader.read(|record| seen.push(number(record))).unwrap(), 100);
    }
    assert_eq!(seen, (3..1003).collect::<Vec<_>>());
    assert_eq!(reader.read(|_| panic!("there is nothing")).unwrap(), 0);
}

#[test]
fn discarded_records_are_not_seen() {
    if !permitted() {
        return;
    }
    let ring = ring(1);
    let discards = load(ProgramKind::Probe, ring_discard(), &[&ring]);
    let outputs = load(ProgramKind::Probe, ring_output(DI), &[&ring]);
    let ((path, discarded_at), (_, kept_at)) = (place(discarded), place(kept));
    let site = |offset| Site { path: &path, offset, pid: me(), ..Site::default() };
    let _probes =
        [bpf::attach(&discards, &site(discarded_at)).unwrap(), bpf::attach(&outputs, &site(kept_at)).unwrap()];
    let mut reader = RingBuffer::new(&ring).unwrap();
    let mut seen = Vec::new();
    for n in 0..1000 {
        discarded(n);
        kept(n);
        discarded(n);
        reader.read(|record| seen.push(number(record))).unwrap();
    }
    assert_eq!(seen, (0..1000).collect::<Vec<_>>());
}

#[test]
fn the_cookie_arrives() {
    if !permitted() {
        return;
    }
    let cookie = variable();
    let program = load(ProgramKind::Probe, store_result(174), &[&cookie]);
    let (path, offset) = place(baked);
    for on_return in [false, true] {
        let site = Site { path: &path, offset, pid: me(), on_return, cookie: 0xfeed_0000_0000_cafe, ..Site::default() };
        let probe = bpf::attach(&program, &site).unwrap();
        baked(1);
        assert_eq!(read(&cookie), site.cookie);
        drop(probe);
        cookie.update(&[0; 4], &[0; 8], bpf::Update::Any).unwrap();
        baked(1);
        assert_eq!(read(&cookie), 0);
    }
}

#[test]
fn many_places_at_once() {
    if !permitted() {
        return;
    }
    let cookie = variable();
    let program = load(ProgramKind::ProbeMulti, store_result(174), &[&cookie]);
    let ((path, one), (_, two)) = (place(first), place(second));
    for on_return in [false, true] {
        let site = MultiSite { path: &path, places: &[(one, 11), (two, 22)], on_return, pid: me() };
        let probe = bpf::attach_multi(&program, &site).unwrap();
        second(1);
        assert_eq!(read(&cookie), 22);
        first(1);
        assert_eq!(read(&cookie), 11);
        drop(probe);
        second(1);
        assert_eq!(read(&cookie), 11);
    }
}

#[test]
fn output_comes_through_the_buffers_of_the_cpus() {
    if !permitted() {
        return;
    }
    let spec = MapSpec { name: "events", kind: 4, key_size: 4, value_size: 4, ..MapSpec::default() };
    let events = Map::create(&spec).unwrap();
    assert_eq!(events.max_entries(), possible_cpus().unwrap().len());
    let program = load(ProgramKind::Probe, perf_output(DI), &[&events]);
    let mut reader = PerfBuffer::new(&events, 1).unwrap();
    let (path, offset) = place(output);
    let _probe = bpf::attach(&program, &Site { path: &path, offset, pid: me(), ..Site::default() }).unwrap();
    let mut seen = Vec::new();
    // More than fit at once: the buffers go round.
    for round in 0..10 {
        (0..50).for_each(|n| assert!(output(50 * round + n) > n));
        assert!(reader.wait(Duration::from_secs(10)).unwrap());
        let read = reader.read(|record| match record {
            PerfRecord::Data { cpu, bytes } => {
                assert!(possible_cpus().unwrap().contains(&cpu));
                seen.push(number(&bytes[..8]));
            }
            PerfRecord::Lost { .. } => panic!("{record:?}"),
        });
        assert_eq!(read.unwrap(), 50);
    }
    // In order on each CPU only.
    seen.sort_unstable();
    assert_eq!(seen, (0..500).collect::<Vec<_>>());
}

#[test]
fn what_a_full_buffer_lost_is_said() {
    if !permitted() {
        return;
    }
    let spec = MapSpec { name: "events", kind: 4, key_size: 4, value_size: 4, ..MapSpec::default() };
    let events = Map::create(&spec).unwrap();
    let program = load(ProgramKind::Probe, perf_output(DI), &[&events]);
    let mut reader = PerfBuffer::new(&events, 1).unwrap();
    let (path, offset) = place(filled);
    let _probe = bpf::attach(&program, &Site { path: &path, offset, pid: me(), ..Site::default() }).unwrap();
    let (mut lost, mut found, mut hits) = (0, 0, 0);
    // The kernel says it with the next record of that CPU. Once more if this thread went to another
    // one meanwhile.
    for _ in 0..100 {
        for n in [3000, 1] {
            (0..n).for_each(|n| assert!(filled(n) > n));
            hits += n;
            let each = |record: PerfRecord<'_>| match record {
                PerfRecord::Data { .. } => found += 1,
                PerfRecord::Lost { count, .. } => lost += count,
            };
            reader.read(each).unwrap();
        }
        if lost > 0 {
            break;
        }
    }
    assert!(lost > 0 && found > 0 && lost + found <= hits, "{lost} lost and {found} found of {hits}");
}
