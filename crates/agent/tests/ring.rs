//! Records: each is read once, whole and in order, or counted as lost.

mod world;

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use sidestep_wire::{ArgKind, ArgSpec, Flow, Frame, ProbeDesc, RECORD_ALIGN, RecordState};
use world::{Setup, Thread, World, flow, map};

const INT: u32 = ArgKind::Int as u32;
const STR: u32 = ArgKind::Str as u32;
const LOST: u64 = 1;

fn record(at: Flow, args: &[(u32, u32)]) -> ProbeDesc {
    let mut desc = ProbeDesc { record: 1, lost: LOST as u32, nargs: args.len() as u32, ..flow(at) };
    for (spec, (kind, source)) in desc.args.iter_mut().zip(args) {
        *spec = ArgSpec { kind: *kind, source: *source };
    }
    desc
}

/// Probe 0: two integers. 1: two strings and an integer. 2: a return value. 3: the first two stack arguments.
fn world(ring_len: u64) -> World {
    let probes = vec![
        record(Flow::Entry, &[(INT, 0), (INT, 5)]),
        record(Flow::Entry, &[(STR, 0), (STR, 1), (INT, 2)]),
        record(Flow::Return, &[(INT, ArgSpec::RETVAL)]),
        record(Flow::Entry, &[(INT, 6), (INT, 7)]),
    ];
    World::new(&Setup { probes, ring_len, ..Setup::default() })
}

#[derive(Debug, PartialEq)]
struct Record {
    probe: u32,
    tid: u32,
    time: u64,
    comm: String,
    words: Vec<u64>,
}

impl Record {
    fn string(&self, at: &mut usize, len: u64) -> Vec<u8> {
        let bytes: Vec<u8> = self.words[*at..].iter().flat_map(|w| w.to_ne_bytes()).collect();
        *at += (len as usize).div_ceil(8);
        bytes[..len as usize].to_vec()
    }
}

/// The controller's side, written from the description in `sidestep_wire::record`.
struct Reader {
    world: World,
    slot: u64,
}

impl Reader {
    fn word(&self, at: u64) -> &'static AtomicU64 {
        let header = self.world.header();
        let ring = ptr::from_ref(self.world.slot(self.slot)) as u64 + header.ring_off;
        self.world.word(ring + (at & (header.ring_len - 1)))
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
            assert_eq!((tail % RECORD_ALIGN, len % RECORD_ALIGN), (0, 0));
            assert!(len >= RECORD_ALIGN && len <= self.world.header().ring_len, "{first:#x}");
            let words: Vec<u64> = (0..len / 8).map(|i| self.word(tail + i * 8).load(Ordering::Relaxed)).collect();
            if state == RecordState::Reserved as u32 {
                return None;
            }
            slot.tail.store(tail + len, Ordering::Release);
            if state == RecordState::Pad as u32 {
                continue;
            }
            assert_eq!(state, RecordState::Committed as u32);
            let comm: Vec<u8> = words[3..5].iter().flat_map(|w| w.to_ne_bytes()).take_while(|b| *b != 0).collect();
            return Some(Record {
                probe: words[1] as u32,
                tid: (words[1] >> 32) as u32,
                time: words[2],
                comm: String::from_utf8(comm).unwrap(),
                words: words[5..].to_vec(),
            });
        }
    }
}

fn frame(rdi: u64, r9: u64) -> Frame {
    Frame { rdi, r9, ..Frame::default() }
}

#[test]
fn a_record_says_who_when_and_what() {
    std::thread::Builder::new()
        .name("a-thread-name".into())
        .spawn(|| {
            let world = world(4096);
            let thread = world.enter(0x1000).unwrap();
            thread.hit(&mut frame(7, u64::MAX), 0);
            let stack = [0u64, 11, 22];
            thread.hit(&mut Frame { rsp: stack.as_ptr() as u64, ..Frame::default() }, 3);
            let mut slot = 0;
            thread.call(&mut slot, 0x1234, 2);
            assert_eq!(thread.ret(&mut slot), 0x1234);

            let reader = Reader { world, slot: 0 };
            let all: Vec<Record> = std::iter::from_fn(|| reader.next()).collect();
            // SAFETY: no arguments.
            let tid = unsafe { libc::gettid() } as u32;
            assert!(all.iter().all(|r| r.tid == tid && r.comm == "a-thread-name"));
            assert!(all.windows(2).all(|pair| pair[0].time < pair[1].time));
            assert_eq!(all.iter().map(|r| r.probe).collect::<Vec<_>>(), [0, 3, 2]);
            assert_eq!(all[0].words[..2], [7, u64::MAX]);
            assert_eq!(all[1].words[..2], [11, 22]);
            assert_eq!(all[2].words[..1], [0x7e7]);
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn a_new_name_is_seen_after_a_while() {
    std::thread::spawn(|| {
        let world = World::new(&Setup { tsc: false, probes: vec![record(Flow::Entry, &[])], ..Setup::default() });
        let thread = world.enter(0x1000).unwrap();
        // SAFETY: a NUL-terminated name.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"renamed".as_ptr()) };
        std::thread::sleep(std::time::Duration::from_millis(11));
        thread.hit(&mut frame(0, 0), 0);
        assert_eq!(Reader { world, slot: 0 }.next().unwrap().comm, "renamed");
    })
    .join()
    .unwrap();
}

#[test]
fn strings_are_read_up_to_their_end_or_that_of_memory() {
    let world = world(4096);
    let thread = world.enter(0x1000).unwrap();
    let reader = Reader { world, slot: 0 };
    let page = map(8192, libc::MAP_PRIVATE);
    // SAFETY: the second page of the mapping.
    assert_eq!(unsafe { libc::munmap(page.add(4096).cast(), 4096) }, 0);
    // SAFETY: ten bytes at the end of the first page, without NUL.
    let last = unsafe {
        let at = page.add(4096 - 10);
        ptr::copy_nonoverlapping(b"unfinished".as_ptr(), at, 10);
        at as u64
    };
    let long = [b'x'; 1000];
    let cases: [(u64, Option<&[u8]>); 6] = [
        (c"".as_ptr() as u64, Some(b"")),
        (c"eight by".as_ptr() as u64, Some(b"eight by")),
        (c"and some more than eight".as_ptr() as u64, Some(b"and some more than eight")),
        (long.as_ptr() as u64, Some(&long[..256])),
        (last, Some(b"unfinished")),
        (last + 10, None),
    ];
    // Many rounds, so that strings also wrap at the end of the ring.
    for round in 0..40 {
        for (first, expected) in cases {
            for (second, also) in [(8, None), cases[round % 5]] {
                thread.hit(&mut Frame { rdi: first, rsi: second, rdx: 99, ..Frame::default() }, 1);
                let record = reader.next().unwrap();
                assert_eq!(record.words[2], 99);
                let mut at = 3;
                for (word, text) in [(0, expected), (1, also)] {
                    match text {
                        Some(text) => assert_eq!(record.string(&mut at, record.words[word]), text),
                        None => assert_eq!(record.words[word], u64::MAX),
                    }
                }
                assert_eq!(reader.next(), None);
            }
        }
    }
    // What a record did not need was given back.
    let before = world.slot(0).head.load(Ordering::Relaxed);
    thread.hit(&mut Frame { rdi: c"short".as_ptr() as u64, rsi: 0, ..Frame::default() }, 1);
    assert_eq!(world.slot(0).head.load(Ordering::Relaxed) - before, (40 + 24 + 8u64).next_multiple_of(64));
}

#[test]
fn a_full_ring_loses_the_newest_and_counts() {
    let world = world(1024);
    let thread = world.enter(0x1000).unwrap();
    for n in 0..40 {
        thread.hit(&mut frame(n, 0), 0);
    }
    let reader = Reader { world, slot: 0 };
    let read: Vec<u64> = std::iter::from_fn(|| reader.next()).map(|r| r.words[0]).collect();
    assert_eq!(read, (0..16).collect::<Vec<_>>());
    assert_eq!((world.cell(LOST), world.cell(0)), (24, 40));
    thread.hit(&mut frame(41, 0), 0);
    assert_eq!(reader.next().unwrap().words[0], 41);
}

#[test]
fn no_ring_no_record() {
    let world = world(0);
    let thread = world.enter(0x1000).unwrap();
    thread.hit(&mut frame(0, 0), 0);
    assert_eq!((world.cell(LOST), world.cell(0)), (1, 1));
}

/// A record whose writer jumped away is given up; the ring goes on behind it.
#[test]
fn an_abandoned_record_does_not_stop_the_ring() {
    let world = world(1024);
    let thread = world.enter(0x1000).unwrap();
    let reader = Reader { world, slot: 0 };
    thread.hit(&mut frame(1, 0), 0);
    let word = reader.word(0);
    word.store(RecordState::Reserved.word(64), Ordering::Relaxed);
    thread.hit(&mut frame(2, 0), 0);
    assert_eq!(reader.next(), None);
    word.store(RecordState::Abandoned.word(64), Ordering::Relaxed);
    world.slot(0).tail.store(64, Ordering::Release);
    assert_eq!(reader.next().unwrap().words[0], 2);
}

/// The controller skipped to the end of a record just when its writer gave back a part.
#[test]
fn a_head_behind_the_tail_recovers() {
    let world = world(1024);
    let thread = world.enter(0x1000).unwrap();
    let slot = world.slot(0);
    slot.head.store(64, Ordering::Relaxed);
    slot.tail.store(192, Ordering::Relaxed);
    thread.hit(&mut frame(5, 0), 0);
    assert_eq!(Reader { world, slot: 0 }.next().unwrap().words[0], 5);
}

#[test]
fn a_reader_on_another_thread_sees_everything_in_order() {
    let world = world(4096);
    let writing = AtomicBool::new(true);
    let total = 300_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let thread = world.enter(0x1000).unwrap();
            let text = c"a string in every third record".as_ptr() as u64;
            for n in 0..total {
                match n % 300 {
                    0 => thread.hit(&mut Frame { rdi: text, rsi: text, rdx: n, ..Frame::default() }, 1),
                    _ => thread.hit(&mut frame(n, !n), 0),
                }
            }
            writing.store(false, Ordering::Release);
        });
        let reader = Reader { world, slot: 0 };
        let (mut read, mut last) = (0, None);
        loop {
            let more = writing.load(Ordering::Acquire);
            while let Some(record) = reader.next() {
                let n = if record.probe == 0 { record.words[0] } else { record.words[2] };
                assert!(record.probe == 1 || record.words[1] == !n, "a torn record");
                assert!(last < Some(n));
                last = Some(n);
                read += 1;
            }
            if !more {
                break;
            }
        }
        assert_eq!(read + world.cell(LOST), total);
        assert!(read > 100);
    });
}

static THREAD: AtomicPtr<Thread> = AtomicPtr::new(ptr::null_mut());
static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: i32) {
    // SAFETY: set before the first signal, and leaked.
    let Some(thread) = (unsafe { THREAD.load(Ordering::Acquire).as_ref() }) else { return };
    let n = SIGNALS.load(Ordering::Relaxed);
    let text = c"written in a handler".as_ptr() as u64;
    for _ in 0..1 + n % 3 {
        thread.hit(&mut Frame { rdi: text, rsi: 0, rdx: 1 << 32 | n, ..Frame::default() }, 1);
        thread.hit(&mut frame(1 << 32 | n, !(1 << 32 | n)), 0);
    }
    SIGNALS.store(n + 1, Ordering::Release);
}

#[test]
fn handlers_write_records_in_the_middle_of_records() {
    let world = world(8192);
    let thread = world.enter(0x1000).unwrap();
    THREAD.store(Box::into_raw(Box::new(thread)), Ordering::Release);
    // SAFETY: installs a handler that lives as long as the process.
    unsafe { libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t) };
    // SAFETY: no arguments.
    let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
    let done = AtomicBool::new(false);
    let (hits, read) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..5_000 {
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
                let more = !done.load(Ordering::Acquire) || hits.load(Ordering::Acquire) == 0;
                while let Some(record) = reader.next() {
                    read.fetch_add(1, Ordering::Relaxed);
                    if record.probe == 0 {
                        assert_eq!(record.words[1], !record.words[0], "a torn record");
                    } else {
                        let text: &[u8] = if record.words[2] >> 32 == 0 { b"main" } else { b"written in a handler" };
                        assert_eq!(record.string(&mut 3, record.words[0]), text);
                    }
                    let n = record.words[if record.probe == 0 { 0 } else { 2 }];
                    if n >> 32 == 0 {
                        assert!(last < Some(n));
                        last = Some(n);
                    }
                }
                if !more {
                    break;
                }
            }
        });
        let text = c"main".as_ptr() as u64;
        let mut n = 0;
        while !done.load(Ordering::Acquire) {
            match n % 8 {
                0 => thread.hit(&mut Frame { rdi: text, rsi: 0, rdx: n, ..Frame::default() }, 1),
                _ => thread.hit(&mut frame(n, !n), 0),
            }
            n += 1;
        }
        hits.store(n, Ordering::Release);
    });
    assert_eq!(read.load(Ordering::Relaxed) + world.cell(LOST), world.cell(0));
}
