//! Good inputs: files of this repository, and programs that are built from it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use object::{Object, ObjectSection};
use sidestep_tests::build::{checkout, target_dir};
use sidestep_tests::process::run;
use sidestep_tests::target;

use crate::mutate::Sample;

/// A small program with every structure that is read: exceptions, an ifunc, relocations, types of
/// each kind, static probes' notes.
const PROGRAM: &str = r#"
    #include <stdexcept>
    #include <string>
    struct Pair { int a : 3; unsigned b : 7; double x; struct Pair *next; char name[9]; };
    union Either { long l; float f; };
    enum Color { RED = 3, GREEN = 1 << 20 };
    static int one(int x) { return x; }
    extern "C" int (*choose(void))(int) { return one; }
    int chosen(int) __attribute__((ifunc("choose")));
    int (*volatile table[3])(int) = { one, chosen, one };
    struct Guard { std::string s; ~Guard() { table[0](1); } };
    static inline __attribute__((always_inline)) int twice(int x) { return table[2](x) * 2; }
    extern "C" double first(Pair *p, Either e, Color c, const char *text) {
        __asm__ volatile(".pushsection .note.stapsdt,\"\",\"note\"\n .balign 4\n .4byte 2f-1f,4f-3f,3\n 1: .asciz \"stapsdt\"\n"
            " 2: .balign 4\n 3: .8byte 5f,0,0\n .asciz \"app\"\n .asciz \"seen\"\n .asciz \"-4@%%edi 8@8(%%rsp) 1@$5\"\n"
            " 4: .balign 4\n .popsection\n 5: nop" ::: "memory");
        return p->x + e.f + c + text[0] + twice(p->a);
    }
    int main(int argc, char **) {
        Guard g;
        Pair pair = {};
        try { if (argc > 3) throw std::runtime_error("x"); } catch (std::exception &) { return 1; }
        switch (argc) { case 1: argc += 2; break; case 2: argc *= 3; break; case 3: argc ^= 5; break; case 4: argc -= 9; break; case 5: argc = 7; }
        return table[1](argc) + (int)first(&pair, Either{1}, RED, "text");
    }
"#;

/// Compiles [`PROGRAM`] with some flags.
fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    let dir = target_dir().join("fuzz/samples");
    std::fs::create_dir_all(&dir).expect("the target directory is writable");
    let (source, program) = (dir.join("program.cc"), dir.join(name));
    std::fs::write(&source, PROGRAM).expect("the target directory is writable");
    let mut command = Command::new("g++");
    run(command.args(flags).arg(&source).arg("-o").arg(&program), Duration::from_secs(180)).ok();
    program
}

/// An ELF file, with where its tables and interesting sections are.
pub fn elf(path: &Path, is_part: impl Fn(&str) -> bool) -> Sample {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut parts = Vec::new();
    parts.push(0..64); // the header
    let file = object::File::parse(&*bytes).expect("a compiler's output is ELF");
    for section in file.sections() {
        let Some((at, len)) = section.file_range() else { continue };
        if len > 0 && section.name().is_ok_and(&is_part) {
            parts.push(at as usize..(at + len) as usize);
        }
    }
    // The tables of segments and sections, twice as likely as a section.
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
    for table in [word(32)..word(32) + 56 * 10, word(40)..bytes.len()] {
        parts.extend([table.clone(), table]);
    }
    Sample { bytes, parts }
}

/// Programs without debug information.
pub fn programs() -> Vec<Sample> {
    let is_part = |name: &str| !name.starts_with(".debug");
    let relr = ["-O2", "-Wl,-z,pack-relative-relocs"];
    vec![
        elf(&compiled("plain", &["-O1"]), is_part),
        elf(&compiled("relr", &relr), is_part),
        elf(&compiled("static", &["-O2", "-s", "-no-pie", "-fcf-protection"]), is_part),
    ]
}

/// Programs with debug information, of two versions.
pub fn described() -> Vec<Sample> {
    let is_part = |name: &str| name.starts_with(".debug");
    vec![
        elf(&compiled("dwarf5", &["-g", "-O1"]), is_part),
        elf(&compiled("dwarf4", &["-g", "-gdwarf-4", "-O2"]), is_part),
    ]
}

/// A Go program without symbols. Its table of functions is damaged, the beginning more often.
pub fn go_programs() -> Vec<Sample> {
    let Some(program) = target("goroutines-stripped") else { return Vec::new() };
    let mut sample = elf(&program, |name| name == ".gopclntab");
    // Behind the header of the file is the only section that was asked for.
    let table = sample.parts.swap_remove(1);
    let head = |len| table.start..table.start + len;
    sample.parts = vec![head(72), head(72), head(4096), table.clone()];
    vec![sample]
}

/// eBPF objects of clang.
pub fn objects() -> Vec<Sample> {
    let names = ["maps.bpf.o", "loop.bpf.o", "latency.bpf.o", "usdt.bpf.o", "sections.bpf.o", "core.bpf.o"];
    names.iter().filter_map(|name| Some(elf(&target(name)?, |name| !name.starts_with(".debug")))).collect()
}

/// The scripts of the specs, right and wrong ones.
pub fn scripts() -> Vec<Sample> {
    let dir = checkout().join("tests/specs");
    let mut files: Vec<_> = dir.read_dir().expect("tests/specs").flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut scripts = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).expect("a spec is text");
        let programs = text.lines().filter_map(|line| line.strip_prefix("PROG "));
        scripts.extend(programs.map(|text| Sample::plain(text.trim().replace("TARGET", "/bin/x"))));
    }
    scripts
}

/// Lines of `uprobe_events`, a filter behind each.
pub fn lines() -> Vec<Sample> {
    let lines = [
        "p:mem/alloc /bin/app:0x1130 size=%di name=+0(%si):string\nsize > 64",
        "r:g/ret /bin/app:0x10(0x20) code=$retval:s32 $comm\ncode != 0 && comm == \"x*\"",
        "p /bin/sh:16%return a=+u8(+0(%ax)):x64[3] b=@0x1000:u8 c=-8($stack2):b4@2/8\n!(a & 3) || b != -1",
        "p:e /bin/sh:020 one=$arg1 two=%r15:symbol s=+0($stack):ustring t=\\\"text\":string i=\\1234\ns ~ \"*a?\"",
        "p:e /bin/sh:0 x=+0(%di):string[4] y=%di:char\nx == \"a\" && (y > 3 || y <= 0x10)",
    ];
    lines.iter().map(|line| Sample::plain(*line)).collect()
}

/// Text of `/proc/PID/maps`, and words of memory.
pub fn shared() -> Vec<Sample> {
    let words: Vec<u8> = (0..256u64).flat_map(|n| (n << 32 | (n * 2 + 2)).to_le_bytes()).collect();
    vec![
        Sample::plain(
            "55d0-55d4 r-xp 00001000 fe:01 123   /bin/app (deleted)\n7f00-7f08 rw-s 00000000 00:01 4 /memfd:x\n",
        ),
        Sample::plain(vec![0; 2048]),
        Sample::plain(words),
    ]
}

/// What the second header of an input begins with.
pub const OTHER: &str = "/* other.h */";

/// A header that includes another one.
pub fn headers() -> Vec<Sample> {
    let first = r#"
#ifndef FIRST_H
#define FIRST_H 1
#include "other.h"
#define PAIR(a, b) ((a) << 8 | (b))
#define STRING(a) #a
#define JOIN(a, b) a ## b
#if defined(__x86_64__) && FIRST_H >= 1 || !defined N
#define N PAIR(JOIN(1, 2), 'a' + 0x7fUL)
#elif 0
#error "never"
#else
#define N (-1 ? sizeof(int) : ~0u)
#endif
#define TEXT "text" "\x41\n"
struct S { int a; unsigned b : 3, c : 29; union { long l; char name[16]; }; struct S *next; enum E { RED, GREEN = 7 } e; };
typedef struct S S_t;
extern int f(S_t *s, const char *text, ...) __attribute__((nonnull(1)));
#endif
"#;
    let other = r#"
#pragma pack(push, 1)
typedef unsigned long long word_t;
struct Other { word_t words[4]; short x; };
#pragma pack(pop)
static inline int g(void) { return 1; }
"#;
    vec![Sample::plain(format!("{first}{OTHER}{other}"))]
}

/// The file in which a program names the code that it has compiled.
pub fn names() -> Vec<Sample> {
    vec![Sample::plain(
        "1000 40 LazyCompile:*f /x/app.js:3:5\n1020 80 Function:~g\n2000 1000 h\nffffffffffffff00 100 last\n1010 8 f\n",
    )]
}
