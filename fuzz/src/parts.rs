//! What is done with an input. A part answers whether the input was taken for a good one; it fails
//! by a panic.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use sidestep_bpf::Program;
use sidestep_bpf::map::Map;
use sidestep_bpf::object::Object as BpfObject;
use sidestep_bpf::verify::{Problem, Rules, verify};
use sidestep_isa::Va;
use sidestep_lang::script::c::{Found, Headers, Wanted};
use sidestep_lang::script::check::check_with;
use sidestep_lang::script::lower::{Clock, lower};
use sidestep_lang::script::parser::{Given, parse_given};
use sidestep_lang::script::program::Nothing;
use sidestep_lang::uprobe_events::{Event, Filter, Options, Probe, compile};
use sidestep_plan::{Index, plan};
use sidestep_symbols::{CompiledNames, DebugSearch, Matcher, Object, parse_maps};
use sidestep_tests::build::target_dir;
use sidestep_tests::random::Rng;
use sidestep_wire::header::PATCH_MAX;
use sidestep_wire::map::{ANY, EXIST, HASH, LRU_HASH, NO_EXIST, PERCPU_HASH, STACK_TRACE};
use sidestep_wire::ring::Next;
use sidestep_wire::stacks::Stacks;
use sidestep_wire::{JournalEntry, MapDesc, Ring, Table};

use crate::mutate::{Sample, Words};
use crate::{samples, words};

/// A kind of input.
pub struct Part {
    /// Its name on the command line.
    pub name: &'static str,
    /// Of a hundred inputs of all parts, how many are its own.
    pub share: u64,
    /// Good inputs.
    pub samples: fn() -> Vec<Sample>,
    /// Words of its language.
    pub words: Words<'static>,
    /// Does everything with it that is done with such an input.
    pub read: fn(&[u8]) -> bool,
}

/// All of them. The slow ones have fewer inputs.
pub const PARTS: &[Part] = &[
    Part { name: "elf", share: 1, samples: samples::programs, words: &[], read: elf },
    Part { name: "dwarf", share: 1, samples: samples::described, words: &[], read: dwarf },
    Part { name: "go", share: 1, samples: samples::go_programs, words: &[], read: go },
    Part { name: "bpf", share: 4, samples: samples::objects, words: &[], read: bpf },
    Part { name: "scripts", share: 13, samples: samples::scripts, words: words::SCRIPT, read: script },
    Part { name: "lines", share: 20, samples: samples::lines, words: words::LINE, read: line },
    Part { name: "headers", share: 4, samples: samples::headers, words: words::HEADER, read: header },
    Part { name: "names", share: 8, samples: samples::names, words: words::NAMES, read: names },
    Part { name: "journal", share: 16, samples: samples::shared, words: &[], read: journal },
    Part { name: "maps", share: 16, samples: samples::shared, words: &[], read: maps },
    Part { name: "rings", share: 16, samples: samples::shared, words: &[], read: rings },
];

fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

fn open(input: &[u8]) -> Option<Object> {
    let search = DebugSearch { roots: Vec::new(), dirs: Vec::new() };
    Object::from_bytes(Path::new("/x/program"), input.to_vec(), &search).ok()
}

/// An object: its symbols, code, notes, unwind rules, and plans of some functions.
fn elf(input: &[u8]) -> bool {
    let Some(object) = open(input) else { return false };
    for function in object.find(&Matcher::glob("*")).iter().take(200) {
        let _ = (function.demangled(), object.function_at(function.va), object.frame_rule(function.va));
        let _ = (
            object.find_offset(&function.name, 1),
            object.irelative_slots(function.va),
            object.import_slots(&function.name),
        );
    }
    let _ = (object.not_found("mian").to_string(), object.needed(), object.soname(), object.is_go(), object.build_id());
    let _ = (object.usdt_probes(), object.unwinding(), object.text());
    let Ok(code) = object.code() else { return false };
    let index = Index::new(code);
    for function in object.functions().iter().take(8) {
        let _ = plan(&index, function.va, false);
    }
    true
}

/// Debug information: types of functions, records, lines, constants.
fn dwarf(input: &[u8]) -> bool {
    // Debug information is read from the file, when something of it is asked for.
    let file = target_dir().join(format!("fuzz/input.{}", std::process::id()));
    if std::fs::write(&file, input).is_err() {
        return false;
    }
    let Ok(object) = Object::open(&file, &[]) else { return false };
    let _ = (object.line("program.cc", 16, None), object.line("program.cc", 1, Some(5)));
    let Ok(info) = object.debug_info() else { return false };
    let mut places = Vec::new();
    for name in ["struct Pair", "union Either", "enum Color", "struct Guard", "Pair"] {
        if let Ok(sidestep_symbols::DataType::Record { place, .. }) = info.find(name, None) {
            places.push(place);
        }
    }
    for function in object.functions().iter().filter(|f| f.name.contains("first") || f.name.contains("main")).take(4) {
        let _ = (info.function(function.va, &function.name), info.constant("GREEN", function.va));
    }
    places.iter().for_each(|place| drop(info.layout(*place)));
    !places.is_empty()
}

/// A Go program without symbols: the functions of its own table, and their lines.
fn go(input: &[u8]) -> bool {
    let Some(object) = open(input) else { return false };
    let functions = object.functions();
    for function in functions.iter().take(20) {
        let _ = (object.function_at(function.va), object.frame_rule(function.va));
    }
    let _ = (object.line("goroutines.go", 20, None), object.line("proc.go", 1, Some(2)));
    functions.iter().any(|function| function.name.starts_with("main."))
}

/// Verifies programs; what a compiler of ours has made must be right.
fn verified(program: &Program, maps: &[Map], is_ours: bool) {
    let rules = Rules {
        maps,
        context_size: 240,
        context_writable: 168..176,
        max_steps: 5000,
        allow_unsafe: true,
        ..Rules::default()
    };
    match verify(program, &rules) {
        Err(error) if is_ours && !matches!(error.problem, Problem::TooComplex(_) | Problem::TooManyPaths) => {
            panic!("{error}")
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        Ok(_) => {}
    }
}

fn bpf(input: &[u8]) -> bool {
    let Ok(object) = BpfObject::parse(input) else { return false };
    let maps = object.map_shapes();
    object.programs.iter().for_each(|program| verified(&program.program, &maps, false));
    true
}

fn script(input: &[u8]) -> bool {
    let Some(source) = text(input) else { return false };
    let params = ["7".to_owned(), "text".to_owned()];
    let given = Given { params: params.to_vec(), ..Given::default() };
    let Ok(script) = parse_given(source, &given).map_err(|error| error.render("fuzz", source)) else { return false };
    let Ok((checked, _)) = check_with(&script, &params, &mut Nothing).map_err(|errors| {
        errors.iter().for_each(|error| drop(error.render("fuzz", source)));
    }) else {
        return false;
    };
    let Ok(compiled) = lower(&checked, Clock { start: 1, since_1970: 1 << 60, boot: 5, tai: 37 }) else { return false };
    compiled.programs.iter().for_each(|program| verified(program, &compiled.maps, true));
    true
}

/// A header with a second one that it may include, and a script that has both.
fn header(input: &[u8]) -> bool {
    let Some(source) = text(input) else { return false };
    let (first, other) = source.split_at(source.find(samples::OTHER).unwrap_or(source.len()));
    let mut find = |wanted: &Wanted| {
        let text = if wanted.name.ends_with("other.h") { other } else { first };
        Some(Found { path: wanted.name.to_owned(), text: text.to_owned() })
    };
    let Ok(Some(flat)) = Headers::new(8).read("first.h", &mut find) else { return false };
    let script = "BEGIN { print((N, TEXT)); $s = (struct S *)nsecs; print($s->a) }\n";
    let at = script.len()..script.len() + flat.len();
    let given = Given { parts: vec![at.clone()], headers: vec![at], ..Given::default() };
    let source = format!("{script}{flat}");
    let script = parse_given(&source, &given).map_err(|error| error.render("fuzz", &source));
    script.is_ok_and(|script| check_with(&script, &[], &mut Nothing).is_ok())
}

/// The file in which a program names the code that it has compiled, in two pieces.
fn names(input: &[u8]) -> bool {
    let mut names = CompiledNames::default();
    let (first, second) = input.split_at(input.len() / 2);
    names.add(first);
    names.add(second);
    let mut numbers = Numbers(input);
    let found = [Va(0), Va(0x1000), Va(0x1fff), Va(u64::MAX), Va(numbers.next())].map(|at| names.find(at));
    found.iter().flatten().for_each(|(name, _)| assert!(name.len() <= 3 * 4096, "a name of {} bytes", name.len()));
    found.iter().any(Option::is_some)
}

fn line(input: &[u8]) -> bool {
    let Some(source) = text(input) else { return false };
    let (line, filter) = source.split_once('\n').unwrap_or((source, ""));
    let Ok(event) = Event::parse(line).map_err(|error| error.render(line)) else { return false };
    // What is listed means the same, where the line names the event: a name that is made of a path,
    // as the kernel makes it, may be none that it takes.
    if line.starts_with("p:e ") || line.starts_with("r:e ") {
        let listed = event.to_string();
        assert_eq!(Event::parse(&listed).map(|again| again.to_string()).as_deref(), Ok(&*listed), "{line}");
    }
    let filter = match Filter::parse(filter, &event) {
        Ok(filter) => Some(filter),
        Err(error) => {
            let _ = error.render(filter);
            None
        }
    };
    let Ok(compiled) = compile(&[Probe { event, filter }], &Options::default()) else { return false };
    compiled.iter().for_each(|one| verified(&one.program, &one.maps, true));
    true
}

/// The words of an input; zeros behind it.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> u64 {
        let mut word = [0; 8];
        let len = self.0.len().min(8);
        word[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        u64::from_le_bytes(word)
    }
}

/// Entries of a journal, as any target may write them, and the text of mappings.
fn journal(input: &[u8]) -> bool {
    if let Some(text) = text(input) {
        let _ = parse_maps(text);
    }
    let mut words = Numbers(input);
    let mut some = false;
    for _ in 0..4 {
        let mut entry =
            JournalEntry { site: words.next(), detour: words.next(), inode: words.next(), ..JournalEntry::default() };
        let flags = words.next().to_le_bytes();
        [entry.len, entry.insns_len, entry.own, entry.optimized, ..] = flags;
        (entry.disabled, entry.blocked, entry.gate) = (flags[4].into(), flags[5].into(), flags[6].into());
        (entry.new, entry.old) = ([flags[7]; PATCH_MAX], [words.next() as u8; PATCH_MAX]);
        entry.insns.iter_mut().for_each(|pair| *pair = (words.next() as u16, words.next() as u16));
        let entry = entry.checked();
        let _ = (entry.for_now(), entry.trap(), entry.resumes_at(), entry.gate_closed(), entry.is_promotable());
        let _ = (
            entry.is_around(entry.site.wrapping_add(1)),
            entry.copy_of(entry.site),
            entry.is_pun(),
            entry.may_be_trap(),
        );
        assert!(usize::from(entry.len) <= PATCH_MAX && entry.copies().len() <= 16);
        some |= entry.len != 0;
    }
    some
}

/// Maps whose memory and counters anybody has written, read in the shape that the reader knows.
fn maps(input: &[u8]) -> bool {
    let mut words = Numbers(input);
    let mut rng = Rng::new(words.next());
    let kind = rng.of(&[HASH, LRU_HASH, PERCPU_HASH, STACK_TRACE]);
    let (key, value) = if kind == STACK_TRACE { (4, 64) } else { (rng.of(&[4, 8, 12, 40]), rng.of(&[8, 24, 64])) };
    let Some(desc) = MapDesc::new(kind, key, value, rng.of(&[1, 4, 31]), 0, 0) else { return false };
    let live = MapDesc::new(kind, key, value, 1, 0, 0).unwrap_or_else(|| unreachable!("the same kind"));
    for field in [&live.dropped, &live.count, &live.free, &live.hand, &live.fresh] {
        field.store(words.next(), Ordering::Relaxed);
    }
    let memory: Vec<AtomicU64> = (0..desc.data_len() / 8).map(|_| AtomicU64::new(words.next())).collect();
    if kind == STACK_TRACE {
        let stacks = Stacks::new(&desc, &memory);
        return (0..stacks.buckets() + 2).fold(false, |any, id| any | stacks.read(id, |_| ()));
    }
    let table = Table::shared(&desc, &live, &memory);
    let (mut left, mut seen) = (table.steps(), 0);
    for bucket in 0..desc.buckets {
        let Some(mut cursor) = table.bucket(bucket) else { continue };
        while let sidestep_wire::hash::Step::Entry(found, next) = table.walk(cursor, &mut left) {
            let _ = (
                table.key_word(&found, 0),
                table.value_word(&found, 0),
                table.value_offset(&found),
                table.is_current(&found),
            );
            cursor = next;
            seen += 1;
        }
    }
    assert!(seen <= table.steps(), "{seen} entries");
    // What programs of this session do with it.
    let (key, value) = (vec![rng.of(&[0, 1, 255]); key as usize], vec![1; value as usize]);
    for flags in [ANY, NO_EXIST, EXIST] {
        let _ = table.update(&key.as_slice(), &value.as_slice(), flags);
        let found = table.lookup(&key.as_slice()).map_or(0, |found| table.value_offset(&found));
        assert!(found <= desc.data_len(), "a value at {found} of {}", desc.data_len());
        let _ = table.delete(&key.as_slice());
    }
    seen > 0
}

/// A ring whose words and head anybody has written.
fn rings(input: &[u8]) -> bool {
    let mut words = Numbers(input);
    let (mut head, mut tail) = (words.next(), words.next());
    let ring: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(words.next())).collect();
    let Some(ring) = Ring::new(&ring) else { return false };
    // Half of them are a head that a writer could have written, with records before it: where the
    // reader is no target can say.
    if head & 16 == 0 {
        head &= !7;
        tail = head.saturating_sub(tail % 600);
        for (n, at) in (0..4).zip((tail..head).step_by(64)) {
            let word = ring.word(at);
            let (state, len) = ([2, 3, 1, 2][n], 24 + 8 * (word.load(Ordering::Relaxed) & 15));
            word.store(len << 32 | state, Ordering::Relaxed);
        }
    }
    tail &= !7;
    let mut records = 0;
    loop {
        match ring.next(head, tail) {
            Next::Record(len) | Next::Pad(len) | Next::Unfinished(_, len) => {
                assert!(
                    len >= 24 && len % 8 == 0 && len <= ring.len() && len <= head - tail,
                    "{len} at {tail} of {head}"
                );
                (0..len / 8).for_each(|i| {
                    let _ = ring.word(tail + i * 8).load(Ordering::Relaxed);
                });
                tail += len;
                records += 1;
            }
            Next::Overwritten(to) => {
                assert_eq!(to % 8, 0);
                break;
            }
            Next::Nothing | Next::Reserved => break,
        }
        assert!(records <= 22, "more records than fit");
    }
    records > 0
}
