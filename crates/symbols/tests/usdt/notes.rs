//! The notes of whole programs, good and corrupt.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sidestep_isa::Va;
use sidestep_symbols::usdt::{Argument, Place, Probe, SpecLayout, UsdtError};
use sidestep_symbols::{DebugSearch, Matcher, Object, ObjectError, find_object};

use crate::support::{compile, hex, run, scratch, str};
use crate::{NOTE, probes};

/// Several sites of one name, semaphores, text that is not understood; with `sys/sdt.h`, its
/// macros, too.
const PROGRAM: &str = r#"
#define PROBE(provider, name, semaphore, arguments) asm volatile("990: nop\n" NOTE(provider, name, semaphore, arguments))
__attribute__((section(".probes"))) volatile unsigned short counted_semaphore;
static volatile int hidden[4];
__attribute__((noinline)) static int twice(int x) {
    PROBE("app", "many", "0", "-4@%edi");
    hidden[1] = x;
    PROBE("app", "many", "0", "-4@hidden+4(%rip) 4@nowhere(%rip)");
    return x;
}
#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#endif
int main(int argc, char **argv) {
    if (counted_semaphore)
        PROBE("app", "counted", "counted_semaphore", "8@%rsi 4@$42");
    PROBE("app", "odd", "0", "8@%xmm0");
    PROBE("other", "none", "0", "");
    PROBE("other", "old", "0", ":x");
#ifdef _SYS_SDT_H
    STAP_PROBE3(sdt, three, argc, argv[0], argv[argc][argc]);
    STAP_PROBE1(sdt, floating, (double)argc);
#endif
    return twice(argc);
}
"#;

fn program(test: &str, flags: &[&str]) -> PathBuf {
    compile(&scratch(test), "program.c", &format!("{NOTE}{PROGRAM}"), &[&["-O2"], flags].concat())
}

/// Provider, name, address, semaphore (0: none) and arguments.
type Row = (String, String, u64, u64, String);

fn own_rows(file: &Path) -> BTreeSet<Row> {
    let row = |p: Probe| {
        let semaphore = p.semaphore.map_or(0, |at| at.0);
        (p.provider.into(), p.name.into(), p.va.0, semaphore, p.text.into())
    };
    probes(file).into_iter().map(row).collect()
}

/// The same as `readelf -n` shows it.
fn readelf_rows(file: &Path) -> BTreeSet<Row> {
    let text = run("readelf", &["-nW", str(file)]);
    let mut rows = BTreeSet::new();
    for note in text.split("Provider: ").skip(1) {
        let lines: Vec<&str> = note.lines().collect();
        let name = lines[1].trim().strip_prefix("Name: ").unwrap();
        let numbers: Vec<u64> = lines[2].split(": ").skip(1).map(|n| hex(n.split(',').next().unwrap())).collect();
        let arguments = lines[3].trim().strip_prefix("Arguments:").unwrap().trim();
        let arguments = if arguments.starts_with(':') { "" } else { arguments };
        rows.insert((lines[0].trim().to_owned(), name.to_owned(), numbers[0], numbers[2], arguments.to_owned()));
    }
    rows
}

#[test]
fn probes_are_those_of_readelf() {
    for flags in [&["-fPIE", "-pie"][..], &["-fno-pie", "-no-pie"]] {
        let file = program("readelf", flags);
        let own = own_rows(&file);
        assert!(own.len() >= 6, "{own:?}");
        assert_eq!(own, readelf_rows(&file));
        for probe in probes(&file) {
            let object = Object::open(&file, &[]).unwrap();
            let at = object.offset_of(probe.va).unwrap().0 as usize;
            assert_eq!(std::fs::read(&file).unwrap()[at], 0x90, "{probe:?}");
        }
    }
}

#[test]
fn probes_of_this_machine_are_those_of_readelf() {
    // Debian builds libc without probes, but the C++ library and Python with them; Python's have
    // semaphores.
    let (mut sites, mut semaphores) = (0, 0);
    for name in ["c", "stdc++", "/usr/bin/python3"] {
        let file = find_object(name).unwrap();
        let own = own_rows(&file);
        assert_eq!(own, readelf_rows(&file), "{name}");
        sites += own.len();
        semaphores += own.iter().filter(|row| row.3 != 0).count();
        for probe in probes(&file) {
            assert!(probe.arguments.is_ok(), "{probe:?}");
        }
    }
    assert!(sites > 0 && semaphores > 0, "{sites} sites, {semaphores} semaphores");
}

#[test]
fn all_sites_of_a_name_are_found_and_symbols_resolved() {
    let file = program("find", &[]);
    let object = Object::open(&file, &[]).unwrap();
    let names = |provider, name| -> Vec<String> {
        object.find_usdt(provider, name).unwrap().iter().map(|p| format!("{}:{}", p.provider, p.name)).collect()
    };
    assert_eq!(names("app", "many"), ["app:many", "app:many"]);
    assert_eq!(names("app", "*"), ["app:counted", "app:many", "app:many", "app:odd"]);
    assert_eq!(names("*", "o[dl]d"), ["app:odd", "other:old"]);

    let nm = run("nm", &[str(&file)]);
    let line = nm.lines().find(|line| line.ends_with(" hidden")).unwrap();
    let many = object.find_usdt("app", "many").unwrap();
    let twice = object.find(&Matcher::name("twice"))[0].va;
    assert!(many[0].va >= twice && many[0].va < many[1].va);
    let symbol = |argument: &Argument| match &argument.place {
        Place::Memory(memory) => memory.symbol.as_ref().unwrap().va,
        other => panic!("{other:?}"),
    };
    let symbols: Vec<_> = many[1].arguments.as_ref().unwrap().iter().map(symbol).collect();
    assert_eq!(symbols, [Some(Va(hex(line.split(' ').next().unwrap()))), None]);

    let message = |provider, name| match object.find_usdt(provider, name) {
        Err(error @ UsdtError::NotFound { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(message("app", "mani").ends_with("; did you mean `app:many`?"), "{}", message("app", "mani"));
    assert!(message("nothing", "alike").contains("none of its"), "{}", message("nothing", "alike"));
    let plain = compile(&scratch("find-none"), "plain.c", "int main(void) { return 0; }", &[]);
    let error = Object::open(&plain, &[]).unwrap().find_usdt("*", "*").unwrap_err();
    assert!(error.to_string().ends_with("it has no USDT probes"), "{error}");
}

#[test]
fn a_symbol_that_is_there_twice_is_not_resolved() {
    let dir = scratch("twice");
    let other = dir.join("other.c");
    std::fs::write(&other, "static volatile int both = 1; int more(void) { return both; }").unwrap();
    let source = format!(
        r#"{NOTE}
        static volatile int both = 2;
        int more(void);
        int main(void) {{ asm volatile("990: nop\n" NOTE("app", "p", "0", "4@both(%rip)")); return both + more(); }}"#
    );
    let va = |flags: &[&str]| {
        let found = probes(&compile(&dir, "program.c", &source, flags));
        match &found[0].arguments.as_ref().unwrap()[0].place {
            Place::Memory(memory) => memory.symbol.as_ref().unwrap().va,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(va(&[str(&other)]), None);
    std::fs::write(&other, "int more(void) { return 1; }").unwrap();
    assert!(va(&[str(&other)]).is_some());
}

/// Where a section's header is in the file.
fn section_header(bytes: &[u8], name: &str) -> usize {
    let word = |at: usize, size: usize| {
        let mut raw = [0; 8];
        raw[..size].copy_from_slice(&bytes[at..at + size]);
        u64::from_le_bytes(raw) as usize
    };
    let (table, count, names) = (word(40, 8), word(60, 2), word(62, 2));
    let strings = word(table + 64 * names + 24, 8);
    let wanted = [name.as_bytes(), b"\0"].concat();
    let is_it = |header: &usize| bytes[strings + word(*header, 4)..].starts_with(&wanted);
    (0..count).map(|n| table + 64 * n).find(is_it).unwrap()
}

/// The addresses in the notes of a file: where each is, and its value.
fn note_words(bytes: &[u8]) -> Vec<(usize, [u64; 3])> {
    let header = section_header(bytes, ".note.stapsdt");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, end) = (word(header + 24) as usize, (word(header + 24) + word(header + 32)) as usize);
    let mut found = Vec::new();
    while at < end {
        found.push((at + 20, [word(at + 20), word(at + 28), word(at + 36)]));
        at += 20 + half(at + 4).next_multiple_of(4);
    }
    found
}

fn from_bytes(bytes: Vec<u8>) -> Result<Object, ObjectError> {
    Object::from_bytes(Path::new("/x/program"), bytes, &DebugSearch { roots: Vec::new(), dirs: Vec::new() })
}

#[test]
fn addresses_of_prelinked_objects_are_moved() {
    // As prelink leaves it: the sections (all of them) moved, the notes not.
    let good = std::fs::read(program("prelinked", &[])).unwrap();
    let mut moved = good.clone();
    const BY: u64 = 0x1000;
    for (at, words) in note_words(&good) {
        for (n, value) in words.iter().enumerate().filter(|(_, value)| **value != 0) {
            moved[at + 8 * n..at + 8 * n + 8].copy_from_slice(&value.wrapping_sub(BY).to_le_bytes());
        }
    }
    assert_ne!(moved, good);
    let probes = |bytes| from_bytes(bytes).unwrap().usdt_probes().unwrap();
    assert_eq!(probes(moved), probes(good));
}

#[test]
fn code_that_the_linker_dropped_has_no_probes() {
    // The linker of LLVM leaves the notes of functions that nobody needs (`--gc-sections`), with 0
    // for what is gone.
    let good = std::fs::read(program("dropped", &[])).unwrap();
    let all = from_bytes(good.clone()).unwrap().usdt_probes().unwrap();
    for (at, [pc, ..]) in note_words(&good) {
        let mut bytes = good.clone();
        bytes[at..at + 8].fill(0);
        bytes[at + 16..at + 24].fill(0);
        let left = from_bytes(bytes).unwrap().usdt_probes().unwrap();
        assert_eq!(left, all.iter().filter(|probe| probe.va.0 != pc).cloned().collect::<Vec<_>>());
        assert!(left.len() < all.len());
    }
}

#[test]
fn a_semaphore_outside_of_writable_data_is_refused() {
    let good = std::fs::read(program("semaphore", &[])).unwrap();
    let object = from_bytes(good.clone()).unwrap();
    let text = object.find(&Matcher::name("main"))[0].va.0;
    let data = object.segments().iter().find(|s| s.write).unwrap();
    let end = data.va.0 + data.size.0;
    let (at, _) = note_words(&good).into_iter().find(|(_, words)| words[2] != 0).unwrap();
    for (semaphore, is_good) in [(text, false), (end - 2, true), (end - 1, false), (u64::MAX, false)] {
        let mut bytes = good.clone();
        bytes[at + 16..at + 24].copy_from_slice(&semaphore.to_le_bytes());
        let probes = from_bytes(bytes).unwrap().usdt_probes();
        assert_eq!(probes.is_ok(), is_good, "{semaphore:#x}");
    }
}

#[test]
fn corrupt_notes_give_errors_or_fewer_probes() {
    let good = std::fs::read(program("corrupt", &[])).unwrap();
    let header = section_header(&good, ".note.stapsdt");
    let word = |at: usize| u64::from_le_bytes(good[at..at + 8].try_into().unwrap()) as usize;
    let (start, size) = (word(header + 24), word(header + 32));
    let (mut whole, mut refused) = (0, 0);
    let mut read = |bytes: Vec<u8>| {
        let object = from_bytes(bytes).unwrap();
        match object.usdt_probes() {
            Ok(probes) => {
                whole += 1;
                for probe in probes {
                    assert!(object.check_code(probe.va).is_ok(), "{probe:?}");
                    for layout in [SpecLayout::Plain, SpecLayout::Indexed] {
                        let bytes = probe.spec_bytes(layout, 0);
                        assert!(bytes.is_err() || bytes.unwrap().len() == layout.size());
                    }
                }
            }
            Err(ObjectError::Corrupt { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    };
    for at in start..start + size {
        for value in [0, 1, 0x7f, 0xff, b'@', b' ', b'(', b'%', b'-', good[at] ^ 1, good[at] ^ 0x80] {
            let mut bad = good.clone();
            bad[at] = value;
            read(bad);
        }
    }
    for size in 0..size as u64 {
        let mut bad = good.clone();
        bad[header + 32..header + 40].copy_from_slice(&size.to_le_bytes());
        read(bad);
    }
    assert!(whole > 1000 && refused > 100, "{whole} read, {refused} refused");
}

#[test]
fn corrupt_section_headers_give_errors_or_fewer_probes() {
    let good = std::fs::read(program("corrupt-headers", &[])).unwrap();
    let count = from_bytes(good.clone()).unwrap().usdt_probes().unwrap().len();
    let (mut fewer, mut refused) = (0, 0);
    for name in [".note.stapsdt", ".stapsdt.base", ".probes", ".symtab", ".strtab", ".dynsym", ".text"] {
        let header = section_header(&good, name);
        for at in header..header + 64 {
            for value in [0, 1, 0x7f, 0xff, good[at] ^ 1, good[at] ^ 8, good[at] ^ 0x80] {
                let mut bad = good.clone();
                bad[at] = value;
                match from_bytes(bad).and_then(|object| object.usdt_probes()) {
                    Ok(probes) => fewer += usize::from(probes.len() < count),
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(fewer > 0 && refused > 0, "{fewer} with fewer probes, {refused} refused");
}
