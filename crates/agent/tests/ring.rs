//! Records: each is read once, whole and in order, or counted as lost.

mod world;

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use sidestep_wire::map::{PERF_EVENT_ARRAY, RINGBUF, TRACE};
use sidestep_wire::{Flow, MapDesc, RECORD_ALIGN, RecordHeader, RecordState, Regs, ThreadState};
use world::{Random, Setup, Thread, World, helper, program};

const OUTPUT: usize = 130;
const RESERVE: usize = 131;
const SUBMIT: usize = 132;
const DISCARD: usize = 133;
const QUERY: usize = 134;
const SUBMIT_PART: usize = 257;
const HEADER: u64 = size_of::<RecordHeader>() as u64;

/// Map 0: a ring. 1: a perf event array, number 71. Probe 0 writes what is in `rdi` and `rsi` to
/// the map in `rdx`.
fn world(ring_len: u64) -> World {
    let ring = MapDesc::new(RINGBUF, 0, 0, ring_len.max(1) as u32, 0, 70).unwrap();
    let perf = MapDesc::new(PERF_EVENT_ARRAY, 4, 4, 4, 0, 71).unwrap();
    let probes = vec![program(Flow::Entry, write_two)];
    World::new(&Setup { probes, ring_len, maps: vec![ring, perf], ..Setup::default() })
}

unsafe extern "C" fn write_two(regs: *mut Regs, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the context of a hit; a record of two words.
    unsafe {
        let record = helper(state, RESERVE, [(*regs).rdx, 16, 0, 0, 0]) as *mut u64;
        if !record.is_null() {
            record.write((*regs).rdi);
            record.add(1).write((*regs).rsi);
            helper(state, SUBMIT, [record as u64, 0, 0, 0, 0]);
        }
    }
    0
}

fn map_at(world: &World, index: u64) -> u64 {
    world.shape(index)
}

fn lost(world: &World) -> u64 {
    world.map(0).dropped.load(Ordering::Relaxed)
}

/// A thread with what the tests need.
#[derive(Clone, Copy)]
struct Writer {
    thread: Thread,
    map: u64,
}

impl Writer {
    fn new(world: &World) -> Writer {
        Writer { thread: world.enter(0x1000).unwrap(), map: map_at(world, 0) }
    }

    fn call(&self, number: usize, args: [u64; 5]) -> u64 {
        // SAFETY: the tests pass what the helpers want.
        unsafe { self.thread.helper(number, args) }
    }

    fn output(&self, words: &[u64]) -> bool {
        let len = words.len() as u64 * 8;
        match self.call(OUTPUT, [self.map, words.as_ptr() as u64, len, 0, 0]) as i64 {
            0 => true,
            -11 => false,
            other => panic!("{other}"),
        }
    }

    fn reserve(&self, len: u64) -> u64 {
        self.call(RESERVE, [self.map, len, 0, 0, 0])
    }
}

#[derive(Debug, PartialEq)]
struct Record {
    map: u32,
    time: u64,
    bytes: Vec<u8>,
}

impl Record {
    fn words(&self) -> Vec<u64> {
        self.bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    }
}

/// The controller's side, written from the description in `sidestep_wire::record`.
struct Reader {
    world: World,
    slot: u64,
}

impl Reader {
    fn word(&self, at: u64) -> &'static AtomicU64 {
        let layout = self.world.layout();
        let ring = ptr::from_ref(self.world.slot(self.slot)) as u64 + layout.ring_off;
        self.world.word(ring + (at & (layout.ring_len - 1)))
    }

    fn next(&self) -> Option<Record> {
        let slot = self.world.slot(self.slot);
        loop {
            let tail = slot.tail.load(Ordering::Relaxed);
            if tail >= slot.head.load(Ordering::Acquire) {
                return None;
            }
            let first = self.word(tail).load(Ordering::Acquire);
            let (state, len) = (first as u32, first >> 32);
            let ring_len = self.world.layout().ring_len;
            assert_eq!((tail % RECORD_ALIGN, len % RECORD_ALIGN), (0, 0));
            assert!(len >= RECORD_ALIGN && (tail & (ring_len - 1)) + len <= ring_len, "{first:#x} at {tail}");
            let words: Vec<u64> = (0..len / 8).map(|i| self.word(tail + i * 8).load(Ordering::Relaxed)).collect();
            if state == RecordState::Reserved as u32 {
                return None;
            }
            slot.tail.store(tail + len, Ordering::Release);
            if state == RecordState::Pad as u32 {
                continue;
            }
            assert_eq!(state, RecordState::Committed as u32);
            let bytes: Vec<u8> = words[3..].iter().flat_map(|w| w.to_ne_bytes()).collect();
            let length = (words[1] >> 37) as usize;
            assert!(length as u64 + HEADER <= len && len < length as u64 + HEADER + RECORD_ALIGN);
            let map = words[1] as u32 & 0x7fff;
            return Some(Record { map, time: words[2], bytes: bytes[..length].to_vec() });
        }
    }
}

fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[test]
fn a_record_says_when_and_for_which_map() {
    let ring = MapDesc::new(RINGBUF, 0, 0, 4096, 0, 70).unwrap();
    let perf = MapDesc::new(PERF_EVENT_ARRAY, 4, 4, 4, 0, 71).unwrap();
    let world = World::new(&Setup { tsc: false, maps: vec![ring, perf], ..Setup::default() });
    let writer = Writer::new(&world);
    let before = now();
    assert!(writer.output(&[7, u64::MAX]));
    let text = b"thirteen byte";
    let perf = map_at(&world, 1);
    assert_eq!(writer.call(25, [0, perf, 0xffff_ffff, text.as_ptr() as u64, 13]), 0);
    assert_eq!(writer.call(25, [0, perf, 1 << 32, text.as_ptr() as u64, 13]) as i64, -22);
    let stamp = writer.call(5, [0; 5]);
    assert!(writer.output(&[]) && writer.output(&[1]));
    let reader = Reader { world, slot: 0 };
    let all: Vec<Record> = std::iter::from_fn(|| reader.next()).collect();
    assert_eq!(all.iter().map(|r| r.map).collect::<Vec<_>>(), [70, 71, 70, 70]);
    assert_eq!(all[0].words(), [7, u64::MAX]);
    assert_eq!(all[1].bytes, text);
    assert!(before <= all[0].time && all[0].time <= all[1].time && all[1].time <= stamp && stamp <= now());
    assert_eq!((all[2].time, all[3].time), (stamp, stamp), "the program's own time stamp");
    assert!(all[2].bytes.is_empty());
}

#[test]
fn records_of_all_lengths_go_round() {
    let world = world(4096);
    let writer = Writer::new(&world);
    let reader = Reader { world, slot: 0 };
    let mut random = Random(5);
    for round in 0..20_000u64 {
        let words = vec![round; random.below(250) as usize];
        assert!(writer.output(&words), "half of an empty ring has room at any position");
        let record = reader.next().unwrap();
        assert_eq!(record.words(), words);
        assert_eq!(reader.next(), None);
    }
    assert_eq!(writer.reserve(4096), 0);
    assert_eq!((lost(&world), writer.reserve(u64::MAX), lost(&world)), (1, 0, 2));
}

#[test]
fn what_a_record_did_not_need_is_given_back() {
    let world = world(4096);
    let writer = Writer::new(&world);
    let reader = Reader { world, slot: 0 };
    let head = || world.slot(0).head.load(Ordering::Relaxed);
    let long = writer.reserve(1000);
    assert_eq!(head(), 1024);
    // SAFETY: in the record.
    unsafe { ptr::write_bytes(long as *mut u8, 7, 50) };
    writer.call(SUBMIT_PART, [long, 50, 0, 0, 0]);
    assert_eq!(head(), 128);
    assert_eq!(reader.next().unwrap().bytes, [7; 50]);

    // Not the last one: the rest becomes a pad.
    let (first, second) = (writer.reserve(1000), writer.reserve(16));
    writer.call(SUBMIT_PART, [first, 8, 0, 0, 0]);
    writer.call(SUBMIT_PART, [second, 5000, 0, 0, 0]);
    assert_eq!(head(), 128 + 1024 + 64);
    assert_eq!((reader.next().unwrap().bytes.len(), reader.next().unwrap().bytes.len()), (8, 16));

    // Discarded: as if it had never been there, or skipped.
    let last = writer.reserve(300);
    writer.call(DISCARD, [last, 0, 0, 0, 0]);
    assert_eq!(head(), 128 + 1024 + 64);
    let (first, second) = (writer.reserve(300), writer.reserve(16));
    writer.call(DISCARD, [first, 0, 0, 0, 0]);
    assert_eq!(reader.next(), None);
    writer.call(SUBMIT, [second, 0, 0, 0, 0]);
    assert_eq!(reader.next().unwrap().bytes.len(), 16);
    assert_eq!(reader.next(), None);

    // A record of the whole ring, of which only the head is left.
    let slot = world.slot(0);
    slot.head.store(8192, Ordering::Relaxed);
    slot.tail.store(8192, Ordering::Relaxed);
    let whole = writer.reserve(4096 - HEADER);
    assert_eq!(head(), 8192 + 4096);
    writer.call(SUBMIT_PART, [whole, 0, 0, 0, 0]);
    assert_eq!((head(), reader.next().unwrap().bytes.len()), (8192 + 64, 0));
}

#[test]
fn a_ring_can_be_asked_how_full_it_is() {
    let world = world(4096);
    let writer = Writer::new(&world);
    for n in 0..3 {
        writer.output(&[n]);
    }
    Reader { world, slot: 0 }.next().unwrap();
    let answers = [0, 1, 2, 3, 4].map(|what| writer.call(QUERY, [writer.map, what, 0, 0, 0]));
    assert_eq!(answers, [128, 4096, 64, 192, 0]);
    assert_eq!(writer.call(RESERVE, [writer.map, 8, 1, 0, 0]), 0, "no flags are known");
    assert_eq!(writer.call(OUTPUT, [writer.map, 0, 0, 4, 0]) as i64, -22);
}

#[test]
fn printed_text_comes_with_what_its_arguments_named() {
    let world = world(4096);
    let writer = Writer::new(&world);
    let reader = Reader { world, slot: 0 };
    let format = b"%d%% %-8s %pus %s\0";
    let (name, long) = (c"a name", [b'x'; 100]);
    let args = [format.as_ptr() as u64, format.len() as u64, 5, name.as_ptr() as u64, long.as_ptr() as u64];
    let len = writer.call(6, args);
    let record = reader.next().unwrap();
    assert_eq!((record.map, record.bytes.len() as u64), (TRACE, len));
    let mut expected: Vec<u8> = [format.len() as u64, args[2], args[3], args[4]].map(u64::to_ne_bytes).concat();
    expected.extend_from_slice(format);
    expected.extend_from_slice(b"a name\0");
    expected.extend_from_slice(&[b'x'; 63]);
    expected.push(0);
    assert_eq!(record.bytes, expected);
    // A text that cannot be read is empty.
    writer.call(6, [c"%s".as_ptr() as u64, 3, 8, 0, 0]);
    assert_eq!(reader.next().unwrap().bytes[32..], *b"%s\0\0");
}

#[test]
fn a_full_ring_loses_the_newest_and_counts() {
    let world = world(1024);
    let writer = Writer::new(&world);
    (0..40).for_each(|n| assert_eq!(writer.output(&[n]), n < 16));
    let reader = Reader { world, slot: 0 };
    let read: Vec<u64> = std::iter::from_fn(|| reader.next()).map(|r| r.words()[0]).collect();
    assert_eq!(read, (0..16).collect::<Vec<_>>());
    assert_eq!(lost(&world), 24);
    assert!(writer.output(&[41]));
    assert_eq!(reader.next().unwrap().words(), [41]);
}

#[test]
fn no_ring_no_record() {
    let world = world(0);
    let writer = Writer::new(&world);
    assert!(!writer.output(&[0]));
    assert_eq!((lost(&world), writer.reserve(0), lost(&world)), (1, 0, 2));
}

/// A record whose writer jumped away is given up; the ring goes on behind it.
#[test]
fn an_abandoned_record_does_not_stop_the_ring() {
    let world = world(1024);
    let writer = Writer::new(&world);
    let reader = Reader { world, slot: 0 };
    let record = writer.reserve(8);
    writer.output(&[2]);
    assert_eq!(reader.next(), None);
    reader.word(0).store(RecordState::Abandoned.word(64), Ordering::Relaxed);
    world.slot(0).tail.store(64, Ordering::Release);
    assert_eq!(reader.next().unwrap().words(), [2]);
    // Its writer came back after all.
    writer.call(SUBMIT_PART, [record, 0, 0, 0, 0]);
    writer.call(DISCARD, [record, 0, 0, 0, 0]);
    assert_eq!(reader.word(0).load(Ordering::Relaxed), RecordState::Abandoned.word(64));
}

/// The controller skipped to the end of a record just when its writer gave back a part.
#[test]
fn a_head_behind_the_tail_recovers() {
    let world = world(1024);
    let writer = Writer::new(&world);
    let slot = world.slot(0);
    slot.head.store(64, Ordering::Relaxed);
    slot.tail.store(192, Ordering::Relaxed);
    writer.output(&[5]);
    assert_eq!(Reader { world, slot: 0 }.next().unwrap().words(), [5]);
}

/// A record of many words, each of which says what all must be.
fn write_long(writer: &Writer, n: u64) -> bool {
    let record = writer.reserve(400) as *mut u64;
    if record.is_null() {
        return false;
    }
    // SAFETY: in the record.
    (0..40).for_each(|i| unsafe { record.add(i).write(n) });
    match n % 5 {
        0 => writer.call(DISCARD, [record as u64, 0, 0, 0, 0]),
        _ => writer.call(SUBMIT_PART, [record as u64, 8 * (1 + n % 40), 0, 0, 0]),
    };
    n % 5 != 0
}

fn check(record: &Record) -> u64 {
    let words = record.words();
    assert!(words.iter().all(|word| *word == words[0]), "a torn record");
    words[0]
}

#[test]
fn a_reader_on_another_thread_sees_everything_in_order() {
    let world = world(1 << 16);
    let writing = AtomicBool::new(true);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let writer = Writer::new(&world);
            let mut n = 0;
            while written.load(Ordering::Relaxed) < 40_000 {
                let done = if n % 3 == 0 { write_long(&writer, n) } else { writer.output(&[n, n]) };
                if done {
                    written.fetch_add(1, Ordering::Relaxed);
                } else {
                    std::thread::yield_now();
                }
                n += 1;
            }
            writing.store(false, Ordering::Release);
        });
        let reader = Reader { world, slot: 0 };
        let (mut read, mut last) = (0, None);
        loop {
            let more = writing.load(Ordering::Acquire);
            while let Some(record) = reader.next() {
                let n = check(&record);
                assert!(last < Some(n));
                last = Some(n);
                read += 1;
            }
            if !more {
                break;
            }
        }
        assert_eq!(read, written.load(Ordering::Relaxed));
    });
}

static WRITER: AtomicPtr<Writer> = AtomicPtr::new(ptr::null_mut());
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static WRITTEN: AtomicU64 = AtomicU64::new(0);
const IN_HANDLER: u64 = 1 << 32;

extern "C" fn handler(_: i32) {
    // SAFETY: set before the first signal, and leaked.
    let Some(writer) = (unsafe { WRITER.load(Ordering::Acquire).as_ref() }) else { return };
    let n = SIGNALS.load(Ordering::Relaxed);
    for _ in 0..1 + n % 3 {
        let done = u64::from(write_long(writer, IN_HANDLER + n)) + u64::from(writer.output(&[IN_HANDLER + n; 2]));
        WRITTEN.fetch_add(done, Ordering::Relaxed);
    }
    SIGNALS.store(n + 1, Ordering::Release);
}

#[test]
fn handlers_write_records_in_the_middle_of_records() {
    let world = world(1 << 15);
    let writer = Writer::new(&world);
    WRITER.store(Box::into_raw(Box::new(writer)), Ordering::Release);
    // SAFETY: installs a handler that lives as long as the process.
    unsafe { libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t) };
    // SAFETY: no arguments.
    let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
    let (done, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let read = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..1_500 {
                // SAFETY: a signal to the thread of this test, which outlives the scope.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGUSR2) };
                while SIGNALS.load(Ordering::Acquire) <= n {
                    std::thread::yield_now();
                }
            }
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let reader = Reader { world, slot: 0 };
            let mut last = None;
            loop {
                let more = !ended.load(Ordering::Acquire);
                while let Some(record) = reader.next() {
                    read.fetch_add(1, Ordering::Relaxed);
                    let n = check(&record);
                    if n < IN_HANDLER {
                        assert!(last < Some(n));
                        last = Some(n);
                    }
                }
                if !more {
                    break;
                }
            }
        });
        let mut n = 0;
        while !done.load(Ordering::Acquire) {
            let written = match n % 4 {
                0 => write_long(&writer, n),
                _ => writer.output(&[n, n]),
            };
            WRITTEN.fetch_add(written.into(), Ordering::Relaxed);
            n += 1;
        }
        ended.store(true, Ordering::Release);
    });
    assert_eq!(read.load(Ordering::Relaxed), WRITTEN.load(Ordering::Relaxed));
}

#[test]
fn a_program_writes_at_a_hit() {
    let world = world(4096);
    let writer = Writer::new(&world);
    for n in 0..10 {
        writer.thread.hit(&mut Regs { rdi: n, rsi: !n, rdx: writer.map, ..Regs::default() }, 0);
    }
    let reader = Reader { world, slot: 0 };
    let read: Vec<Vec<u64>> = std::iter::from_fn(|| reader.next()).map(|r| r.words()).collect();
    assert_eq!(read, (0..10).map(|n| vec![n, !n]).collect::<Vec<_>>());
    assert_eq!(world.cell(0), 10);
}
