//! Corrupt files give errors or fewer facts; never a panic, an endless loop or a huge allocation.

mod support;

use std::path::Path;

use sidestep_isa::{FileOff, Va};
use sidestep_symbols::{DebugSearch, Matcher, Object, parse_maps};
use support::{compile, run, scratch, str};

/// xorshift64*: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// A small program with every structure that is read: exceptions, an ifunc, relocations,
/// `.gnu_debugdata`, a debug link.
fn sample(test: &str) -> Vec<u8> {
    let source = r#"
        #include <stdexcept>
        #include <string>
        static int one(int x) { return x; }
        extern "C" int (*choose(void))(int) { return one; }
        int chosen(int) __attribute__((ifunc("choose")));
        int (*volatile table[3])(int) = { one, chosen, one };
        struct Guard { std::string s; ~Guard() { table[0](1); } };
        int main(int argc, char **) {
            Guard g;
            try { if (argc > 3) throw std::runtime_error("x"); } catch (std::exception &) { return 1; }
            return table[1](argc);
        }
    "#;
    let dir = scratch(test);
    let program = compile(&dir, "program.cc", source, &["-Wl,-z,pack-relative-relocs"]);
    let mini = dir.join("mini");
    run("objcopy", &["--only-keep-debug", str(&program), str(&mini)]);
    run("strip", &["--strip-all", str(&program)]);
    run("objcopy", &["--add-gnu-debuglink", str(&mini), str(&program)]);
    run("xz", &[str(&mini)]);
    let section = format!(".gnu_debugdata={}", str(&dir.join("mini.xz")));
    run("objcopy", &["--add-section", &section, str(&program)]);
    std::fs::read(&program).unwrap()
}

/// The same for i386, where C has landing pads for what is cleaned up.
fn sample_32(test: &str) -> Vec<u8> {
    let source = r#"
        int one(int x) { return x; }
        static int (*choose(void))(int) { return one; }
        int chosen(int) __attribute__((ifunc("choose")));
        int (*volatile table[3])(int) = { one, chosen, one };
        static void end(int *x) { table[0](*x); }
        int main(int argc, char **argv) {
            int x __attribute__((cleanup(end))) = argc;
            return table[1](argc);
        }
    "#;
    let dir = scratch(test);
    let file = dir.join("program.c");
    std::fs::write(&file, source).unwrap();
    let program = dir.join("program");
    let flags = ["-O1", "-fexceptions", "-fPIE", "-pie", "-Wl,-z,pack-relative-relocs"];
    run("i686-linux-gnu-gcc", &[&flags[..], &[str(&file), "-o", str(&program)]].concat());
    std::fs::read(&program).unwrap()
}

/// Where the section headers of a sample are.
fn section_headers(sample: &[u8]) -> usize {
    match sample[4] {
        1 => u32::from_le_bytes(sample[32..36].try_into().unwrap()) as usize,
        _ => u64::from_le_bytes(sample[40..48].try_into().unwrap()) as usize,
    }
}

/// Asks for everything there is. Returns how far it got: whether it opened, and whether the code
/// facts are there.
fn read_all(bytes: Vec<u8>) -> (bool, bool) {
    let search = DebugSearch { roots: Vec::new(), dirs: Vec::new() };
    let Ok(object) = Object::from_bytes(Path::new("/x/program"), bytes, &search) else {
        return (false, false);
    };
    let glob = object.find(&Matcher::glob("*a*"));
    for function in glob.iter().chain(&object.find(&Matcher::name("main"))) {
        let _ = (function.demangled(), function.short_name());
        let _ = object.function_at(Va(function.va.0.wrapping_add(1)));
        let _ = object.find_offset(&function.name, 1);
        let _ = object.irelative_slots(function.va);
        let _ = object.import_slots(&function.name);
        let _ = object.offset_of(function.va);
    }
    let _ = object.find(&Matcher::name("Guard::~Guard()"));
    let _ = object.not_found("mian").to_string();
    let _ = (object.kind(), object.is_static(), object.is_go(), object.needed(), object.soname());
    let _ = (object.va_of(FileOff(0x1000)), object.check_code(object.entry()));
    for mapping in parse_maps("1000-2000 r-xp 00001000 00:01 1 /x/program") {
        let _ = object.load_bias(&mapping);
    }
    (true, object.code().is_ok())
}

#[test]
fn flipped_bytes() {
    flip(&sample("flipped"));
}

#[test]
fn flipped_bytes_of_32_bit_files() {
    flip(&sample_32("flipped-32"));
}

fn flip(good: &[u8]) {
    assert_eq!(read_all(good.to_vec()), (true, true));
    let mut random = Random(0x5eed_0001);
    let (mut opened, mut whole) = (0, 0);
    const ROUNDS: usize = 2000;
    // The headers, where most of the damage can be done, get half of the hits.
    let section_headers = section_headers(good);
    for _ in 0..ROUNDS {
        let mut bad = good.to_vec();
        for _ in 0..=random.below(4) {
            let at = match random.below(4) {
                0 => random.below(0x300),
                1 => section_headers + random.below(bad.len() - section_headers),
                _ => random.below(bad.len()),
            };
            bad[at] = match random.below(3) {
                0 => bad[at] ^ 1 << random.below(8),
                1 => 0xff,
                _ => random.below(256) as u8,
            };
        }
        let (open, code) = read_all(bad);
        opened += usize::from(open);
        whole += usize::from(code);
    }
    // Both ways out were taken, or the damage was at the wrong places.
    assert!(opened > 0 && opened < ROUNDS && whole < opened, "{opened} opened, {whole} with code");
}

#[test]
fn extreme_words() {
    put_extremes(&sample("extreme"));
    put_extremes(&sample_32("extreme-32"));
}

fn put_extremes(good: &[u8]) {
    let mut random = Random(0x5eed_0002);
    let words = [0, 1, 7, 0xfff, 1 << 31, u64::from(u32::MAX), 1 << 62, i64::MAX as u64, u64::MAX - 7, u64::MAX];
    for _ in 0..2000 {
        let mut bad = good.to_vec();
        for _ in 0..=random.below(2) {
            let at = random.below(bad.len() / 8 - 1) * 8 + 4 * random.below(2);
            let word = words[random.below(words.len())];
            bad[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        read_all(bad);
    }
}

#[test]
fn cut_off_files() {
    let good = sample("cut");
    for length in (0..256).chain((256..good.len()).step_by(97)) {
        // The section headers are at the end: a file that is cut has none.
        assert_eq!(read_all(good[..length].to_vec()), (false, false), "{length}");
    }
}

#[test]
fn sections_that_overlap_a_thousand_times() {
    // Every section header says that it is the string table of a symbol table that is the whole
    // file.
    let good = sample("overlap");
    let headers = section_headers(&good);
    let count = usize::from(u16::from_le_bytes(good[60..62].try_into().unwrap()));
    for sh_type in [2u32, 4, 6, 7, 11, 19] {
        let mut bad = good.clone();
        let length = bad.len() as u64;
        for header in 1..count {
            let at = headers + 64 * header;
            bad[at + 4..at + 8].copy_from_slice(&sh_type.to_le_bytes());
            bad[at + 8] |= 2;
            bad[at + 24..at + 32].fill(0);
            bad[at + 32..at + 40].copy_from_slice(&length.to_le_bytes());
        }
        read_all(bad);
    }
}
